"""What lies between the products of a decoder's step, in machine code by numba (extra `fast`).

    attend_to_cache, attend_to_source   softmax(q Kᵀ) V of one query of each hypothesis, which passes over its keys once
    best_tokens                 log softmax of logits, and the largest of each row, while the row is in the cache
    layer_norm                  γ ⊙ (x − μ) / √(σ² + ε) + β

Compilers do not vectorize such short loops well, so these call `vector_intrinsics`, sixteen float32
at a time. numba compiles a cached loop again only when this file changes: touch it after a change
of the intrinsics.

What a loop is given are addresses of tensors, as they lie in memory, and their sizes: to look into
tensors again and again takes Python longer than some of the loops take.
`seqloom.accel.decoding.decoder_numba` has them.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from seqloom.accel.decoding.vector_intrinsics import (
    MIN_SCORE,
    REGISTER,
    WIDTH,
    Array,
    Value,
    add,
    address,
    as_it_is,
    exp,
    f32,
    first_of,
    fma,
    larger,
    largest,
    load,
    load_flag,
    load_one,
    load_whole,
    mul,
    spread,
    store,
    store_totals,
    store_whole,
    sub,
    total,
)
from seqloom.core.device import compile_cached

BLOCK = 4 * WIDTH  # logits whose maximum is looked at first

# --- attention --------------------------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}
function = njit(**OPTIONS)


def loop(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """Compiled at once, and kept for the next process. It holds no lock of Python's."""
    return compile_cached(njit, signature, nogil=True, **OPTIONS)


@function
def whole(count: int, size: int) -> int:
    """As many, or the next multiple of `size`."""
    return (count + size - 1) // size * size


@function
def listed(mask: int, length: int, places: int) -> int:
    """How many places of a mask are True. They are written down; the last group of four is filled with the first."""
    count = 0
    for place in range(length):
        store_whole(places + 8 * count, place)
        count += load_flag(mask + place)
    for j in range(count, whole(count, 4)):
        as_it_is()
        store_whole(places + 8 * j, load_whole(places))
    return count


@function
def score(q: int, keys: int, apart: int, places: int, count: int, scores: int) -> None:
    """q Kᵀ of a query and the keys at `count` places, which are so many bytes apart."""
    nothing = spread(f32(0))
    for j in range(0, count, 4):
        k0, k1 = keys + load_whole(places + 8 * j) * apart, keys + load_whole(places + 8 * j + 8) * apart
        k2, k3 = keys + load_whole(places + 8 * j + 16) * apart, keys + load_whole(places + 8 * j + 24) * apart
        s0, s1, s2, s3 = nothing, nothing, nothing, nothing
        for i in range(0, apart, REGISTER):
            as_it_is()
            own = load(q + i)
            s0, s1 = fma(own, load(k0 + i), s0), fma(own, load(k1 + i), s1)
            s2, s3 = fma(own, load(k2 + i), s2), fma(own, load(k3 + i), s3)
        store_totals(scores + 4 * j, s0, s1, s2, s3)


@function
def soften(scores: int, count: int) -> None:
    """softmax of so many scores, in place. There is room for as many more as fill the last register."""
    top, sums = spread(MIN_SCORE), spread(f32(0))
    for j in range(0, count, WIDTH):
        as_it_is()
        top = larger(first_of(load(scores + 4 * j), count - j), top)
    most = spread(largest(top))
    for j in range(0, count, WIDTH):
        as_it_is()
        power = exp(sub(first_of(load(scores + 4 * j), count - j), most))
        sums = add(sums, power)
        store(scores + 4 * j, power)
    share = spread(f32(1) / total(sums))
    for j in range(0, count, WIDTH):
        as_it_is()
        store(scores + 4 * j, mul(load(scores + 4 * j), share))


@function
def blend(weights: int, values: int, apart: int, places: int, count: int, out: int) -> None:
    """w V of weights and the values at as many places."""
    nothing = spread(f32(0))
    for i in range(0, apart, REGISTER):
        even, odd = nothing, nothing
        for j in range(0, count, 4):
            as_it_is()
            v0, v1 = load_whole(places + 8 * j) * apart, load_whole(places + 8 * j + 8) * apart
            v2, v3 = load_whole(places + 8 * j + 16) * apart, load_whole(places + 8 * j + 24) * apart
            even = fma(load_one(weights + 4 * j), load(values + v0 + i), even)
            odd = fma(load_one(weights + 4 * j + 4), load(values + v1 + i), odd)
            even = fma(load_one(weights + 4 * j + 8), load(values + v2 + i), even)
            odd = fma(load_one(weights + 4 * j + 12), load(values + v3 + i), odd)
        store(out + i, add(even, odd))


