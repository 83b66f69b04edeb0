"""The predictor for forecasting models."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console, RenderableType

from seqloom.classical.autoregressive import Autoregressive
from seqloom.core.device import make_generator
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import format_count, format_value
from seqloom.data.corpora.series_file import Config as SeriesFileConfig
from seqloom.data.corpus import Corpus
from seqloom.data.labelled import halve_series
from seqloom.data.series import Series
from seqloom.data.series_files import read_series
from seqloom.data.table_profile import NamedColumns
from seqloom.data.tables import Column, column_names
from seqloom.decoding.forecast import forecast
from seqloom.inspect.views.series import ForecastView
from seqloom.predict.base import Prediction, Predictor, as_lines
from seqloom.predict.classify import read_numbers
from seqloom.predict.evaluation import Evaluation
from seqloom.predict.results import returns_list
from seqloom.tasks.forecast import ForecastReport, check_positive, horizon_of, model_input

METRICS = {
    "mase": "MASE",
    "smape": "sMAPE, %",
    "crps": "CRPS, in the unit of MASE",
    "coverage_80": "in the 80 % interval",
    "coverage_95": "in the 95 % interval",
}
LISTED_STEPS = 12  # maximum number of steps of the horizon in the output


@dataclass(frozen=True)
class ForecastLine(Prediction):
    """The forecast of the series in a line, or None for a blank line."""

    text: str
    forecast: ForecastView | None

    def to_line(self) -> str:
        """Return tab-separated means: all steps of the first variable, then those of the second, and so on."""
        values = () if self.forecast is None else self.forecast.mean.T.flatten()
        return "\t".join(f"{value:.6g}" for value in values)

    def to_json(self) -> dict[str, object]:
        if self.forecast is None:
            return {"text": self.text, "forecast": {}, "exact": None}
        rows = {name: self.forecast.rows(index) for index, name in enumerate(self.forecast.columns)}
        return {"text": self.text, "forecast": rows, "exact": self.forecast.exact}

    def to_columns(self) -> dict[str, object]:
        """Return the means of each variable, one column per step: forecast_1, forecast_2, …"""
        if self.forecast is None:
            return {}
        names = self.forecast.columns
        heads = ["forecast" if len(names) == 1 else f"forecast_{name}" for name in names]
        values = zip(heads, self.forecast.mean.T.tolist(), strict=True)
        return {f"{head}_{step}": mean for head, means in values for step, mean in enumerate(means, start=1)}


class ForecastEvaluation(Evaluation):
    """The metrics of forecasts, compared with the seasonal naive forecast."""

    report: ForecastReport

    def to_json(self) -> dict[str, object]:
        report = self.report
        steps = {"by_step": report.by_step, "naive_by_step": report.naive_by_step, "by_variable": report.by_variable}
        return {"run": self.model.name, "data": self.data, **report.to_dict(), **steps}

    def lines(self, console: Console) -> Iterator[RenderableType]:
        def row(label: object, *values: float) -> str:
            return f"  {label!s:28}" + "".join(f"{value:>10.4f}" for value in values)

        report, metrics, season = self.report, self.report.metrics, self.model.season
        origins = format_count(report.origins, "origin")
        yield f"{self.model.name} on {self.data}: {report.horizon} steps ahead, from {origins}"
        yield f"  {'':28}{'model':>10}{'naive':>10}"
        for name, label in METRICS.items():
            yield row(label, metrics[name], metrics[f"naive_{name}"])
        yield row("loss, nats of the next value", metrics["loss"])
        yield "\nMASE by steps ahead"
        every = max(1, -(-len(report.by_step) // LISTED_STEPS))  # a long horizon is listed in intervals
        for step in range(every - 1, len(report.by_step), every):
            yield row(step + 1, report.by_step[step], report.naive_by_step[step])
        if len(report.by_variable) > 1:
            yield "\nMASE of each variable"
            for column, values in report.by_variable.items():
                yield row(column[:26], values["mase"], values["naive_mase"])
        period = "one step" if season == 1 else f"one season ({season} steps)"
        yield f"\nnaive: the value {period} earlier"


class ForecasterPredictor(Predictor[ForecastLine]):
    """A trained forecasting model."""

    description = "a forecaster"
    usage = "use `seqloom forecast`"
    inputs = ("values",)
    evaluation_class = ForecastEvaluation
    reads_text = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The variables of the training series."""
        return tuple(self.run.data["columns"])

    @property
    def season(self) -> int:
        return self.run.sizes["season"]

    @property
    def horizon(self) -> int:
        """The default number of steps."""
        return horizon_of(self.recipe, self.season)

    @returns_list
    def predict(self, lines: str | Iterable[str], *, batch_size: int = 1, window: int = 1) -> Iterator[ForecastLine]:
        """Forecast one series per line.

        A line lists all values of the first variable, then those of the second, and so on.
        """
        for number, line in enumerate(as_lines(lines), start=1):
            yield ForecastLine(line, self._forecast_line(line, number) if line.strip() else None)

    def _forecast_line(self, line: str, number: int) -> ForecastView:
        values, variables = read_numbers(line, number), len(self.columns)
        if len(values) % variables:
            raise DataError(f"Line {number:,} must have values of {variables} variables; got {len(values)} numbers.")
        rows, name = np.array(values).reshape(variables, -1).T, f"line {number:,}"
        times = np.arange(1.0, len(rows) + 1)
        return self.forecast(Series(rows, times, self.columns, self.season, name, fill=self.recipe.data.fill))

    def series(self) -> Series:
        """Return the run's complete series, including dev and test."""
        last: Series = self.training_task.corpus.split(list(self.run.data["counts"])[-1])[0]
        return last.until(len(last))

    def read_examples(self, path: Path, data: Mapping[str, object] | None, columns: NamedColumns | None) -> Corpus[Any]:
        """Read a series with the variables of the model. The second half of the series is the split "other"."""
        if columns:
            raise UsageError(f"--column and --label do not apply to {self.name}: it reads {', '.join(self.columns)}.")
        series, notes = self._read(path, None, None)
        return halve_series(Corpus(str(path), "", {"train": [series]}, notes=tuple(notes)))

    def read(self, path: str | Path, time: Column | None = None, time_format: str | None = None) -> Series:
        """Read a series from a file with the columns of the model. A single column may have a different name."""
        return self._read(Path(path), time, time_format)[0]

    def _read(self, path: Path, time: Column | None, time_format: str | None) -> tuple[Series, list[str]]:
        if not path.exists():
            raise DataError(f"{path} does not exist. Name a file with a column of times and columns of values.")
        data: Any = self.recipe.data
        columns: tuple[str, ...] | None = self.columns
        names = column_names(path)
        if len(self.columns) == 1 and self.columns[0] not in names:
            columns = None
        elif missing := [column for column in self.columns if column not in names]:
            raise DataError(
                f"{path} must have the columns of the model, {', '.join(self.columns)}. It has "
                f"{format_value(names, 200)}, but lacks {', '.join(missing)}."
            )
        series, notes = read_series(
            path,
            time=data.time if time is None and isinstance(data, SeriesFileConfig) else time,
            columns=columns,
            time_format=time_format or (data.time_format if isinstance(data, SeriesFileConfig) else None),
            season=self.season,
            gaps=data.gaps,
            fill=data.fill,
        )
        if len(series.columns) != len(self.columns):
            raise DataError(
                f"{path} must have the column {self.columns[0]!r} of the model, or a single column of numbers; it "
                f"has {', '.join(series.columns)}."
            )
        if columns is None:
            notes.append(f"{series.columns[0]} is used as {self.columns[0]}, the variable of the model")
        return series, notes

    def forecast(
        self,
        series: Series | str | Path | None = None,
        horizon: int | None = None,
        *,
        back: int = 0,
        paths: int | None = None,
        seed: int = 0,
        time: Column | None = None,
        time_format: str | None = None,
    ) -> ForecastView:
        """Forecast a series, which is given directly or as a file. The default is the series of the run.

        With `back`, the last `back` steps are withheld from the model and returned as observed values.
        """
        notes: list[str] = []
        if series is None:
            series = self.series()
        elif not isinstance(series, Series):
            series, notes = self._read(Path(series), time, time_format)
        if not 0 <= back < len(series):
            raise UsageError(f"back must be less than the {len(series)} steps of {series.name}; got {back}.")
        horizon = horizon or back or self.horizon
        history = series.until(len(series) - back)
        notes += self._check(history, horizon)
        result = self._forecast(history, horizon, paths, seed)
        truth = series.ahead(len(history), horizon) if back else None
        kind = self.run.recipe["model"]["kind"]
        return replace(result, model=f"{self.run.path.name} ({kind})", truth=truth, notes=tuple(notes))

    def _forecast(self, history: Series, horizon: int, paths: int | None, seed: int) -> ForecastView:
        transform, device = self.recipe.forecast.transform, self.device
        values, mask = (part.unsqueeze(0) for part in model_input(history, transform))
        values = (values.float() if device.type == "mps" else values).to(device)
        count = self.recipe.forecast.paths if paths is None else paths
        result = forecast(
            self.model, values, mask.to(device), horizon, paths=count, generator=make_generator(seed, "paths")
        )
        if not all(bool(torch.isfinite(part).all()) for part in (result.mean, result.points)):
            raise UsageError(
                f"The forecast of {self.name} is not finite over {horizon} steps. Forecast fewer steps, or "
                "train the model with model.difference=season or a larger model.ridge."
            )
        return ForecastView.of(history, result.exponential() if transform == "log" else result)

    def _check(self, history: Series, horizon: int) -> list[str]:
        """Check a series and a horizon, and return notes for the user."""
        if len(history.columns) != len(self.columns):
            raise UsageError(f"{self.name} has {len(self.columns)} variables; the series has {len(history.columns)}.")
        if horizon > len(history):
            raise UsageError(
                f"The horizon must be at most the length of the series, {len(history)} steps; got {horizon}. "
                "Shorten the horizon, or use a longer series."
            )
        if self.recipe.forecast.transform == "log":
            check_positive(history)
        notes, step = [], self.run.data.get("step")
        if step is not None and history.clock.describe() != step:
            steps = history.clock.describe()
            notes.append(f"the model was trained on steps of {step}, but the steps of {history.name} are {steps}")
        model = self.model  # an autoregressive model may read more steps than it requires
        reads = model.order if isinstance(model, Autoregressive) else model.memory or 0
        if len(history) < reads:
            notes.append(f"the model reads {reads} steps, but {history.name} has only {len(history)}")
        missing = int(np.isnan(history.values[-1]).sum())
        if missing:
            notes.append(f"in the last step of {history.name}, {missing} of {len(history.columns)} values are missing")
        return notes
