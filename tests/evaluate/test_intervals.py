"""Confidence intervals: Wilson intervals compared with scipy, and the coverage of both kinds of intervals."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.core.errors import DataError
from seqloom.evaluate import intervals
from seqloom.evaluate.intervals import bootstrap, ratio_interval, wilson


@given(st.integers(1, 5000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_wilson_interval_matches_scipy(share: tuple[int, int]) -> None:
    stats = pytest.importorskip("scipy.stats")
    for level in (0.9, 0.95, 0.99):
        theirs = stats.binomtest(*share).proportion_ci(level, method="wilson")
        assert wilson(*share, level) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_wilson_interval_matches_its_formula() -> None:
    low, high = wilson(8, 10)
    z, p, n = 1.959964, 0.8, 10
    middle, reach = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert (low, high) == pytest.approx(
        ((middle - reach) / (1 + z * z / n), (middle + reach) / (1 + z * z / n)), abs=1e-6
    )
    assert wilson(0, 10).low == 0 and wilson(10, 10).high == 1 and wilson(10, 10).low < 0.75


@pytest.mark.parametrize("share", [(0, 0), (3, 2), (-1, 2)])
def test_invalid_proportions_are_rejected(share: tuple[int, int]) -> None:
    with pytest.raises(DataError, match=f"got {share[0]}/{share[1]}"):
        wilson(*share)


def test_wilson_has_95_percent_coverage() -> None:
    """Compute the exact coverage over all outcomes of 60 trials for many true proportions."""
    covered = []
    for truth in np.linspace(0.02, 0.98, 49):
        chances = [math.comb(60, k) * truth**k * (1 - truth) ** (60 - k) for k in range(61)]
        covered.append(
            sum(chance for k, chance in enumerate(chances) if wilson(k, 60).low <= truth <= wilson(k, 60).high)
        )
    assert np.mean(covered) == pytest.approx(0.95, abs=0.006) and min(covered) > 0.89


def test_bootstrap_has_95_percent_coverage() -> None:
    """Use a ratio whose true value is known: Σ a / Σ b with binomial a, and b drawn from 1 … 10."""
    draw, hit, tests = np.random.default_rng(0), 0, 300
    for seed in range(tests):
        b = draw.integers(1, 11, size=150)
        a = draw.binomial(b, 0.7)
        low, high = ratio_interval(zip(a.tolist(), b.tolist(), strict=True), seed=seed)
        hit += low <= 0.7 <= high
    assert 0.91 <= hit / tests <= 0.98


def test_resampling_counts_of_equal_examples_matches_resampling_examples() -> None:
    """Compare with resampling of single examples with replacement."""
    draw = np.random.default_rng(1)
    a, b = draw.integers(0, 4, size=200), draw.integers(1, 6, size=200)
    values = []
    for _ in range(4000):
        chosen = draw.integers(0, 200, size=200)
        values.append(a[chosen].sum() / b[chosen].sum())
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    kinds = Counter(pairs)
    interval = bootstrap(
        np.array(list(kinds.values())),
        lambda counts: (counts @ [kind[0] for kind in kinds]) / (counts @ [kind[1] for kind in kinds]),
        samples=4000,
    )
    assert interval == pytest.approx(np.quantile(values, [0.025, 0.975]).tolist(), abs=0.004)
    assert interval == pytest.approx(ratio_interval(pairs), abs=0.01)


def test_bootstrap_samples_do_not_depend_on_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(index % 3, 3) for index in range(50)]
    unchunked = ratio_interval(pairs)
    monkeypatch.setattr(intervals, "MAX_ELEMENTS", 7)
    assert ratio_interval(pairs) == unchunked
    assert ratio_interval(pairs, seed=1) != unchunked


def test_bootstrap_without_examples_is_rejected() -> None:
    with pytest.raises(DataError, match="at least one example"):
        bootstrap(np.array([0, 0]), lambda counts: counts.sum(axis=1).astype(float))
