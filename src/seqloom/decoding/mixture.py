"""Several models as one: p(x_t | x_<t) = Σ_i λ_i p_i(x_t | x_<t), with λ_i ≥ 0 and Σ_i λ_i = 1.

A mixture is a `Steppable` made of `Steppable`s, of whatever kinds: it steps and is searched like
any other. Of language models it is a `LanguageModel`; of translators, all given one source, it is
an `Ensemble`. Its parts must share one vocabulary.
"""

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from seqloom.core.errors import UsageError
from seqloom.core.protocols import DecodeState, StepOutput, longest_target
from seqloom.core.tree import Tree, leaves

Part: TypeAlias = Any  # a model to mix: of language models one with `score`, of translators with `target_log_probs`
TOLERANCE = 1e-4  # how far from one the sum of given weights may lie; then they are made to sum to one


class Mixture:
    """Linear interpolation of `Steppable`s. The state is that of every part, side by side, so a source is read once by
    each of them, and a hypothesis that moves takes along what each knows of it."""

    def __init__(self, models: Sequence[Part], weights: Sequence[float]) -> None:
        self.models = list(models)
        self.weights = normalize_weights(weights, len(models))

    @property
    def device(self) -> torch.device:
        return next(leaves(self.start().carry)).device

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        return _together([model.start(source, rows) for model in self.models])

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        outputs = [model.step(tokens, own, mask) for model, own in zip(self.models, _apart(state), strict=True)]
        log_probs = mix([output.log_probs for output in outputs], self.weights)
        attention = mean_attention(output.mean_attention for output in outputs)
        return StepOutput(log_probs, _together([output.state for output in outputs]), attention)

    def score(self, inputs: Tensor, targets: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """Of language models only."""
        scored = [model.score(inputs, targets, own) for model, own in zip(self.models, _apart(state), strict=True)]
        return mix([scores for scores, _ in scored], self.weights), _together([own for _, own in scored])


def _together(states: Sequence[DecodeState]) -> DecodeState:
    return DecodeState(tuple(state.carry for state in states), tuple(state.memory for state in states))


def _apart(state: DecodeState) -> list[DecodeState]:
    return [DecodeState(carry, memory) for carry, memory in zip(state.carry, state.memory, strict=True)]


class Ensemble(nn.Module):
    """Translators as one, each with the same say: p(y_t | y_<t, x) = 1/M Σ_i p_i(y_t | y_<t, x)."""

    def __init__(self, models: Sequence[Part]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.mixture = Mixture(models, [1 / len(models)] * len(models))
        self.start, self.step = self.mixture.start, self.mixture.step

    @property
    def longest_target(self) -> int | None:
        """The most tokens of a target that all of them can say, END included; None for any number."""
        return min((n for model in self.mixture.models if (n := longest_target(model))), default=None)

    def target_log_probs(self, batch: Tree) -> Tensor:
        """log p of each target (B, T), 0 at padding."""
        return mix([model.target_log_probs(batch) for model in self.mixture.models], self.mixture.weights)

    def attention(self, batch: Tree) -> Tensor | None:
        """Where each target (B, T) looked, on average: weights (B, T, S); None if no part has attention."""
        return mean_attention(model.attention(batch) for model in self.mixture.models)


def mean_attention(weights: Iterable[Tensor | None]) -> Tensor | None:
    """The mean of the attention weights of those models that have them."""
    known = [own for own in weights if own is not None]
    if not known:
        return None
    precision = reduce(torch.promote_types, [own.dtype for own in known])
    return torch.stack([own.to(precision) for own in known]).mean(dim=0)


def mix(log_probs: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """log Σ_i λ_i p_i of log-probabilities of one shape, in the highest precision among them.

    Computed as m + log(Σ_i λ_i exp(log p_i − m) / Σ_i λ_i), m being the largest log p_i. Both sums
    are made alike, so models that agree are mixed without any rounding, however many: a model mixed
    with itself is that model.
    """
    precision = reduce(torch.promote_types, [own.dtype for own in log_probs])
    heard = [(own.to(precision), share) for own, share in zip(log_probs, weights, strict=True) if share > 0]
    parts, shares = [own for own, _ in heard], [own.new_full((), share) for own, share in heard]
    most = reduce(torch.maximum, parts)
    most = most.masked_fill(most.isneginf(), 0.0)  # impossible to all of them: log 0, not 0 / 0
    mixed = reduce(torch.add, [(own - most).exp() * share for own, share in zip(parts, shares, strict=True)])
    return most + (mixed / reduce(torch.add, shares)).log()


def normalize_weights(weights: Sequence[float], models: int) -> list[float]:
    """The weights, made to sum to one to the last digit; refused if they are not shares of one at all."""
    shown = ", ".join(f"{weight:g}" for weight in weights)
    if len(weights) != models:
        raise UsageError(f"There must be one weight for each of the {models} models; got {len(weights)}: {shown}.")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise UsageError(f"Weights must be numbers of at least 0; got {shown}.")
    total = math.fsum(weights)
    if abs(total - 1) > TOLERANCE:
        raise UsageError(f"The weights must sum to 1; {shown} sum to {total:g}. Left out, they are chosen on dev.")
    return [weight / total for weight in weights]
