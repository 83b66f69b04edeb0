"""Several language models as one: p(x_t | x_<t) = Σ_i λ_i p_i(x_t | x_<t), with λ_i ≥ 0 and Σ_i λ_i = 1.

The mixture is a `LanguageModel` made of `LanguageModel`s, of whatever kinds: it steps, scores and is searched like any
other. Its parts must share one vocabulary.
"""

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.protocols import DecodeState, LanguageModel, StepOutput
from seqloom.core.tree import Tree, leaves

CLOSE = 1e-4  # how far from one the sum of given weights may lie; then they are made to sum to one


class Mixture:
    """Linear interpolation. The state is that of every part, side by side."""

    def __init__(self, models: Sequence[LanguageModel], weights: Sequence[float]) -> None:
        self.models = list(models)
        self.weights = checked_weights(weights, len(models))

    @property
    def device(self) -> torch.device:
        return next(leaves(self.start().carry)).device

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        return _together([model.start(source, rows) for model in self.models])

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        outputs = [model.step(tokens, own, mask) for model, own in zip(self.models, _apart(state), strict=True)]
        log_probs = mix([output.log_probs for output in outputs], self.weights)
        return StepOutput(log_probs, _together([output.state for output in outputs]))

    def score(self, inputs: Tensor, targets: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        scored = [model.score(inputs, targets, own) for model, own in zip(self.models, _apart(state), strict=True)]
        return mix([scores for scores, _ in scored], self.weights), _together([own for _, own in scored])


def _together(states: Sequence[DecodeState]) -> DecodeState:
    return DecodeState(tuple(state.carry for state in states), tuple(state.memory for state in states))


def _apart(state: DecodeState) -> list[DecodeState]:
    return [DecodeState(carry, memory) for carry, memory in zip(state.carry, state.memory, strict=True)]


def mix(log_probs: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """log Σ_i λ_i p_i of log-probabilities of one shape, in the highest precision among them."""
    precision = reduce(torch.promote_types, [own.dtype for own in log_probs])
    terms = torch.stack([own.to(precision) for own in log_probs], dim=-1)  # (…, M)
    return (terms + terms.new_tensor(weights).log()).logsumexp(dim=-1)


def checked_weights(weights: Sequence[float], models: int) -> list[float]:
    """The weights, made to sum to one to the last digit; refused if they are not shares of one at all."""
    shown = ", ".join(f"{weight:g}" for weight in weights)
    if len(weights) != models:
        raise UsageError(f"There must be one weight for each of the {models} models; got {len(weights)}: {shown}.")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise UsageError(f"Weights must be numbers of at least 0; got {shown}.")
    total = math.fsum(weights)
    if abs(total - 1) > CLOSE:
        raise UsageError(f"The weights must sum to 1; {shown} sum to {total:g}. Left out, they are chosen on dev.")
    return [weight / total for weight in weights]
