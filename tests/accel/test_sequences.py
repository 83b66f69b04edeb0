"""Whole sequences on the CPU: equal to the plain loop, gradients included, over the whole registry of cells."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nn.running import run
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


def some(layer, rows, steps):
    """Inputs and a state to begin with, both to be differentiated."""
    dtype = layer.cell.weight_h.dtype
    x = torch.randn(rows, steps, layer.cell.inputs, dtype=dtype, requires_grad=True)
    shape = rows, layer.cell.hidden
    return x, {name: torch.randn(shape, dtype=dtype, requires_grad=True) for name in layer.cell.state_names}


def some_mask(rows, steps):
    return torch.rand(rows, steps) < 0.6


def whole(layer, x, state, mask=None):
    return sequences.run(layer.cell, x, state, mask)


def plain(layer, x, state, mask=None):
    return run(layer, x, state, mask, fused=False)


def everything(way, layer, x, state, mask=None):
    """Outputs, the last state, and the gradients of all there is, of a loss that all of them take part in."""
    outputs, last = way(layer, x, state, mask)
    torch.manual_seed(7)
    loss = sum((leaf * torch.randn(leaf.shape, dtype=leaf.dtype)).sum() for leaf in [outputs, *last.values()])
    named = {"x": x, **{f"first {name}": leaf for name, leaf in state.items()}, **dict(layer.named_parameters())}
    gradients = torch.autograd.grad(loss, list(named.values()))
    results = {"outputs": outputs, **{f"last {name}": leaf for name, leaf in last.items()}}
    return {**results, **{f"d {name}": one for name, one in zip(named, gradients, strict=True)}}


def equal(actual, wanted):
    for name, one in wanted.items():
        near = TOLERANCE[one.dtype]
        assert torch.allclose(actual[name], one, atol=near, rtol=near), f"{name}: {actual[name]} instead of {one}"


def test_every_cell_has_its_steps():
    assert {steps.steps_name(recurrent(name).cell) for name in VARIANTS} == set(steps.STEPS)


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(sorted(VARIANTS)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    rows=st.integers(1, 5),
    steps=st.integers(1, 9),
    inputs=st.integers(1, 6),
    hidden=st.integers(1, 6),
    masked=st.booleans(),
    seed=st.integers(0, 99),
)
def test_whole_equals_plain_gradients_included(name, dtype, rows, steps, inputs, hidden, masked, seed):
    layer = recurrent(name, inputs, hidden, dtype, seed)
    x, state = some(layer, rows, steps)
    mask = some_mask(rows, steps) if masked else None
    equal(everything(whole, layer, x, state, mask), everything(plain, layer, x, state, mask))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_at_the_size_of_a_model(name, masked):
    layer = recurrent(name, 48, 64, torch.float32)
    x, state = some(layer, 8, 30)
    mask = some_mask(8, 30) if masked else None
    got, wanted = everything(whole, layer, x, state, mask), everything(plain, layer, x, state, mask)
    for one in got, wanted:  # sums of many terms: compared by their size
        one.update({key: value / value.abs().max() for key, value in one.items() if key.startswith("d ")})
    equal(got, wanted)


@pytest.mark.parametrize("name", VARIANTS)
def test_gradcheck_parameters_included(name):
    layer = recurrent(name, 2, 3)
    x, state = some(layer, 2, 3)
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


def no_slope(d, y, *rest, grad_input):
    return grad_input.copy_(d)


BREAKS: dict[
    str, tuple[str, Any, set[str]]
] = {  # what is put in the place of what, and the cells that have no such term
    "tanh without its −1": (
        "tanh_of_doubled",
        lambda doubled, out: torch.sigmoid(doubled, out=out).mul_(2),
        {"elman-relu", "elman-sigmoid"},
    ),
    "no slope of tanh": ("_tanh_backward", no_slope, {"elman-relu", "elman-sigmoid"}),
    "no slope of σ": ("_sigmoid_backward", no_slope, {"elman", "elman-relu"}),
    "no slope of ReLU": ("_relu_backward", no_slope, set(VARIANTS) - {"elman-relu"}),
    "the first step forgotten": ("previous_states", lambda first, steps: [0 * first, *steps.unbind()][:-1], set()),
    "dW_h of all steps but the first": (
        "recurrent_weight_gradient",
        lambda d, first, steps: d[1:].flatten(0, 1).t() @ steps[:-1].flatten(0, 1),
        set(),
    ),
    "a gate that only nearly keeps": ("SATURATED", 3.0, {"elman", "elman-relu", "elman-sigmoid"}),
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_term_is_noticed(monkeypatch, broken, name):
    """The tests above would see it if one of these were wrong."""
    attribute, replacement, without = BREAKS[broken]
    monkeypatch.setattr(steps, attribute, replacement)
    layer = recurrent(name)
    x, state = some(layer, 4, 7)
    mask = some_mask(4, 7)
    wanted = everything(plain, layer, x, state, mask)
    with nullcontext() if name in without else pytest.raises(AssertionError):
        equal(everything(whole, layer, x, state, mask), wanted)


@pytest.mark.parametrize("name", VARIANTS)
def test_chunks_that_carry_their_state_are_the_whole_gradients_included(name):
    layer = recurrent(name)
    x, state = some(layer, 3, 9)

    def in_chunks(layer, x, state, mask):
        pieces = []
        for chunk in x.split([4, 1, 4], dim=1):
            piece, state = whole(layer, chunk, state)
            pieces.append(piece)
        return torch.cat(pieces, dim=1), state

    equal(everything(in_chunks, layer, x, state), everything(plain, layer, x, state))


@pytest.mark.parametrize("name", VARIANTS)
def test_inputs_in_any_layout(name):
    layer = recurrent(name, 4, 4)
    x, state = some(layer, 4, 6)
    state = {key: leaf.detach().t().requires_grad_() for key, leaf in state.items()}
    turned = x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    equal(everything(whole, layer, turned, state), everything(plain, layer, x, state))
    wide = torch.zeros(4, 1, 4, dtype=torch.float64).requires_grad_()

    def spread(way):
        return lambda layer, x, state, mask: way(layer, x.expand(4, 6, 4), state, mask)

    equal(everything(spread(whole), layer, wide, state), everything(spread(plain), layer, wide, state))


@pytest.mark.parametrize("name", VARIANTS)
def test_weights_that_were_computed(name):
    """As weight dropout makes them; the gradient goes on to what they were computed from."""
    layer, drawn = recurrent(name), []
    layer.weight_dropout = 0.4
    x, _ = some(layer, 4, 20)
    for fused in (True, False):
        torch.manual_seed(3)
        outputs, _ = run(layer, x, fused=fused)
        drawn.append({"outputs": outputs, "d": torch.autograd.grad(outputs.square().sum(), layer.cell.weight_h)[0]})
    equal(*drawn)
    assert (drawn[0]["d"] == 0).double().mean() > 0.2


@pytest.mark.parametrize("name", VARIANTS)
def test_padding_may_hold_anything(name):
    layer = recurrent(name)
    x, state = some(layer, 3, 6)
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [0, 1, 0, 1, 1, 1], [0] * 6], dtype=torch.bool)
    clean = everything(whole, layer, x, state, mask)
    x = x.detach().masked_fill(~mask.unsqueeze(2), torch.nan).requires_grad_()
    equal(everything(whole, layer, x, state, mask), clean)
    assert not clean["outputs"][~mask].any() and not clean["d x"][~mask].any()
    assert torch.equal(clean["last h"][2], state["h"][2])


@pytest.mark.parametrize("name", VARIANTS)
def test_only_what_is_asked_for_has_a_gradient(name):
    layer = recurrent(name).requires_grad_(False)
    x, state = some(layer, 2, 5)
    outputs, last = whole(layer, x.detach(), {key: leaf.detach() for key, leaf in state.items()})
    assert not outputs.requires_grad and not last["h"].requires_grad
    outputs, _ = whole(layer, x, {key: leaf.detach() for key, leaf in state.items()})
    wanted, _ = plain(layer, x, state)
    equal(*({"d x": torch.autograd.grad(y.sum(), x)[0]} for y in (outputs, wanted)))
    layer.cell.weight_h.requires_grad_()
    outputs, _ = whole(layer, x.detach(), state)
    outputs.sum().backward()
    assert layer.cell.weight_x.grad is None and layer.cell.weight_h.grad.any() and x.grad is None


@pytest.mark.parametrize("name", VARIANTS)
def test_without_gradients_nothing_is_kept(name, monkeypatch):
    layer = recurrent(name)
    x, state = some(layer, 3, 20)
    wanted, after = plain(layer, x, state)
    monkeypatch.setattr(sequences.WholeSequence, "apply", None)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            outputs, last = whole(layer, x, state)
        equal({"outputs": outputs, **last}, {"outputs": wanted, **after})
        assert outputs.grad_fn is None and outputs.untyped_storage().nbytes() == outputs.nbytes
        assert last["h"].untyped_storage().nbytes() == last["h"].nbytes


@pytest.mark.parametrize("name", VARIANTS)
def test_backwards_twice_is_the_same_and_twice_differentiable_it_is_not(name):
    layer = recurrent(name)
    x, state = some(layer, 3, 6)
    outputs, _ = whole(layer, x, state)
    loss = outputs.square().sum()
    once, again = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(once, again)
    for wanted in (x, layer.cell.weight_h):
        with pytest.raises(RuntimeError, match="cannot be differentiated again"):
            torch.autograd.grad(loss, wanted, create_graph=True, retain_graph=True)


def test_outputs_written_over_are_noticed():
    layer = recurrent("gru")
    outputs, _ = whole(layer, *some(layer, 3, 6))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.mul_(2).sum().backward()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_memory_is_laid_out_as_without_it(name, masked):
    """Dropout above draws in the order of memory; a seed shall mean the same draws."""
    layer = recurrent(name)
    x, state = some(layer, 3, 20)
    mask = some_mask(3, 20) if masked else None
    other = kernels.run(layer.cell, x, state, mask) if kernels.kernel_name(layer.cell) else plain(layer, x, state, mask)
    assert whole(layer, x, state, mask)[0].stride() == other[0].stride()


# Where it is used.


def watched(monkeypatch):
    used = []

    def watch(cell, *arguments):
        used.append(steps.steps_name(cell))
        return sequences.run(cell, *arguments)

    monkeypatch.setattr(run_cell, "implementations", [Implementation(sequences.applies, watch)])
    return used


def test_used_where_it_pays(monkeypatch):
    used = watched(monkeypatch)
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
        beside = name in ("elman", "elman-relu", "lstm", "gru")
        assert used == ([] if beside else [steps.steps_name(layer.cell)])
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
def test_under_autocast_the_plain_loop_runs(name, monkeypatch):
    used = watched(monkeypatch)
    layer = recurrent(name, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, _ = layer(torch.randn(2, 16, 3))
    assert used == [] and outputs.isfinite().all()


@pytest.mark.parametrize("name", VARIANTS)
def test_the_same_twice_to_the_last_bit(name):
    layer = recurrent(name, 16, 16, torch.float32)
    x, state = some(layer, 4, 20)
    mask = some_mask(4, 20)
    first, second = (everything(whole, layer, x, state, mask) for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_in_a_stack_with_everything_around():
    torch.manual_seed(0)
    stack = Stack([CELLS["mut1"](3, 5), CELLS["gru-cho"](5, 5), CELLS["gru"](5, 5)], connections="highway").double()
    x, mask = torch.randn(4, 20, 3, dtype=torch.float64, requires_grad=True), some_mask(4, 20)
    results = []
    for fused in (True, False):
        outputs, state = run(stack, x, None, mask, fused=fused)
        gradients = torch.autograd.grad(outputs.square().sum(), [x, *stack.parameters()], allow_unused=True)
        results.append({"outputs": outputs, "h": state[0]["h"], **{str(i): one for i, one in enumerate(gradients)}})
    equal(*results)
