"""Whole sequences in machine code: equal to the plain loop in double precision, gradients included."""

from typing import Any

import pytest
import torch
from tests.nn.running import run
from tests.standard import STANDARD_CELLS

from seqloom.accel.recurrence import numba_steps, sequences
from seqloom.accel.recurrence.steps import steps_name
from seqloom.nn.cells import CELLS
from seqloom.nn.recurrent import Recurrent

pytestmark = pytest.mark.skipif(numba_steps.library() is None, reason="needs numba, MKL and GNU's OpenMP")
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in STANDARD_CELLS} | {
    f"elman-{g}": ("elman", {"activation": g}) for g in ("relu", "sigmoid")
}


@pytest.fixture(autouse=True)
def worth(monkeypatch):
    """Small sequences, too."""
    monkeypatch.setattr(numba_steps, "MIN_STATE_ELEMENTS", 0)
    monkeypatch.setattr(numba_steps, "MIN_ROWS_PER_THREAD", 1)


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recurrent(name, inputs, hidden):
    torch.manual_seed(0)
    kind, options = VARIANTS[name]
    return Recurrent(CELLS[kind](inputs, hidden, **options))


def some_state(layer, rows):
    return {name: torch.randn(rows, layer.cell.hidden) for name in layer.cell.state_names}


def everything(layer, x, state, mask, fused):
    """Outputs, the last state, and the gradients of all there is."""
    dtype = layer.cell.weight_h.dtype
    x, state = x.to(dtype).requires_grad_(), {name: leaf.to(dtype).requires_grad_() for name, leaf in state.items()}
    outputs, last = sequences.run(layer.cell, x, state, mask) if fused else run(layer, x, state, mask, fused=False)
    torch.manual_seed(7)
    loss = sum((one * torch.randn(one.shape, dtype=torch.float64).to(dtype)).sum() for one in (outputs, *last.values()))
    named = {"x": x, **{f"first {name}": leaf for name, leaf in state.items()}, **dict(layer.named_parameters())}
    gradients = torch.autograd.grad(loss, list(named.values()))
    found = {"outputs": outputs, **last, **dict(zip(named, gradients, strict=True))}
    return {key: one.detach() for key, one in found.items()}


def difference(name, rows, steps, inputs, hidden, masked):
    """The largest there is between machine code and the plain loop in double precision, by the size of what differs."""
    layer = recurrent(name, inputs, hidden)
    x, state = torch.randn(rows, steps, inputs), some_state(layer, rows)
    mask = torch.rand(rows, steps) < 0.6 if masked else None
    name = steps_name(layer.cell)
    assert name is not None and sequences.select_steps(name, x, state["h"]) is numba_steps.STEPS[name]
    got = everything(layer, x, state, mask, True)
    wanted = everything(layer.double(), x, state, mask, False)
    return max(float((got[key] - one).abs().max() / one.abs().max()) for key, one in wanted.items())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_equal_to_the_plain_loop(name, masked):
    for rows, steps, inputs, hidden in ((7, 19, 3, 5), (4, 20, 24, 33), (2, 16, 8, 8)):
        assert difference(name, rows, steps, inputs, hidden, masked) < 2e-6


@pytest.mark.parametrize("name", VARIANTS)
def test_sizes_that_nothing_divides(name):
    for rows, steps, inputs, hidden in ((1, 21, 5, 7), (3, 1, 4, 13), (33, 5, 9, 21), (1, 1, 3, 3)):
        assert difference(name, rows, steps, inputs, hidden, False) < 2e-6


@pytest.mark.parametrize("name", VARIANTS)
def test_products_in_several_pieces(name):
    """More rows than one piece has, the last of them not whole; more columns, going forward and going back."""
    assert difference(name, 13, 11, 259, 261, False) < 2e-6


@pytest.mark.parametrize("name", VARIANTS)
def test_rows_are_shared_among_threads(name):
    torch.set_num_threads(2)
    assert difference(name, 7, 16, 6, 12, True) < 2e-6  # 3 rows and 4


@pytest.mark.parametrize("name", VARIANTS)
def test_threads_without_a_row(name, monkeypatch):
    monkeypatch.setattr(numba_steps, "MIN_ROWS_PER_THREAD", 0)
    torch.set_num_threads(3)
    assert difference(name, 2, 16, 6, 12, True) < 2e-6


