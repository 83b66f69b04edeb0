"""Estimators of numbers: forecasts of a series, and the classification of series."""

import csv
import io
from collections.abc import Hashable, Iterable, Mapping, Set
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from seqloom.core.inputs import check_lengths, check_list
from seqloom.data.corpus import Corpus
from seqloom.data.series import Series, arrange_series
from seqloom.estimators.base import Estimator, Examples, value_errors
from seqloom.estimators.labels import LabelEstimator, check_labels
from seqloom.inspect.views.series import ForecastView
from seqloom.predict.results import Metrics

Numbers = NDArray[np.float64]


def check_numbers(values: Any, name: str, dimensions: tuple[int, ...] = (1, 2)) -> Numbers:
    """Return numbers as an array (T,) or (T, C); missing values are NaN."""
    if isinstance(values, str | bytes | Mapping | Set) or np.isscalar(values) or values is None:
        raise TypeError(f"{name} must be an array of numbers; got {type(values).__name__}")
    try:
        items = values if hasattr(values, "shape") else list(values)
        array = np.array(items.tolist() if hasattr(items, "tolist") else items, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be an array of numbers, with NaN for missing values") from None
    if array.ndim not in dimensions or array.size == 0:
        expected = " or ".join({1: "(T,)", 2: "(T, C)"}[n] for n in dimensions)
        raise ValueError(f"{name} must have the shape {expected}; got {array.shape}")
    if np.isinf(array).any():
        raise ValueError(f"{name} must be finite numbers or NaN; got infinity")
    if np.isnan(array).all():
        raise ValueError(f"{name} must have at least one number; got only missing values")
    return array


def check_times(times: Any, count: int) -> Any:
    """Return times as an array (T,) of numbers, or of datetime64 in seconds."""
    items = check_list(times, "times", "times")
    if len(items) != count:
        raise ValueError(f"values ({count}) and times ({len(items)}) differ in length")
    if all(isinstance(item, int | float) and not isinstance(item, bool) for item in items):
        if hasattr(times, "dtype") and np.asarray(times).dtype.kind == "M":  # nanoseconds are listed as integers
            return np.asarray(times).astype("datetime64[s]")
        return np.array(items, dtype=np.float64)
    moments = []
    for index, item in enumerate(items):
        if isinstance(item, datetime) and item.tzinfo is not None:
            item = item.astimezone(UTC).replace(tzinfo=None)
        try:
            moments.append(np.datetime64(str(item).strip().replace("/", "-"), "s"))
        except ValueError:
            raise ValueError(f"times[{index}] must be a date such as 2024-03-01, or a number; got {item!r}") from None
    array = np.array(moments)
    if np.isnat(array).any():
        raise ValueError(f"times[{int(np.isnat(array).argmax())}] must be a date; got a missing value")
    return array


def times_of(values: Any, times: Any, count: int) -> Any:
    """Return the given times, or the times in the index of a pandas column or table; otherwise None."""
    if times is None and type(getattr(values, "index", None)).__name__ in ("DatetimeIndex", "PeriodIndex"):
        times = list(values.index)
    return None if times is None else check_times(times, count)


class Forecaster(Estimator):
    """A model that forecasts a series of one or several variables."""

    tasks: ClassVar = ("forecast",)
    _history: Series | None = None

    def fit(self, values: Any, times: Any = None, *, season: int | None = None, validation: float = 0.15) -> Self:
        """Train on a series (T,) or (T, C): numbers, with NaN for missing values.

        `times` are dates or numbers. The default is the index of a pandas object if the index contains dates, and
        otherwise 1, 2, …. `season` is the period in steps; by default, it is derived from the time between two
        steps. The fraction `validation` of the steps, at the end of the series, is held out.
        """
        array = check_numbers(values, "values")
        moments = times_of(values, times, len(array))
        moments = np.arange(1.0, len(array) + 1) if moments is None else moments
        named = getattr(values, "columns", None) if array.ndim == 2 else None
        names = [f"value {n}" for n in range(1, array[0].size + 1)] if named is None else list(map(str, named))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["time", *names])
        for moment, row in zip(moments.tolist(), array.reshape(len(array), -1).tolist(), strict=True):
            writer.writerow([moment, *("" if np.isnan(value) else repr(value) for value in row)])
        data = {"corpus": "series-file", **({} if season is None else {"season": season})}
        return self._train(Examples(data, ".csv", text.getvalue(), len(array), path_key="file"), validation)

    def _train_on(self, *arguments: Any) -> Self:
        super()._train_on(*arguments)
        series = self._history = self.predictor.series()
        self._store({"series": [[str(moment) for moment in series.times.tolist()], series.values.tolist()]})
        return self

    @property
    def history(self) -> Series:
        """The series on which the model was trained."""
        if self._history is None:
            stored = self._stored("series", lambda content: content["series"])
            self._history = self.predictor.series() if stored is None else self._series(np.array(stored[1]), stored[0])
        return self._history

    def _series(self, array: Numbers, times: Any) -> Series:
        """Return a series with the variables, the season and the options of the training data."""
        columns, data = self.predictor.columns, self.predictor.recipe.data
        if array[0].size != len(columns):
            raise ValueError(f"values must have {len(columns)} variables, as in training; got {array[0].size}")
        moments = np.arange(1.0, len(array) + 1) if times is None else times
        if isinstance(moments, list):  # the times are stored in the run
            is_number = not any(":" in moment for moment in moments)
            moments = np.array(moments, dtype=np.float64 if is_number else "datetime64[s]")
        options = {"season": self.predictor.season, "gaps": data.gaps, "fill": data.fill}
        with value_errors():
            return arrange_series(array.reshape(len(array), -1), moments, columns, name="the series", **options)[0]

    def forecast(
        self, horizon: int | None = None, values: Any = None, times: Any = None, **options: Any
    ) -> ForecastView:
        """Forecast the mean, the median and intervals of the next steps of the training series, or of other values.

        A notebook displays the result as a picture. `options` are passed to the predictor, such as paths and seed.
        """
        if horizon is not None and (isinstance(horizon, bool) or not isinstance(horizon, int) or horizon < 1):
            raise ValueError(f"horizon must be a whole number of at least 1; got {horizon!r}")
        series = self.history
        if values is not None:
            array = check_numbers(values, "values")
            series = self._series(array, times_of(values, times, len(array)))
        with value_errors():
            view: ForecastView = self.predictor.forecast(series, horizon, **options)
        return view

    def predict(self, horizon: int | None = None, values: Any = None, times: Any = None, **options: Any) -> Numbers:
        """Return the mean of the forecast: (horizon,) for one variable, (horizon, C) for several."""
        mean: Numbers = self.forecast(horizon, values, times, **options).mean
        return mean[:, 0] if mean.shape[1] == 1 else mean

    def evaluate(self, values: Any, times: Any = None) -> Metrics:
        """Forecast values that follow the training series, and return the metrics of the forecasts."""
        array, history, predictor = check_numbers(values, "values"), self.history, self.predictor
        moments = times_of(values, times, len(array))
        if moments is None:
            moments = history.clock.after(history.times, len(array))
        new = array.reshape(len(array), -1)
        if new.shape[1] != len(history.columns):
            raise ValueError(f"values must have {len(history.columns)} variables, as in training; got {new.shape[1]}")
        both = self._series(np.concatenate([history.values, new]), np.concatenate([history.times, moments]))
        series = replace(both, begins=len(history))
        corpus = Corpus("other", "values after the training series", {"train": [history], "other": [series]})
        task = predictor.task_class.of_corpus(predictor.recipe, predictor.run, corpus)
        with value_errors():
            return Metrics(task.report(predictor.model, "other").metrics)


