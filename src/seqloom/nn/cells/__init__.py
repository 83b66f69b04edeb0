"""Recurrent cells: what happens in one time step.

A cell is defined once, in `equations`: the next state, and every value computed on the way. Its forward, its traces and
the contract of the fused kernels derive from that. Adding a cell is one file in this folder with a subclass of `Cell`
that has a `name`; `CELLS` finds it.
"""

from collections.abc import Iterator
from typing import Protocol

from seqloom.core.operations import subclasses_by_name
from seqloom.core.words import did_you_mean
from seqloom.nn.cells.base import Cell, State
from seqloom.nn.cells.standard import GRU, LSTM, MUT1, MUT2, MUT3, Elman, GRUCho

__all__ = [
    "CELLS",
    "GRU",
    "LSTM",
    "MUT1",
    "MUT2",
    "MUT3",
    "Cell",
    "CellChoice",
    "Elman",
    "GRUCho",
    "State",
    "cell_class",
    "cell_problems",
    "make_cell",
]

CELLS: dict[str, type[Cell]] = subclasses_by_name(Cell, __name__, __path__)  # type: ignore[type-abstract]


def cell_class(name: str) -> type[Cell]:
    """The cell of that name; a wrong name is answered with the right ones."""
    if name in CELLS:
        return CELLS[name]
    raise ValueError(f"no cell is called {name!r}: {did_you_mean(name, CELLS)}")


class CellChoice(Protocol):
    """What a model's config says of its cells."""

    @property
    def cell(self) -> str: ...
    @property
    def activation(self) -> str: ...
    @property
    def forget_bias(self) -> float | None: ...


def cell_problems(choice: CellChoice) -> Iterator[str]:
    """What is wrong with a choice of cell; a cell that does not exist ends the list."""
    options = cell_class(choice.cell).options
    if choice.activation != "tanh" and "activation" not in options:
        yield f"activation can be chosen for the elman cell only; leave it out for {choice.cell!r}"
    if choice.forget_bias is not None and "forget_bias" not in options:
        yield f"forget_bias belongs to the lstm cell only; leave it out for {choice.cell!r}"


def make_cell(choice: CellChoice, inputs: int, hidden: int) -> Cell:
    kind = cell_class(choice.cell)
    values = {name: getattr(choice, name) for name in kind.options}
    return kind(inputs, hidden, **{name: value for name, value in values.items() if value is not None})
