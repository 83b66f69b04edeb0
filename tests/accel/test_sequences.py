"""Whole sequences on the CPU compared with the plain loop, including gradients, for all cells."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nn.run_layer import run
from tests.standard import STANDARD_CELLS

from seqloom.accel.recurrence import sequences, steps
from seqloom.accel.recurrence import torch_kernels as kernels
from seqloom.core.operations import Implementation
from seqloom.nn.cells import CELLS
from seqloom.nn.recurrent import Recurrent, Stack, run_cell

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in STANDARD_CELLS} | {
    f"elman-{g}": ("elman", {"activation": g}) for g in ("relu", "sigmoid")
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def recurrent(name, inputs=3, hidden=5, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    kind, options = VARIANTS[name]
    return Recurrent(CELLS[kind](inputs, hidden, **options)).to(dtype)


def make_inputs(layer, batch, steps):
    """Return inputs and an initial state that require gradients."""
    dtype = layer.cell.weight_h.dtype
    x = torch.randn(batch, steps, layer.cell.inputs, dtype=dtype, requires_grad=True)
    shape = batch, layer.cell.hidden
    return x, {name: torch.randn(shape, dtype=dtype, requires_grad=True) for name in layer.cell.state_names}


def make_mask(batch, steps):
    return torch.rand(batch, steps) < 0.6


def run_whole(layer, x, state, mask=None):
    return sequences.run(layer.cell, x, state, mask)


def run_plain(layer, x, state, mask=None):
    return run(layer, x, state, mask, fused=False)


def results_and_gradients(implementation, layer, x, state, mask=None):
    """Return outputs, last state and all gradients of a loss that depends on both."""
    outputs, last = implementation(layer, x, state, mask)
    torch.manual_seed(7)
    loss = sum((leaf * torch.randn(leaf.shape, dtype=leaf.dtype)).sum() for leaf in [outputs, *last.values()])
    named = {"x": x, **{f"first {name}": leaf for name, leaf in state.items()}, **dict(layer.named_parameters())}
    gradients = torch.autograd.grad(loss, list(named.values()))
    results = {"outputs": outputs, **{f"last {name}": leaf for name, leaf in last.items()}}
    return {**results, **{f"d {name}": gradient for name, gradient in zip(named, gradients, strict=True)}}


def assert_close_all(actual, expected):
    for name, tensor in expected.items():
        tolerance = TOLERANCE[tensor.dtype]
        assert torch.allclose(actual[name], tensor, atol=tolerance, rtol=tolerance), (
            f"{name}: {actual[name]} instead of {tensor}"
        )


def test_every_cell_has_steps():
    assert {steps.steps_name(recurrent(name).cell) for name in VARIANTS} == set(steps.STEPS)


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(sorted(VARIANTS)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    batch=st.integers(1, 5),
    steps=st.integers(1, 9),
    inputs=st.integers(1, 6),
    hidden=st.integers(1, 6),
    masked=st.booleans(),
    seed=st.integers(0, 99),
)
def test_sequence_kernel_matches_plain_loop_with_gradients(name, dtype, batch, steps, inputs, hidden, masked, seed):
    layer = recurrent(name, inputs, hidden, dtype, seed)
    x, state = make_inputs(layer, batch, steps)
    mask = make_mask(batch, steps) if masked else None
    assert_close_all(
        results_and_gradients(run_whole, layer, x, state, mask), results_and_gradients(run_plain, layer, x, state, mask)
    )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_sequence_kernel_matches_plain_loop_for_realistic_sizes(name, masked):
    layer = recurrent(name, 48, 64, torch.float32)
    x, state = make_inputs(layer, 8, 30)
    mask = make_mask(8, 30) if masked else None
    actual, expected = (
        results_and_gradients(run_whole, layer, x, state, mask),
        results_and_gradients(run_plain, layer, x, state, mask),
    )
    # Differences are relative to the maximum, because the results are sums of many terms
    for results in actual, expected:
        results.update({key: value / value.abs().max() for key, value in results.items() if key.startswith("d ")})
    assert_close_all(actual, expected)


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_match_finite_differences(name):
    layer = recurrent(name, 2, 3)
    x, state = make_inputs(layer, 2, 3)
    mask = torch.tensor([[True, True, False], [False, True, True]])
    names = [key for key, _ in layer.named_parameters()]

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = layer.cell

        def forward(self, x, first):
            return sequences.run(self.cell, x, first, mask)

    def function(x, *rest):
        first, weights = dict(zip(state, rest, strict=False)), dict(zip(names, rest[len(state) :], strict=True))
        outputs, last = torch.func.functional_call(Whole(), weights, (x, first))
        return outputs, *last.values()

    assert torch.autograd.gradcheck(function, (x, *state.values(), *layer.parameters()))


def without_slope(d, y, *rest, grad_input):
    return grad_input.copy_(d)


WRONG_TERMS: dict[str, tuple[str, Any, set[str]]] = {  # attribute, wrong replacement, and cells that it does not affect
    "tanh without −1": (
        "tanh_of_doubled",
        lambda doubled, out: torch.sigmoid(doubled, out=out).mul_(2),
        {"elman-relu", "elman-sigmoid"},
    ),
    "tanh without slope": ("_tanh_backward", without_slope, {"elman-relu", "elman-sigmoid"}),
    "σ without slope": ("_sigmoid_backward", without_slope, {"elman", "elman-relu"}),
    "ReLU without slope": ("_relu_backward", without_slope, set(VARIANTS) - {"elman-relu"}),
    "no initial state": ("previous_states", lambda first, steps: [0 * first, *steps.unbind()][:-1], set()),
    "dW_h without the first step": (
        "recurrent_dw",
        lambda d, first, steps: d[1:].flatten(0, 1).t() @ steps[:-1].flatten(0, 1),
        set(),
    ),
    "gate not saturated": ("SATURATED", 3.0, {"elman", "elman-relu", "elman-sigmoid"}),
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("wrong_term", WRONG_TERMS)
def test_wrong_terms_are_detected(monkeypatch, wrong_term, name):
    """Control: the comparison fails if a term is wrong."""
    attribute, replacement, unaffected = WRONG_TERMS[wrong_term]
    monkeypatch.setattr(steps, attribute, replacement)
    layer = recurrent(name)
    x, state = make_inputs(layer, 4, 7)
    mask = make_mask(4, 7)
    expected = results_and_gradients(run_plain, layer, x, state, mask)
    with nullcontext() if name in unaffected else pytest.raises(AssertionError):
        assert_close_all(results_and_gradients(run_whole, layer, x, state, mask), expected)


@pytest.mark.parametrize("name", VARIANTS)
def test_chunks_with_carried_state_give_the_same_results_as_the_full_sequence(name):
    layer = recurrent(name)
    x, state = make_inputs(layer, 3, 9)

    def in_chunks(layer, x, state, mask):
        outputs = []
        for chunk in x.split([4, 1, 4], dim=1):
            chunk_outputs, state = run_whole(layer, chunk, state)
            outputs.append(chunk_outputs)
        return torch.cat(outputs, dim=1), state

    assert_close_all(
        results_and_gradients(in_chunks, layer, x, state), results_and_gradients(run_plain, layer, x, state)
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_results_do_not_depend_on_memory_layout(name):
    layer = recurrent(name, 4, 4)
    x, state = make_inputs(layer, 4, 6)
    state = {key: leaf.detach().t().requires_grad_() for key, leaf in state.items()}
    transposed = x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    assert_close_all(
        results_and_gradients(run_whole, layer, transposed, state), results_and_gradients(run_plain, layer, x, state)
    )
    wide = torch.zeros(4, 1, 4, dtype=torch.float64).requires_grad_()

    def expand_inputs(implementation):
        return lambda layer, x, state, mask: implementation(layer, x.expand(4, 6, 4), state, mask)

    assert_close_all(
        results_and_gradients(expand_inputs(run_whole), layer, wide, state),
        results_and_gradients(expand_inputs(run_plain), layer, wide, state),
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_computed_weights_receive_gradients(name):
    """As with weight dropout, the gradient flows to the original weights."""
    layer, results = recurrent(name), []
    layer.weight_dropout = 0.4
    x, _ = make_inputs(layer, 4, 20)
    for fused in (True, False):
        torch.manual_seed(3)
        outputs, _ = run(layer, x, fused=fused)
        results.append({"outputs": outputs, "d": torch.autograd.grad(outputs.square().sum(), layer.cell.weight_h)[0]})
    assert_close_all(*results)
    assert (results[0]["d"] == 0).double().mean() > 0.2


@pytest.mark.parametrize("name", VARIANTS)
def test_results_do_not_depend_on_the_content_of_padding(name):
    layer = recurrent(name)
    x, state = make_inputs(layer, 3, 6)
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [0, 1, 0, 1, 1, 1], [0] * 6], dtype=torch.bool)
    clean = results_and_gradients(run_whole, layer, x, state, mask)
    x = x.detach().masked_fill(~mask.unsqueeze(2), torch.nan).requires_grad_()
    assert_close_all(results_and_gradients(run_whole, layer, x, state, mask), clean)
    assert not clean["outputs"][~mask].any() and not clean["d x"][~mask].any()
    assert torch.equal(clean["last h"][2], state["h"][2])


@pytest.mark.parametrize("name", VARIANTS)
def test_only_required_gradients_are_computed(name):
    layer = recurrent(name).requires_grad_(False)
    x, state = make_inputs(layer, 2, 5)
    outputs, last = run_whole(layer, x.detach(), {key: leaf.detach() for key, leaf in state.items()})
    assert not outputs.requires_grad and not last["h"].requires_grad
    outputs, _ = run_whole(layer, x, {key: leaf.detach() for key, leaf in state.items()})
    expected, _ = run_plain(layer, x, state)
    assert_close_all(*({"d x": torch.autograd.grad(y.sum(), x)[0]} for y in (outputs, expected)))
    layer.cell.weight_h.requires_grad_()
    outputs, _ = run_whole(layer, x.detach(), state)
    outputs.sum().backward()
    assert layer.cell.weight_x.grad is None and layer.cell.weight_h.grad.any() and x.grad is None


@pytest.mark.parametrize("name", VARIANTS)
def test_inference_saves_no_tensors(name, monkeypatch):
    layer = recurrent(name)
    x, state = make_inputs(layer, 3, 20)
    expected, expected_state = run_plain(layer, x, state)
    monkeypatch.setattr(sequences.WholeSequence, "apply", None)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            outputs, last = run_whole(layer, x, state)
        assert_close_all({"outputs": outputs, **last}, {"outputs": expected, **expected_state})
        assert outputs.grad_fn is None and outputs.untyped_storage().nbytes() == outputs.nbytes
        assert last["h"].untyped_storage().nbytes() == last["h"].nbytes


@pytest.mark.parametrize("name", VARIANTS)
def test_backward_pass_can_be_repeated_but_not_differentiated(name):
    layer = recurrent(name)
    x, state = make_inputs(layer, 3, 6)
    outputs, _ = run_whole(layer, x, state)
    loss = outputs.square().sum()
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    for tensor in (x, layer.cell.weight_h):
        with pytest.raises(RuntimeError, match="cannot be differentiated again"):
            torch.autograd.grad(loss, tensor, create_graph=True, retain_graph=True)


def test_overwritten_outputs_raise_an_error():
    layer = recurrent("gru")
    outputs, _ = run_whole(layer, *make_inputs(layer, 3, 6))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.mul_(2).sum().backward()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_output_strides_match_those_of_other_implementations(name, masked):
    """Dropout is drawn in memory order. Equal results for a random seed therefore require equal strides."""
    layer = recurrent(name)
    x, state = make_inputs(layer, 3, 20)
    mask = make_mask(3, 20) if masked else None
    other = (
        kernels.run(layer.cell, x, state, mask) if kernels.kernel_name(layer.cell) else run_plain(layer, x, state, mask)
    )
    assert run_whole(layer, x, state, mask)[0].stride() == other[0].stride()


# --- selection --------------------------------------------------------------------------------------------------------


def record_uses(monkeypatch):
    used = []

    def record(cell, *arguments):
        used.append(steps.steps_name(cell))
        return sequences.run(cell, *arguments)

    monkeypatch.setattr(run_cell, "implementations", [Implementation(sequences.applies, record)])
    return used


def test_kernel_is_used_only_where_it_is_faster(monkeypatch):
    used = record_uses(monkeypatch)
    mask = torch.ones(2, 16, dtype=torch.bool)
    padded = mask.clone()
    padded[0, 9:] = False
    for name in VARIANTS:
        layer = recurrent(name, dtype=torch.float32)
        x = torch.randn(2, 16, 3)
        run(layer, x, fused=False)
        layer(x[:, :3])
        layer(x[:, :0])
        layer(x[:0])
        assert used == []
        layer(x[:, :4])
        has_torch_kernel = name in ("elman", "elman-relu", "lstm", "gru")
        assert used == ([] if has_torch_kernel else [steps.steps_name(layer.cell)])
        used.clear()
        layer(x)
        layer(x, mask=mask)
        assert used == (
            [] if name == "lstm" and torch.backends.mkldnn.is_available() else [steps.steps_name(layer.cell)] * 2
        )
        used.clear()
        layer(x, mask=padded)
        assert used == [steps.steps_name(layer.cell)]
        used.clear()


@pytest.mark.parametrize("name", VARIANTS)
def test_autocast_uses_plain_loop(name, monkeypatch):
    used = record_uses(monkeypatch)
    layer = recurrent(name, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, _ = layer(torch.randn(2, 16, 3))
    assert used == [] and outputs.isfinite().all()


@pytest.mark.parametrize("name", VARIANTS)
def test_results_are_deterministic(name):
    layer = recurrent(name, 16, 16, torch.float32)
    x, state = make_inputs(layer, 4, 20)
    mask = make_mask(4, 20)
    first, second = (results_and_gradients(run_whole, layer, x, state, mask) for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_fused_highway_stack_with_padding_matches_plain_loop():
    torch.manual_seed(0)
    stack = Stack([CELLS["mut1"](3, 5), CELLS["gru-cho"](5, 5), CELLS["gru"](5, 5)], connections="highway").double()
    x, mask = torch.randn(4, 20, 3, dtype=torch.float64, requires_grad=True), make_mask(4, 20)
    results = []
    for fused in (True, False):
        outputs, state = run(stack, x, None, mask, fused=fused)
        gradients = torch.autograd.grad(outputs.square().sum(), [x, *stack.parameters()], allow_unused=True)
        results.append(
            {"outputs": outputs, "h": state[0]["h"], **{str(i): gradient for i, gradient in enumerate(gradients)}}
        )
    assert_close_all(*results)
