"""Masks (True at real positions) and dropout.

Dropout is active only in training. The values that are kept are divided by the probability of keeping them, so that the
expectation of sums does not change. Every forward pass draws new dropout masks.
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
    """Return whether a mask is True everywhere. Implementations may return False to avoid a device synchronization."""
    return bool(mask.all())


@operation
def any_known_true(mask: Tensor) -> bool:
    """Return whether a mask is True anywhere. Implementations may return False to avoid a device synchronization."""
    return bool(mask.any())


@operation
def select_real(x: Tensor, mask: Tensor) -> Tensor:
    """Flatten x (B, T, …) to (N, …). Implementations may omit positions where `mask` (B, T) is False.

    Targets at padding must be `IGNORE_INDEX`.
    """
    return x.flatten(0, 1)


class AttentionMask:
    """The keys that each query may attend to, computed once for all layers.

    `mask` (…, T, S) is boolean. `every_query_attends` is True if every query is known to have an allowed key.
    """

    def __init__(self, mask: Tensor, every_query_attends: bool = False) -> None:
        self.mask, self.every_query_attends = mask, every_query_attends

    @classmethod
    def of(cls, mask: "Tensor | AttentionMask | None") -> "AttentionMask | None":
        return cls(mask) if isinstance(mask, Tensor) else mask

    @cached_property
    def attending(self) -> Tensor | None:
        """The mask (…, T, 1) of the queries with an allowed key, or None if all queries have one."""
        if self.every_query_attends:
            return None
        attending = self.mask.any(dim=-1, keepdim=True)
        return None if all_known_true(attending) else attending

    @cached_property
    def additive(self) -> Tensor:
        """The additive mask: 0 where a query may attend, −∞ elsewhere.

        The row of a query without an allowed key is zero, so that its softmax is finite.
        """
        forbidden = ~self.mask if self.attending is None else ~self.mask & self.attending
        return torch.zeros(forbidden.shape, device=forbidden.device).masked_fill_(forbidden, -torch.inf)


@dataclass(frozen=True)
class AttentionScope:
    """The positions to which each position may attend in self-attention. All blocks of a stack share the scope."""

    mask: Tensor | AttentionMask | None = None  # (B, 1, T, ·)
    is_causal: bool = False
    positions: Tensor | None = None  # (T,) or (B, T), for rotary positions; None means 0, 1, 2 …
    padding: Tensor | None = None  # (B, T), False at padding; used by mixers without attention
    update: "CacheUpdate | None" = None  # describes where keys and values are cached

    @classmethod
    def within(cls, padding: Tensor | None) -> "AttentionScope":
        """Return a scope in which every position attends to all real positions of a mask (B, S)."""
        return cls(None if padding is None else AttentionMask(padding[:, None, None, :]), padding=padding)


EVERYWHERE = AttentionScope()


def causal_mask(queries: int, keys: int, window: int | None = None, device: torch.device | None = None) -> Tensor:
    """Return the causal mask (T, S) of the last `queries` of `keys` positions.

    Each position attends to itself and to earlier positions.

    With a sliding `window`, position i attends to i − window + 1 … i.
    """
    ahead = keys - queries
    past = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(ahead)
    return past if window is None else past.triu(ahead - window + 1)


def mask_or_ones(mask: Tensor | None, like: Tensor) -> Tensor:
    """Return the mask, or a mask with the shape of `like` that is True everywhere."""
    return torch.ones_like(like, dtype=torch.bool) if mask is None else mask


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Set x (B, T, …) to zero where `mask` (B, T) is False.

    Call this function before x is multiplied by weights: NaN or infinity at padding would reach the gradients, because
    0 · NaN is NaN.
    """
    return x if mask is None else x.masked_fill(~mask.reshape(*mask.shape, *(1,) * (x.dim() - mask.dim())), 0)


def select_last_real(before: Tensor, outputs: Tensor, mask: Tensor | None) -> Tensor:
    """Select the output of each row's last real step from (B, T, H), or `before` (B, H) if a row has no real step."""
    if mask is None and outputs.shape[1]:
        return outputs[:, -1]
    if mask is None:
        mask = outputs.new_ones(outputs.shape[:2], dtype=torch.bool)
    real = F.pad(mask, (1, 0), value=True)  # (B, 1 + T): `before` comes first
    last = (real * torch.arange(real.shape[1], device=real.device)).amax(dim=1)  # (B,)
    candidates = torch.cat([before.unsqueeze(1).to(outputs.dtype), outputs], dim=1)  # (B, 1 + T, H)
    return candidates[torch.arange(len(before), device=real.device), last]


