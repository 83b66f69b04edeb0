"""Byte-pair dropout: any segmentation spells the text, and which one is a function of seed and reading."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.text import BytePair, BytePairConfig, train_tokenizer
from seqloom.text.bytepair import VARIANTS, DropoutTexts, segment

SAMPLE = ["low lower newest widest", "the lowest newest wider tower — naïve café, 12345", "नमस्ते 你好 مرحبا 👩‍👧"] * 8


def trained(size: int = 330, dropout: float = 0.0) -> BytePair:
    tokenizer = train_tokenizer(BytePairConfig(size=size, dropout=dropout), SAMPLE)
    assert isinstance(tokenizer, BytePair)
    return tokenizer


SPELLER = trained()


def drawn(texts: list[str], rate: float, *path: int, seed: int = 1) -> list[list[int]]:
    return DropoutTexts(SPELLER, texts, rate).draw(range(len(texts)), seed, *path)


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_zero_dropout_gives_standard_segmentation(texts: list[str]) -> None:
    assert drawn(texts, 0.0) == list(SPELLER.encode_batch(texts))
    assert drawn(SAMPLE[:3], 0.0) == list(SPELLER.encode_batch(SAMPLE[:3]))


@given(st.lists(st.text(alphabet="lowernst dé你,1 "), min_size=1, max_size=4), st.floats(0, 1), st.integers(0, 9))
def test_every_segmentation_decodes_to_the_text(texts: list[str], rate: float, step: int) -> None:
    assert [SPELLER.decode(ids) for ids in drawn(texts, rate, step)] == texts


def test_full_dropout_gives_bytes() -> None:
    for text, ids in zip(SAMPLE[:3], drawn(SAMPLE[:3], 1.0), strict=True):
        assert len(ids) == len(text.encode())


def test_more_dropout_more_tokens() -> None:
    counts = [sum(map(len, drawn(SAMPLE, rate, 0))) for rate in (0.0, 0.1, 0.5, 0.9)]
    assert counts == sorted(counts) and len(set(counts)) == 4


def test_readings_differ_and_are_reproducible() -> None:
    texts = DropoutTexts(SPELLER, SAMPLE, 0.3)
    first, second = texts.draw(range(3), 1, 0), texts.draw(range(3), 1, 1)
    assert first != second
    assert DropoutTexts(SPELLER, SAMPLE, 0.3).draw(range(3), 1, 0) == first  # whatever was asked before
    assert texts.draw(range(3), 2, 0) == DropoutTexts(SPELLER, SAMPLE, 0.3).draw(range(3), 2, 0) != first
    assert texts.draw(range(3), 1, 0) == first
    assert texts.draw([2, 0], 1, 0) != first  # another reading, though of the same texts


def test_words_have_many_segmentations() -> None:
    found = {tuple(ids) for ids in DropoutTexts(SPELLER, ["newest"] * 400, 0.4).draw(range(400), 1)}
    assert 4 < len(found) <= VARIANTS
    assert tuple(SPELLER.encode("newest")) in found


def test_chances_of_a_word_of_two_bytes() -> None:
    """One merge is possible, so the word stays in two with chance p."""
    joins = {(1, 2): (0, 3)}
    draw = random.Random(4).random
    apart = sum(segment((1, 2), joins, 0.3, draw) == (1, 2) for _ in range(4000))
    assert apart / 4000 == pytest.approx(0.3, abs=0.03)


def test_merges_in_the_order_they_were_learned() -> None:
    joins = {(1, 2): (5, 9), (2, 3): (1, 8), (1, 8): (7, 10)}
    assert segment((1, 2, 3), joins, 0.0, lambda: 0.0) == (10,)
    assert segment((1, 2, 1, 2), {(1, 2): (0, 9), (9, 1): (1, 7)}, 0.0, lambda: 0.0) == (9, 9)


def test_dropout_does_not_change_tokenizer() -> None:
    """It is kept and used as if there were no dropout."""
    assert trained(dropout=0.5).to_json() == SPELLER.to_json()
    assert trained(dropout=0.5).encode(SAMPLE[1]) == SPELLER.encode(SAMPLE[1])


@pytest.mark.parametrize("rate", [-0.1, 1.5])
def test_dropout_rate_is_validated(rate: float) -> None:
    with pytest.raises(UsageError, match=r"dropout: must be at (least 0|most 1)"):
        build(BytePairConfig, {"kind": "byte-pair", "dropout": rate})
