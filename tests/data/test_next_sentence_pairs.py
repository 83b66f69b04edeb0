"""Sentence splitting and next-sentence pairs: half of the pairs are consecutive, and lengths give no information."""

from time import process_time
from typing import Any

import numpy as np
import pytest

from seqloom.core.errors import DataError
from seqloom.core.tokens import Specials
from seqloom.data.masking import NextSentencePairs
from seqloom.text.base import split_sentences
from seqloom.text.model_inputs import frame_texts

LENGTH, DOCUMENTS, SENTENCES = 32, 40, 25
ALL = 20_000  # vocabulary size: every token of the text is different
SPECIALS = Specials.after(ALL)


def test_sentences_end_at_punctuation() -> None:
    text = '= Title = \n \n One . Two said " no ! " and left . \n Three is 3.5 m ? Four … \n\nFive'
    sentences = split_sentences(text)
    assert "".join(sentences) == text
    assert [sentence.strip() for sentence in sentences] == ["= Title =", "One .", 'Two said " no !', '" and left .',
        "Three is 3.5 m ?", "Four …", "Five"]  # fmt: skip
    assert split_sentences("一。二！三") == ["一。", "二！", "三"]
    assert split_sentences("e.g. this (too.) stays") == ["e.g.", " this (too.)", " stays"]
    assert split_sentences(" \n \n ") == split_sentences("") == []


@pytest.mark.parametrize("space", [" ", "\n"])
def test_long_gaps_are_split_quickly(space: str) -> None:
    """Searching for a blank line from each of 60,000 positions would take several seconds."""
    text, began = f"One{space * 60_000}two", process_time()
    assert "".join(split_sentences(text)) == text
    assert process_time() - began < 1


@pytest.mark.parametrize("text", ["a. b", "\n\n a.\n\nb \n ", "no end", "x.\n\n\n\ny. z\n"])
def test_sentences_concatenate_to_document(text) -> None:
    assert "".join(split_sentences(text)) == text


def documents(seed: int = 0) -> list[list[list[int]]]:
    """Return documents in which every token is unique, so that a token identifies its document and sentence."""
    draws, next_token = np.random.default_rng(seed), 1
    result: list[list[list[int]]] = []
    for _ in range(DOCUMENTS):
        result.append([])
        for size in draws.integers(1, 12, SENTENCES).tolist():
            result[-1].append(list(range(next_token, next_token + size)))
            next_token += size
    return result


def segments_of(row: list[int], length: int) -> tuple[list[int], list[int]]:
    (first, second) = [position for position, token in enumerate(row) if token == SPECIALS.separate]
    assert row[0] == SPECIALS.classify and second == length - 1 and not any(row[length:])
    return row[1:first], row[first + 1 : second]


@pytest.fixture(scope="module")
def pairs() -> NextSentencePairs:
    return NextSentencePairs(documents(), SPECIALS, LENGTH)


def positions_of_tokens() -> dict[int, tuple[int, int]]:
    return {
        token: (d, s)
        for d, document in enumerate(documents())
        for s, sentence in enumerate(document)
        for token in sentence
    }


def test_second_text_follows_the_first_or_is_from_another_document(pairs: NextSentencePairs) -> None:
    drawn, at = pairs.draw(np.random.default_rng(3)), positions_of_tokens()
    last = {max(document[-1]) for document in documents()}
    for row, segments, length, other in zip(*(values.tolist() for values in drawn), strict=True):
        a, b = segments_of(row, length)
        assert row[:length] == frame_texts(SPECIALS, "bert", a, b).tokens
        assert segments[:length] == frame_texts(SPECIALS, "bert", a, b).segments and not any(segments[length:])
        assert a == list(range(a[0], a[-1] + 1)) and b == list(range(b[0], b[-1] + 1))  # the sentences are consecutive
        assert len(a) <= (LENGTH - 3) // 2
        (document, _), (elsewhere, _) = at[a[0]], at[b[0]]
        assert (b[0] == a[-1] + 1 and elsewhere == document) if not other else elsewhere != document
        for text in (a, b):  # the sentences are complete
            assert at[text[0]] != at.get(text[0] - 1) and at[text[-1]] != at.get(text[-1] + 1)
        more = next((s for d in documents() for s in d if s[0] == b[-1] + 1), None)
        assert b[-1] in last or more is None or length + len(more) > LENGTH  # no further sentence fits


def test_pairs_are_balanced_and_lengths_uninformative(pairs: NextSentencePairs) -> None:
    samples = [pairs.draw(np.random.default_rng(seed)) for seed in range(40)]
    other = np.concatenate([sample.other for sample in samples]).astype(bool)
    lengths = np.concatenate([sample.lengths for sample in samples])
    seconds = np.concatenate([sample.segments.sum(axis=1) for sample in samples])
    n = len(other)
    assert other.mean() == pytest.approx(0.5, abs=4 * 0.5 / n**0.5)
    for values in (lengths, seconds):
        assert values[other].mean() == pytest.approx(values[~other].mean(), rel=0.03)


def test_every_sentence_is_read_with_few_repetitions(pairs: NextSentencePairs) -> None:
    covered: list[Any] = [
        sentence for b, e in zip(pairs._row_starts, pairs._row_ends, strict=True) for sentence in range(b, e)
    ]
    assert set(covered) == set(range(DOCUMENTS * SENTENCES))
    assert len(covered) - len(set(covered)) <= DOCUMENTS  # at most one per document


def test_long_sentences_are_divided_and_single_sentences_left_out() -> None:
    source = NextSentencePairs([[list(range(1, 60))], [[60], [61, 62]], [[63]]], SPECIALS, LENGTH)
    assert source.alone == 1  # only the last document, because the first sentence was divided
    drawn = source.draw(np.random.default_rng(0))
    assert drawn.lengths.max() <= LENGTH


def test_single_document_is_rejected() -> None:
    with pytest.raises(DataError, match=r"at least two documents .* the dev split has 1\. Set objective=mlm"):
        NextSentencePairs([[[1], [2]], [[3]]], SPECIALS, LENGTH, "the dev split")
