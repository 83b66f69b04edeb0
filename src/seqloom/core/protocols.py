"""Protocols of models and tasks, and the results they return.

All shape comments of the project use these letters:

    B batch   T query time   S source time   H hidden   D model   N heads   V vocabulary   G gates   C variables

Masks are boolean, and True means "may be used". A fully masked row gives zeros, never NaN.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from seqloom.core.tree import Tree, select_rows


@dataclass(frozen=True)
class DecodeState:
    """The state of a model during generation.

    `hidden` has one row per hypothesis. `memory` has one row per source, which the hypotheses of the source share; for
    example, it contains the encoder output and its mask. With k hypotheses per source, rows i·k … i·k+k−1 of `hidden`
    belong to source i.
    """

    hidden: Tree
    memory: Tree = None


def select(state: DecodeState, hypothesis_rows: Tensor, source_rows: Tensor) -> DecodeState:
    """Reorder hypotheses and remove finished sources."""
    return DecodeState(select_rows(state.hidden, hypothesis_rows), select_rows(state.memory, source_rows))


class _WithAttention:
    attention: Tensor | None  # (B, S), or weights by layer and head; None if the model has no attention

    @property
    def mean_attention(self) -> Tensor | None:
        """Return the mean attention (B, S) over layers and heads."""
        if self.attention is None or self.attention.dim() == 2:
            return self.attention
        return self.attention.flatten(1, -2).mean(dim=1)


@dataclass(frozen=True)
class StepOutput(_WithAttention):
    log_probs: Tensor  # (B, V): normalized log-probabilities of the token after the last real token
    state: DecodeState
    attention: Tensor | None = None


@dataclass(frozen=True)
class BestOutput(_WithAttention):
    """The most probable tokens of a step, in the order of `seqloom.core.tokens.best_tokens`."""

    values: Tensor  # (B, count) log-probabilities of the tokens
    ids: Tensor  # (B, count)
    state: DecodeState
    attention: Tensor | None = None


@runtime_checkable
class Steppable(Protocol):
    """A model that predicts the next token. All decoding depends only on this protocol.

    If a model can generate only a limited number of tokens, its attribute `longest_target` is this limit, with END
    included. A search stops at the limit.
    """

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        """Return the state before the first token for the rows of `source`, or for `rows` rows."""
        ...

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """Read tokens (B, T) and predict the token that follows the last real token of each row.

        Reading a prompt uses T > 1, and generation uses T = 1. `mask` (B, T) marks the real tokens. The state is
        consumed; clone it first to branch.
        """
        ...


@runtime_checkable
class BestSteppable(Steppable, Protocol):
    """A Steppable that can compute its most probable tokens without all log-probabilities."""

    def step_best(self, tokens: Tensor, state: DecodeState, count: int) -> BestOutput:
        """Read one token per row (B, 1) and return the `count` most probable next tokens."""
        ...


def longest_target(model: Steppable) -> int | None:
    """Return the maximum number of tokens that a model can generate, including END, or None if there is no limit."""
    longest: int | None = getattr(model, "longest_target", None)
    return longest


@runtime_checkable
class CausalLanguageModel(Steppable, Protocol):
    """A Steppable that also scores given tokens."""

    def score(self, inputs: Tensor, targets: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """Return log p(targets[b, t] | inputs[b, :t+1], state) (B, T) and the state after the last position."""
        ...


@dataclass(frozen=True)
class FutureStep:
    """The predicted distribution of the next values.

    The values have independent Gaussians (`deviation`) or a joint Gaussian (`covariance`).
    """

    mean: Tensor  # (B, C)
    state: Tree  # state with the batch in dimension 0; repeat its rows to branch
    deviation: Tensor | None = None  # (B, C)
    covariance: Tensor | None = None  # (B, C, C)


class SeriesModel(Protocol):
    """A model of series that predicts the next values. All forecasts depend only on this protocol.

    Values are in the units of the data and never NaN. `mask` is True for observed values; other values are ignored.
    """

    def start(self, rows: int) -> Tree:
        """Return the state before the first value."""
        ...

    def step(self, values: Tensor, state: Tree, mask: Tensor | None = None) -> FutureStep:
        """Read values (B, T, C), T ≥ 1, and predict the next values. Without a mask, all values are observed."""
        ...


@runtime_checkable
class Forecastable(SeriesModel, Protocol):
    """A model of series that also scores given values."""

    def score(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the log-density (B, T) of each step's observed values given all previous steps.

        The log-density is 0 at steps without observed values.
        """
        ...


