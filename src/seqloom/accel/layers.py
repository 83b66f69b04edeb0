"""Faster implementations of layers.

Attention uses torch's fused kernels if they are faster. Dropout on a CPU draws its random bits on all cores. Padding is
skipped on a CPU but computed on a GPU, where locating the padding would require a synchronization.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.tree import GrowingBuffer
from seqloom.nn import attention, masks
from seqloom.nn.bidirectional import BidirectionalStack, read_sequences
from seqloom.nn.masks import AttentionMask, AttentionScope, all_known_true, any_known_true, select_real
from seqloom.nn.recurrent import Stack
from seqloom.nn.transformer import Source, StackOutput, TransformerStack, WeightRequests, run_blocks, source_keys_values

MAX_PLAIN_QUERIES = 16  # for at most this many queries, plain attention is faster than the fused kernel on a CPU
SIMD_WIDTH = 16  # float32 values in a CPU register
CUDNN_TILE = 128  # keys in a tile of cuDNN's attention


def install() -> None:
    attention.scaled_dot_product_attention.register(fused_attention_applies, fused_attention)
    attention.softmax.register(is_short_on_cpu, short_softmax)
    attention.project.register(needs_gpu_gradient, joint_projection)
    run_blocks.register(runs_on_gpu, run_blocks_on_gpu)
    source_keys_values.register(decoder_needs_gpu_gradient, joint_keys_values)
    all_known_true.register(is_not_on_cpu, assume_false)
    any_known_true.register(is_not_on_cpu, assume_false)
    select_real.register(selects_on_cpu, select_on_cpu)
    read_sequences.register(reads_on_cpu, read_on_cpu)
    masks.drop.register(on_cpu, drop)


def fused_attention_applies(q: Tensor, *_: object, **__: object) -> bool:
    return q.shape[2] > MAX_PLAIN_QUERIES or q.device.type != "cpu"


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None, is_causal: bool, scale: float, dropout: float = 0.0
) -> Tensor:
    """Attend with torch's fused kernel, which does not store the attention weights."""
    (_, heads, T, _), (_, kv_heads, S, _) = q.shape, k.shape
    if is_causal and not (T == S and mask is None):  # the kernel aligns its causal mask with the first key
        mask, is_causal = attention.with_causal(mask, T, S, q.device), False
    kernel = partial(F.scaled_dot_product_attention, dropout_p=dropout, scale=scale)
    if kv_heads < heads:  # the heads are symbolic while a block is compiled, but the kernel requires a bool
        kernel = partial(kernel, enable_gqa=True)
    allowed = None if mask is None else mask.mask
    if mask is None or mask.every_query_attends or q.device.type == "cpu":  # a query without keys gives zeros
        return kernel(q, k, v, attn_mask=allowed, is_causal=is_causal)
    has_keys = mask.mask.any(dim=-1, keepdim=True)  # not all GPU kernels give zeros
    return kernel(q, k, v, attn_mask=mask.mask | ~has_keys).masked_fill(~has_keys, 0)


def is_short_on_cpu(scores: Tensor) -> bool:
    return scores.device.type == "cpu" and 0 < scores.shape[-1] < SIMD_WIDTH


def short_softmax(scores: Tensor) -> Tensor:
    """Compute the softmax of rows shorter than a register, which torch does not vectorize."""
    exponentials = (scores - scores.detach().amax(dim=-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def needs_gpu_gradient(layers: Sequence[nn.Linear], x: Tensor) -> bool:
    is_plain = all(type(layer) is nn.Linear for layer in layers)  # a layer with LoRA has more than its weight
    return is_plain and x.device.type != "cpu" and torch.is_grad_enabled()


def joint_projection(layers: Sequence[nn.Linear], x: Tensor) -> Sequence[Tensor]:
    """Compute all projections in one matrix product."""
    weight = torch.cat([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return F.linear(x, weight, bias).split([layer.out_features for layer in layers], dim=-1)


def decoder_needs_gpu_gradient(stack: TransformerStack, x: Tensor) -> bool:
    return needs_gpu_gradient(key_value_layers(cross_attentions(stack)), x)


def joint_keys_values(stack: TransformerStack, x: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    """Compute the keys and values of all blocks in one matrix product."""
    attentions = cross_attentions(stack)
    parts = joint_projection(key_value_layers(attentions), x)
    return tuple(attention.split_keys_values(*parts[2 * i : 2 * i + 2]) for i, attention in enumerate(attentions))


def cross_attentions(stack: TransformerStack) -> list[attention.MultiHeadAttention]:
    return [block.cross_attention for block in stack if block.cross_attention is not None]


def key_value_layers(attentions: Sequence[attention.MultiHeadAttention]) -> list[nn.Linear]:
    return [layer for attention in attentions for layer in (attention.k, attention.v)]


def runs_on_gpu(
    stack: TransformerStack, x: Tensor, scope: AttentionScope, caches: object, *_: object, **__: object
) -> bool:
    return x.is_cuda and caches is None


def run_blocks_on_gpu(
    stack: TransformerStack,
    x: Tensor,
    scope: AttentionScope,
    caches: Sequence[GrowingBuffer] | None,
    sources: Sequence[Source] | None,
    return_weights: WeightRequests,
) -> StackOutput:
    """Run the blocks; with few keys, disable cuDNN's attention, because other kernels are then faster.

    A global setting of PyTorch enables the kernels. PyTorch reads the setting when a block is compiled.
    """
    torch.backends.cuda.enable_cudnn_sdp(x.shape[1] >= CUDNN_TILE)
    return run_blocks.definition(stack, x, scope, caches, sources, return_weights)


# --- dropout and padding ----------------------------------------------------------------------------------------------


def on_cpu(x: Tensor, p: float) -> bool:
    return x.device.type == "cpu"


def drop(x: Tensor, p: float) -> Tensor:
    """Apply dropout with 64 random bits for every four numbers; p is rounded to a multiple of 1/65536."""
    levels = 1 << 16
    dropped_levels = min(round(p * levels), levels - 1)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    level = bits[: x.numel()].view(x.shape)  # −levels/2 … levels/2 − 1
    kept = torch.ge(level, dropped_levels - levels // 2, out=torch.empty(x.shape, dtype=x.dtype))
    return x * kept.mul_(levels / (levels - dropped_levels))


def is_not_on_cpu(mask: Tensor) -> bool:
    return mask.device.type != "cpu"


def assume_false(mask: Tensor) -> bool:
    return False


def selects_on_cpu(x: Tensor, mask: Tensor) -> bool:
    return x.device.type == "cpu"


def select_on_cpu(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask]


def reads_on_cpu(stack: Stack | BidirectionalStack, x: Tensor, mask: Tensor) -> bool:
    return not x.is_cuda


def read_on_cpu(stack: Stack | BidirectionalStack, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    outputs, state = stack(x, mask=mask)
    return outputs, stack.ends(state) if isinstance(stack, BidirectionalStack) else state[-1]["h"]
