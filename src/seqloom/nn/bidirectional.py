"""Both directions: one network reads from left to right, another from right to left, and every step sees both.

    →h_t from x_1 … x_t          ←h_t from x_T … x_t          separate weights

    concat  y_t = [→h_t; ←h_t]
    sum     y_t = →h_t + ←h_t
    mix     y_t = g(W→ →h_t + W← ←h_t + b),  g = tanh

In depth they are combined after `each` layer, so that every layer above reads both; or kept
`apart`, two full stacks, and combined at the top.

Right to left means the real steps of each row in reverse: `mask` (B, T) is True at them, and
padding, wherever it stands, is read by nobody.
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
from seqloom.nn.masks import at_last, make_dropout, reversed_steps, zero_padding
from seqloom.nn.recurrent import Recurrent, RecurrentOptions, Stack

Combination = Literal["concat", "sum", "mix"]
Depth = Literal["each", "apart"]


class BothStates(TypedDict):
    """The state of one layer: after the last real step, and, reading backwards, after the first."""

    forwards: State
    backwards: State


class Combine(nn.Module):
    """→h (B, T, H) and ←h (B, T, H) to y (B, T, output_size); see the equations above."""

    def __init__(self, hidden: int, how: Combination = "concat") -> None:
        super().__init__()
        if how not in ("concat", "sum", "mix"):
            raise ValueError(f"directions are combined by concat, sum or mix; got {how!r}")
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
    """Two cells over the same sequence, one from each end."""

    def __init__(self, forwards: Cell, backwards: Cell, combine: Combination = "concat", weight_dropout: float = 0.0):
        super().__init__()
        if (forwards.inputs, forwards.hidden) != (backwards.inputs, backwards.hidden):
            raise ValueError(
                f"both directions must have cells of one size; got {forwards.inputs} → {forwards.hidden} and "
                f"{backwards.inputs} → {backwards.hidden}"
            )
        self.forwards, self.backwards = Recurrent(forwards, weight_dropout), Recurrent(backwards, weight_dropout)
        self.combine = Combine(forwards.hidden, combine)

    def forward(
        self, x: Tensor, state: BothStates | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, BothStates]:
        """Inputs (B, T, D) to outputs (B, T, output_size), and the states where each direction ended."""
        start, end = (None, None) if state is None else (state["forwards"], state["backwards"])
        right, last = self.forwards(x, start, mask)
        left, first = self.backwards(x.flip(1), end, None if mask is None else mask.flip(1))
        return self.combine(right, left.flip(1), mask), {"forwards": last, "backwards": first}

    def directions(self, x: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """→h and ←h (B, T, H) from the initial state; `order` (B, T, 1) reverses the real steps, padding stays last."""
        right = self.forwards(x)[0]
        left = self.backwards(x.take_along_dim(order, dim=1))[0]
        return right, left.take_along_dim(order, dim=1)


class BidirectionalStack(nn.Module):
    """Layers that read both ways: an encoder for whatever may see its whole input at once.

    `make(inputs, hidden)` creates a cell: a class of `CELLS` is such a function. The state has the
    same form for both values of `depth`: one `BothStates` per layer, the lowest first. Dropout
    falls between layers, as in `Stack`.
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
            raise ValueError(f"directions are combined after each layer or kept apart; got depth={depth!r}")
        self.depth, self.output_size = depth, Combine(hidden, combine).output_size
        inner = self.output_size if depth == "each" else hidden
        widths = [inputs if layer == 0 else inner for layer in range(layers)]
        if depth == "each":
            pairs = [(make(width, hidden), make(width, hidden)) for width in widths]
            self.layers = nn.ModuleList(Bidirectional(*pair, combine, weight_dropout) for pair in pairs)
            self.dropout = make_dropout(dropout, variational_dropout)
        else:
            self.directions = nn.ModuleList(
                Stack(
                    [make(width, hidden) for width in widths],
                    dropout,
                    variational_dropout=variational_dropout,
                    weight_dropout=weight_dropout,
                )
                for _ in range(2)
            )
            self.combine = Combine(hidden, combine)

    def notes(self) -> list[str]:
        """What the cells do beyond their equations; both directions say the same."""
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
        """Inputs (B, T, D) to outputs (B, T, output_size), zero at padding, and the states of every layer."""
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
        """One vector (B, output_size) for a whole sequence: →h_T and ←h_1 of the top layer, combined."""
        vector: Tensor = self._top()(state[-1]["forwards"]["h"], state[-1]["backwards"]["h"])
        return vector

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Whole sequences, padding last: outputs (B, T, output_size), 0 at padding, and `ends` (B, output_size).

        Never waits for a GPU; see `Stack.read`.
        """
        x, order = zero_padding(x, mask), reversed_steps(mask).unsqueeze(2)  # (B, T, 1)
        if self.depth == "each":
            layers = self._layers()
            right, left = layers[0].directions(x, order)
            for below, layer in pairwise(layers):
                right, left = layer.directions(self.dropout(below.combine(right, left)), order)
        else:
            forwards, backwards = self._stacks()
            right, left = forwards(x)[0], backwards(x.take_along_dim(order, dim=1))[0].take_along_dim(order, dim=1)
        combine = self._top()
        ends = combine(at_last(right, mask), left[:, 0]).where(mask.any(dim=1, keepdim=True), 0)
        return zero_padding(combine(right, left), mask), ends

    def _top(self) -> Combine:
        """How the directions of the top layer are combined."""
        return self._layers()[-1].combine if self.depth == "each" else self.combine

    def _layers(self) -> list[Bidirectional]:
        return [layer for layer in self.layers if isinstance(layer, Bidirectional)]

    def _stacks(self) -> list[Stack]:
        return [stack for stack in self.directions if isinstance(stack, Stack)]


def pair_states(forwards: tuple[State, ...], backwards: tuple[State, ...]) -> tuple[BothStates, ...]:
    """The states of all layers in both directions, as one for each layer."""
    return tuple({"forwards": a, "backwards": b} for a, b in zip(forwards, backwards, strict=True))


@operation
def read_sequences(stack: Stack | BidirectionalStack, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Read x (B, T, D) whole, padding last: outputs (B, T, H), zero at padding, and where the reading ended (B, H)."""
    return stack.read(x, mask)


@config
class DirectionOptions(RecurrentOptions):
    """The keys of a model whose recurrent layers read one way or both."""

    layers: PositiveInt = 1  # cells stacked on each other
    hidden: PositiveInt = 64  # width of every layer's state, in each direction
    bidirectional: bool = False  # read from both ends, with weights of their own
    combine: Combination = "concat"  # the two directions: concat, sum or mix
    depth: Depth = "each"  # combine them after each layer, or keep them apart up to the top

    def problems(self) -> Iterator[str]:
        if not self.bidirectional and (self.combine, self.depth) != ("concat", "each"):
            yield "combine and depth are about two directions; set bidirectional to true, or leave them out"
        yield from super().problems()

    def directed_stack(self, inputs: int) -> Stack | BidirectionalStack:
        """Create a stack that reads vectors `inputs` wide."""
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
