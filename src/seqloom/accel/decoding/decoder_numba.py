"""Parts of a decoder step for float32 tensors on a CPU, with the numba kernels of `decoder_loops`.

Only the batch size determines whether the kernels are loaded, so the same search always gives the same result.
"""

import functools
import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.core.device import has_numba

MIN_SOURCES = 32  # for smaller batches, loading the kernels takes longer than they save
MIN_LOGIT_ROWS = 128  # with fewer rows, loading the kernels for `best_tokens` takes longer than they save
MAX_COUNT = 128  # if more tokens per row are requested, sorting is faster than inserting each token
NO_WEIGHTS = np.empty((0, 0, 0), dtype=np.float32)
LANES = 16  # values in a register; the widths of heads and norms must be multiples of this number


def is_available() -> bool:
    """Return whether the kernels can be used. The check loads the kernels, so call it last."""
    return kernels() is not None


@functools.cache
def kernels() -> Any:
    """Return the module of the kernels, or None if the kernels cannot be compiled. The first import compiles the
    kernels and caches them on disk.
    """
    if not has_numba():
        return None
    try:
        return importlib.import_module("seqloom.accel.decoding.decoder_loops")
    except Exception:  # any compiler error on an unknown CPU
        return None


def supports(weight: Tensor, head_width: int) -> bool:
    """Return whether the kernels support the weights and the head width of a decoder."""
    fits = weight.shape[1] % LANES == 0 and head_width % LANES == 0
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and fits


def free_slots(owned: Tensor, sources: int) -> int:
    """Return the smallest number of free slots of any source; `owned` (R, P) marks the slots in use."""
    return int(kernels().free_slots(owned.numpy(), len(owned) // sources))


def take_slots(owned: Tensor, sources: int) -> Tensor:
    """Give each hypothesis a free slot (B, k) and mark it in `owned`; there must be enough free slots."""
    slots = torch.empty(sources, len(owned) // sources, dtype=torch.long, device="cpu")
    kernels().take_slots(owned.numpy(), slots.numpy())
    return slots


def capacity(cache: Tensor) -> int:
    """Return the number of slots in the memory of a cache (B, N, 2, P, d)."""
    return cache.stride(2) // cache.shape[4]


def attend_to_cache(qkv: Tensor, cache: Tensor, owned: Tensor, slots: Tensor, out: Tensor) -> Tensor:
    """Return the self-attention outputs `out` (R, N·d) of scaled queries, keys and values (R, 3, N·d).

    Keys and values go to `slots` (B, k) of the cache (B, N, 2, P, d); queries attend to the slots that they own (R, P).
    """
    (B, N, _, P, d), C, k = cache.shape, capacity(cache), slots.shape[1]
    assert cache.stride() == (N * 2 * C * d, 2 * C * d, C * d, d, 1) and cache.dtype == torch.float32
    assert _is_contiguous(qkv, out) and _is_contiguous(owned, dtype=torch.bool)
    assert _is_contiguous(slots, dtype=torch.long)
    kernels().attend_to_cache(*map(Tensor.data_ptr, (qkv, cache, owned, slots, out)), B, k, N, P, C, d)
    return out


def attend_to_source(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, out: Tensor, weights_out: Tensor | None = None
) -> Tensor:
    """Return the attention outputs `out` (R, N·d) of scaled queries (R, N·d) to keys and values (B, N, S, d).

    `mask` (B, S) is True at real positions. The attention weights are written to `weights_out` (R, N, S), if given.
    """
    B, N, S, d = keys.shape
    assert _is_contiguous(q, keys, values, out) and _is_contiguous(mask, dtype=torch.bool)
    addresses, weights = map(Tensor.data_ptr, (q, keys, values, mask, out)), NO_WEIGHTS
    if weights_out is not None:
        weights = weights_out.numpy()
    kernels().attend_to_source(*addresses, weights, B, q.shape[0] // B, N, S, d)
    return out


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, epsilon: float, out: Tensor) -> Tensor:
    """Normalize the rows of x (R, D); `out` may be x."""
    assert _is_contiguous(x, gain, bias, out)
    kernels().layer_norm(*map(Tensor.data_ptr, (x, gain, bias, out)), *x.shape, epsilon)
    return out


def _is_contiguous(*tensors: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    return all(tensor.is_contiguous() and tensor.dtype is dtype for tensor in tensors)


def best_tokens(chunks: Iterable[Tensor], rows: int, count: int) -> tuple[Tensor, Tensor]:
    """Apply `seqloom.core.tokens.best_tokens` to the log softmax of chunks of logits (·, V).

    The chunks have `rows` rows in total.
    """
    values, ids = (torch.empty(rows, count, dtype=dtype, device="cpu") for dtype in (torch.float32, torch.long))
    values_array, ids_array, start = values.numpy(), ids.numpy(), 0
    for logits in chunks:
        stop = start + logits.shape[0]
        kernels().best_tokens(logits.numpy(), values_array[start:stop], ids_array[start:stop])
        start = stop
    return values, ids
