"""Noise: what is read and said go together, and every rate is what it is said to be."""

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
    return np.arange(1, n + 1)  # every token another


def sentences(n: int, size: int = 10) -> Array:
    return np.arange(0, n, size)


class Arrays(NamedTuple):
    source: Array
    target: Array
    hidden: Array


def arrays(found: NoisyText) -> Arrays:
    return Arrays(np.array(found.source, int), np.array(found.target, int), np.array(found.hidden, bool))


def bart(**switches: Any) -> BARTNoiseConfig:
    return BARTNoiseConfig(**{**NONE, **switches})


def made(noise: Any, n: int, seed: int, size: int = 10) -> Arrays:
    return arrays(add_noise(text(n).tolist(), sentences(n, size).tolist(), noise, V, Random(seed)))


def many(noise: Any, n: int, times: int = 400, size: int = 10) -> list[Arrays]:
    return [made(noise, n, seed, size) for seed in range(times)]


def is_gap(source: Array) -> Array:
    gaps: Array = source >= V
    return gaps


# --- T5 ---------------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(1, 90),
    share=st.floats(0.01, 0.99),
    mean=st.floats(1, 9),
    sentinels=st.integers(2, 100),
    seed=st.integers(0, 99),
)
def test_source_and_target_reconstruct_text(n: int, share: float, mean: float, sentinels: int, seed: int) -> None:
    noise = SpansConfig(noise_density=share, mean_span_length=mean, sentinels=sentinels)
    found = arrays(hide_spans(text(n).tolist(), noise, V, Random(seed)))
    known = sentinels_of(noise, V)
    told = parse_spans(found.target.tolist(), known)
    whole = [
        token for shown in found.source.tolist() for token in (told[shown - known[0]] if shown in known else [shown])
    ]
    assert whole == text(n).tolist()
    spans = int(is_gap(found.source).sum())
    assert [token for token in found.source.tolist() if token in known] == list(known[:spans])
    assert [token for token in found.target.tolist() if token in known] == list(known[: spans + 1])
    assert found.target[-1] == known[spans] and spans >= 1  # the last sentinel ends it, and hides nothing
    assert not (is_gap(found.source[1:]) & is_gap(found.source[:-1])).any()  # spans do not touch
    assert (found.hidden == (found.target < V)).all()
    longest = noise.max_lengths(n)
    assert len(found.source) + 1 <= longest[0] and len(found.target) + 1 <= longest[1]


def test_noise_density_and_span_length_are_met() -> None:
    found = many(SpansConfig(), 67)
    hidden = np.array([one.hidden.sum() for one in found])
    spans = np.array([is_gap(one.source).sum() for one in found])
    assert hidden.mean() / 67 == pytest.approx(0.15, abs=0.003)
    assert hidden.sum() / spans.sum() == pytest.approx(3.0, abs=0.1)
    assert set(np.unique(hidden)) == {10, 11}  # 10.05, rounded at random
    lengths = Counter(
        len(span) for one in found for span in parse_spans(one.target.tolist(), sentinels_of(SpansConfig(), V)).values()
    )
    assert {1, 2, 3, 4, 5} <= lengths.keys()  # they differ


def test_all_positions_are_masked_eventually() -> None:
    """Fewer spans reach the ends, either of them alike."""
    hidden = np.zeros(21)
    for one in many(SpansConfig(noise_density=0.3), 20, times=3000):
        hidden[one.target[one.hidden]] += 1
    shares = hidden[1:] / 3000
    assert shares.mean() == pytest.approx(0.3, abs=0.01)
    assert np.abs(shares - shares[::-1]).max() < 0.04
    assert shares[0] > 0.1 and shares[4:-4].min() > 0.3


def test_single_token_is_hidden() -> None:
    found = arrays(hide_spans([1], SpansConfig(), V, Random(0)))
    assert found.source.tolist() == [V + EXTRA] and found.target.tolist() == [V + EXTRA, 1, V + EXTRA + 1]


def test_parse_spans_accepts_any_target() -> None:
    known = range(100, 104)
    assert parse_spans([7, 100, 1, 2, 101, 102, 3], known) == {0: [1, 2], 1: [], 2: [3]}
    assert parse_spans([100, 1, 100, 2], known) == {0: [1]}
    assert parse_spans([], known) == {}


# --- BART -------------------------------------------------------------------------------------------------------------


def test_masked() -> None:
    for one in (found := many(bart(mask=0.2), 33)):
        kept = ~is_gap(one.source)
        assert (one.source[kept] == text(33)[kept]).all() and (one.source[~kept] == MASK).all()
        assert (one.hidden == ~kept).all() and (one.target == text(33)).all()
    assert np.mean([one.hidden.mean() for one in found]) == pytest.approx(0.2, abs=0.003)


