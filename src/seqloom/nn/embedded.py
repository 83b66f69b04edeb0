"""What the first block of a Transformer reads: tokens, where they stand, and which of two texts they belong to.

    x_j = norm(√D · E[token_j] + PE(j) + G[segment_j])          each part only where the model has it

`seqloom.nn.positions` has PE.
"""

import math
from typing import Protocol

from torch import Tensor, nn

from seqloom.nn.blocks import Norm, make_norm
from seqloom.nn.dropout import Dropout
from seqloom.nn.positions import PositionsConfig, refuse_beyond


class EmbeddedConfig(Protocol):
    """The keys of a model's config that are about its embeddings."""

    @property
    def width(self) -> int: ...
    @property
    def embed_scale(self) -> bool: ...
    @property
    def positions(self) -> PositionsConfig: ...
    @property
    def norm(self) -> Norm: ...
    @property
    def embed_norm(self) -> bool: ...
    @property
    def dropout(self) -> float: ...


class Embedded(nn.Module):
    """x of the equation above, with dropout."""

    def __init__(
        self,
        config: EmbeddedConfig,
        embed: nn.Embedding,
        what: str,
        segments: int = 0,
        epsilon: float | None = None,
    ) -> None:
        """`epsilon` is that of its norm."""
        super().__init__()
        self.embed, self.what = embed, what  # what is embedded, for the errors
        self.scale = math.sqrt(config.width) if config.embed_scale else 1.0
        self.longest = config.positions.longest
        self.positions = config.positions.added(config.width)
        self.segments = nn.Embedding(segments, config.width) if segments else None
        self.norm = make_norm(config.norm, config.width, epsilon) if config.embed_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)

    def forward(
        self, tokens: Tensor, places: Tensor, most: int, lengths: Tensor, segments: Tensor | None = None
    ) -> Tensor:
        """Tokens (B, T) at places (T,) or (B, T), of segments (B, T), None for the first, to (B, T, D).

        Rows are `lengths` (B,) long after them, no more than `most`. Only padding may stand outside of that.
        """
        return self.placed(self.embed(tokens), places, most, lengths, segments)

    def placed(self, x: Tensor, places: Tensor, most: int, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """The same of vectors (B, T, D) that stand in the place of E[token]."""
        x = x * self.scale
        if self.positions is not None:
            refuse_beyond(self.longest, most, lengths, self.what)
            inside = places.clamp(0, None if self.longest is None else self.longest - 1)
            x = x + self.positions(inside, like=x).to(x.dtype)
        if self.segments is not None:
            x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        seen: Tensor = self.dropout(self.norm(x))
        return seen
