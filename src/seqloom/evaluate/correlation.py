"""How well scores go with what they should be: a straight line, or the same order.

    Pearson   r = Σ (x − x̄)(y − ȳ) / √(Σ (x − x̄)² Σ (y − ȳ)²)
    Spearman  ρ = r of the ranks; equal values share the mean of their ranks

Both are 1 where one rises with the other, −1 where it falls, 0 where there is nothing between them. Pearson asks for a
straight line, Spearman only for the order. Neither is defined where all x, or all y, are the same: 0 then.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError
from seqloom.evaluate.figures import Figures
from seqloom.evaluate.intervals import Counts, Interval, bootstrap

Values = NDArray[np.floating[Any]]


def pearson(x: Sequence[float] | Values, y: Sequence[float] | Values) -> float:
    a, b = _both(x, y)
    a, b = a - a.mean(), b - b.mean()
    a, b = (_scaled(values) for values in (a, b))  # so that squares of tiny or huge numbers stay numbers
    below = np.sqrt((a * a).sum() * (b * b).sum())
    return float(np.clip((a * b).sum() / below, -1, 1)) if below else 0.0


def spearman(x: Sequence[float] | Values, y: Sequence[float] | Values) -> float:
    a, b = _both(x, y)
    return pearson(ranks(a), ranks(b))


def ranks(values: Sequence[float] | Values) -> Values:
    """The place of each in their order, from 1; equal ones have the mean of theirs."""
    _, place, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    found: Values = (last - (counts - 1) / 2)[place.reshape(-1)]
    return found


def pearson_interval(x: Sequence[float] | Values, y: Sequence[float] | Values, *, seed: int = 0) -> Interval:
    """The bootstrap interval of r: pairs drawn again. Of the ranks it is that of ρ, but for how ties then fall."""
    a, b = _both(x, y)

    def of_drawn(drawn: Counts) -> Values:
        n = drawn.sum(axis=1)
        mean_a, mean_b = drawn @ a / n, drawn @ b / n
        above = drawn @ (a * b) / n - mean_a * mean_b
        below = (drawn @ (a * a) / n - mean_a**2) * (drawn @ (b * b) / n - mean_b**2)
        return np.clip(
            np.divide(above, np.sqrt(np.maximum(below, 0)), out=np.zeros_like(above), where=below > 0), -1, 1
        )

    a, b = (_scaled(values - values.mean()) for values in (a, b))
    return bootstrap(np.ones(len(a), dtype=np.int64), of_drawn, seed=seed)


def report(expected: Sequence[float], found: Sequence[float], *, seed: int = 0) -> Figures:
    """Measure scores: both correlations, and how far off they are, root mean square and on average."""
    x, y = _both(expected, found)
    return Figures(
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


def _both(x: Sequence[float] | Values, y: Sequence[float] | Values) -> tuple[Values, Values]:
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if a.shape != b.shape or a.ndim != 1 or len(a) < 2:
        raise DataError(f"A correlation needs two scores or more, and as many of each; got {a.size} and {b.size}.")
    return a, b


def _scaled(values: Values) -> Values:
    largest = np.abs(values).max()
    return values / largest if largest else values