@pytest.mark.parametrize("name", VARIANTS)
def test_however_inputs_and_gradients_lie_in_memory(name):
    layer, x = recurrent(name, 8, 8), torch.randn(4, 20, 8)
    state, dy = some_state(layer, 4), torch.randn(4, 20, 8)

    def gradients(x, dy):
        x = x.detach().requires_grad_()
        outputs = sequences.run(layer.cell, x, state)[0]
        return torch.autograd.grad(outputs, [x, *layer.parameters()], dy)

    as_rows = gradients(x, dy)
    as_steps = gradients(*(one.transpose(0, 1).contiguous().transpose(0, 1) for one in (x, dy)))
    assert all(torch.equal(one, other) for one, other in zip(as_rows, as_steps, strict=True))


@pytest.mark.parametrize("name", VARIANTS)
def test_outputs_that_are_overwritten_give_no_wrong_gradient(name):
    layer, x = recurrent(name, 8, 8), torch.randn(4, 20, 8, requires_grad=True)
    state = some_state(layer, 4)
    (wanted,) = torch.autograd.grad((2 * sequences.run(layer.cell, x, state)[0]).sum(), x)
    try:
        (got,) = torch.autograd.grad(sequences.run(layer.cell, x, state)[0].mul_(2).sum(), x)
    except RuntimeError:
        return  # outputs are needed on the way back, and torch says so
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_matrix_that_is_not_turned_is_noticed(name, monkeypatch):
    monkeypatch.setattr(numba_steps, "transpose", lambda weight: weight.contiguous())
    assert difference(name, 4, 20, 8, 8, False) > 1e-3


@pytest.mark.parametrize("name", sorted(set(VARIANTS) - {"elman", "elman-relu", "elman-sigmoid"}))
def test_a_gate_that_only_nearly_keeps_is_noticed(name, monkeypatch):
    monkeypatch.setattr(numba_steps, "SATURATED", 3.0)
    assert difference(name, 4, 20, 8, 8, True) > 1e-3


@pytest.mark.parametrize("name", VARIANTS)
def test_nothing_that_is_no_number_is_lost(name):
    """The training loop must see it."""
    layer, x = recurrent(name, 3, 16), torch.randn(4, 20, 3)
    x[1, 3, 0] = torch.nan
    outputs = everything(layer, x, some_state(layer, 4), None, True)["outputs"]
    assert outputs[1, 3:].isnan().all() and outputs[[0, 2, 3]].isfinite().all() and outputs[1, :3].isfinite().all()


@pytest.mark.parametrize("name", VARIANTS)
def test_large_numbers(name):
    layer = recurrent(name, 3, 16)
    x, state = torch.randn(4, 20, 3) * (1 if name == "elman-relu" else 1000), some_state(layer, 4)
    got, wanted = everything(layer, x, state, None, True), everything(layer.double(), x, state, None, False)
    assert torch.allclose(got["outputs"].double(), wanted["outputs"], atol=1e-3)


@pytest.mark.parametrize("name", VARIANTS)
def test_padding_keeps_a_state_to_the_last_bit(name):
    layer, x = recurrent(name, 3, 16), torch.randn(4, 20, 3)
    state, mask = some_state(layer, 4), torch.ones(4, 20, dtype=torch.bool)
    state["h"][1, :8] = 0
    mask[1] = False
    found = everything(layer, x, state, mask, True)
    assert all(torch.equal(found[key][1], leaf[1]) for key, leaf in state.items())
    assert not found["outputs"][1].any() and found["outputs"][0].any()


@pytest.mark.parametrize("name", VARIANTS)
def test_the_same_twice_to_the_last_bit(name):
    layer, x = recurrent(name, 16, 16), torch.randn(6, 20, 16)
    state = some_state(layer, 6)
    once, again = (everything(layer, x, state, None, True) for _ in range(2))
    assert all(torch.equal(once[key], again[key]) for key in once)


def test_where_it_is_used(monkeypatch):
    monkeypatch.undo()
    state, threads = torch.randn(16 * torch.get_num_threads(), 256), torch.get_num_threads()
    assert numba_steps.applies(state, 64)
    assert not numba_steps.applies(state, 4) and not numba_steps.applies(state.double(), 64)
    assert not numba_steps.applies(state[: 2 * threads - 1], 1000)
    with torch.no_grad():
        assert not numba_steps.applies(state, 64)
    monkeypatch.setattr(numba_steps, "library", lambda: None)
    assert not numba_steps.applies(state, 64)
