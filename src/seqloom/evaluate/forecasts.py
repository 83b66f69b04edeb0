"""Metrics of point and probabilistic forecasts, and the seasonal naive baseline.

    MASE   mean |y − ŷ| / mean over train |y_t − y_{t−m}|          1 is as good as the naive forecast in train
    sMAPE  mean 200 |y − ŷ| / (|y| + |ŷ|)                          in percent
    CRPS   E|Y − y| − ½ E|Y − Y'|,  Y and Y' from the forecast     scaled like MASE, and equal to it for one point

ŷ is the median of the forecast, which minimizes absolute errors. Coverage is the fraction of true
values inside an interval; a calibrated 80 % interval covers 80 %. The seasonal naive forecast
repeats the last season; its standard deviation for k seasons ahead is σ √k, where σ is computed on train.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from seqloom.decoding.forecast import INTERVALS, Forecast

Values = NDArray[np.float64]


def seasonal_steps(values: Values, season: int) -> Values:
    """Return y_t − y_{t−m} (T − m, C), with NaN if a value is missing."""
    return values[season:] - values[:-season]


def naive_error(train: Sequence[Values], season: int) -> Values:
    """Return the scale of errors (C,), which is the mean |y_t − y_{t−m}| over train, or NaN if this mean is 0."""
    steps = np.concatenate([seasonal_steps(values, season) for values in train])
    observed = ~np.isnan(steps)
    scale = np.where(observed, np.abs(steps), 0).sum(axis=0) / np.maximum(observed.sum(axis=0), 1)
    return np.where(scale > 0, scale, np.nan)


def last_season(values: Values, season: int) -> Values:
    """Return the last observed value (m, C) of each phase of a season, or NaN for a phase without observations."""
    latest = np.full((season, values.shape[1]), np.nan)
    for back in range(-(-len(values) // season)):  # number of seasons back, the latest season first
        part = values[max(0, len(values) - (back + 1) * season) : len(values) - back * season]
        rows = latest[season - len(part) :]
        rows[np.isnan(rows)] = part[np.isnan(rows)]
    return latest


def naive_forecast(history: Sequence[Values], horizon: int, season: int, deviation: Values) -> Forecast:
    """Repeat the last season of each series; `deviation` (C,) is the standard deviation of y_t − y_{t−m} in train."""
    ahead = np.arange(horizon)
    mean = np.stack([last_season(values, season)[ahead % season] for values in history])  # (B, horizon, C)
    spread = deviation * np.sqrt(ahead // season + 1)[:, None]
    return Forecast.normal(torch.from_numpy(mean), torch.from_numpy(np.broadcast_to(spread, mean.shape).copy()))


def crps(points: Values, truth: Values) -> Values:
    """Return the CRPS (…, h, C) of equally likely points (…, S, h, C) and true values (…, h, C).

    For sorted points, E|Y − Y'| = 2/S² Σ_s (2s − S − 1) y_(s), with s counted from 1.
    """
    count = points.shape[-3]
    error = np.abs(points - np.expand_dims(truth, -3)).mean(axis=-3)
    weights = (2 * np.arange(1, count + 1) - count - 1).reshape(-1, 1, 1)
    spread = 2 * (weights * np.sort(points, axis=-3)).sum(axis=-3) / count**2
    result: Values = error - spread / 2
    return result


@dataclass(frozen=True)
class Errors:
    """Errors of forecasts (N, h, C) by series, step ahead and variable; NaN if the true value is missing."""

    absolute: Values
    relative: Values  # in percent
    crps: Values
    inside: dict[float, Values]  # for each interval, 1 if the true value is inside, 0 if not, NaN if it is missing

    @classmethod
    def of(cls, forecast: Forecast, truth: Values) -> "Errors":
        median = forecast.quantile(0.5).numpy()
        size = np.abs(truth) + np.abs(median)
        absolute = np.abs(truth - median)
        relative = 200 * np.divide(absolute, size, out=np.zeros_like(absolute), where=size > 0)
        missing = np.isnan(absolute)  # no true value, or no value of a naive forecast
        inside = {}
        for level in INTERVALS:
            low, high = (end.numpy() for end in forecast.interval(level))
            inside[level] = np.where(missing, np.nan, (low <= truth) & (truth <= high))
        return cls(absolute, np.where(missing, np.nan, relative), crps(forecast.points.numpy(), truth), inside)

    def metrics(self, scale: Values, prefix: str = "") -> dict[str, float]:
        """Return the means of all known errors; `scale` (C,) makes variables comparable."""
        metrics = {
            "mase": nan_mean(self.absolute / scale),
            "smape": nan_mean(self.relative),
            "crps": nan_mean(self.crps / scale),
        }
        metrics |= {f"coverage_{level:.0%}".rstrip("%"): nan_mean(inside) for level, inside in self.inside.items()}
        return {f"{prefix}{name}": value for name, value in metrics.items()}

    def of_variable(self, variable: int, scale: Values) -> float:
        """Return the MASE of one variable."""
        return nan_mean(self.absolute[:, :, variable] / scale[variable])

    def by_step(self, scale: Values) -> Values:
        """Return the MASE of each step ahead (h,)."""
        scaled = self.absolute / scale
        return np.array([nan_mean(scaled[:, step]) for step in range(scaled.shape[1])])


def nan_mean(values: Values) -> float:
    """Return the mean of the values that are not NaN, or NaN if all values are NaN."""
    finite = values[~np.isnan(values)]
    return float(finite.mean()) if len(finite) else float("nan")
