"""Recurrent layers: `run_cell` runs a cell over the steps of a sequence, and `Stack` runs several layers.

A layer maps its input x to h, and the next layer reads y:

    none      y = h
    residual  y = h + x
    highway   y = T ⊙ h + (1 - T) ⊙ x,  T = σ(W_T x + b_T)
    dense     y = h, and each layer reads the stack's input and the outputs of all layers below, concatenated

Residual and highway connections add x to h. If their sizes differ, x is projected, x ← W_a x, and `notes` reports this
projection.
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
from seqloom.nn.masks import make_dropout, select_last, zero_padding

Connections = Literal["none", "residual", "highway", "dense"]
NO_CONNECTIONS: Connections = "none"
StackState = tuple[State, ...]  # one state per layer, lowest layer first


@operation
def run_cell(cell: Cell, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
    """Run a cell over inputs (B, T, D) and return the outputs (B, T, H) and the state after the last real step.

    `mask` (B, T) is True at real steps. Padding may be at any position. A padded step leaves the state unchanged, and
    its output is zero even if its input is NaN.
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

    `weight_dropout` applies DropConnect in training: individual weights of the recurrent matrix W_h are set to 0. The
    dropped weights are drawn once per forward pass and are the same for all rows and steps.
    """

    recomputable = True  # see `seqloom.train.wrappers.checkpoint_activations`

    def __init__(self, cell: Cell, weight_dropout: float = 0.0) -> None:
        super().__init__()
        if not 0 <= weight_dropout < 1:
            raise ValueError(f"weight_dropout must be at least 0 and below 1; got {weight_dropout}")
        self.cell, self.weight_dropout = cell, weight_dropout

    def forward(self, x: Tensor, state: State | None = None, mask: Tensor | None = None) -> tuple[Tensor, State]:
        """Return the outputs (B, T, H) for inputs (B, T, D) and the state after the last real step; see `run_cell`.

        This method validates the shapes, because kernels do not check them.
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
        """Return all values of the cell's equations at every step by name, each (B, T, H)."""
        state = self.cell.initial_state(len(x)) if state is None else state
        steps = []
        for x_t in x.unbind(dim=1):
            steps.append(self.cell.equations(x_t, state))
            state = {name: steps[-1][name] for name in self.cell.state_names}
        return {name: torch.stack([step[name] for step in steps], dim=1) for name in steps[0]}


def drop_recurrent_weights(cell: Cell, p: float) -> Cell:
    """Return a copy of the cell with dropout on its recurrent matrix W_h. The copy shares all other parameters."""
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
        """Draw every parameter uniformly from (-scale, scale). If scale is None, keep torch's initialization."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
        if scale is not None:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -scale, scale)

    def forward(self, x: Tensor, h: Tensor) -> dict[str, Tensor]:
        """Return all values by name, each (B, T, H); y is the output."""
        return {"y": h + (x if self.project is None else self.project(x))}

    def notes(self) -> list[str]:
        """Return notes for the user on operations of the connection that its equation omits."""
        if self.project is None:
            return []
        return [f"the {self.name} connection projects its input from {self.inputs} to {self.hidden} dimensions"]


class HighwayConnection(ResidualConnection):
    """T = σ(W_T x + b_T)
    y = T ⊙ h + (1 - T) ⊙ x

    b_T is initially -1, so that y is initially close to x.
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


def input_sizes(connections: Connections, inputs: int, hidden: int, layers: int) -> list[int]:
    """Return the input size of each layer, lowest first."""
    if connections == "dense":
        return [inputs + depth * hidden for depth in range(layers)]
    return [inputs if depth == 0 else hidden for depth in range(layers)]


class Stack(nn.Module):
    """A stack of `Recurrent` layers, connected by the equations above.

    Dropout is applied between layers. Dropout is not applied to residual and highway connections, nor to the input,
    output or state of the stack. Variational dropout uses one mask for all steps.
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
        size = cells[0].inputs
        for depth, cell in enumerate(cells):
            if cell.inputs != size:
                raise ValueError(
                    f"layer {depth + 1} must take inputs of size {size} with {connections!r} connections; "
                    f"its cell takes {cell.inputs}"
                )
            size = cell.hidden + (size if connections == "dense" else 0)
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
        """Return notes for the user on operations of cells and connections that their equations omit."""
        parts = (module for module in self.modules() if isinstance(module, Cell | ResidualConnection))
        return [note for part in parts for note in part.notes()]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Return the parameters of each layer and its connection, lowest first."""
        groups = [list(layer.parameters()) for layer in self.layers]
        for group, connection in zip(groups, self.around, strict=False):  # a stack without connections has none to add
            group.extend(connection.parameters())
        return groups

    def initial_state(self, rows: int) -> StackState:
        return tuple(cell.initial_state(rows) for cell in self.cells)

    def forward(
        self, x: Tensor, state: StackState | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, StackState]:
        """Map inputs (B, T, D) to the outputs of the top layer (B, T, H) and the states of all layers."""
        outputs, states = self.run_layers(x, state, mask)
        return outputs[-1], states

    def run_layers(
        self, x: Tensor, state: StackState | None = None, mask: Tensor | None = None
    ) -> tuple[list[Tensor], StackState]:
        """Return the outputs (B, T, H) and the states of all layers, lowest first."""
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
        """Return the input of the next layer: the last output with dropout, or all outputs with dense connections."""
        x = self.dropout(outputs[-1]) if len(outputs) > 1 else outputs[0]
        if self.connections != "dense":
            return x
        outputs[-1] = x  # all layers that read x use the same dropout mask
        return torch.cat(outputs, dim=-1)  # (B, T, D + depth · H)

    def trace(self, x: Tensor, state: StackState | None = None) -> tuple[dict[str, Tensor], ...]:
        """Trace every layer at every step, lowest layer first; see `Recurrent.trace`.

        With residual and highway connections, the trace also contains the output `y` and the highway gate `T`.
        `weight_dropout` is not applied.
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
        """Read complete sequences with padding last. Return outputs (B, T, H), zero at padding, and final outputs (B,
        H).

        With a mask, `forward` skips padding and therefore synchronizes the device. `read` does not synchronize, because
        it also computes the padded steps. Padded steps come last, so they do not affect real steps.
        """
        outputs = zero_padding(self(zero_padding(x, mask))[0], mask)
        return outputs, select_last(outputs, mask)


@config
class RecurrentOptions(CellOptions):
    """The keys of every model with recurrent layers."""

    hidden: PositiveInt = 256  # size of each layer's state
    dropout: Fraction = 0.0  # dropout between layers, not between time steps

    # Only some models have the following values as keys.
    connections = NO_CONNECTIONS  # connections around and between layers
    variational_dropout = False  # one dropout mask for all steps
    weight_dropout = 0.0  # dropout probability of the recurrent weights, drawn once per batch

    def stack(self, inputs: int, layers: int) -> Stack:
        """Create a stack for inputs of size `inputs`."""
        sizes = input_sizes(self.connections, inputs, self.hidden, layers)
        return Stack(
            [self.make_cell(size, self.hidden) for size in sizes],
            self.dropout,
            self.connections,
            variational_dropout=self.variational_dropout,
            weight_dropout=self.weight_dropout,
        )

    def dropout_notes(self) -> list[str]:
        """Return a note if variational dropout has no effect because dropout is 0."""
        is_idle = self.variational_dropout and self.dropout == 0
        return ["variational_dropout has no effect while dropout is 0"] if is_idle else []
