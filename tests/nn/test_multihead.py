"""Multi-head attention compared with torch, and its fused implementation compared with the plain implementation."""

import math

import pytest
import torch
from tests.nn.torch_layers import D, N, assert_equal_gradients, copy_attention, exactly, randomize
from torch import nn

from seqloom.accel import layers
from seqloom.accel.layers import MAX_PLAIN_QUERIES, SIMD_WIDTH
from seqloom.nn.attention import MultiHeadAttention
from seqloom.nn.masks import AttentionMask
from seqloom.nn.positions import Rotary

B, T, S = 3, 4, 5
LENGTHS = torch.tensor([5, 2, 3])


@pytest.fixture(autouse=True, params=["few", "many"])
def way(request, monkeypatch):
    """Use the plain implementation, or the fused kernel that long inputs use on a CPU."""
    monkeypatch.setattr(layers, "MAX_PLAIN_QUERIES", MAX_PLAIN_QUERIES if request.param == "few" else 0)


def padding(lengths=LENGTHS, width=S):
    return torch.arange(width) < lengths.unsqueeze(1)  # (B, S)


def attention(**options):
    torch.manual_seed(2)
    return randomize(MultiHeadAttention(D, N, **options)).eval()


MASKS = {
    "none": (None, False),
    "padding": (padding(), False),
    "causal": (None, True),
    "both": (padding(width=T, lengths=torch.tensor([4, 2, 3])), True),
}


def assert_equals_torch(masked: str, cross: bool, bias: bool = True) -> None:
    """Compare outputs, weights and gradients with torch, for both implementations."""
    mask, causal = MASKS[masked]
    torch.manual_seed(1)
    theirs = randomize(nn.MultiheadAttention(D, N, bias=bias, batch_first=True))
    ours = MultiHeadAttention(D, N, bias=bias).double()
    pairs = copy_attention(ours, theirs)
    x = torch.randn(B, T, D, dtype=torch.float64)
    memory = torch.randn(B, T if mask is None else mask.shape[1], D, dtype=torch.float64) if cross else None
    if memory is None and mask is not None:
        x = torch.randn(B, mask.shape[1], D, dtype=torch.float64)
    output = torch.randn(x.shape, dtype=torch.float64)
    expected, attention_weights = theirs(
        x,
        x if memory is None else memory,
        x if memory is None else memory,
        key_padding_mask=None if mask is None else ~mask,
        attn_mask=torch.ones(x.shape[1], x.shape[1]).triu(1).bool() if causal else None,
        average_attn_weights=False,
    )
    (expected * output).sum().backward()
    for weights in (False, True):
        ours.zero_grad()
        wide = None if mask is None else mask[:, None, None, :]
        result, our_weights = ours(x, memory, wide, causal, weights)
        exactly(result, expected)
        if weights:
            exactly(our_weights, attention_weights)
        else:
            assert our_weights is None
        (result * output).sum().backward()
        assert_equal_gradients(pairs)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("masked", MASKS)
def test_self_attention_matches_torch(masked, bias):
    assert_equals_torch(masked, cross=False, bias=bias)


@pytest.mark.parametrize("masked", ["none", "padding"])
def test_cross_attention_matches_torch(masked):
    assert_equals_torch(masked, cross=True)


def both_implementations(ours, *arguments, **options):
    """Return outputs and input gradients of both implementations, the fused implementation first."""
    result = []
    for weights in (False, True):
        inputs = [argument.detach().requires_grad_() for argument in arguments]
        output, _ = ours(*inputs, **options, weights=weights)
        torch.manual_seed(5)
        (output * torch.randn_like(output)).sum().backward()
        result.append([output, *(tensor.grad for tensor in inputs), *(p.grad.clone() for p in ours.parameters())])
        ours.zero_grad()
    return result


