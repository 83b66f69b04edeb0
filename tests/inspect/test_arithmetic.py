"""The displayed equations equal the computation of the cells."""

from typing import Any

import pytest
import torch

from seqloom.core.errors import UsageError
from seqloom.inspect.equations import Arithmetic, arithmetic
from seqloom.nn.cells import CELLS, Cell, Elman

FUNCTIONS: dict[str, Any] = {"σ": torch.sigmoid, "tanh": torch.tanh, "ReLU": torch.relu, "": lambda total: total}


def step(kind: type[Cell], inputs: int = 7, hidden: int = 5, **options: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(4)
    cell = kind(inputs, hidden, **options).double()
    cell.reset_parameters(0.9)
    x = torch.randn(inputs, dtype=torch.float64)
    return cell, x, {name: torch.randn(hidden, dtype=torch.float64) for name in cell.state_names}


def computed(cell: Cell, x: Any, state: Any) -> dict[str, torch.Tensor]:
    return {name: value[0] for name, value in cell.equations(x[None], {k: v[None] for k, v in state.items()}).items()}


@pytest.mark.parametrize("inputs", [5, 7])
@pytest.mark.parametrize("name", CELLS)
def test_each_unit_matches_cell_output(name: str, inputs: int) -> None:
    cell, x, state = step(CELLS[name], inputs)
    expected = computed(cell, x, state)
    for unit in range(5):
        result = arithmetic(cell, x, state, unit)
        assert {line.name for line in result.lines} >= set(expected)
        for quantity, values in expected.items():
            assert result[quantity] == pytest.approx(values[unit].item(), abs=1e-12)
        assert result.before == {key: value[unit].item() for key, value in state.items()}
        assert [line.name for line in result.lines][-1] == "h"


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_each_activation_matches_cell_output(activation: str) -> None:
    cell, x, state = step(Elman, activation=activation)
    for unit in range(5):
        expected = computed(cell, x, state)["h"][unit].item()
        assert arithmetic(cell, x, state, unit)["h"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", CELLS)
def test_terms_add_up_to_the_total(name: str) -> None:
    cell, x, state = step(CELLS[name], inputs=40)
    for line in arithmetic(cell, x, state, 2).lines:
        assert line.total == pytest.approx(sum(term.value for term in line.terms), abs=1e-12)
        value = FUNCTIONS[line.function](torch.tensor(line.total, dtype=torch.float64)).item()
        assert line.value == pytest.approx(value, abs=1e-12)
        assert line.formula.startswith(f"{line.symbol} = ")
        assert all(term.symbol in line.formula for term in line.terms)
        for term in line.terms:
            check_term(term)


def check_term(term: Any) -> None:
    if term.factors:
        product = 1.0
        for _, value in term.factors:
            product *= value
        assert term.value == pytest.approx(product, abs=1e-12)
    if term.summands:
        assert term.value == pytest.approx(
            sum(summand.product for summand in term.summands) + term.remainder, abs=1e-12
        )
        assert all(summand.product == pytest.approx(summand.weight * summand.input) for summand in term.summands)
        sizes = [abs(summand.product) for summand in term.summands]
        assert sizes == sorted(sizes, reverse=True)
        assert len(sizes) == min(12, term.length)


def test_summands_are_weights_times_inputs() -> None:
    cell, x, state = step(CELLS["lstm"], inputs=30)
    forget = next(line for line in arithmetic(cell, x, state, 3).lines if line.name == "f")
    of_x, of_h, b = forget.terms
    assert (of_x.symbol, of_h.symbol, b.symbol) == ("W_xf x_t", "W_hf h_{t-1}", "b_f")
    row = cell.weight_x[5 + 3]
    products = (row * x).abs()
    assert of_x.summands[0].input_index == int(products.argmax())
    assert of_x.summands[0].weight == row[products.argmax()].item()
    assert of_h.length == 5 and of_h.remainder == pytest.approx(0, abs=1e-12)
    assert b.value == pytest.approx((cell.bias_x[8] + cell.bias_h[8]).item())
    assert forget.formula == "f = σ(W_xf x_t + W_hf h_{t-1} + b_f)"


def test_changed_bias_changes_values() -> None:
    """Control: a slightly larger bias is detected."""
    cell, x, state = step(CELLS["gru"])
    before: Arithmetic = arithmetic(cell, x, state, 1)
    with torch.no_grad():
        cell.bias_h[10 + 1] += 1e-6
    after = arithmetic(cell, x, state, 1)
    assert abs(after["candidate"] - before["candidate"]) > 1e-9
    assert after["r"] == before["r"]


@pytest.mark.parametrize("unit", [-1, 5])
def test_invalid_unit_is_rejected(unit: int) -> None:
    cell, x, state = step(CELLS["gru"])
    with pytest.raises(UsageError, match=f"The unit must be from 0 to 4, the units of the layer; got {unit}"):
        arithmetic(cell, x, state, unit)
