"""Cells over time and in depth. Only `Recurrent` loops; its plain loop is the definition of everything faster."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from seqloom.nn import fused as kernels
from seqloom.nn import sequences
from seqloom.nn.cells import Cell, State
from seqloom.nn.connections import Connections, Residual, connect
from seqloom.nn.dropout import WeightDropout, make_dropout
from seqloom.nn.masks import at_last, zero_padding

StackState = tuple[State, ...]  # one state per layer, the lowest first


class Recurrent(nn.Module):
    """A cell read from left to right.

    `mask` (B, T) is True at real steps. At the others the state stands still and the output is zero, wherever in the
    row they are, and whatever the input holds there, NaN included. Without `fused` the plain loop runs even where a
    fused kernel would do.
    """

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell

    def initial_state(self, rows: int) -> State:
        return self.cell.initial_state(rows)

    def forward(
        self, x: Tensor, state: State | None = None, mask: Tensor | None = None, fused: bool = True
    ) -> tuple[Tensor, State]:
        """Inputs (B, T, D) to outputs (B, T, H) and the state after the last real step."""
        state = self.initial_state(len(x)) if state is None else state
        self._check(x, state, mask)
        if fused and sequences.applies(self.cell, x, mask):
            return sequences.run(self.cell, x, state, mask)
        if fused and kernels.applies(self.cell, x):
            return kernels.run(self.cell, x, state, mask)
        return self._loop(x, state, mask)

    def _check(self, x: Tensor, state: State, mask: Tensor | None) -> None:
        """The kernels trust what they are given; so nothing of the wrong shape may reach them."""
        if x.dim() != 3 or x.shape[2] != self.cell.inputs:
            raise ValueError(f"inputs must have shape (B, T, {self.cell.inputs}); got {tuple(x.shape)}")
        for name in self.cell.state_names:
            if state[name].shape != (len(x), self.cell.hidden):
                got = tuple(state[name].shape)
                raise ValueError(f"state {name!r} must have shape ({len(x)}, {self.cell.hidden}); got {got}")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:2]):
            shape = tuple(x.shape[:2])
            raise ValueError(f"mask must be torch.bool {shape}; got {mask.dtype} {tuple(mask.shape)}")

    def _loop(self, x: Tensor, state: State, mask: Tensor | None) -> tuple[Tensor, State]:
        outputs = []
        for t, x_t in enumerate(zero_padding(x, mask).unbind(dim=1)):  # (B, D)
            after = self.cell(x_t, state)
            output = after["h"]
            if mask is not None:
                real = mask[:, t].unsqueeze(1)  # (B, 1)
                output = torch.where(real, output, 0)
                after = {name: torch.where(real, after[name], state[name]) for name in after}
            outputs.append(output)
            state = after
        return torch.stack(outputs, dim=1) if outputs else x.new_zeros(len(x), 0, self.cell.hidden), state

    def trace(self, x: Tensor, state: State | None = None) -> dict[str, Tensor]:
        """Everything the cell's equations compute, by name, at every step: each (B, T, H)."""
        state = self.initial_state(len(x)) if state is None else state
        steps = []
        for x_t in x.unbind(dim=1):
            steps.append(self.cell.equations(x_t, state))
            state = {name: steps[-1][name] for name in self.cell.state_names}
        return {name: torch.stack([step[name] for step in steps], dim=1) for name in steps[0]}


