"""Pearson and Spearman compared with scipy and manual values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.core.errors import DataError
from seqloom.evaluate.answers import report_choices
from seqloom.evaluate.correlation import pearson, ranks, report, spearman
from seqloom.evaluate.intervals import mean_interval

stats = pytest.importorskip("scipy.stats")

NUMBERS = st.lists(
    st.tuples(st.integers(-6, 6), st.floats(-100, 100).map(lambda x: round(x, 3))), min_size=2, max_size=30
)


@given(NUMBERS)
def test_correlations_match_scipy(pairs: list[tuple[int, float]]) -> None:
    x, y = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert pearson(x, y) == spearman(x, y) == 0  # scipy returns NaN for a zero denominator
        return
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-10)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-10)
    assert ranks(x).tolist() == stats.rankdata(x).tolist()


def test_correlations_and_ranks_match_manual_values() -> None:
    assert pearson([1, 2, 3], [1, 2, 4]) == pytest.approx(9 / (2 * 21**0.5))  # 3 / √(2 · 14/3)
    assert spearman([1, 2, 3], [1, 20, 400]) == pytest.approx(1)
    assert spearman([1, 2, 2, 4], [4, 3, 2, 1]) == pytest.approx(-4.5 / (4.5 * 5) ** 0.5)
    assert ranks([10, 20, 20, 5]).tolist() == [2, 3.5, 3.5, 1]


@pytest.mark.parametrize("scale", [1e-160, 1e160])
def test_pearson_is_independent_of_scale(scale: float) -> None:
    x = np.array([1.0, 2.0, 4.0, 8.0])
    assert pearson(x * scale, x**2) == pytest.approx(pearson(x, x**2), abs=1e-12)


def test_intervals_contain_the_metric_and_match_those_of_fisher() -> None:
    draws = np.random.default_rng(0)
    x = draws.normal(size=400)
    result = report(x.tolist(), (x + draws.normal(size=400)).tolist())
    assert result.metrics["pearson"] == pytest.approx(0.7, abs=0.06)
    for name in ("pearson", "spearman"):
        low, high = result.intervals[name]
        assert low < result.metrics[name] < high and 0.04 < high - low < 0.15
    assert result.metrics["rmse"] == pytest.approx(1, abs=0.1) and result.metrics["mean_error"] < result.metrics["rmse"]
    z, half = np.arctanh(result.metrics["pearson"]), 1.96 / 397**0.5  # Fisher's interval
    assert result.intervals["pearson"] == pytest.approx((np.tanh(z - half), np.tanh(z + half)), abs=0.02)


def test_too_few_or_unequal_scores_are_rejected() -> None:
    for x, y in ([1.0], [1.0]), ([1.0, 2.0], [1.0]):
        with pytest.raises(DataError, match="at least two pairs of scores"):
            pearson(x, y)


def test_mean_interval_matches_the_normal_approximation() -> None:
    values = [0.0] * 50 + [1.0] * 50
    low, high = mean_interval(values)
    assert (low, high) == pytest.approx((0.4, 0.6), abs=0.02)


def test_choice_report_has_accuracy_chance_and_loss() -> None:
    result = report_choices([0, 2, 1], [[-0.1, -3, -4], [-1, -0.5, -2], [-2.0, -0.2]])
    assert result.metrics["accuracy"] == pytest.approx(2 / 3)
    assert result.metrics["chance"] == pytest.approx((1 / 3 + 1 / 3 + 1 / 2) / 3)
    assert result.metrics["loss"] == pytest.approx((0.1 + 2 + 0.2) / 3)
    with pytest.raises(DataError, match="numbers of answers and examples must be equal"):
        report_choices([0], [])
