"""The memory of models: accuracy of a memory test by lag, and importance of each window position.

    plan = MemoryPlan(test="recall", cells=("elman", "lstm", "gru"), lags=(5, 10, 20), steps=500)
    result = collect(plan, measure(plan))
    result.success            # (cells, lags, seeds): fraction of correct answers on test sequences

All cells have the same number of parameters (that of an LSTM with `hidden` units), updates and sequences, and the same
learning rate. A model is trained for every cell, lag and seed. `lag` depends on the test:

    recall   number of symbols between the symbol to remember and the query
    adding   the minimum number of steps for which the first number must be remembered; a sequence is twice as long

For a feed-forward language model, `window_view` measures the permutation importance of each position of the window, in
nats per token:

    importance(d) = loss after permuting the tokens at distance d among all windows − loss

The permutation preserves the token frequencies at that position and leaves all other positions unchanged.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

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
from seqloom.tasks.base import TaskRecipe
from seqloom.tasks.text_base import TextTask
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState
from seqloom.train.wrappers import wrap

DEFAULT_STEPS = {"recall": 500, "adding": 1000}  # number of updates


@dataclass(frozen=True)
class MemoryPlan:
    """The configuration of a memory test, checked when it is created."""

    test: str = "recall"
    cells: tuple[str, ...] = ("elman", "lstm", "gru")
    lags: tuple[int, ...] = (5, 10, 20, 40)
    seeds: tuple[int, ...] = (1, 2, 3)
    steps: int | None = None  # updates per run; None is the default of the test
    hidden: int = 32  # units of the reference LSTM, which determines the number of parameters of all cells
    batch_size: int = 32  # sequences in a batch
    lr: float = 5e-3
    forget_bias: float | None = None  # forget bias of the LSTM; None is its default
    exact: bool = False  # for recall: train only on the tested lag, not on all lags up to it
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.test not in DEFAULT_STEPS:
            raise UsageError(f"There is no memory test {self.test!r}: {did_you_mean(self.test, DEFAULT_STEPS)}.")
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
            raise UsageError(
                "exact applies only to recall, which otherwise also trains on shorter lags. Omit exact for adding."
            )
        if self.forget_bias is not None and "lstm" not in self.cells:
            raise UsageError(f"A forget bias needs the cell lstm, which is not among {', '.join(self.cells)}.")

    @property
    def updates(self) -> int:
        return DEFAULT_STEPS[self.test] if self.steps is None else self.steps

    def recipe(self, cell: str, lag: int, seed: int, hidden: int) -> TaskRecipe:
        """Build a recipe, which `seqloom train` also accepts."""
        data = {"length": 2 * lag} if self.test == "adding" else {"lag": lag, "min_lag": lag if self.exact else 1}
        model = {"kind": "recurrent-reader", "cell": cell, "hidden": hidden}
        if cell == "lstm":
            model["forget_bias"] = self.forget_bias
        fit = {"steps": self.updates, "lr": self.lr, "schedule": "cosine", "clip_norm": 1.0, "device": self.device}
        mapping = {"task": self.test, "seed": seed, "data": data, "batch": {"size": self.batch_size}, "model": model}
        return build(task_info(self.test).recipe, {**mapping, "train": fit}, source="the memory test")

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return the hidden size and the parameters of each cell; the LSTM has about as many parameters."""
        task = task_info(self.test).task.prepare(self.recipe("lstm", self.lags[0], 1, self.hidden))
        target = count_parameters("lstm", self.hidden, **task.sizes())
        return {cell: nearest_size(partial(count_parameters, cell, **task.sizes()), target) for cell in self.cells}


def count_parameters(cell: str, hidden: int, inputs: int, outputs: int) -> int:
    model = RecurrentReaderConfig(cell=cell, hidden=hidden).build(inputs, outputs)
    return sum(parameter.numel() for parameter in model.parameters())


@dataclass(frozen=True)
class Outcome:
    """The result of one training run."""

    cell: str
    lag: int
    seed: int
    success: float
    blind: float  # success of the best guess without reading the input


def measure(plan: MemoryPlan) -> Iterator[Outcome]:
    """Train every model of the plan. Yield each result as soon as it is complete."""
    accel.install()
    sizes = plan.sizes()
    for cell, lag, seed in product(plan.cells, plan.lags, plan.seeds):
        recipe = plan.recipe(cell, lag, seed, sizes[cell][0])
        task = task_info(plan.test).task.prepare(recipe)
        state = TrainState(task, recipe.train, seed)
        step = wrap(state)
        for _ in range(plan.updates):
            make_step(state, step)
        metrics = task.evaluate(state.model.eval(), "test")  # this split is not used for selection
        yield Outcome(cell, lag, seed, metrics["success"], metrics["blind_success"])


