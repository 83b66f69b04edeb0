"""Recurrent cells: the computation of one time step.

A cell is defined once, in `equations`, which returns the next state and all intermediate values. The forward pass,
traces and the tests of fused kernels use this definition. To add a cell, add a file to this folder with a subclass of
`Cell` that has a `name`; `CELLS` then contains this cell.
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
    """Return the cell class with this name. The error for an unknown name suggests similar names."""
    if name in CELLS:
        return CELLS[name]
    raise ValueError(f"no cell is called {name!r}: {did_you_mean(name, CELLS)}")


def check_cell_name(name: str) -> str:
    """Return the name of a cell. Raise `ValueError` if the name is unknown."""
    cell_class(name)
    return name


CellName = Annotated[str, AfterValidator(check_cell_name)]


@config
class CellOptions:
    """The keys of every model with recurrent cells."""

    kind: str = ""
    cell: CellName = (
        "lstm"  # elman, lstm, gru, gru-cho, mut1, lstm-peephole …; `seqloom list cells` describes all cells
    )
    activation: Literal["tanh", "relu", "sigmoid"] = "tanh"  # activation function of the elman cell
    forget_bias: float | None = None  # initial bias of the forget gate of the lstm cell; null means 1.0

    def problems(self) -> Iterator[str]:
        options = cell_class(self.cell).options
        if self.activation != "tanh" and "activation" not in options:
            yield f"activation applies only to the elman cell; remove it for {self.cell!r}"
        if self.forget_bias is not None and "forget_bias" not in options:
            yield f"forget_bias applies only to the lstm cell; remove it for {self.cell!r}"

    def make_cell(self, inputs: int, hidden: int) -> Cell:
        """Create a cell with inputs of size `inputs` and a state of size `hidden`."""
        kind = cell_class(self.cell)
        values = {name: getattr(self, name) for name in kind.options}
        return kind(inputs, hidden, **{name: value for name, value in values.items() if value is not None})
