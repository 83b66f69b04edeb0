"""Bidirectional recurrent layers: one network reads from left to right, another network from right to left.

    →h_t from x_1 … x_t          ←h_t from x_T … x_t          separate weights

    concat  y_t = [→h_t; ←h_t]
    sum     y_t = →h_t + ←h_t
    mix     y_t = g(W→ →h_t + W← ←h_t + b),  g = tanh

The directions are combined after each layer (`each`), or run as two separate stacks and are combined at the top
(`apart`). The backward direction reads the real steps of each row, where `mask` (B, T) is True, in reverse order and
skips padding.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Literal, TypedDict

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.operations import operation
from seqloom.nn.cells import Cell, State
from seqloom.nn.masks import make_dropout, reversal_indices, select_last, zero_padding
from seqloom.nn.recurrent import Recurrent, RecurrentOptions, Stack

Combination = Literal["concat", "sum", "mix"]
Depth = Literal["each", "apart"]


class BothStates(TypedDict):
    """The states of one layer: the forward state after the last real step, and the backward state after the first."""

    forwards: State
    backwards: State


class Combine(nn.Module):
    """Combine →h (B, T, H) and ←h (B, T, H) into y (B, T, output_size) by the equations above."""

    def __init__(self, hidden: int, how: Combination = "concat") -> None:
        super().__init__()
        if how not in ("concat", "sum", "mix"):
            raise ValueError(f"combine must be concat, sum or mix; got {how!r}")
        self.how = how
        self.output_size = 2 * hidden if how == "concat" else hidden
        self.mix = nn.Linear(2 * hidden, hidden) if how == "mix" else None  # [W→ W←] and b

    def forward(self, forwards: Tensor, backwards: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.how == "sum":
            return forwards + backwards
        both = torch.cat([forwards, backwards], dim=-1)  # (B, T, 2H)
        if self.mix is None:
            return both
        return zero_padding(torch.tanh(self.mix(both)), mask)  # (B, T, H)

    def extra_repr(self) -> str:
        return self.how


class Bidirectional(nn.Module):
    """A bidirectional layer of two cells."""

    def __init__(self, forwards: Cell, backwards: Cell, combine: Combination = "concat", weight_dropout: float = 0.0):
        super().__init__()
        if (forwards.inputs, forwards.hidden) != (backwards.inputs, backwards.hidden):
            raise ValueError(
                f"both directions must have cells of the same size; got {forwards.inputs} → {forwards.hidden} and "
                f"{backwards.inputs} → {backwards.hidden}"
            )
        self.forwards, self.backwards = Recurrent(forwards, weight_dropout), Recurrent(backwards, weight_dropout)
        self.combine = Combine(forwards.hidden, combine)

    def forward(
        self, x: Tensor, state: BothStates | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, BothStates]:
        """Map inputs (B, T, D) to outputs (B, T, output_size) and the final states of both directions."""
        start, end = (None, None) if state is None else (state["forwards"], state["backwards"])
        right, last = self.forwards(x, start, mask)
        left, first = self.backwards(x.flip(1), end, None if mask is None else mask.flip(1))
        return self.combine(right, left.flip(1), mask), {"forwards": last, "backwards": first}

    def directions(self, x: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """Compute →h and ←h (B, T, H) from the initial state. `order` (B, T, 1) reverses the real steps."""
        right = self.forwards(x)[0]
        left = self.backwards(x.take_along_dim(order, dim=1))[0]
        return right, left.take_along_dim(order, dim=1)


class BidirectionalStack(nn.Module):
    """A stack of bidirectional layers.

    `make(inputs, hidden)` creates a cell, for example a class of `CELLS`. For both values of `depth`, the state is a
    tuple with one `BothStates` per layer, lowest first. Dropout is applied between layers, as in `Stack`.
    """

    def __init__(
        self,
        make: Callable[[int, int], Cell],
        inputs: int,
        hidden: int,
        layers: int = 1,
        *,
        combine: Combination = "concat",
        depth: Depth = "each",
        dropout: float = 0.0,
        variational_dropout: bool = False,
        weight_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"layers must be at least 1; got {layers}")
        if depth not in ("each", "apart"):
            raise ValueError(f"depth must be each or apart; got {depth!r}")
        self.depth, self.output_size = depth, Combine(hidden, combine).output_size
        inner = self.output_size if depth == "each" else hidden
        sizes = [inputs if layer == 0 else inner for layer in range(layers)]
        if depth == "each":
            pairs = [(make(size, hidden), make(size, hidden)) for size in sizes]
            self.layers = nn.ModuleList(Bidirectional(*pair, combine, weight_dropout) for pair in pairs)
            self.dropout = make_dropout(dropout, variational_dropout)
        else:
            self.directions = nn.ModuleList(
                Stack(
                    [make(size, hidden) for size in sizes],
                    dropout,
                    variational_dropout=variational_dropout,
                    weight_dropout=weight_dropout,
                )
                for _ in range(2)
            )
            self.combine = Combine(hidden, combine)

    def notes(self) -> list[str]:
        """Return notes for the user, once for both directions, on operations of the cells that their equations omit."""
        if self.depth == "apart":
            return self._stacks()[0].notes()
        return [note for layer in self._layers() for note in layer.forwards.cell.notes()]

    def initial_state(self, rows: int) -> tuple[BothStates, ...]:
        if self.depth == "apart":
            return pair_states(*(stack.initial_state(rows) for stack in self._stacks()))
        forwards, backwards = zip(
            *((layer.forwards.cell, layer.backwards.cell) for layer in self._layers()), strict=True
        )
        return pair_states(*(tuple(cell.initial_state(rows) for cell in cells) for cells in (forwards, backwards)))

    def forward(
        self, x: Tensor, state: tuple[BothStates, ...] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[BothStates, ...]]:
        """Map inputs (B, T, D) to outputs (B, T, output_size), zero at padding, and the states of all layers."""
        state = self.initial_state(len(x)) if state is None else state
        if self.depth == "each":
            states = []
            for depth, layer in enumerate(self.layers):
                x, new_state = layer(self.dropout(x) if depth > 0 else x, state[depth], mask)
                states.append(new_state)
            return x, tuple(states)
        forwards, backwards = self._stacks()
        right, last = forwards(x, tuple(layer["forwards"] for layer in state), mask)
        reverse_mask = None if mask is None else mask.flip(1)
        left, first = backwards(x.flip(1), tuple(layer["backwards"] for layer in state), reverse_mask)
        return self.combine(right, left.flip(1), mask), pair_states(last, first)

    def ends(self, state: tuple[BothStates, ...]) -> Tensor:
        """Return the combined final states →h_T and ←h_1 (B, output_size) of the top layer."""
        vector: Tensor = self._top()(state[-1]["forwards"]["h"], state[-1]["backwards"]["h"])
        return vector

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Read complete sequences with padding last. Return outputs (B, T, output_size), zero at padding, and `ends`.

        This method needs no device synchronization; see `Stack.read`.
        """
        x, order = zero_padding(x, mask), reversal_indices(mask).unsqueeze(2)  # (B, T, 1)
        if self.depth == "each":
            layers = self._layers()
            right, left = layers[0].directions(x, order)
            for below, layer in pairwise(layers):
                right, left = layer.directions(self.dropout(below.combine(right, left)), order)
        else:
            forwards, backwards = self._stacks()
            right, left = forwards(x)[0], backwards(x.take_along_dim(order, dim=1))[0].take_along_dim(order, dim=1)
        combine = self._top()
        ends = combine(select_last(right, mask), left[:, 0]).where(mask.any(dim=1, keepdim=True), 0)
        return zero_padding(combine(right, left), mask), ends

    def _top(self) -> Combine:
        """Return the `Combine` module of the top layer."""
        return self._layers()[-1].combine if self.depth == "each" else self.combine

    def _layers(self) -> list[Bidirectional]:
        return [layer for layer in self.layers if isinstance(layer, Bidirectional)]

    def _stacks(self) -> list[Stack]:
        return [stack for stack in self.directions if isinstance(stack, Stack)]


