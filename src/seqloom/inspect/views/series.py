"""Series as models see them: the parts of a structural model, a forecast, a track, each with how sure it is.

The state of a linear dynamical system with a name has parts that mean something: level, slope and
season. Smoothing says what each was at every step, given all that was observed: nothing is fitted
but the noises.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from seqloom.classical.kalman.structures import PARTS
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean
from seqloom.data.series import Series, Times, Values, labels_of
from seqloom.decoding.forecast import INTERVALS, Forecast
from seqloom.inspect.capture import TrainedModel
from seqloom.inspect.values import Array
from seqloom.tasks.track import CONFIDENCE, measure_tracks


@dataclass(frozen=True)
class Components:
    """Of one variable (T,): what was observed, NaN where nothing was, and each part with its deviation."""

    series: str
    variable: str
    times: Times  # (T,) datetime64, or numbers
    observed: Array
    parts: dict[str, tuple[Array, Array]]  # mean and deviation of each, by its name
    logarithmic: bool
    noise: float  # deviation of the observations' noise


def components(trained: TrainedModel, split: str = "test", variable: str | None = None) -> Components:
    """The parts of the first series of a split, with all that came before it."""
    model, recipe, task = trained.model, trained.run.recipe, trained.task()
    if recipe.get("task") != "forecast" or recipe["model"].get("kind") != "kalman":
        raise UsageError(
            f"{trained.name} is no model with a level, a slope or a season. "
            "Train one that has them: seqloom train series-forecast model.kind=kalman."
        )
    if model.structure not in PARTS:
        raise UsageError(
            f"The state of {trained.name} is free: its parts have no names. Train one with model.structure=trend, say."
        )
    series = task.corpus.split(split)[0]
    if variable is not None and variable not in series.columns:
        raise UsageError(f"The series has no variable {variable!r}: {did_you_mean(variable, series.columns)}.")
    place = 0 if variable is None else series.columns.index(variable)
    values, mask = task.model_inputs(split)[0]
    smoothed = model.smooth(values[None], mask[None])
    deviations = smoothed.factors.square().sum(dim=3).sqrt()  # (1, T, H)
    size, names = model.hidden // model.variables, PARTS[model.structure]
    states, spread = (part[0, :, place * size : (place + 1) * size].numpy() for part in (smoothed.means, deviations))
    parts = {name: (states[:, number], spread[:, number]) for number, name in enumerate(names)}
    level, deviation = parts[names[0]]
    parts[names[0]] = level + float(model.system.offset[place]), deviation  # a damped level is what lies above its mean
    observed = np.where(mask[:, place].numpy(), values[:, place].numpy(), np.nan)
    return Components(
        series.name,
        series.columns[place],
        series.times,
        observed,
        parts,
        (recipe.get("forecast") or {}).get("transform") == "log",
        float(model.system.observation[place].square().sum().sqrt()),
    )


@dataclass(frozen=True)
class ForecastView:
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
    def of(cls, series: Series, found: Forecast) -> "ForecastView":
        """From a forecast of one series."""
        bounds = {share: found.interval(share) for share in INTERVALS}
        return cls(
            series=series,
            times=series.future(found.horizon),
            mean=found.mean[0].numpy(),
            median=found.quantile(0.5)[0].numpy(),
            deviation=found.deviation[0].numpy(),
            intervals={share: (low[0].numpy(), high[0].numpy()) for share, (low, high) in bounds.items()},
            exact=found.exact,
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
        values = {"mean": self.mean, "median": self.median, "deviation": self.deviation}
        for share, (low, high) in self.intervals.items():
            values |= {f"low_{share * 100:.0f}": low, f"high_{share * 100:.0f}": high}
        values |= {} if self.truth is None else {"truth": self.truth}
        return [
            {"time": time, **{name: float(own[step, column]) for name, own in values.items()}}
            for step, time in enumerate(self.labels)
        ]

    def coverage(self, share: float) -> float:
        """The share of known truths that lie in an interval; NaN where none is known."""
        if self.truth is None:
            return float("nan")
        low, high = self.intervals[share]
        known = ~np.isnan(self.truth)
        return float(((low <= self.truth) & (self.truth <= high))[known].mean()) if known.any() else float("nan")


@dataclass(frozen=True)
class TrackTrace:
    """Places (T, 2) and covariances (T, 2, 2). NaN where nothing was observed."""

    name: str
    observed: Array
    truth: Array
    filtered: Array
    filtered_covariances: Array
    smoothed: Array
    smoothed_covariances: Array
    metrics: dict[str, float]  # of this track: see seqloom.tasks.track

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Steps of which nothing was observed: the first and the last of each gap."""
        gone = np.isnan(self.observed).all(axis=1)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], gone, [False]]).astype(int)))
        return [(int(first), int(end) - 1) for first, end in zip(edges[::2], edges[1::2], strict=True)]


def track_trace(trained: TrainedModel, split: str = "test", number: int = 1) -> TrackTrace:
    """Track `number` of a split, counted from 1."""
    if trained.run.recipe.get("task") != "track":
        raise UsageError(
            f"{trained.name} follows no track: its task is {trained.run.recipe.get('task')}. "
            "Train one that does: seqloom train kalman-track."
        )
    tracks = trained.task().corpus.split(split)
    if not 1 <= number <= len(tracks):
        raise UsageError(f"--number must be from 1 to {len(tracks)}, the tracks of {split}; got {number}.")
    track, model = tracks[number - 1], trained.model
    values = torch.from_numpy(track.observed)[None]
    filtered, smoothed = model.filter(values), model.smooth(values)
    now, then = (
        [part[0].cpu().numpy() for part in model.emission_moments(found.means, found.factors)]
        for found in (filtered, smoothed)
    )
    return TrackTrace(
        track.name, track.observed, track.truth, now[0], now[1], then[0], then[1], measure_tracks(model, [track])
    )


def ellipse(mean: Array, covariance: Array, points: int = 60) -> Array:
    """The border (points, 2) of what is to hold 95 %: mean + √5.99 · factor · circle."""
    angles = np.linspace(0, 2 * np.pi, points)
    values, vectors = np.linalg.eigh(covariance)
    factor = vectors * np.sqrt(np.maximum(values, 0))
    circle = np.stack([np.cos(angles), np.sin(angles)])
    return mean + (np.sqrt(-2 * np.log(1 - CONFIDENCE)) * factor @ circle).T
