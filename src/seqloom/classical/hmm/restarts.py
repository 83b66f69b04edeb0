"""Expectation–maximisation from several beginnings: each climbs to a maximum of its own, and the highest is kept.

`Search` is the whole state of such a search: the model under way, the best of those before, and the
numbers that decide how to continue. It is what a checkpoint keeps, so resuming a search is exact.
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

NOWHERE = -torch.inf
PAUSE = 2.0  # seconds between two checkpoints at least: many iterations take less than writing one down


@config
class SearchConfig(EstimateConfig):
    """How to estimate by expectation–maximisation."""

    restarts: PositiveInt = 5  # beginnings, drawn from the seed; the one that ends highest is kept
    iterations: PositiveInt = 100  # most of each
    tolerance: NonNegativeFloat = 1e-5  # stop where log p, per token or value, gains less than this


class Search:
    """`make` gives a model of the right shape. Once `finished`, it is nothing but the best model."""

    def __init__(self, make: Callable[[], TensorModel], config: SearchConfig | None = None) -> None:
        """`config` bounds how far a search that is loaded can have come."""
        self.config = config or SearchConfig()
        self.current, self.best = make(), make()
        self.restart, self.iteration = 0, 0
        self.last, self.highest = NOWHERE, NOWHERE  # log p of the model before this one, and of the best
        self.finished = False

    @property
    def models(self) -> dict[str, TensorModel]:
        return {"current": self.current, "best": self.best}

    def state_dict(self) -> dict[str, Tensor]:
        if self.finished:
            return self.best.state_dict()
        where = torch.tensor([self.restart, self.iteration, self.last, self.highest], dtype=torch.float64)
        tables = {f"{name}.{key}": one for name, model in self.models.items() for key, one in model.tensors().items()}
        return {**tables, "search": where}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        where = state_dict.get("search")
        if where is None:
            self.best.load_state_dict(state_dict)
            self.finished = True
            return
        check_tree(where, Expected((4,), torch.float64, low=-math.inf, high=math.inf), "search")
        place, likelihoods = where[:2], where[2:]
        most = torch.tensor([self.config.restarts, self.config.iterations])
        require(
            ((place >= 0) & (place < most) & (place == place.floor())).all(),
            f"search must be in one of {most[0]} restarts and {most[1]} iterations",
        )
        require((likelihoods < math.inf).all(), "search must hold finite numbers")
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
        self.restart, self.iteration = int(where[0]), int(where[1])
        self.last, self.highest = float(where[2]), float(where[3])

    def eval(self) -> "Search":
        return self


def climb(
    search: Search,
    config: SearchConfig,
    begin: Callable[[int], Any],
    improve: Callable[[Any], tuple[Any, float]],
    *,
    read: int = 0,
    counted: str = "tokens",
) -> Iterator[Estimate]:
    """Every iteration a stage. `begin(restart)` draws a model; `improve` gives a better one, and log p of the given.

    `read` is how many tokens, or whatever is `counted`, an iteration reads: what speed is measured
    in.
    """
    unit = "nats" if counted == "tokens" else "nats per value"
    total, saved = config.restarts * config.iterations, time.monotonic()
    while search.restart < config.restarts:
        if search.iteration == 0:
            search.current, search.last = begin(search.restart), NOWHERE
        better, value = improve(search.current)
        search.iteration += 1
        step = search.restart * config.iterations + search.iteration
        values = {"restart": search.restart + 1.0, "iteration": float(search.iteration), "loss": -value}
        over = value - search.last < config.tolerance or search.iteration == config.iterations
        if over:
            if value > search.highest:
                search.best, search.highest = search.current, value
            search.restart, search.iteration = search.restart + 1, 0
            step = search.restart * config.iterations
            values["best"] = -search.highest
        else:
            search.current, search.last = better, value
        search.finished = search.restart == config.restarts
        kept = search.best if search.finished else search if over or time.monotonic() - saved > PAUSE else None
        saved = saved if kept is None else time.monotonic()
        yield Estimate(step, total, kept, values, read, counted, unit)
