"""Mixtures of models: p(x_t | x_<t) = Σ_i λ_i p_i(x_t | x_<t), with λ_i ≥ 0 and Σ_i λ_i = 1.

A mixture of `Steppable`s is a `Steppable`. A mixture of language models is a `CausalLanguageModel`; a
uniform mixture of translators is an `Ensemble`. All models must have the same vocabulary.
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

Part: TypeAlias = Any  # a language model with `score`, or a translator with `target_log_probs`
WEIGHT_TOLERANCE = 1e-4  # maximum deviation of the sum of weights from 1 before normalization


class Mixture:
    """Linear interpolation of `Steppable`s.

    The state contains the states of all models, so each model reads a source once, and reordering
    hypotheses reorders all states.
    """

    def __init__(self, models: Sequence[Part], weights: Sequence[float]) -> None:
        self.models = list(models)
        self.weights = normalize_weights(weights, len(models))

    @property
    def device(self) -> torch.device:
        return next(leaves(self.start().hidden)).device

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        return _join_states([model.start(source, rows) for model in self.models])

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        outputs = [model.step(tokens, part, mask) for model, part in zip(self.models, _split_state(state), strict=True)]
        log_probs = mix([output.log_probs for output in outputs], self.weights)
        attention = mean_attention(output.mean_attention for output in outputs)
        return StepOutput(log_probs, _join_states([output.state for output in outputs]), attention)

    def score(self, inputs: Tensor, targets: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """Return the scores of a mixture of language models and its next state."""
        parts = zip(self.models, _split_state(state), strict=True)
        results = [model.score(inputs, targets, part) for model, part in parts]
        return mix([scores for scores, _ in results], self.weights), _join_states([after for _, after in results])


def _join_states(states: Sequence[DecodeState]) -> DecodeState:
    return DecodeState(tuple(state.hidden for state in states), tuple(state.memory for state in states))


def _split_state(state: DecodeState) -> list[DecodeState]:
    return [DecodeState(hidden, memory) for hidden, memory in zip(state.hidden, state.memory, strict=True)]


class Ensemble(nn.Module):
    """A uniform mixture of translators: p(y_t | y_<t, x) = 1/M Σ_i p_i(y_t | y_<t, x)."""

    def __init__(self, models: Sequence[Part]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.mixture = Mixture(models, [1 / len(models)] * len(models))
        self.start, self.step = self.mixture.start, self.mixture.step

    @property
    def longest_target(self) -> int | None:
        """The maximum target length that all models support, including END, or None if it is unlimited."""
        return min((n for model in self.mixture.models if (n := longest_target(model))), default=None)

    def target_log_probs(self, batch: Tree) -> Tensor:
        """Return log p (B, T) of each target token, with 0 at padding."""
        return mix([model.target_log_probs(batch) for model in self.mixture.models], self.mixture.weights)

    def attention(self, batch: Tree) -> Tensor | None:
        """Return the mean attention weights (B, T, S), or None if no model has attention."""
        return mean_attention(model.attention(batch) for model in self.mixture.models)


def mean_attention(weights: Iterable[Tensor | None]) -> Tensor | None:
    """Return the mean of the attention weights that are not None."""
    present = [part for part in weights if part is not None]
    if not present:
        return None
    precision = reduce(torch.promote_types, [part.dtype for part in present])
    return torch.stack([part.to(precision) for part in present]).mean(dim=0)


def mix(log_probs: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return log Σ_i λ_i p_i, given log p_i of equal shape, in the highest of their precisions.

    The result is m + log(Σ_i λ_i exp(log p_i − m) / Σ_i λ_i), where m is the largest log p_i. Both sums
    are computed in the same way, so identical models are mixed without rounding errors.
    """
    precision = reduce(torch.promote_types, [part.dtype for part in log_probs])
    pairs = [(part.to(precision), weight) for part, weight in zip(log_probs, weights, strict=True) if weight > 0]
    parts, factors = [part for part, _ in pairs], [part.new_full((), weight) for part, weight in pairs]
    largest = reduce(torch.maximum, parts)
    largest = largest.masked_fill(largest.isneginf(), 0.0)  # gives log 0 instead of 0 / 0 if all log p_i are −∞
    mixed = reduce(torch.add, [(part - largest).exp() * factor for part, factor in zip(parts, factors, strict=True)])
    return largest + (mixed / reduce(torch.add, factors)).log()


def normalize_weights(weights: Sequence[float], models: int) -> list[float]:
    """Normalize weights to sum to 1; raise `UsageError` unless they are non-negative and sum to about 1."""
    listed = ", ".join(f"{weight:g}" for weight in weights)
    if len(weights) != models:
        raise UsageError(f"Pass one weight for each of the {models} models; got {len(weights)}: {listed}.")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise UsageError(f"Weights must be finite and at least 0; got {listed}.")
    total = math.fsum(weights)
    if abs(total - 1) > WEIGHT_TOLERANCE:
        raise UsageError(f"The weights must sum to 1; got {listed} with sum {total:g}. Omit them to fit them on dev.")
    return [weight / total for weight in weights]
