"""BPE dropout: every segmentation decodes to the text and is a function of seed and step."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.text import BytePair, BytePairConfig, train_tokenizer
from seqloom.text.bytepair import VARIANTS, DropoutTexts, segment

SAMPLE = ["low lower newest widest", "the lowest newest wider tower — naïve café, 12345", "नमस्ते 你好 مرحبا 👩‍👧"] * 8


def train(size: int = 330, dropout: float = 0.0) -> BytePair:
    tokenizer = train_tokenizer(BytePairConfig(size=size, dropout=dropout), SAMPLE)
    assert isinstance(tokenizer, BytePair)
    return tokenizer


TOKENIZER = train()


def draw_segmentations(texts: list[str], rate: float, *path: int, seed: int = 1) -> list[list[int]]:
    return DropoutTexts(TOKENIZER, texts, rate).draw(range(len(texts)), seed, *path)


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_zero_dropout_gives_standard_segmentation(texts: list[str]) -> None:
    assert draw_segmentations(texts, 0.0) == list(TOKENIZER.encode_batch(texts))
    assert draw_segmentations(SAMPLE[:3], 0.0) == list(TOKENIZER.encode_batch(SAMPLE[:3]))


@given(st.lists(st.text(alphabet="lowernst dé你,1 "), min_size=1, max_size=4), st.floats(0, 1), st.integers(0, 9))
def test_every_segmentation_decodes_to_the_text(texts: list[str], rate: float, step: int) -> None:
    assert [TOKENIZER.decode(ids) for ids in draw_segmentations(texts, rate, step)] == texts


def test_dropout_of_one_gives_bytes() -> None:
    for text, ids in zip(SAMPLE[:3], draw_segmentations(SAMPLE[:3], 1.0), strict=True):
        assert len(ids) == len(text.encode())


def test_more_dropout_gives_more_tokens() -> None:
    counts = [sum(map(len, draw_segmentations(SAMPLE, rate, 0))) for rate in (0.0, 0.1, 0.5, 0.9)]
    assert counts == sorted(counts) and len(set(counts)) == 4


def test_segmentations_differ_between_steps_and_are_reproducible() -> None:
    texts = DropoutTexts(TOKENIZER, SAMPLE, 0.3)
    first, second = texts.draw(range(3), 1, 0), texts.draw(range(3), 1, 1)
    assert first != second
    # The result does not depend on previous draws
    assert DropoutTexts(TOKENIZER, SAMPLE, 0.3).draw(range(3), 1, 0) == first
    assert texts.draw(range(3), 2, 0) == DropoutTexts(TOKENIZER, SAMPLE, 0.3).draw(range(3), 2, 0) != first
    assert texts.draw(range(3), 1, 0) == first
    assert texts.draw([2, 0], 1, 0) != first  # another draw of the same texts


def test_dropout_gives_a_word_many_segmentations() -> None:
    segmentations = {tuple(ids) for ids in DropoutTexts(TOKENIZER, ["newest"] * 400, 0.4).draw(range(400), 1)}
    assert 4 < len(segmentations) <= VARIANTS
    assert tuple(TOKENIZER.encode("newest")) in segmentations


def test_merge_of_two_bytes_is_dropped_with_dropout_probability() -> None:
    """Only one merge is possible, so the word is not merged with probability p."""
    joins = {(1, 2): (0, 3)}
    draw = random.Random(4).random
    divided = sum(segment((1, 2), joins, 0.3, draw) == (1, 2) for _ in range(4000))
    assert divided / 4000 == pytest.approx(0.3, abs=0.03)


def test_merges_are_applied_in_learned_order() -> None:
    joins = {(1, 2): (5, 9), (2, 3): (1, 8), (1, 8): (7, 10)}
    assert segment((1, 2, 3), joins, 0.0, lambda: 0.0) == (10,)
    assert segment((1, 2, 1, 2), {(1, 2): (0, 9), (9, 1): (1, 7)}, 0.0, lambda: 0.0) == (9, 9)


def test_dropout_does_not_change_tokenizer() -> None:
    """The stored tokenizer and its encoding do not use dropout."""
    assert train(dropout=0.5).to_json() == TOKENIZER.to_json()
    assert train(dropout=0.5).encode(SAMPLE[1]) == TOKENIZER.encode(SAMPLE[1])


@pytest.mark.parametrize("rate", [-0.1, 1.5])
def test_dropout_rate_is_validated(rate: float) -> None:
    with pytest.raises(UsageError, match=r"dropout: must be at (least 0|most 1)"):
        build(BytePairConfig, {"kind": "byte-pair", "dropout": rate})
