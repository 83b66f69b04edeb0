"""Cells compared with an independent implementation of their equations in numpy."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.standard import STANDARD_CELLS

from seqloom.nn.cells import CELLS, LSTM, MUT1, Cell, Elman, cell_class

B, D, H = 3, 4, 5


def sigmoid(value):
    return 1 / (1 + np.exp(-value))


ACTIVATIONS: dict[str, Any] = {"tanh": np.tanh, "relu": lambda value: np.maximum(value, 0), "sigmoid": sigmoid}


def arrays_of(cell):
    return {name: parameter.detach().numpy() for name, parameter in cell.named_parameters()}


def weights(cell):
    arrays = arrays_of(cell)
    blocks = len(cell.blocks)
    return [
        np.split(arrays.get(name, np.zeros(blocks * H)), blocks)
        for name in ("weight_x", "weight_h", "bias_x", "bias_h")
    ]


def elman(cell, x, h):
    (wx,), (wh,), (bx,), (bh,) = weights(cell)
    total = x @ wx.T + h @ wh.T + bx + bh
    return {"h": ACTIVATIONS[cell.activation](total)}


def lstm(cell, x, h, c):
    wx, wh, bx, bh = weights(cell)
    i, f, g, o = (x @ wx[k].T + h @ wh[k].T + bx[k] + bh[k] for k in range(4))
    i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
    new = f * c + i * g
    return {"i": i, "f": f, "g": g, "o": o, "c": new, "h": o * np.tanh(new)}


def gru(cell, x, h):
    wx, wh, bx, bh = weights(cell)
    r = sigmoid(x @ wx[0].T + bx[0] + h @ wh[0].T + bh[0])
    z = sigmoid(x @ wx[1].T + bx[1] + h @ wh[1].T + bh[1])
    candidate = np.tanh(x @ wx[2].T + bx[2] + r * (h @ wh[2].T + bh[2]))
    return {"r": r, "z": z, "candidate": candidate, "h": z * h + (1 - z) * candidate}


def gru_cho(cell, x, h):
    wx, wh, b, _ = weights(cell)
    r = sigmoid(x @ wx[0].T + h @ wh[0].T + b[0])
    z = sigmoid(x @ wx[1].T + h @ wh[1].T + b[1])
    candidate = np.tanh(x @ wx[2].T + (r * h) @ wh[2].T + b[2])
    return {"r": r, "z": z, "candidate": candidate, "h": z * h + (1 - z) * candidate}


def mut1(cell, x, h):
    w = arrays_of(cell)
    x = x @ w["weight_xp"].T if "weight_xp" in w else x
    w_xr, w_xz = np.split(w["weight_x"], 2)
    w_hr, w_hh = np.split(w["weight_h"], 2)
    b_r, b_z, b_h = np.split(w["bias_x"], 3)
    z = sigmoid(x @ w_xz.T + b_z)
    r = sigmoid(x @ w_xr.T + h @ w_hr.T + b_r)
    candidate = np.tanh((r * h) @ w_hh.T + np.tanh(x) + b_h)
    return {"r": r, "z": z, "candidate": candidate, "h": z * candidate + (1 - z) * h}


def mut2(cell, x, h):
    w = arrays_of(cell)
    x = x @ w["weight_xp"].T if "weight_xp" in w else x
    w_xz, w_xh = np.split(w["weight_x"], 2)
    w_hr, w_hz, w_hh = np.split(w["weight_h"], 3)
    b_r, b_z, b_h = np.split(w["bias_x"], 3)
    z = sigmoid(x @ w_xz.T + h @ w_hz.T + b_z)
    r = sigmoid(x + h @ w_hr.T + b_r)
    candidate = np.tanh((r * h) @ w_hh.T + x @ w_xh.T + b_h)
    return {"r": r, "z": z, "candidate": candidate, "h": z * candidate + (1 - z) * h}


def mut3(cell, x, h):
    wx, wh, b, _ = weights(cell)
    z = sigmoid(x @ wx[1].T + np.tanh(h) @ wh[1].T + b[1])
    r = sigmoid(x @ wx[0].T + h @ wh[0].T + b[0])
    candidate = np.tanh((r * h) @ wh[2].T + x @ wx[2].T + b[2])
    return {"r": r, "z": z, "candidate": candidate, "h": z * candidate + (1 - z) * h}


REFERENCES: dict[str, Any] = {
    "elman": elman,
    "lstm": lstm,
    "gru": gru,
    "gru-cho": gru_cho,
    "mut1": mut1,
    "mut2": mut2,
    "mut3": mut3,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in CELLS} | {
    f"elman-{g}": ("elman", {"activation": g}) for g in ("relu", "sigmoid")
}


@pytest.fixture(params=VARIANTS)
def variant(request):
    return VARIANTS[request.param]


def make(variant, inputs=D) -> tuple[Cell, torch.Tensor, dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    name, options = variant
    cell = CELLS[name](inputs, H, **options).double()
    state = {key: torch.randn(B, H, dtype=torch.float64) for key in cell.state_names}
    return cell, torch.randn(B, inputs, dtype=torch.float64), state


@pytest.mark.parametrize("inputs", [D, H], ids=["narrow inputs", "inputs as wide as the state"])
def test_equations_agree_with_numpy(variant, inputs):
    if variant[0] not in REFERENCES:
        pytest.skip("no standard cell")
    cell, x, state = make(variant, inputs)
    expected = REFERENCES[variant[0]](cell, x.numpy(), **{name: leaf.numpy() for name, leaf in state.items()})
    computed = cell.equations(x, state)
    assert computed.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(computed[name].detach().numpy(), value, atol=1e-12, rtol=0, err_msg=name)


def test_every_standard_cell_has_an_independent_version():
    assert list(REFERENCES) == STANDARD_CELLS


def test_forward_is_the_state_part_of_the_equations(variant):
    cell, x, state = make(variant)
    after, values = cell(x, state), cell.equations(x, state)
    assert tuple(after) == cell.state_names
    assert all(torch.equal(after[name], values[name]) and after[name].shape == (B, H) for name in after)


def test_gradients_match_finite_differences(variant):
    cell, x, state = make(variant)
    names = cell.state_names
    parameters = dict(cell.named_parameters())

    def function(x, *rest):
        given = dict(zip(parameters, rest[len(names) :], strict=True))
        after = torch.func.functional_call(cell, given, (x, dict(zip(names, rest, strict=False))))
        return tuple(after.values())

    leaves = [x, *state.values(), *parameters.values()]
    assert torch.autograd.gradcheck(function, [leaf.detach().requires_grad_() for leaf in leaves], fast_mode=True)


def test_gates_are_documented_and_between_0_and_1(variant):
    cell, x, state = make(variant)
    values = cell.equations(x, state)
    assert cell.__doc__ and "h_t" in cell.__doc__
    for gate, words in cell.gates.items():
        assert "near 1" in words
        assert ((values[gate] > 0) & (values[gate] < 1)).all()


def test_initial_weights_are_uniform_in_the_expected_range(variant):
    torch.manual_seed(2)
    name, options = variant
    cell = CELLS[name](50, 100, **options)
    weight = cell.weight_h.detach()
    assert weight.abs().max() <= 0.1
    assert weight.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.03)
    cell.reset_parameters(0.01)
    assert cell.weight_x.abs().max() <= 0.01


@pytest.mark.parametrize("bias", [0.0, 1.0, 2.5])
def test_forget_bias_changes_only_the_forget_gate(bias):
    means = LSTM(3, 400, forget_bias=bias).bias_x.detach().view(4, 400).mean(dim=1)
    torch.testing.assert_close(means, torch.tensor([0.0, bias, 0.0, 0.0]), atol=0.01, rtol=0)


def test_default_forget_bias_is_1():
    assert LSTM(3, 400).bias_x.detach()[400:800].mean().item() == pytest.approx(1, abs=0.01)


def test_lstm_with_open_forget_gate_keeps_its_cell_state():
    cell, x, state = make(("lstm", {}))
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.zero_()
        i, f, *_ = cell.bias_x.view(4, H)
        i.fill_(-1e9)
        f.fill_(1e9)
    assert torch.equal(cell(x, state)["c"], state["c"])


@pytest.mark.parametrize("name", ["mut1", "mut2"])
def test_inputs_of_another_size_are_projected(name):
    cell, x, state = make((name, {}))
    assert cell.weight_xp is not None and cell.weight_xp.shape == (H, D)
    assert cell.notes() == [f"{name.upper()} projects its input from 4 to 5 dimensions first (W_xp)"]
    same, *_ = make((name, {}), inputs=H)
    assert same.weight_xp is None and same.notes() == []
    same.load_state_dict({key: value for key, value in cell.state_dict().items() if key != "weight_xp"})
    projected = x @ cell.weight_xp.T
    torch.testing.assert_close(same(projected, state), cell(x, state), atol=1e-12, rtol=0)


def test_other_cells_have_no_projection():
    assert [name for name, kind in CELLS.items() if kind(D, H).notes()] == ["mut1", "mut2"]


@pytest.mark.parametrize(("name", "keeps"), [("gru", 1e9), ("gru-cho", 1e9), *[(f"mut{n}", -1e9) for n in (1, 2, 3)]])
def test_meaning_of_z_is_documented(name, keeps):
    """In GRUs, z near 1 keeps the state. In MUTs, it selects the new value. The descriptions state this."""
    cell, x, state = make((name, {}))
    with torch.no_grad():
        cell.bias_x[H : 2 * H] = keeps
    assert torch.equal(cell(x, state)["h"], state["h"])
    assert ("near 1 keeps" if keeps > 0 else "near 1 takes") in cell.gates["z"]


def test_recurrent_matrices_are_named_blocks_of_the_weight(variant):
    cell, *_ = make(variant)
    matrices = cell.recurrent_matrices()
    assert all(matrix.shape == (H, H) for matrix in matrices.values())
    assert torch.equal(torch.cat(list(matrices.values())), cell.weight_h)
    assert set(matrices) <= set(cell.blocks)
    assert list(MUT1(D, H).recurrent_matrices()) == ["r", "candidate"]


def test_errors_for_unknown_names_have_suggestions():
    with pytest.raises(ValueError, match=r"did you mean lstm\?.*elman, lstm, gru, gru-cho"):
        cell_class("lsmt")
    with pytest.raises(ValueError, match="tanh, relu, sigmoid"):
        Elman(1, 1, activation="swish")