@pytest.mark.parametrize("kv_heads", [None, 1])
@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("rotary", [None, Rotary()])
@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_matches_plain_attention(kv_heads, scale, rotary, causal):
    ours = attention(kv_heads=kv_heads, scale=scale, rotary=rotary)
    x = torch.randn(B, T, D, dtype=torch.float64)
    mask = torch.rand(B, 1, T, T) < 0.6  # some rows are fully masked; with `causal`, these are the first rows
    mask[1] = False
    for used_mask in (None, mask):
        fast, plain = both_implementations(ours, x, mask=used_mask, is_causal=causal)
        for actual, expected in zip(fast, plain, strict=True):
            assert not actual.isnan().any()
            exactly(actual, expected)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fully_masked_queries_get_zeros_and_no_gradient(weights, dtype):
    ours = attention().to(dtype)
    x = torch.randn(B, T, D, dtype=dtype, requires_grad=True)
    mask = torch.ones(B, 1, 1, T, dtype=torch.bool)
    mask[1] = False
    output, attention_weights = ours(x, mask=mask, weights=weights)
    assert torch.equal(output[1], ours.out.bias.expand(T, D))  # zeros after the output projection
    if attention_weights is not None:
        assert attention_weights[1].eq(0).all()
        exactly(
            attention_weights.sum(-1)[::2].double(), torch.ones(2, N, T).double()
        ) if dtype == torch.float64 else None
    output.sum().backward()
    assert x.grad is not None
    assert x.grad[1].eq(0).all() and x.grad.isfinite().all() and x.grad[0].ne(0).any()


def test_gradients_match_finite_differences():
    ours = attention(kv_heads=1, rotary=Rotary())
    x = torch.randn(2, 3, D, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 1, 3, 3).tril().bool()
    mask[0, 0, 1] = False
    for weights in (False, True):
        assert torch.autograd.gradcheck(lambda x, way=weights: ours(x, mask=mask, weights=way)[0], [x])


