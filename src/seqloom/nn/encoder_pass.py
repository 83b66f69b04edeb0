"""Sources through a Transformer's encoder where nothing is to be learned, in as few passes as it takes.

It computes what the blocks of `seqloom.nn.transformer` compute, and is tested to: as `seqloom.nn.decoder_step` does of
one token, with queries, keys and values as one product, and the residual and its norm within the last product.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from seqloom.nn import decoder_gpu
from seqloom.nn.decoder_step import PRODUCTS, Plain, after, before, fits, joined, usual
from seqloom.nn.mixers import SelfAttention
from seqloom.nn.multihead import MultiHeadAttention
from seqloom.nn.packed import Packed, made_of
from seqloom.nn.transformer import TransformerBlock

PLAIN = Plain()
WIDE = 256  # narrower layers are computed in the time it takes to launch a kernel, and PyTorch's are launched sooner


def pays(blocks: Sequence[TransformerBlock]) -> bool:
    """Whether blocks are of the usual kind, where that makes them faster."""
    if not all(type(block.mixer) is SelfAttention for block in blocks):
        return False
    attentions = [block.self_attention for block in blocks]
    return _wide(attentions[0].q.weight) and usual(blocks, attentions)


def encoder_pass(blocks: Sequence[TransformerBlock]) -> "EncoderPass":
    """That of a model's blocks, made once for the weights they have."""
    made: EncoderPass = made_of(blocks, lambda: EncoderPass(blocks))
    return made


def keys_values_pay(blocks: Sequence[TransformerBlock]) -> bool:
    return _wide(_cross_attention(blocks[0]).k.weight) and fits(blocks)


def _cross_attention(block: TransformerBlock) -> MultiHeadAttention:
    assert block.cross_attention is not None
    return block.cross_attention


def keys_values(blocks: Sequence[TransformerBlock], x: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    """The keys and values (B, N, S, d) that a decoder's blocks have of an encoder's x (B, S, D): all as one product."""
    first, (B, S, _) = _cross_attention(blocks[0]), x.shape
    layers = [layer for block in blocks for layer in (_cross_attention(block).k, _cross_attention(block).v)]
    packed: Packed = made_of(layers, lambda: Packed.all_of(layers))
    made = packed(x.flatten(0, 1)).view(B, S, len(blocks), 2, first.heads, first.head_width)
    return tuple((k, v) for k, v in made.permute(2, 3, 0, 4, 1, 5).contiguous())


class EncoderPass:
    def __init__(self, blocks: Sequence[TransformerBlock]) -> None:
        self.blocks = [_Block(block) for block in blocks]

    def __call__(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (B, S, D) and its mask (B, S) to the same shape."""
        some = mask.any(dim=1, keepdim=True)
        allowed, rows = (mask | ~some)[:, None, None, :], x.flatten(0, 1)
        for block in self.blocks:
            rows = block(rows, allowed, some)
        return rows.view(x.shape)


class _Block:
    def __init__(self, block: TransformerBlock) -> None:
        attention, feed = block.self_attention, block.feed_forward
        self.heads, self.width = attention.heads, attention.head_width
        self.own, self.out = joined(attention, "qkv"), Packed.of(attention.out)
        self.up, self.down = Packed.of(feed.up, PRODUCTS[feed.activation]), Packed.of(feed.down)
        self.mixer_residual, self.feed_forward_residual = block.mixer_residual, block.feed_forward_residual

    def __call__(self, x: Tensor, allowed: Tensor, some: Tensor) -> Tensor:
        """Rows x (B·S, D) to the same shape; sources without `some` (B, 1) place to look at see zeros."""
        B, S = len(allowed), allowed.shape[-1]
        residual = self.mixer_residual
        made = self.own(before(residual, x, PLAIN)).view(B, S, 3, self.heads, self.width)
        q, k, v = made.permute(2, 0, 3, 1, 4)  # (B, N, S, d) each
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=1.0)
        seen = seen.transpose(1, 2).reshape(B, -1).masked_fill(~some, 0)
        x = after(residual, x, self.out, seen.view(x.shape), PLAIN)
        residual = self.feed_forward_residual
        return after(residual, x, self.down, self.up(before(residual, x, PLAIN)), PLAIN)


def _wide(weight: Tensor) -> bool:
    return len(weight) >= WIDE and decoder_gpu.suits(weight)