@dataclass(frozen=True)
class Memory:
    """The results of a memory test as plain arrays."""

    plan: MemoryPlan
    success: Array  # (cells, lags, seeds)
    blind: float  # mean success of guesses without reading the input
    hidden: dict[str, int]  # units of each cell
    parameters: dict[str, int]

    def reach(self, cell: str) -> int | None:
        """Return the longest lag up to which the success of a cell is at least halfway between guessing and 1."""
        threshold, reach = (1 + self.blind) / 2, None
        means = dict(zip(self.plan.lags, self.success[self.plan.cells.index(cell)].mean(axis=1), strict=True))
        for lag in sorted(means):
            if means[lag] < threshold:
                break
            reach = lag
        return reach


def collect(plan: MemoryPlan, outcomes: Iterable[Outcome]) -> Memory:
    success = np.full((len(plan.cells), len(plan.lags), len(plan.seeds)), np.nan)
    blind = []
    for outcome in outcomes:
        index = plan.cells.index(outcome.cell), plan.lags.index(outcome.lag), plan.seeds.index(outcome.seed)
        success[index] = outcome.success
        blind.append(outcome.blind)
    sizes = plan.sizes()
    hidden = {cell: size[0] for cell, size in sizes.items()}
    return Memory(plan, success, float(np.mean(blind)), hidden, {cell: size[1] for cell, size in sizes.items()})


# --- windows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WindowView:
    """The importance of each window position for one model on one text."""

    name: str
    tokens: int  # number of predictions
    loss: float  # nats per token
    shuffled: list[float]  # loss after permuting the tokens at distance 1, 2 … K

    @property
    def importance(self) -> list[float]:
        return [loss - self.loss for loss in self.shuffled]


def window_lm(trained: TrainedModel) -> WindowLM:
    """Return the feed-forward language model of a trained model. Raise an error for other kinds of models."""
    if isinstance(trained.model, WindowLM):
        return trained.model
    raise UsageError(
        f"Only a feed-forward language model (model.kind=window-lm) has a window; {trained.run.path} is of "
        f"kind {trained.run.recipe['model']['kind']}."
    )


def window_view(
    trained: TrainedModel, recipe: TaskRecipe, split: str = "dev", max_tokens: int | None = None, name: str = ""
) -> WindowView:
    """Measure the importance of each window position on a split, or on its first `max_tokens` tokens."""
    model = window_lm(trained)
    task = task_info(recipe.task).task.reopen(recipe, trained.run)
    assert isinstance(task, TextTask)
    targets = task.stream(split)[:max_tokens].to(device_of(model))
    inputs = windows_before(model, targets, within_documents=recipe.batch.cross_document_attention is False)
    distances = range(1, model.config.window + 1)
    losses = [window_loss(model, permute_position(inputs, distance), targets) for distance in distances]
    return WindowView(name or trained.run.path.name, len(targets), window_loss(model, inputs, targets), losses)


def windows_before(model: WindowLM, targets: Tensor, within_documents: bool) -> Tensor:
    """Return the window before each token of a stream (N, K)."""
    initial = model.start().hidden  # (1, K)
    tokens = torch.cat([initial[:, -1:], targets[None, :-1]], dim=1)
    inputs = token_windows(tokens, initial)[0][0]
    return hide_previous_documents(inputs) if within_documents else inputs


def permute_position(inputs: Tensor, distance: int) -> Tensor:
    """Return windows (N, K) in which the tokens at a distance are permuted."""
    order = torch.randperm(len(inputs), generator=make_generator(0, "window", distance)).to(inputs.device)
    permuted = inputs.clone()
    permuted[:, -distance] = inputs[order, -distance]
    return permuted


@torch.no_grad()
def window_loss(model: WindowLM, inputs: Tensor, targets: Tensor) -> float:
    pieces = zip(inputs.split(SCORED_POSITIONS), targets.split(SCORED_POSITIONS), strict=True)
    with eval_mode(model):
        scores = [model.output.target_log_probs(model.before_output(window), target) for window, target in pieces]
    return -torch.cat(scores).double().mean().item()
