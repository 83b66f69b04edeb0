"""`Recurrent` and `Stack` with every cell: plain loop, fused kernels, masks, and comparison with torch layers."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nn.run_layer import run
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seqloom.accel.recurrence import torch_kernels as kernels
from seqloom.core.tree import leaves
from seqloom.nn.cells import CELLS
from seqloom.nn.recurrent import Recurrent, Stack

B, T, D, H = 4, 7, 3, 5
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in CELLS} | {
    f"elman-{g}": ("elman", {"activation": g}) for g in ("relu", "sigmoid")
}
FUSED = ["elman", "elman-relu", "lstm", "gru"]
TORCH_LAYERS: dict[str, Any] = {
    "elman": nn.RNN,
    "elman-relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
    "lstm": nn.LSTM,
    "gru": nn.GRU,
}
MASKS = {
    "right": [[1] * 7, [1] * 3 + [0] * 4, [1] + [0] * 6, [1] * 5 + [0] * 2],
    "left": [[0] * 2 + [1] * 5, [1] * 7, [0] * 6 + [1], [0] * 3 + [1] * 4],
    "middle": [[1, 0, 1, 0, 0, 1, 1], [0, 1, 1, 1, 0, 0, 0], [1] * 7, [1, 1, 0, 1, 1, 1, 0]],
    "empty rows": [[0] * 7, [1] * 3 + [0] * 4, [0] * 7, [1] * 7],
    "nothing": [[0] * 7] * 4,
    "everything": [[1] * 7] * 4,
}


def exactly(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def cells(name, *sizes):
    kind, options = VARIANTS[name]
    return [CELLS[kind](inputs, hidden, **options).double() for inputs, hidden in sizes]


def recurrent(name, seed=0):
    torch.manual_seed(seed)
    return Recurrent(*cells(name, (D, H)))


def some_state(layer, rows=B):
    return {name: double(rows, H).requires_grad_() for name in layer.cell.state_names}


def as_mask(name):
    return torch.tensor(MASKS[name], dtype=torch.bool)


def gradients(outputs, state, inputs, parameters):
    """Return the gradients of a loss that depends on every output and every tensor of the state."""
    torch.manual_seed(99)
    loss = sum((leaf * double(*leaf.shape)).sum() for leaf in [outputs, *leaves(state)])
    return torch.autograd.grad(loss, [*inputs, *parameters], allow_unused=True, materialize_grads=True)


@pytest.fixture(params=VARIANTS)
def layer(request):
    return recurrent(request.param)


# Plain loop and fused kernels.


@pytest.mark.parametrize("mask", [None, *MASKS])
@pytest.mark.parametrize("name", FUSED)
def test_fused_kernel_matches_plain_loop(name, mask):
    layer = recurrent(name)
    x, state = double(B, T, D).requires_grad_(), some_state(layer)
    mask = None if mask is None else as_mask(mask)
    assert kernels.applies(layer.cell, x, state, mask)
    inputs = [x, *state.values()]
    plain, after_plain = run(layer, x, state, mask, fused=False)
    fast, after_fast = layer(x, state, mask)
    exactly(fast, plain)
    exactly(after_fast, after_plain)
    expected = gradients(plain, after_plain, inputs, layer.parameters())
    exactly(gradients(fast, after_fast, inputs, layer.parameters()), expected)


def test_kernels_are_used_where_they_apply(monkeypatch):
    used = []

    def record_calls(kernel, function):
        def call(*arguments):
            used.append(kernel)
            return function(*arguments)

        return call

    for kernel, function in kernels.KERNELS.items():
        monkeypatch.setitem(kernels.KERNELS, kernel, record_calls(kernel, function))
    for name in VARIANTS:
        recurrent(name)(double(B, T, D))
        run(recurrent(name), double(B, T, D), fused=False)
        recurrent(name)(double(B, 1, D))
    assert used == ["rnn_tanh", "lstm", "gru", "rnn_relu"]


def test_fused_backward_works_in_evaluation_mode():
    layer = recurrent("lstm").eval()
    layer(double(B, T, D))[0].sum().backward()
    assert layer.cell.weight_h.grad.abs().sum() > 0


# Torch layers.


def torch_layer_of(name, stack):
    """Return a torch layer with the same weights."""
    torch_layer = TORCH_LAYERS[name](stack.cells[0].inputs, H, num_layers=len(stack.cells), batch_first=True).double()
    for depth, cell in enumerate(stack.cells):
        for ours, theirs in {
            "weight_x": "weight_ih",
            "weight_h": "weight_hh",
            "bias_x": "bias_ih",
            "bias_h": "bias_hh",
        }.items():
            getattr(torch_layer, f"{theirs}_l{depth}").data.copy_(getattr(cell, ours))
    return torch_layer


def torch_parameters(torch_layer, layers):
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [getattr(torch_layer, f"{kind}_l{depth}") for depth in range(layers) for kind in kinds]


def as_torch_state(state):
    stacked = tuple(torch.stack([layer[name] for layer in state]) for name in state[0])
    return stacked if len(stacked) > 1 else stacked[0]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("lengths", [None, [7, 2, 5, 1]])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("name", TORCH_LAYERS)
def test_outputs_match_torch(name, layers, lengths, fused):
    torch.manual_seed(3)
    stack = Stack(cells(name, (D, H), *[(H, H)] * (layers - 1)))
    torch_layer = torch_layer_of(name, stack)
    x = double(B, T, D).requires_grad_()
    state = tuple(some_state(layer) for layer in stack.layers)
    mask = None if lengths is None else torch.arange(T) < torch.tensor(lengths).unsqueeze(1)
    ours, after = run(stack, x, state, mask, fused=fused)
    if lengths is None:
        theirs, last = torch_layer(x, as_torch_state(state))
    else:
        packed, last = torch_layer(pack_padded_sequence(x, lengths, True, enforce_sorted=False), as_torch_state(state))
        theirs, _ = pad_packed_sequence(packed, batch_first=True, total_length=T)
    exactly(ours, theirs)
    exactly(as_torch_state(after), last)
    inputs = [x, *leaves(state)]
    torch_last = last if isinstance(last, tuple) else (last,)
    expected = gradients(
        theirs, [leaf[d] for d in range(layers) for leaf in torch_last], inputs, torch_parameters(torch_layer, layers)
    )
    exactly(gradients(ours, after, inputs, stack.parameters()), expected)


# Properties of every cell.


def test_outputs_and_states_have_expected_shapes(layer):
    outputs, state = layer(double(B, T, D))
    assert outputs.shape == (B, T, H) and outputs.dtype == torch.float64
    assert tuple(state) == layer.cell.state_names
    assert all(leaf.shape == (B, H) for leaf in state.values())
    assert torch.equal(outputs[:, -1], state["h"])
    single = copy.deepcopy(layer).float()
    assert all(leaf.dtype == torch.float32 and not leaf.any() for leaf in single.cell.initial_state(2).values())


def test_empty_inputs_keep_the_state(layer):
    outputs, state = layer(double(B, 0, D))
    assert outputs.shape == (B, 0, H) and not any(leaf.any() for leaf in state.values())
    assert layer(double(0, T, D))[0].shape == (0, T, H)


def test_reading_in_steps_and_chunks_is_equivalent_to_reading_in_one_call(layer):
    x, first = double(B, T, D), some_state(layer)
    whole, last = layer(x, first)
    for sizes in ([1] * T, [3, 4], [2, 1, 4]):
        pieces, state = [], first
        for chunk in x.split(sizes, dim=1):
            piece, state = layer(chunk, state)
            pieces.append(piece)
        exactly(torch.cat(pieces, dim=1), whole)
        exactly(state, last)


def test_trace_matches_forward(layer):
    x, state = double(B, T, D), some_state(layer)
    trace = layer.trace(x, state)
    outputs, last = layer(x, state)
    assert set(layer.cell.gates) | set(layer.cell.state_names) <= set(trace)
    assert all(values.shape == (B, T, H) for values in trace.values())
    exactly(trace["h"], outputs)
    exactly({name: trace[name][:, -1] for name in last}, last)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("position", MASKS)
def test_masked_steps_have_no_effect(layer, position, fused):
    mask, x, state = as_mask(position), double(B, T, D), some_state(layer)
    outputs, last = run(layer, x, state, mask, fused=fused)
    assert not outputs[~mask].any()
    for row in range(B):
        alone = {name: leaf[row : row + 1] for name, leaf in state.items()}
        expected, after = run(layer, x[row : row + 1, mask[row]], alone, fused=fused)
        exactly(outputs[row : row + 1, mask[row]], expected)
        exactly({name: leaf[row : row + 1] for name, leaf in last.items()}, after)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("position", MASKS)
def test_padding_has_no_gradient(layer, position, fused):
    mask, x = as_mask(position), double(B, T, D).requires_grad_()
    outputs, last = run(layer, x, some_state(layer), mask, fused=fused)
    (gradient,) = gradients(outputs, last, [x], [])
    assert not gradient[~mask].any()
    assert position == "nothing" or gradient[mask].abs().sum() > 0


@pytest.mark.parametrize("fused", [True, False])
def test_later_steps_have_no_gradient(layer, fused):
    x = double(B, T, D).requires_grad_()
    outputs, _ = run(layer, x, fused=fused)
    (gradient,) = torch.autograd.grad(outputs[:, 3].sum(), x)
    assert not gradient[:, 4:].any()
    assert gradient[:, :4].abs().sum(dim=(0, 2)).min() > 0


@pytest.mark.parametrize("fused", [True, False])
def test_gradients_match_finite_differences(layer, fused):
    mask = torch.tensor([[True, True, False], [False, True, True]])
    x, state = double(2, 3, D).requires_grad_(), some_state(layer, rows=2)

    def function(x, *rest):
        outputs, last = run(layer, x, dict(zip(state, rest, strict=True)), mask, fused=fused)
        return outputs, *last.values()

    assert torch.autograd.gradcheck(function, (x, *state.values()), fast_mode=True)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(VARIANTS)), fused=st.booleans())
def test_single_row_gives_the_same_result_as_in_a_padded_batch(data, name, fused):
    rows, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    before, behind = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    layer = recurrent(name, data.draw(st.integers(0, 9)))
    mask = torch.tensor(
        data.draw(st.lists(st.lists(st.booleans(), min_size=steps, max_size=steps), min_size=rows, max_size=rows))
    )
    x, state = double(rows, steps, D), some_state(layer, rows)
    outputs, last = run(layer, x, state, mask, fused=fused)
    row = data.draw(st.integers(0, rows - 1))
    wide = torch.cat([double(1, before, D), x[row : row + 1], double(1, behind, D)], dim=1)
    wide_mask = nn.functional.pad(mask[row : row + 1], (before, behind))
    alone, after = run(layer, wide, {name: leaf[row : row + 1] for name, leaf in state.items()}, wide_mask, fused=fused)
    exactly(alone[:, before : before + steps], outputs[row : row + 1])
    exactly(after, {name: leaf[row : row + 1] for name, leaf in last.items()})


@pytest.mark.parametrize("name", VARIANTS)
def test_copied_and_loaded_weights_give_equal_outputs(name):
    layer, other, x = recurrent(name), recurrent(name, seed=5), double(B, T, D)
    assert not torch.equal(other(x)[0], layer(x)[0])
    other.load_state_dict(layer.state_dict())
    duplicate = copy.deepcopy(layer)
    exactly(other(x)[0], layer(x)[0])
    exactly(duplicate(x)[0], layer(x)[0])
    with torch.no_grad():
        duplicate.cell.weight_h.zero_()
    assert layer.cell.weight_h.any()


def test_wrong_shapes_are_rejected():
    layer = recurrent("lstm")
    with pytest.raises(ValueError, match=r"\(B, T, 3\); got \(4, 7, 2\)"):
        layer(double(B, T, 2))
    with pytest.raises(ValueError, match=r"state 'h' must have shape \(4, 5\); got \(1, 5\)"):
        layer(double(B, T, D), layer.cell.initial_state(1))
    with pytest.raises(ValueError, match=r"torch.bool \(4, 7\); got torch.int64 \(4, 7\)"):
        layer(double(B, T, D), None, torch.ones(B, T, dtype=torch.int64))


# Depth.


def test_dropout_applies_only_between_layers():
    torch.manual_seed(0)
    stack = Stack(cells("gru", (D, H), (H, H)), dropout=0.5)
    x, seen = double(B, T, D), []
    for layer in stack.layers:
        layer.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    outputs, state = stack(x)
    below = stack.layers[0](x)[0]
    seen.pop()
    assert torch.equal(seen[0], x)
    dropped = seen[1] == 0
    assert 0.2 < dropped.double().mean() < 0.8
    exactly(seen[1][~dropped], 2 * below[~dropped])
    assert (outputs != 0).all()
    exactly(outputs[:, -1], state[-1]["h"])
    stack.eval()
    exactly(stack(x)[0], stack.layers[1](below)[0])


def test_single_layer_has_no_dropout():
    stack = Stack(cells("lstm", (D, H)), dropout=0.9)
    x = double(B, T, D)
    assert torch.equal(stack(x)[0], stack(x)[0])


def test_stack_trace_matches_its_layers():
    stack = Stack(cells("lstm", (D, H), (H, H), (H, H)))
    x = double(B, T, D)
    outputs, state = stack(x)
    traces = stack.trace(x)
    assert len(traces) == len(state) == 3
    exactly(traces[-1]["h"], outputs)
    exactly([trace["c"][:, -1] for trace in traces], [layer["c"] for layer in state])


@pytest.mark.parametrize("name", ["elman", "lstm", "gru"])
@pytest.mark.parametrize("fused", [True, False])
def test_batch_of_padding_has_zero_gradients(name, fused):
    layer = Recurrent(CELLS[name](3, 5))
    x = torch.randn(2, 6, 3, requires_grad=True)
    outputs, _ = run(layer, x, mask=torch.zeros(2, 6, dtype=torch.bool), fused=fused)
    outputs.sum().backward()
    for tensor in (x, *layer.parameters()):
        torch.testing.assert_close(tensor.grad, torch.zeros_like(tensor), rtol=0, atol=0)
