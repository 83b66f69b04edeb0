"""Metrics of multi-label classifiers, which predict any number of labels for a text.

A label is predicted if its probability is at least its threshold. Y_i and P_i are the sets of correct and predicted
labels of text i of N, and L is the number of labels.

    micro-F1 = 2 Σ_i |Y_i ∩ P_i| / Σ_i (|Y_i| + |P_i|)
    macro-F1 = the mean F1 of the labels that are expected or predicted
    samples F1 = mean_i 2 |Y_i ∩ P_i| / (|Y_i| + |P_i|)                    1 if both sets are empty
    subset accuracy = the fraction of texts with P_i = Y_i
    Hamming loss = mean_i |Y_i △ P_i| / L
    average precision of a label = Σ_n (R_n − R_{n−1}) P_n                 precision P_n and recall R_n at threshold n

Average precision does not depend on thresholds. The macro average precision is the mean over the labels that the model
knows and that occur in the texts; the micro average precision is computed from all texts and labels together. Labels
that do not occur in training are never predicted and count as missed.

The baselines are computed from the evaluated texts: the most frequent label set (subset accuracy), the more frequent
decision for each label, present or absent (Hamming loss), and the labels whose constant prediction gives the largest
micro-F1.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError
from seqloom.evaluate.classification import (
    Calibration,
    Hits,
    calibrate,
    describe_classes,
    macro,
    unseen_labels,
    weighted,
)
from seqloom.evaluate.confidence import choose_threshold
from seqloom.evaluate.intervals import MetricReport, Values, mean_interval, ratio_interval, wilson

DEFAULT_THRESHOLD = 0.5
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class MultiLabelReport(MetricReport):
    """The evaluation of a multi-label classifier."""

    by_class: dict[str, Hits]
    average_precision: dict[str, float]  # for each label that the model knows; NaN if no text has the label
    thresholds: dict[str, float]  # probability threshold of each label; ∞ if the label is never predicted
    calibration: Calibration  # calibration of the probabilities of all texts and labels
    unseen: dict[str, int]  # labels absent from training, and their number of texts
    counted = ("label", "texts")  # the groups of `by_class`, and the unit of their counts

    def to_dict(self) -> dict[str, object]:
        return {**super().to_dict(), "by_class": describe_classes(self.by_class)}


def report(
    expected: Sequence[Sequence[str]],
    logits: Values,
    labels: Sequence[str],
    thresholds: Sequence[float] | None = None,
    *,
    seed: int = 0,
) -> MultiLabelReport:
    """Evaluate `logits` (N, L) of `labels` (L,) against the `expected` label sets (N,).

    `thresholds` (L,) contains the minimum probability of each label to be predicted, by default 0.5.
    """
    if logits.shape != (len(expected), len(labels)) or not expected:
        raise DataError(
            f"The logits must have the shape ({len(expected)}, {len(labels)}), texts by labels, with at least one "
            f"text; got {logits.shape}."
        )
    unseen = unseen_labels((label for label_set in expected for label in label_set), labels)
    z = np.asarray(logits, dtype=float)
    p, limits = sigmoid(z), np.array(thresholds if thresholds is not None else [DEFAULT_THRESHOLD] * len(labels))
    correct = label_matrix(expected, [*labels, *unseen]).astype(bool)
    predicted = np.hstack([p >= limits, np.zeros((len(p), len(unseen)), dtype=bool)])
    known = correct[:, : len(labels)]
    precision = {label: average_precision(p[:, k], known[:, k]) for k, label in enumerate(labels)}
    calibration = calibrate(p.ravel(), known.ravel())
    hits = {
        label: Hits(*map(int, counts))
        for label, *counts in zip(
            [*labels, *unseen], (correct & predicted).sum(0), predicted.sum(0), correct.sum(0), strict=True
        )
    }
    both, sizes = 2 * (correct & predicted).sum(1), correct.sum(1) + predicted.sum(1)
    samples_f1 = np.divide(both, sizes, out=np.ones(len(p)), where=sizes > 0)
    is_equal, wrong = (correct == predicted).all(axis=1), (correct != predicted).mean(axis=1)
    measured = [value for value in precision.values() if not math.isnan(value)]
    return MultiLabelReport(
        metrics={
            "loss": binary_cross_entropy(z, known),
            "micro_f1": float(both.sum() / max(1, sizes.sum())),
            "macro_f1": macro(hits.values()).f1,
            "weighted_f1": weighted(hits.values()).f1,
            "samples_f1": float(samples_f1.mean()),
            "subset_accuracy": float(is_equal.mean()),
            "hamming_loss": float(wrong.mean()),
            "average_precision": float(np.mean(measured)) if measured else math.nan,
            "micro_average_precision": average_precision(p.ravel(), known.ravel()),
            **baselines(correct),
            "calibration_error": calibration.error,
        },
        intervals={
            "micro_f1": ratio_interval(zip(both.tolist(), sizes.tolist(), strict=True), seed=seed),
            "samples_f1": mean_interval(samples_f1.tolist(), seed=seed),
            "subset_accuracy": wilson(int(is_equal.sum()), len(p)),
            "hamming_loss": mean_interval(wrong.tolist(), seed=seed),
        },
        by_class=hits,
        average_precision=precision,
        thresholds=dict(zip(labels, limits.tolist(), strict=True)),
        calibration=calibration,
        unseen=unseen,
    )


def baselines(correct: Flags) -> dict[str, float]:
    """Return the metrics of constant predictions, given the correct labels (N, L); see the module docstring."""
    total, support = len(correct), np.sort(correct.sum(axis=0))[::-1]
    counts = Counter(row.tobytes() for row in np.packbits(correct, axis=1))
    predicted = total * np.arange(1, len(support) + 1)
    return {
        "constant_f1": float((2 * support.cumsum() / (support.sum() + predicted)).max()),
        "majority_set": max(counts.values()) / total,
        "majority_hamming_loss": float(np.minimum(support, total - support).mean() / total),
    }


def label_matrix(label_sets: Sequence[Sequence[str]], labels: Sequence[str]) -> NDArray[np.int8]:
    """Return the matrix (N, L) that is 1 if a text has a label, else 0; labels that are not in `labels` are ignored."""
    columns = {label: column for column, label in enumerate(labels)}
    matrix = np.zeros((len(label_sets), len(labels)), dtype=np.int8)
    for row, label_set in zip(matrix, label_sets, strict=True):
        row[[columns[label] for label in label_set if label in columns]] = 1
    return matrix


def sigmoid(logits: Values) -> Values:
    """Return 1 / (1 + exp(−z)) without overflow."""
    small = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1, small) / (1 + small)


def binary_cross_entropy(logits: Values, correct: Flags) -> float:
    """Return the mean of −log p of the correct decision over all texts and labels, in nats."""
    losses = np.maximum(logits, 0) - logits * correct + np.log1p(np.exp(-np.abs(logits)))
    return float(losses.mean())


def average_precision(scores: Values, correct: Flags) -> float:
    """Return the average precision of `scores` (N,), or NaN if none is correct; equal scores share a threshold."""
    if not correct.any():
        return math.nan
    order = np.argsort(-scores, kind="stable")
    ordered, hits = scores[order], np.cumsum(correct[order])
    ends = np.flatnonzero(np.append(ordered[1:] < ordered[:-1], True))
    precision, recall = hits[ends] / (ends + 1), hits[ends] / hits[-1]
    return float((np.diff(recall, prepend=0.0) * precision).sum())


def choose_thresholds(probabilities: Values, correct: Flags, precision: float | None = None) -> list[float | None]:
    """Return the threshold of each label for probabilities (N, L), chosen by F1 or by a target precision.

    A label without correct texts has the default threshold. See `choose_threshold`.
    """
    support = correct.sum(axis=0).tolist()
    return [
        choose_threshold(probabilities[:, k], correct[:, k], count, precision) if count else DEFAULT_THRESHOLD
        for k, count in enumerate(support)
    ]


def f1_thresholds(logits: Values, correct: NDArray[np.int8]) -> list[float]:
    """Return the probability threshold with the best F1 for each label, given logits (N, L)."""
    chosen = choose_thresholds(sigmoid(np.asarray(logits, dtype=float)), correct.astype(bool))
    return [math.inf if threshold is None else threshold for threshold in chosen]
