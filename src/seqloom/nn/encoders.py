"""Encoders, which map sequences of vectors to sequences of contextual vectors.

    recurrent    a stack of cells, unidirectional or bidirectional
    convolution   y_t = ReLU(Σ_i W_i x_{t+i} + b),  i = −⌊(k−1)/2⌋ … ⌊k/2⌋,  layer on layer
    transformer   self-attention: `seqloom.nn.transformer`

All encoders read x (B, S, D) and a mask (B, S), which is True at real positions. Padding comes last. Encoders do not
synchronize the device.
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
from seqloom.nn.masks import AttentionScope, Dropout, make_dropout, select_last, zero_padding
from seqloom.nn.transformer import Activation, TransformerOptions


class Encoder(nn.Module, ABC):
    """The interface of the encoders."""

    output_size: int  # size of the outputs

    @abstractmethod
    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Map x (B, S, D) to h (B, S, H), which is undefined at padding, and to the final state (B, H)."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return h (B, S, H)."""
        return self.read(x, mask)[0]

    def attentions(self, x: Tensor, mask: Tensor) -> list[Tensor]:
        """Return the attention weights (B, N, S, S) of each layer, 0 at padding, or an empty list without attention."""
        return []

    def output_mask(self, mask: Tensor) -> Tensor:
        """Return the mask (B, S') of the outputs for the mask (B, S) of the inputs; only some encoders shorten them."""
        return mask

    def notes(self) -> list[str]:
        """Return notes for the user on operations of the encoder that its equations omit."""
        return []


# --- recurrent --------------------------------------------------------------------------------------------------------


@config
class RecurrentEncoderConfig(DirectionOptions):
    kind: Literal["recurrent"] = "recurrent"
    hidden: PositiveInt = 128  # size of each layer's state, per direction
    bidirectional: bool = True  # read in both directions, with separate weights
    variational_dropout: bool = False  # use the same dropout mask at all steps
    weight_dropout: Fraction = 0.0  # probability that a recurrent weight is 0 in a batch

    longest = None  # no limit on the number of tokens

    def build(self, inputs: int) -> Encoder:
        return RecurrentEncoder(self, inputs)


class RecurrentEncoder(Encoder):
    """h_j = [→h_j; ←h_j], or h_j of one direction; the final state is [→h_S; ←h_1], or h_S."""

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
    """The keys of a convolution with several kernel widths."""

    kind: str = ""
    widths: tuple[int, ...] = (3, 4, 5)  # kernel widths in tokens, each with separate filters
    filters: PositiveInt = 100  # number of filters of each width

    def problems(self) -> Iterator[str]:
        if not self.widths or min(self.widths) < 1 or len(set(self.widths)) < len(self.widths):
            yield f"widths must be different positive integers; got {list(self.widths)}"


@config
class ConvolutionEncoderConfig(WindowOptions):
    kind: Literal["convolution"] = "convolution"
    layers: PositiveInt = 1  # number of layers
    dropout: Fraction = 0.0  # dropout between layers

    longest = None  # no limit on the number of tokens

    def build(self, inputs: int) -> "ConvolutionEncoder":
        return ConvolutionEncoder(self, inputs)


class Windows(nn.Module):
    """Convolutions of several widths k, concatenated.

    The layer maps x (B, S, D) and a mask (B, S) to y (B, S, widths · filters), which is zero at padding. x is treated
    as zero at padding and outside the sequence.
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
    """A stack of `Windows` layers. The final state is the output at the last real position."""

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
        return x, select_last(x, mask)


# --- Transformer ------------------------------------------------------------------------------------------------------


@config
class TransformerEncoderConfig(TransformerOptions):
    kind: Literal["transformer"] = "transformer"
    layers: PositiveInt = 2  # number of blocks
    activation: Activation = "relu"  # activation of the feed-forward layers: relu, gelu, gelu-tanh, silu or swiglu
    input_scale: bool = True  # multiply the inputs by √d_model

    def build(self, inputs: int) -> "TransformerEncoder":
        return TransformerEncoder(self, inputs)


class TransformerEncoder(Encoder):
    """x_j ← √D · P x_j + PE(j);  x ← block(x), N times.

    The factor √D requires `input_scale`, and P is used only if the sizes differ. The final state is the output at the
    last real position.
    """

    def __init__(self, config: TransformerEncoderConfig, inputs: int) -> None:
        super().__init__()
        self.config, self.inputs, self.output_size = config, inputs, config.d_model
        self.project = nn.Linear(inputs, config.d_model, bias=False) if inputs != config.d_model else nn.Identity()
        self.positions = config.positions.added(config.d_model)
        self.dropout = Dropout(config.dropout)
        self.blocks, self.norm = config.stack(config.layers), config.final_norm()

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        h: Tensor = self.norm(self.blocks(self.embed_vectors(x, mask), AttentionScope.within(mask)).x)
        return h, select_last(h, mask)

    def attentions(self, x: Tensor, mask: Tensor) -> list[Tensor]:
        return self.blocks.attentions(self.embed_vectors(x, mask), AttentionScope.within(mask), mask)

    def embed_vectors(self, x: Tensor, mask: Tensor) -> Tensor:
        """Compute the input of the first block from vectors x (B, S, D)."""
        x = self.project(zero_padding(x, mask)) * (math.sqrt(self.output_size) if self.config.input_scale else 1)
        if self.positions is not None:
            positions, key = torch.arange(x.shape[1], device=x.device), "model.encoder.positions.max_length"
            x = self.positions.add_to(x, positions, x.shape[1], mask.sum(dim=1), "text", key)
        embedded: Tensor = self.dropout(x)
        return embedded

    def notes(self) -> list[str]:
        notes = []
        if self.config.positions.kind == "none":
            notes.append("without positions the encoder treats its text as a set of tokens")
        if self.inputs != self.output_size:
            notes.append(f"the encoder projects its inputs from {self.inputs} to {self.output_size} dimensions")
        return notes


AnyEncoderConfig = RecurrentEncoderConfig | ConvolutionEncoderConfig | TransformerEncoderConfig
EncoderConfig = Annotated[AnyEncoderConfig, Discriminator("kind")]
