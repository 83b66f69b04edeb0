"""Neural forecasters of series: a recurrent, a feed-forward and a Transformer network.

    d_t = y_t − y_{t−m}          m by `difference`; without one d_t = y_t
    x_t = [(d_t − c) / s; 1]     or [0; 0] where something is missing
    o_t = network(x_1 … x_t)
    p(y_{t+1}) = N(y_{t+1−m} + c + s μ(o_t), (s σ(o_t))²),   σ = softplus

c and s are mean and deviation of d in train, one each for every variable: buffers, so that they stay with the weights.
Training raises log p of each next value given those before, as in DeepAR (Salinas et al. 2017). A kind of network says
how it begins (`initial`) and how it reads (`read`).
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

MIN_DEVIATION = 1e-3  # of s
SCORED_WINDOWS = 1024  # windows
AHEAD = 8  # predictions that are learnt from one training window of a feed-forward network
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU}


@config
class ForecasterConfig:
    """The keys of every neural forecaster."""

    kind: str = ""
    context: PositiveInt | None = None  # steps it looks back, in training and in use; None is two seasons, at least 24
    difference: Difference | None = None  # predict y_t − y_{t−m}: season, step (m = 1), none; None: season, else step
    dropout: Fraction = 0.1  # within the network

    def steps(self, season: int) -> int:
        """The steps it looks back."""
        return max(24, 2 * season) if self.context is None else self.context


class Forecaster(nn.Module, ABC):
    """`variables` are C; `season` is m of a seasonal difference."""

    centre: Tensor
    scale: Tensor
    level: Tensor

    def __init__(self, config: Any, variables: int, season: int, width: int) -> None:
        super().__init__()
        self.config, self.variables, self.inputs = config, variables, 2 * variables
        self.context, self.lag = config.steps(season), lag_of(config.difference, season)
        self.memory = self.context + self.lag  # the most steps it looks back
        self.window = self.memory + 1  # steps of a training window: what is seen, and one to predict at least
        self.output = nn.Linear(width, 2 * variables)  # μ and σ, before softplus
        nn.init.zeros_(self.output.bias)
        self.register_buffer("centre", torch.zeros(variables))
        self.register_buffer("scale", torch.ones(variables))
        self.register_buffer("level", torch.zeros(variables))  # stands where nothing is known yet

    @abstractmethod
    def initial(self, rows: int) -> Tree:
        """The carry of the network before any input."""

    @abstractmethod
    def read(self, x: Tensor, carry: Tree) -> tuple[Tensor, Tree]:
        """x (B, T, 2C) to outputs (B, T, H), and the next carry; from `initial`, all outputs count, and otherwise
        the last may be the only one."""

    def set_scale(self, series: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Mean and deviation of the training series, values and masks (T, C) each."""
        pairs = [(values, mask) for values, mask in series if len(values) > self.lag]
        changes = [(v[self.lag :] - v[: len(v) - self.lag] if self.lag else v) for v, _ in pairs]
        known = [(m[self.lag :] & m[: len(m) - self.lag] if self.lag else m) for _, m in pairs]
        centre, scale = masked_moments(changes, known)
        self.centre.copy_(centre)
        self.scale.copy_(scale)
        self.level.copy_(masked_moments([v for v, _ in series], [m for _, m in series])[0])

    # --- inputs and predictions -------------------------------------------------------------------------------------

    def _inputs(
        self, values: Tensor, mask: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, n, 2C) of those of values (B, T, C) that have one m steps before them; and the whole past, with
        missing values replaced by those of m steps before: values and mask (B, P + T, C). `past` are values and mask
        (B, P, C) before these."""
        whole, known = values, mask
        if past is not None:
            whole, known = torch.cat([past[0], values], dim=1), torch.cat([past[1], mask], dim=1)
        lacking = self.lag + 1 - whole.shape[1]
        if lacking > 0:  # too short to subtract anything: then the mean stands before it
            before = self.level.expand(len(values), lacking, -1)
            whole, known = torch.cat([before, whole], dim=1), F.pad(known, (0, 0, lacking, 0), value=False)
        if self.lag:
            parts = [whole[:, : self.lag]]
            for step in range(self.lag, whole.shape[1], self.lag):
                part = whole[:, step : step + self.lag]
                parts.append(torch.where(known[:, step : step + self.lag], part, parts[-1][:, : part.shape[1]]))
            whole = torch.cat(parts, dim=1)
        n = min(values.shape[1], whole.shape[1] - self.lag)
        now, ago = slice(whole.shape[1] - n, None), slice(whole.shape[1] - n - self.lag, whole.shape[1] - self.lag)
        changes = whole[:, now] - whole[:, ago] if self.lag else whole[:, now]
        observed = known[:, now] & known[:, ago]
        z = torch.where(observed, (changes - self.centre) / self.scale, 0)
        return torch.cat([z, observed.to(z.dtype)], dim=2), whole, known

    def _subtracted(self, whole: Tensor, count: int) -> Tensor:
        """What stands m steps before the value after each of the last `count` positions."""
        end = whole.shape[1] - self.lag + 1
        return whole[:, end - count : end]

    def _predict(self, outputs: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
        """μ and σ (B, n, C) of the value after each of the last n positions."""
        mean, raw = at_least_float32(self.output(outputs)).chunk(2, dim=2)
        base = self._subtracted(whole, mean.shape[1]) if self.lag else 0
        return base + self.centre + self.scale * mean, self.scale * (F.softplus(raw) + MIN_DEVIATION)

    def loss(self, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of −log p over the values of windows (B, T, C) that were observed, and how many they are."""
        values = zero_padding(values.to(self.scale.dtype), mask)
        x, whole, known = self._inputs(values[:, :-1], mask[:, :-1])
        mean, deviation = self._predict(self.read(x, None)[0], whole)
        n = mean.shape[1]
        counted = mask[:, -n:]
        if self.lag:  # a difference to a missing value teaches nothing
            counted = counted & self._subtracted(known, n)
        losses = torch.where(counted, -log_density(values[:, -n:], mean, deviation), 0)
        return losses.sum() / counted.sum().clamp(min=1), counted.sum()

    # --- the interface of all models of series ----------------------------------------------------------------------

    def start(self, rows: int) -> Tree:
        past = self.scale.new_zeros(rows, 0, self.variables)
        return {"past": past, "known": torch.zeros_like(past, dtype=torch.bool), "carry": self.initial(rows)}

    def step(self, values: Tensor, state: Any, mask: Tensor | None = None) -> FutureStep:
        values = values.to(self.scale)
        mask = mask_or_ones(mask, values).to(values.device)
        x, whole, known = self._inputs(zero_padding(values, mask), mask, (state["past"], state["known"]))
        outputs, carry = self.read(x, state["carry"])
        mean, deviation = self._predict(outputs[:, -1:], whole)
        first = whole.shape[1] - self.lag  # what will be subtracted
        after = {"past": whole[:, first:], "known": known[:, first:], "carry": carry}
        return FutureStep(mean[:, 0], after, deviation=deviation[:, 0])

    def score(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Each value is predicted from the last `context` steps, as in a forecast; the first is not scored."""
        values = values.to(self.scale)
        mask = mask_or_ones(mask, values).to(values.device)
        values = zero_padding(values, mask)
        scores = values.new_zeros(values.shape[:2])
        for row in range(len(values)):
            for start in range(1, values.shape[1], SCORED_WINDOWS):
                steps = torch.arange(start, min(start + SCORED_WINDOWS, values.shape[1]), device=values.device)
                scores[row, steps] = self._score_steps(values[row], mask[row], steps)
        return scores

    def _score_steps(self, values: Tensor, mask: Tensor, steps: Tensor) -> Tensor:
        """log p (N,) of the values at these steps of one series (T, C)."""
        back = steps.unsqueeze(1) + torch.arange(-self.memory, 0, device=steps.device)  # (N, memory)
        inside = (back >= 0).unsqueeze(2)
        windows = torch.where(inside, values[back.clamp(min=0)], self.level)
        x, whole, _ = self._inputs(windows, mask[back.clamp(min=0)] & inside)
        mean, deviation = self._predict(self.read(x, None)[0][:, -1:], whole)
        log_p = log_density(values[steps], mean[:, 0], deviation[:, 0])
        return torch.where(mask[steps], log_p, 0).sum(dim=1)


def log_density(values: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """log N(values; mean, deviation²)"""
    return -0.5 * ((values - mean) / deviation) ** 2 - deviation.log() - 0.5 * math.log(2 * math.pi)


# --- recurrent --------------------------------------------------------------------------------------------------------


@config
class RecurrentForecasterConfig(ForecasterConfig, RecurrentOptions):
    kind: Literal["lstm"] = "lstm"
    layers: PositiveInt = 1  # cells stacked on each other
    hidden: PositiveInt = 32  # width of every layer's state
    dropout: Fraction = 0.1  # within the network

    def build(self, variables: int, season: int) -> "RecurrentForecaster":
        return RecurrentForecaster(self, variables, season)


class RecurrentForecaster(Forecaster):
    """h_t = stack of cells (x_t, h_{t−1})          o_t = h_t"""

    def __init__(self, config: RecurrentForecasterConfig, variables: int, season: int) -> None:
        super().__init__(config, variables, season, config.hidden)
        self.stack = config.stack(self.inputs, config.layers)
        self.dropout = make_dropout(config.dropout)

    def initial(self, rows: int) -> Tree:
        return self.stack.initial_state(rows)

    def read(self, x: Tensor, carry: Tree) -> tuple[Tensor, Tree]:
        hidden, carry = self.stack(x, carry)
        return self.dropout(hidden), carry

    def notes(self) -> list[str]:
        return self.stack.notes()


# --- feed-forward -----------------------------------------------------------------------------------------------------


@config
class WindowForecasterConfig(ForecasterConfig):
    kind: Literal["ffn"] = "ffn"
    layers: PositiveInt = 1  # hidden layers
    hidden: PositiveInt = 64  # width of each
    activation: Literal["tanh", "relu", "gelu"] = "relu"  # g
    direct: bool = True  # add a linear function of the window: what is left to the network is what that cannot say

    def build(self, variables: int, season: int) -> "WindowForecaster":
        return WindowForecaster(self, variables, season)


class WindowForecaster(Forecaster):
    """o_t = layers of tanh or another g over [x_t; x_{t−1}; … x_{t−n+1}],  n = `context`

    No memory but a window of delay taps on the last values: the autoregressive model with a network in place of the
    matrix.
    """

    def __init__(self, config: WindowForecasterConfig, variables: int, season: int) -> None:
        super().__init__(config, variables, season, config.hidden)
        self.window = self.memory + AHEAD
        taps = self.context * self.inputs
        widths = [taps, *[config.hidden] * config.layers]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.activation = ACTIVATIONS[config.activation]()
        self.direct = nn.Linear(taps, config.hidden, bias=False) if config.direct else None
        self.dropout = make_dropout(config.dropout)

    def initial(self, rows: int) -> Tree:
        """The inputs before the first: nothing known."""
        return self.scale.new_zeros(rows, self.context - 1, self.inputs)

    def read(self, x: Tensor, carry: Tree) -> tuple[Tensor, Tree]:
        """Without a carry only whole windows are read: (B, T − n + 1, H)."""
        whole = x if carry is None else torch.cat([carry, x], dim=1)
        h = taps = whole.unfold(1, self.context, 1).flatten(2)  # (B, T', 2C · n)
        for layer in self.layers:
            h = self.dropout(self.activation(layer(h)))
        if self.direct is not None:
            h = h + self.direct(taps)
        return h, whole[:, whole.shape[1] - self.context + 1 :]


# --- Transformer ------------------------------------------------------------------------------------------------------


@config
class TransformerForecasterConfig(TransformerOptions, ForecasterConfig):
    kind: Literal["transformer"] = "transformer"
    layers: PositiveInt = 2  # blocks stacked on each other
    d_model: PositiveInt = 32  # of every vector in them
    positions: PositionsConfig = PositionsConfig(kind="rotary")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.longest is not None and self.context is not None and self.context > self.longest:
            yield f"context must be at most the {self.longest} learned positions; got {self.context}"

    def build(self, variables: int, season: int) -> "TransformerForecaster":
        return TransformerForecaster(self, variables, season)


class TransformerForecaster(Forecaster):
    """e_j = W x_j + PE(j)
    e ← e + attention(norm(e)),  e ← e + FFN(norm(e))          L times, attending to earlier steps only
    o_j = norm(e_j)
    """

    def __init__(self, config: TransformerForecasterConfig, variables: int, season: int) -> None:
        super().__init__(config, variables, season, config.d_model)
        self.embed = nn.Linear(self.inputs, config.d_model)
        self.positions = config.positions.added(config.d_model)
        self.dropout = Dropout(config.dropout)
        self.blocks, self.norm = config.stack(config.layers), config.final_norm()

    def initial(self, rows: int) -> Tree:
        """The inputs it can still look at: none yet."""
        return self.scale.new_zeros(rows, 0, self.inputs)

    def read(self, x: Tensor, carry: Tree) -> tuple[Tensor, Tree]:
        """With a carry the last `context` inputs are read anew, from position 0."""
        whole = x if carry is None else torch.cat([carry, x], dim=1)[:, -self.context :]
        positions = torch.arange(whole.shape[1], device=x.device)
        e = self.embed(whole)
        if self.positions is not None:
            e = e + self.positions(positions, like=e).to(e.dtype)
        scope = AttentionScope(is_causal=True, positions=positions)
        e = self.norm(self.blocks(self.dropout(e), scope).x)
        return e, whole[:, max(0, whole.shape[1] - self.context + 1) :]
