"""Forecasting: a model reads a series and predicts the distribution of its future values.

Neural models are trained by gradient descent to predict the next step. Linear models are estimated by least squares
(ar) or expectation–maximization (kalman). An evaluation makes forecasts from rolling origins, which start at the
beginning of a split and are one horizon apart. The seasonal naive forecast is the baseline.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import torch
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import Ge, PositiveInt
from seqloom.core import Json
from seqloom.core.device import device_of, make_generator
from seqloom.core.errors import DataError
from seqloom.core.protocols import Estimate, Loss
from seqloom.core.tree import Tree
from seqloom.data.batching import SeriesWindows
from seqloom.data.corpora import CorpusConfig
from seqloom.data.series import Series, Values
from seqloom.decoding.forecast import Forecast, forecast
from seqloom.evaluate.forecasts import Errors, naive_error, naive_forecast, seasonal_steps
from seqloom.models import FORECASTERS
from seqloom.tasks.base import ModelSection, SeriesTask, TaskInfo, TaskRecipe, count_parameters
from seqloom.train.config import FitConfig
from seqloom.train.estimate import EstimateConfig

ESTIMATED_KINDS = ("ar", "kalman")  # kinds of models that are not trained by gradient descent
MIN_HORIZON, MAX_HORIZON = 8, 48  # bounds of the default horizon, in steps
MIN_RELATIVE_CHANGE = 1e-5  # in single precision, changes below this fraction of the values are lost
VALIDATION_PATHS = 50  # sample paths per forecast during training


@config
class BatchConfig:
    """Batches of windows of the series, for training by gradient descent."""

    size: PositiveInt = 32  # number of windows per batch


@config
class HorizonConfig:
    """The horizon and method of forecasts."""

    horizon: PositiveInt | None = None  # number of steps to forecast; null: a season, at least 8 and at most 48
    paths: Annotated[int, Ge(2)] = 200  # number of sample paths for models without an exact distribution
    transform: Literal["none", "log"] = "none"  # log: model the logarithms of positive values


def choose_train_config(section: object) -> str:
    """Return the name of the config class for a `train` section, chosen by its keys."""
    if not isinstance(section, Mapping | FitConfig | EstimateConfig):
        return "FitConfig"  # FitConfig reports an error if `train` is not a section
    keys = section if isinstance(section, Mapping) else {field.name for field in fields(section)}
    return "EstimateConfig" if set(keys) <= ESTIMATE_KEYS else "FitConfig"


ESTIMATE_KEYS = {field.name for field in fields(EstimateConfig)}
TrainConfig = Annotated[
    Annotated[FitConfig, pydantic.Tag("FitConfig")] | Annotated[EstimateConfig, pydantic.Tag("EstimateConfig")],
    pydantic.Discriminator(choose_train_config),
]


@config
class Recipe(TaskRecipe):
    task: Literal["forecast"] = "forecast"
    data: CorpusConfig[Series]
    batch: BatchConfig = BatchConfig()
    model: Annotated[ModelSection, FORECASTERS] = FORECASTERS.default("lstm")
    forecast: HorizonConfig = HorizonConfig()
    monitor: Literal["loss", "mase", "crps"] = "crps"  # dev metric that selects the best checkpoint
    train: TrainConfig = EstimateConfig()

    def problems(self) -> Iterator[str]:
        is_estimated = self.model.kind in ESTIMATED_KINDS
        if is_estimated and isinstance(self.train, FitConfig):
            cause = f"model.kind {self.model.kind} is not trained by gradient descent"
            yield f"{cause}: the section train can contain only keep_checkpoints"
        if not is_estimated and not isinstance(self.train, FitConfig):
            yield f"train: model.kind {self.model.kind} is trained by gradient descent: set train.epochs or train.steps"


@dataclass(frozen=True)
class Origin:
    """The origin of a forecast: a series and the position of the first step to forecast."""

    series: Series
    position: int


@dataclass(frozen=True)
class ForecastReport:
    """The results of an evaluation of forecasts."""

    metrics: dict[str, float]
    by_step: list[float]  # MASE for each number of steps ahead
    naive_by_step: list[float]
    by_variable: dict[str, dict[str, float]]
    origins: int
    horizon: int

    def to_dict(self) -> dict[str, Json]:
        """Return the values that a run stores."""
        return {**self.metrics, "horizon": self.horizon, "origins": self.origins}


class Task(SeriesTask[Recipe, Any]):
    validates_part = True

    def __init__(self, recipe: Recipe, corpus: Any, tokenizer: None = None, names: Sequence[str] = ()):
        super().__init__(recipe, corpus, tokenizer, names)
        self.horizon = horizon_of(recipe, self.season)
        self.check_series()

    @classmethod
    def complete(cls, mapping: Mapping[str, Json]) -> dict[str, Json]:
        """Remove the keys for training by gradient descent if the model is estimated."""
        model, train = mapping.get("model"), mapping.get("train")
        if not isinstance(model, Mapping) or model.get("kind") not in ESTIMATED_KINDS or not isinstance(train, Mapping):
            return dict(mapping)
        known = {field.name for field in fields(FitConfig)}
        remaining = {key: value for key, value in train.items() if key in ESTIMATE_KEYS or key not in known}
        return {**mapping, "train": remaining}

    @property
    def loss_remark(self) -> str:
        return "of logarithms" if self.uses_logarithms else ""

    def check_model(self) -> None:
        if self.trains_by_gradient:
            self.windows  # noqa: B018 (raises an error if the series are too short)

    @property
    def uses_logarithms(self) -> bool:
        """Whether the logarithms of values are modelled."""
        return self.recipe.forecast.transform == "log"

    @property
    def trains_by_gradient(self) -> bool:
        """Whether the model is trained by gradient descent."""
        return isinstance(self.recipe.train, FitConfig)

    def check_series(self) -> None:
        """Reject series that are too short or not positive."""
        season, shortest = self.season, min(map(len, self.corpus.split("train")))
        if season >= shortest:
            raise DataError(
                f"A season of {season} steps must be shorter than the training part, which has {shortest} steps. "
                "Set data.season (1 for none), or use more data."
            )
        if self.horizon > shortest:
            raise DataError(
                f"A horizon of {self.horizon:,} steps must not be longer than the training part, which has "
                f"{shortest:,} steps. Lower forecast.horizon, or use more data."
            )
        if self.uses_logarithms:
            for series in list(self.corpus.splits.values())[-1]:  # the last split contains all values
                check_positive(series)

    def sizes(self) -> dict[str, int]:
        return {"variables": len(self.columns), "season": self.season}

    def model(self) -> Any:
        model = super().model()
        if self.trains_by_gradient:
            model.set_scale(self.model_inputs("train"))
        return model

    def warnings(self) -> list[str]:
        notes = super().warnings()
        for split in ("dev", "test"):
            steps = min((series.new_steps for series in self.corpus.splits.get(split, ())), default=self.horizon)
            if steps < self.horizon:
                notes.append(
                    f"{split} has {steps} steps, fewer than the horizon of {self.horizon}, so only {steps} are "
                    "evaluated. "
                    f"Lower forecast.horizon to {steps}, or raise data.{split}_fraction."
                )
        for column in np.array(self.columns)[np.isnan(self.error_scale)]:
            notes.append(f"{column} is the same in every season of train, so MASE and CRPS are undefined.")
        size = np.max([np.nanmax(np.abs(series.values), axis=0) for series in self.corpus.split("train")], axis=0)
        is_flat = (self.error_scale < MIN_RELATIVE_CHANGE * size) & self.trains_by_gradient
        for column in np.array(self.columns)[is_flat]:
            notes.append(
                f"{column} changes by less than {MIN_RELATIVE_CHANGE:g} of its magnitude, which is lost in the "
                "single precision of networks. Subtract a constant from it, or use model.kind=ar or kalman (double "
                "precision)."
            )
        return notes

    # --- data -------------------------------------------------------------------------------------------------------

    def model_inputs(self, split: str) -> list[tuple[Tensor, Tensor]]:
        """Return the values (float64) and masks (T, C) of each series as models read them."""
        return [model_input(series, self.recipe.forecast.transform) for series in self.corpus.split(split)]

    @cached_property
    def windows(self) -> SeriesWindows:
        window = self.recipe.model.build(**self.sizes()).window
        return SeriesWindows(self.model_inputs("train"), window, self.recipe.batch.size)

    def steps_per_epoch(self) -> int:
        return self.windows.steps_per_epoch

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        return self.windows.batch(seed, step, rank, world)

    @cached_property
    def error_scale(self) -> Values:
        """The scale of the errors (C,): the mean absolute error of the seasonal naive forecast on train."""
        return naive_error([series.values for series in self.corpus.split("train")], self.season)

    @cached_property
    def naive_deviation(self) -> Values:
        """The root mean square of y_t − y_{t−m} on train (C,)."""
        steps = [seasonal_steps(series.values, self.season) for series in self.corpus.split("train")]
        return np.sqrt(np.nanmean(np.concatenate(steps) ** 2, axis=0))

    # --- training ---------------------------------------------------------------------------------------------------

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        """Return the loss of independent windows and no carried state."""
        value, count = model.loss(batch["values"], batch["mask"])
        return Loss(value, None, batch["values"].numel(), count)

    def scale(self) -> tuple[int, str]:
        return count_parameters(self.model().state_dict())

    def estimates(self, model: Any, step: int) -> Iterator[Estimate]:
        yield from self.recipe.model.estimates(self.model_inputs("train"), self.season, model, step, self.recipe.seed)

    # --- evaluation -------------------------------------------------------------------------------------------------

    def validate(self, model: Any) -> dict[str, float]:
        """Evaluate on dev with fewer sample paths, without the metrics of the naive forecast, which are constant."""
        metrics = self.report(model, "dev", paths=min(VALIDATION_PATHS, self.recipe.forecast.paths)).metrics
        return {name: value for name, value in metrics.items() if not name.startswith("naive_")}

    def origins(self, split: str) -> list[Origin]:
        """Return origins that are one horizon apart. The first is the beginning of a split, or the middle of train."""
        origins = []
        for series in self.corpus.split(split):
            first = series.begins or len(series) // 2
            origins += [Origin(series, position) for position in range(first, len(series), self.horizon)]
        return origins

    def true_values(self, origins: Sequence[Origin]) -> Values:
        """Return the true values after each origin (N, horizon, C), with NaN for unknown values."""
        return np.stack([origin.series.ahead(origin.position, self.horizon) for origin in origins])

    def forecasts(self, model: Any, origins: Sequence[Origin], paths: int | None = None, seed: int = 0) -> Forecast:
        """Forecast from each origin, in batches of origins with equally long histories."""
        transform = self.recipe.forecast.transform
        histories = [model_input(origin.series.until(origin.position), transform) for origin in origins]
        memory = model.memory or max(len(values) for values, _ in histories)
        groups: dict[int, list[int]] = {}
        for number, (values, _) in enumerate(histories):
            groups.setdefault(min(memory, len(values)), []).append(number)
        draws, device = make_generator(seed, "forecast"), device_of(model)
        parts: list[Forecast] = []
        for length, numbers in groups.items():
            values, mask = (torch.stack([histories[n][part][-length:] for n in numbers]) for part in (0, 1))
            part = forecast(
                model,
                values.to(device) if device.type != "mps" else values.float().to(device),
                mask.to(device),
                self.horizon,
                paths=paths or self.recipe.forecast.paths,
                generator=draws,
            )
            parts.append(part)
        order = torch.tensor([n for numbers in groups.values() for n in numbers]).argsort()
        forecasts = concatenate_forecasts(parts, order)
        return forecasts.exponential() if self.uses_logarithms else forecasts

    def report(self, model: Any, split: str, paths: int | None = None) -> ForecastReport:
        """Compute all metrics of a split, for the model and the seasonal naive forecast."""
        origins = self.origins(split)
        truth = self.true_values(origins)
        errors = Errors.of(self.forecasts(model, origins, paths), truth)
        history = [origin.series.values[: origin.position] for origin in origins]
        naive = Errors.of(naive_forecast(history, self.horizon, self.season, self.naive_deviation), truth)
        metrics = {"loss": self.one_step_loss(model, split), **errors.metrics(self.error_scale)}
        metrics |= naive.metrics(self.error_scale, "naive_")
        both = {"mase": errors, "naive_mase": naive}
        return ForecastReport(
            metrics=metrics,
            by_step=errors.by_step(self.error_scale).tolist(),
            naive_by_step=naive.by_step(self.error_scale).tolist(),
            by_variable={
                column: {name: each.of_variable(c, self.error_scale) for name, each in both.items()}
                for c, column in enumerate(self.columns)
            },
            origins=len(origins),
            horizon=self.horizon,
        )

    @torch.no_grad()
    def one_step_loss(self, model: Any, split: str) -> float:
        """Return −log p of each value of a split given all previous values, in nats per value.

        Steps with filled values (data.fill) are excluded, because the density is joint over all values of a step.
        """
        total, count, device = 0.0, 0, device_of(model)
        for series, (values, mask) in zip(self.corpus.split(split), self.model_inputs(split), strict=True):
            begins = series.begins or len(series) // 2
            first = max(0, begins - (model.memory or begins))
            inputs = values[first:].unsqueeze(0)
            inputs = inputs.float() if device.type == "mps" else inputs
            scores = model.score(inputs.to(device), mask[first:].unsqueeze(0).to(device))
            real = torch.from_numpy(series.mask[begins:])
            counted = (real == mask[begins:]).all(dim=1)
            observed = real & counted.unsqueeze(1)
            total -= float(scores[0, begins - first :].double().cpu()[counted].sum())
            if self.uses_logarithms:
                total += float(values[begins:][observed].sum())  # log p(y) = log p(log y) − log y
            count += int(observed.sum())
        return total / count if count else float("nan")


def model_input(series: Series, transform: str) -> tuple[Tensor, Tensor]:
    """Return the values and mask (T, C) of a series as a model reads them."""
    if transform == "log":
        series = replace(series, values=np.log(series.values))
    values, mask = series.visible()
    return torch.from_numpy(values), torch.from_numpy(mask)


def check_positive(series: Series) -> None:
    """Raise `DataError` if a value has no logarithm."""
    for column, values in zip(series.columns, series.values.T, strict=True):
        if (values <= 0).any():
            where = series.time_labels()[int(np.flatnonzero(values <= 0)[0])]
            raise DataError(
                f"forecast.transform=log needs values above 0, but {column} of {series.name} has "
                f"{values[values <= 0][0]:g} at {where}. Set forecast.transform=none."
            )


def horizon_of(recipe: Recipe, season: int) -> int:
    """Return the horizon of a recipe. The default is one season, but at least 8 and at most 48 steps."""
    return recipe.forecast.horizon or min(max(season, MIN_HORIZON), MAX_HORIZON)


def concatenate_forecasts(parts: Sequence[Forecast], order: Tensor) -> Forecast:
    """Concatenate forecasts and reorder their rows."""

    def rows(tensors: Iterable[Tensor]) -> Tensor:
        return torch.cat(list(tensors))[order]

    gaussians = [part.gaussian for part in parts if part.gaussian is not None]
    return replace(
        parts[0],
        points=rows(part.points for part in parts),
        mean=rows(part.mean for part in parts),
        deviation=rows(part.deviation for part in parts),
        gaussian=(rows(mean for mean, _ in gaussians), rows(d for _, d in gaussians)) if gaussians else None,
    )


INFO = TaskInfo(
    name="forecast",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.forecast:ForecasterPredictor",
    command="forecast {run}",
    pipeline_tag="time-series-forecasting",
    metric="crps",
    loss_per="value",
    examples="series",
)
