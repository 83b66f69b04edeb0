"""Denoising objectives: source and target are consistent, and noise has the configured rates."""

import math
from collections import Counter
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqloom.core.tokens import EXTRA, Specials
from seqloom.data.noise import (
    BARTNoiseConfig,
    NoisyText,
    SpansConfig,
    add_bart_noise,
    add_noise,
    hide_spans,
    parse_spans,
    sentinels_of,
)

Array = np.ndarray[Any, Any]
V = 1000
MASK = Specials.after(V).mask
NONE: dict[str, float] = {"permute_sentences": 0, "rotate": 0, "infill": 0, "mask": 0, "delete": 0}


def text(n: int) -> Array:
    return np.arange(1, n + 1)  # all tokens are different


def sentences(n: int, size: int = 10) -> Array:
    return np.arange(0, n, size)


class Arrays(NamedTuple):
    source: Array
    target: Array
    hidden: Array


def arrays(noisy: NoisyText) -> Arrays:
    return Arrays(np.array(noisy.source, int), np.array(noisy.target, int), np.array(noisy.hidden, bool))


def bart(**switches: Any) -> BARTNoiseConfig:
    return BARTNoiseConfig(**{**NONE, **switches})


def noisy_text(noise: Any, n: int, seed: int, size: int = 10) -> Arrays:
    return arrays(add_noise(text(n).tolist(), sentences(n, size).tolist(), noise, V, Random(seed)))


def noisy_texts(noise: Any, n: int, times: int = 400, size: int = 10) -> list[Arrays]:
    return [noisy_text(noise, n, seed, size) for seed in range(times)]


def is_gap(source: Array) -> Array:
    gaps: Array = source >= V
    return gaps


# --- T5 ---------------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(1, 90),
    density=st.floats(0.01, 0.99),
    mean=st.floats(1, 9),
    sentinels=st.integers(2, 100),
    seed=st.integers(0, 99),
)
def test_source_and_target_reconstruct_text(n: int, density: float, mean: float, sentinels: int, seed: int) -> None:
    noise = SpansConfig(noise_density=density, mean_span_length=mean, sentinels=sentinels)
    noisy = arrays(hide_spans(text(n).tolist(), noise, V, Random(seed)))
    sentinel_ids = sentinels_of(noise, V)
    spans_by_sentinel = parse_spans(noisy.target.tolist(), sentinel_ids)
    restored = [
        token
        for item in noisy.source.tolist()
        for token in (spans_by_sentinel[item - sentinel_ids[0]] if item in sentinel_ids else [item])
    ]
    assert restored == text(n).tolist()
    spans = int(is_gap(noisy.source).sum())
    assert [token for token in noisy.source.tolist() if token in sentinel_ids] == list(sentinel_ids[:spans])
    assert [token for token in noisy.target.tolist() if token in sentinel_ids] == list(sentinel_ids[: spans + 1])
    # The last sentinel ends the target and does not hide a span
    assert noisy.target[-1] == sentinel_ids[spans] and spans >= 1
    assert not (is_gap(noisy.source[1:]) & is_gap(noisy.source[:-1])).any()  # spans do not touch
    assert (noisy.hidden == (noisy.target < V)).all()
    limits = noise.max_lengths(n)
    assert len(noisy.source) + 1 <= limits[0] and len(noisy.target) + 1 <= limits[1]


def test_noise_density_and_span_length_are_met() -> None:
    texts = noisy_texts(SpansConfig(), 67)
    hidden = np.array([noisy.hidden.sum() for noisy in texts])
    spans = np.array([is_gap(noisy.source).sum() for noisy in texts])
    assert hidden.mean() / 67 == pytest.approx(0.15, abs=0.003)
    assert hidden.sum() / spans.sum() == pytest.approx(3.0, abs=0.1)
    assert set(np.unique(hidden)) == {10, 11}  # 10.05, rounded at random
    lengths = Counter(
        len(span)
        for noisy in texts
        for span in parse_spans(noisy.target.tolist(), sentinels_of(SpansConfig(), V)).values()
    )
    assert {1, 2, 3, 4, 5} <= lengths.keys()  # lengths vary


