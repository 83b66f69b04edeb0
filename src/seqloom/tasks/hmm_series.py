"""A hidden Markov model of a series with one Gaussian per state.

Baum–Welch estimates the model with several restarts; missing values are integrated out. The loss is −log p of each
observed value given all previous values. `one_state` is the loss of a single Gaussian.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from seqloom.classical.hmm.gaussian import GaussianHMM, GaussianHMMConfig
from seqloom.classical.hmm.restarts import RestartSearch, SearchConfig, run_search
from seqloom.config import Discriminator, config
from seqloom.core.protocols import Estimate
from seqloom.data.corpora import CorpusConfig
from seqloom.data.series import Series
from seqloom.tasks.base import SeriesTask, TaskInfo, TaskRecipe, count_parameters


@config
class Recipe(TaskRecipe):
    task: Literal["hmm-series"] = "hmm-series"
    data: CorpusConfig[Series]
    model: Annotated[GaussianHMMConfig, Discriminator("kind")] = GaussianHMMConfig()
    train: SearchConfig = SearchConfig()


class Task(SeriesTask[Recipe, Any]):
    def check_model(self) -> None:
        self.untrained_model  # noqa: B018 (raises errors in the data before the run directory is created)

    def sizes(self) -> dict[str, int]:
        return {"variables": len(self.columns)}

    @cached_property
    def untrained_model(self) -> GaussianHMM:
        """Return an untrained model with the scale of the training values."""
        return self.build().fit_scale(self.values("train"), self.columns)

    def build(self) -> GaussianHMM:
        """Return a model of this size without weights."""
        return self.recipe.model.build(len(self.columns))

    def model(self) -> RestartSearch:
        return RestartSearch(self.build, self.recipe.train)

    def scale(self) -> tuple[int, str]:
        return count_parameters(self.build().state_dict())

    def values(self, split: str) -> list[Tensor]:
        return [torch.from_numpy(one.values) for one in self.corpus.split(split)]

    def estimates(self, model: Any, step: int) -> Iterator[Estimate]:
        search = model if model is not None else self.model()
        series, shape, seed = self.values("train"), self.untrained_model, self.recipe.seed
        if not search.finished:
            yield from run_search(
                search,
                self.recipe.train,
                lambda restart: shape.draw_start(series, seed, restart),
                lambda current: current.improve(series),
                read=sum(int((~one.isnan()).sum()) for one in series),
                speed_unit="values",
            )

    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        """Return the loss, and the loss of a single Gaussian as a baseline."""
        model = model.best if isinstance(model, RestartSearch) else model
        config, train = self.recipe.model, self.values("train")
        single_config = GaussianHMMConfig(states=1, covariance=config.covariance, min_variance=config.min_variance)
        single = single_config.build(len(self.columns)).fit_scale(train, self.columns)
        for _ in range(20):  # missing values need several iterations
            single, _ = single.improve(train)
        series = self.corpus.split(split)
        return {"loss": loss_of(model, series), "one_state": loss_of(single, series)}


def loss_of(model: GaussianHMM, series: Sequence[Series]) -> float:
    """Return −log p of each observed value of a split given all previous values, including those of earlier splits."""
    total, count = 0.0, 0
    for one in series:
        log_probs = model.score(torch.from_numpy(one.values)[None].to(model.device))[0, one.begins :]
        total, count = total - float(log_probs.sum()), count + int(one.mask[one.begins :].sum())
    return total / count if count else float("nan")


INFO = TaskInfo(
    name="hmm-series",
    recipe=Recipe,
    task=Task,
    command="inspect states {run} --out states.png",
    loss_per="value",
    examples="series",
)
