"""The equations of a recurrent cell, read off the operations that `Cell.equations` performs.

    for line in trace_equations(cell, x_t, state):
        print(line.formula)        f = σ(W_xf x_t + W_hf h_{t-1} + b_f)

`Cell.equations` is run once in float64 while every operation is recorded. A value that it returns is a line of its own;
so is an intermediate result that is multiplied as a whole. Nothing is known of any particular cell.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from seqloom.nn.cells import Cell, State

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "σ": torch.sigmoid,
    "tanh": torch.tanh,
    "ReLU": torch.relu,
    "": lambda total: total,
}
FUNCTION_SYMBOLS = {"sigmoid": "σ", "tanh": "tanh", "relu": "ReLU"}
CANDIDATE = "candidate"  # the block and the value that equations write as h̃
INPUT = "x_t"


@dataclass(eq=False)
class Expression:
    """A vector (H,), or a matrix of weights, and how it was computed."""

    operation: str  # leaf, bias, sum, product, matrix, complement, or the name of a function
    value: Tensor
    arguments: tuple["Expression", ...] = ()
    symbol: str = ""  # of a leaf, and of a value that has a line of its own

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
        """Whether it can be a factor, or the vector of a matrix product, without a line of its own."""
        if self.symbol:
            return True
        return self.operation not in ("sum", "matrix") and all(argument.is_simple for argument in self.arguments)

    def parts(self, operation: str) -> list["Expression"]:
        """The terms of a sum, or the factors of a product, of anything else itself."""
        if self.symbol or self.operation != operation:
            return [self]
        return [part for argument in self.arguments for part in argument.parts(operation)]


@dataclass(frozen=True, eq=False)
class Equation:
    """value = function(Σ terms), each a vector (H,)."""

    name: str  # as in `Cell.equations`; of an intermediate result, its symbol
    symbol: str
    function: str  # σ, tanh, ReLU, the name of another function, or nothing
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
    """Trace one step with inputs (D,) and a state of (H,) each, in the order of computation."""
    exact = copy.deepcopy(cell).cpu().double()
    recorder = _Recorder(exact)
    x, before = _row(x_t), {name: _row(value) for name, value in state.items()}
    recorder.add(x, "leaf", symbol=INPUT)
    for name, value in before.items():
        recorder.add(value, "leaf", symbol=f"{name}_{{t-1}}")
    with torch.no_grad(), recorder:
        returned = exact.equations(x, before)
    return list(_Writer(exact, recorder, returned).lines())


def _row(vector: Tensor) -> Tensor:
    return vector.detach().cpu().double().unsqueeze(0)


@dataclass
class _Recorder(TorchFunctionMode):
    """Keeps an expression of every tensor that is computed, by the identity of the tensor."""

    cell: Cell
    known: dict[int, Expression] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)  # kept alive, so that identities stay unique

    def __post_init__(self) -> None:
        super().__init__()
        for name, parameter in self.cell.named_parameters():
            self.add(parameter.detach(), "leaf", symbol=name, key=id(parameter))

    def add(
        self,
        tensor: Tensor,
        operation: str,
        arguments: Sequence[Expression] = (),
        symbol: str = "",
        key: int | None = None,
    ) -> Expression:
        value = tensor[0] if key is None and tensor.dim() == 2 and len(tensor) == 1 else tensor
        expression = Expression(operation, value, tuple(arguments), symbol)
        self.tensors.append(tensor)
        self.known[id(tensor) if key is None else key] = expression
        return expression

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        name = str(getattr(func, "__name__", func)).strip("_")
        if isinstance(output, Tensor) and id(output) not in self.known:
            self._record(name, output, [*args, *(kwargs or {}).values()])
        elif name in ("chunk", "split"):
            for number, part in enumerate(output):
                self._record_block(self.known[id(args[0])], part, number, len(output))
        return output

    def _record(self, name: str, output: Tensor, given: list[Any]) -> None:
        arguments = [self.known.get(id(each)) or self._constant(each) for each in given if isinstance(each, Tensor)]
        numbers = [each for each in given if isinstance(each, int | float) and not isinstance(each, bool)]
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

    def _record_block(self, whole: Expression, part: Tensor, number: int, count: int) -> None:
        self.known[id(part)] = self._block(whole, number, count)
        self.tensors.append(part)

    def _block(self, whole: Expression, number: int, count: int) -> Expression:
        """One of the blocks of stacked weights, or of what was computed with them."""
        value = whole.value.chunk(count)[number]
        match whole.operation:
            case "leaf":
                return Expression("leaf", value, symbol=f"{whole.symbol}/{number}")
            case "matrix":
                weight, vector = whole.arguments
                return Expression("matrix", value, (self._block(weight, number, count), vector))
            case operation:
                return Expression(operation, value, tuple(self._block(a, number, count) for a in whole.arguments))

    def _constant(self, tensor: Tensor) -> Expression:
        return self.add(tensor, "leaf", symbol="constant")


class _Writer:
    """Puts names to what was recorded, and writes it down line by line."""

    def __init__(self, cell: Cell, recorder: _Recorder, returned: dict[str, Tensor]) -> None:
        self.cell = cell
        self.order = list(recorder.known.values())
        self.named = {name: recorder.known[id(value)] for name, value in returned.items()}
        for name, expression in self.named.items():
            expression.symbol = f"{name}_t" if name in cell.state_names else symbol_of(name)
        self.intermediate = iter(["u", "v", "w", *(f"u{n}" for n in range(2, 100))])

    def lines(self) -> Iterator[Equation]:
        names = sorted(self.named, key=lambda name: self.order.index(self.named[name]))
        for name in names:
            yield from self._write(name, self.named[name])

    def _write(self, name: str, whole: Expression) -> Iterator[Equation]:
        is_function = whole.operation not in ("leaf", "sum", "product", "matrix", "complement")
        function = is_function and len(whole.arguments) == 1
        inner = whole.arguments[0] if function else Expression(whole.operation, whole.value, whole.arguments)
        terms = inner.parts("sum") if not inner.symbol else [inner]
        for term in terms:
            factors = term.parts("product")
            for operand in factors if len(factors) > 1 else term.arguments[term.operation == "matrix" :]:
                if not (term.symbol or operand.is_simple):
                    yield from self._lift(operand)
        symbol = FUNCTION_SYMBOLS.get(whole.operation, whole.operation) if function else ""
        yield Equation(name, whole.symbol, symbol, self._with_biases_last(terms), whole.value)

    def _lift(self, part: Expression) -> Iterator[Equation]:
        """Give an intermediate result a line and a symbol of its own."""
        symbol = "x'_t" if _depends_on_input_alone(part) else next(self.intermediate)
        lines = list(self._write("x'" if symbol == "x'_t" else symbol, part))
        part.symbol = symbol
        yield from lines[:-1]
        last = lines[-1]
        yield Equation(last.name, symbol, last.function, last.terms, last.value)

    def _with_biases_last(self, terms: list[Expression]) -> list[Expression]:
        """Name the weights; the two halves of a bias are one term, after all others."""
        biases: dict[str, list[Expression]] = {}
        others = []
        for term in terms:
            parameter, _, number = term.symbol.partition("/")
            if parameter in ("bias_x", "bias_h"):
                biases.setdefault(self._block_letter(self.cell.blocks, number), []).append(term)
            else:
                others.append(self._with_named_weights(term))
        for letter, halves in biases.items():
            which = halves[0].symbol[len("bias_")] if len(halves) == 1 and self.cell.bias_h is not None else ""
            value = torch.stack([half.value for half in halves]).sum(dim=0)
            others.append(Expression("bias", value, symbol=f"b_{which}{letter}"))
        return others

    def _with_named_weights(self, term: Expression) -> Expression:
        if term.operation != "matrix" or term.symbol:
            return term
        weight, vector = term.arguments
        parameter, _, number = weight.symbol.partition("/")
        blocks = {
            "weight_x": self.cell.x_blocks or self.cell.blocks,
            "weight_h": self.cell.h_blocks or self.cell.blocks,
        }
        if parameter in blocks:
            symbol = f"W_{parameter[-1]}{self._block_letter(blocks[parameter], number)}"
        else:
            symbol = {"weight_p": "W_xp"}.get(parameter, weight.symbol)
        return Expression("matrix", term.value, (Expression("leaf", weight.value, symbol=symbol), vector))

    def _block_letter(self, blocks: tuple[str, ...], number: str) -> str:
        block = blocks[int(number or 0)]
        return "h" if block == CANDIDATE else block


def symbol_of(name: str) -> str:
    """The symbol of a value that a cell computes on the way to its state."""
    return "h̃" if name == CANDIDATE else name


def _depends_on_input_alone(expression: Expression) -> bool:
    if expression.operation == "matrix":
        return _depends_on_input_alone(expression.arguments[1])
    if expression.symbol:
        return expression.symbol == INPUT
    return all(_depends_on_input_alone(argument) for argument in expression.arguments)
