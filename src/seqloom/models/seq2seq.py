"""What all encoder–decoders do alike: learn from pairs, and say what they think of them.

    p(y_1 … y_T | x) = Π_t p(y_t | y_1 … y_{t-1}, x)

A source ends with END, and its target begins after END; both sides share one vocabulary. Masks are True at real tokens,
and those stand first; only `step` and `forward` take a target's padding anywhere.

Decoding keeps the source as memory, one row each, and what the decoder knows as carry, any number k of rows for each
source, source-major. The memory is never copied k times.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.errors import UsageError
from seqloom.core.protocols import DecodeState
from seqloom.core.tree import Tree
from seqloom.nn.cross_entropy import IGNORE_INDEX, consistent_cross_entropy
from seqloom.nn.masks import select_real
from seqloom.nn.softmax import SCORED_AT_ONCE, FullSoftmax, best_next_tokens, next_token_log_probs

Batch = dict[str, Tensor]  # source, source_mask (B, S); inputs, END first, targets, target_mask (B, T)
BATCH = ("source", "source_mask", "inputs", "targets", "target_mask")
Carry = dict[str, Tree]  # what is known of each hypothesis


class Seq2Seq(nn.Module, ABC):
    """A model says how it encodes, begins and decodes; the rest follows."""

    config: Any
    output: FullSoftmax
    whole_sentences = False  # whether what the output layer sees must be made of whole sentences at once

    @abstractmethod
    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> dict[str, Any]:
        """A source (B, S) to what decoding needs of it."""

    @abstractmethod
    def annotations(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """What the encoder makes of each token of a source (B, S): (B, S, H), in the source's own order."""

    @abstractmethod
    def first(self, memory: dict[str, Any]) -> Carry:
        """The carry before the first token, one row for each source."""

    @abstractmethod
    def taught(self, batch: Batch, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """r (B, T, H), from which each target is predicted, with the right tokens before it.

        And, where the model can, weights (B, T, S): where it looked. They are made for sure only if they are asked for.
        """

    def before_output(self, r: Tensor) -> Tensor:
        """r (…, H) to what the output layer sees."""
        return r

    def next_log_probs(self, r: Tensor) -> Tensor:
        """log p (R, V) of the token after each r (R, H)."""
        return next_token_log_probs(self.output, self.before_output(r))

    def next_best(self, r: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Of the same the `count` most probable, as `best_tokens` gives them."""
        return best_next_tokens(self.output, self.before_output(r), count)

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

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        """`source` is {"tokens": (B, S), "mask": (B, S)}; one hypothesis for each."""
        if source is None:
            raise UsageError('An encoder–decoder needs a source: {"tokens": (B, S), "mask": (B, S)}.')
        if rows is not None and rows != len(source["tokens"]):
            raise ValueError(f"rows must be those of the source, {len(source['tokens'])}; got {rows}")
        memory = self.encode(source["tokens"], source.get("mask"))
        return DecodeState(self.first(memory), memory)

    # Learning from pairs. Padding stands last, so what the decoder makes of it changes nothing.

    def loss(self, batch: Batch, label_smoothing: float = 0.0, consistency: float = 0.0) -> tuple[Tensor, Tensor]:
        """The mean over all real targets of ℓ = −log p(y), and how many they are; never waits for a GPU.

        With label smoothing ε, ℓ = (1−ε) · (−log p(y)) + ε · mean over all tokens v of −log p(v). With consistency α
        every pair is read twice in training, under two dropouts, and the two distributions p and q shall agree:
        (ℓ(p) + ℓ(q)) / 2 + α/4 · (KL(p‖q) + KL(q‖p)).
        """
        twice = consistency > 0 and self.training
        if twice:
            batch = {name: torch.cat([batch[name]] * 2) for name in BATCH}
        r, _ = self.taught(batch)
        targets, mask = batch["targets"], batch["target_mask"]
        count = mask.sum().clamp(min=1 + twice)
        if self.whole_sentences:
            seen = select_real(self.before_output(r), mask)
        else:
            seen = self.before_output(select_real(r, mask))
        targets = select_real(targets.masked_fill(~mask, IGNORE_INDEX), mask)
        if not twice:
            return self.output.total_loss(seen, targets, label_smoothing) / count, count
        value = consistent_cross_entropy(self.output(seen), targets, label_smoothing, consistency)
        return value / count, count // 2

    def target_log_probs(self, batch: Batch) -> Tensor:
        """log p of each target (B, T), 0 at padding. Logits are made for a few positions at a time."""
        r, _ = self.taught(batch)
        targets, mask = batch["targets"], batch["target_mask"]
        pieces = zip(r[mask].split(SCORED_AT_ONCE), targets[mask].split(SCORED_AT_ONCE), strict=True)
        found = torch.cat([self.output.target_log_probs(self.before_output(rows), own) for rows, own in pieces])
        return found.new_zeros(mask.shape).masked_scatter(mask, found)

    def attention(self, batch: Batch) -> Tensor | None:
        """Where each target (B, T) looked: weights (B, T, S), zero at padding; None without attention."""
        _, weights = self.taught(batch, weights=True)
        return None if weights is None else weights.masked_fill(~batch["target_mask"].unsqueeze(-1), 0)
