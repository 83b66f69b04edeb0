"""The base class of encoder–decoders, for training on parallel pairs and for decoding step by step.

    p(y_1 … y_T | x) = Π_t p(y_t | y_1 … y_{t-1}, x)

A source is a text, or any input that a module maps to a sequence of vectors, such as an image or sound; see
`SourceVectors`. A text ends with END, and END is the first input of the decoder. Source and target share one
vocabulary. Masks are True at real tokens, and padding comes last. Only `step` and `forward` accept a target with
padding at other positions.

In decoding, `memory` has one row per source, and `hidden`, the state of the decoder, has k adjacent rows per source.
The hypotheses of a source share its memory without copies.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.errors import UsageError
from seqloom.core.protocols import BestOutput, DecodeState, StepOutput
from seqloom.core.tree import Tree, concatenate_rows, count_rows
from seqloom.nn.masks import select_last_real, select_real
from seqloom.nn.softmax import (
    IGNORE_INDEX,
    FullSoftmax,
    at_least_float32,
    best_next_tokens,
    consistent_cross_entropy,
    next_token_log_probs,
    score_in_pieces,
)

Batch = dict[str, Any]  # source, source_mask (B, S); inputs with END first, targets, target_mask (B, T)
BATCH = ("source", "source_mask", "inputs", "targets", "target_mask")
HiddenState = dict[str, Tree]  # the state of each hypothesis; its next token is predicted from `readout` (R, H)
Memory = dict[str, Any]  # the encoder's results for each source


class SourceVectors(nn.Module, ABC):
    """A module that maps sources other than texts to vectors (B, S, output_size), the input of an encoder."""

    output_size: int

    @abstractmethod
    def forward(self, source: Tree) -> Tensor:
        """Map sources, a tree of tensors with one row per source, to vectors (B, S, output_size)."""


def project_source(source: SourceVectors, size: int, deviation: float) -> nn.Module:
    """Return a module that maps sources to x_j = W v_j + b (B, S, size).

    If v has variance 1, `deviation` is the standard deviation of x.
    """
    project = nn.Linear(source.output_size, size)
    nn.init.normal_(project.weight, std=deviation / math.sqrt(source.output_size))
    nn.init.zeros_(project.bias)
    return nn.Sequential(source, project)


class Seq2Seq(nn.Module, ABC):
    """An encoder–decoder, whose subclasses define the abstract methods.

    `source` contains tokens (B, S), or the input of a `SourceVectors`, which requires a mask (B, S).
    """

    config: Any
    output: FullSoftmax
    needs_sequences = False  # whether dropout before the output layer needs (B, T, H) instead of (N, H)

    @abstractmethod
    def encode(self, source: Tree, mask: Tensor | None = None) -> Memory:
        """Compute the memory of sources."""

    @abstractmethod
    def encoder_states(self, source: Tree, mask: Tensor | None = None) -> Tensor:
        """Compute the encoder states (B, S, H) of sources, in the order of the source."""

    @abstractmethod
    def initial_hidden(self, memory: Memory) -> HiddenState:
        """Return the decoder state before the first token, with one row per source."""

    @abstractmethod
    def decode(
        self, tokens: Tensor, hidden: HiddenState, memory: Memory, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, HiddenState, Memory]:
        """Read tokens (R, T) and compute the next states.

        Return r (R, T, H), attention weights (R, T, S), or (R, T, N, S) with N heads, and the hidden state and memory
        after the last real token.
        """

    @abstractmethod
    def teacher_force(self, batch: Batch, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """Compute r (B, T, H), from which each target is predicted, with the correct tokens as inputs.

        With `weights`, also return the attention weights (B, T, S) if the model has attention.
        """

    def before_output(self, r: Tensor) -> Tensor:
        """Compute the input of the output layer from r (…, H)."""
        return r

    @property
    def longest_source(self) -> int | None:
        """The maximum number of source tokens, including END; None means no limit."""
        longest: int | None = self.config.longest_source
        return longest

    @property
    def longest_target(self) -> int | None:
        """The maximum number of target tokens, including END; None means no limit."""
        longest: int | None = self.config.longest_target
        return longest

    def notes(self) -> list[str]:
        """Return notes for the user on behaviour that the recipe does not show."""
        return []

    # Decoding step by step

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        """Encode the source {"tokens": (B, S), "mask": (B, S)}. Return a state with one hypothesis per source.

        For a model with a `SourceVectors`, "tokens" is the input of that module.
        """
        if source is None:
            raise UsageError('An encoder–decoder needs a source: {"tokens": (B, S), "mask": (B, S)}.')
        if rows is not None and rows != count_rows(source["tokens"]):
            raise ValueError(f"rows must be {count_rows(source['tokens'])}, the number of sources; got {rows}")
        memory = self.encode(source["tokens"], source.get("mask"))
        return DecodeState(self.initial_hidden(memory), memory)

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """Read tokens and predict the next token. A row without real tokens keeps its state and has attention 0."""
        _, weights, hidden, memory = self.decode(tokens, state.hidden, state.memory, mask)
        if weights is not None:
            weights = weights.mean(dim=2) if weights.dim() == 4 else weights  # mean over heads
            weights = select_last_real(torch.zeros_like(weights[:, 0]), weights, mask)  # (R, S)
        log_probs = next_token_log_probs(self.output, self.before_output(hidden["readout"]))
        return StepOutput(log_probs, DecodeState(hidden, memory), weights)

    def step_best(self, tokens: Tensor, state: DecodeState, count: int) -> BestOutput:
        """Read one token per row (R, 1) and return the `count` most probable next tokens."""
        _, weights, hidden, memory = self.decode(tokens, state.hidden, state.memory)
        values, ids = best_next_tokens(self.output, self.before_output(hidden["readout"]), count)
        return BestOutput(values, ids, DecodeState(hidden, memory), None if weights is None else weights[:, 0])

    # Training: padding comes last, so it does not influence the other positions of the decoder.

    def loss(
        self, batch: Batch, label_smoothing: float = 0.0, consistency: float = 0.0, doubly_stochastic: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return the mean of ℓ = −log p(y) over all targets, and their number, without device synchronization.

        With label smoothing ε, ℓ = (1−ε) · (−log p(y)) + ε · mean over all tokens v of −log p(v). With consistency α,
        every pair is read twice in training with different dropout masks. For the two distributions p and q, the loss
        is (ℓ(p) + ℓ(q)) / 2 + α/4 · (KL(p‖q) + KL(q‖p)). With `doubly_stochastic` λ, the loss of a target text also has
        the term λ Σ_j (1 − Σ_t α_tj)² of its attention weights; see `attention_penalty`.
        """
        twice = consistency > 0 and self.training
        if twice:
            batch = {name: concatenate_rows([batch[name]] * 2) for name in BATCH}
        r, weights = self.teacher_force(batch, weights=doubly_stochastic > 0)
        targets, mask = batch["targets"], batch["target_mask"]
        count = mask.sum().clamp(min=1 + twice)
        if self.needs_sequences:
            hidden = select_real(self.before_output(r), mask)
        else:
            hidden = self.before_output(select_real(r, mask))
        targets = select_real(targets.masked_fill(~mask, IGNORE_INDEX), mask)
        if not twice:
            total = self.output.total_loss(hidden, targets, label_smoothing)
            if doubly_stochastic and weights is not None:
                total = total + doubly_stochastic * attention_penalty(weights, batch["source_mask"], mask)
            return total / count, count
        value = consistent_cross_entropy(self.output(hidden), targets, label_smoothing, consistency)
        return value / count, count // 2

    def target_log_probs(self, batch: Batch) -> Tensor:
        """Return log p of each target (B, T), 0 at padding."""
        r, _ = self.teacher_force(batch)
        mask = batch["target_mask"]
        scores = score_in_pieces(self.output, r[mask], batch["targets"][mask], self.before_output)
        return scores.new_zeros(mask.shape).masked_scatter(mask, scores)

    def attention(self, batch: Batch) -> Tensor | None:
        """Return the attention weights of each target (B, T, S), 0 at padding, or None without attention."""
        _, weights = self.teacher_force(batch, weights=True)
        return None if weights is None else weights.masked_fill(~batch["target_mask"].unsqueeze(-1), 0)


def attention_penalty(weights: Tensor, source_mask: Tensor, target_mask: Tensor) -> Tensor:
    """Return Σ_j (1 − Σ_t α_tj)², summed over all texts, for attention weights (B, T, S).

    The doubly stochastic penalty of Xu et al. (2015) is small if all positions j of the source, such as the locations
    of an image, receive the same total attention. Padding of sources and targets is ignored.
    """
    totals = at_least_float32(weights).masked_fill(~target_mask.unsqueeze(-1), 0).sum(dim=1)  # (B, S)
    return ((1 - totals) ** 2).masked_fill(~source_mask, 0).sum()
