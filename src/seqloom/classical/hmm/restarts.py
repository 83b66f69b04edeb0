"""Expectation–maximization with random restarts; the model with the highest likelihood is kept.

`RestartSearch` holds the complete state: the current model, the best model so far, and the counters and
likelihoods that decide how to continue. A checkpoint stores the complete state, so resuming is exact.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from seqloom.classical.tensor_model import TensorModel
from seqloom.config import config
from seqloom.config.constraints import NonNegativeFloat, PositiveInt
from seqloom.core.errors import CheckpointError
from seqloom.core.protocols import Estimate
from seqloom.core.tree import ANYTHING, Expected, check_tree, require
from seqloom.train.estimate import EstimateConfig

CHECKPOINT_INTERVAL = 2.0  # minimum seconds between checkpoints, because writing is often slower than an iteration


@config
class SearchConfig(EstimateConfig):
    """Settings of expectation–maximization with restarts."""

    restarts: PositiveInt = 5  # number of random initializations; the best result is kept
    iterations: PositiveInt = 100  # maximum number of iterations per restart
    tolerance: NonNegativeFloat = 1e-5  # stop a restart when log p per token or value improves by less


class RestartSearch:
    """The state of a search over restarts; a `finished` search contains only the best model.

    `build` creates an empty model. `config` bounds the counters accepted from a checkpoint.
    """

    def __init__(self, build: Callable[[], TensorModel], config: SearchConfig | None = None) -> None:
        self.config = config or SearchConfig()
        self.current, self.best = build(), build()
        self.restart, self.iteration = 0, 0
        self.last, self.highest = -math.inf, -math.inf  # log p of the previous and of the best model
        self.finished = False

    @property
    def models(self) -> dict[str, TensorModel]:
        return {"current": self.current, "best": self.best}

    def state_dict(self) -> dict[str, Tensor]:
        if self.finished:
            return self.best.state_dict()
        progress = torch.tensor([self.restart, self.iteration, self.last, self.highest], dtype=torch.float64)
        tables = {f"{name}.{key}": part for name, model in self.models.items() for key, part in model.tensors().items()}
        return {**tables, "search": progress}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        progress = state_dict.get("search")
        if progress is None:
            self.best.load_state_dict(state_dict)
            self.finished = True
            return
        check_tree(progress, Expected((4,), torch.float64, low=-math.inf, high=math.inf), "search")
        counters, likelihoods = progress[:2], progress[2:]
        limits = torch.tensor([self.config.restarts, self.config.iterations])
        require(
            ((counters >= 0) & (counters < limits) & (counters == counters.floor())).all(),
            f"search must be within its {limits[0]} restarts and {limits[1]} iterations",
        )
        require((likelihoods < math.inf).all(), "search must contain finite numbers")
        check_tree(dict(state_dict), dict.fromkeys(self.state_dict(), ANYTHING))
        tables = {
            name: {key: state_dict[f"{name}.{key}"] for key in model.names} for name, model in self.models.items()
        }
        for name, model in self.models.items():
            try:
                model.validate(tables[name])
            except CheckpointError as error:
                raise CheckpointError(f"{name}.{error}") from error
        for name, model in self.models.items():
            model.assign(tables[name])
        self.restart, self.iteration = int(progress[0]), int(progress[1])
        self.last, self.highest = float(progress[2]), float(progress[3])

    def eval(self) -> "RestartSearch":
        return self


def run_search(
    search: RestartSearch,
    config: SearchConfig,
    begin: Callable[[int], Any],
    improve: Callable[[Any], tuple[Any, float]],
    *,
    read: int = 0,
    speed_unit: str = "tokens",
) -> Iterator[Estimate]:
    """Run the remaining iterations and yield one `Estimate` for each.

    `begin(restart)` draws an initial model; `improve(model)` returns an improved model and log p of the given model. An
    iteration processes `read` tokens, or other units named by `speed_unit`.
    """
    unit = "nats" if speed_unit == "tokens" else "nats per value"
    total, saved = config.restarts * config.iterations, time.monotonic()
    while search.restart < config.restarts:
        if search.iteration == 0:
            search.current, search.last = begin(search.restart), -math.inf
        improved, value = improve(search.current)
        search.iteration += 1
        step = search.restart * config.iterations + search.iteration
        values = {"restart": search.restart + 1.0, "iteration": float(search.iteration), "loss": -value}
        is_done = value - search.last < config.tolerance or search.iteration == config.iterations
        if is_done:
            if value > search.highest:
                search.best, search.highest = search.current, value
            search.restart, search.iteration = search.restart + 1, 0
            step = search.restart * config.iterations
            values["best"] = -search.highest
        else:
            search.current, search.last = improved, value
        search.finished = search.restart == config.restarts
        is_due = is_done or time.monotonic() - saved > CHECKPOINT_INTERVAL
        checkpoint = search.best if search.finished else search if is_due else None
        saved = saved if checkpoint is None else time.monotonic()
        yield Estimate(step, total, checkpoint, values, read, speed_unit, unit)
