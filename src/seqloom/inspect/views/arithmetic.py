"""One step of one unit of a cell, with the real numbers: every line of its equations, term by term.

    step = arithmetic(cell, x_t, {"h": h, "c": c}, unit=7)
    step.lines[1].formula       f = σ(W_xf x_t + W_hf h_{t-1} + b_f)
    step.lines[1].terms         W_xf x_t = 0.41, W_hf h_{t-1} = −0.13, b_f = 1.02: their sum is 1.30
    step.lines[1].value         σ(1.30) = 0.786

A term that is a product with a matrix is one row of it times a vector: `summands` are the weight · input pairs it is
made of, those that matter most first. The equations are written here once more, as people read them; that they say
what the cell computes is tested. Everything is computed in float64.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.nn.cells import GRU, LSTM, MUT1, MUT2, MUT3, Cell, Elman, GRUCho, State

SUMMANDS = 12  # of a product with a matrix
H, C = "h_{t-1}", "c_{t-1}"
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "σ": torch.sigmoid,
    "tanh": torch.tanh,
    "ReLU": torch.relu,
    "": lambda total: total,
}


class Summand(NamedTuple):
    """weight · input, one of those that a product with a matrix adds up."""

    place: int  # of the input in its vector
    weight: float
    input: float
    product: float


class Factor(NamedTuple):
    symbol: str
    value: float


@dataclass(frozen=True)
class Term:
    """One of the numbers that a line adds up."""

    symbol: str  # W_xf x_t, b_f, f ⊙ c_{t-1}
    value: float
    factors: tuple[Factor, ...] = ()  # where it is a product of numbers
    vector: str = ""  # where it is a row of a matrix times a vector: x_t, h_{t-1}, r ⊙ h_{t-1}
    length: int = 0  # how many summands it has
    summands: tuple[Summand, ...] = ()  # the largest of them, by size
    rest: float = 0.0  # what the others add up to


@dataclass(frozen=True)
class Line:
    """value = function(Σ terms)"""

    name: str  # as in `Cell.equations`; of what stands only here, its symbol
    symbol: str
    formula: str
    terms: tuple[Term, ...]
    function: str  # σ, tanh, ReLU or nothing
    total: float  # Σ terms
    value: float
    does: str = ""  # what it is for, in words


@dataclass(frozen=True)
class Arithmetic:
    """One step of one unit."""

    unit: int
    before: dict[str, float]  # the unit's state before the step
    lines: tuple[Line, ...]  # in the order of computing

    def __getitem__(self, name: str) -> float:
        return next(line.value for line in self.lines if line.name == name)


def arithmetic(cell: Cell, x_t: Tensor, state: State, unit: int) -> Arithmetic:
    """Of inputs (D,) and a state of (H,) each."""
    if not 0 <= unit < cell.hidden:
        raise UsageError(f"There is no unit {unit}: the layer has {cell.hidden}, from 0 to {cell.hidden - 1}.")
    sheet = _Sheet(cell, x_t, state, unit)
    WRITTEN.get(type(cell), _as_computed)(sheet)
    lines = [replace(line, does=_does(cell, line)) for line in sheet.lines]
    return Arithmetic(unit, {name: value[unit].item() for name, value in sheet.state.items()}, tuple(lines))


def _does(cell: Cell, line: Line) -> str:
    if line.name in cell.gates:
        return cell.gates[line.name]
    words = {"c": "the new content of the cell", "g": "new content, offered to the cell"}
    words |= {"candidate": "new content, offered to the state", "h": "the new state, which the next step goes on from"}
    return words.get(line.name, "")


class _Sheet:
    """What equations are written on: names to vectors, so that later lines can use earlier ones."""

    def __init__(self, cell: Cell, x_t: Tensor, state: State, unit: int) -> None:
        self.cell, self.unit = cell, unit
        self.x = x_t.detach().cpu().double()
        self.state = {name: value.detach().cpu().double() for name, value in state.items()}
        self.h = self.state["h"]
        self.made: dict[str, Tensor] = {}  # (H,) of each line
        self.lines: list[Line] = []
        self._x_blocks, self._h_blocks = cell.x_blocks or cell.blocks, cell.h_blocks or cell.blocks
        self.input, self.input_symbol = self.x, "x_t"
        if cell.weight_p is not None and type(cell) in WRITTEN:
            self.line("x'", "x'_t", [self.matrix("W_xp", cell.weight_p, self.x, "x_t")])
            self.input, self.input_symbol = self.made["x'"], "x'_t"

    # Terms: a vector (H,) and the same for the one unit.

    def matrix(self, symbol: str, weight: Tensor, vector: Tensor, name: str) -> tuple[Tensor, Term]:
        whole = weight.detach().cpu().double()
        row = whole[self.unit]
        products = row * vector
        top = products.abs().topk(min(SUMMANDS, len(vector))).indices.tolist()
        summands = tuple(Summand(k, row[k].item(), vector[k].item(), products[k].item()) for k in top)
        value, shown = products.sum().item(), sum(one.product for one in summands)
        words = f"{symbol} {name}" if " " not in name else f"{symbol} ({name})"
        return whole @ vector, Term(words, value, (), name, len(vector), summands, value - shown)

    def from_x(self, block: str) -> tuple[Tensor, Term]:
        """W_x x_t"""
        weight = self._block(self.cell.weight_x, self._x_blocks, block)
        return self.matrix(f"W_x{_letter(block)}", weight, self.input, self.input_symbol)

    def from_h(self, block: str, vector: Tensor | None = None, name: str = H) -> tuple[Tensor, Term]:
        """W_h h_{t-1}, or W_h times what has become of it."""
        weight = self._block(self.cell.weight_h, self._h_blocks, block)
        return self.matrix(f"W_h{_letter(block)}", weight, self.h if vector is None else vector, name)

    def bias(self, block: str, *, of: str = "both") -> tuple[Tensor, Term]:
        """b; where it is kept in two halves, their sum, or one of them."""
        x, h = self.cell.bias_x, self.cell.bias_h
        kept: dict[str, list[Tensor | None]] = {"both": [x, h], "x": [x], "h": [h]}
        halves = [self._block(half, self.cell.blocks, block) for half in kept[of] if half is not None]
        value = torch.stack([half.detach().cpu().double() for half in halves]).sum(dim=0)
        symbol = f"b_{_letter(block)}" if of == "both" else f"b_{of}{_letter(block)}"
        return self.number(symbol, value)

    def number(self, symbol: str, value: Tensor) -> tuple[Tensor, Term]:
        return value, Term(symbol, value[self.unit].item())

    def product(self, *factors: tuple[str, Tensor]) -> tuple[Tensor, Term]:
        """a ⊙ b"""
        value = torch.stack([own for _, own in factors]).prod(dim=0)
        own = tuple(Factor(symbol, vector[self.unit].item()) for symbol, vector in factors)
        return value, Term(" ⊙ ".join(symbol for symbol, _ in factors), value[self.unit].item(), own)

    def line(self, name: str, symbol: str, terms: list[tuple[Tensor, Term]], function: str = "") -> Tensor:
        """Write a line: its value (H,) can be used by those that follow."""
        total = torch.stack([value for value, _ in terms]).sum(dim=0)
        value = FUNCTIONS[function](total)
        added = " + ".join(term.symbol for _, term in terms)
        formula = f"{symbol} = {function}({added})" if function else f"{symbol} = {added}"
        own = tuple(term for _, term in terms)
        line = Line(name, symbol, formula, own, function, total[self.unit].item(), value[self.unit].item())
        self.lines.append(line)
        self.made[name] = value
        return value

    def _block(self, weights: Tensor, names: tuple[str, ...], block: str) -> Tensor:
        return weights.chunk(len(names))[names.index(block)]


def _letter(block: str) -> str:
    return "h" if block == "candidate" else block


# --- the cells' equations, as they are written ------------------------------------------------------------------------


def _elman(on: _Sheet) -> None:
    assert isinstance(on.cell, Elman)
    function = {"tanh": "tanh", "relu": "ReLU", "sigmoid": "σ"}[on.cell.activation]
    on.line("h", "h_t", [on.from_x("h"), on.from_h("h"), on.bias("h")], function)


def _lstm(on: _Sheet) -> None:
    i, f, o = (on.line(gate, gate, [on.from_x(gate), on.from_h(gate), on.bias(gate)], "σ") for gate in "ifo")
    g = on.line("g", "g", [on.from_x("g"), on.from_h("g"), on.bias("g")], "tanh")
    c = on.line("c", "c_t", [on.product(("f", f), (C, on.state["c"])), on.product(("i", i), ("g", g))])
    on.line("h", "h_t", [on.product(("o", o), ("tanh(c_t)", torch.tanh(c)))])


def _gru(on: _Sheet) -> None:
    """The reset gate acts after the matrix."""
    r, z = (on.line(gate, gate, [on.from_x(gate), on.from_h(gate), on.bias(gate)], "σ") for gate in "rz")
    u = on.line("u", "u", [on.from_h("candidate"), on.bias("candidate", of="h")])
    new = on.line(
        "candidate", "h̃", [on.from_x("candidate"), on.bias("candidate", of="x"), on.product(("r", r), ("u", u))], "tanh"
    )
    _keep_or_take(on, kept=("z", z), taken=("(1 − z)", 1 - z), new=new)


def _gru_cho(on: _Sheet) -> None:
    """The reset gate acts before the matrix."""
    r, z = (on.line(gate, gate, [on.from_x(gate), on.from_h(gate), on.bias(gate)], "σ") for gate in "rz")
    new = on.line("candidate", "h̃", [on.from_x("candidate"), _recalled(on, r), on.bias("candidate")], "tanh")
    _keep_or_take(on, kept=("z", z), taken=("(1 − z)", 1 - z), new=new)


def _mut1(on: _Sheet) -> None:
    z = on.line("z", "z", [on.from_x("z"), on.bias("z")], "σ")
    r = on.line("r", "r", [on.from_x("r"), on.from_h("r"), on.bias("r")], "σ")
    seen = on.number(f"tanh({on.input_symbol})", torch.tanh(on.input))
    new = on.line("candidate", "h̃", [_recalled(on, r), seen, on.bias("candidate")], "tanh")
    _keep_or_take(on, kept=("(1 − z)", 1 - z), taken=("z", z), new=new)


def _mut2(on: _Sheet) -> None:
    z = on.line("z", "z", [on.from_x("z"), on.from_h("z"), on.bias("z")], "σ")
    r = on.line("r", "r", [on.number(on.input_symbol, on.input), on.from_h("r"), on.bias("r")], "σ")
    new = on.line("candidate", "h̃", [_recalled(on, r), on.from_x("candidate"), on.bias("candidate")], "tanh")
    _keep_or_take(on, kept=("(1 − z)", 1 - z), taken=("z", z), new=new)


def _mut3(on: _Sheet) -> None:
    seen = torch.tanh(on.h)
    z = on.line("z", "z", [on.from_x("z"), on.from_h("z", seen, f"tanh({H})"), on.bias("z")], "σ")
    r = on.line("r", "r", [on.from_x("r"), on.from_h("r"), on.bias("r")], "σ")
    new = on.line("candidate", "h̃", [_recalled(on, r), on.from_x("candidate"), on.bias("candidate")], "tanh")
    _keep_or_take(on, kept=("(1 − z)", 1 - z), taken=("z", z), new=new)


def _recalled(on: _Sheet, r: Tensor) -> tuple[Tensor, Term]:
    """W_hh (r ⊙ h_{t-1})"""
    return on.from_h("candidate", r * on.h, f"r ⊙ {H}")


def _keep_or_take(on: _Sheet, *, kept: tuple[str, Tensor], taken: tuple[str, Tensor], new: Tensor) -> None:
    on.line("h", "h_t", [on.product(kept, (H, on.h)), on.product(taken, ("h̃", new))])


def _as_computed(on: _Sheet) -> None:
    """A cell that is not written here: what it computes, without the way there."""
    exact = copy.deepcopy(on.cell).cpu().double()
    with torch.no_grad():
        found = exact.equations(on.x[None], {name: value[None] for name, value in on.state.items()})
    for name, values in found.items():
        on.line(name, name, [on.number(f"{name} of this cell's equations", values[0])])


WRITTEN: dict[type[Cell], Callable[[_Sheet], None]] = {
    Elman: _elman,
    LSTM: _lstm,
    GRU: _gru,
    GRUCho: _gru_cho,
    MUT1: _mut1,
    MUT2: _mut2,
    MUT3: _mut3,
}
