"""Variants of the LSTM compared with an independent implementation in numpy, and their defining properties."""

from typing import Any

import numpy as np
import pytest
import torch

from seqloom.nn.cells import CELLS, LSTM, Cell

B, D, H = 3, 4, 5
Array = np.ndarray[Any, Any]


def sigmoid(value: Array) -> Array:
    return 1 / (1 + np.exp(-value))


def sums(cell: Cell, x: Array, h: Array) -> dict[str, Array]:
    """Return W_x x + W_h h + b of each block."""
    w_x, w_h, b = (
        np.split(parameter.detach().numpy(), len(cell.blocks))
        for parameter in (cell.weight_x, cell.weight_h, cell.bias_x)
    )
    return {name: x @ w_x[k].T + h @ w_h[k].T + b[k] for k, name in enumerate(cell.blocks)}


def lstm_1997(cell: Cell, x: Array, h: Array, c: Array) -> dict[str, Array]:
    total = sums(cell, x, h)
    i, o, g = sigmoid(total["i"]), sigmoid(total["o"]), np.tanh(total["g"])
    return {"i": i, "o": o, "g": g, "c": c + i * g, "h": o * np.tanh(c + i * g)}


def lstm_coupled(cell: Cell, x: Array, h: Array, c: Array) -> dict[str, Array]:
    total = sums(cell, x, h)
    f, o, g = sigmoid(total["f"]), sigmoid(total["o"]), np.tanh(total["g"])
    new = g + f * (c - g)
    return {"f": f, "o": o, "g": g, "c": new, "h": o * np.tanh(new)}


def lstm_peephole(cell: Any, x: Array, h: Array, c: Array) -> dict[str, Array]:
    total = sums(cell, x, h)
    to_i, to_f, to_o = np.split(cell.peepholes.detach().numpy(), 3)
    i, f, g = sigmoid(total["i"] + to_i * c), sigmoid(total["f"] + to_f * c), np.tanh(total["g"])
    new = f * c + i * g
    o = sigmoid(total["o"] + to_o * new)
    return {"i": i, "f": f, "o": o, "g": g, "c": new, "h": o * np.tanh(new)}


REFERENCES: dict[str, Any] = {
    "lstm-1997": lstm_1997,
    "lstm-coupled": lstm_coupled,
    "lstm-peephole": lstm_peephole,
}


def make(name: str) -> tuple[Any, torch.Tensor, dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    state = {key: torch.randn(B, H, dtype=torch.float64) for key in ("h", "c")}
    return CELLS[name](D, H).double(), torch.randn(B, D, dtype=torch.float64), state


@pytest.mark.parametrize("name", REFERENCES)
def test_equations_agree_with_numpy(name: str) -> None:
    cell, x, state = make(name)
    expected = REFERENCES[name](cell, x.numpy(), state["h"].numpy(), state["c"].numpy())
    computed = cell.equations(x, state)
    assert computed.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(computed[key].detach().numpy(), value, atol=1e-12, rtol=0, err_msg=key)


def test_cell_of_1997_never_forgets() -> None:
    """With a closed input gate, the content is unchanged, and its gradient is exactly 1 after any number of steps."""
    cell, x, state = make("lstm-1997")
    with torch.no_grad():
        cell.bias_x[:H].fill_(-1e9)
    start = state["c"].clone().requires_grad_()
    after = {"h": state["h"], "c": start}
    for _ in range(50):
        after = cell(x, after)
    assert torch.equal(after["c"], start)
    (gradient,) = torch.autograd.grad(after["c"].sum(), start)
    assert torch.equal(gradient, torch.ones_like(gradient))


def test_cell_of_1997_grows_without_bound_but_coupled_gates_do_not() -> None:
    largest = {}
    for name in ("lstm-1997", "lstm-coupled"):
        cell, x, _ = make(name)
        with torch.no_grad():
            cell.bias_x.fill_(3.0)  # open gates and a large candidate
        state = cell.initial_state(B)
        for _ in range(100):
            state = cell(x, state)
        largest[name] = state["c"].abs().max().item()
    assert largest["lstm-1997"] > 50
    assert largest["lstm-coupled"] <= 1


def test_peepholes_of_zero_give_an_lstm() -> None:
    cell, x, state = make("lstm-peephole")
    with torch.no_grad():
        cell.peepholes.zero_()
    plain = LSTM(D, H, forget_bias=0.0).double()
    weights = {name: value for name, value in cell.state_dict().items() if name != "peepholes"}
    plain.load_state_dict({**weights, "bias_h": torch.zeros(4 * H)})
    for name, value in plain(x, state).items():
        torch.testing.assert_close(cell(x, state)[name], value, atol=1e-12, rtol=0)


def test_gates_with_peepholes_read_the_cell_behind_a_closed_output_gate() -> None:
    """If h is 0, the gates of an LSTM do not depend on c, and gates with peepholes do."""
    cell, x, state = make("lstm-peephole")
    zero = torch.zeros_like(state["h"])
    first, second = (cell.equations(x, {"h": zero, "c": c})["f"] for c in (state["c"], -state["c"]))
    assert not torch.allclose(first, second)
    plain = LSTM(D, H).double()
    first, second = (plain.equations(x, {"h": zero, "c": c})["f"] for c in (state["c"], -state["c"]))
    assert torch.equal(first, second)


def test_number_of_weights() -> None:
    counts = {name: sum(p.numel() for p in CELLS[name](D, H).parameters()) for name in REFERENCES}
    matrices = D * H + H * H + H
    assert counts == {
        "lstm-1997": 3 * matrices,
        "lstm-coupled": 3 * matrices,
        "lstm-peephole": 4 * matrices + 3 * H,
    }
