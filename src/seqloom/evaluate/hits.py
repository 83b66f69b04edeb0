"""Precision, recall and F1, of one class or of one type of span, and their averages.

    precision = correct / found      recall = correct / expected      F1 = 2 · correct / (found + expected)

F1 is the harmonic mean of the other two. What has nothing to be divided by is 0: the recall of a class that does not
occur, the precision of one that is never said.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


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
    """Everything counted together: large classes decide."""
    total = sum(classes, Hits(0, 0, 0))
    return Average(total.precision, total.recall, total.f1)


def macro(classes: Iterable[Hits]) -> Average:
    """The mean over the classes that occur, in truth or in what was said: each counts the same, however small."""
    occurring = [one for one in classes if one.found + one.expected]
    return _mean(occurring, [1] * len(occurring))


def weighted(classes: Iterable[Hits]) -> Average:
    """The mean over the classes, each counting as often as it is there in truth."""
    known = list(classes)
    return _mean(known, [one.expected for one in known])


def _mean(classes: list[Hits], weights: list[int]) -> Average:
    total = sum(weights) or 1
    return Average(
        *(
            sum(weight * float(getattr(one, name)) for one, weight in zip(classes, weights, strict=True)) / total
            for name in Average._fields
        )
    )
