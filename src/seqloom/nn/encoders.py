"""The encoders a recipe can choose from; `seqloom.nn.encoder` says what they share.

recurrent     a stack of cells, one way or both
convolution   features of the few vectors around each, layer on layer
transformer   every vector asks every other: `seqloom.nn.transformer_encoder`
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from torch import Tensor, nn

from seqloom.config import Discriminator, config
from seqloom.nn.bidirectional import Combination, Depth, make_stack, stack_problems
from seqloom.nn.convolution import Windows, window_problems
from seqloom.nn.dropout import dropout_notes, make_dropout
from seqloom.nn.encoder import Encoder
from seqloom.nn.masks import at_last
from seqloom.nn.transformer_encoder import TransformerEncoderConfig

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


AnyEncoderConfig = RecurrentEncoderConfig | ConvolutionEncoderConfig | TransformerEncoderConfig
EncoderConfig = Annotated[AnyEncoderConfig, Discriminator("kind")]