@loop("i8(b1[:,::1], i8)")
def free_slots(own: Array, k: int) -> int:
    """The fewest places that none of the k hypotheses of a source owns, of all sources; own (R, P)."""
    R, P = own.shape
    fewest = P
    for first in range(0, R, k):
        free = 0
        for place in range(P):
            taken = False
            for r in range(first, first + k):
                taken |= own[r, place]
            free += not taken
        fewest = min(fewest, free)
    return fewest


@loop("void(b1[:,::1], i8[:,::1])")
def take_slots(own: Array, at: Array) -> None:
    """Give each hypothesis one more place, which none of its source's has: own (R, P) becomes True there, and at (B, k)
    says which it is."""
    B, k = at.shape
    for b in range(B):
        i = 0
        for place in range(own.shape[1]):
            taken = i == k
            for r in range(b * k, b * k + k):
                taken |= own[r, place]
            if not taken:
                own[b * k + i, place], at[b, i] = True, place
                i += 1


@loop("void(i8, i8, i8, i8, i8, i8, i8, i8, i8, i8, i8)")
def attend_to_cache(
    made: int, cache: int, own: int, at: int, out: int, B: int, k: int, N: int, P: int, C: int, d: int
) -> None:
    """Queries, keys and values (R, 3, N, d) of a token each: keys and values go to the places `at` (B, k) of the cache
    (B, N, 2, C, d), and the queries look at those of the first P places that are their own (R, P). What they see is
    `out` (R, N, d)."""
    room, apart = whole(P, WIDTH), 4 * d
    weights, places, counts = np.empty((k, room), f32), np.empty((k, room), np.int64), np.empty(k, np.int64)
    of_weights, of_places = address(weights), address(places)
    for _ in range(B):
        for i in range(k):
            counts[i] = listed(own + P * i, P, of_places + 8 * room * i)
        for _ in range(N):
            values = cache + C * apart
            for i in range(k):
                new, place = made + 3 * N * i * apart, load_whole(at + 8 * i) * apart
                for j in range(0, apart, REGISTER):
                    store(cache + place + j, load(new + N * apart + j))
                    store(values + place + j, load(new + 2 * N * apart + j))
            for i in range(k):  # hypothesis beside hypothesis, so that none has to wait for itself
                own_places, own_weights = of_places + 8 * room * i, of_weights + 4 * room * i
                score(made + 3 * N * i * apart, cache, apart, own_places, counts[i], own_weights)
            for i in range(k):
                soften(of_weights + 4 * room * i, counts[i])
            for i in range(k):
                own_places, own_weights = of_places + 8 * room * i, of_weights + 4 * room * i
                blend(own_weights, values, apart, own_places, counts[i], out + N * i * apart)
            cache, made, out = cache + 2 * C * apart, made + apart, out + apart
        made, out = made + (3 * k - 1) * N * apart, out + (k - 1) * N * apart
        own, at = own + k * P, at + 8 * k


@loop("void(i8, i8, i8, i8, i8, f4[:,:,::1], i8, i8, i8, i8, i8)")
def attend_to_source(
    q: int, keys: int, values: int, mask: int, out: int, looked: Array, B: int, k: int, N: int, S: int, d: int
) -> None:
    """Queries (R, N, d) to what they see, `out` (R, N, d), of keys and values (B, N, S, d) where the mask (B, S) is
    True; and, unless that has no rows, to where they looked (R, N, S). Who may look nowhere sees zeros."""
    room, apart = whole(S, WIDTH), 4 * d
    weights, places = np.empty((k, room), f32), np.empty(room, np.int64)
    of_weights, of_places = address(weights), address(places)
    for b in range(B):
        count = listed(mask + b * S, S, of_places)
        for n in range(N):
            for i in range(k):
                score(q + N * i * apart, keys, apart, of_places, count, of_weights + 4 * room * i)
            for i in range(k):
                soften(of_weights + 4 * room * i, count)
            for i in range(k):
                blend(of_weights + 4 * room * i, values, apart, of_places, count, out + N * i * apart)
            keys, values, q, out = keys + S * apart, values + S * apart, q + apart, out + apart
            if len(looked):
                for i in range(k):
                    looked[b * k + i, n][:] = f32(0)
                    for j in range(count):
                        looked[b * k + i, n, places[j]] = weights[i, j]
        q, out = q + (k - 1) * N * apart, out + (k - 1) * N * apart


