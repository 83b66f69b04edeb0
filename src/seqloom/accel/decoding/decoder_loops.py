"""Numba kernels between the matrix products of a decoder step (extra `fast`).

    attend_to_cache, attend_to_source   softmax(q Kᵀ) V for one query per hypothesis, in one pass over its keys
    best_tokens                 log softmax of logits and the largest values of each row, while the row is in the cache
    layer_norm                  γ ⊙ (x − μ) / √(σ² + ε) + β

Compilers do not vectorize such short loops well. The loops therefore use `vector_intrinsics`, which process sixteen
float32 values at a time. numba recompiles a cached kernel only if this file changes, so touch this file after changing
the intrinsics.

Kernels take addresses and sizes of contiguous tensors, because converting tensors to arrays takes longer than some
of the kernels. `seqloom.accel.decoding.decoder_numba` calls them.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from seqloom.accel.decoding.vector_intrinsics import (
    LANES,
    MIN_SCORE,
    REGISTER,
    Array,
    Value,
    add,
    address,
    broadcast,
    exp,
    f32,
    fma,
    load,
    load_broadcast,
    load_flag,
    load_int,
    mask_tail,
    max_lane,
    maximum,
    mul,
    prevent_unrolling,
    store,
    store_int,
    store_sums,
    sub,
    sum_lanes,
)
from seqloom.core.device import compile_cached

BLOCK = 4 * LANES  # number of logits for which one maximum is stored

# --- attention --------------------------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}
function = njit(**OPTIONS)


def loop(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """Compile a kernel on import. The kernel releases the GIL and is cached on disk."""
    return compile_cached(njit, signature, nogil=True, **OPTIONS)


@function
def round_up(count: int, size: int) -> int:
    """Round up to a multiple of `size`."""
    return (count + size - 1) // size * size


@function
def list_true(mask: int, length: int, positions: int) -> int:
    """Write the True positions of a mask to `positions`, padded with the first position to a multiple of four; return
    the number of True positions.
    """
    count = 0
    for position in range(length):
        store_int(positions + 8 * count, position)
        count += load_flag(mask + position)
    for j in range(count, round_up(count, 4)):
        prevent_unrolling()
        store_int(positions + 8 * j, load_int(positions))
    return count


@function
def score(q: int, keys: int, stride: int, positions: int, count: int, scores: int) -> None:
    """Compute q Kᵀ for a query and the keys at `count` positions; `stride` is in bytes."""
    zero = broadcast(f32(0))
    for j in range(0, count, 4):
        k0, k1 = keys + load_int(positions + 8 * j) * stride, keys + load_int(positions + 8 * j + 8) * stride
        k2, k3 = keys + load_int(positions + 8 * j + 16) * stride, keys + load_int(positions + 8 * j + 24) * stride
        s0, s1, s2, s3 = zero, zero, zero, zero
        for i in range(0, stride, REGISTER):
            prevent_unrolling()
            query = load(q + i)
            s0, s1 = fma(query, load(k0 + i), s0), fma(query, load(k1 + i), s1)
            s2, s3 = fma(query, load(k2 + i), s2), fma(query, load(k3 + i), s3)
        store_sums(scores + 4 * j, s0, s1, s2, s3)


@function
def softmax(scores: int, count: int) -> None:
    """Compute the softmax of `count` scores in place. The buffer is padded to whole registers."""
    maxima, sums = broadcast(MIN_SCORE), broadcast(f32(0))
    for j in range(0, count, LANES):
        prevent_unrolling()
        maxima = maximum(mask_tail(load(scores + 4 * j), count - j), maxima)
    largest_score = broadcast(max_lane(maxima))
    for j in range(0, count, LANES):
        prevent_unrolling()
        exponentials = exp(sub(mask_tail(load(scores + 4 * j), count - j), largest_score))
        sums = add(sums, exponentials)
        store(scores + 4 * j, exponentials)
    normalizer = broadcast(f32(1) / sum_lanes(sums))
    for j in range(0, count, LANES):
        prevent_unrolling()
        store(scores + 4 * j, mul(load(scores + 4 * j), normalizer))


@function
def weighted_sum(weights: int, values: int, stride: int, positions: int, count: int, out: int) -> None:
    """Compute w V for `count` weights and the values at their positions."""
    zero = broadcast(f32(0))
    for i in range(0, stride, REGISTER):
        even, odd = zero, zero
        for j in range(0, count, 4):
            prevent_unrolling()
            v0, v1 = load_int(positions + 8 * j) * stride, load_int(positions + 8 * j + 8) * stride
            v2, v3 = load_int(positions + 8 * j + 16) * stride, load_int(positions + 8 * j + 24) * stride
            even = fma(load_broadcast(weights + 4 * j), load(values + v0 + i), even)
            odd = fma(load_broadcast(weights + 4 * j + 4), load(values + v1 + i), odd)
            even = fma(load_broadcast(weights + 4 * j + 8), load(values + v2 + i), even)
            odd = fma(load_broadcast(weights + 4 * j + 12), load(values + v3 + i), odd)
        store(out + i, add(even, odd))


@loop("i8(b1[:,::1], i8)")
def free_slots(owned: Array, k: int) -> int:
    """Return the smallest number of free slots of any source, for `owned` (R, P) with k hypotheses per source."""
    R, P = owned.shape
    fewest = P
    for first in range(0, R, k):
        free = 0
        for slot in range(P):
            taken = False
            for r in range(first, first + k):
                taken |= owned[r, slot]
            free += not taken
        fewest = min(fewest, free)
    return fewest


@loop("void(b1[:,::1], i8[:,::1])")
def take_slots(owned: Array, slot_ids: Array) -> None:
    """Give each hypothesis a free slot of its source: set owned (R, P) and write the slots to slot_ids (B, k)."""
    B, k = slot_ids.shape
    for b in range(B):
        i = 0
        for slot in range(owned.shape[1]):
            taken = i == k
            for r in range(b * k, b * k + k):
                taken |= owned[r, slot]
            if not taken:
                owned[b * k + i, slot], slot_ids[b, i] = True, slot
                i += 1


@loop("void(i8, i8, i8, i8, i8, i8, i8, i8, i8, i8, i8)")
def attend_to_cache(
    qkv: int, cache: int, owned: int, slot_ids: int, out: int, B: int, k: int, N: int, P: int, C: int, d: int
) -> None:
    """Write keys and values to the cache, then compute the self-attention outputs `out` (R, N, d) of the queries.

    Queries, keys and values are (R, 3, N, d). Keys and values go to the slots `slot_ids` (B, k) of the cache
    (B, N, 2, C, d). The queries attend to the first P slots that they own (R, P).
    """
    size, stride = round_up(P, LANES), 4 * d
    weights, slots, counts = np.empty((k, size), f32), np.empty((k, size), np.int64), np.empty(k, np.int64)
    weights_address, slots_address = address(weights), address(slots)
    for _ in range(B):
        for i in range(k):
            counts[i] = list_true(owned + P * i, P, slots_address + 8 * size * i)
        for _ in range(N):
            values = cache + C * stride
            for i in range(k):
                token, slot_offset = qkv + 3 * N * i * stride, load_int(slot_ids + 8 * i) * stride
                for j in range(0, stride, REGISTER):
                    store(cache + slot_offset + j, load(token + N * stride + j))
                    store(values + slot_offset + j, load(token + 2 * N * stride + j))
            for i in range(k):  # interleaves independent hypotheses
                i_slots, i_weights = slots_address + 8 * size * i, weights_address + 4 * size * i
                score(qkv + 3 * N * i * stride, cache, stride, i_slots, counts[i], i_weights)
            for i in range(k):
                softmax(weights_address + 4 * size * i, counts[i])
            for i in range(k):
                i_slots, i_weights = slots_address + 8 * size * i, weights_address + 4 * size * i
                weighted_sum(i_weights, values, stride, i_slots, counts[i], out + N * i * stride)
            cache, qkv, out = cache + 2 * C * stride, qkv + stride, out + stride
        qkv, out = qkv + (3 * k - 1) * N * stride, out + (k - 1) * N * stride
        owned, slot_ids = owned + k * P, slot_ids + 8 * k


@loop("void(i8, i8, i8, i8, i8, f4[:,:,::1], i8, i8, i8, i8, i8)")
def attend_to_source(
    q: int, keys: int, values: int, mask: int, out: int, weights_out: Array, B: int, k: int, N: int, S: int, d: int
) -> None:
    """Compute the attention outputs `out` (R, N, d) of queries (R, N, d) to keys and values (B, N, S, d).

    `mask` (B, S) is True at real positions. The outputs for an empty source are zeros. `weights_out` (R, N, S) may have
    no rows.
    """
    size, stride = round_up(S, LANES), 4 * d
    weights, positions = np.empty((k, size), f32), np.empty(size, np.int64)
    weights_address, positions_address = address(weights), address(positions)
    for b in range(B):
        count = list_true(mask + b * S, S, positions_address)
        for n in range(N):
            for i in range(k):
                score(q + N * i * stride, keys, stride, positions_address, count, weights_address + 4 * size * i)
            for i in range(k):
                softmax(weights_address + 4 * size * i, count)
            for i in range(k):
                i_weights = weights_address + 4 * size * i
                weighted_sum(i_weights, values, stride, positions_address, count, out + N * i * stride)
            keys, values, q, out = keys + S * stride, values + S * stride, q + stride, out + stride
            if len(weights_out):
                for i in range(k):
                    weights_out[b * k + i, n][:] = f32(0)
                    for j in range(count):
                        weights_out[b * k + i, n, positions[j]] = weights[i, j]
        q, out = q + (k - 1) * N * stride, out + (k - 1) * N * stride


# --- norms and the vocabulary -----------------------------------------------------------------------------------------


@loop("void(i8, i8, i8, i8, i8, i8, f8)")
def layer_norm(x: int, gain: int, bias: int, out: int, R: int, D: int, epsilon: float) -> None:
    """Normalize the rows of x (R, D); `out` may be x."""
    zero = broadcast(f32(0))
    for _ in range(R):
        sums, squares = zero, zero
        for i in range(0, 4 * D, REGISTER):
            sums = add(sums, load(x + i))
        mean = broadcast(f32(sum_lanes(sums) / f32(D)))
        for i in range(0, 4 * D, REGISTER):
            deviation = sub(load(x + i), mean)
            squares = fma(deviation, deviation, squares)
        scale = broadcast(f32(1 / math.sqrt(sum_lanes(squares) / D + epsilon)))
        for i in range(0, 4 * D, REGISTER):
            deviation = mul(sub(load(x + i), mean), scale)
            store(out + i, fma(deviation, load(gain + i), load(bias + i)))
        x, out = x + 4 * D, out + 4 * D


@function
def sum_exponentials(block: int, largest: Value) -> Value:
    """Sum e^(x − largest) over a block of logits, into one register."""
    a = add(exp(sub(load(block), largest)), exp(sub(load(block + REGISTER), largest)))
    b = add(exp(sub(load(block + 2 * REGISTER), largest)), exp(sub(load(block + 3 * REGISTER), largest)))
    return add(a, b)


@function
def insert(best: Array, ids: Array, count: int, value: float, token: int) -> int:
    """Insert a value into the list of the best values, largest first, and return the length of the list."""
    count = min(count + 1, len(best))
    rank = count - 1
    while rank > 0 and best[rank - 1] < value:
        best[rank], ids[rank] = best[rank - 1], ids[rank - 1]
        rank -= 1
    best[rank], ids[rank] = value, token
    return count


@loop("void(f4[:,::1], f4[:,::1], i8[:,::1])")
def best_tokens(logits: Array, values: Array, ids: Array) -> None:
    """Find the largest values of the log softmax of each row (R, V), and the ids of these values, as (R, count).

    The results of a row are sorted by ascending id. Among equal logits, lower ids are preferred. If a row of logits
    contains NaN, all values of this row are NaN. A row is read twice: to compute the maxima of its blocks, and to
    compute Σ e^(x − max). Only the blocks with the largest maxima are then searched.
    """
    (R, V), count = logits.shape, values.shape[1]
    blocks = V // BLOCK
    tail, block_maxima = blocks * BLOCK, np.empty(blocks + 1, f32)
    for r in range(R):
        row, best, best_ids = logits[r], values[r], ids[r]
        row_address = address(row)
        largest_logit = f32(-np.inf)
        for j in range(tail, V):
            largest_logit = row[j] if row[j] > largest_logit else largest_logit
        block_maxima[blocks] = largest_logit
        maxima = broadcast(largest_logit)
        for b in range(blocks):
            block = row_address + 4 * BLOCK * b
            low = maximum(load(block), load(block + REGISTER))
            high = maximum(load(block + 2 * REGISTER), load(block + 3 * REGISTER))
            block_top = maximum(low, high)
            maxima = maximum(block_top, maxima)
            block_maxima[b] = max_lane(block_top)
        largest_logit = max_lane(maxima)
        sums, maxima = 0.0, broadcast(largest_logit)
        for group in range(0, blocks, 8):
            block_sums = broadcast(f32(0))
            for b in range(group, min(group + 8, blocks)):
                block_sums = add(block_sums, sum_exponentials(row_address + 4 * BLOCK * b, maxima))
            sums += sum_lanes(block_sums)  # in double precision
        for j in range(tail, V):
            sums += math.exp(row[j] - largest_logit)
        log_sum = largest_logit + math.log(sums)
        if not log_sum < np.inf:
            best[:], best_ids[:] = np.nan, np.arange(count)
            continue
        kept = 0
        for b in range(blocks + 1):
            if kept < count or block_maxima[b] > best[kept - 1]:
                kept = insert(best, best_ids, kept, block_maxima[b], b)
        threshold = best[kept - 1] if kept == count else -np.inf
        kept = 0
        for b in range(blocks + 1):
            if block_maxima[b] < threshold:
                continue
            for j in range(b * BLOCK, min(b * BLOCK + BLOCK, V)):
                if row[j] >= threshold and (kept < count or row[j] > best[count - 1]):
                    kept = insert(best, best_ids, kept, row[j], j)
        for i in range(count):
            best[i] = best[i] - log_sum
        for i in range(1, count):  # sort by ascending id
            value, token, rank = best[i], best_ids[i], i
            while rank > 0 and best_ids[rank - 1] > token:
                best[rank], best_ids[rank] = best[rank - 1], best_ids[rank - 1]
                rank -= 1
            best[rank], best_ids[rank] = value, token
