"""Numba kernels for whole sequences compared with the plain loop in double precision, including gradients."""

from typing import Any

import pytest
import torch
from tests.nn.run_layer import run
from tests.standard import STANDARD_CELLS

from seqloom.accel.recurrence import numba_steps, sequences
from seqloom.accel.recurrence.steps import steps_name
from seqloom.nn.cells import CELLS
from seqloom.nn.recurrent import Recurrent

pytestmark = pytest.mark.skipif(numba_steps.library() is None, reason="needs numba, MKL and GNU OpenMP")
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in STANDARD_CELLS} | {
    f"elman-{g}": ("elman", {"activation": g}) for g in ("relu", "sigmoid")
}


@pytest.fixture(autouse=True)
def small_sequences(monkeypatch):
    """Use the kernels for small sequences."""
    monkeypatch.setattr(numba_steps, "MIN_STATE_ELEMENTS", 0)
    monkeypatch.setattr(numba_steps, "MIN_ROWS_PER_THREAD", 1)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recurrent(name, inputs, hidden):
    torch.manual_seed(0)
    kind, options = VARIANTS[name]
    return Recurrent(CELLS[kind](inputs, hidden, **options))


def make_state(layer, rows):
    return {name: torch.randn(rows, layer.cell.hidden) for name in layer.cell.state_names}


def results_and_gradients(layer, x, state, mask, fused):
    """Return outputs, last state and all gradients."""
    dtype = layer.cell.weight_h.dtype
    x, state = x.to(dtype).requires_grad_(), {name: leaf.to(dtype).requires_grad_() for name, leaf in state.items()}
    outputs, last = sequences.run(layer.cell, x, state, mask) if fused else run(layer, x, state, mask, fused=False)
    torch.manual_seed(7)
    loss = sum(
        (tensor * torch.randn(tensor.shape, dtype=torch.float64).to(dtype)).sum()
        for tensor in (outputs, *last.values())
    )
    named = {"x": x, **{f"first {name}": leaf for name, leaf in state.items()}, **dict(layer.named_parameters())}
    gradients = torch.autograd.grad(loss, list(named.values()))
    results = {"outputs": outputs, **last, **dict(zip(named, gradients, strict=True))}
    return {key: tensor.detach() for key, tensor in results.items()}


def difference(name, rows, steps, inputs, hidden, masked):
    """Return the largest relative difference between the kernels and the plain loop in double precision."""
    layer = recurrent(name, inputs, hidden)
    x, state = torch.randn(rows, steps, inputs), make_state(layer, rows)
    mask = torch.rand(rows, steps) < 0.6 if masked else None
    name = steps_name(layer.cell)
    assert name is not None and sequences.select_steps(name, x, state["h"]) is numba_steps.STEPS[name]
    actual = results_and_gradients(layer, x, state, mask, True)
    expected = results_and_gradients(layer.double(), x, state, mask, False)
    return max(float((actual[key] - tensor).abs().max() / tensor.abs().max()) for key, tensor in expected.items())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_numba_kernels_match_plain_loop(name, masked):
    for rows, steps, inputs, hidden in ((7, 19, 3, 5), (4, 20, 24, 33), (2, 16, 8, 8)):
        assert difference(name, rows, steps, inputs, hidden, masked) < 2e-6


@pytest.mark.parametrize("name", VARIANTS)
def test_odd_sizes_give_the_same_results(name):
    for rows, steps, inputs, hidden in ((1, 21, 5, 7), (3, 1, 4, 13), (33, 5, 9, 21), (1, 1, 3, 3)):
        assert difference(name, rows, steps, inputs, hidden, False) < 2e-6


@pytest.mark.parametrize("name", VARIANTS)
def test_products_in_several_blocks_give_the_same_results(name):
    """Rows and columns exceed one block, forward and backward, and the last block is partial."""
    assert difference(name, 13, 11, 259, 261, False) < 2e-6


@pytest.mark.parametrize("name", VARIANTS)
def test_rows_are_split_among_threads(name):
    torch.set_num_threads(2)
    assert difference(name, 7, 16, 6, 12, True) < 2e-6  # 3 rows and 4 rows


@pytest.mark.parametrize("name", VARIANTS)
def test_more_threads_than_rows_give_the_same_results(name, monkeypatch):
    monkeypatch.setattr(numba_steps, "MIN_ROWS_PER_THREAD", 0)
    torch.set_num_threads(3)
    assert difference(name, 2, 16, 6, 12, True) < 2e-6