def reversal_indices(mask: Tensor, fixed: int = 0) -> Tensor:
    """Return indices (B, T) that reverse the real steps of each row: x_1 … x_n becomes x_n … x_1.

    Padding comes last. Padding and the last `fixed` real steps (such as END) stay in place. Reversing twice restores
    the original order.
    """
    position = torch.arange(mask.shape[1], device=mask.device)
    length = mask.sum(dim=1, keepdim=True) - fixed  # (B, 1)
    return torch.where(position < length, length - 1 - position, position)


def select_last(outputs: Tensor, mask: Tensor) -> Tensor:
    """Select the output (B, H) of the last real step from (B, T, H) with padding last.

    The output of a row without real steps is zero.
    """
    last = (mask.sum(dim=1) - 1).clamp(min=0)  # (B,)
    output = outputs[torch.arange(len(outputs), device=mask.device), last]
    return output.where(mask.any(dim=1, keepdim=True), 0)


def masked_moments(values: Sequence[Tensor], masks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation (C,) of observed values (T, C), with deviation 1 for a constant variable."""
    all_values, observed = torch.cat(list(values)).double(), torch.cat(list(masks))
    count = observed.sum(dim=0).clamp(min=1)
    mean = torch.where(observed, all_values, 0).sum(dim=0) / count
    variance = torch.where(observed, (all_values - mean) ** 2, 0).sum(dim=0) / count
    return mean, torch.where(variance > 0, variance.sqrt(), 1.0)


def choose(real: Tensor, after: Tree, before: Tree) -> Tree:
    """Take the rows (R, …) of `after` where `real` (R, 1) is True, and the rows of `before` elsewhere."""
    if isinstance(after, Tensor):
        return torch.where(real, after, before)
    if isinstance(after, dict):
        return {key: choose(real, after[key], before[key]) for key in after}
    return tuple(choose(real, *pair) for pair in zip(after, before, strict=True))


def hypotheses(rows: Tensor, memory: Tensor) -> int:
    """Return the number of hypotheses per source."""
    k = len(rows) // max(len(memory), 1)
    if k * len(memory) != len(rows):
        raise ValueError(
            f"every source must have the same number of hypotheses; got {len(rows)} for {len(memory)} sources"
        )
    return k


# --- dropout ----------------------------------------------------------------------------------------------------------


def make_dropout(p: float, variational: bool = False) -> nn.Module:
    """Create the dropout layer of recurrent models.

    Dropout is elementwise, or variational with one mask for all steps of a sequence.

    Elementwise dropout is `nn.Dropout`. `Dropout` is faster, but its random numbers differ from those of the golden
    losses and the published results.
    """
    return VariationalDropout(p) if variational else nn.Dropout(p)


class _Dropout(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout must be at least 0 and below 1; got {p}")
        self.p = p

    @property
    def is_idle(self) -> bool:
        return not self.training or self.p == 0

    def extra_repr(self) -> str:
        return f"{self.p}"


class Dropout(_Dropout):
    """Elementwise dropout, as in `nn.Dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        return x if self.is_idle else drop(x, self.p)


@operation
def drop(x: Tensor, p: float) -> Tensor:
    """Apply dropout, regardless of training or evaluation mode."""
    return F.dropout(x, p)


class VariationalDropout(_Dropout):
    """Variational dropout: each sequence of the batch has a single mask for all its steps.

    An input without a time dimension (B, D) gets elementwise dropout.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.is_idle:
            return x
        steps = x[:, :1] if x.dim() > 2 else x  # (B, 1, D)
        return x * F.dropout(torch.ones_like(steps), self.p)


class EmbeddingDropout(_Dropout):
    """Embedding dropout: a dropped token type is the zero vector everywhere in the batch."""

    def forward(self, embed: nn.Embedding, tokens: Tensor) -> Tensor:
        """Embed tokens (B, T) as vectors (B, T, D)."""
        if self.is_idle:
            return embed(tokens)
        types = F.dropout(embed.weight.new_ones(embed.num_embeddings), self.p)  # (V,)
        return embed(tokens) * types[tokens].unsqueeze(-1)
