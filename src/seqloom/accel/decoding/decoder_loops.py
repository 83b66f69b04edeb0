"""What lies between the products of a decoder's step, in machine code by numba (extra `fast`).

    attend_to_cache, attend_to_source   softmax(q Kᵀ) V of one query of each hypothesis, which passes over its keys once
    best_tokens                 log softmax of logits, and the largest of each row, while the row is in the cache
    layer_norm                  γ ⊙ (x − μ) / √(σ² + ε) + β

Compilers do not see how such short loops are best taken sixteen numbers at a time, so this is said in the open: `Lanes`
are sixteen float32, for whatever registers a CPU has. Everything that is compiled stands in this one file, for what
numba has kept of it is made anew when the file changes.

What a loop is given are addresses of tensors, as they lie in memory, and their sizes: to look into tensors again and
again takes Python longer than some of the loops take. `seqloom.accel.decoding.decoder_numba` has them.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic as numba_intrinsic
from numba.extending import models, register_model

from seqloom.core.numba_compiler import compile_cached

WIDTH = 16
REGISTER = 4 * WIDTH  # bytes
BLOCK = 4 * WIDTH  # logits whose maximum is looked at first
LEAST = np.float32(-3e38)  # below every score there is
f32 = np.float32

# --- sixteen numbers at once ------------------------------------------------------------------------------------------

FLOAT, WHOLE, ADDRESS = ir.FloatType(), ir.IntType(32), ir.IntType(64)
FLOATS, WHOLES = ir.VectorType(FLOAT, WIDTH), ir.VectorType(WHOLE, WIDTH)
MAGIC, MAGIC_BITS = 12582912.0, 0x4B400000  # 1.5 · 2^23: plus x, its lowest bits are the whole number nearest to x
POWER = 1.326472715e-3, 9.671512643e-3, 5.550733743e-2, 0.2402224209, 0.6931469776, 1.0  # 2^f of |f| ≤ ½, to 1e-7
Builder = Any
intrinsic: Any = numba_intrinsic  # what it makes is called with one argument less than it was written with
Made = Callable[[Any, Builder, Any, Any], Any]


class Lanes(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Lanes")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, FLOATS)


lanes = Lanes()


def _all(x: float) -> Any:
    return ir.Constant(FLOATS, [float(f32(x))] * WIDTH)


def _wholes(places: Any) -> Any:
    return ir.Constant(ir.VectorType(WHOLE, len(places)), list(places))


def _call(builder: Builder, name: str, kind: Any, *given: Any, fastmath: tuple[str, ...] = ()) -> Any:
    function = ir.FunctionType(kind, [one.type for one in given])
    found = cgutils.get_or_insert_function(builder.module, function, f"llvm.{name}.v{WIDTH}f32")
    return builder.call(found, given, fastmath=fastmath)


def _loaded(builder: Builder, address: Any, kind: Any) -> Any:
    found = builder.load(builder.inttoptr(address, kind.as_pointer()))
    found.align = 4
    return found


def _stored(context: Any, builder: Builder, address: Any, what: Any) -> Any:
    done = builder.store(what, builder.inttoptr(address, what.type.as_pointer()))
    done.align = 4
    return context.get_dummy_value()


@intrinsic
def address(typing: Any, array: Any) -> tuple[Any, Made]:
    """Of the first byte of an array."""

    def made(context: Any, builder: Builder, signature: Any, given: Any) -> Any:
        return builder.ptrtoint(context.make_array(signature.args[0])(context, builder, given[0]).data, ADDRESS)

    return types.intp(array), made


@intrinsic
def load(typing: Any, address: Any) -> tuple[Any, Made]:
    """The sixteen numbers that begin at an address."""
    return lanes(types.intp), lambda context, builder, signature, given: _loaded(builder, given[0], FLOATS)


@intrinsic
def load_one(typing: Any, address: Any) -> tuple[Any, Made]:
    """The number at an address, in all places."""
    return lanes(types.intp), lambda context, builder, signature, given: _spread(
        builder, _loaded(builder, given[0], FLOAT)
    )


@intrinsic
def load_whole(typing: Any, address: Any) -> tuple[Any, Made]:
    """The whole number at an address."""
    return types.int64(types.intp), lambda context, builder, signature, given: _loaded(builder, given[0], ADDRESS)


@intrinsic
def load_flag(typing: Any, address: Any) -> tuple[Any, Made]:
    """The byte at an address, 1 for True."""

    def made(context: Any, builder: Builder, signature: Any, given: Any) -> Any:
        byte = builder.load(builder.inttoptr(given[0], ir.IntType(8).as_pointer()))
        return builder.zext(byte, ADDRESS)

    return types.int64(types.intp), made


@intrinsic
def store_whole(typing: Any, address: Any, what: Any) -> tuple[Any, Made]:
    return types.void(types.intp, types.int64), lambda context, builder, signature, given: _stored(
        context, builder, *given
    )


@intrinsic
def store(typing: Any, address: Any, what: Any) -> tuple[Any, Made]:
    return types.void(types.intp, lanes), lambda context, builder, signature, given: _stored(context, builder, *given)


@intrinsic
def spread(typing: Any, x: Any) -> tuple[Any, Made]:
    """One number in all places."""
    return lanes(types.float32), lambda context, builder, signature, given: _spread(builder, given[0])


def _spread(builder: Builder, x: Any) -> Any:
    nothing = ir.Constant(ir.VectorType(x.type, WIDTH), ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(nothing, x, WHOLE(0)), nothing, _wholes([0] * WIDTH))


@intrinsic
def first_of(typing: Any, a: Any, count: Any) -> tuple[Any, Made]:
    """So many numbers; after them the least there is."""

    def made(context: Any, builder: Builder, signature: Any, given: Any) -> Any:
        count = _spread(builder, builder.trunc(given[1], WHOLE))
        return builder.select(builder.icmp_signed("<", _wholes(range(WIDTH)), count), given[0], _all(float(LEAST)))

    return lanes(lanes, types.intp), made


@intrinsic
def as_it_is(typing: Any) -> tuple[Any, Made]:
    """The loop around it is to be left as it is written: it is so short that to unroll it would cost more."""

    def made(context: Any, builder: Builder, signature: Any, given: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(ir.InlineAsm(kind, "", "", side_effect=True), [], attrs=("convergent", "nounwind"))
        return context.get_dummy_value()

    return types.void(), made


@intrinsic
def add(typing: Any, a: Any, b: Any) -> tuple[Any, Made]:
    return lanes(lanes, lanes), lambda context, builder, signature, given: builder.fadd(*given)


@intrinsic
def sub(typing: Any, a: Any, b: Any) -> tuple[Any, Made]:
    return lanes(lanes, lanes), lambda context, builder, signature, given: builder.fsub(*given)


@intrinsic
def mul(typing: Any, a: Any, b: Any) -> tuple[Any, Made]:
    return lanes(lanes, lanes), lambda context, builder, signature, given: builder.fmul(*given)


@intrinsic
def fma(typing: Any, a: Any, b: Any, c: Any) -> tuple[Any, Made]:
    """a·b + c."""
    return lanes(lanes, lanes, lanes), lambda context, builder, signature, given: _fma(builder, *given)


def _fma(builder: Builder, a: Any, b: Any, c: Any) -> Any:
    return _call(builder, "fma", FLOATS, a, b, c)


def _larger(builder: Builder, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)  # b, where either is not a number


@intrinsic
def larger(typing: Any, a: Any, b: Any) -> tuple[Any, Made]:
    return lanes(lanes, lanes), lambda context, builder, signature, given: _larger(builder, *given)


@intrinsic
def largest(typing: Any, a: Any) -> tuple[Any, Made]:
    def made(context: Any, builder: Builder, signature: Any, given: Any) -> Any:
        return _call(builder, "vector.reduce.fmax", FLOAT, given[0], fastmath=("nnan",))

    return types.float32(lanes), made


@intrinsic
def total(typing: Any, a: Any) -> tuple[Any, Made]:
    def made(context: Any, builder: Builder, signature: Any, given: Any) -> Any:
        return _call(builder, "vector.reduce.fadd", FLOAT, FLOAT(0.0), given[0], fastmath=("reassoc",))

    return types.float32(lanes), made


@intrinsic
def store_totals(typing: Any, address: Any, a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Made]:
    """The sums of four, side by side from an address on: in half the operations of four sums apart."""

    def halves(builder: Builder, a: Any, b: Any, apart: int) -> Any:
        """Of numbers in groups of 2 · apart, the first halves of a's groups, then those of b's, with the second halves
        added to them."""
        low = [j for j in range(WIDTH) if j // apart % 2 == 0]
        first, second = low + [j + WIDTH for j in low], [j + apart for j in low] + [j + apart + WIDTH for j in low]
        parts = (builder.shuffle_vector(a, b, _wholes(places)) for places in (first, second))
        return builder.fadd(*parts)

    def made(context: Any, builder: Builder, signature: Any, given: Any) -> Any:
        address, *four = given
        two = [halves(builder, four[0], four[1], 8), halves(builder, four[2], four[3], 8)]  # 8 numbers of each
        found = halves(builder, two[0], two[1], 4)  # 4 of each: a, b, c, d
        nothing = ir.Constant(FLOATS, ir.Undefined)
        for apart in (2, 1):
            places = [j ^ apart for j in range(WIDTH)]
            found = builder.fadd(found, builder.shuffle_vector(found, nothing, _wholes(places)))
        return _stored(context, builder, address, builder.shuffle_vector(found, nothing, _wholes([0, 4, 8, 12])))

    return types.void(types.intp, lanes, lanes, lanes, lanes), made


@intrinsic
def exp(typing: Any, a: Any) -> tuple[Any, Made]:
    """e^x = 2^n 2^f, within 3 units of the last place, of x ≤ 0; of less than −87 it is that of −87. NaN stays NaN."""

    def made(context: Any, builder: Builder, signature: Any, given: Any) -> Any:
        log2_e = _all(math.log2(math.e))
        (x,), least = given, _all(-87.0)
        x = builder.select(builder.fcmp_ordered("<", x, least), least, x)
        shifted = _fma(builder, x, log2_e, _all(MAGIC))
        n = builder.fsub(shifted, _all(MAGIC))
        f = _fma(builder, x, log2_e, builder.fneg(n))
        p = _all(POWER[0])
        for coefficient in POWER[1:]:
            p = _fma(builder, p, f, _all(coefficient))
        exponent = builder.add(builder.bitcast(shifted, WHOLES), _wholes([127 - MAGIC_BITS] * WIDTH))
        return builder.fmul(p, builder.bitcast(builder.shl(exponent, _wholes([23] * WIDTH)), FLOATS))

    return lanes(lanes), made


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
    top, sums = spread(LEAST), spread(f32(0))
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
def free_slots(own: Any, k: int) -> int:
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
def take_slots(own: Any, at: Any) -> None:
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
    q: int, keys: int, values: int, mask: int, out: int, looked: Any, B: int, k: int, N: int, S: int, d: int
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
def powers(at: int, most: Any) -> Any:
    """e^(x − most) of a block of logits, summed to one register."""
    a = add(exp(sub(load(at), most)), exp(sub(load(at + REGISTER), most)))
    b = add(exp(sub(load(at + 2 * REGISTER), most)), exp(sub(load(at + 3 * REGISTER), most)))
    return add(a, b)


@function
def insert(best: Any, found: Any, have: int, value: Any, token: int) -> int:
    """Among the best so far, largest first, put one that is better than the last of them; how many there are now."""
    have = min(have + 1, len(best))
    place = have - 1
    while place > 0 and best[place - 1] < value:
        best[place], found[place] = best[place - 1], found[place - 1]
        place -= 1
    best[place], found[place] = value, token
    return have


@loop("void(f4[:,::1], f4[:,::1], i8[:,::1])")
def best_tokens(logits: Any, values: Any, ids: Any) -> None:
    """The largest of each row of log softmax (R, V) and where they are, (R, count) by rising id; of equal logits those
    of lower id. A row in which something is not a number has no other values.

    A row is passed over twice: for the maxima of its blocks, and for Σ e^(x − max). The best lie in the blocks of the
    largest maxima, and only these are looked at once more.
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
