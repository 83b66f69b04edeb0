"""How far back a cell remembers: success at a memory test against the lag, for several cells on equal terms.

    plan = MemoryPlan(test="recall", cells=("elman", "lstm", "gru"), lags=(5, 10, 20), steps=500)
    found = collect(plan, measure(plan))
    found.success            # (cells, lags, seeds), shares of right answers on sequences no training has seen

All cells get the same number of parameters (those of an LSTM `hidden` wide), updates, sequences and learning rate, and
a fresh training for every lag and seed. What `lag` means is up to the test:

    recall   symbols between the one to remember and the question
    adding   the steps the first number must be kept, at least: the sequence is twice as long

What each place of a feed-forward language model's window is worth to it.

    worth(d) = loss, the tokens d places back dealt out anew among all windows − loss

in nats per token: how much worse the model predicts a text when one place tells it nothing true and all others are as
they were. The dealing keeps how often each token stands there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom import accel
from seqloom.config import build
from seqloom.core.device import device_of
from seqloom.core.errors import UsageError
from seqloom.core.seeding import generator
from seqloom.core.words import did_you_mean
from seqloom.inspect.capture import evaluating
from seqloom.models.recurrent_reader import RecurrentReaderConfig
from seqloom.models.window_lm import WindowLM, windows, within_document
from seqloom.nn.cells import CELLS
from seqloom.nn.softmax import SCORED_AT_ONCE
from seqloom.tasks import task_info
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState
from seqloom.train.wrappers import wrap

if TYPE_CHECKING:
    pass

STEPS = {"recall": 500, "adding": 1000}  # updates, where the plan does not say


@dataclass(frozen=True)
class MemoryPlan:
    """What to measure. Everything is checked when a plan is made, before any training."""

    test: str = "recall"
    cells: tuple[str, ...] = ("elman", "lstm", "gru")
    lags: tuple[int, ...] = (5, 10, 20, 40)
    seeds: tuple[int, ...] = (1, 2, 3)
    steps: int | None = None  # updates of each training; None is as many as the test usually needs
    hidden: int = 32  # width of the LSTM whose number of parameters all cells get
    rows: int = 32  # sequences per update
    lr: float = 5e-3
    forget_bias: float | None = None  # of the lstm; None is its own habit
    exact: bool = False  # recall: train at the lag that is tested alone, not at all up to it
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.test not in STEPS:
            raise UsageError(f"There is no memory test {self.test!r}: {did_you_mean(self.test, STEPS)}.")
        for name in self.cells:
            if name not in CELLS:
                raise UsageError(f"There is no cell {name!r}: {did_you_mean(name, CELLS)}.")
        for name in ("cells", "lags", "seeds"):
            values = getattr(self, name)
            if not values:
                raise UsageError(f"A memory test needs at least one of {name}; got none.")
            if len(set(values)) < len(values):
                raise UsageError(f"The {name} of a memory test must differ from each other; got {_listed(values)}.")
        if min(self.lags) < 1:
            raise UsageError(f"A lag must be at least 1; got {_listed(self.lags)}.")
        for name in ("updates", "hidden", "rows", "lr"):
            if getattr(self, name) <= 0:
                raise UsageError(
                    f"{'steps' if name == 'updates' else name} must be above 0; got {getattr(self, name)}."
                )
        if self.exact and self.test != "recall":
            raise UsageError("Only recall is trained at lags shorter than the one tested; leave out exact for adding.")
        if self.forget_bias is not None and "lstm" not in self.cells:
            raise UsageError(f"A forget bias is for the lstm cell, which is not among {_listed(self.cells)}.")

    @property
    def updates(self) -> int:
        return STEPS[self.test] if self.steps is None else self.steps

    def recipe(self, cell: str, lag: int, seed: int, hidden: int) -> Any:
        """An ordinary recipe: `seqloom train` would do the same with it."""
        data = {"length": 2 * lag} if self.test == "adding" else {"lag": lag, "shortest": lag if self.exact else 1}
        model = {"kind": "recurrent-reader", "cell": cell, "hidden": hidden}
        if cell == "lstm":
            model["forget_bias"] = self.forget_bias
        fit = {"steps": self.updates, "lr": self.lr, "schedule": "cosine", "clip": 1.0, "device": self.device}
        mapping = {"task": self.test, "seed": seed, "data": data, "batch": {"rows": self.rows}, "model": model}
        return build(task_info(self.test).recipe, {**mapping, "train": fit}, source="the memory test")

    def sizes(self) -> dict[str, tuple[int, int]]:
        """For each cell its width, and the parameters it then has: as near as can be to those of the LSTM."""
        task = task_info(self.test).task.prepare(self.recipe("lstm", self.lags[0], 1, self.hidden))
        wanted = parameters("lstm", self.hidden, **task.sizes())
        widths = {cell: equal_width(cell, wanted, **task.sizes()) for cell in self.cells}
        return {cell: (width, parameters(cell, width, **task.sizes())) for cell, width in widths.items()}


def parameters(cell: str, hidden: int, inputs: int, outputs: int) -> int:
    model = RecurrentReaderConfig(cell=cell, hidden=hidden).build(inputs, outputs)
    return sum(parameter.numel() for parameter in model.parameters())


def equal_width(cell: str, wanted: int, inputs: int, outputs: int) -> int:
    """The width at which a cell's parameters come nearest to the number wanted; more width is always more of them."""
    low, high = 1, 2
    while parameters(cell, high, inputs, outputs) < wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if parameters(cell, middle, inputs, outputs) < wanted else (low, middle)
    return min((low, high), key=lambda width: abs(parameters(cell, width, inputs, outputs) - wanted))


