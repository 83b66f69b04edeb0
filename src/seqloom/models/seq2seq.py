"""The base class of encoder–decoders: learning from pairs, and decoding step by step.

    p(y_1 … y_T | x) = Π_t p(y_t | y_1 … y_{t-1}, x)

A source ends with END, and its target begins after END; both sides share one vocabulary. Masks are
True at real tokens, and those stand first; only `step` and `forward` take a target's padding
anywhere.

Decoding keeps the source as memory, one row each, and the state of the decoder as carry, any number
k of rows for each source, source-major. The memory is never copied k times.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.errors import UsageError
from seqloom.core.protocols import BestOutput, DecodeState, StepOutput
from seqloom.core.tree import Tree
from seqloom.nn.masks import last_real, select_real
from seqloom.nn.softmax import (
    IGNORE_INDEX,
    FullSoftmax,
    best_next_tokens,
    consistent_cross_entropy,
    next_token_log_probs,
    score_in_pieces,
)

Batch = dict[str, Tensor]  # source, source_mask (B, S); inputs, END first, targets, target_mask (B, T)
BATCH = ("source", "source_mask", "inputs", "targets", "target_mask")
Carry = dict[str, Tree]  # the state of each hypothesis; `readout` (R, H) predicts its next token
Memory = dict[str, Any]  # what decoding needs of each source


class Seq2Seq(nn.Module, ABC):
    """A model defines how it encodes, begins and decodes; the rest follows."""

    config: Any
    output: FullSoftmax
    whole_sentences = False  # whether dropout before the output layer needs whole sentences

    @abstractmethod
    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> Memory:
        """A source (B, S) to what decoding needs of it."""

    @abstractmethod
    def annotations(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """The encoder's states of a source (B, S): (B, S, H), in the source's own order."""

    @abstractmethod
    def first(self, memory: Memory) -> Carry:
        """The carry before the first token, one row for each source."""

    @abstractmethod
    def decode(
        self, tokens: Tensor, carry: Carry, memory: Memory, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Carry, Memory]:
        """Tokens (R, T) to r (R, T, H), attention weights (R, T, S) or (R, T, N, S) of N heads, and carry and memory
        after the last real token."""

    @abstractmethod
    def teacher_force(self, batch: Batch, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """r (B, T, H), from which each target is predicted, with the right tokens before it.

        And, where the model has attention, weights (B, T, S), if they are asked for.
        """

    def before_output(self, r: Tensor) -> Tensor:
        """r (…, H) to the input of the output layer."""
        return r

    def next_log_probs(self, r: Tensor) -> Tensor:
        """log p (R, V) of the token after each r (R, H)."""
        return next_token_log_probs(self.output, self.before_output(r))

    @property
    def longest_source(self) -> int | None:
        """The most source tokens it can read, END included; None for any number."""
        longest: int | None = self.config.longest_source
        return longest

    @property
    def longest_target(self) -> int | None:
        """The most tokens of a target, END included; None for any number."""
        longest: int | None = self.config.longest_target
        return longest

    # Decoding step by step.

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        """`source` is {"tokens": (B, S), "mask": (B, S)}; one hypothesis for each."""
        if source is None:
            raise UsageError('An encoder–decoder needs a source: {"tokens": (B, S), "mask": (B, S)}.')
        if rows is not None and rows != len(source["tokens"]):
            raise ValueError(f"rows must be those of the source, {len(source['tokens'])}; got {rows}")
        memory = self.encode(source["tokens"], source.get("mask"))
        return DecodeState(self.first(memory), memory)

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """A row without any real token keeps its carry, predicts what it predicted before, and attends to nothing."""
        _, weights, carry, memory = self.decode(tokens, state.carry, state.memory, mask)
        if weights is not None:
            weights = weights.mean(dim=2) if weights.dim() == 4 else weights  # over heads
            weights = last_real(torch.zeros_like(weights[:, 0]), weights, mask)  # (R, S)
        return StepOutput(self.next_log_probs(carry["readout"]), DecodeState(carry, memory), weights)

    def step_best(self, tokens: Tensor, state: DecodeState, count: int) -> BestOutput:
        """The `count` most probable tokens after a step of one token each (R, 1)."""
        _, weights, carry, memory = self.decode(tokens, state.carry, state.memory)
        values, ids = best_next_tokens(self.output, self.before_output(carry["readout"]), count)
        return BestOutput(values, ids, DecodeState(carry, memory), None if weights is None else weights[:, 0])

    # Learning from pairs. Padding stands last, so what the decoder computes there changes nothing.

    def loss(self, batch: Batch, label_smoothing: float = 0.0, consistency: float = 0.0) -> tuple[Tensor, Tensor]:
        """The mean over all real targets of ℓ = −log p(y), and how many they are; never waits for a GPU.

        With label smoothing ε, ℓ = (1−ε) · (−log p(y)) + ε · mean over all tokens v of −log p(v).
        With consistency α every pair is read twice in training, under two dropouts, and the two
        distributions p and q shall agree: (ℓ(p) + ℓ(q)) / 2 + α/4 · (KL(p‖q) + KL(q‖p)).
        """
        twice = consistency > 0 and self.training
        if twice:
            batch = {name: torch.cat([batch[name]] * 2) for name in BATCH}
        r, _ = self.teacher_force(batch)
        targets, mask = batch["targets"], batch["target_mask"]
        count = mask.sum().clamp(min=1 + twice)
        if self.whole_sentences:
            hidden = select_real(self.before_output(r), mask)
        else:
            hidden = self.before_output(select_real(r, mask))
        targets = select_real(targets.masked_fill(~mask, IGNORE_INDEX), mask)
        if not twice:
            return self.output.total_loss(hidden, targets, label_smoothing) / count, count
        value = consistent_cross_entropy(self.output(hidden), targets, label_smoothing, consistency)
        return value / count, count // 2

    def target_log_probs(self, batch: Batch) -> Tensor:
        """log p of each target (B, T), 0 at padding."""
        r, _ = self.teacher_force(batch)
        mask = batch["target_mask"]
        scores = score_in_pieces(self.output, r[mask], batch["targets"][mask], self.before_output)
        return scores.new_zeros(mask.shape).masked_scatter(mask, scores)

    def attention(self, batch: Batch) -> Tensor | None:
        """The attention weights of each target (B, T, S), 0 at padding; None without attention."""
        _, weights = self.teacher_force(batch, weights=True)
        return None if weights is None else weights.masked_fill(~batch["target_mask"].unsqueeze(-1), 0)