def test_grouped_heads_match_repeated_heads():
    torch.manual_seed(3)
    grouped = randomize(MultiHeadAttention(D, 6, kv_heads=2))
    full = MultiHeadAttention(D, 6).double()
    with torch.no_grad():
        for repeated, shared in (
            (full.q, grouped.q),
            (full.k, grouped.k),
            (full.v, grouped.v),
            (full.out, grouped.out),
        ):
            times = repeated.out_features // shared.out_features
            for wide, narrow in ((repeated.weight, shared.weight), (repeated.bias, shared.bias)):
                wide.copy_(narrow.unflatten(0, (-1, D // 6)).repeat_interleave(times, dim=0).flatten(0, 1))
    x = torch.randn(B, T, D, dtype=torch.float64)
    for weights in (False, True):
        exactly(grouped(x, is_causal=True, weights=weights)[0], full(x, is_causal=True, weights=weights)[0])


def test_attention_matches_its_equation():
    """Compute softmax(QKᵀ / √d_k) V head by head. Without the scale, compute softmax(QKᵀ) V."""
    for scale in (True, False):
        ours = attention(scale=scale)
        x, memory = torch.randn(1, T, D, dtype=torch.float64), torch.randn(1, S, D, dtype=torch.float64)
        heads = []
        for part in range(N):
            rows = slice(part * D // N, (part + 1) * D // N)
            q, k, v = (
                inputs[0] @ linear.weight[rows].T + linear.bias[rows]
                for linear, inputs in ((ours.q, x), (ours.k, memory), (ours.v, memory))
            )
            heads.append(torch.softmax(q @ k.T / (math.sqrt(D / N) if scale else 1), dim=-1) @ v)
        expected = torch.cat(heads, dim=-1) @ ours.out.weight.T + ours.out.bias
        exactly(ours(x, memory)[0][0], expected)


def test_rotary_attention_depends_only_on_relative_positions():
    ours, x, places = attention(rotary=Rotary()), torch.randn(B, T, D, dtype=torch.float64), torch.arange(T)
    for weights in (False, True):
        expected = ours(x, is_causal=True, weights=weights)[0]
        exactly(ours(x, is_causal=True, weights=weights, positions=places)[0], expected)
        exactly(ours(x, is_causal=True, weights=weights, positions=places + 9)[0], expected)
        exactly(
            ours(x, is_causal=True, weights=weights, positions=places + torch.tensor([[0], [5], [70]]))[0], expected
        )
        assert not torch.allclose(ours(x, is_causal=True, weights=weights, positions=2 * places)[0], expected)


def test_memory_order_is_ignored_and_queries_are_independent():
    ours, x, memory = attention(), *torch.randn(2, 2, 5, D, dtype=torch.float64)
    order = torch.randperm(5)
    exactly(ours(x, memory[:, order])[0], ours(x, memory)[0])
    exactly(ours(x[:, order], memory)[0], ours(x, memory)[0][:, order])


def test_causal_queries_are_aligned_with_the_last_keys():
    ours, x = attention(), torch.randn(B, 6, D, dtype=torch.float64)
    whole, attention_weights = ours(x, is_causal=True, weights=True)
    for weights in (False, True):
        for last in (1, 2, 6):
            output, last_weights = ours.attend(
                ours.queries(x[:, -last:]), ours.keys_values(x), is_causal=True, weights=weights
            )
            exactly(output, whole[:, -last:])
            if last_weights is not None:
                exactly(last_weights, attention_weights[:, :, -last:])


def test_dropout_applies_to_weights_only_in_training():
    ours = attention(dropout=0.5)
    x = torch.randn(B, T, D, dtype=torch.float64)
    for weights in (False, True):
        calm, attention_weights = ours.eval()(x, weights=weights)
        exactly(ours(x, weights=weights)[0], calm)
        dropped, seen = ours.train()(x, weights=weights)
        assert not torch.allclose(dropped, calm)
        if weights:
            exactly(seen, attention_weights)  # the returned weights are those before dropout
    many = torch.stack([ours(x)[0] for _ in range(3000)]).mean(0)
    torch.testing.assert_close(many, ours.eval()(x)[0], atol=0.15, rtol=0)


def test_invalid_heads_are_rejected():
    for heads, kv_heads, said in (
        (5, None, "d_model must be divisible by heads; got 12 and 5"),
        (0, None, "heads must be at least 1; got 0"),
        (6, 4, "heads must be divisible by kv_heads; got 6 and 4"),
        (6, 0, "kv_heads must be at least 1; got 0"),
    ):
        with pytest.raises(ValueError, match=said):
            MultiHeadAttention(D, heads, kv_heads)


@pytest.mark.parametrize("S", [1, SIMD_WIDTH - 1, SIMD_WIDTH, SIMD_WIDTH + 1])
def test_softmax_is_exact_for_any_number_of_keys(S):
    """If the keys do not fill a register, a separate softmax is used."""
    ours = attention()
    x, memory = torch.randn(B, 2, D, dtype=torch.float64), torch.randn(B, S, D, dtype=torch.float64)
    mask = torch.rand(B, 1, 2, S) < 0.7
    for actual, expected in zip(*both_implementations(ours, x, memory, mask=mask), strict=True):
        exactly(actual, expected)
    x, memory = 1e4 * x, 1e4 * memory  # the exponential of the scores would overflow
    _, attention_weights = ours(x, memory, weights=True)
    scores = ours.queries(x) * ours.scale @ ours.keys_values(memory)[0].transpose(-1, -2)
    exactly(attention_weights, scores.softmax(dim=-1))


def test_mask_is_computed_once_for_all_layers():
    ours, x = attention(), torch.randn(B, T, D, dtype=torch.float64)
    mask = torch.rand(B, 1, T, T) < 0.6
    mask[1] = False
    for weights in (False, True):
        exactly(ours(x, mask=AttentionMask(mask), weights=weights)[0], ours(x, mask=mask, weights=weights)[0])
    assert AttentionMask(mask).attending is not None and AttentionMask(mask[[0]] | True).attending is None
    allowed = AttentionMask(mask)
    assert allowed.additive is allowed.additive and allowed.additive[1].eq(0).all()
