"""A forecast as plain values: what came, what is expected, and how sure that is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqloom.data.series import Series, Values
from seqloom.data.times import Times, labels_of
from seqloom.decoding.forecast import INTERVALS, Forecast


@dataclass(frozen=True)
class Forecasted:
    """The steps after the end of a series. All values are (horizon, C), of its columns, in its units."""

    series: Series
    times: Times
    mean: Values
    median: Values
    deviation: Values
    intervals: Mapping[float, tuple[Values, Values]]  # by the share of the future they hold
    exact: bool  # or drawn from paths
    model: str = ""
    truth: Values | None = None  # what came then, where that is known; NaN where it is missing
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, series: Series, found: Forecast, **more: Any) -> "Forecasted":
        """From a forecast of one series."""
        intervals = {
            share: (low[0].numpy(), high[0].numpy())
            for share, (low, high) in ((share, found.interval(share)) for share in INTERVALS)
        }
        return cls(
            series=series,
            times=series.future(found.horizon),
            mean=found.mean[0].numpy(),
            median=found.quantile(0.5)[0].numpy(),
            deviation=found.deviation[0].numpy(),
            intervals=intervals,
            exact=found.exact,
            **more,
        )

    @property
    def horizon(self) -> int:
        return len(self.mean)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.series.columns

    @property
    def labels(self) -> list[str]:
        """The times of the forecast, written as those of the series are."""
        return labels_of(np.concatenate([self.series.times, self.times]))[-self.horizon :]

    def rows(self, column: int) -> list[dict[str, Any]]:
        """One variable, a row for each step: time, mean, median, deviation, both ends of each interval, the truth."""
        found = []
        for step, time in enumerate(self.labels):
            row: dict[str, Any] = {"time": time}
            for name in ("mean", "median", "deviation"):
                row[name] = float(getattr(self, name)[step, column])
            for share, (low, high) in self.intervals.items():
                row |= {f"low_{share * 100:.0f}": float(low[step, column])}
                row |= {f"high_{share * 100:.0f}": float(high[step, column])}
            if self.truth is not None:
                row["truth"] = float(self.truth[step, column])
            found.append(row)
        return found

    def inside(self, share: float) -> float:
        """The share of known truths that lie in an interval; NaN where none is known."""
        if self.truth is None:
            return float("nan")
        low, high = self.intervals[share]
        known = ~np.isnan(self.truth)
        return float(((low <= self.truth) & (self.truth <= high))[known].mean()) if known.any() else float("nan")
