"""Confidence intervals of metrics, and reports of metrics with their intervals.

A test set is a sample. A 95 % interval contains the true value for 95 % of all samples. The interval of a
proportion p of n examples is Wilson's interval, which is also valid for p near 0 or 1 (z = 1.96):

    (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n)

All other metrics have a bootstrap interval: examples are resampled from the test set with
replacement. Both intervals account for the choice of examples, not for the random seed of training.
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
from seqloom.core.notebook import table_html

LEVEL = 0.95
SAMPLES = 1000
MAX_ELEMENTS = 1 << 22  # maximum number of array elements in memory

Counts = NDArray[np.int64]
Values = NDArray[np.float64]


class Interval(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True)
class MetricReport:
    """The metrics of an evaluation by name, and 95 % intervals of some of them."""

    metrics: dict[str, float]
    intervals: dict[str, Interval]

    def to_dict(self) -> dict[str, object]:
        """Return the values that a run stores."""
        return {**self.metrics, "intervals": {name: list(interval) for name, interval in self.intervals.items()}}

    def _repr_html_(self) -> str:
        """Return the metrics and their intervals as a table for notebooks."""
        bounds = {name: {"95 % from": each.low, "to": each.high} for name, each in self.intervals.items()}
        return table_html([{"metric": name, "value": v, **bounds.get(name, {})} for name, v in self.metrics.items()])


def wilson(correct: int, total: int, level: float = LEVEL) -> Interval:
    """Return Wilson's interval of the proportion `correct` / `total`."""
    if not 0 <= correct <= total or total < 1:
        raise DataError(f"A proportion needs 0 ≤ correct ≤ total and total ≥ 1; got {correct}/{total}.")
    z, p = NormalDist().inv_cdf((1 + level) / 2), correct / total
    middle = p + z * z / (2 * total)
    half_width = z * math.sqrt(p * (1 - p) / total + (z / (2 * total)) ** 2)
    scale = 1 + z * z / total
    low, high = (middle - half_width) / scale, (middle + half_width) / scale
    return Interval(low if correct else 0.0, high if correct < total else 1.0)  # exact at both ends


def bootstrap(
    counts: Counts,
    metric: Callable[[Counts], Values],
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    elements: int | None = None,
) -> Interval:
    """Return the bootstrap interval of a metric, given the `counts` (U,) of U kinds of examples.

    `metric` maps the counts (R, U) of R samples to values (R,). Examples of one kind are interchangeable, so
    kinds are resampled instead of examples. `elements` is the number of values that the metric computes per
    sample, if it is larger than U. Samples are drawn in groups to limit memory.
    """
    total = int(counts.sum())
    if total < 1:
        raise DataError("A bootstrap interval needs at least one example, but the split is empty.")
    size, generator = max(1, MAX_ELEMENTS // (elements or len(counts))), np.random.default_rng(seed)
    groups = (
        generator.multinomial(total, counts / total, size=min(size, samples - first))
        for first in range(0, samples, size)
    )
    low, high = np.quantile(np.concatenate([metric(group) for group in groups]), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def ratio_interval(pairs: Iterable[tuple[int, int]], *, seed: int = 0) -> Interval:
    """Return the bootstrap interval of Σ a / Σ b over examples (a, b); the ratio is 0 if Σ b is 0."""
    kinds = Counter(pairs)
    a, b = np.array(list(kinds)).T  # (U,)
    counts = np.array(list(kinds.values()))
    return bootstrap(counts, lambda samples: (samples @ a) / np.maximum(samples @ b, 1), seed=seed)


def mean_interval(values: Iterable[float], *, seed: int = 0) -> Interval:
    """Return the bootstrap interval of a mean."""
    kinds = Counter(values)
    each = np.array(list(kinds))  # (U,)
    return bootstrap(np.array(list(kinds.values())), lambda samples: samples @ each / samples.sum(axis=1), seed=seed)
