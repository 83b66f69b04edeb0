"""Shallow fusion: a search adds the weighted log-probability of a language model to the score of a model of sources.

    decoder     s(y_t | y_<t, x) = log p(y_t | y_<t, x) + w · log p_LM(y_t | y_<t)
    CTC         s(l)             = log p(prefix l | x) + w · log p_LM(l) + b · |l|

Both texts end with END. The insertion bonus b compensates for the language model, which prefers short texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.core import END
from seqloom.core.protocols import DecodeState, StepOutput, Steppable, longest_target
from seqloom.core.tree import Tree, clone

Prefix = tuple[int, ...]


@dataclass(frozen=True)
class FusedLanguageModel:
    """A language model, its weight, and its ids of the tokens of the other model, −1 for tokens that it lacks."""

    model: Steppable
    weight: float
    ids: Tensor  # (V,) on the CPU
    bonus: float = 0.0  # b, added for each token in the search of CTC

    def select(self, log_probs: Tensor) -> Tensor:
        """Return w · log p_LM of the tokens of the other model (B, V); missing tokens have −∞."""
        ids = self.ids.to(log_probs.device)
        return (self.weight * log_probs[:, ids.clamp(min=0)]).masked_fill(ids < 0, -torch.inf)

    def start(self, rows: int) -> tuple[Tensor, DecodeState]:
        """Return the scores (rows, V) of the first token, and the state after END, which precedes a text."""
        state = self.model.start(rows=rows)
        return self.step(torch.full((rows, 1), END), state)

    def step(self, tokens: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """Read tokens (B, 1) of the language model; return the scores (B, V) of the next token, and the state."""
        output = self.model.step(tokens, state)
        return self.select(output.log_probs), output.state


class FusedDecoder:
    """A decoder with a language model as a `Steppable`. Its scores are not normalized."""

    def __init__(self, decoder: Steppable, fused: FusedLanguageModel) -> None:
        self.decoder, self.fused = decoder, fused
        self.longest_target = longest_target(decoder)

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        state = self.decoder.start(source, rows)
        count = len(state.memory["mask"])
        before = self.fused.model.start(rows=count)
        return DecodeState((state.hidden, before.hidden), (state.memory, before.memory))

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        (hidden, before), (memory, lm_memory) = state.hidden, state.memory
        output = self.decoder.step(tokens, DecodeState(hidden, memory), mask)
        read = self.fused.ids.to(tokens.device)[tokens].clamp(min=0)
        scores, after = self.fused.step(read, DecodeState(before, lm_memory))
        joined = DecodeState((output.state.hidden, after.hidden), (output.state.memory, after.memory))
        return StepOutput(output.log_probs + scores.to(output.log_probs.dtype), joined, output.attention)


def copy_state(state: DecodeState) -> DecodeState:
    """Return a copy of a state, because a step consumes its state."""
    return DecodeState(clone(state.hidden), clone(state.memory))


class PrefixScores:
    """The scores w · log p_LM(l) + b · |l| of the prefixes of a search with CTC, computed once for each prefix."""

    def __init__(self, fused: FusedLanguageModel) -> None:
        self.fused = fused
        next_scores, state = fused.start(1)
        self._states: dict[Prefix, DecodeState] = {(): state}
        self._next: dict[Prefix, NDArray[np.float64]] = {(): self._as_array(next_scores)}
        self._totals: dict[Prefix, float] = {(): 0.0}

    def score(self, prefix: Sequence[int]) -> float:
        """Return the score of a prefix, all of whose shorter prefixes were scored before."""
        key = tuple(prefix)
        if key not in self._totals:
            before = key[:-1]
            self._totals[key] = self._totals[before] + self.next_scores(before)[key[-1]] + self.fused.bonus
        return self._totals[key]

    def score_end(self, prefix: Sequence[int]) -> float:
        """Return the score of a text, including END."""
        return self.score(prefix) + float(self.next_scores(tuple(prefix))[END])

    def next_scores(self, prefix: Prefix) -> NDArray[np.float64]:
        """Return w · log p_LM of the token after a prefix (V,)."""
        if prefix not in self._next:
            self.next_scores(prefix[:-1])
            token = self.fused.ids[prefix[-1]].view(1, 1).clamp(min=0)
            values, state = self.fused.step(token, copy_state(self._states[prefix[:-1]]))
            self._next[prefix], self._states[prefix] = self._as_array(values), state
        return self._next[prefix]

    def _as_array(self, values: Tensor) -> NDArray[np.float64]:
        array: NDArray[np.float64] = values[0].double().cpu().numpy()
        return array