@runtime_checkable
class ExactForecastable(Protocol):
    """A model that computes the exact distribution of all future steps without sampling."""

    def exact_forecast(self, values: Tensor, mask: Tensor, horizon: int) -> tuple[Tensor, Tensor]:
        """Return the mean (B, h, C) and the covariance (B, h, C, C) of the next h steps."""
        ...


class Model(Protocol):
    """A model that can be saved and restored as named tensors. Every `nn.Module` satisfies this protocol."""

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state_dict: Mapping[str, Tensor], /) -> object: ...


@runtime_checkable
class ResumableModel(Model, Protocol):
    """A model that needs more than its weights to continue its training."""

    def training_state(self) -> dict[str, Tree]: ...

    def load_training_state(self, state: Mapping[str, Tree], /) -> None: ...


@dataclass(frozen=True)
class Loss:
    value: Tensor  # scalar: the mean over the predictions of the batch, attached to the autograd graph
    carry: Tree  # initial state of the next batch (truncated backpropagation), or None
    tokens: int  # number of inputs read, in units of `Task.speed_unit`
    count: Tensor | None = None  # number of predictions in `value`; None if it is equal in all rows


@dataclass(frozen=True)
class Monitor:
    """The dev metric that selects the best checkpoint."""

    metric: str = "loss"
    higher_is_better: bool = False
    unit: str = "nats"  # unit of the training loss; exp(loss) is a perplexity only for "nats"
    remark: str = ""  # difference between training and dev loss, such as label smoothing or sampling

    def better(self, new: float, old: float) -> bool:
        return new > old if self.higher_is_better else new < old

    def prefers(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        """Return whether a new evaluation is better than an old evaluation.

        Any number is better than NaN. Among equal values, the lower loss is better. If the loss was not measured, the
        earlier evaluation is better.
        """
        a, b = new[self.metric], old[self.metric]
        if a == b:
            return new.get("loss", math.nan) < old.get("loss", math.nan)
        return (math.isnan(b) and not math.isnan(a)) or self.better(a, b)


class Task(Protocol):
    """The interface of a task that is trained by gradient descent.

    Subclasses can omit methods that have a default here.
    """

    monitor: Monitor
    speed_unit: str = "tokens"  # unit of the training speed

    def model(self) -> Any:
        """Return a newly initialized `nn.Module`; the caller sets the seed."""
        ...

    def model_section(self) -> Any:
        """Return the model section of the recipe for messages, or None without a recipe."""
        return None

    def steps_per_epoch(self) -> int: ...

    def largest_step(self, seed: int) -> int | None:
        """Return the step of the first epoch with the largest batch, or None if all batches have the same shape."""
        return None

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """Return the batch of a step. The batch depends only on the arguments and has one of finitely many shapes.

        If the shape does not determine the number of tokens, the entry "read" contains this number.
        """
        ...

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        """Compute the loss of a batch without device synchronization."""
        ...

    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        """Return the metrics of a split by name, including `monitor.metric`."""
        ...

    def inference_model(self, model: Any) -> Any:
        """Return the model to evaluate and save; by default, the trained model."""
        return model

    def validate(self, model: Any) -> dict[str, float]:
        """Return the dev metrics that are computed during training; override this if `evaluate` is slow."""
        return self.evaluate(model, "dev")


@dataclass(frozen=True)
class Estimate:
    """One stage of an estimation. `model` is None until a usable model exists."""

    step: int
    total: int
    model: Any | None
    values: Mapping[str, float]
    read: int = 0  # number of inputs read, in units of `speed_unit`
    speed_unit: str = "words"
    unit: str = "nats"  # unit of the loss in `values`


class Estimable(Protocol):
    """The interface of a task that is estimated without gradients, by counting or expectation–maximization."""

    monitor: Monitor

    def model(self) -> Any: ...

    def scale(self) -> tuple[int, str]:
        """Return the number of parameters (0 if unknown before counting) and the device."""
        return 0, "cpu"

    def estimates(self, model: Any | None, step: int) -> Iterator[Estimate]:
        """Yield the stages that follow the `model` saved at `step`, or all stages if `model` is None."""
        ...

    def evaluate(self, model: Any, split: str) -> dict[str, float]: ...
