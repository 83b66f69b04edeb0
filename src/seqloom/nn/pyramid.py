"""The pyramidal encoder of Listen, Attend and Spell (Chan et al. 2016), which shortens a sequence between its layers.

    layer 1                 h_j = RNN(h_{j−1}, x_j)
    a layer with pairs      h_j = RNN(h_{j−1}, [y_{2j−1}; y_2j]),   y the outputs of the layer below

Each layer with pairs halves the number of outputs, so that attention and CTC read fewer vectors. If the number of
outputs is odd, the last pair is completed with zeros.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import NonNegativeInt, PositiveInt
from seqloom.nn.bidirectional import BidirectionalStack, read_sequences
from seqloom.nn.encoders import Encoder, RecurrentEncoderConfig
from seqloom.nn.masks import make_dropout, zero_padding
from seqloom.nn.recurrent import Stack


@config
class PyramidalEncoderConfig(RecurrentEncoderConfig):
    kind: Literal["pyramidal"] = "pyramidal"  # type: ignore[assignment]
    layers: PositiveInt = 3
    pairs: NonNegativeInt | None = None  # number of layers, from the top, that read pairs; null: all but the first

    def problems(self) -> Iterator[str]:
        if self.pairs is not None and self.pairs > self.layers:
            yield f"pairs must be at most layers, {self.layers}; got {self.pairs}"
        if self.depth != "each" or self.connections != "none":
            yield "depth and connections must be left out, because a pyramidal encoder connects its layers by pairs"
        yield from super().problems()

    @property
    def pair_layers(self) -> int:
        """The number of layers that read pairs."""
        return self.layers - 1 if self.pairs is None else self.pairs

    @property
    def reduction(self) -> int:
        """The number of vectors that become one output."""
        return int(2**self.pair_layers)

    def build(self, inputs: int) -> "PyramidalEncoder":
        return PyramidalEncoder(self, inputs)


class PyramidalEncoder(Encoder):
    """A stack of recurrent layers, the upper of which read pairs of outputs of the layer below."""

    def __init__(self, config: PyramidalEncoderConfig, inputs: int) -> None:
        super().__init__()
        self.config = config
        single, self.layers = replace(config, layers=1, pairs=None), nn.ModuleList()
        size = inputs
        for depth in range(config.layers):
            stack = single.directed_stack(size * (2 if self.reads_pairs(depth) else 1))
            self.layers.append(stack)
            size = stack.output_size
        self.output_size = size
        self.dropout = make_dropout(config.dropout, config.variational_dropout)

    def reads_pairs(self, depth: int) -> bool:
        """Return whether a layer, counted from 0, reads pairs."""
        return depth >= self.config.layers - self.config.pair_layers

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Map x (B, S, D) to h (B, S', H) with S' = ⌈S / reduction⌉, and to the final state (B, H)."""
        for depth, stack in enumerate(self._stacks()):
            x = self.dropout(x) if depth > 0 else x
            if self.reads_pairs(depth):
                x, mask = join_pairs(x, mask), reduce_mask(mask, 2)
            x, final = read_sequences(stack, x, mask)
        return x, final

    def output_mask(self, mask: Tensor) -> Tensor:
        return reduce_mask(mask, self.config.reduction)

    def notes(self) -> list[str]:
        return [*self._stacks()[0].notes(), *self.config.dropout_notes()]

    def _stacks(self) -> list[Stack | BidirectionalStack]:
        return [stack for stack in self.layers if isinstance(stack, Stack | BidirectionalStack)]


def join_pairs(x: Tensor, mask: Tensor) -> Tensor:
    """Concatenate pairs of vectors (B, S, D) to (B, ⌈S / 2⌉, 2D). Padding counts as zero."""
    x = zero_padding(x, mask)
    return F.pad(x, (0, 0, 0, x.shape[1] % 2)).reshape(len(x), -1, 2 * x.shape[2])


def reduce_mask(mask: Tensor, factor: int) -> Tensor:
    """Return the mask (B, ⌈S / factor⌉) of groups of `factor` positions; a group is real if its first position is."""
    return mask[:, ::factor]
