"""Merges of byte-pair tokenizers are counted as a plain implementation of byte-pair encoding counts them."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from seqloom.core.errors import UsageError
from seqloom.inspect.views.tokens import byte_pairs, count_merges, token_view, train_on_file
from seqloom.text import CharactersConfig, train_tokenizer
from seqloom.text.bytepair import BytePair, BytePairConfig

LECTURE = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3
TEXT = "The cat sat on the mat; the fat cat ate. Naïve cafés, naïve cats! 小猫 小猫 小猫\n" * 3


def count_pairs_plainly(words: "Counter[tuple[bytes, ...]]") -> "Counter[tuple[bytes, bytes]]":
    counts: Counter[tuple[bytes, bytes]] = Counter()
    for word, number in words.items():
        for pair in pairwise(word):
            counts[pair] += number
    return counts


def merge_plainly(word: tuple[bytes, ...], pair: tuple[bytes, bytes]) -> tuple[bytes, ...]:
    pieces: list[bytes] = []
    for piece in word:
        if pieces and (pieces[-1], piece) == pair:
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return tuple(pieces)


@pytest.mark.parametrize("texts", [LECTURE, [TEXT]], ids=["lecture", "text"])
def test_every_merge_is_the_most_frequent_pair_with_its_count(texts: list[str]) -> None:
    tokenizer = BytePair.train(BytePairConfig(size=330), texts)
    spell = [tokenizer.spell(token) if token else b"" for token in range(len(tokenizer))]
    words: Counter[tuple[bytes, ...]] = Counter()
    for text in texts:
        words.update(tuple(spell[token] for token in word) for word in tokenizer.pretoken_bytes(text))
    merges = count_merges(tokenizer, texts, 1000)
    assert len(merges) == len(tokenizer.merges()) > 5
    for merge, pair in zip(merges, tokenizer.merges(), strict=True):
        counts = count_pairs_plainly(words)
        assert merge.count == counts[pair] == max(counts.values())
        merged: Counter[tuple[bytes, ...]] = Counter()
        for word, number in words.items():
            merged[merge_plainly(word, pair)] += number
        words = merged


def test_counts_of_the_lecture_example_match_the_lecture(tmp_path: Path) -> None:
    path = tmp_path / "low.txt"
    path.write_text("\n".join(LECTURE))
    tokenizer, texts = train_on_file(path, 8000)
    merges = count_merges(tokenizer, texts, 4)
    assert [(merge.merged, merge.count) for merge in merges] == [("es", 9), ("est", 9), ("lo", 7), ("low", 7)]
    assert [(merge.left, merge.right) for merge in merges[:2]] == [("e", "s"), ("es", "t")]
    assert [token.token for token in token_view(tokenizer, "lowest")] == ["low", "est"]


def test_tokens_have_spans_and_unknown_marks() -> None:
    tokenizer = train_tokenizer(CharactersConfig(), ["hello"])
    shown = token_view(tokenizer, "hélo")
    assert [(token.start, token.end) for token in shown] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert [token.unknown for token in shown] == [False, True, False, False]
    with pytest.raises(UsageError, match="--merges needs a byte-pair tokenizer; the tokenizer of x is of kind charact"):
        byte_pairs(tokenizer, "x")
