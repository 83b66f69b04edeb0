"""Encoders: a sequence read whole, each vector computed anew from all of them.

    recurrent     a stack of cells, one way or both
    convolution   features of the few vectors around each, layer on layer
    transformer   every vector attends to every other: `seqloom.nn.transformer`

All take x (B, S, D) and a mask (B, S), True at real positions, which stand first. None of them waits for a GPU.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from seqloom.config import Discriminator, config
from seqloom.config.constraints import PositiveInt
from seqloom.nn.bidirectional import Combination, Depth, make_stack, stack_problems
from seqloom.nn.cache import AttentionScope
from seqloom.nn.convolution import Windows, window_problems
from seqloom.nn.dropout import Dropout, dropout_notes, make_dropout
from seqloom.nn.masks import at_last, zero_padding
from seqloom.nn.positions import refuse_beyond
from seqloom.nn.transformer import Activation, TransformerOptions


class Encoder(nn.Module, ABC):
    width: int  # of what comes out

    @abstractmethod
    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, S, D) to h (B, S, H), which means nothing at padding, and to where the reading ended (B, H)."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """h (B, S, H)"""
        return self.read(x, mask)[0]

    def attentions(self, x: Tensor, mask: Tensor) -> list[Tensor]:
        """Where the heads of each layer look (B, N, S, S), 0 at padding; empty where there are no heads."""
        return []

    def notes(self) -> list[str]:
        """What it does beyond its equations, in words for whoever trains it."""
        return []


# --- recurrent --------------------------------------------------------------------------------------------------------


@config
class RecurrentEncoderConfig:
    kind: Literal["recurrent"] = "recurrent"
    cell: str = "lstm"  # `seqloom list cells` shows them all
    activation: Literal["tanh", "relu", "sigmoid"] = "tanh"  # of the elman cell; the others have their own
    forget_bias: float | None = None  # of the lstm cell: how far its forget gate starts open; None is 1.0
    layers: int = 1  # cells stacked on each other
    hidden: int = 128  # width of every layer's state, in each direction
    bidirectional: bool = True  # read from both ends, with weights of their own
    combine: Combination = "concat"  # the two directions: concat, sum or mix
    depth: Depth = "each"  # combine them after each layer, or keep them apart up to the top
    dropout: float = 0.0  # between layers; never through time
    variational: bool = False  # dropout drops the same at every step
    weight_dropout: float = 0.0  # share of the recurrent weights left out for one batch

    def problems(self) -> Iterator[str]:
        if not 0 <= self.weight_dropout < 1:
            yield f"weight_dropout must be at least 0 and below 1; got {self.weight_dropout}"
        yield from stack_problems(self)

    @property
    def longest(self) -> None:
        """The most tokens it can read: any number."""
        return None

    def build(self, inputs: int) -> "RecurrentEncoder":
        return RecurrentEncoder(self, inputs)


class RecurrentEncoder(Encoder):
    """h_j = [→h_j; ←h_j], or h_j of one direction; it ends in [→h_S; ←h_1], or h_S."""

    def __init__(self, config: RecurrentEncoderConfig, inputs: int) -> None:
        super().__init__()
        self.config = config
        self.stack = make_stack(config, inputs, variational=config.variational, weight_dropout=config.weight_dropout)
        self.width = self.stack.width

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.stack.read(x, mask)

    def notes(self) -> list[str]:
        return [*self.stack.notes(), *dropout_notes(self.config.dropout, self.config.variational)]


# --- convolution ------------------------------------------------------------------------------------------------------


@config
class ConvolutionEncoderConfig:
    kind: Literal["convolution"] = "convolution"
    widths: tuple[int, ...] = (3, 4, 5)  # how many places a window sees; one set of filters for each
    filters: int = 100  # features of each width
    layers: int = 1  # stacked on each other
    dropout: float = 0.0  # between layers

    def problems(self) -> Iterator[str]:
        yield from window_problems(self.filters, self.widths)
        if self.layers < 1:
            yield f"layers must be at least 1; got {self.layers}"
        if not 0 <= self.dropout < 1:
            yield f"dropout must be at least 0 and below 1; got {self.dropout}"

    @property
    def longest(self) -> None:
        """The most tokens it can read: any number."""
        return None

    def build(self, inputs: int) -> "ConvolutionEncoder":
        return ConvolutionEncoder(self, inputs)


class ConvolutionEncoder(Encoder):
    """See `seqloom.nn.convolution`; it ends at the last real place."""

    def __init__(self, config: ConvolutionEncoderConfig, inputs: int) -> None:
        super().__init__()
        self.width = config.filters * len(config.widths)
        self.layers = nn.ModuleList(
            Windows(inputs if depth == 0 else self.width, config.filters, config.widths)
            for depth in range(config.layers)
        )
        self.dropout = make_dropout(config.dropout)

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        for depth, layer in enumerate(self.layers):
            x = layer(self.dropout(x) if depth > 0 else x, mask)
        return x, at_last(x, mask)


# --- Transformer ------------------------------------------------------------------------------------------------------


@config
class TransformerEncoderConfig(TransformerOptions):
    kind: Literal["transformer"] = "transformer"
    layers: PositiveInt = 2  # blocks stacked on each other
    activation: Activation = "relu"  # of the feed-forward layers: relu, gelu, gelu-tanh, silu or swiglu

    def build(self, inputs: int) -> "TransformerEncoder":
        return TransformerEncoder(self, inputs)


class TransformerEncoder(Encoder):
    """x_j ← √D · P x_j + PE(j), P only where the widths differ; x ← block(x), N times. It ends at the last real
    position."""

    def __init__(self, config: TransformerEncoderConfig, inputs: int) -> None:
        super().__init__()
        self.config, self.inputs, self.width = config, inputs, config.width
        self.project = nn.Linear(inputs, config.width, bias=False) if inputs != config.width else nn.Identity()
        self.positions = config.positions.added(config.width)
        self.dropout = Dropout(config.dropout)
        self.blocks, self.norm = config.stack(config.layers), config.final_norm()

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        h: Tensor = self.norm(self.blocks(self._embed(x, mask), AttentionScope.within(mask)).x)
        return h, at_last(h, mask)

    def attentions(self, x: Tensor, mask: Tensor) -> list[Tensor]:
        wanted = self.blocks.all_self_weights()
        output = self.blocks(self._embed(x, mask), AttentionScope.within(mask), wanted=wanted)
        return [layer.masked_fill(~mask[:, None, :, None], 0) for layer in output.self_weights]

    def _embed(self, x: Tensor, mask: Tensor) -> Tensor:
        """What the first block reads of x (B, S, D)."""
        x = self.project(zero_padding(x, mask)) * math.sqrt(self.width)
        if self.positions is not None:
            longest, positions = self.config.longest, torch.arange(x.shape[1], device=x.device)
            refuse_beyond(longest, x.shape[1], mask.sum(dim=1), "text", "model.encoder.positions.max_length")
            inside = positions if longest is None else positions.clamp(max=longest - 1)  # only padding is beyond
            x = x + self.positions(inside, like=x).to(x.dtype)
        dropped: Tensor = self.dropout(x)
        return dropped

    def notes(self) -> list[str]:
        notes = []
        if self.config.positions.kind == "none":
            notes.append("without positions the encoder takes its text for a set of tokens")
        if self.inputs != self.width:
            notes.append(f"the encoder projects the {self.inputs}-wide vectors it reads to {self.width}, its own width")
        return notes


AnyEncoderConfig = RecurrentEncoderConfig | ConvolutionEncoderConfig | TransformerEncoderConfig
EncoderConfig = Annotated[AnyEncoderConfig, Discriminator("kind")]
