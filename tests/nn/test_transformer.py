from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.nn.torch_layers import (
    INNER,
    D,
    N,
    assert_equal_gradients,
    decoder_block,
    encoder_block,
    exactly,
    make_block,
    randomize,
)
from torch import nn

from seqloom.nn.attention import MultiHeadAttention
from seqloom.nn.masks import AttentionScope
from seqloom.nn.transformer import ACTIVATIONS, FeedForward, ResidualConfig, Source, make_norm

B, T, S = 3, 4, 5
REAL = torch.arange(S) < torch.tensor([5, 2, 3]).unsqueeze(1)


def assert_encoder_equals_torch(activation: str, norm_first: bool, masked: bool) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"dropout": 0.0, "activation": activation, "norm_first": norm_first, "batch_first": True}
    theirs = randomize(nn.TransformerEncoderLayer(D, N, INNER, **options))
    ours, pairs = encoder_block(theirs, activation, norm_first)
    x, cotangent = torch.randn(2, B, S, D, dtype=torch.float64)
    (theirs(x, src_key_padding_mask=~REAL if masked else None) * cotangent)[REAL].sum().backward()
    expected = theirs(x, src_key_padding_mask=~REAL if masked else None)
    for weights in (False, True):
        ours.zero_grad()
        scope = AttentionScope.within(REAL if masked else None)
        result = ours(x, scope, return_weights=("self",) if weights else ())
        exactly(result.x[REAL], expected[REAL])
        assert (result.self_weights is not None) == weights
        (result.x * cotangent)[REAL].sum().backward()
        assert_equal_gradients(pairs)


def assert_decoder_equals_torch(activation: str, norm_first: bool, masked: bool) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"dropout": 0.0, "activation": activation, "norm_first": norm_first, "batch_first": True}
    theirs = randomize(nn.TransformerDecoderLayer(D, N, INNER, **options))
    ours, pairs = decoder_block(theirs, activation, norm_first)
    x, cotangent = torch.randn(2, B, T, D, dtype=torch.float64)
    source = torch.randn(B, S, D, dtype=torch.float64)
    ahead = torch.ones(T, T).triu(1).bool()
    expected = theirs(x, source, tgt_mask=ahead, memory_key_padding_mask=~REAL if masked else None)
    (expected * cotangent).sum().backward()
    for names in ((), ("self", "cross")):
        ours.zero_grad()
        keys_values = ours.cross_attention.keys_values(source)
        mask = REAL[:, None, None, :] if masked else None
        result = ours(x, AttentionScope(is_causal=True), source=Source(keys_values, mask), return_weights=names)
        exactly(result.x, expected)
        assert [part is not None for part in (result.self_weights, result.cross_weights)] == [bool(names)] * 2
        (result.x * cotangent).sum().backward()
        assert_equal_gradients(pairs)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_blocks_match_torch_layers(activation, norm_first, masked):
    assert_encoder_equals_torch(activation, norm_first, masked)
    assert_decoder_equals_torch(activation, norm_first, masked)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_feed_forward_network_matches_its_equation(activation):
    fed = randomize(FeedForward(D, INNER, activation))
    x = torch.randn(2, 3, D, dtype=torch.float64)
    up = x @ fed.up.weight.T + fed.up.bias
    inner = {"relu": up.clamp(min=0), "gelu": up * (1 + torch.erf(up / 2**0.5)) / 2, "silu": up * up.sigmoid()}
    inner["gelu-tanh"] = up * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (up + 0.044715 * up**3))) / 2
    inner["swiglu"] = inner["silu"] * (x @ fed.gate.weight.T + fed.gate.bias) if fed.gate is not None else up
    exactly(fed(x), inner[activation] @ fed.down.weight.T + fed.down.bias)


def test_norms_match_their_equations():
    x = torch.randn(2, 3, D, dtype=torch.float64)
    for epsilon, (e_layer, e_rms) in {None: (1e-5, 1e-6), 0.1: (0.1, 0.1)}.items():
        layer, rms = randomize(make_norm("layer", D, epsilon)), randomize(make_norm("rms", D, epsilon))
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        exactly(layer(x), layer.weight * centred / (variance + e_layer).sqrt() + layer.bias)
        exactly(rms(x), rms.weight * x / (x.square().mean(-1, keepdim=True) + e_rms).sqrt())
    exactly(make_norm("none", D)(x), x)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("norm", ["layer", "rms", "none"])
def test_residuals_match_their_equations(norm, residual, norm_first):
    torch.manual_seed(4)
    block = randomize(make_block(ResidualConfig(D, norm, norm_first, residual)))
    x = torch.randn(1, S, D, dtype=torch.float64)
    y = x
    sublayers = (block.mixer_residual.norm, block.mixer), (block.feed_forward_residual.norm, block.feed_forward)
    for sublayer_norm, layer in sublayers:
        output = layer(sublayer_norm(y) if norm_first else y)
        output = output[0] if isinstance(output, tuple) else output
        y = output + (y if residual else 0)
        y = y if norm_first else sublayer_norm(y)
    exactly(block(x).x, y)


def test_dropout_applies_to_the_sublayer_output():
    """If the output of the sublayer is dropped completely, the result is x."""
    block = make_block(ResidualConfig(D, "none", dropout=1 - 1e-9)).train()
    x = torch.randn(2, S, D)
    assert torch.equal(block(x).x, x)
    assert not torch.equal(block.eval()(x).x, x)
    inner = FeedForward(D, INNER, dropout=0.5).train()
    assert not torch.equal(inner(x), inner(x))
    torch.testing.assert_close(torch.stack([inner(x) for _ in range(3000)]).mean(0), inner.eval()(x), atol=0.2, rtol=0)


# Negative controls: the tests detect a broken part.

BROKEN = {
    "the mask": ("seqloom.nn.attention.MultiHeadAttention.attend", "mask"),
    "the scale": ("seqloom.nn.attention.MultiHeadAttention.attend", "scale"),
    "the residual": ("seqloom.nn.transformer.Residual.forward", "residual"),
    "the norm": ("seqloom.nn.transformer.make_norm", "norm"),
}


@pytest.mark.parametrize("agree", [assert_encoder_equals_torch, assert_decoder_equals_torch])
@pytest.mark.parametrize("part", BROKEN)
def test_comparison_detects_each_broken_part(part, agree, monkeypatch):
    name, what = BROKEN[part]
    attend = MultiHeadAttention.attend

    def attend_without_mask(self, q, keys_values, mask=None, causal=False, weights=False):
        return attend(self, q, keys_values, None, False, weights)

    def query_without_scale(self, q, *rest, **options):
        return attend(self, q * self.head_width**0.5, *rest, **options)

    replacements: dict[str, Callable[..., Any]] = {
        "mask": attend_without_mask,
        "scale": query_without_scale,
        "residual": lambda self, x, sublayer: (self.norm(sublayer(x)[0]), sublayer(x)[1]),
        "norm": lambda kind, width, epsilon=None: nn.LayerNorm(width, eps=1e-2),
    }
    agree("relu", norm_first=False, masked=True)
    monkeypatch.setattr(name, replacements[what])
    with pytest.raises(AssertionError):
        agree("relu", norm_first=False, masked=True)
