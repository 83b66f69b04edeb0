"""Neural forecasters of series: a recurrent, a feed-forward and a Transformer network.

    d_t = y_t − y_{t−m}          `difference` sets m; without a difference, d_t = y_t
    x_t = [(d_t − c) / s; 1]     [0; 0] if y_t or y_{t−m} is missing
    o_t = network(x_1 … x_t)
    p(y_{t+1}) = N(y_{t+1−m} + c + s μ(o_t), (s σ(o_t))²),   σ = softplus

c and s are the mean and the standard deviation of d in train, one per variable, stored as buffers. Training maximizes
log p of each value given the previous values, as in DeepAR (Salinas et al. 2017). A network defines `initial_state` and
`read`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import Difference, Fraction, PositiveInt, lag_of
from seqloom.core.protocols import FutureStep
from seqloom.core.tree import Tree
from seqloom.nn.masks import AttentionScope, Dropout, make_dropout, mask_or_ones, masked_moments, zero_padding
from seqloom.nn.positions import PositionsConfig
from seqloom.nn.recurrent import RecurrentOptions
from seqloom.nn.softmax import at_least_float32
from seqloom.nn.transformer import TransformerOptions

MIN_DEVIATION = 1e-3  # minimum deviation of the normalized values
WINDOWS_PER_BATCH = 1024  # windows per batch in `score`
TARGETS_PER_WINDOW = 8  # targets in a training window of the feed-forward network
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU}


@config
class ForecasterConfig:
    """The options of every neural forecaster."""

    kind: str = ""
    context: PositiveInt | None = None  # number of past steps that the network reads; null: two seasons, at least 24
    # predict y_t − y_{t−m}: season, step (m = 1) or none (y_t); null: season if known, else step
    difference: Difference | None = None
    dropout: Fraction = 0.1  # dropout within the network

    def steps(self, season: int) -> int:
        """Return the number of past steps that the network reads."""
        return max(24, 2 * season) if self.context is None else self.context


class ForecasterBase(nn.Module, ABC):
    """The base class of neural forecasters of C `variables`; `season` is the lag m of a seasonal difference."""

    centre: Tensor
    scale: Tensor
    level: Tensor

    def __init__(self, config: Any, variables: int, season: int, output_size: int) -> None:
        super().__init__()
        self.config, self.variables, self.inputs = config, variables, 2 * variables
        self.context, self.lag = config.steps(season), lag_of(config.difference, season)
        self.memory = self.context + self.lag  # number of past steps that a prediction depends on
        self.window = self.memory + 1  # length of a training window, with at least one target
        self.output = nn.Linear(output_size, 2 * variables)  # μ and σ, before softplus
        nn.init.zeros_(self.output.bias)
        self.register_buffer("centre", torch.zeros(variables))
        self.register_buffer("scale", torch.ones(variables))
        self.register_buffer("level", torch.zeros(variables))  # the mean, used before the first value

    @abstractmethod
    def initial_state(self, batch_size: int) -> Tree:
        """Return the state of the network before the first input."""

    @abstractmethod
    def read(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Map x (B, T, 2C) to outputs (B, T, H) and the next state.

        Without a state, return only the outputs of complete windows.
        """

    def set_scale(self, series: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Set the mean and the standard deviation from the training series, each given as values and mask (T, C)."""
        pairs = [(values, mask) for values, mask in series if len(values) > self.lag]
        changes = [(v[self.lag :] - v[: len(v) - self.lag] if self.lag else v) for v, _ in pairs]
        observed = [(m[self.lag :] & m[: len(m) - self.lag] if self.lag else m) for _, m in pairs]
        centre, scale = masked_moments(changes, observed)
        self.centre.copy_(centre)
        self.scale.copy_(scale)
        self.level.copy_(masked_moments([v for v, _ in series], [m for _, m in series])[0])

    # --- inputs and predictions -------------------------------------------------------------------------------------

    def _inputs(
        self, values: Tensor, mask: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the inputs x (B, n, 2C) for the last n of the T values (B, T, C).

        n is the number of values with a predecessor m steps earlier. `past` contains the previous P values and their
        mask (B, P, C). Also return all values and their mask (B, P + T, C), with each missing value replaced by the
        value m steps earlier.
        """
        history, observed = values, mask
        if past is not None:
            history, observed = torch.cat([past[0], values], dim=1), torch.cat([past[1], mask], dim=1)
        missing = self.lag + 1 - history.shape[1]
        if missing > 0:  # the series is too short for a difference: prepend the mean
            before = self.level.expand(len(values), missing, -1)
            history, observed = torch.cat([before, history], dim=1), F.pad(observed, (0, 0, missing, 0), value=False)
        if self.lag:
            parts = [history[:, : self.lag]]
            for step in range(self.lag, history.shape[1], self.lag):
                part = history[:, step : step + self.lag]
                parts.append(torch.where(observed[:, step : step + self.lag], part, parts[-1][:, : part.shape[1]]))
            history = torch.cat(parts, dim=1)
        length = history.shape[1]
        n = min(values.shape[1], length - self.lag)
        now, earlier = slice(length - n, None), slice(length - n - self.lag, length - self.lag)
        changes = history[:, now] - history[:, earlier] if self.lag else history[:, now]
        both_observed = observed[:, now] & observed[:, earlier]
        z = torch.where(both_observed, (changes - self.centre) / self.scale, 0)
        return torch.cat([z, both_observed.to(z.dtype)], dim=2), history, observed

    def _lagged(self, history: Tensor, count: int) -> Tensor:
        """Return y_{t+1−m} for the last `count` positions t."""
        end = history.shape[1] - self.lag + 1
        return history[:, end - count : end]

    def _predict(self, outputs: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean and standard deviation (B, n, C) of the value after each of the last n positions."""
        mean, raw = at_least_float32(self.output(outputs)).chunk(2, dim=2)
        base = self._lagged(history, mean.shape[1]) if self.lag else 0
        return base + self.centre + self.scale * mean, self.scale * (F.softplus(raw) + MIN_DEVIATION)

    def loss(self, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean of −log p over the observed values of windows (B, T, C), and the number of these values."""
        values = zero_padding(values.to(self.scale.dtype), mask)
        x, history, observed = self._inputs(values[:, :-1], mask[:, :-1])
        mean, deviation = self._predict(self.read(x, None)[0], history)
        n = mean.shape[1]
        counted = mask[:, -n:]
        if self.lag:  # differences to missing values are ignored
            counted = counted & self._lagged(observed, n)
        losses = torch.where(counted, -log_density(values[:, -n:], mean, deviation), 0)
        return losses.sum() / counted.sum().clamp(min=1), counted.sum()

    # --- the `Forecastable` interface -------------------------------------------------------------------------------

    def start(self, rows: int) -> Tree:
        past = self.scale.new_zeros(rows, 0, self.variables)
        return {"past": past, "observed": torch.zeros_like(past, dtype=torch.bool), "state": self.initial_state(rows)}

    def step(self, values: Tensor, state: Any, mask: Tensor | None = None) -> FutureStep:
        values = values.to(self.scale)
        mask = mask_or_ones(mask, values).to(values.device)
        x, history, observed = self._inputs(zero_padding(values, mask), mask, (state["past"], state["observed"]))
        outputs, network_state = self.read(x, state["state"])
        mean, deviation = self._predict(outputs[:, -1:], history)
        first = history.shape[1] - self.lag  # the next differences need the last `lag` values
        state = {"past": history[:, first:], "observed": observed[:, first:], "state": network_state}
        return FutureStep(mean[:, 0], state, deviation=deviation[:, 0])

    def score(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return log p (B, T) of each value given the last `context` steps. The first value is not scored."""
        values = values.to(self.scale)
        mask = mask_or_ones(mask, values).to(values.device)
        values = zero_padding(values, mask)
        scores = values.new_zeros(values.shape[:2])
        for row in range(len(values)):
            for start in range(1, values.shape[1], WINDOWS_PER_BATCH):
                steps = torch.arange(start, min(start + WINDOWS_PER_BATCH, values.shape[1]), device=values.device)
                scores[row, steps] = self._score_steps(values[row], mask[row], steps)
        return scores

    def _score_steps(self, values: Tensor, mask: Tensor, steps: Tensor) -> Tensor:
        """Return log p (N,) of the values at `steps` (N,) of one series (T, C)."""
        back = steps.unsqueeze(1) + torch.arange(-self.memory, 0, device=steps.device)  # (N, memory)
        inside = (back >= 0).unsqueeze(2)
        windows = torch.where(inside, values[back.clamp(min=0)], self.level)
        x, history, _ = self._inputs(windows, mask[back.clamp(min=0)] & inside)
        mean, deviation = self._predict(self.read(x, None)[0][:, -1:], history)
        log_p = log_density(values[steps], mean[:, 0], deviation[:, 0])
        return torch.where(mask[steps], log_p, 0).sum(dim=1)


def log_density(values: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return log N(values; mean, deviation²)."""
    return -0.5 * ((values - mean) / deviation) ** 2 - deviation.log() - 0.5 * math.log(2 * math.pi)


# --- recurrent --------------------------------------------------------------------------------------------------------


@config
class RecurrentForecasterConfig(ForecasterConfig, RecurrentOptions):
    kind: Literal["lstm"] = "lstm"
    layers: PositiveInt = 1  # number of recurrent layers
    hidden: PositiveInt = 32  # size of each layer's state
    dropout: Fraction = 0.1  # dropout within the network

    def build(self, variables: int, season: int) -> "RecurrentForecaster":
        return RecurrentForecaster(self, variables, season)


class RecurrentForecaster(ForecasterBase):
    """A recurrent forecaster: h_t = stack of cells (x_t, h_{t−1}), o_t = h_t."""

    def __init__(self, config: RecurrentForecasterConfig, variables: int, season: int) -> None:
        super().__init__(config, variables, season, config.hidden)
        self.stack = config.stack(self.inputs, config.layers)
        self.dropout = make_dropout(config.dropout)

    def initial_state(self, batch_size: int) -> Tree:
        return self.stack.initial_state(batch_size)

    def read(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        hidden, state = self.stack(x, state)
        return self.dropout(hidden), state

    def notes(self) -> list[str]:
        return self.stack.notes()


# --- feed-forward -----------------------------------------------------------------------------------------------------


@config
class WindowForecasterConfig(ForecasterConfig):
    kind: Literal["ffn"] = "ffn"
    layers: PositiveInt = 1  # number of hidden layers
    hidden: PositiveInt = 64  # size of each hidden layer
    activation: Literal["tanh", "relu", "gelu"] = "relu"  # activation function g
    direct: bool = True  # add a linear function of the window to the output of the network

    def build(self, variables: int, season: int) -> "WindowForecaster":
        return WindowForecaster(self, variables, season)


class WindowForecaster(ForecasterBase):
    """A feed-forward forecaster: o_t = hidden layers over [x_t; x_{t−1}; … x_{t−n+1}], n = `context`.

    This is an autoregressive model with a network instead of a matrix.
    """

    def __init__(self, config: WindowForecasterConfig, variables: int, season: int) -> None:
        super().__init__(config, variables, season, config.hidden)
        self.window = self.memory + TARGETS_PER_WINDOW
        taps = self.context * self.inputs
        sizes = [taps, *[config.hidden] * config.layers]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.activation = ACTIVATIONS[config.activation]()
        self.direct = nn.Linear(taps, config.hidden, bias=False) if config.direct else None
        self.dropout = make_dropout(config.dropout)

    def initial_state(self, batch_size: int) -> Tree:
        """Return zeros (B, n − 1, 2C), which replace the inputs before the first input."""
        return self.scale.new_zeros(batch_size, self.context - 1, self.inputs)

    def read(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Return the outputs and the next state; without a state, outputs (B, T − n + 1, H) of complete windows."""
        inputs = x if state is None else torch.cat([state, x], dim=1)
        h = taps = inputs.unfold(1, self.context, 1).flatten(2)  # (B, T', 2C · n)
        for layer in self.layers:
            h = self.dropout(self.activation(layer(h)))
        if self.direct is not None:
            h = h + self.direct(taps)
        return h, inputs[:, inputs.shape[1] - self.context + 1 :]


# --- Transformer ------------------------------------------------------------------------------------------------------


@config
class TransformerForecasterConfig(TransformerOptions, ForecasterConfig):
    kind: Literal["transformer"] = "transformer"
    layers: PositiveInt = 2  # number of blocks
    d_model: PositiveInt = 32  # size of the vectors in the blocks
    positions: PositionsConfig = PositionsConfig(kind="rotary")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.longest is not None and self.context is not None and self.context > self.longest:
            yield f"context must be at most {self.longest}, the number of learned positions; got {self.context}"

    def build(self, variables: int, season: int) -> "TransformerForecaster":
        return TransformerForecaster(self, variables, season)


class TransformerForecaster(ForecasterBase):
    """A causal Transformer forecaster:

    e_j = W x_j + PE(j)
    e ← e + attention(norm(e)),  e ← e + FFN(norm(e))          L times, with a causal mask
    o_j = norm(e_j)
    """

    def __init__(self, config: TransformerForecasterConfig, variables: int, season: int) -> None:
        super().__init__(config, variables, season, config.d_model)
        self.embed = nn.Linear(self.inputs, config.d_model)
        self.positions = config.positions.added(config.d_model)
        self.dropout = Dropout(config.dropout)
        self.blocks, self.norm = config.stack(config.layers), config.final_norm()

    def initial_state(self, batch_size: int) -> Tree:
        """Return an empty tensor (B, 0, 2C); the state consists of the previous inputs."""
        return self.scale.new_zeros(batch_size, 0, self.inputs)

    def read(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Return the outputs and the next state. With a state, read the last `context` inputs again from position 0."""
        inputs = x if state is None else torch.cat([state, x], dim=1)[:, -self.context :]
        positions = torch.arange(inputs.shape[1], device=x.device)
        e = self.embed(inputs)
        if self.positions is not None:
            e = e + self.positions(positions, like=e).to(e.dtype)
        scope = AttentionScope(is_causal=True, positions=positions)
        e = self.norm(self.blocks(self.dropout(e), scope).x)
        return e, inputs[:, max(0, inputs.shape[1] - self.context + 1) :]
