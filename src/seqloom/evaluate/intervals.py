"""How sure a figure is: an interval that holds the true value, in 95 of 100 such tests.

A test set is a sample, and another one would have given another figure. For a share p of n examples there is Wilson's
interval, which also holds where p is near 0 or 1 (z = 1.96 for 95 %):

    (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n)

For any other figure there is the bootstrap: draw as many examples from the test set, with replacement, again and again,
and see how the figure spreads. Both are about the choice of examples alone, not about the seed of the training.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError

LEVEL = 0.95
SAMPLES = 1000
AT_ONCE = 1 << 22  # numbers held at a time

Counts = NDArray[np.integer[Any]]
Values = NDArray[np.floating[Any]]


class Interval(NamedTuple):
    low: float
    high: float


def wilson(correct: int, total: int, level: float = LEVEL) -> Interval:
    """The interval of a share: so many of so many."""
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
    figure: Callable[[Counts], Values],
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    level: float = LEVEL,
    numbers: int | None = None,
) -> Interval:
    """The interval of a figure of examples that come in kinds: `counts` (U,) says how many there are of each.

    `figure` gets (R, U), the counts in R samples, and gives the figure of each (R,). Examples of one kind are alike to
    it, so drawing kinds is drawing examples. Percentiles of what came out are the interval. `numbers` is how many the
    figure makes of each sample, if they are more than U: samples are drawn in groups, so that memory suffices.
    """
    size = max(1, AT_ONCE // (numbers or len(counts)))
    values = np.concatenate([figure(drawn) for drawn in _samples(counts, samples, size, seed)])
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def ratio_interval(pairs: Iterable[tuple[int, int]], *, seed: int = 0) -> Interval:
    """The bootstrap interval of Σ a / Σ b, where each example gives an a and a b; 0 where Σ b is."""
    kinds = Counter(pairs)
    above, below = np.array(list(kinds)).T  # (U,)

    def ratio(drawn: Counts) -> Values:
        found: Values = (drawn @ above) / np.maximum(drawn @ below, 1)
        return found

    return bootstrap(np.array(list(kinds.values())), ratio, seed=seed)


def mean_interval(values: Iterable[float], *, seed: int = 0) -> Interval:
    """The bootstrap interval of a mean."""
    kinds = Counter(values)
    each = np.array(list(kinds))  # (U,)
    return bootstrap(np.array(list(kinds.values())), lambda drawn: drawn @ each / drawn.sum(axis=1), seed=seed)


def _samples(counts: Counts, samples: int, size: int, seed: int) -> Iterator[Counts]:
    total = int(counts.sum())
    if total < 1:
        raise DataError("There is nothing to draw samples from: the split has no examples.")
    generator = np.random.default_rng(seed)
    for first in range(0, samples, size):
        yield generator.multinomial(total, counts / total, size=min(size, samples - first))
