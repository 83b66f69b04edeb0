"""What the first block of a Transformer reads: tokens, where they stand, and which of two texts they belong to.

    x_j = norm(√D · E[token_j] + PE(j) + G[segment_j])          each part only where the model has it

`seqloom.nn.positions` has PE.
"""

import math
from collections.abc import Iterator

from torch import Tensor, nn

from seqloom.config import config
from seqloom.nn.dropout import Dropout
from seqloom.nn.positions import refuse_beyond
from seqloom.nn.transformer import TransformerOptions, make_norm


@config
class TokenTransformerOptions(TransformerOptions):
    """The keys of every Transformer that embeds tokens."""

    embed_norm: bool = False  # the embeddings are normed too
    embed_scale: bool = False  # embeddings are multiplied by √width

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.embed_norm and self.norm == "none":
            yield "embed_norm needs a norm: set norm to layer or rms"


class Embedded(nn.Module):
    """x of the equation above, with dropout."""

    def __init__(
        self,
        config: TokenTransformerOptions,
        embed: nn.Embedding,
        what: str,
        segments: int = 0,
    ) -> None:
        """`what` is embedded, for error messages."""
        super().__init__()
        self.embed, self.what = embed, what
        self.scale = math.sqrt(config.width) if config.embed_scale else 1.0
        self.longest = config.positions.longest
        self.positions = config.positions.added(config.width)
        self.segments = nn.Embedding(segments, config.width) if segments else None
        self.norm = make_norm(config.norm, config.width, config.norm_epsilon) if config.embed_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)

    def forward(
        self, tokens: Tensor, positions: Tensor, most: int, lengths: Tensor, segments: Tensor | None = None
    ) -> Tensor:
        """Tokens (B, T) at positions (T,) or (B, T), of segments (B, T), None for the first, to (B, T, D).

        Rows are `lengths` (B,) long after them, no more than `most`. Only padding may stand outside of that.
        """
        return self.embed_vectors(self.embed(tokens), positions, most, lengths, segments)

    def embed_vectors(
        self, x: Tensor, positions: Tensor, most: int, lengths: Tensor, segments: Tensor | None = None
    ) -> Tensor:
        """The same of vectors (B, T, D) that replace E[token]."""
        x = x * self.scale
        if self.positions is not None:
            refuse_beyond(self.longest, most, lengths, self.what)
            inside = positions.clamp(0, None if self.longest is None else self.longest - 1)
            x = x + self.positions(inside, like=x).to(x.dtype)
        if self.segments is not None:
            x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        seen: Tensor = self.dropout(self.norm(x))
        return seen
