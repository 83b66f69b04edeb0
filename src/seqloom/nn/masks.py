"""Masks, True at real positions: for attention, zeros at padding, the last real step, reversed sequences, dropout.

Dropout is for training alone. What is kept is divided by the share that is kept, so that sums stay
the same on average. Its masks are drawn anew in every forward pass and kept nowhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.operations import operation
from seqloom.core.tree import Tree

if TYPE_CHECKING:
    from seqloom.nn.cache import CacheUpdate


@operation
def all_known_true(mask: Tensor) -> bool:
    """Whether all of a mask is True. An implementation may answer False where to look would be to wait for a device."""
    return bool(mask.all())


@operation
def any_known_true(mask: Tensor) -> bool:
    """Whether any of a mask is True. An implementation may answer False where to look would be to wait for a device."""
    return bool(mask.any())


@operation
def select_real(x: Tensor, mask: Tensor) -> Tensor:
    """The positions of x (B, T, …) that matter, (N, …): those of `mask` (B, T), or all of them.

    Whoever asks for targets too must have marked those at padding as ignored.
    """
    return x.flatten(0, 1)


class AttentionMask:
    """Where queries may look, in every form attention wants it: made once, for all layers.

    `mask` (…, T, S) is boolean; `each` says that every query may look somewhere, where that is
    known.
    """

    def __init__(self, mask: Tensor, each: bool = False) -> None:
        self.mask, self.each = mask, each

    @classmethod
    def of(cls, mask: "Tensor | AttentionMask | None") -> "AttentionMask | None":
        return cls(mask) if isinstance(mask, Tensor) else mask

    @cached_property
    def some(self) -> Tensor | None:
        """Which queries may look anywhere at all (…, T, 1); None if all may."""
        if self.each:
            return None
        some = self.mask.any(dim=-1, keepdim=True)
        return None if all_known_true(some) else some

    @cached_property
    def added(self) -> Tensor:
        """What is added to scores: 0 where a query may look, otherwise −∞. Who may look nowhere has zeros too, so that
        a softmax is a number."""
        barred = ~self.mask if self.some is None else ~self.mask & self.some
        return torch.zeros(barred.shape, device=barred.device).masked_fill_(barred, -torch.inf)


@dataclass(frozen=True)
class AttentionScope:
    """What each position may attend to by self-attention: the same for every block of a stack."""

    mask: Tensor | AttentionMask | None = None  # (B, 1, T, ·)
    is_causal: bool = False
    positions: Tensor | None = None  # (T,) or (B, T), for rotary positions; None counts from 0
    padding: Tensor | None = None  # (B, T), False at padding, for mixers that do not attend
    update: "CacheUpdate | None" = None  # where keys and values are cached

    @classmethod
    def within(cls, padding: Tensor | None) -> "AttentionScope":
        """All real positions: those of a mask (B, S)."""
        return cls(None if padding is None else AttentionMask(padding[:, None, None, :]), padding=padding)


EVERYWHERE = AttentionScope()


def causal_mask(queries: int, keys: int, window: int | None = None, device: torch.device | None = None) -> Tensor:
    """Which of `keys` positions each of the last `queries` of them may attend to (T, S): itself and those before it.

    With a sliding `window`, only that many: position i attends to i − window + 1 … i.
    """
    ahead = keys - queries
    past = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(ahead)
    return past if window is None else past.triu(ahead - window + 1)


def mask_or_ones(mask: Tensor | None, like: Tensor) -> Tensor:
    """The mask, or one that is True everywhere in the shape of `like`."""
    return torch.ones_like(like, dtype=torch.bool) if mask is None else mask


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """x (B, T, …) with zeros where `mask` (B, T) is False.

    Call it before x meets a weight. NaN or infinity at padding would otherwise reach gradients,
    since 0 · NaN is NaN, even where the output at padding is masked out.
    """
    return x if mask is None else x.masked_fill(~mask.reshape(*mask.shape, *(1,) * (x.dim() - mask.dim())), 0)


def last_real(before: Tensor, outputs: Tensor, mask: Tensor | None) -> Tensor:
    """Of outputs (B, T, H) the one at each row's last real step, or `before` (B, H) where there is none."""
    if mask is None and outputs.shape[1]:
        return outputs[:, -1]
    if mask is None:
        mask = outputs.new_ones(outputs.shape[:2], dtype=torch.bool)
    real = F.pad(mask, (1, 0), value=True)  # (B, 1 + T): `before` stands in front
    last = (real * torch.arange(real.shape[1], device=real.device)).amax(dim=1)  # (B,)
    candidates = torch.cat([before.unsqueeze(1).to(outputs.dtype), outputs], dim=1)  # (B, 1 + T, H)
    return candidates[torch.arange(len(before), device=real.device), last]