@dataclass(frozen=True)
class Outcome:
    """One training."""

    cell: str
    lag: int
    seed: int
    success: float
    blind: float  # the success of one who has not read


def measure(plan: MemoryPlan) -> Iterator[Outcome]:
    """Every training of the plan, one after another, each as soon as it is over."""
    accel.install()
    sizes = plan.sizes()
    for cell in plan.cells:
        for lag in plan.lags:
            for seed in plan.seeds:
                recipe = plan.recipe(cell, lag, seed, sizes[cell][0])
                task = task_info(plan.test).task.prepare(recipe)
                state = TrainState(task, recipe.train, seed)
                step = wrap(state)
                for _ in range(plan.updates):
                    make_step(state, step)
                metrics = task.evaluate(state.model.eval(), "test")  # nothing was chosen by it
                yield Outcome(cell, lag, seed, metrics["success"], metrics["blind_success"])


@dataclass(frozen=True)
class Memory:
    """What was found, as plain arrays."""

    plan: MemoryPlan
    success: NDArray[np.float64]  # (cells, lags, seeds)
    blind: float  # mean success of blind guesses
    hidden: dict[str, int]  # by cell
    parameters: dict[str, int]

    def reach(self, cell: str) -> int | None:
        """The longest lag, all shorter ones included, at which a cell is at least halfway from guessing to perfect."""
        enough, found = (1 + self.blind) / 2, None
        means = dict(zip(self.plan.lags, self.success[self.plan.cells.index(cell)].mean(axis=1), strict=True))
        for lag in sorted(means):
            if means[lag] < enough:
                break
            found = lag
        return found


def collect(plan: MemoryPlan, outcomes: Iterable[Outcome]) -> Memory:
    success = np.full((len(plan.cells), len(plan.lags), len(plan.seeds)), np.nan)
    blind = []
    for one in outcomes:
        place = plan.cells.index(one.cell), plan.lags.index(one.lag), plan.seeds.index(one.seed)
        success[place] = one.success
        blind.append(one.blind)
    sizes = plan.sizes()
    hidden = {cell: size[0] for cell, size in sizes.items()}
    return Memory(plan, success, float(np.mean(blind)), hidden, {cell: size[1] for cell, size in sizes.items()})


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WindowView:
    """Of one model and one text."""

    name: str
    tokens: int  # how many were predicted
    loss: float  # nats per token, the window as it is
    shuffled: list[float]  # the same where the tokens 1, 2 … K places back are dealt out anew

    @property
    def worth(self) -> list[float]:
        return [loss - self.loss for loss in self.shuffled]


def window_lm(trained: Any) -> WindowLM:
    """The feed-forward model of a `Trained`; refused if it is another."""
    if isinstance(trained.model, WindowLM):
        return trained.model
    raise UsageError(
        f"Only a feed-forward language model (model.kind window-lm) has a window to look at; {trained.run.path} is of "
        f"kind {trained.run.recipe['model']['kind']}."
    )


def window_view(trained: Any, recipe: Any, split: str = "dev", most: int | None = None, name: str = "") -> WindowView:
    """What the window of a run, as `seqloom.load` gives it, is worth on a split, or on its first `most` tokens."""
    model = window_lm(trained)
    task: Any = task_info(recipe.task).task.reopen(recipe, trained.run)
    targets = task.stream(split)[:most].to(device_of(model))
    seen = _seen(model, targets, apart=recipe.batch.documents == "apart")
    losses = [_loss(model, _dealt(seen, place), targets) for place in range(1, model.config.window + 1)]
    return WindowView(name or trained.run.path.name, len(targets), _loss(model, seen, targets), losses)


def _seen(model: WindowLM, targets: Tensor, apart: bool) -> Tensor:
    """The window before each token of a stream (N, K)."""
    nothing = model.start().carry  # (1, K)
    inputs = torch.cat([nothing[:, -1:], targets[None, :-1]], dim=1)
    found = windows(inputs, nothing)[0][0]
    return within_document(found) if apart else found


def _dealt(seen: Tensor, place: int) -> Tensor:
    """Windows (N, K) in which the tokens so many places back have changed places with each other."""
    order = torch.randperm(len(seen), generator=generator(0, "window", place)).to(seen.device)
    found = seen.clone()
    found[:, -place] = seen[order, -place]
    return found


@torch.no_grad()
def _loss(model: WindowLM, seen: Tensor, targets: Tensor) -> float:
    pieces = zip(seen.split(SCORED_AT_ONCE), targets.split(SCORED_AT_ONCE), strict=True)
    with evaluating(model):
        scores = [model.output.target_log_probs(model.features(some), wanted) for some, wanted in pieces]
    return -torch.cat(scores).double().mean().item()
