"""Correlation of predicted and expected scores.

    Pearson   r = Σ (x − x̄)(y − ȳ) / √(Σ (x − x̄)² Σ (y − ȳ)²)
    Spearman  ρ = r of the ranks; tied values have the mean of their ranks

Both coefficients are between −1 and 1. Pearson's r measures a linear relation, and Spearman's ρ a
monotonic relation. If all x or all y are equal, the correlation is undefined and reported as 0.
"""

from collections.abc import Sequence

import numpy as np

from seqloom.core.errors import DataError
from seqloom.evaluate.intervals import Counts, Interval, MetricReport, Values, bootstrap

Scores = Sequence[float] | Values


def pearson(x: Scores, y: Scores) -> float:
    """Return Pearson's r."""
    a, b = (_centre(values) for values in _check_pairs(x, y))
    below = np.sqrt((a * a).sum() * (b * b).sum())
    return float(np.clip((a * b).sum() / below, -1, 1)) if below else 0.0


def spearman(x: Scores, y: Scores) -> float:
    """Return Spearman's ρ."""
    a, b = _check_pairs(x, y)
    return pearson(ranks(a), ranks(b))


def ranks(values: Scores) -> Values:
    """Return the rank of each value, counted from 1; tied values have the mean of their ranks."""
    _, inverse, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: Values = (last - (counts - 1) / 2)[inverse.reshape(-1)]
    return mean


def pearson_interval(x: Scores, y: Scores, *, seed: int = 0) -> Interval:
    """Return the bootstrap interval of r, with pairs resampled; for ranks, it approximates the interval of ρ."""
    a, b = (_centre(values) for values in _check_pairs(x, y))

    def resample(samples: Counts) -> Values:
        n = samples.sum(axis=1)
        mean_a, mean_b = samples @ a / n, samples @ b / n
        covariance = samples @ (a * b) / n - mean_a * mean_b
        variances = (samples @ (a * a) / n - mean_a**2) * (samples @ (b * b) / n - mean_b**2)
        deviations = np.sqrt(np.maximum(variances, 0))
        r = np.divide(covariance, deviations, out=np.zeros_like(covariance), where=variances > 0)
        return np.clip(r, -1, 1)

    return bootstrap(np.ones(len(a), dtype=np.int64), resample, seed=seed)


def report(expected: Sequence[float], predicted: Sequence[float], *, seed: int = 0) -> MetricReport:
    """Evaluate scores: both correlations, root mean square error and mean absolute error."""
    x, y = _check_pairs(expected, predicted)
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


def _check_pairs(x: Scores, y: Scores) -> tuple[Values, Values]:
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if a.shape != b.shape or a.ndim != 1 or len(a) < 2:
        raise DataError(f"A correlation needs at least two pairs of scores; got {a.size} and {b.size} scores.")
    return a, b


def _centre(values: Values) -> Values:
    """Subtract the mean and divide by the maximum, so that squares neither overflow nor underflow."""
    centred = values - values.mean()
    largest = np.abs(centred).max()
    return centred / largest if largest else centred
