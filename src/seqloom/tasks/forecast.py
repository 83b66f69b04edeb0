"""Forecasting: a model reads a series and says what comes next, and how sure it is.

Neural kinds learn the next step by gradient; linear ones (ar, kalman) are estimated: by least
squares, by expectation– maximisation. All are measured alike, by rolling origins: from the
beginning of a split, and again a horizon later, all that came before is read and the horizon
forecast; the seasonal naive forecast is measured beside it.
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
from seqloom.core.device import device_of, generator
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

ESTIMATED = ("ar", "kalman")  # kinds of models that are not trained by gradient
SHORTEST, LONGEST = 8, 48  # steps of a horizon that nobody named
FINEST = 1e-5  # of the size of values: changes below it are lost on a network
WATCHED_PATHS = 50  # drawn while a model trains


@config
class BatchConfig:
    """How windows of the series are put together, where a model learns by gradient."""

    size: PositiveInt = 32  # windows read side by side


@config
class HorizonConfig:
    """How far and how a series is forecast."""

    horizon: PositiveInt | None = None  # steps; null is a season, at least 8 and at most 48
    paths: Annotated[int, Ge(2)] = 200  # drawn, where a model has no exact answer
    transform: Literal["none", "log"] = "none"  # log: the logarithms are modelled, of values above 0


def choose_train_config(section: object) -> str:
    """Return which config a `train` section is: one with the keys of an estimation, or the other."""
    if not isinstance(section, Mapping | FitConfig | EstimateConfig):
        return "FitConfig"  # refused there: it must be a section
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
    monitor: Literal["loss", "mase", "crps"] = "crps"  # which metric of dev selects the best
    train: TrainConfig = EstimateConfig()

    def problems(self) -> Iterator[str]:
        estimated = self.model.kind in ESTIMATED
        if estimated and isinstance(self.train, FitConfig):
            yield f"model.kind {self.model.kind} is estimated, not learnt by gradient: train has only keep"
        if not estimated and not isinstance(self.train, FitConfig):
            yield f"train: model.kind {self.model.kind} learns by gradient: say how long, train.epochs or train.steps"


@dataclass(frozen=True)
class Origin:
    """A place from which the future of a series is forecast: the first step of that future."""

    series: Series
    place: int


@dataclass(frozen=True)
class ForecastReport:
    """Everything an evaluation of forecasts found."""

    metrics: dict[str, float]
    by_step: list[float]  # MASE of each step ahead
    naive_by_step: list[float]
    by_variable: dict[str, dict[str, float]]
    origins: int
    horizon: int

    def to_dict(self) -> dict[str, Any]:
        """Return the values that a run stores."""
        return {**self.metrics, "horizon": self.horizon, "origins": self.origins}


class Task(SeriesTask[Recipe, Any]):
    validates_part = True

    def __init__(self, recipe: Recipe, corpus: Any, tokenizer: None = None, names: Sequence[str] = ()):
        super().__init__(recipe, corpus, tokenizer, names)
        self.horizon = horizon_of(recipe, self.season)
        self.check_series()

    @classmethod
    def complete(cls, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """Leave out what the recipe says of training by gradient where the model is estimated."""
        model, train = mapping.get("model"), mapping.get("train")
        if not isinstance(model, Mapping) or model.get("kind") not in ESTIMATED or not isinstance(train, Mapping):
            return dict(mapping)
        known = {field.name for field in fields(FitConfig)}
        remaining = {key: value for key, value in train.items() if key in ESTIMATE_KEYS or key not in known}
        return {**mapping, "train": remaining}

    @property
    def loss_remark(self) -> str:
        return "of logarithms" if self.logarithmic else ""

    def check_model(self) -> None:
        if self.learns:
            self.windows  # noqa: B018 (what is too short is refused now)

    @property
    def logarithmic(self) -> bool:
        """Whether the logarithms of values are modelled."""
        return self.recipe.forecast.transform == "log"

    @property
    def learns(self) -> bool:
        """By gradient, that is; or else it is estimated."""
        return isinstance(self.recipe.train, FitConfig)

    def check_series(self) -> None:
        """Refuse series that are too short, or not positive."""
        season, shortest = self.season, min(len(one) for one in self.corpus.split("train"))
        if season >= shortest:
            raise DataError(
                f"A season of {season} steps must be shorter than the training part, which has {shortest}. "
                "Set data.season, or 1 for none; or give more data."
            )
        if self.horizon > shortest:
            raise DataError(
                f"A horizon of {self.horizon:,} steps is longer than the training part, which has {shortest:,}: "
                "nothing in it could tell so much. Lower forecast.horizon, or give more data."
            )
        if self.logarithmic:
            for one in list(self.corpus.splits.values())[-1]:  # the last split has all values
                refuse_not_positive(one)

    def sizes(self) -> dict[str, int]:
        return {"variables": len(self.columns), "season": self.season}

    def model(self) -> Any:
        model = super().model()
        if self.learns:
            model.set_scale(self.seen("train"))
        return model

    def warnings(self) -> list[str]:
        notes = super().warnings()
        for split in ("dev", "test"):
            steps = min((one.own for one in self.corpus.splits.get(split, ())), default=self.horizon)
            if steps < self.horizon:
                notes.append(
                    f"{split} has {steps} steps, fewer than the horizon of {self.horizon}: only these are measured. "
                    f"Lower forecast.horizon to {steps}, or raise data.{split}_fraction."
                )
        for column in np.array(self.columns)[np.isnan(self.usual_error)]:
            notes.append(f"{column} does not change from season to season of train: it has no MASE and no CRPS.")
        size = np.max([np.nanmax(np.abs(one.values), axis=0) for one in self.corpus.split("train")], axis=0)
        for column in np.array(self.columns)[self.usual_error < FINEST * size] if self.learns else ():
            notes.append(
                f"{column} changes by less than {FINEST:g} of its size, which networks can hardly see, in single "
                "precision. Subtract a constant from it, or use model.kind=ar or kalman, which compute in double."
            )
        return notes

    # --- data -------------------------------------------------------------------------------------------------------

    def seen(self, split: str) -> list[tuple[Tensor, Tensor]]:
        """Values and masks (T, C) of each series, as models see them; float64."""
        return [visible(one, self.recipe.forecast.transform) for one in self.corpus.split(split)]

    @cached_property
    def windows(self) -> SeriesWindows:
        window = self.recipe.model.build(**self.sizes()).window
        return SeriesWindows(self.seen("train"), window, self.recipe.batch.size)

    def steps_per_epoch(self) -> int:
        return self.windows.steps_per_epoch

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        return self.windows.batch(seed, step, rank, world)

    @cached_property
    def usual_error(self) -> Values:
        """What errors are divided by (C,), fitted on train alone."""
        return naive_error([one.values for one in self.corpus.split("train")], self.season)

    @cached_property
    def naive_deviation(self) -> Values:
        """Of y_t − y_{t−m} in train (C,)."""
        steps = [seasonal_steps(one.values, self.season) for one in self.corpus.split("train")]
        return np.sqrt(np.nanmean(np.concatenate(steps) ** 2, axis=0))

    # --- training ---------------------------------------------------------------------------------------------------

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        """Every window begins afresh, so nothing is carried."""
        value, count = model.loss(batch["values"], batch["mask"])
        return Loss(value, None, batch["values"].numel(), count)

    def scale(self) -> tuple[int, str]:
        return count_parameters(self.model().state_dict())

    def estimates(self, model: Any, step: int) -> Iterator[Estimate]:
        yield from self.recipe.model.estimates(self.seen("train"), self.season, model, step, self.recipe.seed)

    # --- measuring --------------------------------------------------------------------------------------------------

    def validate(self, model: Any) -> dict[str, float]:
        """As `evaluate` of dev, with fewer paths; the naive forecast never changes."""
        found = self.report(model, "dev", paths=min(WATCHED_PATHS, self.recipe.forecast.paths)).metrics
        return {name: value for name, value in found.items() if not name.startswith("naive_")}

    def origins(self, split: str) -> list[Origin]:
        """A horizon after the other, from where a split begins; of train, its later half."""
        found = []
        for series in self.corpus.split(split):
            first = series.begins or len(series) // 2
            found += [Origin(series, place) for place in range(first, len(series), self.horizon)]
        return found

    def truth(self, origins: Sequence[Origin]) -> Values:
        """Return what came then (N, horizon, C), NaN where that is not known."""
        return np.stack([origin.series.ahead(origin.place, self.horizon) for origin in origins])

    def forecasts(self, model: Any, origins: Sequence[Origin], paths: int | None = None, seed: int = 0) -> Forecast:
        """Forecast from each origin; those with as much history are read together."""
        histories = [visible(o.series.until(o.place), self.recipe.forecast.transform) for o in origins]
        memory = model.memory or max(len(values) for values, _ in histories)
        groups: dict[int, list[int]] = {}
        for number, (values, _) in enumerate(histories):
            groups.setdefault(min(memory, len(values)), []).append(number)
        draws, device = generator(seed, "forecast"), device_of(model)
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
        joined = join_rows(parts, torch.tensor([n for numbers in groups.values() for n in numbers]).argsort())
        return joined.exponential() if self.logarithmic else joined

    def report(self, model: Any, split: str, paths: int | None = None) -> ForecastReport:
        """Every figure of a split, and those of the seasonal naive forecast beside them."""
        origins = self.origins(split)
        truth = self.truth(origins)
        errors = Errors.of(self.forecasts(model, origins, paths), truth)
        history = [origin.series.values[: origin.place] for origin in origins]
        naive = Errors.of(naive_forecast(history, self.horizon, self.season, self.naive_deviation), truth)
        metrics = {"loss": self.one_step_loss(model, split), **errors.metrics(self.usual_error)}
        metrics |= naive.metrics(self.usual_error, "naive_")
        both = {"mase": errors, "naive_mase": naive}
        return ForecastReport(
            metrics=metrics,
            by_step=errors.by_step(self.usual_error).tolist(),
            naive_by_step=naive.by_step(self.usual_error).tolist(),
            by_variable={
                column: {name: found.of_variable(c, self.usual_error) for name, found in both.items()}
                for c, column in enumerate(self.columns)
            },
            origins=len(origins),
            horizon=self.horizon,
        )

    @torch.no_grad()
    def one_step_loss(self, model: Any, split: str) -> float:
        """−log p of each value of a split given all before it, in nats per value.

        A step with a value that was made up (data.fill) does not count: its density is that of the
        whole step.
        """
        total, count, device = 0.0, 0, device_of(model)
        for series, (values, mask) in zip(self.corpus.split(split), self.seen(split), strict=True):
            begins = series.begins or len(series) // 2
            first = max(0, begins - (model.memory or begins))
            shown = values[first:].unsqueeze(0)
            shown = shown.float() if device.type == "mps" else shown
            scores = model.score(shown.to(device), mask[first:].unsqueeze(0).to(device))
            real = torch.from_numpy(series.mask[begins:])
            counted = (real == mask[begins:]).all(dim=1)
            observed = real & counted.unsqueeze(1)
            total -= float(scores[0, begins - first :].double().cpu()[counted].sum())
            if self.logarithmic:
                total += float(values[begins:][observed].sum())  # log p(y) = log p(log y) − log y
            count += int(observed.sum())
        return total / count if count else float("nan")


def visible(series: Series, transform: str) -> tuple[Tensor, Tensor]:
    """What a model sees of a series: values and mask (T, C)."""
    if transform == "log":
        series = replace(series, values=np.log(series.values))
    values, mask = series.visible()
    return torch.from_numpy(values), torch.from_numpy(mask)


def refuse_not_positive(series: Series) -> None:
    for column, values in zip(series.columns, series.values.T, strict=True):
        if (values <= 0).any():
            where = series.time_labels()[int(np.flatnonzero(values <= 0)[0])]
            raise DataError(
                f"forecast.transform=log needs values above 0; {column} of {series.name} has "
                f"{values[values <= 0][0]:g} at {where}. Set forecast.transform=none."
            )


def horizon_of(recipe: Recipe, season: int) -> int:
    """Return how many steps are forecast where nobody says otherwise."""
    return recipe.forecast.horizon or min(max(season, SHORTEST), LONGEST)


def join_rows(parts: Sequence[Forecast], order: Tensor) -> Forecast:
    """Return the rows of several forecasts in this order."""

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
    metric="crps",
    loss_per="value",
    examples="series",
)
