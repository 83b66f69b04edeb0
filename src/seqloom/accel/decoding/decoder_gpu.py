"""Parts of a decoder's step, of tensors on a GPU in float32, by `seqloom.accel.decoding.decoder_triton`.

Everywhere else PyTorch computes the same, and the tests hold the one to the other.
"""

import functools
import importlib
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.device import has_triton

ROWS = 32  # from which a product is worth a kernel of our own
LARGEST = 1 << 26  # weights that are kept in parts as well, which takes twice their memory
MIN_TILE = 16  # rows and columns of the matrices that a kernel multiplies
PLACES = 16  # of keys and values that are looked at together
WIDEST_HEAD, MOST_HYPOTHESES = 128, 32  # of a source, for which every such GPU has room
TILE = 64, 64, 32  # rows, columns and depth of what one program multiplies at a time,
NARROW, TALL = (64, 32, 64), (128, 64, 32)  # and where there would be few such tiles, or
FEW, MANY = 64, 1500  # many
ENOUGH, MOST = 200, 8  # programs that fill a GPU, and those that share a tile
SHARE, WIDEST = 128, 4096  # what each takes of a depth, and columns that are shared
VOCABULARY, BLOCK = 1 << 15, 128  # tokens at most that are ranked at once, and those looked at again
ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2}


@functools.cache
def kernels() -> Any:
    return importlib.import_module("seqloom.accel.decoding.decoder_triton")


def suits(weight: Tensor) -> bool:
    """Whether products with such weights can be made so: the GPU has units for TF32, and room for their parts."""
    if not weight.is_cuda or weight.dtype != torch.float32 or weight.numel() > LARGEST or not has_triton():
        return False
    return torch.version.hip is None and torch.cuda.get_device_capability(weight.device) >= (8, 0)


def suits_attention(width: int, hypotheses: int) -> bool:
    """Whether the kernel is for heads so wide, and so many hypotheses of a source."""
    return MIN_TILE <= width <= WIDEST_HEAD and width & (width - 1) == 0 and hypotheses <= MOST_HYPOTHESES


def parts(weight: Tensor) -> tuple[Tensor, Tensor]:
    """W = W₁ + W₂, of which W₁ has the nearest numbers of 11 bits: `parted` of the kernels."""
    large = ((weight.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
    return large, weight - large


def product(
    x: Tensor,
    weight: tuple[Tensor, Tensor],
    bias: Tensor | None = None,
    activation: str = "none",
    plus: Tensor | None = None,
    norm: nn.LayerNorm | None = None,
) -> Tensor:
    """norm(activation(x Wᵀ + b) + plus) of x (R, D) and the parts of W (N, D)."""
    x, (R, D), N = x.contiguous(), x.shape, len(weight[0])
    (rows, columns, depth), shares = _shared(R, N, D)
    out, apart = x.new_empty(shares, R, N), norm is not None or shares > 1
    after = x if bias is None else bias, x if plus is None else plus.contiguous()
    what = {"BIAS": bias is not None, "PLUS": plus is not None, "ACTIVATION": ACTIVATIONS[activation]}
    nothing = {"BIAS": False, "PLUS": False, "ACTIVATION": 0}
    with torch.cuda.device_of(x):
        kernels().product[(-(-R // rows), -(-N // columns), shares)](
            x, *weight, *after, out, R, N, D, -(-D // (shares * depth)) * depth, **(nothing if apart else what),
            ROWS=rows, WIDTH=columns, DEPTH=depth, num_warps=4, num_stages=3,
        )  # fmt: skip
        if not apart:
            return out[0]
        found, (gain, shift, epsilon) = x.new_empty(R, N), (x, x, 0.0) if norm is None else _of_norm(norm)
        kernels().summed[(R,)](
            out, *after, gain, shift, epsilon, found, R, N, SHARES=shares, **what, NORM=norm is not None,
            WIDTH=1 << (N - 1).bit_length(), num_warps=4,
        )  # fmt: skip
    return found


def suits_norm(norm: nn.LayerNorm) -> bool:
    return norm.bias is not None and norm.weight.numel() <= WIDEST


def _of_norm(norm: nn.LayerNorm) -> tuple[Tensor, Tensor, float]:
    return norm.weight.detach(), norm.bias.detach(), norm.eps


def _shared(R: int, N: int, D: int) -> tuple[tuple[int, int, int], int]:
    """The tile for a product, and how many share each."""
    tiles = -(-R // TILE[0]) * -(-N // TILE[1])
    if tiles >= MANY:
        return TALL, 1
    shares = 1
    while tiles * shares < ENOUGH and shares < MOST and 2 * shares * SHARE <= D and N <= WIDEST:
        shares *= 2
    return (NARROW if tiles < FEW else TILE), shares


def suits_ranking(logits: Tensor) -> bool:
    return logits.dtype == torch.float32 and logits.shape[1] <= VOCABULARY


def ranked(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """What `rank_tokens` finds of the log softmax of logits (R, V)."""
    R, V = logits.shape
    count, blocks = min(count, V), max(2, 1 << (-(-V // BLOCK) - 1).bit_length())
    values, ids = logits.new_empty(R, count), torch.empty(R, count, dtype=torch.long, device=logits.device)
    with torch.cuda.device_of(logits):
        kernels().ranked[(R,)](
            logits, values, ids, V, COUNT=count, BLOCKS=blocks, BLOCK=BLOCK, num_warps=max(1, min(16, blocks // 16))
        )
    return values, ids


def attend_to_cache(made: Tensor, cache: Tensor, own: Tensor, at: Tensor) -> Tensor:
    """Scaled queries, keys and values (R, 3, N, d) to what the queries see (R, N·d): what they are and, in a cache (B,
    N, 2, P, d), the places of the `at` tokens before that they own (R, P). Keys and values are written there."""
    keys, values = cache.unbind(dim=2)
    return _attend(made[:, 0], keys, values, own.view(torch.uint8), at, own=True)


def attend_to_source(q: Tensor, keys: Tensor, values: Tensor, added: Tensor) -> Tensor:
    """Scaled queries (R, N, d) to what they see (R, N·d) of keys and values (B, N, S, d), with something added to the
    scores (B, 1, 1, S)."""
    if keys.stride() != values.stride():
        keys, values = keys.contiguous(), values.contiguous()
    return _attend(q, keys, values, added.contiguous(), added, own=False)


def _attend(q: Tensor, keys: Tensor, values: Tensor, allowed: Tensor, at: Tensor, own: bool) -> Tensor:
    (R, N, d), (B, _, P, _) = q.shape, keys.shape
    out, k = q.new_empty(R, N * d), R // B
    source, head, place, one = keys.stride()
    assert q.stride()[1:] == (d, 1) and one == 1
    with torch.cuda.device_of(q):
        kernels().attend[(B, N)](
            q, keys, values, allowed, at, out, q.stride(0), source, head, place, allowed.shape[-1], N, P,
            HYPOTHESES=k, ROWS=max(MIN_TILE, 1 << (k - 1).bit_length()), WIDTH=d, OWN=own, PLACES=PLACES, num_warps=1,
        )  # fmt: skip
    return out
