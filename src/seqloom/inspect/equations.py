"""Equations of a recurrent cell, derived from the operations in `Cell.equations`.

    for line in trace_equations(cell, x_t, state):
        print(line.formula)        f = σ(W_xf x_t + W_hf h_{t-1} + b_f)

    step = arithmetic(cell, x_t, {"h": h, "c": c}, unit=7)
    step.lines[1].terms         W_xf x_t = 0.41, W_hf h_{t-1} = −0.13, b_f = 1.02: their sum is 1.30
    step.lines[1].value         σ(1.30) = 0.786

`Cell.equations` runs once in float64 while every operation is recorded. Each returned value becomes a line, and so does
an intermediate sum that is a factor of a product. This module contains no code for specific cells. `arithmetic` shows
one unit of a step: a matrix product is one row of the matrix times a vector, and `summands` contains its largest
products weight · input, in descending order.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from seqloom.core.errors import UsageError
from seqloom.nn.cells import Cell, State

FUNCTION_SYMBOLS = {"sigmoid": "σ", "tanh": "tanh", "relu": "ReLU"}
CANDIDATE = "candidate"  # the name of the block and of the value that equations write as h̃
INPUT = "x_t"
MAX_SUMMANDS = 12  # maximum number of summands shown for a matrix product


@dataclass(eq=False)
class Expression:
    """A vector (H,) or a weight matrix, and the operation that computed it."""

    operation: str  # leaf, bias, sum, product, matrix, complement, or the name of a function
    value: Tensor
    arguments: tuple["Expression", ...] = ()
    symbol: str = ""  # only for a leaf, or for a value with its own line

    def __str__(self) -> str:
        if self.symbol:
            return self.symbol
        inner = [str(argument) for argument in self.arguments]
        match self.operation:
            case "sum":
                return " + ".join(inner)
            case "product":
                return " ⊙ ".join(inner)
            case "complement":
                return f"(1 − {inner[0]})"
            case "matrix":
                return f"{inner[0]} {inner[1]}" if " " not in inner[1] else f"{inner[0]} ({inner[1]})"
            case name:
                return f"{FUNCTION_SYMBOLS.get(name, name)}({', '.join(inner)})"

    @property
    def is_simple(self) -> bool:
        """Whether the expression can be a factor, or a vector in a matrix product, without a separate line."""
        if self.symbol:
            return True
        return self.operation not in ("sum", "matrix") and all(argument.is_simple for argument in self.arguments)

    @property
    def depends_on_input_alone(self) -> bool:
        if self.operation == "matrix":
            return self.arguments[1].depends_on_input_alone
        if self.symbol:
            return self.symbol == INPUT
        return all(argument.depends_on_input_alone for argument in self.arguments)

    def parts(self, operation: str) -> list["Expression"]:
        """Return the terms of a sum or the factors of a product. Return the expression itself in all other cases."""
        if self.symbol or self.operation != operation:
            return [self]
        return [part for argument in self.arguments for part in argument.parts(operation)]

    def block(self, number: int, count: int) -> "Expression":
        """Return one block of stacked weights, or of a value that was computed with stacked weights."""
        value = self.value.chunk(count)[number]
        if self.operation == "leaf":
            return Expression("leaf", value, symbol=f"{self.symbol}/{number}")
        if self.operation == "matrix":
            weight, vector = self.arguments
            return Expression("matrix", value, (weight.block(number, count), vector))
        return Expression(self.operation, value, tuple(argument.block(number, count) for argument in self.arguments))


@dataclass(frozen=True, eq=False)
class Equation:
    """A line `value = function(Σ terms)`, whose value and terms are vectors (H,)."""

    name: str  # name in `Cell.equations`, or the symbol of an intermediate result
    symbol: str
    function: str  # σ, tanh, ReLU, the name of another function, or empty
    terms: list[Expression]
    value: Tensor

    @property
    def right_side(self) -> str:
        total = " + ".join(map(str, self.terms))
        return f"{self.function}({total})" if self.function else total

    @property
    def formula(self) -> str:
        return f"{self.symbol} = {self.right_side}"

    @property
    def total(self) -> Tensor:
        return torch.stack([term.value for term in self.terms]).sum(dim=0)


def trace_equations(cell: Cell, x_t: Tensor, state: State) -> list[Equation]:
    """Trace one step with inputs (D,) and states (H,), in computation order."""
    exact = copy.deepcopy(cell).cpu().double()
    recorder = _Recorder(exact)
    x, *before = (vector.detach().cpu().double().unsqueeze(0) for vector in (x_t, *state.values()))
    for symbol, vector in zip((INPUT, *(f"{name}_{{t-1}}" for name in state)), (x, *before), strict=True):
        recorder.add(vector, "leaf", symbol=symbol)
    with torch.no_grad(), recorder:
        returned = exact.equations(x, dict(zip(state, before, strict=True)))
    return list(_Writer(exact, recorder, returned).lines())


@dataclass
class _Recorder(TorchFunctionMode):
    """A mode that records the expression of every computed tensor, by tensor identity."""

    cell: Cell
    expressions: dict[int, Expression] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)  # kept alive so that identities stay unique

    def __post_init__(self) -> None:
        super().__init__()
        for name, parameter in self.cell.named_parameters():
            self.expressions[id(parameter)] = Expression("leaf", parameter.detach(), symbol=name)

    def add(self, tensor: Tensor, operation: str, arguments: Sequence[Expression] = (), symbol: str = "") -> Expression:
        value = tensor[0] if tensor.dim() == 2 and len(tensor) == 1 else tensor
        expression = self.expressions[id(tensor)] = Expression(operation, value, tuple(arguments), symbol)
        self.tensors.append(tensor)
        return expression

    def __torch_function__(
        self, func: Callable[..., object], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        output = func(*args, **(kwargs or {}))
        name = func.__name__.strip("_")
        if isinstance(output, Tensor) and id(output) not in self.expressions:
            self._record(name, output, [*args, *(kwargs or {}).values()])
        elif isinstance(output, tuple) and name in ("chunk", "split"):
            for number, part in enumerate(output):
                self.expressions[id(part)] = self.expressions[id(args[0])].block(number, len(output))
                self.tensors.append(part)
        return output

    def _record(self, name: str, output: Tensor, inputs: Sequence[object]) -> None:
        arguments = [
            self.expressions.get(id(value)) or self.add(value, "leaf", symbol="constant")
            for value in inputs
            if isinstance(value, Tensor)
        ]
        numbers = [value for value in inputs if isinstance(value, int | float) and not isinstance(value, bool)]
        match name:
            case "linear":
                vector, weight, *bias = arguments
                product = Expression("matrix", weight.value @ vector.value, (weight, vector))
                self.add(output, "sum", (product, *bias))
            case "add" | "radd":
                self.add(output, "sum", arguments)
            case "mul" | "rmul" if len(arguments) == 2:
                self.add(output, "product", arguments)
            case "rsub" if numbers == [1]:
                self.add(output, "complement", arguments)
            case _:
                self.add(output, name, arguments)


class _Writer:
    """A writer that names the recorded expressions and formats them as lines."""

    def __init__(self, cell: Cell, recorder: _Recorder, returned: dict[str, Tensor]) -> None:
        self.cell = cell
        self.order = list(recorder.expressions.values())
        self.named = {name: recorder.expressions[id(value)] for name, value in returned.items()}
        for name, expression in self.named.items():
            expression.symbol = f"{name}_t" if name in cell.state_names else symbol_of(name)
        self.intermediate = iter(["u", "v", "w", *(f"u{n}" for n in range(2, 100))])

    def lines(self) -> Iterator[Equation]:
        for name in sorted(self.named, key=lambda name: self.order.index(self.named[name])):
            yield from self._write(name, self.named[name])

    def _write(self, name: str, expression: Expression) -> Iterator[Equation]:
        """Yield the lines of intermediate results, then the line of the named value."""
        is_function = expression.operation not in ("leaf", "sum", "product", "matrix", "complement")
        function = is_function and len(expression.arguments) == 1
        inner = expression.arguments[0] if function else replace(expression, symbol="")
        terms = inner.parts("sum") if not inner.symbol else [inner]
        for term in terms:
            factors = term.parts("product")
            for operand in factors if len(factors) > 1 else term.arguments[term.operation == "matrix" :]:
                if not (term.symbol or operand.is_simple):
                    symbol = "x'_t" if operand.depends_on_input_alone else next(self.intermediate)
                    *before, last = self._write(symbol.removesuffix("_t"), operand)
                    operand.symbol = symbol
                    yield from before
                    yield Equation(last.name, symbol, last.function, last.terms, last.value)
        symbol = FUNCTION_SYMBOLS.get(expression.operation, expression.operation) if function else ""
        yield Equation(name, expression.symbol, symbol, self._name_weights(terms), expression.value)

    def _name_weights(self, terms: Sequence[Expression]) -> list[Expression]:
        """Name the weights. The input bias and the recurrent bias become one term at the end."""
        cell, biases, others = self.cell, dict[str, list[Expression]](), list[Expression]()
        blocks = {"weight_x": cell.x_blocks or cell.blocks, "weight_h": cell.h_blocks or cell.blocks}
        for term in terms:
            parameter, _, number = term.symbol.partition("/")
            if parameter in ("bias_x", "bias_h"):
                biases.setdefault(_block_letter(cell.blocks, number), []).append(term)
            elif term.operation != "matrix" or term.symbol:
                others.append(term)
            else:
                weight, vector = term.arguments
                parameter, _, number = weight.symbol.partition("/")
                symbol = {"weight_xp": "W_xp"}.get(parameter, weight.symbol)
                if parameter in blocks:
                    symbol = f"W_{parameter[-1]}{_block_letter(blocks[parameter], number)}"
                named = Expression("leaf", weight.value, symbol=symbol)
                others.append(Expression("matrix", term.value, (named, vector)))
        for letter, halves in biases.items():
            prefix = halves[0].symbol[len("bias_")] if len(halves) == 1 and cell.bias_h is not None else ""
            value = torch.stack([half.value for half in halves]).sum(dim=0)
            others.append(Expression("bias", value, symbol=f"b_{prefix}{letter}"))
        return others


def _block_letter(blocks: tuple[str, ...], number: str) -> str:
    block = blocks[int(number or 0)]
    return "h" if block == CANDIDATE else block


def symbol_of(name: str) -> str:
    """Return the symbol of a value that a cell computes."""
    return "h̃" if name == CANDIDATE else name


# --- one unit of one step ---------------------------------------------------------------------------------------------


class Summand(NamedTuple):
    """One summand of a matrix product: weight · input."""

    input_index: int  # index of the input number
    weight: float
    input: float
    product: float


class Factor(NamedTuple):
    """A factor of a product."""

    symbol: str
    value: float


@dataclass(frozen=True)
class UnitTerm:
    """A term of a line."""

    symbol: str  # W_xf x_t, b_f, f ⊙ c_{t-1}
    value: float
    factors: tuple[Factor, ...] = ()  # the factors, if the term is a product of numbers
    vector: str = ""  # the vector, if the term is a matrix row times a vector: x_t, h_{t-1}, r ⊙ h_{t-1}
    length: int = 0  # number of summands of the matrix product
    summands: tuple[Summand, ...] = ()  # largest absolute values first
    remainder: float = 0.0  # sum of the other summands

    @classmethod
    def of(cls, term: Expression, unit: int) -> "UnitTerm":
        value, factors = term.value[unit].item(), term.parts("product")
        if len(factors) > 1:
            return cls(str(term), value, tuple(Factor(str(factor), factor.value[unit].item()) for factor in factors))
        if term.symbol or term.operation != "matrix":
            return cls(str(term), value)
        weight, vector = term.arguments
        row = weight.value[unit]
        products = row * vector.value
        largest = products.abs().topk(min(MAX_SUMMANDS, len(products))).indices.tolist()
        summands = tuple(Summand(k, row[k].item(), vector.value[k].item(), products[k].item()) for k in largest)
        total = products.sum().item()
        remainder = total - sum(summand.product for summand in summands)
        return cls(str(term), total, (), str(vector), len(products), summands, remainder)


@dataclass(frozen=True)
class UnitLine:
    """A line `value = function(Σ terms)` for one unit."""

    name: str  # name in `Cell.equations`, or the symbol of an intermediate result
    symbol: str
    formula: str
    terms: tuple[UnitTerm, ...]
    function: str  # σ, tanh, ReLU or empty
    total: float  # Σ terms
    value: float
    purpose: str = ""  # a description in words


@dataclass(frozen=True)
class Arithmetic:
    """One step of one unit."""

    unit: int
    before: dict[str, float]  # state of the unit before the step
    lines: tuple[UnitLine, ...]  # in computation order

    def __getitem__(self, name: str) -> float:
        return next(line.value for line in self.lines if line.name == name)


def arithmetic(cell: Cell, x_t: Tensor, state: State, unit: int) -> Arithmetic:
    """Compute one unit of a step with inputs (D,) and states (H,)."""
    check_unit(unit, cell.hidden)
    lines = [
        UnitLine(
            name=equation.name,
            symbol=equation.symbol,
            formula=equation.formula,
            terms=tuple(UnitTerm.of(term, unit) for term in equation.terms),
            function=equation.function,
            total=equation.total[unit].item(),
            value=equation.value[unit].item(),
            purpose=_describe_purpose(cell, equation),
        )
        for equation in trace_equations(cell, x_t, state)
    ]
    before = {name: value.detach().cpu().double()[unit].item() for name, value in state.items()}
    return Arithmetic(unit, before, tuple(lines))


def check_unit(unit: int, hidden: int) -> None:
    """Raise an error if the unit does not exist in a layer."""
    if not 0 <= unit < hidden:
        raise UsageError(f"The unit must be from 0 to {hidden - 1}, the units of the layer; got {unit}.")


def _describe_purpose(cell: Cell, equation: Equation) -> str:
    """Describe the purpose of a line. An intermediate result has an empty description."""
    name, other_states = equation.name, set(cell.state_names) - {"h"}
    if name in cell.gates:
        return cell.gates[name]
    if name == "h":
        return "the new hidden state, the input of the next step"
    if name in other_states:
        return "the new cell state"
    is_intermediate = equation.symbol in ("x'_t", name) and name not in cell.blocks
    return "" if is_intermediate else f"candidate for the new {'cell' if other_states else 'hidden'} state"