class SeriesClassifier(LabelEstimator):
    """A classifier of series. It works with `clone`, pipelines and `cross_val_score` of scikit-learn."""

    tasks: ClassVar = ("series-classify",)

    def fit(self, series: Any, labels: Iterable[Hashable], *, validation: float = 0.15) -> Self:
        """Train on series and their labels: an array (N, T) or (N, T, C), or a list of arrays (T,) or (T, C)."""
        rows, labels = self._check(series, labels)
        return self._train_labels(lambda names: self._examples(rows, names), labels, validation)

    @staticmethod
    def _check_series(series: Any) -> list[Numbers]:
        """Return series as arrays (T, C) with the same number of variables."""
        if hasattr(series, "columns") and hasattr(series, "to_numpy"):  # `series` is a table with one series per row
            series = series.to_numpy()
        items = list(series) if getattr(series, "ndim", 1) > 1 else check_list(series, "series", "arrays of numbers")
        rows = []
        for index, item in enumerate(items):
            array = check_numbers(item, f"series[{index}]")
            rows.append(array.reshape(len(array), -1))
            if rows[-1].shape[1] != rows[0].shape[1]:
                expected = rows[0].shape[1]
                raise ValueError(f"series[{index}] must have {expected} variables; got {rows[-1].shape[1]}")
        return rows

    @classmethod
    def _check(cls, series: Any, labels: Iterable[Hashable]) -> tuple[list[Numbers], list[Hashable]]:
        rows, labels = cls._check_series(series), check_labels(labels)
        check_lengths(series=rows, labels=labels)
        return rows, labels

    @staticmethod
    def _examples(rows: list[Numbers], names: list[str]) -> Examples:
        longest, variables = max(map(len, rows)), rows[0].shape[1]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["label", *range(longest * variables)])
        for row, name in zip(rows, names, strict=True):
            padded = np.full((longest, variables), np.nan)
            padded[: len(row)] = row
            cells = ("" if np.isnan(value) else repr(value) for value in padded.T.flatten().tolist())
            writer.writerow([name, *cells])
        data = {"corpus": "series-rows", "label": "label", "variables": variables}
        return Examples(data, ".csv", text.getvalue(), len(rows))

    def predict(self, series: Any) -> list[Any]:
        """Return the label of each series."""
        return self._best(self.predict_proba(series))

    def predict_proba(self, series: Any) -> Numbers:
        """Return the probability of each class for each series (N, C)."""
        rows = self._check_series(series)
        with value_errors():
            return self._probabilities([self.predictor.classify(row) for row in rows])

    def score(self, series: Any, labels: Iterable[Hashable]) -> float:
        """Return the accuracy."""
        rows, labels = self._check(series, labels)
        return self._accuracy(self.predict(rows), labels)

    def evaluate(self, series: Any, labels: Iterable[Hashable]) -> Metrics:
        """Return all metrics of `seqloom evaluate`."""
        rows, labels = self._check(series, labels)
        return self._measure_labels(lambda names: self._examples(rows, names), labels)
