"""Metrics of classifiers: accuracy, precision, recall, F1, Matthews, confusion and calibration.

C is the confusion matrix: C_ij texts are an i and were called a j. t_i = Σ_j C_ij are there in
truth, p_j = Σ_i C_ij were said, c = Σ_i C_ii are right, s = Σ_ij C_ij are all.

    precision_i = C_ii / p_i      recall_i = C_ii / t_i      F1_i = 2 C_ii / (t_i + p_i)      a ratio over 0 is 0
    accuracy = c / s              macro-F1 = mean_i F1_i
    Matthews = (c s − Σ_i p_i t_i) / √((s² − Σ_i p_i²) (s² − Σ_i t_i²))

Matthews is 0 for answers that have nothing to do with the question, whatever their shares, and 1 if
all are right. A class the model does not know, because training had none of it, is in C too: what
is of that class is always wrong.

Calibration: answers are put into M bins by the model's confidence, (0, 1/M], (1/M, 2/M] … The
expected calibration error is how far mean confidence and share of right answers are apart:

    ECE = Σ_m |B_m| / N · |right(B_m) − confidence(B_m)|

Clusters found without labels are compared with labels by

    many to one = examples whose label is the most frequent of their cluster / examples
    V-measure = 2 h c / (h + c),   h = 1 − H(label | cluster) / H(label),   c = 1 − H(cluster | label) / H(cluster)

Many to one rises with the number of clusters; V-measure need not (Rosenberg and Hirschberg, 2007).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError
from seqloom.evaluate.intervals import Counts, Interval, MetricReport, Values, bootstrap, wilson

BINS = 15


# --- precision, recall and F1 of one class, or of one type of span ----------------------------------------------------


@dataclass(frozen=True)
class Hits:
    correct: int  # true positives
    found: int  # said by the model
    expected: int  # there in truth: the support

    def __add__(self, other: "Hits") -> "Hits":
        return Hits(self.correct + other.correct, self.found + other.found, self.expected + other.expected)

    @property
    def precision(self) -> float:
        return self.correct / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        return self.correct / self.expected if self.expected else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.correct / (self.found + self.expected) if self.found + self.expected else 0.0


class Average(NamedTuple):
    precision: float
    recall: float
    f1: float


def micro(classes: Iterable[Hits]) -> Average:
    """Count everything together: large classes decide."""
    total = sum(classes, Hits(0, 0, 0))
    return Average(total.precision, total.recall, total.f1)


def macro(classes: Iterable[Hits]) -> Average:
    """Average the classes that occur, in truth or in what was said: each counts the same, however small."""
    occurring = [hits for hits in classes if hits.found + hits.expected]
    return _mean(occurring, [1] * len(occurring))


def weighted(classes: Iterable[Hits]) -> Average:
    """Average the classes, each counting as often as it is there in truth."""
    known = list(classes)
    return _mean(known, [hits.expected for hits in known])


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
    share: float  # of all that is `expected`


@dataclass(frozen=True)
class Confusion:
    labels: tuple[str, ...]
    counts: Counts  # (K, K): a row is what a text is, a column what it was called

    @classmethod
    def of(cls, expected: Sequence[str], predicted: Sequence[str], labels: Sequence[str] = ()) -> "Confusion":
        """Count answers. `labels` come first, in their order; whatever else occurs follows, sorted."""
        if len(expected) != len(predicted) or not expected:
            raise DataError(
                f"There must be as many answers as texts, and at least one: got {len(predicted)} and {len(expected)}."
            )
        names = (*labels, *sorted({*expected, *predicted} - set(labels)))
        rows = {label: row for row, label in enumerate(names)}
        if len(rows) != len(names):
            raise DataError(f"The labels must be distinct; got {', '.join(labels)}.")
        counts = np.zeros((len(names), len(names)), dtype=np.int64)
        np.add.at(counts, ([rows[label] for label in expected], [rows[label] for label in predicted]), 1)
        return cls(names, counts)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def support(self) -> list[int]:
        """How many texts there are of each class."""
        return [int(count) for count in self.counts.sum(axis=1)]

    @property
    def hits(self) -> dict[str, Hits]:
        columns = (np.diagonal(self.counts), self.counts.sum(axis=0), self.counts.sum(axis=1))
        return {label: Hits(*(int(column[row]) for column in columns)) for row, label in enumerate(self.labels)}

    def shares(self) -> Values:
        """Divide each row by its sum (K, K): the diagonal is the recall. A class that does not occur has zeros."""
        return self.counts / np.maximum(self.counts.sum(axis=1, keepdims=True), 1)

    def mistakes(self, most: int | None = None) -> list[Mistake]:
        """List which classes are taken for which, the most frequent mistakes first."""
        shares, wrong = self.shares(), self.counts * (1 - np.eye(len(self.labels), dtype=np.int64))
        found = [
            Mistake(self.labels[row], self.labels[column], int(wrong[row, column]), float(shares[row, column]))
            for row, column in np.argwhere(wrong).tolist()
        ]
        return sorted(found, key=lambda mistake: (-mistake.count, -mistake.share))[:most]


# --- metrics of a matrix, or of many at once: (…, K, K) → (…) ---------------------------------------------------------


def accuracy(counts: Counts) -> Values:
    right: Values = np.trace(counts, axis1=-2, axis2=-1) / counts.sum(axis=(-2, -1))
    return right


def macro_f1(counts: Counts) -> Values:
    """Average over the classes that occur, in truth or among the answers."""
    sums = counts.sum(axis=-1) + counts.sum(axis=-2)
    scores = 2 * np.diagonal(counts, axis1=-2, axis2=-1) / np.maximum(sums, 1)
    mean: Values = scores.sum(axis=-1) / (sums > 0).sum(axis=-1)
    return mean


def matthews(counts: Counts) -> Values:
    """Matthews correlation; 0 where it is not defined: one class only, in truth or among the answers."""
    c, s = np.trace(counts, axis1=-2, axis2=-1).astype(float), counts.sum(axis=(-2, -1)).astype(float)
    t, p = counts.sum(axis=-1).astype(float), counts.sum(axis=-2).astype(float)
    above = c * s - (p * t).sum(axis=-1)
    below = (s**2 - (p**2).sum(axis=-1)) * (s**2 - (t**2).sum(axis=-1))
    return np.divide(above, np.sqrt(below), out=np.zeros_like(above), where=below > 0)


def matrix_interval(counts: Counts, metric: Callable[[Counts], Values], *, seed: int = 0) -> Interval:
    """Return the bootstrap interval of one of these metrics: texts drawn again."""
    size, kinds = len(counts), np.flatnonzero(counts)

    def of_drawn(drawn: Counts) -> Values:
        matrices = np.zeros((len(drawn), size * size), dtype=np.int64)
        matrices[:, kinds] = drawn
        return metric(matrices.reshape(-1, size, size))

    return bootstrap(counts.ravel()[kinds], of_drawn, seed=seed, numbers=size * size)


# --- calibration ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bin:
    """The answers with a confidence above `low` and of at most `high`."""

    low: float
    high: float
    count: int
    confidence: float  # mean; of an empty bin NaN
    accuracy: float  # share that is right; of an empty bin NaN

    @property
    def gap(self) -> float:
        """Overconfidence: above 0, the model is surer than it should be."""
        return self.confidence - self.accuracy


@dataclass(frozen=True)
class Calibration:
    bins: list[Bin]

    @property
    def filled(self) -> list[Bin]:
        return [group for group in self.bins if group.count]

    @property
    def error(self) -> float:
        """The expected calibration error."""
        return sum(group.count * abs(group.gap) for group in self.filled) / sum(group.count for group in self.bins)

    @property
    def gap(self) -> float:
        """Mean confidence less the share that is right: above 0, the model is surer than it should be."""
        return sum(group.count * group.gap for group in self.filled) / sum(group.count for group in self.bins)


def calibrate(confidence: Values, correct: NDArray[np.bool_], bins: int = BINS) -> Calibration:
    """Bin answers: `confidence` (N,) is the probability of each, `correct` (N,) whether it is right."""
    edges = np.linspace(0, 1, bins + 1)
    places = np.searchsorted(edges[1:-1], confidence)  # what lies on an edge belongs below it
    found = []
    for place in range(bins):
        inside = places == place
        count = int(inside.sum())
        means = (float(confidence[inside].mean()), float(correct[inside].mean())) if count else (np.nan, np.nan)
        found.append(Bin(float(edges[place]), float(edges[place + 1]), count, *means))
    return Calibration(found)


# --- everything at once ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassificationReport(MetricReport):
    """Everything an evaluation of a classifier found."""

    confusion: Confusion
    calibration: Calibration
    unseen: dict[str, int]  # labels that training did not have, and how many texts have them
    counted = ("class", "texts")  # what `by_class` tells apart, and what it counts

    @property
    def by_class(self) -> dict[str, Hits]:
        return self.confusion.hits


def report(expected: Sequence[str], log_probs: Values, labels: Sequence[str], *, seed: int = 0) -> ClassificationReport:
    """Measure a classifier's answers: `log_probs` (N, K) of the `labels` (K,), for texts that are `expected` (N,).

    Texts with a label that the model does not know are wrong; the loss, which would be infinite, is
    of the others.
    """
    if log_probs.shape != (len(expected), len(labels)):
        raise DataError(
            f"There must be a log-probability for each of {len(expected)} texts and {len(labels)} labels; "
            f"got the shape {log_probs.shape}."
        )
    predicted = [labels[column] for column in log_probs.argmax(axis=1).tolist()]
    confusion = Confusion.of(expected, predicted, labels)
    right = np.array([label == answer for label, answer in zip(expected, predicted, strict=True)])
    calibration = calibrate(np.exp(log_probs.max(axis=1).astype(float)), right)
    return ClassificationReport(
        metrics={
            "loss": log_loss(expected, log_probs, labels),
            **confusion_metrics(confusion),
            "calibration_error": calibration.error,
        },
        intervals={
            "accuracy": wilson(int(right.sum()), len(right)),
            "macro_f1": matrix_interval(confusion.counts, macro_f1, seed=seed),
            "matthews": matrix_interval(confusion.counts, matthews, seed=seed),
        },
        confusion=confusion,
        calibration=calibration,
        unseen=unseen_labels(expected, labels),
    )


def confusion_metrics(confusion: Confusion) -> dict[str, float]:
    """Metrics of the matrix alone. `majority` is the accuracy of always saying the most frequent class of these."""
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
    """Count the expected labels that a model does not know."""
    known = set(labels)
    return dict(sorted(Counter(label for label in expected if label not in known).items()))


def log_loss(expected: Sequence[str], log_probs: Values, labels: Sequence[str]) -> float:
    """−1/N Σ log p(label), in nats, over the texts whose label the model knows; NaN if there are none."""
    columns = {label: column for column, label in enumerate(labels)}
    pairs = [(row, columns[label]) for row, label in enumerate(expected) if label in columns]
    if not pairs:
        return math.nan
    rows, chosen = zip(*pairs, strict=True)
    return -float(log_probs[list(rows), list(chosen)].astype(float).mean())


# --- clusters -------------------------------------------------------------------------------------------------------


def cluster_metrics(labels: Sequence[str], clusters: Sequence[int]) -> dict[str, float]:
    """`many_to_one` and `v_measure` of examples with a label and a cluster each."""
    if not labels or len(labels) != len(clusters):
        raise DataError(f"There must be a group for each label; got {len(labels)} labels and {len(clusters)} groups.")
    _, rows = np.unique(np.array(labels), return_inverse=True)
    _, columns = np.unique(np.array(clusters), return_inverse=True)
    table = np.zeros((rows.max() + 1, columns.max() + 1))
    np.add.at(table, (rows, columns), 1)
    both, label, cluster = (_entropy(counts) for counts in (table.ravel(), table.sum(axis=1), table.sum(axis=0)))
    shared = label + cluster - both  # H(label) − H(label | cluster)
    homogeneity = shared / label if label > 0 else 1.0
    completeness = shared / cluster if cluster > 0 else 1.0
    whole = homogeneity + completeness
    v_measure = 2 * homogeneity * completeness / whole if whole > 0 else 0.0
    return {"many_to_one": float(table.max(axis=0).sum() / table.sum()), "v_measure": v_measure}


def _entropy(counts: Values) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
