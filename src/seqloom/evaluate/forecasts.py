"""How good forecasts are: of points, of distributions, and beside the seasonal naive forecast.

    MASE   mean |y − ŷ| / mean over train |y_t − y_{t−m}|          1 is the naive forecast one season ahead, in train
    sMAPE  mean 200 |y − ŷ| / (|y| + |ŷ|)                          in percent
    CRPS   E|Y − y| − ½ E|Y − Y'|,  Y and Y' from the forecast     in the unit of MASE: of a single point it is MASE

ŷ is the median of the forecast, which is what absolute errors ask for. Coverage is the share of
truths that lie in an interval: of an honest 80 % interval, 80 %. The seasonal naive forecast says
what was there a season ago, and is as unsure as it was in train: σ √k for k seasons ahead.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from seqloom.decoding.forecast import INTERVALS, Forecast

Values = NDArray[np.float64]


def seasonal_steps(values: Values, season: int) -> Values:
    """y_t − y_{t−m} (T − m, C), NaN where one of the two is missing."""
    return values[season:] - values[:-season]


def scale_of(train: Sequence[Values], season: int) -> Values:
    """What errors are divided by (C,): the mean of |y_t − y_{t−m}| over train; NaN where that says nothing."""
    steps = np.concatenate([seasonal_steps(values, season) for values in train])
    known = ~np.isnan(steps)
    scale = np.where(known, np.abs(steps), 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return np.where(scale > 0, scale, np.nan)


def last_season(values: Values, season: int) -> Values:
    """The last value there was at each place of a season (m, C); NaN where there never was one."""
    found = np.full((season, values.shape[1]), np.nan)
    for back in range(-(-len(values) // season)):  # seasons back, the latest first
        part = values[max(0, len(values) - (back + 1) * season) : len(values) - back * season]
        rows = found[season - len(part) :]
        rows[np.isnan(rows)] = part[np.isnan(rows)]
    return found


def naive_forecast(history: Sequence[Values], horizon: int, season: int, deviation: Values) -> Forecast:
    """Of each series what was there a season ago; `deviation` (C,) is that of y_t − y_{t−m} in train."""
    ahead = np.arange(horizon)
    mean = np.stack([last_season(values, season)[ahead % season] for values in history])  # (B, horizon, C)
    spread = deviation * np.sqrt(ahead // season + 1)[:, None]
    return Forecast.normal(torch.from_numpy(mean), torch.from_numpy(np.broadcast_to(spread, mean.shape).copy()))


def crps(points: Values, truth: Values) -> Values:
    """Of equally likely points (…, S, h, C) and truths (…, h, C): the same shape as these.

    With the points sorted, E|Y − Y'| = 2/S² Σ_s (2s − S − 1) y_(s), s from 1.
    """
    count = points.shape[-3]
    near = np.abs(points - np.expand_dims(truth, -3)).mean(axis=-3)
    weights = (2 * np.arange(1, count + 1) - count - 1).reshape(-1, 1, 1)
    apart = 2 * (weights * np.sort(points, axis=-3)).sum(axis=-3) / count**2
    result: Values = near - apart / 2
    return result


@dataclass(frozen=True)
class Errors:
    """Of forecasts (N, h, C) beside truths, NaN where there is no truth: each by series, step ahead and variable."""

    absolute: Values
    relative: Values  # percent
    crps: Values
    inside: dict[float, Values]  # by interval: 1, 0 or NaN

    @classmethod
    def of(cls, found: Forecast, truth: Values) -> "Errors":
        said = found.quantile(0.5).numpy()
        size = np.abs(truth) + np.abs(said)
        absolute = np.abs(truth - said)
        relative = 200 * np.divide(absolute, size, out=np.zeros_like(absolute), where=size > 0)
        unknown = np.isnan(absolute)  # there is no truth, or, of a naive forecast, nothing was said
        inside = {}
        for share in INTERVALS:
            low, high = (end.numpy() for end in found.interval(share))
            inside[share] = np.where(unknown, np.nan, (low <= truth) & (truth <= high))
        return cls(absolute, np.where(unknown, np.nan, relative), crps(found.points.numpy(), truth), inside)

    def metrics(self, scale: Values, prefix: str = "") -> dict[str, float]:
        """Means over all that is known; `scale` (C,) is what makes variables comparable."""
        found = {
            "mase": mean_of(self.absolute / scale),
            "smape": mean_of(self.relative),
            "crps": mean_of(self.crps / scale),
        }
        found |= {f"coverage_{share:.0%}".rstrip("%"): mean_of(inside) for share, inside in self.inside.items()}
        return {f"{prefix}{name}": value for name, value in found.items()}

    def of_variable(self, variable: int, scale: Values) -> float:
        """MASE of one variable."""
        return mean_of(self.absolute[:, :, variable] / scale[variable])

    def by_step(self, scale: Values) -> Values:
        """MASE of each step ahead (h,)."""
        scaled = self.absolute / scale
        return np.array([mean_of(scaled[:, step]) for step in range(scaled.shape[1])])


def mean_of(values: Values) -> float:
    """The mean of what is not NaN; NaN where nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