@pytest.mark.parametrize("name", VARIANTS)
def test_results_do_not_depend_on_memory_layout(name):
    layer, x = recurrent(name, 8, 8), torch.randn(4, 20, 8)
    state, dy = make_state(layer, 4), torch.randn(4, 20, 8)

    def gradients(x, dy):
        x = x.detach().requires_grad_()
        outputs = sequences.run(layer.cell, x, state)[0]
        return torch.autograd.grad(outputs, [x, *layer.parameters()], dy)

    batch_major = gradients(x, dy)
    time_major = gradients(*(first.transpose(0, 1).contiguous().transpose(0, 1) for first in (x, dy)))
    assert all(torch.equal(first, second) for first, second in zip(batch_major, time_major, strict=True))


@pytest.mark.parametrize("name", VARIANTS)
def test_overwritten_outputs_give_no_wrong_gradient(name):
    layer, x = recurrent(name, 8, 8), torch.randn(4, 20, 8, requires_grad=True)
    state = make_state(layer, 4)
    (expected,) = torch.autograd.grad((2 * sequences.run(layer.cell, x, state)[0]).sum(), x)
    try:
        (actual,) = torch.autograd.grad(sequences.run(layer.cell, x, state)[0].mul_(2).sum(), x)
    except RuntimeError:
        return  # the backward pass needs the outputs, so torch reports the change
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("name", VARIANTS)
def test_missing_transpose_is_detected(name, monkeypatch):
    monkeypatch.setattr(numba_steps, "transpose", lambda weight: weight.contiguous())
    assert difference(name, 4, 20, 8, 8, False) > 1e-3


@pytest.mark.parametrize("name", sorted(set(VARIANTS) - {"elman", "elman-relu", "elman-sigmoid"}))
def test_unsaturated_gate_is_detected(name, monkeypatch):
    monkeypatch.setattr(numba_steps, "SATURATED", 3.0)
    assert difference(name, 4, 20, 8, 8, True) > 1e-3


@pytest.mark.parametrize("name", VARIANTS)
def test_nan_is_propagated(name):
    """The training loop must be able to detect NaN."""
    layer, x = recurrent(name, 3, 16), torch.randn(4, 20, 3)
    x[1, 3, 0] = torch.nan
    outputs = results_and_gradients(layer, x, make_state(layer, 4), None, True)["outputs"]
    assert outputs[1, 3:].isnan().all() and outputs[[0, 2, 3]].isfinite().all() and outputs[1, :3].isfinite().all()


@pytest.mark.parametrize("name", VARIANTS)
def test_outputs_for_large_inputs_are_close_to_double_precision(name):
    layer = recurrent(name, 3, 16)
    x, state = torch.randn(4, 20, 3) * (1 if name == "elman-relu" else 1000), make_state(layer, 4)
    actual, expected = (
        results_and_gradients(layer, x, state, None, True),
        results_and_gradients(layer.double(), x, state, None, False),
    )
    assert torch.allclose(actual["outputs"].double(), expected["outputs"], atol=1e-3)


@pytest.mark.parametrize("name", VARIANTS)
def test_padding_keeps_the_state_exactly(name):
    layer, x = recurrent(name, 3, 16), torch.randn(4, 20, 3)
    state, mask = make_state(layer, 4), torch.ones(4, 20, dtype=torch.bool)
    state["h"][1, :8] = 0
    mask[1] = False
    results = results_and_gradients(layer, x, state, mask, True)
    assert all(torch.equal(results[key][1], leaf[1]) for key, leaf in state.items())
    assert not results["outputs"][1].any() and results["outputs"][0].any()


@pytest.mark.parametrize("name", VARIANTS)
def test_results_are_deterministic(name):
    layer, x = recurrent(name, 16, 16), torch.randn(6, 20, 16)
    state = make_state(layer, 6)
    first, second = (results_and_gradients(layer, x, state, None, True) for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_kernels_are_used_only_where_they_are_faster(monkeypatch):
    monkeypatch.undo()
    state, threads = torch.randn(16 * torch.get_num_threads(), 256), torch.get_num_threads()
    assert numba_steps.applies(state, 64)
    assert not numba_steps.applies(state, 4) and not numba_steps.applies(state.double(), 64)
    assert not numba_steps.applies(state[: 2 * threads - 1], 1000)
    with torch.no_grad():
        assert not numba_steps.applies(state, 64)
    monkeypatch.setattr(numba_steps, "library", lambda: None)
    assert not numba_steps.applies(state, 64)
