"""Cells over time and in depth: `run_cell` loops over the steps, `Stack` over the layers.

With x the input of a layer and h its output, the next layer reads y:

    none      y = h
    residual  y = h + x
    highway   y = T ⊙ h + (1 - T) ⊙ x,  T = σ(W_T x + b_T)
    dense     y = h, and each layer reads the stack's input and the outputs of all layers below, concatenated

Residual and highway connections add x to h: where their sizes differ (embeddings narrower than the
layers, say), x is projected, x ← W_a x, and `notes` says so.
"""

import copy
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import Fraction, PositiveInt
from seqloom.core.operations import operation
from seqloom.nn.cells import Cell, CellOptions, State
from seqloom.nn.masks import at_last, make_dropout, zero_padding

Connections = Literal["none", "residual", "highway", "dense"]
NO_CONNECTIONS: Connections = "none"
StackState = tuple[State, ...]  # one state per layer, the lowest first


@operation
def run_cell(cell: Cell, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
    """Run a cell over inputs (B, T, D): return the outputs (B, T, H) and the state after the last real step.

    `mask` (B, T) is True at real steps. At the others the state is kept and the output is zero,
    wherever in the row they are and whatever the input holds there, NaN included.
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

    `weight_dropout` is DropConnect on the recurrent matrix in training: W_h loses single weights,
    drawn once per forward pass for all rows and steps.
    """

    recomputable = True  # see `seqloom.train.wrappers.checkpoint_activations`

    def __init__(self, cell: Cell, weight_dropout: float = 0.0) -> None:
        super().__init__()
        if not 0 <= weight_dropout < 1:
            raise ValueError(f"weight_dropout must be at least 0 and below 1; got {weight_dropout}")
        self.cell, self.weight_dropout = cell, weight_dropout

    def forward(self, x: Tensor, state: State | None = None, mask: Tensor | None = None) -> tuple[Tensor, State]:
        """Inputs (B, T, D) to outputs (B, T, H) and the state after the last real step; see `run_cell`.

        Wrong shapes are refused: kernels trust what they are given.
        """
        cell = self.cell
        state = cell.initial_state(len(x)) if state is None else state
        if x.dim() != 3 or x.shape[2] != cell.inputs:
            raise ValueError(f"inputs must have shape (B, T, {cell.inputs}); got {tuple(x.shape)}")
        for name in cell.state_names:
            if state[name].shape != (len(x), cell.hidden):
                got = tuple(state[name].shape)
                raise ValueError(f"state {name!r} must have shape ({len(x)}, {cell.hidden}); got {got}")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:2]):
            shape = tuple(x.shape[:2])
            raise ValueError(f"mask must be torch.bool {shape}; got {mask.dtype} {tuple(mask.shape)}")
        if self.training and self.weight_dropout:
            cell = drop_recurrent_weights(cell, self.weight_dropout)
        return run_cell(cell, x, state, mask)

    def trace(self, x: Tensor, state: State | None = None) -> dict[str, Tensor]:
        """Everything the cell's equations compute, by name, at every step: each (B, T, H)."""
        state = self.cell.initial_state(len(x)) if state is None else state
        steps = []
        for x_t in x.unbind(dim=1):
            steps.append(self.cell.equations(x_t, state))
            state = {name: steps[-1][name] for name in self.cell.state_names}
        return {name: torch.stack([step[name] for step in steps], dim=1) for name in steps[0]}


def drop_recurrent_weights(cell: Cell, p: float) -> Cell:
    """Return the cell with dropout on its recurrent matrix W_h; it shares all other parameters."""
    thinned = copy.copy(cell)
    thinned._parameters = {name: value for name, value in cell._parameters.items() if name != "weight_h"}
    thinned.weight_h = F.dropout(cell.weight_h, p)  # type: ignore[assignment]
    return thinned


