"""Parts of a decoder step for float32 tensors on a GPU, with the kernels of `seqloom.accel.decoding.decoder_triton`."""

import functools
import importlib
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.device import has_triton

MIN_ROWS = 32  # with fewer rows, PyTorch's product is as fast
MAX_SPLIT_WEIGHTS = 1 << 26  # larger weights are not split, because the parts take twice their memory
MIN_TILE = 16  # minimum number of rows and columns of the matrices that a kernel multiplies
KEY_BLOCK = 16  # number of keys and values that a kernel reads per iteration
MAX_HEAD_WIDTH, MAX_HYPOTHESES = 128, 32  # head width and hypotheses per source that fit on every supported GPU
TILE = 64, 64, 32  # rows, columns and depth that a program multiplies per iteration
NARROW_TILE, TALL_TILE = (64, 32, 64), (128, 64, 32)  # used if the product has few or many tiles
FEW_TILES, MANY_TILES = 64, 1500
ENOUGH_PROGRAMS, MAX_SPLITS = 200, 8  # number of programs that fill a GPU; maximum number per tile
MIN_SPLIT_DEPTH, MAX_REDUCED_COLUMNS = 128, 4096  # limits for products in which programs share a tile
MAX_RANKED_VOCABULARY, RANKING_BLOCK = 1 << 15, 128  # tokens
ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2}


@functools.cache
def kernels() -> Any:
    return importlib.import_module("seqloom.accel.decoding.decoder_triton")


def supports_weight(weight: Tensor) -> bool:
    """Return whether the kernels support a weight: it must be on a GPU with TF32, and small enough to be split."""
    if not weight.is_cuda or weight.dtype != torch.float32 or weight.numel() > MAX_SPLIT_WEIGHTS or not has_triton():
        return False
    return torch.version.hip is None and torch.cuda.get_device_capability(weight.device) >= (8, 0)


def supports_attention(width: int, hypotheses: int) -> bool:
    """Return whether the kernel supports the head width and the number of hypotheses per source."""
    return MIN_TILE <= width <= MAX_HEAD_WIDTH and width & (width - 1) == 0 and hypotheses <= MAX_HYPOTHESES


def split_tf32(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Split W into W₁ + W₂, with W₁ rounded to the 11 bits of TF32."""
    high = ((weight.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
    return high, weight - high


def fused_linear(
    x: Tensor,
    weight: tuple[Tensor, Tensor],
    bias: Tensor | None = None,
    activation: str = "none",
    addend: Tensor | None = None,
    norm: nn.LayerNorm | None = None,
) -> Tensor:
    """Compute norm(activation(x Wᵀ + b) + addend) from x (R, D) and a split W (N, D)."""
    x, (R, D), N = x.contiguous(), x.shape, len(weight[0])
    (rows, columns, depth), splits = _choose_tile(R, N, D)
    out, is_reduced = x.new_empty(splits, R, N), norm is not None or splits > 1
    operands = x if bias is None else bias, x if addend is None else addend.contiguous()
    epilogue = {"BIAS": bias is not None, "ADDEND": addend is not None, "ACTIVATION": ACTIVATIONS[activation]}
    no_epilogue = {"BIAS": False, "ADDEND": False, "ACTIVATION": 0}
    with torch.cuda.device_of(x):
        kernels().fused_linear[(-(-R // rows), -(-N // columns), splits)](
            x, *weight, *operands, out, R, N, D, -(-D // (splits * depth)) * depth,
            **(no_epilogue if is_reduced else epilogue), ROWS=rows, WIDTH=columns, DEPTH=depth,
            num_warps=4, num_stages=3,
        )  # fmt: skip
        if not is_reduced:
            return out[0]
        reduced, gain, shift, epsilon = x.new_empty(R, N), x, x, 0.0
        if norm is not None:
            gain, shift, epsilon = norm.weight.detach(), norm.bias.detach(), norm.eps
        kernels().reduce_splits[(R,)](
            out, *operands, gain, shift, epsilon, reduced, R, N, SPLITS=splits, **epilogue, NORM=norm is not None,
            WIDTH=1 << (N - 1).bit_length(), num_warps=4,
        )  # fmt: skip
    return reduced


def supports_norm(norm: nn.LayerNorm) -> bool:
    return norm.bias is not None and norm.weight.numel() <= MAX_REDUCED_COLUMNS


def _choose_tile(R: int, N: int, D: int) -> tuple[tuple[int, int, int], int]:
    """Return the tile for a product, and the number of programs per tile."""
    tiles = -(-R // TILE[0]) * -(-N // TILE[1])
    if tiles >= MANY_TILES:
        return TALL_TILE, 1
    splits, max_splits = 1, min(MAX_SPLITS, D // MIN_SPLIT_DEPTH) if N <= MAX_REDUCED_COLUMNS else 1
    while tiles * splits < ENOUGH_PROGRAMS and 2 * splits <= max_splits:
        splits *= 2
    return (NARROW_TILE if tiles < FEW_TILES else TILE), splits


def supports_ranking(logits: Tensor) -> bool:
    return logits.dtype == torch.float32 and logits.shape[1] <= MAX_RANKED_VOCABULARY


def rank_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Apply `seqloom.core.tokens.rank_tokens` to the log softmax of logits (R, V)."""
    R, V = logits.shape
    count, blocks = min(count, V), max(2, 1 << (-(-V // RANKING_BLOCK) - 1).bit_length())
    values, ids = logits.new_empty(R, count), torch.empty(R, count, dtype=torch.long, device=logits.device)
    with torch.cuda.device_of(logits):
        kernels().rank_tokens[(R,)](
            logits, values, ids, V, COUNT=count, BLOCKS=blocks, BLOCK=RANKING_BLOCK,
            num_warps=max(1, min(16, blocks // 16)),
        )  # fmt: skip
    return values, ids


def attend_to_cache(qkv: Tensor, cache: Tensor, owned: Tensor, step: Tensor) -> Tensor:
    """Return the self-attention outputs (R, N·d) of scaled queries, keys and values (R, 3, N, d).

    The new keys and values are written to the cache (B, N, 2, P, d), which already holds `step` tokens. A query attends
    to its own token and to the slots that `owned` (R, P) marks.
    """
    keys, values = cache.unbind(dim=2)
    return _attend(qkv[:, 0], keys, values, owned.view(torch.uint8), step, is_self=True)


def attend_to_source(q: Tensor, keys: Tensor, values: Tensor, added: Tensor) -> Tensor:
    """Return the attention outputs (R, N·d) of scaled queries (R, N, d) to keys and values (B, N, S, d).

    `added` (B, 1, 1, S) is added to the scores.
    """
    if keys.stride() != values.stride():
        keys, values = keys.contiguous(), values.contiguous()
    return _attend(q, keys, values, added.contiguous(), added, is_self=False)


def _attend(q: Tensor, keys: Tensor, values: Tensor, allowed: Tensor, step: Tensor, is_self: bool) -> Tensor:
    (R, N, d), (B, _, P, _) = q.shape, keys.shape
    out, k = q.new_empty(R, N * d), R // B
    source, head, position, element = keys.stride()
    assert q.stride()[1:] == (d, 1) and element == 1
    with torch.cuda.device_of(q):
        kernels().attend[(B, N)](
            q, keys, values, allowed, step, out, q.stride(0), source, head, position, allowed.shape[-1], N, P,
            HYPOTHESES=k, ROWS=max(MIN_TILE, 1 << (k - 1).bit_length()), WIDTH=d, SELF=is_self, KEY_BLOCK=KEY_BLOCK,
            num_warps=1,
        )  # fmt: skip
    return out
