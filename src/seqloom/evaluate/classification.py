"""How good answers are that are one of several classes: accuracy, F1, Matthews, confusion, calibration.

C is the confusion matrix: C_ij texts are an i and were called a j. t_i = Σ_j C_ij are there in truth, p_j = Σ_i C_ij
were said, c = Σ_i C_ii are right, s = Σ_ij C_ij are all.

    accuracy = c / s      macro-F1 = mean_i 2 C_ii / (t_i + p_i)
    Matthews = (c s − Σ_i p_i t_i) / √((s² − Σ_i p_i²) (s² − Σ_i t_i²))

Matthews is 0 for answers that have nothing to do with the question, whatever their shares, and 1 if all are right. A
class the model does not know, because training had none of it, is in C too: what is of that class is always wrong.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError
from seqloom.evaluate.calibration import Calibration, calibrate
from seqloom.evaluate.hits import Hits, macro, micro, weighted
from seqloom.evaluate.intervals import Interval, bootstrap, wilson

Matrix = NDArray[np.integer[Any]]
Values = NDArray[np.floating[Any]]


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
    counts: Matrix  # (K, K): a row is what a text is, a column what it was called

    @classmethod
    def of(cls, expected: Sequence[str], predicted: Sequence[str], labels: Sequence[str] = ()) -> "Confusion":
        """`labels` come first, in their order; whatever else occurs follows, sorted."""
        if len(expected) != len(predicted) or not expected:
            raise DataError(
                f"There must be as many answers as texts, and at least one: got {len(predicted)} and {len(expected)}."
            )
        names = (*labels, *sorted({*expected, *predicted} - set(labels)))
        place = {label: number for number, label in enumerate(names)}
        if len(place) != len(names):
            raise DataError(f"The labels must be distinct; got {', '.join(labels)}.")
        counts = np.zeros((len(names), len(names)), dtype=np.int64)
        np.add.at(counts, ([place[label] for label in expected], [place[label] for label in predicted]), 1)
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
        found, expected = self.counts.sum(axis=0), self.counts.sum(axis=1)
        return {
            label: Hits(int(self.counts[place, place]), int(found[place]), int(expected[place]))
            for place, label in enumerate(self.labels)
        }

    def shares(self) -> Values:
        """Each row divided by its sum (K, K): the diagonal is the recall. A class that does not occur has zeros."""
        totals = self.counts.sum(axis=1, keepdims=True)
        return self.counts / np.maximum(totals, 1)

    def mistakes(self, most: int | None = None) -> list[Mistake]:
        """Which classes are taken for which, the most frequent mistakes first."""
        shares = self.shares()
        rows, columns = np.nonzero(self.counts * (1 - np.eye(len(self.labels), dtype=np.int64)))
        found = [
            Mistake(self.labels[row], self.labels[column], int(self.counts[row, column]), float(shares[row, column]))
            for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
        ]
        return sorted(found, key=lambda one: (-one.count, -one.share))[:most]


# --- figures of a matrix, or of many at once: (…, K, K) → (…) -------------------------------------------------------


def accuracy(counts: Matrix) -> Values:
    right: Values = np.trace(counts, axis1=-2, axis2=-1) / counts.sum(axis=(-2, -1))
    return right


def macro_f1(counts: Matrix) -> Values:
    """The mean over the classes that occur, in truth or among the answers."""
    sums = counts.sum(axis=-1) + counts.sum(axis=-2)
    scores = 2 * np.diagonal(counts, axis1=-2, axis2=-1) / np.maximum(sums, 1)
    mean: Values = scores.sum(axis=-1) / (sums > 0).sum(axis=-1)
    return mean


def matthews(counts: Matrix) -> Values:
    """0 where it is not defined: one class only, in truth or among the answers."""
    c, s = np.trace(counts, axis1=-2, axis2=-1).astype(float), counts.sum(axis=(-2, -1)).astype(float)
    t, p = counts.sum(axis=-1).astype(float), counts.sum(axis=-2).astype(float)
    above = c * s - (p * t).sum(axis=-1)
    below = (s**2 - (p**2).sum(axis=-1)) * (s**2 - (t**2).sum(axis=-1))
    found: Values = np.divide(above, np.sqrt(below), out=np.zeros_like(above), where=below > 0)
    return found


def matrix_interval(counts: Matrix, figure: Callable[[Matrix], Values], *, seed: int = 0) -> Interval:
    """The bootstrap interval of one of these figures: texts drawn again."""
    size, kinds = len(counts), np.flatnonzero(counts)

    def of_drawn(drawn: Matrix) -> Values:
        matrices = np.zeros((len(drawn), size * size), dtype=np.int64)
        matrices[:, kinds] = drawn
        return figure(matrices.reshape(-1, size, size))

    return bootstrap(counts.ravel()[kinds], of_drawn, seed=seed, numbers=size * size)


# --- everything at once ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """Everything an evaluation of a classifier found."""

    metrics: dict[str, float]
    intervals: dict[str, Interval]  # of some of the metrics, 95 %
    confusion: Confusion
    calibration: Calibration
    unseen: dict[str, int]  # labels that training did not have, and how many texts have them

    def kept(self) -> dict[str, Any]:
        """What a run keeps of it."""
        return {**self.metrics, "intervals": {name: list(interval) for name, interval in self.intervals.items()}}

    @property
    def by_class(self) -> dict[str, Hits]:
        return self.confusion.hits

    @property
    def counted(self) -> tuple[str, str]:
        """What `by_class` tells apart, and what it counts."""
        return "class", "texts"


def report(expected: Sequence[str], log_probs: Values, labels: Sequence[str], *, seed: int = 0) -> Report:
    """Measure a classifier's answers: `log_probs` (N, K) of the `labels` (K,), for texts that are `expected` (N,).

    Texts with a label that the model does not know are wrong; the loss, which would be infinite, is of the others.
    """
    if log_probs.shape != (len(expected), len(labels)):
        raise DataError(
            f"There must be a log-probability for each of {len(expected)} texts and {len(labels)} labels; "
            f"got the shape {log_probs.shape}."
        )
    best = log_probs.argmax(axis=1)
    predicted = [labels[place] for place in best.tolist()]
    confusion = Confusion.of(expected, predicted, labels)
    right = np.array([one == other for one, other in zip(expected, predicted, strict=True)])
    calibration = calibrate(np.exp(log_probs.max(axis=1).astype(float)), right)
    return Report(
        metrics={
            "loss": log_loss(expected, log_probs, labels),
            **figures(confusion),
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


def figures(confusion: Confusion) -> dict[str, float]:
    """What the matrix alone tells. `majority` is the accuracy of always saying the most frequent class of these."""
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
    """The labels that a model does not know, and how often they are the right ones."""
    known = set(labels)
    return dict(sorted(Counter(label for label in expected if label not in known).items()))


def log_loss(expected: Sequence[str], log_probs: Values, labels: Sequence[str]) -> float:
    """−1/N Σ log p(label), in nats, over the texts whose label the model knows; NaN if there are none."""
    place = {label: number for number, label in enumerate(labels)}
    rows = [number for number, label in enumerate(expected) if label in place]
    if not rows:
        return math.nan
    columns = [place[expected[row]] for row in rows]
    return -float(log_probs[rows, columns].astype(float).mean())
