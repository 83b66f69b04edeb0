"""The encoder pass of a Transformer on a GPU, without gradients, with fused operations.

The pass computes `seqloom.nn.transformer.run_blocks`. As in `decoder_step`, one matrix product computes queries, keys
and values, and the last product of a sublayer includes the residual connection and the norm.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from seqloom.accel.decoding import decoder_gpu
from seqloom.accel.decoding.decoder_step import (
    FUSED_ACTIVATIONS,
    TorchBackend,
    concatenate_projections,
    is_supported,
    is_supported_decoder,
    normalize_input,
    project_and_add,
)
from seqloom.accel.decoding.packed import PackedWeights, cached_by_weights
from seqloom.core.tree import GrowingBuffer
from seqloom.nn.masks import AttentionScope
from seqloom.nn.mixers import SelfAttention
from seqloom.nn.transformer import Source, StackOutput, TransformerBlock, TransformerStack, WeightRequests

TORCH_BACKEND = TorchBackend()
MIN_WIDTH = 256  # the kernels of narrower layers take less time than their launch, and PyTorch launches faster


def applies(
    stack: TransformerStack,
    x: Tensor,
    scope: AttentionScope,
    caches: Sequence[GrowingBuffer] | None,
    sources: Sequence[Source] | None,
    return_weights: WeightRequests,
) -> bool:
    """Return whether the call runs a wide, supported encoder over all real positions and requests no attention
    weights.
    """
    if not len(stack) or scope.padding is None or scope.is_causal:
        return False
    if caches is not None or sources is not None or return_weights:
        return False
    attentions = [block.mixer.attention for block in stack if type(block.mixer) is SelfAttention]
    return len(attentions) == len(stack) and _is_wide(attentions[0].q.weight) and is_supported(stack, attentions)


def run(stack: TransformerStack, x: Tensor, scope: AttentionScope, *_: object, **__: object) -> StackOutput:
    assert scope.padding is not None
    return StackOutput(encoder_pass(stack)(x, scope.padding), (), [], [])


def encoder_pass(stack: TransformerStack) -> "EncoderPass":
    """Return the packed pass of an encoder, cached by its weights."""
    packed: EncoderPass = cached_by_weights([stack], lambda: EncoderPass(stack))
    return packed


def can_pack_keys_values(stack: TransformerStack, x: Tensor) -> bool:
    return is_supported_decoder(stack) and _is_wide(next(iter(stack)).self_attention.k.weight)


def packed_keys_values(stack: TransformerStack, x: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    """Compute the keys and values (B, N, S, d) of all decoder blocks from encoder outputs (B, S, D), in one product."""
    attentions = [block.cross_attention for block in stack if block.cross_attention is not None]
    layers = [layer for attention in attentions for layer in (attention.k, attention.v)]
    packed: PackedWeights = cached_by_weights(layers, lambda: PackedWeights.concatenate(layers))
    (B, S, _), first = x.shape, attentions[0]
    products = packed(x.flatten(0, 1)).view(B, S, len(attentions), 2, first.heads, first.head_width)
    return tuple((k, v) for k, v in products.permute(2, 3, 0, 4, 1, 5).contiguous())


class EncoderPass:
    def __init__(self, stack: TransformerStack) -> None:
        self.blocks = [PackedEncoderBlock(block) for block in stack]

    def __call__(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the encoder outputs (B, S, D) for x (B, S, D) and its mask (B, S)."""
        has_keys = mask.any(dim=1, keepdim=True)
        allowed, rows = (mask | ~has_keys)[:, None, None, :], x.flatten(0, 1)
        for block in self.blocks:
            rows = block(rows, allowed, has_keys)
        return rows.view(x.shape)


class PackedEncoderBlock:
    def __init__(self, block: TransformerBlock) -> None:
        attention, feed_forward = block.self_attention, block.feed_forward
        self.heads, self.width = attention.heads, attention.head_width
        self.qkv, self.out = concatenate_projections(attention, "qkv"), PackedWeights.of(attention.out)
        self.up = PackedWeights.of(feed_forward.up, FUSED_ACTIVATIONS[feed_forward.activation])
        self.down = PackedWeights.of(feed_forward.down)
        self.mixer_residual, self.feed_forward_residual = block.mixer_residual, block.feed_forward_residual

    def __call__(self, x: Tensor, allowed: Tensor, has_keys: Tensor) -> Tensor:
        """Return the outputs for x (B·S, D). Attention gives zeros if `has_keys` (B, 1) is False."""
        B, S = len(allowed), allowed.shape[-1]
        residual = self.mixer_residual
        qkv = self.qkv(normalize_input(residual, x, TORCH_BACKEND)).view(B, S, 3, self.heads, self.width)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, N, S, d) each
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=1.0)
        heads = heads.transpose(1, 2).reshape(B, -1).masked_fill(~has_keys, 0)
        x = project_and_add(residual, x, self.out, heads.view(x.shape), TORCH_BACKEND)
        residual = self.feed_forward_residual
        inner = self.up(normalize_input(residual, x, TORCH_BACKEND))
        return project_and_add(residual, x, self.down, inner, TORCH_BACKEND)


def _is_wide(weight: Tensor) -> bool:
    return len(weight) >= MIN_WIDTH and decoder_gpu.supports_weight(weight)
