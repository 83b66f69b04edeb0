"""The encoder of a Transformer over vectors that were made elsewhere.

    x_j ← √D · P x_j + PE(j)          P only where the widths differ
    x ← block(x), N times: self-attention and a feed-forward, each with a way around it and a norm

`seqloom.nn.blocks` has the blocks and `seqloom.nn.positions` PE.
"""

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.nn.blocks import Activation, EncoderBlock, FeedForward, Frame, Norm, make_norm
from seqloom.nn.dropout import Dropout
from seqloom.nn.encoder import Encoder
from seqloom.nn.masks import at_last, zero_padding
from seqloom.nn.mixers import SelfAttention
from seqloom.nn.multihead import MultiHeadAttention, head_problems
from seqloom.nn.positions import PositionsConfig, refuse_beyond


@config
class TransformerEncoderConfig:
    kind: Literal["transformer"] = "transformer"
    layers: int = 2  # blocks stacked on each other
    width: int = 128  # of every vector in them; what is read is projected to it where it is not so wide
    heads: int = 4  # of each attention; each is width / heads wide
    feed_forward: int | None = None  # width inside the feed-forward layers; None is 4 × width
    activation: Activation = "relu"  # of the feed-forward layers: relu, gelu, gelu-tanh, silu or swiglu
    norm: Norm = "layer"  # layer, rms or none
    norm_first: bool = True  # norms stand before each layer, and once more at the end; not after it, as in 2017
    positions: PositionsConfig = PositionsConfig()
    dropout: float = 0.1  # on what is read, and on what each layer adds
    attention_dropout: float = 0.0  # on the weights of attention

    def problems(self) -> Iterator[str]:
        for name, value in (("layers", self.layers), ("width", self.width), ("feed_forward", self.inner)):
            if value < 1:
                yield f"{name} must be at least 1; got {value}"
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                yield f"{name} must be at least 0 and below 1; got {getattr(self, name)}"
        yield from head_problems(self.width, self.heads, None)
        if self.heads >= 1:
            yield from self.positions.width_problems(self.width, self.heads)

    @property
    def inner(self) -> int:
        return 4 * self.width if self.feed_forward is None else self.feed_forward

    @property
    def longest(self) -> int | None:
        """The most tokens it can read; None for any number."""
        return self.positions.longest

    def block(self) -> EncoderBlock:
        attention = MultiHeadAttention(
            self.width, self.heads, dropout=self.attention_dropout, rotary=self.positions.rotary()
        )
        frame = Frame(self.width, self.norm, self.norm_first, dropout=self.dropout)
        return EncoderBlock(SelfAttention(attention), FeedForward(self.width, self.inner, self.activation), frame)

    def build(self, inputs: int) -> "TransformerEncoder":
        return TransformerEncoder(self, inputs)


class TransformerEncoder(Encoder):
    """It ends at the last real place."""

    def __init__(self, config: TransformerEncoderConfig, inputs: int) -> None:
        super().__init__()
        self.config, self.inputs, self.width = config, inputs, config.width
        self.project = nn.Linear(inputs, config.width, bias=False) if inputs != config.width else nn.Identity()
        self.positions = config.positions.added(config.width)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(config.block() for _ in range(config.layers))
        self.norm = make_norm(config.norm if config.norm_first else "none", config.width)

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x, _ = self._climb(x, mask)
        return x, at_last(x, mask)

    def attentions(self, x: Tensor, mask: Tensor) -> list[Tensor]:
        _, looked = self._climb(x, mask, weights=True)
        return [layer.masked_fill(~mask[:, None, :, None], 0) for layer in looked]

    def _climb(self, x: Tensor, mask: Tensor, weights: bool = False) -> tuple[Tensor, list[Tensor]]:
        """Through all blocks; with `weights`, also where the heads of each looked (B, N, S, S)."""
        x, looked = self.dropout(self._placed(self.project(zero_padding(x, mask)) * math.sqrt(self.width), mask)), []
        for block in self.blocks:
            x, found = block(x, mask, weights)
            looked.append(found)
        return self.norm(x), looked

    def _placed(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (B, S, D) with a word about where each stands."""
        if self.positions is None:
            return x
        longest, places = self.config.longest, torch.arange(x.shape[1], device=x.device)
        refuse_beyond(longest, x.shape[1], mask.sum(dim=1), "text", "model.encoder.positions.max_length")
        inside = places if longest is None else places.clamp(max=longest - 1)  # only padding stands outside of that
        placed: Tensor = x + self.positions(inside, like=x).to(x.dtype)
        return placed

    def notes(self) -> list[str]:
        notes = []
        if self.config.positions.kind == "none":
            notes.append("without positions the encoder takes its text for a set of tokens")
        if self.inputs != self.width:
            notes.append(f"the encoder projects the {self.inputs}-wide vectors it reads to {self.width}, its own width")
        return notes
