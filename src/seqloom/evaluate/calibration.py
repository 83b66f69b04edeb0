"""Whether a model that is 80 % sure is right in 80 of 100 cases.

Answers are put into M bins by how sure the model was of them, (0, 1/M], (1/M, 2/M] … Where it knows itself, the share
of right answers in a bin is the mean confidence there. The expected calibration error is how far apart the two are:

    ECE = Σ_m |B_m| / N · |right(B_m) − confidence(B_m)|
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 15


@dataclass(frozen=True)
class Bin:
    """The answers of which the model was more than `low` and at most `high` sure."""

    low: float
    high: float
    count: int
    confidence: float  # mean; of an empty bin NaN
    accuracy: float  # share that is right; of an empty bin NaN

    @property
    def gap(self) -> float:
        """Above 0: surer than it should be."""
        return self.confidence - self.accuracy


@dataclass(frozen=True)
class Calibration:
    bins: list[Bin]

    @property
    def filled(self) -> list[Bin]:
        return [one for one in self.bins if one.count]

    @property
    def error(self) -> float:
        """The expected calibration error."""
        total = sum(one.count for one in self.bins)
        return sum(one.count * abs(one.gap) for one in self.filled) / total

    @property
    def gap(self) -> float:
        """Mean confidence less the share that is right: above 0, the model is surer than it should be."""
        total = sum(one.count for one in self.bins)
        return sum(one.count * one.gap for one in self.filled) / total


def calibrate(confidence: NDArray[np.floating[Any]], correct: NDArray[np.bool_], bins: int = BINS) -> Calibration:
    """`confidence` (N,) is the probability of each answer, `correct` (N,) whether it is right."""
    edges = np.linspace(0, 1, bins + 1)
    places = np.searchsorted(edges[1:-1], confidence)  # what lies on an edge belongs below it
    found = []
    for place in range(bins):
        inside = places == place
        count = int(inside.sum())
        means = (float(confidence[inside].mean()), float(correct[inside].mean())) if count else (np.nan, np.nan)
        found.append(Bin(float(edges[place]), float(edges[place + 1]), count, *means))
    return Calibration(found)