def reversed_steps(mask: Tensor, fixed: int = 0) -> Tensor:
    """Where each step of sequences read from their end comes from (B, T): x_1 … x_n is read as x_n … x_1.

    Real steps stand first; padding stays where it is, and so do the last `fixed` real steps: an
    END, say. Done twice it changes nothing.
    """
    position = torch.arange(mask.shape[1], device=mask.device)
    length = mask.sum(dim=1, keepdim=True) - fixed  # (B, 1)
    return torch.where(position < length, length - 1 - position, position)


def at_last(outputs: Tensor, mask: Tensor) -> Tensor:
    """Of outputs (B, T, H), whose real steps stand first, the one at the last of them (B, H); zero if there is none."""
    last = (mask.sum(dim=1) - 1).clamp(min=0)  # (B,)
    found = outputs[torch.arange(len(outputs), device=mask.device), last]
    return found.where(mask.any(dim=1, keepdim=True), 0)


def masked_moments(values: Sequence[Tensor], masks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and deviation (C,) of observed values (T, C); a variable that never changes has deviation 1."""
    whole, known = torch.cat(list(values)).double(), torch.cat(list(masks))
    count = known.sum(dim=0).clamp(min=1)
    mean = torch.where(known, whole, 0).sum(dim=0) / count
    variance = torch.where(known, (whole - mean) ** 2, 0).sum(dim=0) / count
    return mean, torch.where(variance > 0, variance.sqrt(), 1.0)


def choose(real: Tensor, after: Tree, before: Tree) -> Tree:
    """Of two equal trees, the leaves' rows (R, …) of `after` where `real` (R, 1), else those of `before`."""
    if isinstance(after, Tensor):
        return torch.where(real, after, before)
    if isinstance(after, dict):
        return {key: choose(real, after[key], before[key]) for key in after}
    return tuple(choose(real, *pair) for pair in zip(after, before, strict=True))


def hypotheses(rows: Tensor, memory: Tensor) -> int:
    """How many rows belong to each row of the memory."""
    k = len(rows) // max(len(memory), 1)
    if k * len(memory) != len(rows):
        raise ValueError(f"every source must have as many hypotheses; got {len(rows)} for {len(memory)} sources")
    return k


# --- dropout ----------------------------------------------------------------------------------------------------------


def make_dropout(share: float, variational: bool = False) -> nn.Module:
    """Of recurrent models, and of what reads texts: every number on its own, or one mask for all steps of a sequence.

    The former is torch's, slower than `Dropout`: golden losses, and the figures the docs give for a
    seed, are of its draws.
    """
    return VariationalDropout(share) if variational else nn.Dropout(share)


class _Dropout(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        if not 0 <= share < 1:
            raise ValueError(f"the share to drop must be at least 0 and below 1; got {share}")
        self.share = share

    @property
    def idle(self) -> bool:
        return not self.training or self.share == 0

    def extra_repr(self) -> str:
        return f"{self.share}"


class Dropout(_Dropout):
    """Every number on its own, as in `nn.Dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        return x if self.idle else drop(x, self.share)


@operation
def drop(x: Tensor, share: float) -> Tensor:
    """x with a share of its numbers dropped, in training and in evaluation."""
    return F.dropout(x, share)


class VariationalDropout(_Dropout):
    """One mask per sequence: what is dropped at one step is dropped at every step of the chunk.

    Each row of the batch has its own mask. Without a time dimension, (B, D), it is plain dropout.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.idle:
            return x
        steps = x[:, :1] if x.dim() > 2 else x  # (B, 1, D)
        return x * F.dropout(torch.ones_like(steps), self.share)


class EmbeddingDropout(_Dropout):
    """Whole token types: a token that is dropped is the zero vector wherever it stands in the batch."""

    def forward(self, embed: nn.Embedding, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to their vectors (B, T, D)."""
        if self.idle:
            return embed(tokens)
        types = F.dropout(embed.weight.new_ones(embed.num_embeddings), self.share)  # (V,)
        return embed(tokens) * types[tokens].unsqueeze(-1)