def test_deleted() -> None:
    for one in (found := many(bart(delete=0.2), 33)):
        assert one.source.tolist() == [token for token in text(33).tolist() if token in one.source]  # in their order
        assert (one.target[~one.hidden] == one.source).all()
    assert np.mean([len(one.source) for one in found]) / 33 == pytest.approx(0.8, abs=0.003)


def test_infilled() -> None:
    lengths: Counter[int] = Counter()
    found = many(bart(infill=0.3), 200)
    for one in found:
        assert [token for token in one.source.tolist() if token < V] == one.target[~one.hidden].tolist()
        gaps = is_gap(one.source)
        assert not (gaps[1:] & gaps[:-1]).any()
        padded = np.concatenate([[0], one.source, [201]])
        for place in np.flatnonzero(gaps) + 1:
            lengths[int(padded[place + 1] - padded[place - 1] - 1)] += 1
    assert np.mean([one.hidden.mean() for one in found]) == pytest.approx(0.3, abs=1e-9)
    spans = lengths.total()
    assert 60 * 400 / spans == pytest.approx(3.0, abs=0.15)
    for length in range(7):  # Poisson(3); the last span of a text is cut, one in twenty
        wanted = math.exp(-3) * 3**length / math.factorial(length)
        assert lengths[length] / spans == pytest.approx(wanted, abs=0.02), length


def test_infilling_may_insert_masks() -> None:
    found = many(bart(infill=0.3, mean_span_length=0.5), 40)
    assert any(len(one.source) > 40 for one in found)
    assert all(len(one.source) + 1 <= bart(infill=0.3).max_lengths(40)[0] for one in found)


def test_permuted() -> None:
    orders: Counter[tuple[int, ...]] = Counter()
    for one in many(bart(permute_sentences=1), 30, times=1200):
        parts = one.source.reshape(3, 10)
        assert (np.diff(parts, axis=1) == 1).all()
        orders[tuple((parts[:, 0] // 10).tolist())] += 1
        assert not one.hidden.any() and (one.target == text(30)).all()
    assert len(orders) == 6 and all(150 < count < 250 for count in orders.values())
    half = [(one.source == text(30)).all() for one in many(bart(permute_sentences=0.5), 30, times=1200)]
    assert np.mean(half) == pytest.approx(0.5 + 0.5 / 6, abs=0.04)


def test_rotated() -> None:
    first: Counter[int] = Counter()
    for one in many(bart(rotate=1), 12, times=2400):
        assert (np.roll(text(12), 1 - one.source[0]) == one.source).all()
        first[int(one.source[0])] += 1
    assert len(first) == 12 and all(140 < count < 260 for count in first.values())
    once = [one.source[0] == 1 for one in many(bart(rotate=0.5), 12, times=1200)]
    assert np.mean(once) == pytest.approx(0.5 + 0.5 / 12, abs=0.04)


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
    found = arrays(add_bart_noise(text(n).tolist(), sentences(n, size).tolist(), noise, V, Random(seed)))
    shown = found.source[~is_gap(found.source)]
    assert sorted(shown.tolist()) == found.target[~found.hidden].tolist()
    assert (found.target == text(n)).all() and set(found.source[is_gap(found.source)].tolist()) <= {MASK}
    assert len(found.source) + 1 <= noise.max_lengths(n)[0] and len(found.target) + 1 <= noise.max_lengths(n)[1]


def test_noise_depends_only_on_draws() -> None:
    for noise in (SpansConfig(), BARTNoiseConfig(mask=0.1, delete=0.1, rotate=0.5)):
        one, two, other = (made(noise, 50, seed) for seed in (1, 1, 2))
        assert all((a == b).all() for a, b in zip(one, two, strict=True))
        assert one.source.tolist() != other.source.tolist()


# --- what is wrong ----------------------------------------------------------------------------------------------------


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(ValueError) as error:
        SpansConfig(noise_density=1.0, mean_span_length=0.5, sentinels=1)
    for words in (
        "noise_density must be less than 1; got 1.0",
        "mean_span_length must be at least 1",
        "sentinels must be",
    ):
        assert words in str(error.value)
    with pytest.raises(ValueError) as error:
        BARTNoiseConfig(permute_sentences=2, rotate=-1, infill=1, mask=-0.1, delete=1, mean_span_length=0)
    for words in (
        "permute_sentences must be at most 1",
        "rotate",
        "infill must be less than 1",
        "mask",
        "delete",
        "mean_",
    ):
        assert words in str(error.value)
    with pytest.raises(ValueError, match="must be greater than 0"):
        bart()
