"""Dropout, plain and such that knows it is in a recurrent network. All of it is for training alone; in evaluation
nothing is dropped.

What is kept is divided by the share that is kept, so that sums stay the same on average. Masks are drawn anew in every
forward pass and kept nowhere.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.operations import operation


def make_dropout(share: float, variational: bool = False) -> nn.Module:
    """Of recurrent models, and of what reads texts: every number on its own, or one mask for all steps of a sequence.

    The former is torch's, slower than `Dropout`: golden losses, and the figures the docs give for a seed, are of its
    draws.
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
