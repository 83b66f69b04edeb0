"""Recurrent cells: what happens in one time step.

A cell is defined once, in `equations`: the next state, and every value computed on the way. Its
forward, its traces and the contract of the fused kernels derive from that. Adding a cell is one
file in this folder with a subclass of `Cell` that has a `name`; `CELLS` finds it.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator

from seqloom.config import config
from seqloom.core.operations import subclasses_by_name
from seqloom.core.words import did_you_mean
from seqloom.nn.cells.standard import GRU, LSTM, MUT1, MUT2, MUT3, Cell, Elman, GRUCho, State

__all__ = [
    "CELLS",
    "GRU",
    "LSTM",
    "MUT1",
    "MUT2",
    "MUT3",
    "Cell",
    "CellName",
    "CellOptions",
    "Elman",
    "GRUCho",
    "State",
    "cell_class",
]

CELLS: dict[str, type[Cell]] = subclasses_by_name(Cell, __name__, __path__)  # type: ignore[type-abstract]


def cell_class(name: str) -> type[Cell]:
    """Find a cell by its name; the error for a wrong name suggests the right ones."""
    if name in CELLS:
        return CELLS[name]
    raise ValueError(f"no cell is called {name!r}: {did_you_mean(name, CELLS)}")


def check_cell_name(name: str) -> str:
    """The name of a cell, for the validation of recipes."""
    cell_class(name)
    return name


CellName = Annotated[str, AfterValidator(check_cell_name)]


@config
class CellOptions:
    """The keys of every model with recurrent cells."""

    kind: str = ""
    cell: CellName = "lstm"  # elman, lstm, gru, gru-cho, mut1, mut2 or mut3; `seqloom list cells` shows them all
    activation: Literal["tanh", "relu", "sigmoid"] = "tanh"  # of the elman cell; the others have their own
    forget_bias: float | None = None  # of the lstm cell: how far its forget gate starts open; None is 1.0

    def problems(self) -> Iterator[str]:
        options = cell_class(self.cell).options
        if self.activation != "tanh" and "activation" not in options:
            yield f"activation can be chosen for the elman cell only; leave it out for {self.cell!r}"
        if self.forget_bias is not None and "forget_bias" not in options:
            yield f"forget_bias belongs to the lstm cell only; leave it out for {self.cell!r}"

    def make_cell(self, inputs: int, hidden: int) -> Cell:
        """Create a cell from inputs `inputs` wide to a state `hidden` wide."""
        kind = cell_class(self.cell)
        values = {name: getattr(self, name) for name in kind.options}
        return kind(inputs, hidden, **{name: value for name, value in values.items() if value is not None})
