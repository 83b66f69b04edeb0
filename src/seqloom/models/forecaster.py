"""What every neural forecaster shares: what it is shown of a series, and what it makes of the answer.

    d_t = y_t − y_{t−m}          m by `difference`; without one d_t = y_t
    x_t = [(d_t − c) / s; 1]     or [0; 0] where something is missing
    o_t = network(x_1 … x_t)
    p(y_{t+1}) = N(y_{t+1−m} + c + s μ(o_t), (s σ(o_t))²),   σ = softplus

c and s are mean and deviation of d in train, one each for every variable: buffers, so that they stay with the weights.
Training raises log p of each next value given those before, as in DeepAR (Salinas et al. 2017). A kind of network says
how it begins (`initial`) and how it reads (`read`).
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import Difference, Fraction, PositiveInt, lag_of
from seqloom.core.protocols import FutureStep
from seqloom.core.tree import Tree
from seqloom.nn.masks import zero_padding
from seqloom.nn.softmax import at_least_float32

NARROWEST = 1e-3  # of s: a deviation never falls below it
SCORED_AT_ONCE = 1024  # windows


@config
class ForecasterConfig:
    """The keys that all kinds share."""

    kind: str = ""
    context: PositiveInt | None = None  # steps it looks back, in training and in use; None is two seasons, at least 24
    difference: Difference | None = None  # predict y_t − y_{t−m}: season, step (m = 1), none; None: season, else step
    dropout: Fraction = 0.1  # within the network

    def steps(self, season: int) -> int:
        return max(24, 2 * season) if self.context is None else self.context


class Forecaster(nn.Module):
    """`variables` are C; `season` is m of a seasonal difference."""

    centre: Tensor
    scale: Tensor
    level: Tensor

    def __init__(self, config: Any, variables: int, season: int, width: int) -> None:
        super().__init__()
        self.config, self.variables = config, variables
        self.context, self.lag = config.steps(season), lag_of(config.difference, season)
        self.output = nn.Linear(width, 2 * variables)  # μ and σ, before softplus
        nn.init.zeros_(self.output.bias)
        self.register_buffer("centre", torch.zeros(variables))
        self.register_buffer("scale", torch.ones(variables))
        self.register_buffer("level", torch.zeros(variables))  # stands where nothing is known yet

    @property
    def inputs(self) -> int:
        """How wide x is."""
        return 2 * self.variables

    @property
    def memory(self) -> int:
        """The most steps it looks back."""
        return self.context + self.lag

    @property
    def window(self) -> int:
        """Steps of a training window: what is seen, what is subtracted from it, and one to predict at least."""
        return self.memory + 1

    def initial(self, rows: int) -> Tree:
        """What the network carries before it has read anything."""
        raise NotImplementedError

    def read(self, x: Tensor, carry: Tree) -> tuple[Tensor, Tree]:
        """x (B, T, 2C) to outputs (B, T, H), and what it carries on; from `initial`, all outputs count, and otherwise
        the last may be the only one."""
        raise NotImplementedError

    def set_scale(self, series: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Mean and deviation of the training series, values and masks (T, C) each."""
        pairs = [(values, mask) for values, mask in series if len(values) > self.lag]
        changes = [(v[self.lag :] - v[: len(v) - self.lag] if self.lag else v) for v, _ in pairs]
        known = [(m[self.lag :] & m[: len(m) - self.lag] if self.lag else m) for _, m in pairs]
        self.centre.copy_(_moments(changes, known)[0])
        self.scale.copy_(_moments(changes, known)[1])
        self.level.copy_(_moments([v for v, _ in series], [m for _, m in series])[0])

    # --- what the network sees and what it says ---------------------------------------------------------------------

    def _shown(self, values: Tensor, mask: Tensor, past: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, n, 2C) of those of values (B, T, C) that have one m steps before them; and all that is known, with
        missing values made up as those of m steps before: values and mask (B, P + T, C)."""
        whole, known = torch.cat([past, values], dim=1), torch.cat([known, mask], dim=1)
        lacking = self.lag + 1 - whole.shape[1]
        if lacking > 0:  # too short to subtract anything: then it was all as it was on average
            before = self.level.expand(len(values), lacking, -1)
            whole, known = torch.cat([before, whole], dim=1), F.pad(known, (0, 0, lacking, 0), value=False)
        whole = _carried(whole, known, self.lag) if self.lag else whole
        n = min(values.shape[1], whole.shape[1] - self.lag)
        own, ago = slice(whole.shape[1] - n, None), slice(whole.shape[1] - n - self.lag, whole.shape[1] - self.lag)
        changes = whole[:, own] - whole[:, ago] if self.lag else whole[:, own]
        seen = known[:, own] & known[:, ago]
        z = torch.where(seen, (changes - self.centre) / self.scale, 0)
        return torch.cat([z, seen.to(z.dtype)], dim=2), whole, known

    def _subtracted(self, whole: Tensor, count: int) -> Tensor:
        """What stands m steps before the value after each of the last `count` places."""
        end = whole.shape[1] - self.lag + 1
        return whole[:, end - count : end]

    def _expected(self, outputs: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
        """μ and σ (B, n, C) of the value after each of the last n places."""
        mean, raw = at_least_float32(self.output(outputs)).chunk(2, dim=2)
        base = self._subtracted(whole, mean.shape[1]) if self.lag else 0
        return base + self.centre + self.scale * mean, self.scale * (F.softplus(raw) + NARROWEST)

    def loss(self, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of −log p over the values of windows (B, T, C) that were observed, and how many they are."""
        values, nothing = zero_padding(values.to(self.scale.dtype), mask), self._nothing(len(values))
        x, whole, known = self._shown(values[:, :-1], mask[:, :-1], *nothing)
        outputs, _ = self.read(x, None)
        mean, deviation = self._expected(outputs, whole)
        n = mean.shape[1]
        counted = mask[:, -n:]
        if self.lag:  # what is relative to a value that is missing teaches nothing
            counted = counted & self._subtracted(known, n)
        losses = torch.where(counted, -log_density(values[:, -n:], mean, deviation), 0)
        return losses.sum() / counted.sum().clamp(min=1), counted.sum()

    def _nothing(self, rows: int) -> tuple[Tensor, Tensor]:
        past = self.scale.new_zeros(rows, 0, self.variables)
        return past, torch.zeros_like(past, dtype=torch.bool)

    # --- what all models of series can do ---------------------------------------------------------------------------

    def start(self, rows: int) -> Tree:
        past, known = self._nothing(rows)
        return {"past": past, "known": known, "carry": self.initial(rows)}

    def step(self, values: Tensor, state: Any, mask: Tensor | None = None) -> FutureStep:
        values = values.to(self.scale)
        mask = torch.ones_like(values, dtype=torch.bool) if mask is None else mask.to(values.device)
        values = zero_padding(values, mask)
        x, whole, known = self._shown(values, mask, state["past"], state["known"])
        outputs, carry = self.read(x, state["carry"])
        mean, deviation = self._expected(outputs[:, -1:], whole)
        first = whole.shape[1] - self.lag  # what will be subtracted
        after = {"past": whole[:, first:], "known": known[:, first:], "carry": carry}
        return FutureStep(mean[:, 0], after, deviation=deviation[:, 0])

    def score(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Each value is predicted from the last `context` steps, as in a forecast; the first is not scored."""
        values = values.to(self.scale)
        mask = torch.ones_like(values, dtype=torch.bool) if mask is None else mask.to(values.device)
        values = zero_padding(values, mask)
        found = values.new_zeros(values.shape[:2])
        for row in range(len(values)):
            for start in range(1, values.shape[1], SCORED_AT_ONCE):
                places = torch.arange(start, min(start + SCORED_AT_ONCE, values.shape[1]), device=values.device)
                found[row, places] = self._scores(values[row], mask[row], places)
        return found

    def _scores(self, values: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        """log p (N,) of what stands at these places of one series (T, C)."""
        back = places.unsqueeze(1) + torch.arange(-self.memory, 0, device=places.device)  # (N, memory)
        inside = (back >= 0).unsqueeze(2)
        windows = torch.where(inside, values[back.clamp(min=0)], self.level)
        known = mask[back.clamp(min=0)] & inside
        x, whole, _ = self._shown(windows, known, *self._nothing(len(places)))
        outputs, _ = self.read(x, None)
        mean, deviation = self._expected(outputs[:, -1:], whole)
        log_p = log_density(values[places], mean[:, 0], deviation[:, 0])
        return torch.where(mask[places], log_p, 0).sum(dim=1)


def log_density(values: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    return -0.5 * ((values - mean) / deviation) ** 2 - deviation.log() - 0.5 * math.log(2 * math.pi)


def _moments(values: Sequence[Tensor], masks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and deviation (C,) of what was observed; a variable that never changes has deviation 1."""
    whole, known = torch.cat(list(values)).double(), torch.cat(list(masks))
    count = known.sum(dim=0).clamp(min=1)
    mean = torch.where(known, whole, 0).sum(dim=0) / count
    variance = torch.where(known, (whole - mean) ** 2, 0).sum(dim=0) / count
    return mean, torch.where(variance > 0, variance.sqrt(), 1.0)


def _carried(values: Tensor, known: Tensor, lag: int) -> Tensor:
    """Values (B, T, C) with those of `lag` steps before where one is not known."""
    parts = [values[:, :lag]]
    for start in range(lag, values.shape[1], lag):
        own = slice(start, min(start + lag, values.shape[1]))
        before = parts[-1][:, : own.stop - own.start]
        parts.append(torch.where(known[:, own], values[:, own], before))
    return torch.cat(parts, dim=1)
