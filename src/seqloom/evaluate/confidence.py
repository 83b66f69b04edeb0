"""Calibrated probabilities, and thresholds below which a classifier abstains.

A temperature T divides the logits z: p(y) = softmax(z / T). The temperature changes the confidence of a prediction, but
not its label. T minimizes the mean of −log p(label) on dev (Guo et al., 2017). With β = 1 / T,

    d/dβ mean(−log p) = mean(Σ_k p_k z_k − z_label)

increases with β, so its zero is found by bisection.

With a threshold for each label, a classifier abstains if the probability of its best label is below
the threshold of that label. Coverage is the fraction of examples that get a label, and selective accuracy
is the accuracy on these examples (El-Yaniv and Wiener, 2010).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seqloom.evaluate.intervals import Values

MAX_TEMPERATURE = 100.0  # gives nearly uniform probabilities, for a model that is no better than chance
NO_OPTION = -1e30  # logit of an option that does not exist, used instead of −∞


def fit_temperature(logits: Values, targets: NDArray[np.int64]) -> float | None:
    """Return the temperature of logits (N, K) that minimizes the mean of −log p of the targets (N,).

    Return None if there is no minimum because every target has the largest logit.
    """
    z = np.maximum(np.asarray(logits, dtype=float), NO_OPTION)
    z = z - z.max(axis=1, keepdims=True)
    z_target = z[np.arange(len(z)), targets]
    if not (z_target < 0).any():
        return None

    def slope(beta: float) -> float:
        weights = np.exp(beta * z)
        expected = (weights * z).sum(axis=1) / weights.sum(axis=1)
        return float((expected - z_target).mean())

    low, high = 1 / MAX_TEMPERATURE, 1.0
    if slope(low) >= 0:
        return MAX_TEMPERATURE
    while slope(high) < 0:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 2 / (low + high)


def rescale(log_probs: Values, temperature: float) -> Values:
    """Return the log-probabilities (N, K) at another temperature, relative to the current temperature."""
    z = np.asarray(log_probs, dtype=float) / temperature
    z = z - z.max(axis=1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


def choose_threshold(
    scores: Values, correct: NDArray[np.bool_], expected: int, precision: float | None = None
) -> float | None:
    """Return the threshold of a label, given the `scores` (N,) of its predictions and whether each is correct.

    The threshold maximizes F1, where `expected` is the number of examples with the label. With `precision`, it is the
    smallest threshold that reaches this precision. The result is None if no prediction is correct, or if no threshold
    reaches the precision. Thresholds are midpoints between scores, so that rounding does not matter; 0 accepts all
    predictions.
    """
    order = np.argsort(-scores, kind="stable")
    ordered, hits, predicted = scores[order], np.cumsum(correct[order]), np.arange(1, len(scores) + 1)
    ends = np.flatnonzero(np.append(ordered[1:] < ordered[:-1], True)) if len(scores) else np.array([], dtype=int)
    if precision is None:
        f1 = 2 * hits[ends] / (predicted[ends] + expected)
        if not f1.any():
            return None
        last = int(ends[f1.argmax()])
    else:
        ends = ends[hits[ends] >= precision * predicted[ends]]
        if not len(ends):
            return None
        last = int(ends[-1])
    return 0.0 if last == len(scores) - 1 else float((ordered[last] + ordered[last + 1]) / 2)


def selective_metrics(confidence: Values, correct: NDArray[np.bool_], thresholds: Values) -> dict[str, float]:
    """Return `coverage` and `selective_accuracy` of predictions (N,) with the threshold of each predicted label."""
    accepted = confidence >= thresholds
    accuracy = float(correct[accepted].mean()) if accepted.any() else float("nan")
    return {"coverage": float(accepted.mean()), "selective_accuracy": accuracy}


def label_thresholds(
    probabilities: Values, targets: Sequence[int], precision: float | None = None
) -> list[float | None]:
    """Return the threshold of each label for probabilities (N, K) of one label per example; see `choose_threshold`."""
    best, confidence, labels = probabilities.argmax(axis=1), probabilities.max(axis=1), np.asarray(targets)
    return [
        choose_threshold(confidence[best == k], labels[best == k] == k, int((labels == k).sum()), precision)
        for k in range(probabilities.shape[1])
    ]
