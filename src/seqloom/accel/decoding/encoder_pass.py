"""Sources through a Transformer's encoder where no gradient is wanted, in few passes on a GPU.

It computes what `seqloom.nn.transformer.run_blocks` computes, and is tested to: as `decoder_step`
does of one token, with queries, keys and values as one product, and the residual and its norm
within the last product.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from seqloom.accel.decoding import decoder_gpu
from seqloom.accel.decoding.decoder_step import (
    FUSED_ACTIVATIONS,
    TorchParts,
    add_product,
    is_usual,
    is_usual_decoder,
    join_products,
    normed_input,
)
from seqloom.accel.decoding.packed import PackedWeights, made_of
from seqloom.core.tree import GrowingBuffer
from seqloom.nn.attention import SelfAttention
from seqloom.nn.masks import AttentionScope
from seqloom.nn.transformer import Source, StackOutput, TransformerBlock, TransformerStack, Wanted

TORCH_PARTS = TorchParts()
MIN_WIDTH = 256  # narrower layers are computed in the time it takes to launch a kernel, and PyTorch's launch sooner


def applies(
    stack: TransformerStack,
    x: Tensor,
    scope: AttentionScope,
    caches: Sequence[GrowingBuffer] | None,
    sources: Sequence[Source] | None,
    wanted: Wanted,
) -> bool:
    """A wide encoder of the usual kind, whose scope is all real positions, and nobody wants weights."""
    if scope.padding is None or scope.is_causal or caches is not None or sources is not None or wanted:
        return False
    attentions = [block.mixer.attention for block in stack if type(block.mixer) is SelfAttention]
    return len(attentions) == len(stack) and _is_wide(attentions[0].q.weight) and is_usual(stack, attentions)


def run(stack: TransformerStack, x: Tensor, scope: AttentionScope, *_: object, **__: object) -> StackOutput:
    assert scope.padding is not None
    return StackOutput(encoder_pass(stack)(x, scope.padding), (), [], [])


def encoder_pass(stack: TransformerStack) -> "EncoderPass":
    """The pass of an encoder, made once for the weights it has."""
    made: EncoderPass = made_of([stack], lambda: EncoderPass(stack))
    return made


def keys_values_apply(stack: TransformerStack, x: Tensor) -> bool:
    return is_usual_decoder(stack) and _is_wide(next(iter(stack)).self_attention.k.weight)


def keys_values(stack: TransformerStack, x: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    """The keys and values (B, N, S, d) that a decoder's blocks have of an encoder's x (B, S, D): all as one product."""
    attentions = [block.cross_attention for block in stack if block.cross_attention is not None]
    layers = [layer for attention in attentions for layer in (attention.k, attention.v)]
    packed: PackedWeights = made_of(layers, lambda: PackedWeights.all_of(layers))
    (B, S, _), first = x.shape, attentions[0]
    products = packed(x.flatten(0, 1)).view(B, S, len(attentions), 2, first.heads, first.head_width)
    return tuple((k, v) for k, v in products.permute(2, 3, 0, 4, 1, 5).contiguous())


class EncoderPass:
    def __init__(self, stack: TransformerStack) -> None:
        self.blocks = [PackedEncoderBlock(block) for block in stack]

    def __call__(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (B, S, D) and its mask (B, S) to the same shape."""
        some = mask.any(dim=1, keepdim=True)
        allowed, rows = (mask | ~some)[:, None, None, :], x.flatten(0, 1)
        for block in self.blocks:
            rows = block(rows, allowed, some)
        return rows.view(x.shape)


class PackedEncoderBlock:
    def __init__(self, block: TransformerBlock) -> None:
        attention, feed = block.self_attention, block.feed_forward
        self.heads, self.width = attention.heads, attention.head_width
        self.own, self.out = join_products(attention, "qkv"), PackedWeights.of(attention.out)
        self.up, self.down = PackedWeights.of(feed.up, FUSED_ACTIVATIONS[feed.activation]), PackedWeights.of(feed.down)
        self.mixer_residual, self.feed_forward_residual = block.mixer_residual, block.feed_forward_residual

    def __call__(self, x: Tensor, allowed: Tensor, some: Tensor) -> Tensor:
        """Rows x (B·S, D) to the same shape; sources without `some` (B, 1) position to attend to get zeros."""
        B, S = len(allowed), allowed.shape[-1]
        residual = self.mixer_residual
        qkv = self.own(normed_input(residual, x, TORCH_PARTS)).view(B, S, 3, self.heads, self.width)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, N, S, d) each
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=1.0)
        heads = heads.transpose(1, 2).reshape(B, -1).masked_fill(~some, 0)
        x = add_product(residual, x, self.out, heads.view(x.shape), TORCH_PARTS)
        residual = self.feed_forward_residual
        return add_product(residual, x, self.down, self.up(normed_input(residual, x, TORCH_PARTS)), TORCH_PARTS)


def _is_wide(weight: Tensor) -> bool:
    return len(weight) >= MIN_WIDTH and decoder_gpu.suits(weight)
