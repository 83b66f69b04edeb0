"""Cells over time and in depth. Only `Recurrent` loops; its plain loop is the definition of everything faster."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from seqloom.nn import fused as kernels
from seqloom.nn.cells import Cell, State

StackState = tuple[State, ...]  # one state per layer, the lowest first


class Recurrent(nn.Module):
    """A cell read from left to right.

    `mask` (B, T) is True at real steps. At the others the state stands still and the output is zero, wherever in the
    row they are. Without `fused` the plain loop runs even where a fused kernel would do.
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
        for t, x_t in enumerate(x.unbind(dim=1)):  # (B, D)
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
    """Layers of `Recurrent`, each reading the outputs of the one below.

    Dropout falls on what passes from one layer to the next: not on the stack's own input, not on its output, and
    never on what a layer hands itself through time.
    """

    def __init__(self, cells: Sequence[Cell], dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Recurrent(cell) for cell in cells)
        self.dropout = nn.Dropout(dropout)

    @property
    def cells(self) -> list[Cell]:
        return [layer.cell for layer in self._recurrents()]

    def initial_state(self, rows: int) -> StackState:
        return tuple(cell.initial_state(rows) for cell in self.cells)

    def forward(
        self, x: Tensor, state: StackState | None = None, mask: Tensor | None = None, fused: bool = True
    ) -> tuple[Tensor, StackState]:
        """Inputs (B, T, D) to the top layer's outputs (B, T, H) and the state of every layer."""
        state = self.initial_state(len(x)) if state is None else state
        after = []
        for depth, layer in enumerate(self._recurrents()):
            x = self.dropout(x) if depth > 0 else x
            x, last = layer(x, state[depth], mask, fused)
            after.append(last)
        return x, tuple(after)

    def trace(self, x: Tensor, state: StackState | None = None) -> tuple[dict[str, Tensor], ...]:
        """What every layer computes at every step, the lowest layer first; see `Recurrent.trace`."""
        state = self.initial_state(len(x)) if state is None else state
        traces = []
        for depth, layer in enumerate(self._recurrents()):
            x = self.dropout(x) if depth > 0 else x
            traces.append(layer.trace(x, state[depth]))
            x = traces[-1]["h"]
        return tuple(traces)

    def _recurrents(self) -> list[Recurrent]:
        return [layer for layer in self.layers if isinstance(layer, Recurrent)]
