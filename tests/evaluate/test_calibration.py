"""Calibration bins and error compared with scikit-learn and manual values."""

import math

import numpy as np
import pytest

from seqloom.evaluate.classification import Bin, calibrate


def answers(count: int, seed: int, bias: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Draw confidences and correctness with probability confidence − `bias`."""
    draw = np.random.default_rng(seed)
    confidence = draw.beta(5, 2, size=count)
    return confidence, draw.random(count) < confidence - bias


@pytest.mark.parametrize("bins", [1, 5, 10, 15])
def test_bins_match_scikit_learn(bins: int) -> None:
    sklearn = pytest.importorskip("sklearn.calibration")
    confidence, correct = answers(3000, 1)
    confidence[:20] = np.linspace(0, 1, 20)  # includes the edges of bins
    confidence[20:31] = np.arange(11) / 10
    calibration = calibrate(confidence, correct, bins)
    true, mean = sklearn.calibration_curve(correct, confidence, n_bins=bins)
    np.testing.assert_allclose([bin_.accuracy for bin_ in calibration.filled], true, rtol=1e-12)
    np.testing.assert_allclose([bin_.confidence for bin_ in calibration.filled], mean, rtol=1e-12)
    assert sum(bin_.count for bin_ in calibration.bins) == 3000 and len(calibration.bins) == bins


def test_bins_and_errors_match_manual_values() -> None:
    confidence, correct = np.array([0.5, 0.51, 0.9, 1.0, 0.95]), np.array([True, False, True, True, False])
    calibration = calibrate(confidence, correct, bins=2)
    first, second = calibration.bins
    assert first == Bin(0, 0.5, 1, 0.5, 1)  # 0.5 is in (0, 0.5]
    assert (second.low, second.high, second.count, second.accuracy) == (0.5, 1, 4, 0.5)
    assert second.confidence == pytest.approx(0.84) and second.gap == pytest.approx(0.34)
    assert calibration.error == pytest.approx(0.2 * 0.5 + 0.8 * 0.34)
    assert calibration.gap == pytest.approx(confidence.mean() - 0.6)
    empty = calibrate(np.array([0.9]), np.array([True]), bins=2).bins[0]
    assert empty.count == 0 and math.isnan(empty.confidence) and math.isnan(empty.accuracy)


def test_calibrated_model_has_small_error() -> None:
    assert calibrate(*answers(100_000, 2)).error < 0.01
    too_sure = calibrate(*answers(100_000, 2, bias=0.2))
    assert too_sure.error == pytest.approx(0.2, abs=0.01) and too_sure.gap == pytest.approx(0.2, abs=0.01)


def test_perfect_and_confident_model_has_no_calibration_error() -> None:
    assert calibrate(np.ones(5), np.ones(5, dtype=bool)).error == 0
    assert calibrate(np.ones(5), np.zeros(5, dtype=bool)).error == 1
