"""Positional encodings, without which attention treats its tokens as a set.

    sinusoidal   PE(pos, 2i) = sin(pos / base^(2i/d)),  PE(pos, 2i+1) = cos(pos / base^(2i/d)),  base = 10000
    learned     PE(pos) = a row of a table with max_length rows
    rotary       q and k are rotated by angles proportional to their positions: q·k depends on their distance
    none         no positions

Sinusoidal and learned encodings are added to the embeddings. Sines and cosines alternate (interleaved, as in the
paper), or all sines precede all cosines (halves, as in Marian). Rotary encodings pair the dimensions in one of these
two layouts. Sinusoidal and rotary encodings have no maximum length.
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
LEARNED = 512  # default number of positions
BASE = 10000.0


@config
class PositionsConfig:
    kind: Literal["sinusoidal", "learned", "rotary", "none"] = "sinusoidal"
    layout: Layout | None = None  # sinusoidal, rotary: order of sines and cosines; null means interleaved
    # learned: maximum length of a source, target or text in tokens, including END; null means 512
    max_length: PositiveInt | None = None
    # sinusoidal, rotary: the longest wavelength is 2π·base positions; null means 10000
    base: Annotated[float, Gt(1)] | None = None

    def problems(self) -> Iterator[str]:
        waves = self.kind in ("sinusoidal", "rotary")
        for name, fits in (("layout", waves), ("base", waves), ("max_length", self.kind == "learned")):
            if getattr(self, name) is not None and not fits:
                kinds = "learned" if name == "max_length" else "sinusoidal and rotary"
                yield f"{name} applies only to {kinds} positions; remove it for {self.kind!r}"

    def size_problems(self, d_model: int, heads: int) -> Iterator[str]:
        """Yield a message if these positions do not support `d_model`; `head_problems` checks divisibility by heads."""
        if self.kind == "sinusoidal" and d_model % 2:
            yield f"sinusoidal positions need an even d_model; got {d_model}"
        if self.kind == "rotary" and d_model % heads == 0 and (d_model // heads) % 2:
            yield f"rotary positions need an even d_model / heads; got {d_model} / {heads}"

    @property
    def longest(self) -> int | None:
        """The maximum number of tokens; None means no limit."""
        return (self.max_length or LEARNED) if self.kind == "learned" else None

    def added(self, d_model: int) -> "Sinusoidal | Learned | None":
        """Create the module whose vectors are added to the embeddings."""
        if self.kind == "sinusoidal":
            return Sinusoidal(d_model, self.layout or "interleaved", self.base or BASE)
        return Learned(d_model, self.max_length or LEARNED) if self.kind == "learned" else None

    def rotary(self) -> "Rotary | None":
        """Create the module that rotates queries and keys."""
        return Rotary(self.layout or "interleaved", self.base or BASE) if self.kind == "rotary" else None


def angles(positions: Tensor, width: int, base: float = BASE, like: Tensor | None = None) -> Tensor:
    """Return the angles pos / base^(2i/d), i = 0 … d/2 − 1, (…, d/2) of positions (…).

    The precision is at least float32, so that positions are exact, and float64 if `like` is float64.
    """
    precision = torch.float32 if like is None else torch.promote_types(like.dtype, torch.float32)
    even = torch.arange(0, width, 2, device=positions.device, dtype=precision)
    return positions.to(precision).unsqueeze(-1) * base ** (-even / width)


def join_pairs(first: Tensor, second: Tensor, layout: Layout) -> Tensor:
    """Join two tensors (…, d/2) into one tensor (…, d), interleaved or concatenated."""
    if layout == "interleaved":
        return torch.stack([first, second], dim=-1).flatten(-2)
    return torch.cat([first, second], dim=-1)


def split_pairs(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Split x (…, d) into two tensors (…, d/2). This function is the inverse of `join_pairs`."""
    if layout == "interleaved":
        return x[..., 0::2], x[..., 1::2]
    first, second = x.chunk(2, dim=-1)
    return first, second


def sinusoid_table(length: int, width: int, layout: Layout = "interleaved", base: float = BASE) -> Tensor:
    """Return the encodings (length, D) of the positions 0 … length − 1, correctly rounded to the default precision."""
    positions = torch.arange(length, dtype=torch.float64)
    table: Tensor = Sinusoidal(width, layout, base)(positions, like=positions)
    return table.to(torch.get_default_dtype())


class AddedPositions(nn.Module):
    """Vectors that are added to embeddings, one for each position below `longest` (None means no limit)."""

    longest: int | None = None

    def forward(self, positions: Tensor, like: Tensor | None = None) -> Tensor:
        """Map positions (…) to vectors (…, D), in the precision of `like` or float32."""
        raise NotImplementedError

    def add_to(
        self,
        x: Tensor,
        positions: Tensor,
        max_row_length: int,
        lengths: Tensor,
        what: str,
        key: str = "model.positions.max_length",
    ) -> Tensor:
        """Add the vectors of positions (T,) or (B, T) to x (B, T, D).

        `lengths` (B,) contains the lengths of the rows, at most `max_row_length`. `lengths` is read from the device
        only if `max_row_length` exceeds the maximum length. Positions beyond the maximum length must be padding. In the
        error message, `what` is the name of the input and `key` the setting of the maximum.
        """
        if self.longest is not None and max_row_length > self.longest and (length := int(lengths.max())) > self.longest:
            raise UsageError(
                f"The model has {self.longest:,} positions, but a {what} has {length:,} tokens, including END. Shorten "
                f"the {what}, or train with a larger {key}."
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
    """A learned vector for each position below `max_length`."""

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
    """Rotary positions: pair i (a, b) of a query or key at position p is rotated by φ = p / base^(2i/d):

        a' = a cos φ − b sin φ        b' = a sin φ + b cos φ

    After rotations by p and p', q·k depends only on the difference p − p'.
    """

    def __init__(self, layout: Layout = "interleaved", base: float = BASE) -> None:
        super().__init__()
        self.layout, self.base = layout, base

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate x (B, T, N, d) at positions (T,) or (B, T)."""
        phases = angles(positions, x.shape[-1], self.base, like=x)
        cos, sin = (part.to(x.dtype).unsqueeze(-2) for part in (phases.cos(), phases.sin()))  # (…, T, 1, d/2)
        a, b = split_pairs(x, self.layout)
        return join_pairs(a * cos - b * sin, a * sin + b * cos, self.layout)

    def extra_repr(self) -> str:
        return f"{self.layout}, base={self.base:g}"
