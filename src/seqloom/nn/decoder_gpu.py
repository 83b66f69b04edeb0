"""Parts of a decoder's step, of tensors on a GPU in float32, by `seqloom.nn.decoder_triton`.

Everywhere else PyTorch computes the same, and the tests hold the one to the other.
"""

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from seqloom.core.device import has_triton

ROWS = 32  # from which a product is worth a kernel of our own
LEAST = 16  # rows and columns of what a kernel multiplies
PLACES = 32  # of keys and values that are looked at together
TILES = {True: (128, 64, 32, 4, 3), False: (64, 32, 64, 4, 3)}  # rows, columns, depth, warps, stages; if many columns
MANY = 4096
DEEP, SHARES, DEEP_TILE, NUMBERS = 1024, 4, (64, 64, 32, 4, 3), 1024  # of products that several share
VOCABULARY, BLOCK = 1 << 15, 128  # tokens at most that are ranked at once, and those looked at again
ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2}


@functools.cache
def kernels() -> Any:
    return importlib.import_module("seqloom.nn.decoder_triton")


def suits(weight: Tensor) -> bool:
    """Whether products with such weights can be made so: the GPU has units for TF32."""
    if not weight.is_cuda or weight.dtype != torch.float32 or not has_triton():
        return False
    return torch.version.hip is None and torch.cuda.get_device_capability(weight.device) >= (8, 0)


def suits_heads(width: int) -> bool:
    return width >= LEAST and width & (width - 1) == 0


def product(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, plus: Tensor | None) -> Tensor:
    """activation(x Wᵀ + b) + plus of x (R, D) and W (N, D)."""
    x, (R, D), N = x.contiguous(), x.shape, len(weight)
    rows, columns, depth, warps, stages = TILES[N >= MANY]
    shares = SHARES if D >= DEEP and N < D else 1
    if shares > 1:
        rows, columns, depth, warps, stages = DEEP_TILE
    out = x.new_empty(shares, R, N)
    after = x if bias is None else bias, x if plus is None else plus.contiguous()
    what = {"BIAS": bias is not None, "PLUS": plus is not None, "ACTIVATION": ACTIVATIONS[activation]}
    nothing = {"BIAS": False, "PLUS": False, "ACTIVATION": 0}
    grid = -(-R // rows), -(-N // columns), shares
    with torch.cuda.device_of(x):
        kernels().product[grid](
            x, weight, *after, out, R, N, D, -(-D // (shares * depth)) * depth, **(what if shares == 1 else nothing),
            ROWS=rows, WIDTH=columns, DEPTH=depth, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        if shares == 1:
            return out[0]
        found = x.new_empty(R, N)
        kernels().summed[(-(-R * N // NUMBERS),)](out, *after, found, R * N, N, SHARES=shares, **what, NUMBERS=NUMBERS)
    return found


def suits_ranking(logits: Tensor) -> bool:
    return logits.dtype == torch.float32 and logits.shape[1] <= VOCABULARY


def ranked(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """What `ranked_tokens` finds of the log softmax of logits (R, V)."""
    R, V = logits.shape
    count, blocks = min(count, V), max(2, 1 << (-(-V // BLOCK) - 1).bit_length())
    values, ids = logits.new_empty(R, count), torch.empty(R, count, dtype=torch.long, device=logits.device)
    with torch.cuda.device_of(logits):
        kernels().ranked[(R,)](
            logits, values, ids, V, COUNT=count, BLOCKS=blocks, BLOCK=BLOCK, num_warps=max(1, min(16, blocks // 16))
        )
    return values, ids


def look_back(q: Tensor, cache: Tensor, own: Tensor, at: Tensor) -> Tensor:
    """Scaled queries (R, N, d) to what they see (R, N·d) of the places of a cache (B, N, 2, P, d) that they own (R, P)
    after `at` tokens and their own."""
    keys, values = cache.unbind(dim=2)
    return _attend(q, keys, values, own.view(torch.uint8), at, own=True)


def look_at_source(q: Tensor, keys: Tensor, values: Tensor, added: Tensor) -> Tensor:
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
            HYPOTHESES=k, ROWS=max(LEAST, 1 << (k - 1).bit_length()), WIDTH=d, OWN=own, PLACES=PLACES, num_warps=2,
        )  # fmt: skip
    return out