# --- norms, and the vocabulary ----------------------------------------------------------------------------------------


@loop("void(i8, i8, i8, i8, i8, i8, f8)")
def layer_norm(x: int, gain: int, bias: int, out: int, R: int, D: int, epsilon: float) -> None:
    """Of every row x (R, D); `out` may be x itself."""
    nothing = spread(f32(0))
    for _ in range(R):
        sums, squares = nothing, nothing
        for i in range(0, 4 * D, REGISTER):
            sums = add(sums, load(x + i))
        mean = spread(f32(total(sums) / f32(D)))
        for i in range(0, 4 * D, REGISTER):
            apart = sub(load(x + i), mean)
            squares = fma(apart, apart, squares)
        scale = spread(f32(1 / math.sqrt(total(squares) / D + epsilon)))
        for i in range(0, 4 * D, REGISTER):
            apart = mul(sub(load(x + i), mean), scale)
            store(out + i, fma(apart, load(gain + i), load(bias + i)))
        x, out = x + 4 * D, out + 4 * D


@function
def powers(at: int, most: Value) -> Value:
    """e^(x − most) of a block of logits, summed to one register."""
    a = add(exp(sub(load(at), most)), exp(sub(load(at + REGISTER), most)))
    b = add(exp(sub(load(at + 2 * REGISTER), most)), exp(sub(load(at + 3 * REGISTER), most)))
    return add(a, b)


@function
def insert(best: Array, found: Array, have: int, value: float, token: int) -> int:
    """Among the best so far, largest first, put one that is better than the last of them; how many there are now."""
    have = min(have + 1, len(best))
    place = have - 1
    while place > 0 and best[place - 1] < value:
        best[place], found[place] = best[place - 1], found[place - 1]
        place -= 1
    best[place], found[place] = value, token
    return have


@loop("void(f4[:,::1], f4[:,::1], i8[:,::1])")
def best_tokens(logits: Array, values: Array, ids: Array) -> None:
    """The largest of each row of log softmax (R, V) and where they are, (R, count) by rising id; of equal logits those
    of lower id. A row in which something is not a number has no other values.

    A row is passed over twice: for the maxima of its blocks, and for Σ e^(x − max). The best lie in
    the blocks of the largest maxima, and only these are looked at once more.
    """
    (R, V), count = logits.shape, values.shape[1]
    blocks = V // BLOCK
    rest, tops = blocks * BLOCK, np.empty(blocks + 1, f32)
    for r in range(R):
        row, best, found = logits[r], values[r], ids[r]
        first = address(row)
        most = f32(-np.inf)
        for j in range(rest, V):
            most = row[j] if row[j] > most else most
        tops[blocks] = most
        top = spread(most)
        for b in range(blocks):
            at = first + 4 * BLOCK * b
            one = larger(
                larger(load(at), load(at + REGISTER)), larger(load(at + 2 * REGISTER), load(at + 3 * REGISTER))
            )
            top = larger(one, top)
            tops[b] = largest(one)
        most = largest(top)
        sums, top = 0.0, spread(most)
        for some in range(0, blocks, 8):
            one = spread(f32(0))
            for b in range(some, min(some + 8, blocks)):
                one = add(one, powers(first + 4 * BLOCK * b, top))
            sums += total(one)  # in double precision
        for j in range(rest, V):
            sums += math.exp(row[j] - most)
        norm = most + math.log(sums)
        if not norm < np.inf:
            best[:], found[:] = np.nan, np.arange(count)
            continue
        have = 0
        for b in range(blocks + 1):
            if have < count or tops[b] > best[have - 1]:
                have = insert(best, found, have, tops[b], b)
        least = best[have - 1] if have == count else -np.inf
        have = 0
        for b in range(blocks + 1):
            if tops[b] < least:
                continue
            for j in range(b * BLOCK, min(b * BLOCK + BLOCK, V)):
                if row[j] >= least and (have < count or row[j] > best[count - 1]):
                    have = insert(best, found, have, row[j], j)
        for i in range(count):
            best[i] = best[i] - norm
        for i in range(1, count):  # by rising id
            value, token, place = best[i], found[i], i
            while place > 0 and found[place - 1] > token:
                best[place], found[place] = best[place - 1], found[place - 1]
                place -= 1
            best[place], found[place] = value, token
