"""Views of time series with uncertainty: the components of a structural model, forecasts and tracks.

The state of a structural model has interpretable components: level, slope and season. Smoothing estimates each
component at every step from all observations; only the noise variances are fitted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from seqloom.classical.kalman.structures import PARTS
from seqloom.core import Json
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean
from seqloom.data.series import Series, Times, Values, labels_of
from seqloom.decoding.forecast import INTERVALS, Forecast
from seqloom.inspect.capture import TrainedModel
from seqloom.inspect.picture import Picture
from seqloom.inspect.values import Array
from seqloom.tasks.track import CONFIDENCE, measure_tracks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Components:
    """The components of one variable (T,): the observations, NaN if missing, and each component with its deviation."""

    series: str
    variable: str
    times: Times  # (T,) datetime64, or numbers
    observed: Array
    parts: dict[str, tuple[Array, Array]]  # mean and standard deviation by name
    logarithmic: bool
    noise: float  # standard deviation of the observation noise


def components(trained: TrainedModel, split: str = "test", variable: str | None = None) -> Components:
    """Estimate the components of the first series of a split from all observations up to the end of the split."""
    model, recipe, task = trained.model, trained.run.recipe, trained.task()
    if recipe.get("task") != "forecast" or recipe["model"].get("kind") != "kalman":
        raise UsageError(
            f"{trained.name} is not a structural model with level, slope or season. Train one: "
            "seqloom train series-forecast model.kind=kalman."
        )
    if model.structure not in PARTS:
        raise UsageError(
            f"The state of {trained.name} has no named components. Train a model that has them, for example "
            "model.structure=trend."
        )
    series = task.corpus.split(split)[0]
    if variable is not None and variable not in series.columns:
        raise UsageError(f"The series has no variable {variable!r}: {did_you_mean(variable, series.columns)}.")
    column = 0 if variable is None else series.columns.index(variable)
    values, mask = task.model_inputs(split)[0]
    smoothed = model.smooth(values[None], mask[None])
    deviations = smoothed.factors.square().sum(dim=3).sqrt()  # (1, T, H)
    size, names = model.hidden // model.variables, PARTS[model.structure]
    states, spread = (part[0, :, column * size : (column + 1) * size].numpy() for part in (smoothed.means, deviations))
    parts = {name: (states[:, number], spread[:, number]) for number, name in enumerate(names)}
    level, deviation = parts[names[0]]
    parts[names[0]] = level + float(model.system.offset[column]), deviation  # a damped level is relative to its mean
    observed = np.where(mask[:, column].numpy(), values[:, column].numpy(), np.nan)
    return Components(
        series.name,
        series.columns[column],
        series.times,
        observed,
        parts,
        (recipe.get("forecast") or {}).get("transform") == "log",
        float(model.system.observation[column].square().sum().sqrt()),
    )


@dataclass(frozen=True)
class ForecastView(Picture):
    """A forecast after the end of a series.

    All values have the shape (horizon, C), with the series' columns and units.
    """

    series: Series
    times: Times
    mean: Values
    median: Values
    deviation: Values
    intervals: Mapping[float, tuple[Values, Values]]  # bounds (low, high) by coverage probability
    exact: bool  # False if the forecast is estimated from sampled paths
    model: str = ""
    truth: Values | None = None  # the actual values if known, with NaN for missing values
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, series: Series, forecast: Forecast) -> "ForecastView":
        """Build the view from a forecast of one series."""
        bounds = {coverage: forecast.interval(coverage) for coverage in INTERVALS}
        return cls(
            series=series,
            times=series.future(forecast.horizon),
            mean=forecast.mean[0].numpy(),
            median=forecast.quantile(0.5)[0].numpy(),
            deviation=forecast.deviation[0].numpy(),
            intervals={coverage: (low[0].numpy(), high[0].numpy()) for coverage, (low, high) in bounds.items()},
            exact=forecast.exact,
        )

    @property
    def horizon(self) -> int:
        return len(self.mean)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.series.columns

    @property
    def labels(self) -> list[str]:
        """The times of the forecast, in the format of the series."""
        return labels_of(np.concatenate([self.series.times, self.times]))[-self.horizon :]

    def rows(self, column: int) -> list[dict[str, Json]]:
        """Return a row for each step of one variable: time, mean, median, deviation, interval bounds and truth."""
        values = {"mean": self.mean, "median": self.median, "deviation": self.deviation}
        for coverage, (low, high) in self.intervals.items():
            values |= {f"low_{coverage * 100:.0f}": low, f"high_{coverage * 100:.0f}": high}
        values |= {} if self.truth is None else {"truth": self.truth}
        return [
            {"time": time, **{name: float(array[step, column]) for name, array in values.items()}}
            for step, time in enumerate(self.labels)
        ]

    def draw(self) -> "Figure":
        from seqloom.inspect.plots.series import draw_forecast

        return draw_forecast(self)

    def coverage(self, probability: float) -> float:
        """Return the fraction of the known actual values that an interval contains, or NaN if no value is known."""
        if self.truth is None:
            return float("nan")
        low, high = self.intervals[probability]
        known = ~np.isnan(self.truth)
        return float(((low <= self.truth) & (self.truth <= high))[known].mean()) if known.any() else float("nan")


@dataclass(frozen=True)
class TrackTrace:
    """Positions (T, 2) and covariances (T, 2, 2) of a track. Missing observations are NaN."""

    name: str
    observed: Array
    truth: Array
    filtered: Array
    filtered_covariances: Array
    smoothed: Array
    smoothed_covariances: Array
    metrics: dict[str, float]  # metrics of this track; see seqloom.tasks.track

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The first and the last step of each gap without observations."""
        is_missing = np.isnan(self.observed).all(axis=1)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], is_missing, [False]]).astype(int)))
        return [(int(first), int(end) - 1) for first, end in zip(edges[::2], edges[1::2], strict=True)]


def track_trace(trained: TrainedModel, split: str = "test", number: int = 1) -> TrackTrace:
    """Filter and smooth track `number` of a split, counted from 1."""
    if trained.run.recipe.get("task") != "track":
        raise UsageError(
            f"{trained.name} has the task {trained.run.recipe.get('task')}, not track. "
            "Train a tracking model: seqloom train kalman-track."
        )
    tracks = trained.task().corpus.split(split)
    if not 1 <= number <= len(tracks):
        raise UsageError(f"--number must be from 1 to {len(tracks)}, the tracks of {split}; got {number}.")
    track, model = tracks[number - 1], trained.model
    values = torch.from_numpy(track.observed)[None]
    filtered, smoothed = (
        [part[0].cpu().numpy() for part in model.emission_moments(states.means, states.factors)]
        for states in (model.filter(values), model.smooth(values))
    )
    return TrackTrace(
        name=track.name,
        observed=track.observed,
        truth=track.truth,
        filtered=filtered[0],
        filtered_covariances=filtered[1],
        smoothed=smoothed[0],
        smoothed_covariances=smoothed[1],
        metrics=measure_tracks(model, [track]),
    )


def ellipse(mean: Array, covariance: Array, points: int = 60) -> Array:
    """Return the border (points, 2) of the 95 % confidence ellipse: mean + √5.99 · factor · circle."""
    angles = np.linspace(0, 2 * np.pi, points)
    values, vectors = np.linalg.eigh(covariance)
    factor = vectors * np.sqrt(np.maximum(values, 0))
    circle = np.stack([np.cos(angles), np.sin(angles)])
    return mean + (np.sqrt(-2 * np.log(1 - CONFIDENCE)) * factor @ circle).T