class Stack(nn.Module):
    """Layers of `Recurrent`, each reading the outputs of those below; `seqloom.nn.connections` says which, and how.

    Dropout falls on what passes from one layer to the next: not on the stack's own input, not on its output, not on
    what goes around a layer, and never on what a layer hands itself through time. With `variational` it has one mask
    for all steps. `weight_dropout` thins every layer's recurrent matrix.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        dropout: float = 0.0,
        connections: Connections = "none",
        *,
        variational: bool = False,
        weight_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_widths(cells, connections)
        self.connections = connections
        self.layers = nn.ModuleList(Recurrent(cell) for cell in cells)
        self.around = connect(connections, [(cell.inputs, cell.hidden) for cell in cells])
        self.dropout = make_dropout(dropout, variational)
        self.weight_dropout = WeightDropout(weight_dropout)

    @property
    def cells(self) -> list[Cell]:
        return [layer.cell for layer in self._recurrents()]

    @property
    def width(self) -> int:
        """How wide the outputs are."""
        return self.cells[-1].hidden

    def reset_parameters(self, scale: float | None = None) -> None:
        for part in self._parts():
            part.reset_parameters(scale)

    def notes(self) -> list[str]:
        """What the parts do beyond their equations, in words for whoever trains them."""
        return [note for part in self._parts() for note in part.notes()]

    def initial_state(self, rows: int) -> StackState:
        return tuple(cell.initial_state(rows) for cell in self.cells)

    def forward(
        self, x: Tensor, state: StackState | None = None, mask: Tensor | None = None, fused: bool = True
    ) -> tuple[Tensor, StackState]:
        """Inputs (B, T, D) to the top layer's outputs (B, T, H) and the state of every layer."""
        first = self.initial_state(len(x)) if state is None else state
        layers, after = self._recurrents(), []

        def read(depth: int, x: Tensor) -> Tensor:
            h, last = self.weight_dropout(layers[depth], x, first[depth], mask, fused)
            after.append(last)
            return h

        outputs = self._climb(x, read, mask)[-1]["y"]
        return outputs, tuple(after)

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Sequences whole, padding last: outputs (B, T, H), zero at padding, and those of the last real steps (B, H).

        `forward` with a mask leaves padding out, and so must know where it is: on a GPU that is a wait. Here padding is
        read along. It comes last, so what is made of it reaches nothing that counts; there should not be much of it.
        """
        outputs = zero_padding(self(zero_padding(x, mask))[0], mask)
        return outputs, at_last(outputs, mask)

    def climbed(self, x: Tensor) -> list[Tensor]:
        """What every layer makes of x (B, T, D), from no memory: (B, T, H) each, the lowest first."""
        layers, first = self._recurrents(), self.initial_state(len(x))
        ways = self._climb(x, lambda depth, given: self.weight_dropout(layers[depth], given, first[depth])[0])
        return [way["y"] for way in ways]

    def trace(self, x: Tensor, state: StackState | None = None) -> tuple[dict[str, Tensor], ...]:
        """What every layer computes at every step, the lowest layer first; see `Recurrent.trace`.

        With residual and highway connections also what each hands on, `y`, and the highway's gate, `T`. The recurrent
        matrices are traced whole, whatever `weight_dropout` says.
        """
        first = self.initial_state(len(x)) if state is None else state
        layers, traces = self._recurrents(), []

        def read(depth: int, x: Tensor) -> Tensor:
            traces.append(layers[depth].trace(x, first[depth]))
            return traces[-1]["h"]

        around = self._climb(x, read)
        return tuple({**trace, **way} if self.around else trace for trace, way in zip(traces, around, strict=True))

    def _climb(
        self, x: Tensor, read: Callable[[int, Tensor], Tensor], mask: Tensor | None = None
    ) -> list[dict[str, Tensor]]:
        """From layer to layer: `read` has one read its input (B, T, D) and gives its h. What each hands on is `y`."""
        below, ways = [zero_padding(x, mask) if self.around else x], []
        for depth in range(len(self.layers)):
            given = below[-1]
            dropped = self.dropout(given) if depth > 0 else given
            if self.connections == "dense":
                below[-1] = dropped  # once for all who read it
                dropped = torch.cat(below, dim=-1)  # (B, T, D + depth · H)
            h = read(depth, dropped)
            way = self.around[depth](given, h) if self.around else {"y": h}
            if self.around:
                way["y"] = zero_padding(way["y"], mask)  # what goes around knows no padding
            ways.append(way)
            below.append(way["y"])
        return ways

    def _recurrents(self) -> list[Recurrent]:
        return [layer for layer in self.layers if isinstance(layer, Recurrent)]

    def _parts(self) -> list[Cell | Residual]:
        return [*self.cells, *(way for way in self.around if isinstance(way, Residual))]


def check_widths(cells: Sequence[Cell], connections: Connections) -> None:
    """Each layer must take what those below it give."""
    if not cells:
        raise ValueError("a stack needs at least one layer; got none")
    width = cells[0].inputs
    for depth, cell in enumerate(cells):
        if cell.inputs != width:
            raise ValueError(
                f"layer {depth + 1} must take inputs of width {width}, as connections are {connections!r}; "
                f"its cell takes {cell.inputs}"
            )
        width = cell.hidden + (width if connections == "dense" else 0)
