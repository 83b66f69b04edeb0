"""Correlation of scores with what they should be.

    Pearson   r = Σ (x − x̄)(y − ȳ) / √(Σ (x − x̄)² Σ (y − ȳ)²)
    Spearman  ρ = r of the ranks; equal values share the mean of their ranks

Both are 1 where one rises with the other, −1 where it falls, 0 where there is nothing between them.
Pearson asks for a straight line, Spearman only for the order. Neither is defined where all x, or
all y, are the same: 0 then.
"""

from collections.abc import Sequence

import numpy as np

from seqloom.core.errors import DataError
from seqloom.evaluate.intervals import Counts, Interval, MetricReport, Values, bootstrap

Scores = Sequence[float] | Values


def pearson(x: Scores, y: Scores) -> float:
    a, b = (_centred(values) for values in _both(x, y))
    below = np.sqrt((a * a).sum() * (b * b).sum())
    return float(np.clip((a * b).sum() / below, -1, 1)) if below else 0.0


def spearman(x: Scores, y: Scores) -> float:
    a, b = _both(x, y)
    return pearson(ranks(a), ranks(b))


def ranks(values: Scores) -> Values:
    """The rank of each value, from 1; equal ones have the mean of theirs."""
    _, place, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: Values = (last - (counts - 1) / 2)[place.reshape(-1)]
    return mean


def pearson_interval(x: Scores, y: Scores, *, seed: int = 0) -> Interval:
    """The bootstrap interval of r: pairs drawn again. Of the ranks it is that of ρ, but for how ties then fall."""
    a, b = (_centred(values) for values in _both(x, y))

    def of_drawn(drawn: Counts) -> Values:
        n = drawn.sum(axis=1)
        mean_a, mean_b = drawn @ a / n, drawn @ b / n
        above = drawn @ (a * b) / n - mean_a * mean_b
        below = (drawn @ (a * a) / n - mean_a**2) * (drawn @ (b * b) / n - mean_b**2)
        r = np.divide(above, np.sqrt(np.maximum(below, 0)), out=np.zeros_like(above), where=below > 0)
        return np.clip(r, -1, 1)

    return bootstrap(np.ones(len(a), dtype=np.int64), of_drawn, seed=seed)


def report(expected: Sequence[float], found: Sequence[float], *, seed: int = 0) -> MetricReport:
    """Measure scores: both correlations, and how far off they are, root mean square and on average."""
    x, y = _both(expected, found)
    return MetricReport(
        metrics={
            "pearson": pearson(x, y),
            "spearman": spearman(x, y),
            "rmse": float(np.sqrt(np.mean((x - y) ** 2))),
            "mean_error": float(np.abs(x - y).mean()),
        },
        intervals={
            "pearson": pearson_interval(x, y, seed=seed),
            "spearman": pearson_interval(ranks(x), ranks(y), seed=seed),
        },
    )


def _both(x: Scores, y: Scores) -> tuple[Values, Values]:
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if a.shape != b.shape or a.ndim != 1 or len(a) < 2:
        raise DataError(f"A correlation needs two scores or more, and as many of each; got {a.size} and {b.size}.")
    return a, b


def _centred(values: Values) -> Values:
    """Subtract the mean and divide by the largest: squares of tiny or huge numbers then stay numbers."""
    centred = values - values.mean()
    largest = np.abs(centred).max()
    return centred / largest if largest else centred
