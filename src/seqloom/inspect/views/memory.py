"""How far back models remember: success at a memory test against the lag, and what each position of a window is worth.

    plan = MemoryPlan(test="recall", cells=("elman", "lstm", "gru"), lags=(5, 10, 20), steps=500)
    found = collect(plan, measure(plan))
    found.success            # (cells, lags, seeds), shares of right answers on sequences no training has seen

All cells get the same number of parameters (those of an LSTM `hidden` wide), updates, sequences and
learning rate, and a fresh training for every lag and seed. What `lag` means is up to the test:

    recall   symbols between the one to remember and the question
    adding   the steps the first number must be kept, at least: the sequence is twice as long

Of a feed-forward language model, `window_view` measures each position of its window, in nats per
token:

    worth(d) = loss, the tokens d positions back dealt out anew among all windows − loss

how much worse the model predicts a text when one position tells it nothing true and all others are
as they were. The dealing keeps how often each token stands there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom import accel
from seqloom.config import build
from seqloom.core.device import device_of, make_generator
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean
from seqloom.inspect.capture import TrainedModel, eval_mode
from seqloom.inspect.rehearsal import nearest_size
from seqloom.inspect.values import Array, check_choices
from seqloom.models.recurrent_reader import RecurrentReaderConfig
from seqloom.models.window_lm import WindowLM, hide_previous_documents, token_windows
from seqloom.nn.cells import CELLS
from seqloom.nn.softmax import SCORED_POSITIONS
from seqloom.tasks import task_info
from seqloom.tasks.text_base import TextTask
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState
from seqloom.train.wrappers import wrap

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
    batch_size: int = 32  # sequences per update
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
        check_choices("A memory test", " of a memory test", cells=self.cells, lags=self.lags, seeds=self.seeds)
        if min(self.lags) < 1:
            raise UsageError(f"A lag must be at least 1; got {', '.join(map(str, self.lags))}.")
        numbers = {"steps": self.updates, "hidden": self.hidden, "batch_size": self.batch_size, "lr": self.lr}
        for name, value in numbers.items():
            if value <= 0:
                raise UsageError(f"{name} must be above 0; got {value}.")
        if self.exact and self.test != "recall":
            raise UsageError("Only recall is trained at lags shorter than the one tested; leave out exact for adding.")
        if self.forget_bias is not None and "lstm" not in self.cells:
            raise UsageError(f"A forget bias is for the lstm cell, which is not among {', '.join(self.cells)}.")

    @property
    def updates(self) -> int:
        return STEPS[self.test] if self.steps is None else self.steps

    def recipe(self, cell: str, lag: int, seed: int, hidden: int) -> Any:
        """An ordinary recipe: `seqloom train` would do the same with it."""
        data = {"length": 2 * lag} if self.test == "adding" else {"lag": lag, "min_lag": lag if self.exact else 1}
        model = {"kind": "recurrent-reader", "cell": cell, "hidden": hidden}
        if cell == "lstm":
            model["forget_bias"] = self.forget_bias
        fit = {"steps": self.updates, "lr": self.lr, "schedule": "cosine", "clip_norm": 1.0, "device": self.device}
        mapping = {"task": self.test, "seed": seed, "data": data, "batch": {"size": self.batch_size}, "model": model}
        return build(task_info(self.test).recipe, {**mapping, "train": fit}, source="the memory test")

    def sizes(self) -> dict[str, tuple[int, int]]:
        """For each cell its width, and the parameters it then has: as near as can be to those of the LSTM."""
        task = task_info(self.test).task.prepare(self.recipe("lstm", self.lags[0], 1, self.hidden))
        wanted = parameters("lstm", self.hidden, **task.sizes())
        return {cell: nearest_size(partial(parameters, cell, **task.sizes()), wanted) for cell in self.cells}


def parameters(cell: str, hidden: int, inputs: int, outputs: int) -> int:
    model = RecurrentReaderConfig(cell=cell, hidden=hidden).build(inputs, outputs)
    return sum(parameter.numel() for parameter in model.parameters())


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
    for cell, lag, seed in product(plan.cells, plan.lags, plan.seeds):
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
    success: Array  # (cells, lags, seeds)
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


# --- windows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WindowView:
    """Of one model and one text."""

    name: str
    tokens: int  # how many were predicted
    loss: float  # nats per token, the window as it is
    shuffled: list[float]  # the same where the tokens 1, 2 … K places back are dealt out anew

    @property
    def importance(self) -> list[float]:
        return [loss - self.loss for loss in self.shuffled]


def window_lm(trained: TrainedModel) -> WindowLM:
    """The feed-forward model of a `Trained`; refused if it is another."""
    if isinstance(trained.model, WindowLM):
        return trained.model
    raise UsageError(
        f"Only a feed-forward language model (model.kind window-lm) has a window to look at; {trained.run.path} is of "
        f"kind {trained.run.recipe['model']['kind']}."
    )


def window_view(
    trained: TrainedModel, recipe: Any, split: str = "dev", most: int | None = None, name: str = ""
) -> WindowView:
    """What the window of a run, as `seqloom.load` gives it, is worth on a split, or on its first `most` tokens."""
    model = window_lm(trained)
    task = task_info(recipe.task).task.reopen(recipe, trained.run)
    assert isinstance(task, TextTask)
    targets = task.stream(split)[:most].to(device_of(model))
    seen = windows_before(model, targets, apart=recipe.batch.cross_document_attention is False)
    losses = [window_loss(model, permute_position(seen, place), targets) for place in range(1, model.config.window + 1)]
    return WindowView(name or trained.run.path.name, len(targets), window_loss(model, seen, targets), losses)


def windows_before(model: WindowLM, targets: Tensor, apart: bool) -> Tensor:
    """The window before each token of a stream (N, K)."""
    nothing = model.start().hidden  # (1, K)
    inputs = torch.cat([nothing[:, -1:], targets[None, :-1]], dim=1)
    found = token_windows(inputs, nothing)[0][0]
    return hide_previous_documents(found) if apart else found


def permute_position(seen: Tensor, place: int) -> Tensor:
    """Windows (N, K) in which the tokens so many places back have changed places with each other."""
    order = torch.randperm(len(seen), generator=make_generator(0, "window", place)).to(seen.device)
    found = seen.clone()
    found[:, -place] = seen[order, -place]
    return found


@torch.no_grad()
def window_loss(model: WindowLM, seen: Tensor, targets: Tensor) -> float:
    pieces = zip(seen.split(SCORED_POSITIONS), targets.split(SCORED_POSITIONS), strict=True)
    with eval_mode(model):
        scores = [model.output.target_log_probs(model.before_output(some), wanted) for some, wanted in pieces]
    return -torch.cat(scores).double().mean().item()
