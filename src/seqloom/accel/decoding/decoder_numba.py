"""What lies between the products of a decoder's step, by `decoder_loops`, of tensors on a CPU in float32.

Everywhere else PyTorch computes the same, and the tests hold the one to the other. Whether it pays
to load the loops is decided by how much is decoded together, not by what was decoded before: so the
same search always finds the same.
"""

import functools
import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.core.device import has_numba

SOURCES = 32  # decoded together, from which on loading the loops pays
ROWS = 128  # of logits that are searched together, likewise
MOST = 128  # tokens of a row: each is put in its place among the others, which of many takes longer than to sort
NOWHERE = np.empty((0, 0, 0), dtype=np.float32)
LANES = 16  # numbers taken at once: heads, and what is normed, must be a multiple of it wide


def there() -> bool:
    """Whether there are loops. To ask loads them: ask last."""
    return loops() is not None


@functools.cache
def loops() -> Any:
    """Compiled when they are first wanted, and kept for the next process; None where that cannot be."""
    if not has_numba():
        return None
    try:
        return importlib.import_module("seqloom.accel.decoding.decoder_loops")
    except Exception:  # whatever a compiler may say of a machine it does not know
        return None


def suits(weight: Tensor, head_width: int) -> bool:
    """Whether a decoder of such weights and heads can be read so, where there are loops."""
    fits = weight.shape[1] % LANES == 0 and head_width % LANES == 0
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and fits


def free_slots(own: Tensor, sources: int) -> int:
    """Of hypotheses that own places (R, P) of their sources, how many of a source's are nobody's; the fewest of all."""
    return int(loops().free_slots(own.numpy(), len(own) // sources))


def take_slots(own: Tensor, sources: int) -> Tensor:
    """One more place for each hypothesis (B, k), which from now on it owns; there must be as many that are nobody's."""
    at = torch.empty(sources, len(own) // sources, dtype=torch.long, device="cpu")
    loops().take_slots(own.numpy(), at.numpy())
    return at


def capacity(cache: Tensor) -> int:
    """For how many places a cache (B, N, 2, P, d) has room."""
    return cache.stride(2) // cache.shape[4]


def attend_to_cache(made: Tensor, cache: Tensor, own: Tensor, at: Tensor, out: Tensor) -> Tensor:
    """Scaled queries, keys and values (R, 3, N·d), of which the latter go to places `at` (B, k) of the cache
    (B, N, 2, P, d), to what the queries see, `out` (R, N·d), of the places they own (R, P)."""
    (B, N, _, P, d), C, k = cache.shape, capacity(cache), at.shape[1]
    assert cache.stride() == (N * 2 * C * d, 2 * C * d, C * d, d, 1) and cache.dtype == torch.float32
    assert _as_it_lies(made, out) and _as_it_lies(own, dtype=torch.bool) and _as_it_lies(at, dtype=torch.long)
    loops().attend_to_cache(*map(Tensor.data_ptr, (made, cache, own, at, out)), B, k, N, P, C, d)
    return out


def attend_to_source(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, out: Tensor, looked: Tensor | None = None
) -> Tensor:
    """Scaled queries (R, N·d) to what they see, `out` (R, N·d), of keys and values (B, N, S, d) where the mask (B, S)
    is True; and to where they looked (R, N, S), if that is wanted."""
    B, N, S, d = keys.shape
    assert _as_it_lies(q, keys, values, out) and _as_it_lies(mask, dtype=torch.bool)
    weights = NOWHERE if looked is None else looked.numpy()
    loops().attend_to_source(*map(Tensor.data_ptr, (q, keys, values, mask, out)), weights, B, q.shape[0] // B, N, S, d)
    return out


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, epsilon: float, out: Tensor) -> Tensor:
    """Of rows x (R, D); `out` may be x."""
    assert _as_it_lies(x, gain, bias, out)
    loops().layer_norm(*map(Tensor.data_ptr, (x, gain, bias, out)), *x.shape, epsilon)
    return out


def _as_it_lies(*tensors: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    return all(tensor.is_contiguous() and tensor.dtype is dtype for tensor in tensors)


def best_tokens(parts: Iterable[Tensor], rows: int, count: int) -> tuple[Tensor, Tensor]:
    """Of logits (·, V), in parts that are so many rows together, what `seqloom.core.tokens.best_tokens` finds of
    their log softmax."""
    values, ids = (torch.empty(rows, count, dtype=dtype, device="cpu") for dtype in (torch.float32, torch.long))
    of_values, of_ids, done = values.numpy(), ids.numpy(), 0
    for logits in parts:
        after = done + logits.shape[0]
        loops().best_tokens(logits.numpy(), of_values[done:after], of_ids[done:after])
        done = after
    return values, ids
