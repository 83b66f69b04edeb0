"""Cells over time and in depth: `run_cell` loops over the steps, `Stack` over the layers."""

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.operations import operation
from seqloom.nn.cells import Cell, State
from seqloom.nn.connections import Connections, Residual, connect
from seqloom.nn.dropout import make_dropout
from seqloom.nn.masks import at_last, zero_padding

StackState = tuple[State, ...]  # one state per layer, the lowest first


@operation
def run_cell(cell: Cell, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
    """Run a cell over inputs (B, T, D): return the outputs (B, T, H) and the state after the last real step.

    `mask` (B, T) is True at real steps. At the others the state is kept and the output is zero, wherever in the row
    they are and whatever the input holds there, NaN included.
    """
    outputs = []
    for t, x_t in enumerate(zero_padding(x, mask).unbind(dim=1)):  # (B, D)
        new_state = cell(x_t, state)
        output = new_state["h"]
        if mask is not None:
            real = mask[:, t].unsqueeze(1)  # (B, 1)
            output = torch.where(real, output, 0)
            new_state = {name: torch.where(real, new_state[name], state[name]) for name in new_state}
        outputs.append(output)
        state = new_state
    return torch.stack(outputs, dim=1) if outputs else x.new_zeros(len(x), 0, cell.hidden), state


class Recurrent(nn.Module):
    """A recurrent layer: a cell run over time.

    `weight_dropout` is DropConnect on the recurrent matrix in training: W_h loses single weights, drawn once per
    forward pass for all rows and steps.
    """

    recomputable = True  # see `seqloom.train.state.checkpoint_layers`

    def __init__(self, cell: Cell, weight_dropout: float = 0.0) -> None:
        super().__init__()
        if not 0 <= weight_dropout < 1:
            raise ValueError(f"weight_dropout must be at least 0 and below 1; got {weight_dropout}")
        self.cell, self.weight_dropout = cell, weight_dropout

    def initial_state(self, rows: int) -> State:
        return self.cell.initial_state(rows)

    def forward(self, x: Tensor, state: State | None = None, mask: Tensor | None = None) -> tuple[Tensor, State]:
        """Inputs (B, T, D) to outputs (B, T, H) and the state after the last real step; see `run_cell`."""
        state = self.initial_state(len(x)) if state is None else state
        self._check_shapes(x, state, mask)
        cell = self.cell
        if self.training and self.weight_dropout:
            cell = drop_recurrent_weights(cell, self.weight_dropout)
        return run_cell(cell, x, state, mask)

    def trace(self, x: Tensor, state: State | None = None) -> dict[str, Tensor]:
        """Everything the cell's equations compute, by name, at every step: each (B, T, H)."""
        state = self.initial_state(len(x)) if state is None else state
        steps = []
        for x_t in x.unbind(dim=1):
            steps.append(self.cell.equations(x_t, state))
            state = {name: steps[-1][name] for name in self.cell.state_names}
        return {name: torch.stack([step[name] for step in steps], dim=1) for name in steps[0]}

    def _check_shapes(self, x: Tensor, state: State, mask: Tensor | None) -> None:
        """Refuse wrong shapes: kernels trust what they are given."""
        if x.dim() != 3 or x.shape[2] != self.cell.inputs:
            raise ValueError(f"inputs must have shape (B, T, {self.cell.inputs}); got {tuple(x.shape)}")
        for name in self.cell.state_names:
            if state[name].shape != (len(x), self.cell.hidden):
                got = tuple(state[name].shape)
                raise ValueError(f"state {name!r} must have shape ({len(x)}, {self.cell.hidden}); got {got}")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:2]):
            shape = tuple(x.shape[:2])
            raise ValueError(f"mask must be torch.bool {shape}; got {mask.dtype} {tuple(mask.shape)}")


def drop_recurrent_weights(cell: Cell, p: float) -> Cell:
    """Return the cell with dropout on its recurrent matrix W_h; it shares all other parameters."""
    thinned = copy.copy(cell)
    thinned._parameters = {name: value for name, value in cell._parameters.items() if name != "weight_h"}
    thinned.weight_h = F.dropout(cell.weight_h, p)  # type: ignore[assignment]
    return thinned


class Stack(nn.Module):
    """Layers of `Recurrent`, each reading the outputs of those below; `seqloom.nn.connections` says which, and how.

    Dropout falls on what passes from one layer to the next: not on the stack's input or output, not on a connection
    around a layer, and never on the state. With `variational` it has one mask for all steps.
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
        self.layers = nn.ModuleList(Recurrent(cell, weight_dropout) for cell in cells)
        self.around = connect(connections, [(cell.inputs, cell.hidden) for cell in cells])
        self.dropout = make_dropout(dropout, variational)

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
        self, x: Tensor, state: StackState | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, StackState]:
        """Inputs (B, T, D) to the top layer's outputs (B, T, H) and the state of every layer."""
        outputs, states = self.run_layers(x, state, mask)
        return outputs[-1], states

    def run_layers(
        self, x: Tensor, state: StackState | None = None, mask: Tensor | None = None
    ) -> tuple[list[Tensor], StackState]:
        """The outputs (B, T, H) and the state of every layer, the lowest first."""
        state = self.initial_state(len(x)) if state is None else state
        outputs, states = [zero_padding(x, mask) if self.around else x], []
        for depth, layer in enumerate(self.layers):
            h, new_state = layer(self._layer_input(outputs, depth), state[depth], mask)
            outputs.append(zero_padding(self._connect(depth, outputs[depth], h)["y"], mask) if self.around else h)
            states.append(new_state)
        return outputs[1:], tuple(states)

    def trace(self, x: Tensor, state: StackState | None = None) -> tuple[dict[str, Tensor], ...]:
        """What every layer computes at every step, the lowest layer first; see `Recurrent.trace`.

        With residual and highway connections also the output `y` of each, and the highway's gate `T`. The recurrent
        matrices are traced whole, whatever `weight_dropout` is.
        """
        state = self.initial_state(len(x)) if state is None else state
        outputs, traces = [x], []
        for depth, layer in enumerate(self._recurrents()):
            trace = layer.trace(self._layer_input(outputs, depth), state[depth])
            connected = self._connect(depth, outputs[depth], trace["h"]) if self.around else {}
            outputs.append(connected["y"] if connected else trace["h"])
            traces.append({**trace, **connected})
        return tuple(traces)

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Whole sequences, padding last: outputs (B, T, H), zero at padding, and those of the last real steps (B, H).

        `forward` with a mask skips padding, so it must know where it is, and a GPU would have to wait. Here padding is
        read too. It comes last, so it reaches no real step; there should not be much of it.
        """
        outputs = zero_padding(self(zero_padding(x, mask))[0], mask)
        return outputs, at_last(outputs, mask)

    def _layer_input(self, outputs: list[Tensor], depth: int) -> Tensor:
        """What a layer reads: the output below it with dropout, or all outputs below it if connections are dense."""
        x = self.dropout(outputs[depth]) if depth > 0 else outputs[depth]
        if self.connections != "dense":
            return x
        outputs[depth] = x  # dropped once for all layers that read it
        return torch.cat(outputs, dim=-1)  # (B, T, D + depth · H)

    def _connect(self, depth: int, x: Tensor, h: Tensor) -> dict[str, Tensor]:
        connected: dict[str, Tensor] = self.around[depth](x, h)
        return connected

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
