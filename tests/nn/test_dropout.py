"""Dropout: fractions, masks, gradients and reproducibility."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.nn.run_layer import run
from torch import nn

from seqloom.accel.recurrence.torch_kernels import FlattenedWeights
from seqloom.core.tree import leaves
from seqloom.nn.cells import CELLS
from seqloom.nn.masks import Dropout, EmbeddingDropout, VariationalDropout, make_dropout
from seqloom.nn.recurrent import Recurrent, Stack

B, T, D, H = 4, 7, 3, 5


def exactly(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def recurrent(name, seed=0):
    torch.manual_seed(seed)
    return Recurrent(CELLS[name](D, H)).double()


@pytest.fixture
def mask(monkeypatch):
    """Return masks that the next weight dropouts use instead of random ones."""
    masks, real = {}, F.dropout

    def return_scripted_mask(weight, fraction):
        if weight.shape not in masks:
            masks[weight.shape] = real(torch.ones_like(weight), fraction)
        return weight * masks[weight.shape]

    monkeypatch.setattr(F, "dropout", return_scripted_mask)
    return masks


# Plain.


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.8])
def test_plain_dropout_drops_the_fraction_and_keeps_the_mean(fraction) -> None:
    torch.manual_seed(0)
    outputs = Dropout(fraction)(torch.ones(400, 501))
    assert outputs.unique().tolist() == pytest.approx([0.0, 1 / (1 - fraction)], rel=1e-4)
    assert (outputs == 0).float().mean().item() == pytest.approx(fraction, abs=0.005)
    assert outputs.mean().item() == pytest.approx(1, abs=0.01)
    dropped = (outputs == 0).float()
    for apart in (1, 2, 3, 4):  # four values share a random number, but they are independent
        both = (dropped[:, apart:] * dropped[:, :-apart]).mean().item()
        assert both == pytest.approx(fraction**2, abs=0.01)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (5, 7, 3), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_plain_dropout_supports_any_shape(shape, dtype) -> None:
    outputs = Dropout(0.5)(torch.ones(shape, dtype=dtype))
    assert outputs.shape == shape and outputs.dtype == dtype
    assert set(outputs.flatten().tolist()) <= {0.0, 2.0}


def test_plain_dropout_masks_the_gradient() -> None:
    x = double(6, 11).requires_grad_()
    outputs = Dropout(0.3)(x)
    outputs.sum().backward()
    exactly(x.grad, (outputs / x).detach())
    assert 0 < (x.grad == 0).sum() < x.numel()


def test_inactive_plain_dropout_is_the_identity() -> None:
    x = double(3, 5)
    assert Dropout(0.0)(x) is x and Dropout(0.9).eval()(x) is x
    with pytest.raises(ValueError, match="below 1"):
        Dropout(1.0)


def test_plain_dropout_is_reproducible_with_a_seed() -> None:
    drop, x = Dropout(0.5), torch.ones(4, 25)
    first, second = (torch.manual_seed(3), drop(x))[1], drop(x)
    torch.manual_seed(3)
    assert torch.equal(drop(x), first) and not torch.equal(second, first)


def test_recurrent_dropout_matches_torch() -> None:
    torch.manual_seed(0)
    result = make_dropout(0.5)(torch.ones(50))
    torch.manual_seed(0)
    assert torch.equal(result, F.dropout(torch.ones(50)))
    assert isinstance(make_dropout(0.5, True), VariationalDropout)


# Variational.


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.8])
def test_variational_dropout_drops_the_fraction_and_scales_the_rest(fraction) -> None:
    torch.manual_seed(0)
    outputs = VariationalDropout(fraction)(torch.ones(200, 3, 300))
    assert outputs.unique().tolist() == pytest.approx([0.0, 1 / (1 - fraction)])
    assert (outputs == 0).float().mean().item() == pytest.approx(fraction, abs=0.01)
    assert outputs.mean().item() == pytest.approx(1, abs=0.02)


def test_variational_mask_is_constant_over_steps_but_not_over_rows() -> None:
    torch.manual_seed(0)
    x = double(8, 20, 30)
    factor = VariationalDropout(0.5)(x) / x
    exactly(factor, factor[:, :1].expand_as(factor))
    assert len({tuple(row.tolist()) for row in factor[:, 0]}) == 8
    plain = make_dropout(0.5)(x) / x
    assert not torch.equal(plain, plain[:, :1].expand_as(plain))  # negative control


def test_variational_dropout_draws_a_new_mask_per_call() -> None:
    drop, x = VariationalDropout(0.5), torch.ones(4, 6, 30)
    assert not torch.equal(drop(x), drop(x))
    assert drop(torch.ones(4, 30)).shape == (4, 30)
    assert len(drop(torch.ones(4, 30)).unique(dim=0)) == 4
    assert drop(torch.ones(4, 0, 30)).shape == (4, 0, 30)


def test_variational_dropout_is_used_in_the_stack() -> None:
    torch.manual_seed(0)
    stack = Stack([CELLS["gru"](D, H), CELLS["gru"](H, H)], dropout=0.5, variational_dropout=True).double()
    seen: list[torch.Tensor] = []
    stack.layers[1].register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    x = double(B, T, D)
    stack(x)
    dropped = seen[0] == 0
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert 0.1 < dropped.double().mean() < 0.9


# Embeddings.


def test_embedding_dropout_drops_token_types_and_scales_the_rest() -> None:
    torch.manual_seed(0)
    embed, tokens = nn.Embedding(2000, 3).double(), torch.randint(2000, (40, 50))
    factor = EmbeddingDropout(0.2)(embed, tokens) / embed(tokens)  # (B, T, D)
    assert sorted(factor.unique().round(decimals=9).tolist()) == [0.0, 1.25]
    kinds: dict[int, set[float]] = {}
    for token, values in zip(tokens.flatten().tolist(), factor.flatten(0, 1).round(decimals=9).tolist(), strict=True):
        kinds.setdefault(token, set()).update(values)
    assert all(len(result) == 1 for result in kinds.values())
    assert sum(result == {0.0} for result in kinds.values()) / len(kinds) == pytest.approx(0.2, abs=0.03)


def test_embedding_dropout_is_equivalent_to_dropout_of_table_rows(monkeypatch) -> None:
    embed, tokens = nn.Embedding(9, 3).double(), torch.randint(9, (4, 6))
    types = torch.tensor([2.0, 0, 2, 0, 0, 2, 2, 2, 0], dtype=torch.float64)
    monkeypatch.setattr(F, "dropout", lambda ones, fraction: types)
    ours, weights = EmbeddingDropout(0.5)(embed, tokens), double(4, 6, 3)
    expected = F.embedding(tokens, embed.weight * types.unsqueeze(1))
    exactly(ours, expected)
    exactly(*(torch.autograd.grad((result * weights).sum(), embed.weight) for result in (ours, expected)))


# Weights.


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_fused_and_plain_weight_dropout_match_a_masked_cell(name, padded, mask) -> None:
    layer = recurrent(name)
    x = double(B, T, D).requires_grad_()
    real = torch.rand(B, T) < 0.6 if padded else None
    thin = copy.deepcopy(layer)
    layer.weight_dropout = 0.5
    layer(x)
    (drawn,) = mask.values()
    with torch.no_grad():
        thin.cell.weight_h *= drawn
    results = []
    for used, fused in ((layer, True), (layer, False), (thin, True)):
        outputs, state = run(used, x, None, real, fused=fused)
        loss = outputs.square().sum() + sum(leaf.sum() for leaf in leaves(state))
        results.append([outputs, *leaves(state), *torch.autograd.grad(loss, [x, *used.parameters()])])
    position = [name for name, _ in layer.named_parameters()].index("cell.weight_h") - len(list(layer.parameters()))
    results[2][position] = results[2][position] * drawn  # d(w ⊙ m) = m ⊙ dw
    exactly(results[1], results[0])
    exactly(results[2], results[0])
    assert not results[0][position][drawn == 0].any() and results[0][position].any()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_gradients_through_weight_dropout_match_finite_differences(name, fused, mask) -> None:
    layer, x = recurrent(name), double(2, 3, D)
    weight = layer.cell.weight_h.detach().clone().requires_grad_()

    def function(x, weight):
        thinned = F.dropout(weight, 0.4)
        return run(torch.func.functional_call, layer, {"cell.weight_h": thinned}, (x,), fused=fused)[0]

    assert torch.autograd.gradcheck(function, (x.requires_grad_(), weight), fast_mode=True)
    expected = torch.autograd.grad(function(x, weight).square().sum(), weight)
    layer.weight_dropout = 0.4
    outputs, _ = run(layer, x, fused=fused)
    exactly(torch.autograd.grad(outputs.square().sum(), layer.cell.weight_h), expected)


def test_weight_dropout_draws_one_mask_per_call(monkeypatch) -> None:
    torch.manual_seed(0)
    layer, drawn, real = Recurrent(CELLS["gru-cho"](4, 100), weight_dropout=0.3), [], F.dropout

    def record_weights(weight, fraction):
        drawn.append(real(weight, fraction))
        return drawn[-1]

    monkeypatch.setattr(F, "dropout", record_weights)
    layer(torch.randn(2, 9, 4))
    layer(torch.randn(2, 9, 4))
    assert len(drawn) == 2 and not torch.equal(*drawn)
    assert (drawn[0] == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    kept = drawn[0] != 0
    torch.testing.assert_close(drawn[0][kept], layer.cell.weight_h[kept] / 0.7)


def test_weight_dropout_does_not_change_the_parameters() -> None:
    layer, x = recurrent("lstm"), double(B, T, D)
    before = copy.deepcopy(layer.state_dict())
    parameter = layer.cell.weight_h
    outputs = layer(x)[0]
    layer.weight_dropout = 0.5
    assert not torch.equal(layer(x)[0], outputs)
    assert layer.cell.weight_h is parameter and isinstance(parameter, nn.Parameter)
    exactly(layer.state_dict(), before)


def test_flattened_copies_pass_gradients_to_the_originals() -> None:
    """Dropped weights on a GPU have the same effect. A test layout replaces the layout of cuDNN."""

    def flatten_tensors(tensors):
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.data = part.view_as(tensor)

    tensors = [double(3, 2).requires_grad_(), double(4).requires_grad_(), double(2, 2)]
    copies = FlattenedWeights.apply(flatten_tensors, *tensors)
    exactly(list(copies), tensors)
    assert len({copy.untyped_storage().data_ptr() for copy in copies}) == 1
    assert copies[0].data_ptr() != tensors[0].data_ptr()
    loss = copies[0].square().sum() + (copies[1] * 3).sum() + copies[2].sum()
    exactly(torch.autograd.grad(loss, tensors[:2]), (2 * tensors[0], torch.full((4,), 3.0, dtype=torch.float64)))
    assert torch.autograd.gradcheck(
        lambda *given: FlattenedWeights.apply(flatten_tensors, *given), tensors, fast_mode=True
    )


# All kinds.


@pytest.mark.parametrize("kind", [VariationalDropout, EmbeddingDropout])
def test_evaluation_and_zero_fraction_disable_dropout(kind) -> None:
    embed, tokens = nn.Embedding(5, D).double(), torch.randint(5, (B, T))
    x = embed(tokens)
    given, expected = {
        VariationalDropout: ((x,), x),
        EmbeddingDropout: ((embed, tokens), x),
    }[kind]
    for drop in (kind(0.0), kind(0.9).eval()):
        before = torch.get_rng_state()
        exactly(drop(*given), expected)
        assert torch.equal(torch.get_rng_state(), before)


def test_weight_dropout_is_disabled_in_evaluation() -> None:
    layer, x = recurrent("gru"), double(B, T, D)
    outputs = layer(x)[0]
    layer.weight_dropout = 0.9
    exactly(layer.eval()(x)[0], outputs)


@pytest.mark.parametrize("fraction", [-0.1, 1.0])
def test_invalid_dropout_is_rejected(fraction) -> None:
    for make in (VariationalDropout, lambda p: Recurrent(CELLS["gru"](3, 4), weight_dropout=p)):
        with pytest.raises(ValueError, match=f"at least 0 and below 1; got {fraction}"):
            make(fraction)