def pair_states(forwards: tuple[State, ...], backwards: tuple[State, ...]) -> tuple[BothStates, ...]:
    """Pair the states of both directions, layer by layer."""
    return tuple({"forwards": a, "backwards": b} for a, b in zip(forwards, backwards, strict=True))


@operation
def read_sequences(stack: Stack | BidirectionalStack, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Read x (B, T, D) with padding last. Return outputs (B, T, H), zero at padding, and the final state (B, H)."""
    return stack.read(x, mask)


@config
class DirectionOptions(RecurrentOptions):
    """The keys of models with unidirectional or bidirectional layers."""

    layers: PositiveInt = 1  # number of layers
    hidden: PositiveInt = 64  # size of each layer's state, per direction
    bidirectional: bool = False  # read in both directions, with separate weights
    combine: Combination = "concat"  # how to combine the two directions: concat, sum or mix
    depth: Depth = "each"  # combine the directions after each layer, or keep them apart up to the top layer

    def problems(self) -> Iterator[str]:
        if not self.bidirectional and (self.combine, self.depth) != ("concat", "each"):
            yield "combine and depth need bidirectional=true; set it, or remove them"
        yield from super().problems()

    def directed_stack(self, inputs: int) -> Stack | BidirectionalStack:
        """Create a stack for inputs of size `inputs`."""
        if not self.bidirectional:
            return self.stack(inputs, self.layers)
        return BidirectionalStack(
            self.make_cell,
            inputs,
            self.hidden,
            self.layers,
            combine=self.combine,
            depth=self.depth,
            dropout=self.dropout,
            variational_dropout=self.variational_dropout,
            weight_dropout=self.weight_dropout,
        )
