"""Torch Transformer layers and the mapping of their weights, for the tests of this directory."""

from itertools import zip_longest
from typing import Any

import torch
from torch import nn

from seqloom.nn.attention import MultiHeadAttention
from seqloom.nn.mixers import SelfAttention
from seqloom.nn.transformer import FeedForward, ResidualConfig, TransformerBlock

D, N, INNER = 12, 3, 20
Pairs = list[tuple[list[Any], Any]]  # seqloom parameters, and the torch parameter that contains them


def exactly(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


def randomize(module):
    """Convert to double precision. The weights are large enough for every part to have an effect."""
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -0.7, 0.7)
    return module.double()


@torch.no_grad()
def copy_attention(ours: Any, theirs: Any) -> Pairs:
    """Copy the weights.

    Return the pairs of parameters whose gradients can be compared. Torch stores q, k and v together.
    """
    pairs: Pairs = [([part.weight for part in (ours.q, ours.k, ours.v)], theirs.in_proj_weight)]
    pairs += [([ours.out.weight], theirs.out_proj.weight)]
    if theirs.in_proj_bias is not None:
        pairs += [([part.bias for part in (ours.q, ours.k, ours.v)], theirs.in_proj_bias)]
        pairs += [([ours.out.bias], theirs.out_proj.bias)]
    return copy_weights(pairs)


@torch.no_grad()
def copy_weights(pairs):
    for ours, theirs in pairs:
        for parameter, value in zip(ours, theirs.chunk(len(ours)), strict=True):
            parameter.copy_(value)
    return pairs


def assert_equal_gradients(pairs):
    for ours, theirs in pairs:
        exactly(torch.cat([parameter.grad for parameter in ours]), theirs.grad)


def plain_pairs(ours: Any, theirs: Any) -> Pairs:
    """Return parameter pairs of modules with equal parameter names."""
    named = dict(theirs.named_parameters())
    return [([parameter], named[name]) for name, parameter in ours.named_parameters()]


def make_block(residual: ResidualConfig, activation: Any = "relu", cross: MultiHeadAttention | None = None) -> Any:
    mixer = SelfAttention(MultiHeadAttention(D, N))
    return TransformerBlock(mixer, FeedForward(D, INNER, activation), residual, cross)


def encoder_block(theirs: Any, activation: Any, norm_first: bool) -> tuple[Any, Pairs]:
    ours = make_block(ResidualConfig(D, norm_first=norm_first), activation).double()
    pairs = copy_attention(ours.self_attention, theirs.self_attn)
    pairs += _copy_remaining(ours, theirs, [ours.mixer_residual, ours.feed_forward_residual])
    return ours, pairs


def decoder_block(theirs: Any, activation: Any, norm_first: bool) -> tuple[Any, Pairs]:
    ours = make_block(ResidualConfig(D, norm_first=norm_first), activation, MultiHeadAttention(D, N)).double()
    pairs = copy_attention(ours.self_attention, theirs.self_attn)
    pairs += copy_attention(ours.cross_attention, theirs.multihead_attn)
    pairs += _copy_remaining(ours, theirs, [ours.mixer_residual, ours.cross_residual, ours.feed_forward_residual])
    return ours, pairs


def _copy_remaining(ours, theirs, residuals):
    pairs = plain_pairs(ours.feed_forward.up, theirs.linear1) + plain_pairs(ours.feed_forward.down, theirs.linear2)
    norms = [getattr(theirs, f"norm{number}") for number in range(1, len(residuals) + 1)]
    for residual, norm in zip_longest(residuals, norms):
        pairs += plain_pairs(residual.norm, norm)
    return copy_weights(pairs)
