"""What the blocks of a Transformer compute, in the open: every query, key, score, weight and sum on the way.

The model's own layers are called one by one, in the order of `seqloom.nn.transformer`; only the softmax of attention is
written out here, so that it can be looked at. All tensors are of one text: (T, D), heads (N, T, d).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.nn.masks import causal_mask
from seqloom.nn.multihead import MultiHeadAttention
from seqloom.nn.transformer import FeedForward, Residual, TransformerBlock


class Looked(NamedTuple):
    """One attention, all heads."""

    before: Tensor  # x (T, D) that came in
    seen: Tensor  # x as the layer sees it (T, D): normed, where norms stand first
    q: Tensor  # (N, T, d)
    k: Tensor  # (N, S, d)
    v: Tensor  # (N, S, d)
    scores: Tensor  # q·k times the scale (N, T, S); −∞ where a place may not look
    weights: Tensor  # (N, T, S)
    mixed: Tensor  # Σ_j α_j v_j (N, T, d)
    made: Tensor  # [head_1; …; head_N] W^O (T, D)
    after: Tensor  # with the way around, and the norm where it stands last (T, D)


class Fed(NamedTuple):
    """One feed-forward layer."""

    before: Tensor
    seen: Tensor
    inner: Tensor  # (T, 4D or so)
    made: Tensor
    after: Tensor


class Block(NamedTuple):
    """What a block did; `cross` is of a decoder alone, and `own` is None where an encoder's layer does not attend."""

    before: Tensor
    own: Looked | None
    cross: Looked | None
    fed: Fed
    after: Tensor


def look(
    attention: MultiHeadAttention,
    residual: Residual,
    x: Tensor,
    memory: Tensor | None = None,
    allowed: Tensor | None = None,
) -> Looked:
    """x (T, D) asks itself, or a memory (S, D). `allowed` (T, S) is True where a place may look."""

    def attend(seen: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        q = attention.queries(seen.unsqueeze(0))[0]
        k, v = (each[0] for each in attention.keys_values((seen if memory is None else memory).unsqueeze(0)))
        group = attention.heads // attention.kv_heads
        k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
        scores = q @ k.transpose(1, 2) * attention.scale
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -torch.inf)
        weights = torch.softmax(scores, dim=-1)
        mixed = weights @ v
        made = attention.out(mixed.transpose(0, 1).flatten(1))
        return made, (seen, q, k, v, scores, weights, mixed, made)

    after, parts = residual(x, attend)
    seen, q, k, v, scores, weights, mixed, made = parts
    return Looked(x, seen, q, k, v, scores, weights, mixed, made, after)


def feed(feed_forward: FeedForward, residual: Residual, x: Tensor) -> Fed:
    def run(seen: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        inner = feed_forward.activation(feed_forward.up(seen))
        if feed_forward.gate is not None:
            inner = inner * feed_forward.gate(seen)
        made = feed_forward.down(inner)
        return made, (seen, inner, made)

    after, parts = residual(x, run)
    seen, inner, made = parts
    return Fed(x, seen, inner, made, after)


def encoder_block(block: TransformerBlock, x: Tensor) -> Block:
    """A block whose mixer may be self-attention, a window of it, or something without weights."""
    attention = getattr(block.mixer, "attention", None)
    own = None
    if attention is None:
        after, _ = block.mixer_residual(x, lambda seen: (block.mixer(seen.unsqueeze(0))[0][0], None))
    else:
        own = look(attention, block.mixer_residual, x, allowed=_window(getattr(block.mixer, "reach", None), x))
        after = own.after
    fed = feed(block.feed_forward, block.feed_forward_residual, after)
    return Block(x, own, None, fed, fed.after)


def _window(reach: int | None, x: Tensor) -> Tensor | None:
    place = torch.arange(len(x), device=x.device)
    return None if reach is None else (place[:, None] - place[None, :]).abs() <= reach


def text_block(block: Any, x: Tensor, *, allowed: Tensor | None) -> Block:
    """A block of self-attention in which `allowed` (T, T) says who may look at whom; None if all may."""
    own = look(block.mixer.attention, block.mixer_residual, x, allowed=allowed)
    fed = feed(block.feed_forward, block.feed_forward_residual, own.after)
    return Block(x, own, None, fed, fed.after)


def decoder_block(block: Any, x: Tensor, memory: Tensor, *, causal: bool = True) -> Block:
    """A block that also attends to a source."""
    allowed = causal_mask(len(x), len(x), device=x.device) if causal else None
    own = look(block.mixer.attention, block.mixer_residual, x, allowed=allowed)
    cross = look(block.cross_attention, block.cross_residual, own.after, memory)
    fed = feed(block.feed_forward, block.feed_forward_residual, cross.after)
    return Block(x, own, cross, fed, fed.after)
