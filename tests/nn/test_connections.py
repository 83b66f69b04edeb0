"""Residual, highway and dense connections compared with their equations."""

import pytest
import torch
from tests.nn.run_layer import run
from torch import nn

from seqloom.core.tree import leaves
from seqloom.nn.cells import CELLS
from seqloom.nn.recurrent import HighwayConnection, ResidualConnection, Stack, input_sizes

B, T, H, LAYERS = 3, 6, 5, 3
MASK = torch.tensor([[1] * 6, [0, 1, 1, 0, 1, 0], [1, 1, 0, 0, 0, 0]], dtype=torch.bool)
KINDS = ["none", "residual", "highway", "dense"]
SUMS = ["residual", "highway"]


def exactly(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def stack_of(connections, inputs=H, cell="gru", layers=LAYERS, **options):
    torch.manual_seed(0)
    widths = input_sizes(connections, inputs, H, layers)
    return Stack([CELLS[cell](width, H) for width in widths], connections=connections, **options).double()


def apply_connection(way, x):
    return x if way.project is None else x @ way.project.weight.T


def expected_outputs(stack, x, mask=None):
    """Compute the equations layer by layer. Each layer is a `Recurrent`, which has its own tests."""
    outputs, states = [x], []
    for depth, layer in enumerate(stack.layers):
        given = torch.cat(outputs, dim=2) if stack.connections == "dense" else outputs[-1]
        h, state = layer(given, None, mask)
        if stack.connections == "residual":
            h = h + apply_connection(stack.around[depth], given)
        if stack.connections == "highway":
            way = stack.around[depth]
            t = 1 / (1 + torch.exp(-(given @ way.gate.weight.T + way.gate.bias)))
            h = t * h + (1 - t) * apply_connection(way, given)
        outputs.append(h if mask is None else h * mask.unsqueeze(2))
        states.append(state)
    return outputs[-1], tuple(states)


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
@pytest.mark.parametrize("inputs", [H, 3], ids=["equal widths", "narrow inputs"])
@pytest.mark.parametrize("connections", KINDS)
def test_outputs_states_and_gradients_match_the_equations(connections, inputs, mask) -> None:
    stack, x = stack_of(connections, inputs), double(B, T, inputs).requires_grad_()
    results = []
    for outputs, state in (stack(x, None, mask), expected_outputs(stack, x, mask)):
        loss = outputs.square().sum() + sum(leaf.sum() for leaf in leaves(state))
        results.append([outputs, *leaves(state), *torch.autograd.grad(loss, [x, *stack.parameters()])])
    exactly(*results)


def test_each_kind_of_connection_gives_different_outputs() -> None:
    x = double(B, T, H)
    outputs = [stack_of(connections)(x)[0] for connections in KINDS]
    assert all(not torch.allclose(a, b) for i, a in enumerate(outputs) for b in outputs[:i])


@pytest.mark.parametrize("connections", KINDS)
@pytest.mark.parametrize("cell", ["lstm", "mut1"])
def test_gradients_match_finite_differences(cell, connections) -> None:
    stack = stack_of(connections, inputs=3, cell=cell, layers=2)
    names = [name for name, _ in stack.named_parameters()]
    mask = MASK[:2, :3]

    def function(x, *parameters):
        outputs, state = run(
            torch.func.functional_call, stack, dict(zip(names, parameters, strict=True)), (x, None, mask), fused=False
        )
        return outputs, *leaves(state)

    given = [double(2, 3, 3), *stack.parameters()]
    assert torch.autograd.gradcheck(function, [leaf.detach().requires_grad_() for leaf in given], fast_mode=True)


@pytest.mark.parametrize("connections", KINDS)
def test_state_structure_is_independent_of_the_connections(connections) -> None:
    stack, x = stack_of(connections, cell="lstm"), double(B, T, H)
    whole, state = stack(x)
    assert [{name: leaf.shape for name, leaf in layer.items()} for layer in state] == [{"h": (B, H), "c": (B, H)}] * 3
    first, middle = stack(x[:, :2])
    second, after = stack(x[:, 2:], middle)
    exactly(torch.cat([first, second], dim=1), whole)
    exactly(after, state)


@pytest.mark.parametrize("connections", KINDS)
def test_padding_is_zero_and_has_no_gradient(connections) -> None:
    stack, x = stack_of(connections), double(B, T, H).requires_grad_()
    outputs, _ = stack(x, None, MASK)
    assert not outputs[~MASK].any() and outputs[MASK].all()
    (gradient,) = torch.autograd.grad(outputs.sum(), x)
    assert not gradient[~MASK].any() and gradient[MASK].all()


@pytest.mark.parametrize("connections", KINDS)
def test_trace_contains_the_connections(connections) -> None:
    stack, x = stack_of(connections), double(B, T, H)
    outputs, _ = stack(x)
    traces = stack.trace(x)
    top = traces[-1]
    exactly(top["y"] if connections in SUMS else top["h"], outputs)
    assert {"y", "T"} & set(top) == {"residual": {"y"}, "highway": {"y", "T"}}.get(connections, set())
    assert all(values.shape == (B, T, H) for trace in traces for values in trace.values())


def test_highway_gate_selects_input_or_layer() -> None:
    stack, x = stack_of("highway", layers=1), double(B, T, H)
    for bias, expected in ((-1e9, x), (1e9, stack.layers[0](x)[0])):
        nn.init.constant_(stack.around[0].gate.bias, bias)
        exactly(stack(x)[0], expected)


def test_highway_gate_starts_mostly_closed() -> None:
    gate = HighwayConnection(400, 400).gate
    assert gate.bias.mean().item() == pytest.approx(-1, abs=0.01)
    way = HighwayConnection(40, 400)
    way.reset_parameters(0.01)
    assert way.gate.bias.mean().item() == pytest.approx(-1, abs=0.01)
    assert 0.009 < way.gate.weight.abs().max() <= 0.01
    assert way.project is not None and 0.009 < way.project.weight.abs().max() <= 0.01


def test_projections_are_noted() -> None:
    assert stack_of("highway").notes() == stack_of("dense", inputs=3).notes() == []
    assert stack_of("residual", inputs=3).notes() == [
        "the residual connection projects its input from 3 to 5 dimensions"
    ]
    assert stack_of("highway", inputs=3, cell="mut2").notes() == [
        "MUT2 projects its input from 3 to 5 dimensions first (W_xp)",
        "the highway connection projects its input from 3 to 5 dimensions",
    ]
    assert ResidualConnection(3, 5).notes() and not ResidualConnection(5, 5).notes()


def test_dropout_does_not_affect_the_residual_path() -> None:
    """If the layer outputs are zero, a residual stack is the identity, even with dropout."""
    stack, x = stack_of("residual", dropout=0.5), double(B, T, H)
    with torch.no_grad():
        for cell in stack.cells:
            cell.bias_x[H : 2 * H] = 1e9  # z keeps the old state, which is zero
    assert torch.equal(stack.train()(x)[0], x)


def test_dense_layers_share_one_dropout_mask_per_output() -> None:
    stack, x, seen = stack_of("dense", dropout=0.5), double(B, T, H), []
    for layer in stack.layers:
        layer.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    stack.train()(x)
    first, second, third = seen
    assert torch.equal(first, x) and torch.equal(second[..., :H], x) and torch.equal(third[..., :H], x)
    assert torch.equal(second[..., H:], third[..., H : 2 * H])
    assert 0.2 < (second[..., H:] == 0).double().mean() < 0.8


@pytest.mark.parametrize(
    ("connections", "widths", "words"),
    [
        ("none", [4, 6], "layer 2 must take inputs of size 5 with 'none' connections; its cell takes 6"),
        ("dense", [4, 5], "layer 2 must take inputs of size 9 with 'dense' connections; its cell takes 5"),
        ("none", [], "at least one layer"),
    ],
)
def test_mismatched_layers_are_rejected(connections, widths, words) -> None:
    with pytest.raises(ValueError, match=words):
        Stack([CELLS["gru"](width, H) for width in widths], connections=connections)


def test_input_sizes_depend_on_the_connections() -> None:
    assert input_sizes("dense", 3, 5, 3) == [3, 8, 13]
    assert input_sizes("residual", 3, 5, 3) == input_sizes("none", 3, 5, 3) == [3, 5, 5]
