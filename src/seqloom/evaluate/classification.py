"""Metrics of classifiers: accuracy, precision, recall, F1, Matthews correlation, confusion and calibration.

C is the confusion matrix: C_ij texts of class i are predicted as class j. t_i = Σ_j C_ij is the support,
p_j = Σ_i C_ij is the number of predictions, c = Σ_i C_ii is the number of correct predictions, and
s = Σ_ij C_ij is the number of texts.

    precision_i = C_ii / p_i      recall_i = C_ii / t_i      F1_i = 2 C_ii / (t_i + p_i)      0 if the denominator is 0
    accuracy = c / s              macro-F1 = mean_i F1_i
    Matthews = (c s − Σ_i p_i t_i) / √((s² − Σ_i p_i²) (s² − Σ_i t_i²))

The Matthews correlation is 0 for predictions that are independent of the class, and 1 if all predictions
are correct. C includes classes that do not occur in training; predictions for their texts are always
wrong.

For calibration, predictions are grouped into M bins by confidence, (0, 1/M], (1/M, 2/M] … The
expected calibration error is the mean difference between accuracy and confidence:

    ECE = Σ_m |B_m| / N · |accuracy(B_m) − confidence(B_m)|

Unsupervised clusters are compared with labels by two metrics:

    many to one = examples whose label is the most frequent of their cluster / examples
    V-measure = 2 h c / (h + c),   h = 1 − H(label | cluster) / H(label),   c = 1 − H(cluster | label) / H(cluster)

Unlike V-measure, many to one increases with the number of clusters (Rosenberg and Hirschberg, 2007).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError
from seqloom.core.notebook import table_html
from seqloom.evaluate.intervals import Counts, Interval, MetricReport, Values, bootstrap, wilson

BINS = 15


# --- precision, recall and F1 of a class or span type -----------------------------------------------------------------


@dataclass(frozen=True)
class Hits:
    correct: int  # true positives
    predicted: int
    expected: int  # the support

    def __add__(self, other: "Hits") -> "Hits":
        return Hits(self.correct + other.correct, self.predicted + other.predicted, self.expected + other.expected)

    @property
    def precision(self) -> float:
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return self.correct / self.expected if self.expected else 0.0

    @property
    def f1(self) -> float:
        total = self.predicted + self.expected
        return 2 * self.correct / total if total else 0.0


def describe_classes(by_class: Mapping[str, Hits]) -> dict[str, dict[str, float]]:
    """Return the counts, the precision, the recall and the F1 of each class."""
    return {
        name: {**asdict(hits), "precision": hits.precision, "recall": hits.recall, "f1": hits.f1}
        for name, hits in by_class.items()
    }


class Average(NamedTuple):
    precision: float
    recall: float
    f1: float


def micro(classes: Iterable[Hits]) -> Average:
    """Return the average over all examples, which large classes dominate."""
    total = sum(classes, Hits(0, 0, 0))
    return Average(total.precision, total.recall, total.f1)


def macro(classes: Iterable[Hits]) -> Average:
    """Return the average over the classes that are expected or predicted, with equal weights."""
    occurring = [hits for hits in classes if hits.predicted + hits.expected]
    return _mean(occurring, [1] * len(occurring))


def weighted(classes: Iterable[Hits]) -> Average:
    """Return the average over the classes, weighted by their support."""
    hits = list(classes)
    return _mean(hits, [part.expected for part in hits])


def _mean(classes: list[Hits], weights: list[int]) -> Average:
    rows = [(hits.precision, hits.recall, hits.f1) for hits in classes]
    total = sum(weights) or 1
    sums = (sum(weight * row[column] for weight, row in zip(weights, rows, strict=True)) for column in range(3))
    return Average(*(value / total for value in sums))


# --- confusion ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    expected: str
    predicted: str
    count: int
    rate: float  # fraction of the `expected` class


@dataclass(frozen=True)
class Confusion:
    labels: tuple[str, ...]
    counts: Counts  # (K, K): rows are expected, columns predicted classes

    @classmethod
    def of(cls, expected: Sequence[str], predicted: Sequence[str], labels: Sequence[str] = ()) -> "Confusion":
        """Count predictions; `labels` come first, and other labels follow in sorted order."""
        if len(expected) != len(predicted) or not expected:
            raise DataError(
                f"Pass one prediction for each of at least one text; got {len(predicted)} predictions for "
                f"{len(expected)} texts."
            )
        names = (*labels, *sorted({*expected, *predicted} - set(labels)))
        rows = {label: row for row, label in enumerate(names)}
        if len(rows) != len(names):
            raise DataError(f"The labels must be distinct; got {', '.join(labels)}.")
        counts = np.zeros((len(names), len(names)), dtype=np.int64)
        np.add.at(counts, ([rows[label] for label in expected], [rows[label] for label in predicted]), 1)
        return cls(names, counts)

    def _repr_html_(self) -> str:
        """Return the counts as a table for notebooks; rows are expected, columns predicted classes."""
        rows = zip(self.labels, self.counts.tolist(), strict=True)
        named = ({"expected ↓, predicted →": label, **dict(zip(self.labels, row, strict=True))} for label, row in rows)
        return table_html(list(named), limit=100)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def support(self) -> list[int]:
        """The number of texts of each class."""
        return [int(count) for count in self.counts.sum(axis=1)]

    @property
    def hits(self) -> dict[str, Hits]:
        columns = (np.diagonal(self.counts), self.counts.sum(axis=0), self.counts.sum(axis=1))
        return {label: Hits(*(int(column[row]) for column in columns)) for row, label in enumerate(self.labels)}

    def rates(self) -> Values:
        """Normalize each row (K, K), so that the diagonal is the recall; rows of absent classes are 0."""
        return self.counts / np.maximum(self.counts.sum(axis=1, keepdims=True), 1)

    def mistakes(self, limit: int | None = None) -> list[Mistake]:
        """List confused classes, with the most frequent mistakes first."""
        rates, wrong = self.rates(), self.counts * (1 - np.eye(len(self.labels), dtype=np.int64))
        mistakes = [
            Mistake(self.labels[row], self.labels[column], int(wrong[row, column]), float(rates[row, column]))
            for row, column in np.argwhere(wrong).tolist()
        ]
        return sorted(mistakes, key=lambda mistake: (-mistake.count, -mistake.rate))[:limit]


# --- metrics of confusion matrices in batches: (…, K, K) → (…) --------------------------------------------------------


def accuracy(counts: Counts) -> Values:
    """Return the accuracy."""
    ratio: Values = np.trace(counts, axis1=-2, axis2=-1) / counts.sum(axis=(-2, -1))
    return ratio


def macro_f1(counts: Counts) -> Values:
    """Return the mean F1 of the classes that are expected or predicted."""
    sums = counts.sum(axis=-1) + counts.sum(axis=-2)
    scores = 2 * np.diagonal(counts, axis1=-2, axis2=-1) / np.maximum(sums, 1)
    mean: Values = scores.sum(axis=-1) / (sums > 0).sum(axis=-1)
    return mean


def matthews(counts: Counts) -> Values:
    """Return the Matthews correlation; it is 0 if only one class is expected or predicted."""
    c, s = np.trace(counts, axis1=-2, axis2=-1).astype(float), counts.sum(axis=(-2, -1)).astype(float)
    t, p = counts.sum(axis=-1).astype(float), counts.sum(axis=-2).astype(float)
    above = c * s - (p * t).sum(axis=-1)
    below = (s**2 - (p**2).sum(axis=-1)) * (s**2 - (t**2).sum(axis=-1))
    return np.divide(above, np.sqrt(below), out=np.zeros_like(above), where=below > 0)


def matrix_interval(counts: Counts, metric: Callable[[Counts], Values], *, seed: int = 0) -> Interval:
    """Return the bootstrap interval of one of these metrics, with texts resampled."""
    size, kinds = len(counts), np.flatnonzero(counts)

    def resample(samples: Counts) -> Values:
        matrices = np.zeros((len(samples), size * size), dtype=np.int64)
        matrices[:, kinds] = samples
        return metric(matrices.reshape(-1, size, size))

    return bootstrap(counts.ravel()[kinds], resample, seed=seed, elements=size * size)


# --- calibration ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bin:
    """The predictions with a confidence above `low` and at most `high`."""

    low: float
    high: float
    count: int
    confidence: float  # mean confidence; NaN for an empty bin
    accuracy: float  # accuracy; NaN for an empty bin

    @property
    def gap(self) -> float:
        """Confidence minus accuracy; positive values mean overconfidence."""
        return self.confidence - self.accuracy


@dataclass(frozen=True)
class Calibration:
    bins: list[Bin]

    @property
    def filled(self) -> list[Bin]:
        """The bins that are not empty."""
        return [group for group in self.bins if group.count]

    @property
    def error(self) -> float:
        """The expected calibration error."""
        return sum(group.count * abs(group.gap) for group in self.filled) / sum(group.count for group in self.bins)

    @property
    def gap(self) -> float:
        """Mean confidence minus accuracy; positive values mean overconfidence."""
        return sum(group.count * group.gap for group in self.filled) / sum(group.count for group in self.bins)


def calibrate(confidence: Values, correct: NDArray[np.bool_], bins: int = BINS) -> Calibration:
    """Group predictions by `confidence` (N,) into bins; `correct` (N,) marks the correct predictions."""
    edges = np.linspace(0, 1, bins + 1)
    indices = np.searchsorted(edges[1:-1], confidence)  # upper edges are inclusive
    groups = []
    for index in range(bins):
        inside = indices == index
        count = int(inside.sum())
        means = (float(confidence[inside].mean()), float(correct[inside].mean())) if count else (np.nan, np.nan)
        groups.append(Bin(float(edges[index]), float(edges[index + 1]), count, *means))
    return Calibration(groups)


# --- the report -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassificationReport(MetricReport):
    """The evaluation of a classifier."""

    confusion: Confusion
    calibration: Calibration
    unseen: dict[str, int]  # labels absent from training, and their number of texts
    counted = ("class", "texts")  # the groups of `by_class`, and the unit of their counts

    @property
    def by_class(self) -> dict[str, Hits]:
        return self.confusion.hits

    def to_dict(self) -> dict[str, object]:
        return {**super().to_dict(), "by_class": describe_classes(self.by_class)}


def report(expected: Sequence[str], log_probs: Values, labels: Sequence[str], *, seed: int = 0) -> ClassificationReport:
    """Evaluate `log_probs` (N, K) of `labels` (K,) against the `expected` labels (N,).

    Texts with a label that is unknown to the model count as wrong. Such texts are excluded from the loss, which would
    otherwise be infinite.
    """
    if log_probs.shape != (len(expected), len(labels)):
        raise DataError(
            f"The log-probabilities must have the shape ({len(expected)}, {len(labels)}), texts by labels; "
            f"got {log_probs.shape}."
        )
    predicted = [labels[column] for column in log_probs.argmax(axis=1).tolist()]
    confusion = Confusion.of(expected, predicted, labels)
    correct = np.array([label == prediction for label, prediction in zip(expected, predicted, strict=True)])
    calibration = calibrate(np.exp(log_probs.max(axis=1).astype(float)), correct)
    return ClassificationReport(
        metrics={
            "loss": log_loss(expected, log_probs, labels),
            **confusion_metrics(confusion),
            "calibration_error": calibration.error,
        },
        intervals={
            "accuracy": wilson(int(correct.sum()), len(correct)),
            "macro_f1": matrix_interval(confusion.counts, macro_f1, seed=seed),
            "matthews": matrix_interval(confusion.counts, matthews, seed=seed),
        },
        confusion=confusion,
        calibration=calibration,
        unseen=unseen_labels(expected, labels),
    )


def confusion_metrics(confusion: Confusion) -> dict[str, float]:
    """Compute the metrics of a confusion matrix; `majority` is the accuracy of the most frequent class."""
    classes = confusion.hits.values()
    return {
        "accuracy": float(accuracy(confusion.counts)),
        "majority": max(confusion.support) / confusion.total,
        "macro_f1": macro(classes).f1,
        "micro_f1": micro(classes).f1,
        "weighted_f1": weighted(classes).f1,
        "matthews": float(matthews(confusion.counts)),
    }


def unseen_labels(expected: Iterable[str], labels: Iterable[str]) -> dict[str, int]:
    """Count the expected labels that are unknown to a model."""
    known = set(labels)
    return dict(sorted(Counter(label for label in expected if label not in known).items()))


def log_loss(expected: Sequence[str], log_probs: Values, labels: Sequence[str]) -> float:
    """Return −1/N Σ log p(label) in nats over texts with known labels, or NaN if there are no such texts."""
    columns = {label: column for column, label in enumerate(labels)}
    pairs = [(row, columns[label]) for row, label in enumerate(expected) if label in columns]
    if not pairs:
        return math.nan
    rows, chosen = zip(*pairs, strict=True)
    return -float(log_probs[list(rows), list(chosen)].astype(float).mean())


# --- clusters -------------------------------------------------------------------------------------------------------


def cluster_metrics(labels: Sequence[str], clusters: Sequence[int]) -> dict[str, float]:
    """Compute `many_to_one` and `v_measure` of examples with labels and clusters."""
    if not labels or len(labels) != len(clusters):
        raise DataError(f"Every label needs a cluster; got {len(labels)} labels and {len(clusters)} clusters.")
    _, rows = np.unique(np.array(labels), return_inverse=True)
    _, columns = np.unique(np.array(clusters), return_inverse=True)
    table = np.zeros((rows.max() + 1, columns.max() + 1))
    np.add.at(table, (rows, columns), 1)
    both, label, cluster = (_entropy(counts) for counts in (table.ravel(), table.sum(axis=1), table.sum(axis=0)))
    mutual = label + cluster - both  # mutual information
    homogeneity = mutual / label if label > 0 else 1.0
    completeness = mutual / cluster if cluster > 0 else 1.0
    total = homogeneity + completeness
    v_measure = 2 * homogeneity * completeness / total if total > 0 else 0.0
    return {"many_to_one": float(table.max(axis=0).sum() / table.sum()), "v_measure": v_measure}


def _entropy(counts: Values) -> float:
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())
