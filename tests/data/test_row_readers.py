"""Rows of several texts: contents, truncation, windows of long contexts, and batches."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqloom.core.errors import DataError
from seqloom.core.tokens import Specials
from seqloom.data.collate import IGNORE, ExampleRows, RowBatches
from seqloom.data.text_inputs import RowReader, TextFrame, Window, tokens_covering
from seqloom.text import BytePairConfig, Tokenizer, WordsConfig, train_tokenizer
from seqloom.text.model_inputs import Form

TEXT = "Ann lives in Bonn, near the Rhine. Bob doesn't: he lives in Oslo (Norway)!"
WORDS = train_tokenizer(WordsConfig(split="punctuation"), [TEXT])
BYTES = train_tokenizer(BytePairConfig(size=280), [TEXT])


def reader(
    tokenizer: Tokenizer = WORDS, form: Form = "bert", max_length: int | None = None, split_punctuation: bool = False
) -> RowReader:
    return RowReader(tokenizer, TextFrame(Specials.after(len(tokenizer)), form), max_length, split_punctuation)


def text_of(row: list[int], tokenizer: Tokenizer = WORDS) -> str:
    names = Specials.after(len(tokenizer)).names
    return " ".join(names.get(token) or tokenizer.token(token) for token in row)


def test_pairs_are_read_in_both_forms_and_orders() -> None:
    (row,) = reader().pair("Ann lives", "in Bonn").rows
    assert text_of(row.tokens) == "[CLS] Ann lives [SEP] in Bonn [SEP]"
    assert row.segments == [0, 0, 0, 0, 1, 1, 1]
    first, second = reader(form="causal").pair("Ann lives", "in Bonn", symmetric=True).rows
    assert text_of(first.tokens) == "</s> Ann lives [SEP] in Bonn [CLS]"
    assert text_of(second.tokens) == "</s> in Bonn [SEP] Ann lives [CLS]"


def test_longer_text_is_truncated() -> None:
    pair = reader(max_length=8).pair("Ann lives in Bonn near", "in Oslo")
    assert text_of(pair.rows[0].tokens) == "[CLS] Ann lives in [SEP] in Oslo [SEP]"
    assert pair.cut and not reader(max_length=10).pair("Ann lives in Bonn near", "in Oslo").cut


def test_choice_keeps_the_end_of_the_text() -> None:
    choice = reader(max_length=8).choice("Ann lives in Bonn near the", ["Rhine", "in Oslo"])
    assert [text_of(row.tokens) for row in choice.rows] == [
        "[CLS] in Bonn near the [SEP] Rhine [SEP]",
        "[CLS] Bonn near the [SEP] in Oslo [SEP]",
    ]
    assert choice.cut


def test_rows_fit_and_truncate_minimally() -> None:
    for max_length in range(5, 20):
        for form in ("bert", "causal"):
            (row,) = reader(form=form, max_length=max_length).pair(TEXT, TEXT).rows
            assert len(row.tokens) == max_length == len(row.segments)


# --- split punctuation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [WORDS, BYTES], ids=["words", "byte-pair"])
@pytest.mark.parametrize("split_punctuation", [False, True])
def test_spans_match_text(tokenizer: Tokenizer, split_punctuation: bool) -> None:
    row_reader = reader(tokenizer, split_punctuation=split_punctuation)
    spans = row_reader.spans(TEXT)
    assert len(spans) == len(row_reader.encode(TEXT))
    for answer in ("Bonn", "the Rhine", "Oslo (Norway)", "Ann", "!", "doesn't"):
        start = TEXT.index(answer)
        first, last = tokens_covering(spans, start, start + len(answer)) or (0, 0)
        assert TEXT[spans[first][0] : spans[last][1]].strip().startswith(answer)
        assert answer in TEXT[spans[first][0] : spans[last][1]]
    assert tokens_covering(spans, len(TEXT) + 3, len(TEXT) + 9) is None


def test_split_punctuation_inserts_spaces() -> None:
    assert reader(BYTES, split_punctuation=True).encode("near the Rhine.") == BYTES.encode("near the Rhine .")
    assert reader(BYTES).encode("near the Rhine.") != BYTES.encode("near the Rhine .")


@given(st.text("ab, .é—🙂\n", max_size=25))
def test_spans_with_split_punctuation_are_monotonic(text: str) -> None:
    row_reader = reader(BYTES, split_punctuation=True)
    spans = row_reader.spans(text)
    assert len(spans) == len(row_reader.encode(text))
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert all(left[0] <= right[0] and left[1] <= right[1] for left, right in pairwise(spans))
    covered = "".join(text[start:end] for start, end in spans)
    assert all(letter in covered for letter in text if not letter.isspace())
    assert not text.isascii() or covered == "".join(text.split())  # in ASCII text, no token is part of a character


def test_unknown_words_are_listed_once() -> None:
    assert reader().unknown("Ann sings", "Cy sings") == ["sings", "Cy"]


# --- windows ------------------------------------------------------------------------------------------------------


def windows(question: str, context: str, max_length: int | None, stride: int | None, room: int = 64) -> list[Window]:
    return list(reader(max_length=max_length).windows(0, question, context, room, stride))


@given(st.integers(0, 30), st.integers(8, 20), st.none() | st.integers(1, 9))
def test_windows_cover_context_and_fit(length: int, max_length: int, stride: int | None) -> None:
    context = " ".join(["Ann", "lives", "in", "Bonn"][n % 4] for n in range(length))
    result = windows("near Oslo", context, max_length, stride)
    covered = {position for window in result for position in range(window.start, window.end)}
    assert covered == set(range(length))
    assert result[0].start == 0 and result[-1].end == length
    assert all(len(window.row.tokens) <= max_length for window in result)
    size = max_length - 3 - 2
    assert all(window.end - window.start == size for window in result[:-1])
    step = min(stride or max(size // 2, 1), size)
    assert all(right.start - left.start == step for left, right in pairwise(result))


def test_window_marks_answerable_positions() -> None:
    first, *others = windows("near Oslo", "Ann lives in Bonn near the Rhine", 9, 2)
    assert text_of(first.row.tokens) == "[CLS] near Oslo [SEP] Ann lives in Bonn [SEP]"
    (answerable,) = first.rows().answerable or [[]]
    assert [int(is_answerable) for is_answerable in answerable] == [1, 0, 0, 0, 1, 1, 1, 1, 0]
    assert first.targets((2, 3)) == (6, 7)
    assert (
        first.targets((3, 4)) == first.targets(None) == (0, 0)
    )  # the target is [CLS], because the window contains only a part of the answer
    assert others[0].targets((3, 4)) == (5, 6)


def test_causal_window_has_classification_token_at_end() -> None:
    (window,) = reader(form="causal").windows(3, "near Oslo", "Ann lives", 64, None)
    assert text_of(window.row.tokens) == "</s> near Oslo [SEP] Ann lives [CLS]"
    assert window.row.cls_position == 6 == window.targets(None)[0] and window.number == 3
    (answerable,) = window.rows().answerable or [[]]
    assert [int(is_answerable) for is_answerable in answerable] == [0, 0, 0, 0, 1, 1, 1]


def test_long_question_is_truncated() -> None:
    (window,) = windows("near Oslo in Bonn", "Ann", None, None, room=2)
    assert window.cut and text_of(window.row.tokens) == "[CLS] near Oslo [SEP] Ann [SEP]"


# --- batches ------------------------------------------------------------------------------------------------------


def examples(counts: list[int]) -> list[ExampleRows]:
    row_reader = reader()
    texts = ["Ann", "Ann lives", "Ann lives in", "Ann lives in Bonn"]
    return [row_reader.choice(texts[n % 4], [texts[k % 4] for k in range(count)]) for n, count in enumerate(counts)]


@pytest.mark.parametrize("shapes", [None, 2])
def test_rows_belong_to_their_examples(shapes: int | None) -> None:
    row_examples = examples([2, 3, 2, 4, 3, 2, 2, 3])
    batches = RowBatches(
        row_examples, tokens=120, shapes=shapes, values={"answers": list(range(8)), "scores": [0.5] * 8}
    )
    read = []
    for members, batch in batches.all_batches():
        B, R, S = batch["tokens"].shape
        assert (R, batch["mask"].shape, batch["segments"].shape) == (4, (B, R, S), (B, R, S))
        assert B * R * S <= 120 or B == 1
        for index, number in enumerate(members.tolist()):
            rows = row_examples[number].rows
            for r in range(R):
                mask = batch["mask"][index, r]
                real = rows[r] if r < len(rows) else None
                assert batch["tokens"][index, r][mask].tolist() == (real.tokens if real else [])
                assert batch["segments"][index, r][mask].tolist() == (real.segments if real else [])
        assert batch["answers"][: len(members)].tolist() == members.tolist()
        assert batch["answers"][len(members) :].tolist() == [IGNORE] * (B - len(members))
        assert batch["scores"].dtype == torch.float32 and batch["answers"].dtype == torch.int64
        read += members.tolist()
    assert sorted(read) == list(range(8)) and len(batches) == 8


def test_batches_are_a_function_of_seed_and_step() -> None:
    first, second = (RowBatches(examples([2] * 30), tokens=60) for _ in range(2))
    for step in (5, 0, 3):
        assert torch.equal(first.batch(7, step)["tokens"], second.batch(7, step)["tokens"])
    orders = [[first.members(seed, step).tolist() for step in range(4)] for seed in (1, 2)]
    assert orders[0] != orders[1]


def test_empty_split_is_rejected() -> None:
    with pytest.raises(DataError, match="it is empty"):
        RowBatches([], tokens=10)


def test_batch_is_padded_to_longest_example() -> None:
    batches = RowBatches(examples([2, 2, 2, 2]), tokens=1)
    assert batches.collate(np.array([0]))["tokens"].shape == (1, 2, int(batches.lengths[0]))
