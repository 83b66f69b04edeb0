"""Bidirectional stacks compared with torch and with two separate directions, with and without masks."""

from typing import Any

import pytest
import torch
from tests.nn.run_layer import run
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seqloom.core.tree import leaves
from seqloom.nn.bidirectional import Bidirectional, BidirectionalStack, Combine
from seqloom.nn.cells import CELLS
from seqloom.nn.recurrent import Recurrent

B, T, D, H = 4, 7, 3, 5
MASKS = {
    "right": [[1] * 7, [1] * 3 + [0] * 4, [1] + [0] * 6, [1] * 5 + [0] * 2],
    "left": [[0] * 2 + [1] * 5, [1] * 7, [0] * 6 + [1], [0] * 3 + [1] * 4],
    "middle": [[1, 0, 1, 0, 0, 1, 1], [0, 1, 1, 1, 0, 0, 0], [0] * 7, [1, 1, 0, 1, 1, 1, 0]],
}
COMBINATIONS = ["concat", "sum", "mix"]
DEPTHS = ["each", "apart"]
TORCH_LAYERS: dict[str, Any] = {"elman": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def exactly(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def stack_of(cell="gru", layers=2, seed=0, **options):
    torch.manual_seed(seed)
    return BidirectionalStack(CELLS[cell], D, H, layers, **options).double()


def as_mask(name):
    return torch.tensor(MASKS[name], dtype=torch.bool)


def some_state(stack):
    return tuple(
        {side: {name: double(B, H).requires_grad_() for name in state} for side, state in layer.items()}
        for layer in stack.initial_state(B)
    )


# Torch layers.


def torch_layer_of(name, stack):
    torch_layer = TORCH_LAYERS[name](D, H, num_layers=len(stack.layers), batch_first=True, bidirectional=True).double()
    ours, theirs = [], []
    for depth, layer in enumerate(stack.layers):
        for side, suffix in ((layer.forwards, ""), (layer.backwards, "_reverse")):
            for mine, other in (("weight_x", "weight_ih"), ("weight_h", "weight_hh"), ("bias_x", "bias_ih")):
                ours.append(getattr(side.cell, mine))
                theirs.append(getattr(torch_layer, f"{other}_l{depth}{suffix}"))
            ours.append(side.cell.bias_h)
            theirs.append(getattr(torch_layer, f"bias_hh_l{depth}{suffix}"))
    with torch.no_grad():
        for mine, other in zip(ours, theirs, strict=True):
            other.copy_(mine)
    return torch_layer, ours, theirs


def as_torch_state(state):
    sides = [side for layer in state for side in (layer["forwards"], layer["backwards"])]
    stacked = tuple(torch.stack([side[name] for side in sides]) for name in sides[0])
    return stacked if len(stacked) > 1 else stacked[0]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("lengths", [None, [7, 2, 5, 1]])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("name", TORCH_LAYERS)
def test_outputs_match_torch(name, layers, lengths, fused) -> None:
    stack = stack_of(name, layers)
    torch_layer, ours, theirs = torch_layer_of(name, stack)
    x, first = double(B, T, D).requires_grad_(), some_state(stack)
    mask = None if lengths is None else torch.arange(T) < torch.tensor(lengths).unsqueeze(1)
    outputs, after = run(stack, x, first, mask, fused=fused)
    if lengths is None:
        expected, last = torch_layer(x, as_torch_state(first))
    else:
        packed, last = torch_layer(pack_padded_sequence(x, lengths, True, enforce_sorted=False), as_torch_state(first))
        expected, _ = pad_packed_sequence(packed, batch_first=True, total_length=T)
    exactly(outputs, expected)
    exactly(as_torch_state(after), last)
    weights = double(*outputs.shape)
    last = last if isinstance(last, tuple) else (last,)
    inputs = [x, *leaves(first)]
    mine = (outputs * weights).sum() + sum(leaf.square().sum() for leaf in leaves(after))
    other = (expected * weights).sum() + sum(leaf.square().sum() for leaf in last)
    exactly(torch.autograd.grad(mine, [*inputs, *ours]), torch.autograd.grad(other, [*inputs, *theirs]))


# Every cell, combination and depth compared with two separate directions of each row.


def read_both_directions(cells, combine, depth, row):
    """Compute a row (1, n, D) without padding by the definition, with plain loops and a reversed copy."""
    rightwards = leftwards = row
    for k, (right, left) in enumerate(cells):
        a = run(Recurrent(right), rightwards, fused=False)[0]
        b = run(Recurrent(left), leftwards[:, torch.arange(row.shape[1] - 1, -1, -1)], fused=False)[0]
        b = b[:, torch.arange(row.shape[1] - 1, -1, -1)]
        rightwards, leftwards = (a, b) if depth == "apart" else (combine[k](a, b),) * 2
    return combine[-1](a, b)


def equation(module):
    if module.how == "concat":
        return lambda a, b: torch.cat([a, b], dim=2)
    if module.how == "sum":
        return lambda a, b: a + b
    w = module.mix.weight
    return lambda a, b: torch.tanh(a @ w[:, :H].T + b @ w[:, H:].T + module.mix.bias)


@pytest.mark.parametrize("position", [None, *MASKS])
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("combine", COMBINATIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_outputs_match_two_separate_directions(cell, combine, depth, position) -> None:
    stack = stack_of(cell, combine=combine, depth=depth)
    x, mask = double(B, T, D), torch.ones(B, T, dtype=torch.bool) if position is None else as_mask(position)
    outputs, _ = stack(x, None, mask if position else None)
    assert outputs.shape == (B, T, stack.output_size) and stack.output_size == (2 * H if combine == "concat" else H)
    assert not outputs[~mask].any()
    if depth == "each":
        cells = [(layer.forwards.cell, layer.backwards.cell) for layer in stack.layers]
        equations = [equation(layer.combine) for layer in stack.layers]
    else:
        cells = list(zip(*(direction.cells for direction in stack.directions), strict=True))
        equations = [equation(stack.combine)]
    for row in range(B):
        if mask[row].any():
            real = x[row : row + 1, mask[row]]
            exactly(outputs[row : row + 1, mask[row]], read_both_directions(cells, equations, depth, real))


def test_depth_option_matters_only_with_several_layers() -> None:
    x = double(B, T, D)
    assert torch.equal(stack_of(layers=1)(x)[0], stack_of(layers=1, depth="apart")(x)[0])
    sums = [stack_of(combine="sum", depth=depth) for depth in DEPTHS]
    each, apart = sums
    for layer, right, left in zip(each.layers, *(direction.cells for direction in apart.directions), strict=True):
        right.load_state_dict(layer.forwards.cell.state_dict())
        left.load_state_dict(layer.backwards.cell.state_dict())
    assert not torch.allclose(each(x)[0], apart(x)[0])


@pytest.mark.parametrize("depth", DEPTHS)
def test_directions_are_independent_if_depth_is_apart(depth) -> None:
    """The first forward step depends only on the first input, unless the lower layers are combined."""
    stack, x = stack_of(depth=depth), double(B, T, D).requires_grad_()
    outputs, _ = stack(x)
    (gradient,) = torch.autograd.grad(outputs[:, 0, :H].sum(), x)
    assert gradient[:, 1:].any() == (depth == "each")


def test_directions_have_separate_weights() -> None:
    layer = Bidirectional(CELLS["lstm"](D, H), CELLS["lstm"](D, H))
    assert len(list(layer.parameters())) == 8
    assert not torch.equal(layer.forwards.cell.weight_h, layer.backwards.cell.weight_h)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("combine", COMBINATIONS)
@pytest.mark.parametrize("position", MASKS)
def test_padding_has_no_gradient(combine, depth, position) -> None:
    stack, x, mask = stack_of(combine=combine, depth=depth), double(B, T, D).requires_grad_(), as_mask(position)
    outputs, state = stack(x, None, mask)
    loss = outputs.square().sum() + sum(leaf.sum() for leaf in leaves(state))
    (gradient,) = torch.autograd.grad(loss, x)
    assert not gradient[~mask].any() and gradient[mask].abs().sum(dim=1).all()


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("combine", COMBINATIONS)
def test_gradients_match_finite_differences(combine, depth) -> None:
    stack, mask = stack_of(combine=combine, depth=depth), torch.tensor([[True, True, False], [False, True, True]])
    names = [name for name, _ in stack.named_parameters()]

    def function(x, *parameters):
        given = dict(zip(names, parameters, strict=True))
        outputs, state = torch.func.functional_call(stack, given, (x, None, mask))
        return outputs, *leaves(state)

    given = [double(2, 3, D), *stack.parameters()]
    assert torch.autograd.gradcheck(function, [leaf.detach().requires_grad_() for leaf in given], fast_mode=True)


@pytest.mark.parametrize("depth", DEPTHS)
def test_states_are_the_final_states_of_each_direction(depth) -> None:
    stack, x, mask = stack_of("lstm", depth=depth), double(B, T, D), as_mask("right")
    outputs, state = stack(x, None, mask)
    assert [sorted(layer) for layer in state] == [["backwards", "forwards"]] * 2
    ends = mask.sum(dim=1) - 1
    exactly(state[-1]["forwards"]["h"], outputs[torch.arange(B), ends, :H])
    exactly(state[-1]["backwards"]["h"], outputs[:, 0, H:])


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("combine", COMBINATIONS)
def test_final_outputs_of_both_directions_are_combined(combine, depth) -> None:
    """For a single step, the ends are its output. For several steps, they are the last output of each direction."""
    stack, x = stack_of(combine=combine, depth=depth), double(B, T, D)
    outputs, state = stack(x[:, :1])
    exactly(stack.ends(state), outputs[:, 0])
    outputs, state = stack(x, None, as_mask("right"))
    module = stack.layers[-1].combine if depth == "each" else stack.combine
    expected = equation(module)(state[-1]["forwards"]["h"].unsqueeze(1), state[-1]["backwards"]["h"].unsqueeze(1))
    exactly(stack.ends(state), expected.squeeze(1))


@pytest.mark.parametrize("depth", DEPTHS)
def test_dropout_is_active_only_in_training(depth) -> None:
    stack, x = stack_of(depth=depth, dropout=0.5, weight_dropout=0.5, variational_dropout=True), double(B, T, D)
    assert not torch.equal(stack(x)[0], stack(x)[0])
    stack.eval()
    assert torch.equal(stack(x)[0], stack(x)[0])
    exactly(stack(x)[0], stack_of(depth=depth)(x)[0])


def test_invalid_options_are_rejected() -> None:
    with pytest.raises(ValueError, match="concat, sum or mix; got 'product'"):
        Combine(H, "product")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cells of the same size; got 3 → 5 and 3 → 6"):
        Bidirectional(CELLS["gru"](3, 5), CELLS["gru"](3, 6))
    with pytest.raises(ValueError, match="layers must be at least 1; got 0"):
        stack_of(layers=0)
    with pytest.raises(ValueError, match="got 'never'"):
        stack_of(depth="never")


def test_projections_are_noted_once() -> None:
    note = "MUT1 projects its input from 3 to 5 dimensions first (W_xp)"
    assert stack_of("mut1", depth="apart").notes() == [note]
    assert stack_of("mut1").notes() == [note, "MUT1 projects its input from 10 to 5 dimensions first (W_xp)"]