def test_all_positions_are_masked_eventually() -> None:
    """Fewer spans are at the ends, and both ends are equally likely."""
    hidden = np.zeros(21)
    for noisy in noisy_texts(SpansConfig(noise_density=0.3), 20, times=3000):
        hidden[noisy.target[noisy.hidden]] += 1
    fractions = hidden[1:] / 3000
    assert fractions.mean() == pytest.approx(0.3, abs=0.01)
    assert np.abs(fractions - fractions[::-1]).max() < 0.04
    assert fractions[0] > 0.1 and fractions[4:-4].min() > 0.3


def test_single_token_is_hidden() -> None:
    noisy = arrays(hide_spans([1], SpansConfig(), V, Random(0)))
    assert noisy.source.tolist() == [V + EXTRA] and noisy.target.tolist() == [V + EXTRA, 1, V + EXTRA + 1]


def test_parse_spans_accepts_any_target() -> None:
    sentinel_ids = range(100, 104)
    assert parse_spans([7, 100, 1, 2, 101, 102, 3], sentinel_ids) == {0: [1, 2], 1: [], 2: [3]}
    assert parse_spans([100, 1, 100, 2], sentinel_ids) == {0: [1]}
    assert parse_spans([], sentinel_ids) == {}


# --- BART -------------------------------------------------------------------------------------------------------------


def test_mask_replaces_the_configured_fraction_of_tokens() -> None:
    for noisy in (texts := noisy_texts(bart(mask=0.2), 33)):
        visible = ~is_gap(noisy.source)
        assert (noisy.source[visible] == text(33)[visible]).all() and (noisy.source[~visible] == MASK).all()
        assert (noisy.hidden == ~visible).all() and (noisy.target == text(33)).all()
    assert np.mean([noisy.hidden.mean() for noisy in texts]) == pytest.approx(0.2, abs=0.003)


def test_delete_removes_the_configured_fraction_of_tokens() -> None:
    for noisy in (texts := noisy_texts(bart(delete=0.2), 33)):
        assert noisy.source.tolist() == [
            token for token in text(33).tolist() if token in noisy.source
        ]  # in the original order
        assert (noisy.target[~noisy.hidden] == noisy.source).all()
    assert np.mean([len(noisy.source) for noisy in texts]) / 33 == pytest.approx(0.8, abs=0.003)


def test_infill_span_lengths_are_poisson() -> None:
    lengths: Counter[int] = Counter()
    texts = noisy_texts(bart(infill=0.3), 200)
    for noisy in texts:
        assert [token for token in noisy.source.tolist() if token < V] == noisy.target[~noisy.hidden].tolist()
        gaps = is_gap(noisy.source)
        assert not (gaps[1:] & gaps[:-1]).any()
        padded = np.concatenate([[0], noisy.source, [201]])
        for position in np.flatnonzero(gaps) + 1:
            lengths[int(padded[position + 1] - padded[position - 1] - 1)] += 1
    assert np.mean([noisy.hidden.mean() for noisy in texts]) == pytest.approx(0.3, abs=1e-9)
    spans = lengths.total()
    assert 60 * 400 / spans == pytest.approx(3.0, abs=0.15)
    for length in range(7):  # Poisson(3); the last span of a text, one in twenty, is truncated
        expected = math.exp(-3) * 3**length / math.factorial(length)
        assert lengths[length] / spans == pytest.approx(expected, abs=0.02), length


def test_infilling_may_insert_masks() -> None:
    texts = noisy_texts(bart(infill=0.3, mean_span_length=0.5), 40)
    assert any(len(noisy.source) > 40 for noisy in texts)
    assert all(len(noisy.source) + 1 <= bart(infill=0.3).max_lengths(40)[0] for noisy in texts)


