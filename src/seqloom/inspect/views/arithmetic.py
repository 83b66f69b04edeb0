"""One step of one unit of a cell, with the real numbers: every line of its equations, term by term.

    step = arithmetic(cell, x_t, {"h": h, "c": c}, unit=7)
    step.lines[1].formula       f = σ(W_xf x_t + W_hf h_{t-1} + b_f)
    step.lines[1].terms         W_xf x_t = 0.41, W_hf h_{t-1} = −0.13, b_f = 1.02: their sum is 1.30
    step.lines[1].value         σ(1.30) = 0.786

A term that is a product with a matrix is one row of it times a vector: `summands` are the weight · input pairs it is
made of, the largest first. The lines are those of `seqloom.inspect.equations`, computed in float64.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.inspect.equations import Equation, Expression, trace_equations
from seqloom.nn.cells import Cell, State

SUMMANDS = 12  # of a product with a matrix


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

    name: str  # as in `Cell.equations`; of an intermediate result, its symbol
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
    """Compute one unit of a step with inputs (D,) and a state of (H,) each."""
    if not 0 <= unit < cell.hidden:
        raise UsageError(f"There is no unit {unit}: the layer has {cell.hidden}, from 0 to {cell.hidden - 1}.")
    lines = [
        Line(
            name=equation.name,
            symbol=equation.symbol,
            formula=equation.formula,
            terms=tuple(_term(term, unit) for term in equation.terms),
            function=equation.function,
            total=equation.total[unit].item(),
            value=equation.value[unit].item(),
            does=_purpose(cell, equation),
        )
        for equation in trace_equations(cell, x_t, state)
    ]
    before = {name: value.detach().cpu().double()[unit].item() for name, value in state.items()}
    return Arithmetic(unit, before, tuple(lines))


def _purpose(cell: Cell, equation: Equation) -> str:
    """What a line is for, in words; nothing for an intermediate result."""
    name, other_states = equation.name, set(cell.state_names) - {"h"}
    if name in cell.gates:
        return cell.gates[name]
    if name == "h":
        return "the new state, which the next step goes on from"
    if name in other_states:
        return "the new content of the cell"
    is_intermediate = equation.symbol in ("x'_t", name) and name not in cell.blocks
    return "" if is_intermediate else f"new content, offered to the {'cell' if other_states else 'state'}"


def _term(term: Expression, unit: int) -> Term:
    value = term.value[unit].item()
    factors = term.parts("product")
    if len(factors) > 1:
        return Term(str(term), value, tuple(Factor(str(factor), factor.value[unit].item()) for factor in factors))
    if term.symbol or term.operation != "matrix":
        return Term(str(term), value)
    weight, vector = term.arguments
    row = weight.value[unit]
    products = row * vector.value
    largest = products.abs().topk(min(SUMMANDS, len(products))).indices.tolist()
    summands = tuple(Summand(k, row[k].item(), vector.value[k].item(), products[k].item()) for k in largest)
    total = products.sum().item()
    rest = total - sum(summand.product for summand in summands)
    return Term(str(term), total, (), str(vector), len(products), summands, rest)
