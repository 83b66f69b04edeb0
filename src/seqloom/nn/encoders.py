"""Encoders: a sequence read whole, each vector computed anew from all of them.

    recurrent     a stack of cells, one way or both
    convolution   y_t = ReLU(Σ_i W_i x_{t+i} + b),  i = −⌊(k−1)/2⌋ … ⌊k/2⌋,  layer on layer
    transformer   every vector attends to every other: `seqloom.nn.transformer`

All take x (B, S, D) and a mask (B, S), True at real positions, which stand first. None of them
waits for a GPU.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import Discriminator, config
from seqloom.config.constraints import Fraction, PositiveInt
from seqloom.nn.bidirectional import DirectionOptions
from seqloom.nn.masks import AttentionScope, Dropout, at_last, make_dropout, zero_padding
from seqloom.nn.transformer import Activation, TransformerOptions


class Encoder(nn.Module, ABC):
    """The interface of the encoders."""

    output_size: int  # of the outputs

    @abstractmethod
    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, S, D) to h (B, S, H), which means nothing at padding, and to where the reading ended (B, H)."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """h (B, S, H)"""
        return self.read(x, mask)[0]

    def attentions(self, x: Tensor, mask: Tensor) -> list[Tensor]:
        """The attention weights of each layer (B, N, S, S), 0 at padding; empty where there are no heads."""
        return []

    def notes(self) -> list[str]:
        """What the encoder does beyond its equations, for whoever trains it."""
        return []


# --- recurrent --------------------------------------------------------------------------------------------------------


@config
class RecurrentEncoderConfig(DirectionOptions):
    kind: Literal["recurrent"] = "recurrent"
    hidden: PositiveInt = 128  # width of every layer's state, in each direction
    bidirectional: bool = True  # read from both ends, with weights of their own
    variational_dropout: bool = False  # dropout drops the same at every step
    weight_dropout: Fraction = 0.0  # share of the recurrent weights left out for one batch

    longest = None  # it reads any number of tokens

    def build(self, inputs: int) -> "RecurrentEncoder":
        return RecurrentEncoder(self, inputs)


class RecurrentEncoder(Encoder):
    """h_j = [→h_j; ←h_j], or h_j of one direction; it ends in [→h_S; ←h_1], or h_S."""

    def __init__(self, config: RecurrentEncoderConfig, inputs: int) -> None:
        super().__init__()
        self.config = config
        self.stack = config.directed_stack(inputs)
        self.output_size = self.stack.output_size

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.stack.read(x, mask)

    def notes(self) -> list[str]:
        return [*self.stack.notes(), *self.config.dropout_notes()]


# --- convolution ------------------------------------------------------------------------------------------------------


@config
class WindowOptions:
    """The keys of a convolution with windows of several widths."""

    kind: str = ""
    widths: tuple[int, ...] = (3, 4, 5)  # how many positions a window sees; one set of filters for each
    filters: PositiveInt = 100  # features of each width

    def problems(self) -> Iterator[str]:
        if not self.widths or min(self.widths) < 1 or len(set(self.widths)) < len(self.widths):
            yield f"widths must be whole numbers above 0, each once; got {list(self.widths)}"


@config
class ConvolutionEncoderConfig(WindowOptions):
    kind: Literal["convolution"] = "convolution"
    layers: PositiveInt = 1  # stacked on each other
    dropout: Fraction = 0.0  # between layers

    longest = None  # it reads any number of tokens

    def build(self, inputs: int) -> "ConvolutionEncoder":
        return ConvolutionEncoder(self, inputs)


class Windows(nn.Module):
    """Convolutions of several widths k side by side, over the few vectors around each position.

    x (B, S, D) and a mask (B, S) to y (B, S, widths · filters), zero at padding. Beyond the ends,
    and at padding, x is zero.
    """

    def __init__(self, inputs: int, filters: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.output_size = filters * len(widths)
        self.layers = nn.ModuleList(nn.Conv1d(inputs, filters, width) for width in widths)
        self.widths = tuple(widths)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = zero_padding(x, mask).transpose(1, 2)  # (B, D, S)
        padded = [F.pad(x, ((width - 1) // 2, width // 2)) for width in self.widths]
        y = torch.cat([layer(part) for layer, part in zip(self.layers, padded, strict=True)], dim=1)
        return zero_padding(F.relu(y).transpose(1, 2), mask)


class ConvolutionEncoder(Encoder):
    """Layers of `Windows`; the reading ends at the last real position."""

    def __init__(self, config: ConvolutionEncoderConfig, inputs: int) -> None:
        super().__init__()
        self.output_size = config.filters * len(config.widths)
        self.layers = nn.ModuleList(
            Windows(inputs if depth == 0 else self.output_size, config.filters, config.widths)
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
    """x_j ← √D · P x_j + PE(j), P only where the widths differ; x ← block(x), N times. The reading ends at the last
    real position."""

    def __init__(self, config: TransformerEncoderConfig, inputs: int) -> None:
        super().__init__()
        self.config, self.inputs, self.output_size = config, inputs, config.d_model
        self.project = nn.Linear(inputs, config.d_model, bias=False) if inputs != config.d_model else nn.Identity()
        self.positions = config.positions.added(config.d_model)
        self.dropout = Dropout(config.dropout)
        self.blocks, self.norm = config.stack(config.layers), config.final_norm()

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        h: Tensor = self.norm(self.blocks(self.embed_vectors(x, mask), AttentionScope.within(mask)).x)
        return h, at_last(h, mask)

    def attentions(self, x: Tensor, mask: Tensor) -> list[Tensor]:
        return self.blocks.attentions(self.embed_vectors(x, mask), AttentionScope.within(mask), mask)

    def embed_vectors(self, x: Tensor, mask: Tensor) -> Tensor:
        """The input of the first block, of vectors x (B, S, D)."""
        x = self.project(zero_padding(x, mask)) * math.sqrt(self.output_size)
        if self.positions is not None:
            positions, key = torch.arange(x.shape[1], device=x.device), "model.encoder.positions.max_length"
            x = self.positions.add_to(x, positions, x.shape[1], mask.sum(dim=1), "text", key)
        dropped: Tensor = self.dropout(x)
        return dropped

    def notes(self) -> list[str]:
        notes = []
        if self.config.positions.kind == "none":
            notes.append("without positions the encoder takes its text for a set of tokens")
        if self.inputs != self.output_size:
            notes.append(
                f"the encoder projects the {self.inputs}-wide vectors it reads to {self.output_size}, its own width"
            )
        return notes


AnyEncoderConfig = RecurrentEncoderConfig | ConvolutionEncoderConfig | TransformerEncoderConfig
EncoderConfig = Annotated[AnyEncoderConfig, Discriminator("kind")]
