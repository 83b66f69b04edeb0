"""Faster implementations of layers.

Attention takes torch's fused kernels, or another way where that is faster. Dropout on a CPU draws
bits on all cores. Padding is left out on a CPU, where that saves work, and computed along on a GPU,
where finding it would synchronise.
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
from seqloom.nn.transformer import Source, StackOutput, TransformerStack, Wanted, run_blocks, source_keys_values

MAX_PLAIN_QUERIES = 16  # of a sequence, up to which the definition is faster than the fused kernel on a CPU
REGISTER_NUMBERS = 16  # that a CPU takes at once
CUDNN_TILE = 128  # keys that cuDNN's attention takes at once


def install() -> None:
    attention.scaled_dot_product_attention.register(fused_applies, fused_attention)
    attention.softmax.register(is_short_on_cpu, short_softmax)
    attention.project.register(trains_on_gpu, joint_projection)
    run_blocks.register(runs_on_gpu, run_blocks_on_gpu)
    source_keys_values.register(decoder_trains_on_gpu, joint_keys_values)
    all_known_true.register(is_elsewhere, answer_unknown)
    any_known_true.register(is_elsewhere, answer_unknown)
    select_real.register(selects_on_cpu, select_on_cpu)
    read_sequences.register(reads_on_cpu, read_on_cpu)
    masks.drop.register(on_cpu, drop)


def fused_applies(q: Tensor, *_: object, **__: object) -> bool:
    return q.shape[2] > MAX_PLAIN_QUERIES or q.device.type != "cpu"


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None, is_causal: bool, scale: float, dropout: float = 0.0
) -> Tensor:
    """Attention by torch's fused kernel, which never writes the weights down."""
    (_, heads, T, _), (_, kv_heads, S, _) = q.shape, k.shape
    if is_causal and not (T == S and mask is None):  # the kernel's own causal mask counts from the first key
        mask, is_causal = attention.with_causal(mask, T, S, q.device), False
    kernel = partial(F.scaled_dot_product_attention, dropout_p=dropout, scale=scale)
    if kv_heads < heads:  # a symbol while a block is compiled, and the kernel wants a bool
        kernel = partial(kernel, enable_gqa=True)
    allowed = None if mask is None else mask.mask
    if mask is None or mask.each or q.device.type == "cpu":  # where a query that may attend to nothing gives zeros
        return kernel(q, k, v, attn_mask=allowed, is_causal=is_causal)
    some = mask.mask.any(dim=-1, keepdim=True)  # not every kernel of a GPU does
    return kernel(q, k, v, attn_mask=mask.mask | ~some).masked_fill(~some, 0)


def is_short_on_cpu(scores: Tensor) -> bool:
    return scores.device.type == "cpu" and 0 < scores.shape[-1] < REGISTER_NUMBERS


def short_softmax(scores: Tensor) -> Tensor:
    """Softmax of rows that do not fill a register, of which torch takes the numbers one by one."""
    powers = (scores - scores.detach().amax(dim=-1, keepdim=True)).exp()
    return powers / powers.sum(dim=-1, keepdim=True)


def trains_on_gpu(layers: Sequence[nn.Linear], x: Tensor) -> bool:
    return x.device.type != "cpu" and torch.is_grad_enabled()


def joint_projection(layers: Sequence[nn.Linear], x: Tensor) -> Sequence[Tensor]:
    """One product in place of many small ones."""
    weight = torch.cat([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return F.linear(x, weight, bias).split([layer.out_features for layer in layers], dim=-1)


def decoder_trains_on_gpu(stack: TransformerStack, x: Tensor) -> bool:
    return trains_on_gpu((), x)


def joint_keys_values(stack: TransformerStack, x: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    """The keys and values of all blocks as one product."""
    attentions = [block.cross_attention for block in stack if block.cross_attention is not None]
    parts = joint_projection([layer for attention in attentions for layer in (attention.k, attention.v)], x)
    return tuple(one.as_keys_values(*parts[2 * i : 2 * i + 2]) for i, one in enumerate(attentions))


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
    wanted: Wanted,
) -> StackOutput:
    """Where there are few keys, other kernels than cuDNN's are faster.

    Which one is taken is decided when a block is compiled, and for all of PyTorch at once.
    """
    torch.backends.cuda.enable_cudnn_sdp(x.shape[1] >= CUDNN_TILE)
    return run_blocks.definition(stack, x, scope, caches, sources, wanted)


# --- dropout and padding ----------------------------------------------------------------------------------------------


def on_cpu(x: Tensor, p: float) -> bool:
    return x.device.type == "cpu"


def drop(x: Tensor, p: float) -> Tensor:
    """Draw 64 bits for four numbers each; p is rounded to 1/65536, and kept values are scaled accordingly."""
    levels = 1 << 16
    dropped = min(round(p * levels), levels - 1)
    drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    level = drawn[: x.numel()].view(x.shape)  # −levels/2 … levels/2 − 1
    kept = torch.ge(level, dropped - levels // 2, out=torch.empty(x.shape, dtype=x.dtype))
    return x * kept.mul_(levels / (levels - dropped))


def is_elsewhere(mask: Tensor) -> bool:
    return mask.device.type != "cpu"


def answer_unknown(mask: Tensor) -> bool:
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
