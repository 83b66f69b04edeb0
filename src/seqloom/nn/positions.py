"""Positions: without them attention treats its tokens as a set.

    sinusoidal   PE(pos, 2i) = sin(pos / base^(2i/d)),  PE(pos, 2i+1) = cos(pos / base^(2i/d)),  base = 10000
    learned      PE(pos) = a row of a table, max_length of them
    rotary       q and k are rotated by angles that grow with their positions: q·k depends on their distance alone
    none         no positions

Sinusoidal and learned vectors are added to the embeddings. A sine and its cosine stand side by side
(interleaved, as in the paper), or all sines stand before all cosines (halves, as in Marian); the
same for the pairs that rotary rotates. The sinusoids and the angles are computed for any position,
so there is no longest sequence.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import Gt, PositiveInt
from seqloom.core.errors import UsageError

Layout = Literal["interleaved", "halves"]
LEARNED = 512  # positions by default
BASE = 10000.0


@config
class PositionsConfig:
    kind: Literal["sinusoidal", "learned", "rotary", "none"] = "sinusoidal"
    layout: Layout | None = None  # sinusoidal, rotary: how sines and cosines are laid; None is interleaved
    max_length: PositiveInt | None = (
        None  # learned: the longest source, target or text, in tokens, END included; None is 512
    )
    base: Annotated[float, Gt(1)] | None = (
        None  # sinusoidal, rotary: the slowest wave takes 2π·base places; None is 10000
    )

    def problems(self) -> Iterator[str]:
        waves = self.kind in ("sinusoidal", "rotary")
        for name, fits in (("layout", waves), ("base", waves), ("max_length", self.kind == "learned")):
            if getattr(self, name) is not None and not fits:
                kinds = "learned" if name == "max_length" else "sinusoidal and rotary"
                yield f"{name} belongs to {kinds} positions only; leave it out for {self.kind!r}"

    def width_problems(self, width: int, heads: int) -> Iterator[str]:
        """What does not fit a model of this width; a width that its heads cannot share is another's to say."""
        if self.kind == "sinusoidal" and width % 2:
            yield f"sinusoidal positions are pairs of sine and cosine, so d_model must be even; got {width}"
        if self.kind == "rotary" and width % heads == 0 and (width // heads) % 2:
            yield f"rotary positions turn pairs, so d_model / heads must be even; got {width} / {heads}"

    @property
    def longest(self) -> int | None:
        """The most tokens of a sequence; None for any number."""
        return (self.max_length or LEARNED) if self.kind == "learned" else None

    def added(self, width: int) -> "Sinusoidal | Learned | None":
        """What makes the vectors that are added to embeddings."""
        if self.kind == "sinusoidal":
            return Sinusoidal(width, self.layout or "interleaved", self.base or BASE)
        return Learned(width, self.max_length or LEARNED) if self.kind == "learned" else None

    def rotary(self) -> "Rotary | None":
        """What turns queries and keys."""
        return Rotary(self.layout or "interleaved", self.base or BASE) if self.kind == "rotary" else None


def angles(positions: Tensor, width: int, base: float = BASE, like: Tensor | None = None) -> Tensor:
    """pos / base^(2i/d) for i = 0 … d/2 − 1: positions (…) to (…, d/2).

    In float32 at least, so that positions stay exact; in float64 where `like`, what they are for,
    is.
    """
    precision = torch.float32 if like is None else torch.promote_types(like.dtype, torch.float32)
    even = torch.arange(0, width, 2, device=positions.device, dtype=precision)
    return positions.to(precision).unsqueeze(-1) * base ** (-even / width)


def join_pairs(first: Tensor, second: Tensor, layout: Layout) -> Tensor:
    """Two (…, d/2) to one (…, d): side by side, or one after the other."""
    if layout == "interleaved":
        return torch.stack([first, second], dim=-1).flatten(-2)
    return torch.cat([first, second], dim=-1)


def part_pairs(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """What `join_pairs` put together."""
    if layout == "interleaved":
        return x[..., 0::2], x[..., 1::2]
    first, second = x.chunk(2, dim=-1)
    return first, second


def sinusoid_table(length: int, width: int, layout: Layout = "interleaved", base: float = BASE) -> Tensor:
    """PE of the positions 0 … length − 1: (length, D), exact to the last bit of the default precision."""
    positions = torch.arange(length, dtype=torch.float64)
    table: Tensor = Sinusoidal(width, layout, base)(positions, like=positions)
    return table.to(torch.get_default_dtype())


class AddedPositions(nn.Module):
    """Vectors that are added to embeddings, one for each position below `longest`, None for any."""

    longest: int | None = None

    def forward(self, positions: Tensor, like: Tensor | None = None) -> Tensor:
        """Positions (…) to vectors (…, D), in the precision of `like` or float32."""
        raise NotImplementedError

    def add_to(
        self,
        x: Tensor,
        positions: Tensor,
        most: int,
        lengths: Tensor,
        what: str,
        key: str = "model.positions.max_length",
    ) -> Tensor:
        """x (B, T, D) with the vectors of positions (T,) or (B, T) added.

        Rows are `lengths` (B,) long, no more than `most`; the device is asked for them only where
        `most` is beyond the last position. Then `what` is too long, and `key` sets how long it may
        be. Only padding may stand beyond.
        """
        if self.longest is not None and most > self.longest and (length := int(lengths.max())) > self.longest:
            raise UsageError(
                f"The model knows {self.longest:,} positions, and a {what} has {length:,} tokens, its end included. "
                f"Shorten it, or train with a larger {key}."
            )
        inside = positions.clamp(0, None if self.longest is None else self.longest - 1)
        return x + self(inside, like=x).to(x.dtype)


class Sinusoidal(AddedPositions):
    def __init__(self, width: int, layout: Layout = "interleaved", base: float = BASE) -> None:
        super().__init__()
        self.width, self.layout, self.base = width, layout, base

    def forward(self, positions: Tensor, like: Tensor | None = None) -> Tensor:
        phases = angles(positions, self.width, self.base, like)
        return join_pairs(phases.sin(), phases.cos(), self.layout)

    def extra_repr(self) -> str:
        return f"{self.width}, {self.layout}, base={self.base:g}"


class Learned(AddedPositions):
    """A row for each position below `max_length`."""

    def __init__(self, width: int, max_length: int) -> None:
        super().__init__()
        self.longest = max_length
        self.weight = nn.Parameter(torch.empty(max_length, width))
        nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, positions: Tensor, like: Tensor | None = None) -> Tensor:
        return F.embedding(positions, self.weight)

    def extra_repr(self) -> str:
        return "{1}, max_length={0}".format(*self.weight.shape)


class Rotary(nn.Module):
    """Each pair (a, b) of a query or key at position p is rotated by φ = p / base^(2i/d), i the pair's number:

        a' = a cos φ − b sin φ        b' = a sin φ + b cos φ

    Rotating by p and by p' leaves in q·k only the difference p − p'.
    """

    def __init__(self, layout: Layout = "interleaved", base: float = BASE) -> None:
        super().__init__()
        self.layout, self.base = layout, base

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (B, T, N, d) at positions (T,) or (B, T)."""
        turn = angles(positions, x.shape[-1], self.base, like=x)
        cos, sin = (part.to(x.dtype).unsqueeze(-2) for part in (turn.cos(), turn.sin()))  # (…, T, 1, d/2)
        a, b = part_pairs(x, self.layout)
        return join_pairs(a * cos - b * sin, a * sin + b * cos, self.layout)

    def extra_repr(self) -> str:
        return f"{self.layout}, base={self.base:g}"
