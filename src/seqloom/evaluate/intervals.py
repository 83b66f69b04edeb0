"""Confidence intervals of metrics, and the report that keeps both.

A test set is a sample, and another one would have given another value. A 95 % interval holds the
true value in 95 of 100 such tests. A share p of n examples has Wilson's interval, which also holds
where p is near 0 or 1 (z = 1.96):

    (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n)

Any other metric has a bootstrap interval: examples are drawn from the test set, with replacement,
again and again. Both are about the choice of examples alone, not about the seed of the training.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError

LEVEL = 0.95
SAMPLES = 1000
AT_ONCE = 1 << 22  # numbers held at a time

Counts = NDArray[np.int64]
Values = NDArray[np.float64]


class Interval(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True)
class MetricReport:
    """The result of an evaluation: metrics by name, and the 95 % intervals of some of them."""

    metrics: dict[str, float]
    intervals: dict[str, Interval]

    def kept(self) -> dict[str, object]:
        """Return what a run keeps of it."""
        return {**self.metrics, "intervals": {name: list(interval) for name, interval in self.intervals.items()}}


def wilson(correct: int, total: int, level: float = LEVEL) -> Interval:
    """Return the interval of a share: `correct` of `total`."""
    if not 0 <= correct <= total or total < 1:
        raise DataError(f"A share needs at least one example, and none right that is not there; got {correct}/{total}.")
    z, share = NormalDist().inv_cdf((1 + level) / 2), correct / total
    middle = share + z * z / (2 * total)
    reach = z * math.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2)
    scale = 1 + z * z / total
    low, high = (middle - reach) / scale, (middle + reach) / scale
    return Interval(low if correct else 0.0, high if correct < total else 1.0)  # without the last bit's noise


def bootstrap(
    counts: Counts,
    metric: Callable[[Counts], Values],
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    numbers: int | None = None,
) -> Interval:
    """Return the interval of a metric of examples that come in kinds: `counts` (U,) says how many there are of each.

    `metric` gets (R, U), the counts in R samples, and gives the metric of each (R,). Examples of
    one kind are alike to it, so drawing kinds is drawing examples. `numbers` is how many values the
    metric computes for each sample, if more than U: samples are drawn in groups, so that memory
    suffices.
    """
    total = int(counts.sum())
    if total < 1:
        raise DataError("There is nothing to draw samples from: the split has no examples.")
    size, generator = max(1, AT_ONCE // (numbers or len(counts))), np.random.default_rng(seed)
    drawn = (
        generator.multinomial(total, counts / total, size=min(size, samples - first))
        for first in range(0, samples, size)
    )
    low, high = np.quantile(np.concatenate([metric(group) for group in drawn]), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def ratio_interval(pairs: Iterable[tuple[int, int]], *, seed: int = 0) -> Interval:
    """Return the bootstrap interval of Σ a / Σ b, where each example gives an a and a b; 0 where Σ b is."""
    kinds = Counter(pairs)
    above, below = np.array(list(kinds)).T  # (U,)
    counts = np.array(list(kinds.values()))
    return bootstrap(counts, lambda drawn: (drawn @ above) / np.maximum(drawn @ below, 1), seed=seed)


def mean_interval(values: Iterable[float], *, seed: int = 0) -> Interval:
    """Return the bootstrap interval of a mean."""
    kinds = Counter(values)
    each = np.array(list(kinds))  # (U,)
    return bootstrap(np.array(list(kinds.values())), lambda drawn: drawn @ each / drawn.sum(axis=1), seed=seed)