def test_permuted_sentence_orders_are_uniform() -> None:
    orders: Counter[tuple[int, ...]] = Counter()
    for noisy in noisy_texts(bart(permute_sentences=1), 30, times=1200):
        permuted = noisy.source.reshape(3, 10)
        assert (np.diff(permuted, axis=1) == 1).all()
        orders[tuple((permuted[:, 0] // 10).tolist())] += 1
        assert not noisy.hidden.any() and (noisy.target == text(30)).all()
    assert len(orders) == 6 and all(150 < count < 250 for count in orders.values())
    unchanged = [(noisy.source == text(30)).all() for noisy in noisy_texts(bart(permute_sentences=0.5), 30, times=1200)]
    assert np.mean(unchanged) == pytest.approx(0.5 + 0.5 / 6, abs=0.04)


def test_rotations_are_uniform() -> None:
    first: Counter[int] = Counter()
    for noisy in noisy_texts(bart(rotate=1), 12, times=2400):
        assert (np.roll(text(12), 1 - noisy.source[0]) == noisy.source).all()
        first[int(noisy.source[0])] += 1
    assert len(first) == 12 and all(140 < count < 260 for count in first.values())
    unchanged = [noisy.source[0] == 1 for noisy in noisy_texts(bart(rotate=0.5), 12, times=1200)]
    assert np.mean(unchanged) == pytest.approx(0.5 + 0.5 / 12, abs=0.04)


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(1, 60),
    size=st.integers(1, 30),
    rates=st.lists(st.floats(0, 0.99), min_size=5, max_size=5),
    mean=st.floats(0.2, 9),
    seed=st.integers(0, 99),
)
def test_combined_noise_tracks_hidden_tokens(n: int, size: int, rates: list[float], mean: float, seed: int) -> None:
    switches: dict[str, Any] = dict(zip(NONE, rates, strict=True)) | {"permute_sentences": 1.0}
    noise = BARTNoiseConfig(**switches, mean_span_length=mean)
    noisy = arrays(add_bart_noise(text(n).tolist(), sentences(n, size).tolist(), noise, V, Random(seed)))
    visible = noisy.source[~is_gap(noisy.source)]
    assert sorted(visible.tolist()) == noisy.target[~noisy.hidden].tolist()
    assert (noisy.target == text(n)).all() and set(noisy.source[is_gap(noisy.source)].tolist()) <= {MASK}
    assert len(noisy.source) + 1 <= noise.max_lengths(n)[0] and len(noisy.target) + 1 <= noise.max_lengths(n)[1]


def test_noise_depends_only_on_draws() -> None:
    for noise in (SpansConfig(), BARTNoiseConfig(mask=0.1, delete=0.1, rotate=0.5)):
        first, repeated, other = (noisy_text(noise, 50, seed) for seed in (1, 1, 2))
        assert all((a == b).all() for a, b in zip(first, repeated, strict=True))
        assert first.source.tolist() != other.source.tolist()


# --- errors -----------------------------------------------------------------------------------------------------------


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(ValueError) as error:
        SpansConfig(noise_density=1.0, mean_span_length=0.5, sentinels=1)
    for message in (
        "noise_density must be less than 1; got 1.0",
        "mean_span_length must be at least 1",
        "sentinels must be",
    ):
        assert message in str(error.value)
    with pytest.raises(ValueError) as error:
        BARTNoiseConfig(permute_sentences=2, rotate=-1, infill=1, mask=-0.1, delete=1, mean_span_length=0)
    for message in (
        "permute_sentences must be at most 1",
        "rotate",
        "infill must be less than 1",
        "mask",
        "delete",
        "mean_",
    ):
        assert message in str(error.value)
    with pytest.raises(ValueError, match="must be greater than 0"):
        bart()