class ResidualConnection(nn.Module):
    """y = h + x"""

    name = "residual"

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.inputs, self.hidden = inputs, hidden
        self.project = nn.Linear(inputs, hidden, bias=False) if inputs != hidden else None

    def reset_parameters(self, scale: float | None = None) -> None:
        """Draw every parameter uniformly from (-scale, scale); None is torch's initialisation."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
        if scale is not None:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -scale, scale)

    def forward(self, x: Tensor, h: Tensor) -> dict[str, Tensor]:
        """Everything that is computed, by name, each (B, T, H); y is the output."""
        return {"y": h + (x if self.project is None else self.project(x))}

    def notes(self) -> list[str]:
        """What the connection does beyond its equation, for whoever trains it."""
        if self.project is None:
            return []
        return [f"the {self.name} connection projects its {self.inputs}-wide input to {self.hidden} on the way around"]


class HighwayConnection(ResidualConnection):
    """T = σ(W_T x + b_T)
    y = T ⊙ h + (1 - T) ⊙ x

    b_T starts at -1, so that a fresh network passes most of x on, and learns where to transform it.
    """

    name = "highway"
    first_bias = -1.0

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(inputs, hidden)
        self.gate = nn.Linear(inputs, hidden)
        self.reset_parameters()

    def reset_parameters(self, scale: float | None = None) -> None:
        super().reset_parameters(scale)
        with torch.no_grad():
            self.gate.bias.add_(self.first_bias)

    def forward(self, x: Tensor, h: Tensor) -> dict[str, Tensor]:
        t = torch.sigmoid(self.gate(x))
        return {"T": t, "y": t * h + (1 - t) * (x if self.project is None else self.project(x))}


def input_widths(connections: Connections, inputs: int, hidden: int, layers: int) -> list[int]:
    """The width of the input of each layer, the lowest first."""
    if connections == "dense":
        return [inputs + depth * hidden for depth in range(layers)]
    return [inputs if depth == 0 else hidden for depth in range(layers)]


class Stack(nn.Module):
    """Layers of `Recurrent`, each reading the outputs of those below, connected as the equations above say.

    Dropout falls on what passes from one layer to the next: not on the stack's input or output, not
    on a connection around a layer, and never on the state. With `variational` it has one mask for
    all steps.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        dropout: float = 0.0,
        connections: Connections = "none",
        *,
        variational_dropout: bool = False,
        weight_dropout: float = 0.0,
    ) -> None:
        super().__init__()
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
        kind = {"residual": ResidualConnection, "highway": HighwayConnection}.get(connections)
        self.connections, self.output_size = connections, cells[-1].hidden
        self.layers = nn.ModuleList(Recurrent(cell, weight_dropout) for cell in cells)
        self.around = nn.ModuleList(kind(cell.inputs, cell.hidden) for cell in cells if kind is not None)
        self.dropout = make_dropout(dropout, variational_dropout)

    @property
    def cells(self) -> list[Cell]:
        return [layer.cell for layer in self.layers if isinstance(layer, Recurrent)]

    def reset_parameters(self, scale: float | None = None) -> None:
        for module in self.modules():
            if isinstance(module, Cell | ResidualConnection):
                module.reset_parameters(scale)

    def notes(self) -> list[str]:
        """What cells and connections do beyond their equations, for whoever trains them."""
        parts = (module for module in self.modules() if isinstance(module, Cell | ResidualConnection))
        return [note for part in parts for note in part.notes()]

    def levels(self) -> list[list[nn.Parameter]]:
        """The parameters of each layer and its connection, the lowest first."""
        levels = [list(layer.parameters()) for layer in self.layers]
        for level, connection in zip(levels, self.around, strict=False):  # there may be no connections
            level.extend(connection.parameters())
        return levels

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
            y, new_state = layer(self.layer_input(outputs), state[depth], mask)
            if self.around:
                y = zero_padding(self.around[depth](outputs[-1], y)["y"], mask)
            outputs.append(y)
            states.append(new_state)
        return outputs[1:], tuple(states)

    def layer_input(self, outputs: list[Tensor]) -> Tensor:
        """What the next layer reads: the last output with dropout, or all of them if connections are dense."""
        x = self.dropout(outputs[-1]) if len(outputs) > 1 else outputs[0]
        if self.connections != "dense":
            return x
        outputs[-1] = x  # dropped once for all layers that read it
        return torch.cat(outputs, dim=-1)  # (B, T, D + depth · H)

    def trace(self, x: Tensor, state: StackState | None = None) -> tuple[dict[str, Tensor], ...]:
        """What every layer computes at every step, the lowest layer first; see `Recurrent.trace`.

        With residual and highway connections also the output `y` of each, and the highway's gate
        `T`. The recurrent matrices are traced whole, whatever `weight_dropout` is.
        """
        state = self.initial_state(len(x)) if state is None else state
        outputs, traces = [x], []
        for depth, cell in enumerate(self.cells):
            trace = Recurrent(cell).trace(self.layer_input(outputs), state[depth])
            if self.around:
                trace |= self.around[depth](outputs[-1], trace["h"])
            outputs.append(trace["y" if self.around else "h"])
            traces.append(trace)
        return tuple(traces)

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Whole sequences, padding last: outputs (B, T, H), zero at padding, and those of the last real steps (B, H).

        `forward` with a mask skips padding, so it must know where it is, and a GPU would have to
        wait. Here padding is read too. It comes last, so it reaches no real step; there should not
        be much of it.
        """
        outputs = zero_padding(self(zero_padding(x, mask))[0], mask)
        return outputs, at_last(outputs, mask)


@config
class RecurrentOptions(CellOptions):
    """The keys of every model with recurrent layers."""

    hidden: PositiveInt = 256  # width of every layer's state
    dropout: Fraction = 0.0  # between layers; never through time

    # Not every model makes a key of these.
    connections = NO_CONNECTIONS  # around and between layers
    variational_dropout = False  # dropout drops the same at every step
    weight_dropout = 0.0  # share of the recurrent weights left out for one batch

    def stack(self, inputs: int, layers: int) -> Stack:
        """Create a stack of so many layers that reads vectors `inputs` wide."""
        widths = input_widths(self.connections, inputs, self.hidden, layers)
        return Stack(
            [self.make_cell(width, self.hidden) for width in widths],
            self.dropout,
            self.connections,
            variational_dropout=self.variational_dropout,
            weight_dropout=self.weight_dropout,
        )

    def dropout_notes(self) -> list[str]:
        """A note for whoever asks for variational dropout, and for no dropout."""
        return (
            ["variational_dropout changes nothing while dropout is 0"]
            if self.variational_dropout and self.dropout == 0
            else []
        )
