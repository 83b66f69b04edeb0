"""Temperatures compared with scipy, and thresholds compared with brute force."""

import math

import numpy as np
import pytest

from seqloom.evaluate.confidence import (
    MAX_TEMPERATURE,
    choose_threshold,
    fit_temperature,
    label_thresholds,
    rescale,
    selective_metrics,
)


def overconfident(count: int, labels: int, factor: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw targets from softmax(z), and return z · factor with the targets. The best temperature is about `factor`."""
    draw = np.random.default_rng(seed)
    z = draw.normal(size=(count, labels)) * 2
    targets = (z + draw.gumbel(size=z.shape)).argmax(axis=1)
    return z * factor, targets


@pytest.mark.parametrize(("labels", "factor", "seed"), [(2, 3.0, 1), (5, 0.4, 2), (24, 1.7, 3)])
def test_temperature_matches_that_of_scipy(labels: int, factor: float, seed: int) -> None:
    optimize, special = pytest.importorskip("scipy.optimize"), pytest.importorskip("scipy.special")
    logits, targets = overconfident(4000, labels, factor, seed)

    def loss(temperature: float) -> float:
        log_probs = special.log_softmax(logits / temperature, axis=1)
        return float(-log_probs[np.arange(len(targets)), targets].mean())

    temperature = fit_temperature(logits, targets)
    assert temperature is not None
    expected = optimize.minimize_scalar(loss, bounds=(0.05, 50), method="bounded", options={"xatol": 1e-12}).x
    assert temperature == pytest.approx(expected, rel=1e-5)
    assert temperature == pytest.approx(factor, rel=0.1)
    log_probs = special.log_softmax(logits, axis=1)  # any log-probabilities are logits
    assert fit_temperature(log_probs, targets) == pytest.approx(temperature, rel=1e-9)
    np.testing.assert_allclose(rescale(log_probs, 3.0), special.log_softmax(logits / 3.0, axis=1), atol=1e-12)
    np.testing.assert_allclose(rescale(rescale(log_probs, 3.0), 1 / 3.0), log_probs, atol=1e-9)


def test_temperature_of_separable_examples_is_none_or_maximal() -> None:
    logits = np.array([[2.0, 1.0], [0.0, 3.0]])
    # All predictions are correct, so the loss decreases with T
    assert fit_temperature(logits, np.array([0, 1])) is None
    # All predictions are wrong, so the loss decreases as T grows
    assert fit_temperature(logits, np.array([1, 0])) == MAX_TEMPERATURE


def test_options_that_do_not_exist_have_no_effect() -> None:
    logits, targets = overconfident(500, 3, 2.0, 4)
    padded = np.concatenate([logits, np.full((500, 2), -np.inf)], axis=1)
    assert fit_temperature(padded, targets) == pytest.approx(fit_temperature(logits, targets), rel=1e-12)


def f1_at(scores: np.ndarray, correct: np.ndarray, expected: int, threshold: float) -> float:
    accepted = scores >= threshold
    return float(2 * (correct & accepted).sum() / (accepted.sum() + expected))


@pytest.mark.parametrize("seed", range(12))
def test_thresholds_match_brute_force(seed: int) -> None:
    draw = np.random.default_rng(seed)
    scores = np.round(draw.random(30), 1 if seed % 2 else 3)  # some scores are equal
    correct = draw.random(30) < scores
    expected = int(correct.sum()) + 4
    candidates = [0.0, *np.unique(scores), 1.1]
    threshold = choose_threshold(scores, correct, expected)
    assert threshold is not None
    best = max(f1_at(scores, correct, expected, candidate) for candidate in candidates)
    assert f1_at(scores, correct, expected, threshold) == pytest.approx(best)
    for precision in (0.5, 0.8, 1.0):
        fitting = [
            (scores >= t).sum() for t in candidates if (scores >= t).any() and correct[scores >= t].mean() >= precision
        ]
        threshold = choose_threshold(scores, correct, expected, precision)
        if not fitting:
            assert threshold is None
        else:
            assert threshold is not None
            accepted = scores >= threshold
            assert correct[accepted].mean() >= precision and accepted.sum() == max(fitting)


def test_thresholds_of_labels_use_only_their_predictions() -> None:
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8], [0.45, 0.55]])
    targets = [0, 1, 0, 1, 1]
    first, second = label_thresholds(probabilities, targets, precision=1.0)
    assert first == pytest.approx(0.65) and second == 0.0
    assert label_thresholds(probabilities, [1, 1, 1, 0, 0], precision=0.5) == [None, None]


def test_selective_metrics_match_manual_values() -> None:
    confidence, correct = np.array([0.9, 0.8, 0.6, 0.5]), np.array([True, False, True, False])
    limits = np.array([0.5, 0.9, 0.6, 0.6])
    assert selective_metrics(confidence, correct, limits) == {"coverage": 0.5, "selective_accuracy": 1.0}
    assert math.isnan(selective_metrics(confidence, correct, np.full(4, math.inf))["selective_accuracy"])
