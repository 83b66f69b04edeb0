"""Metrics of forecasts compared with manual sums and closed forms."""

import math

import numpy as np
import pytest
import torch

from seqloom.decoding.forecast import Forecast
from seqloom.evaluate.forecasts import Errors, crps, last_season, naive_error, naive_forecast


def normal(mean: list[float], deviation: float) -> Forecast:
    centre = torch.tensor(mean).double().view(1, -1, 1)
    return Forecast.normal(centre, torch.full_like(centre, deviation))


def test_scale_is_the_naive_error_on_the_training_split() -> None:
    values = np.array([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0], [8.0, 5.0]])
    assert naive_error([values], 1)[0] == pytest.approx((1 + 2 + 4) / 3)
    assert naive_error([values], 2)[0] == pytest.approx((3 + 6) / 2)
    assert np.isnan(naive_error([values], 1)[1]), "what never changes has no scale"
    values[1, 0] = np.nan
    assert naive_error([values], 1)[0] == pytest.approx(4)


def test_crps_of_a_gaussian_matches_its_closed_form() -> None:
    """Compare with the closed form σ (z (2Φ(z) − 1) + 2φ(z) − 1/√π)."""
    for truth in (-1.0, 0.3, 4.0):
        z = truth / 2
        phi, Phi = math.exp(-z * z / 2) / math.sqrt(2 * math.pi), 0.5 * (1 + math.erf(z / math.sqrt(2)))
        expected = 2 * (z * (2 * Phi - 1) + 2 * phi - 1 / math.sqrt(math.pi))
        actual = crps(normal([0.0], 2.0).points.numpy(), np.array([[[truth]]]))
        assert actual.item() == pytest.approx(expected, abs=0.005)


def test_crps_matches_the_sum_over_all_pairs() -> None:
    points = np.random.default_rng(0).normal(size=(1, 17, 1, 1))
    flat, truth = points.ravel(), 0.4
    expected = np.abs(flat - truth).mean() - np.abs(flat[:, None] - flat).mean() / 2
    assert crps(points, np.full((1, 1, 1), truth)).item() == pytest.approx(expected)
    # For a single point, the CRPS is |error|
    assert crps(np.full((1, 5, 1, 1), 2.0), np.zeros((1, 1, 1))).item() == pytest.approx(2.0)


def test_metrics_match_manual_values_and_ignore_missing_values() -> None:
    truth = np.array([[[1.0], [4.0], [np.nan]]])
    errors = Errors.of(normal([2.0, 2.0, 2.0], 1.0), truth)
    actual = errors.metrics(np.array([2.0]))
    assert actual["mase"] == pytest.approx((1 + 2) / 2 / 2)
    assert actual["smape"] == pytest.approx((200 / 3 + 400 / 6) / 2)
    assert (actual["coverage_80"], actual["coverage_95"]) == (0.5, 0.5)  # 1 is within ±1.28, and 4 is not within ±1.96
    assert errors.by_step(np.array([2.0]))[:2].tolist() == [0.5, 1.0] and np.isnan(errors.by_step(np.array([2.0]))[2])
    assert errors.metrics(np.array([2.0]), "naive_").keys() == {f"naive_{name}" for name in actual}


def test_calibrated_intervals_have_nominal_coverage() -> None:
    truth = np.random.default_rng(1).normal(size=(2000, 1, 1))
    centre = torch.zeros(2000, 1, 1).double()
    actual = Errors.of(Forecast.normal(centre, centre + 1), truth).metrics(np.ones(1))
    assert actual["coverage_80"] == pytest.approx(0.8, abs=0.03) and actual["coverage_95"] == pytest.approx(
        0.95, abs=0.02
    )
    narrow = Errors.of(Forecast.normal(centre, centre + 0.5), truth).metrics(np.ones(1))
    assert narrow["coverage_80"] < 0.6 and narrow["crps"] > actual["crps"], "false certainty costs"


def test_naive_forecast_repeats_the_last_season() -> None:
    values = np.array([[1.0], [2.0], [3.0], [4.0], [5.0], [np.nan], [7.0]])
    assert last_season(values, 3).ravel().tolist() == [5, 3, 7]
    actual = naive_forecast([values], 5, 3, np.array([0.5]))
    assert actual.mean[0, :, 0].tolist() == [5, 3, 7, 5, 3]
    assert actual.deviation[0, :, 0].tolist() == pytest.approx([0.5] * 3 + [0.5 * math.sqrt(2)] * 2)
    short = np.array([[1.0], [2.0]])
    assert np.isnan(last_season(short, 3)[0, 0])
    silent = Errors.of(naive_forecast([short], 3, 3, np.array([0.5])), np.array([[[9.0], [1.0], [2.0]]]))
    assert silent.metrics(np.ones(1))["coverage_80"] == 1.0, "where nothing was said, nothing is measured"
