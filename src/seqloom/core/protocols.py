"""The few agreements everything is built on.

The shape alphabet, used in every shape comment of the project:

    B batch   T query time   S source time   H hidden   D model   N heads   V vocabulary   G gates   C variables

Masks are boolean and True means "may be used"; a row with nothing to use gives zeros, never NaN.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from seqloom.core.tree import Tree, select_rows


@dataclass(frozen=True)
class DecodeState:
    """The state of a model in the sequences it generates.

    `hidden` has one row per hypothesis; `memory` one row per source (an encoder's output and its
    mask, say), shared by the hypotheses of that source. Rows are source-major: with k hypotheses
    each, source i owns rows i·k … i·k+k−1.
    """

    hidden: Tree
    memory: Tree = None


def select(state: DecodeState, hypothesis_rows: Tensor, source_rows: Tensor) -> DecodeState:
    """Reorder hypotheses, and let finished sources leave."""
    return DecodeState(select_rows(state.hidden, hypothesis_rows), select_rows(state.memory, source_rows))


class _WithAttention:
    attention: Tensor | None  # (B, S), or by layer and head, where the model has it

    @property
    def mean_attention(self) -> Tensor | None:
        """The attention (B, S), the mean over layers and heads."""
        if self.attention is None or self.attention.dim() == 2:
            return self.attention
        return self.attention.flatten(1, -2).mean(dim=1)


@dataclass(frozen=True)
class StepOutput(_WithAttention):
    log_probs: Tensor  # (B, V), normalised, of the token after the last real one
    state: DecodeState
    attention: Tensor | None = None


@dataclass(frozen=True)
class BestOutput(_WithAttention):
    """Of a step, the most probable tokens alone, as `seqloom.core.tokens.best_tokens` gives them."""

    values: Tensor  # (B, count) their log-probabilities
    ids: Tensor  # (B, count)
    state: DecodeState
    attention: Tensor | None = None


@runtime_checkable
class Steppable(Protocol):
    """A model that predicts the next token. All decoding depends on this protocol only.

    One that cannot say more than so many tokens, END included, may also have `longest_target`: a
    search stops there.
    """

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        """The state before the first token, for as many rows as `source` has, or `rows` of them."""
        ...

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """Read tokens (B, T) and predict what follows the last real one of each row.

        T > 1 reads a prompt, T = 1 decodes. `mask` (B, T) marks the real tokens. The state is
        consumed: clone it first to branch.
        """
        ...


@runtime_checkable
class BestSteppable(Steppable, Protocol):
    """A Steppable that can compute its most probable tokens without all log-probabilities."""

    def step_best(self, tokens: Tensor, state: DecodeState, count: int) -> BestOutput:
        """Read one token of each row (B, 1)."""
        ...


def longest_target(model: Steppable) -> int | None:
    """The most tokens that a model can say, END included; None for any number."""
    longest: int | None = getattr(model, "longest_target", None)
    return longest


@runtime_checkable
class LanguageModel(Steppable, Protocol):
    """A Steppable that also scores given tokens."""

    def score(self, inputs: Tensor, targets: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """log p(targets[b, t] | inputs[b, :t+1], state) for every position (B, T), and the state after the last."""
        ...


@dataclass(frozen=True)
class FutureStep:
    """What a model expects next: a Gaussian, of each variable by itself (`deviation`) or of all (`covariance`)."""

    mean: Tensor  # (B, C)
    state: Tree  # with the batch in dimension 0: whoever wants to branch repeats its rows
    deviation: Tensor | None = None  # (B, C)
    covariance: Tensor | None = None  # (B, C, C)


class SeriesModel(Protocol):
    """A model of series, which can be asked for the next values. All forecasts are written against this.

    Values come and go in the units of the data, NaN never; `mask` is True where one was observed,
    and what stands at the others is not looked at.
    """

    def start(self, rows: int) -> Tree:
        """The state before the first value."""
        ...

    def step(self, values: Tensor, state: Tree, mask: Tensor | None = None) -> FutureStep:
        """Read values (B, T, C), T ≥ 1, and predict the one after the last. Without a mask all were observed."""
        ...


@runtime_checkable
class Forecastable(SeriesModel, Protocol):
    """A model of series that also scores given values."""

    def score(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """log p of what was observed at each step (B, T), given all steps before it; 0 where nothing was."""
        ...


@runtime_checkable
class ExactForecastable(Protocol):
    """A model with an exact distribution of all future steps, which needs no sampling."""

    def exact_forecast(self, values: Tensor, mask: Tensor, horizon: int) -> tuple[Tensor, Tensor]:
        """The mean (B, h, C) and the covariance (B, h, C, C) of the next h steps."""
        ...


class Model(Protocol):
    """A model that can be saved and restored as named tensors. Every `nn.Module` is one."""

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state_dict: Mapping[str, Tensor], /) -> object: ...


@runtime_checkable
class ResumableModel(Model, Protocol):
    """A model that needs more than its weights to continue its training."""

    def training_state(self) -> dict[str, Tree]: ...

    def load_training_state(self, state: Mapping[str, Tree], /) -> None: ...


@dataclass(frozen=True)
class Loss:
    value: Tensor  # scalar: the mean over the batch's predictions, still attached to the graph
    carry: Tree  # what the next batch may start from (truncated backpropagation), or None
    tokens: int  # how many tokens, or vectors, were read: what speed is measured in
    count: Tensor | None = None  # how many predictions `value` is the mean of; None: as many in every row


@dataclass(frozen=True)
class Monitor:
    """The metric of dev that selects the best checkpoint."""

    metric: str = "loss"
    higher_is_better: bool = False
    unit: str = "nats"  # of the loss in training; exp(loss) is a perplexity only if this is "nats"
    remark: str = ""  # how the loss in training differs from that of dev: smoothed, of samples …

    def better(self, new: float, old: float) -> bool:
        return new > old if self.higher_is_better else new < old

    def prefers(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        """Is one evaluation better than another? Any number is better than none; where they are equally good, the lower
        loss decides, if it was measured, and else the earlier stays."""
        a, b = new[self.metric], old[self.metric]
        if a == b:
            return new.get("loss", math.nan) < old.get("loss", math.nan)
        return (math.isnan(b) and not math.isnan(a)) or self.better(a, b)


class Task(Protocol):
    """The interface of a task that is trained by gradient.

    A class that inherits from it need not define what has a default here.
    """

    monitor: Monitor
    counted: str = "tokens"  # what speed is measured in

    def model(self) -> Any:
        """Return a newly initialised `nn.Module`; the caller sets the seed."""
        ...

    def model_section(self) -> Any:
        """The recipe's section of the model, for messages; None where there is no recipe."""
        return None

    def steps_per_epoch(self) -> int: ...

    def largest_step(self, seed: int) -> int | None:
        """The step of the first epoch whose batch takes most memory; None where all batches have one shape."""
        return None

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """The batch of this step: a pure function of its arguments, of one of a finite set of shapes.

        Where the shape does not say how many tokens it has, its entry "read" does.
        """
        ...

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        """Compute the loss of a batch without device synchronization."""
        ...

    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        """Every metric of a split by name; `monitor.metric` is among them."""
        ...

    def validate(self, model: Any) -> dict[str, float]:
        """The metrics of dev during training: all of them, unless a whole evaluation takes long."""
        return self.evaluate(model, "dev")


@dataclass(frozen=True)
class Estimate:
    """One stage of an estimation: `model` is None while there is nothing worth keeping yet."""

    step: int
    total: int
    model: Any | None
    values: Mapping[str, float]
    read: int = 0  # words, or whatever `counted` says, that were read in it: what speed is measured in
    counted: str = "words"
    unit: str = "nats"  # of a loss among the values


class Estimable(Protocol):
    """The interface of a task that is estimated without gradients (counting, expectation–maximisation)."""

    monitor: Monitor

    def model(self) -> Any: ...

    def scale(self) -> tuple[int, str]:
        """Return the number of parameters, 0 if it is not known before counting, and the device."""
        return 0, "cpu"

    def estimates(self, model: Any | None, step: int) -> Iterator[Estimate]:
        """Continue from `model`, saved at `step`, or start from the beginning if it is None."""
        ...

    def evaluate(self, model: Any, split: str) -> dict[str, float]: ...
