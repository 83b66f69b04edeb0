"""Operations on sixteen float32 at once, for numba: `Lanes`, in whatever registers a CPU has.

Arguments named `address` are those of tensors, as they lie in memory.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as numba_intrinsic
from numba.extending import models, register_model

WIDTH = 16
REGISTER = 4 * WIDTH  # bytes
MIN_SCORE = np.float32(-3e38)  # less than any score
f32 = np.float32
FLOAT, WHOLE, ADDRESS = ir.FloatType(), ir.IntType(32), ir.IntType(64)
FLOATS, WHOLES = ir.VectorType(FLOAT, WIDTH), ir.VectorType(WHOLE, WIDTH)
MAGIC, MAGIC_BITS = 12582912.0, 0x4B400000  # 1.5 · 2^23: plus x, its lowest bits are the whole number nearest to x
POWER = 1.326472715e-3, 9.671512643e-3, 5.550733743e-2, 0.2402224209, 0.6931469776, 1.0  # 2^f of |f| ≤ ½, to 1e-7
Array = np.ndarray[Any, Any]
Value = Any  # a type, a value or a context of numba or LLVM
Builder = Any
intrinsic: Any = numba_intrinsic  # what it makes is called with one argument less than it was written with
Made = Callable[[Value, Builder, Value, Value], Value]


class Lanes(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Lanes")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Value, kind: Value) -> None:
        super().__init__(manager, kind, FLOATS)


lanes = Lanes()


def _all(x: float) -> Value:
    return ir.Constant(FLOATS, [float(f32(x))] * WIDTH)


def _wholes(places: Value) -> Value:
    return ir.Constant(ir.VectorType(WHOLE, len(places)), list(places))


def _call(builder: Builder, name: str, kind: Value, *given: Value, fastmath: tuple[str, ...] = ()) -> Value:
    function = ir.FunctionType(kind, [one.type for one in given])
    found = cgutils.get_or_insert_function(builder.module, function, f"llvm.{name}.v{WIDTH}f32")
    return builder.call(found, given, fastmath=fastmath)


def _loaded(builder: Builder, address: Value, kind: Value) -> Value:
    found = builder.load(builder.inttoptr(address, kind.as_pointer()))
    found.align = 4
    return found


def _stored(context: Value, builder: Builder, address: Value, what: Value) -> Value:
    done = builder.store(what, builder.inttoptr(address, what.type.as_pointer()))
    done.align = 4
    return context.get_dummy_value()


@intrinsic
def address(typing: Value, array: Value) -> tuple[Value, Made]:
    """Of the first byte of an array."""

    def made(context: Value, builder: Builder, signature: Value, given: Value) -> Value:
        return builder.ptrtoint(context.make_array(signature.args[0])(context, builder, given[0]).data, ADDRESS)

    return types.intp(array), made


@intrinsic
def load(typing: Value, address: Value) -> tuple[Value, Made]:
    """The sixteen numbers that begin at an address."""
    return lanes(types.intp), lambda context, builder, signature, given: _loaded(builder, given[0], FLOATS)


@intrinsic
def load_one(typing: Value, address: Value) -> tuple[Value, Made]:
    """The number at an address, in all places."""
    return lanes(types.intp), lambda context, builder, signature, given: _spread(
        builder, _loaded(builder, given[0], FLOAT)
    )


@intrinsic
def load_whole(typing: Value, address: Value) -> tuple[Value, Made]:
    """The whole number at an address."""
    return types.int64(types.intp), lambda context, builder, signature, given: _loaded(builder, given[0], ADDRESS)


@intrinsic
def load_flag(typing: Value, address: Value) -> tuple[Value, Made]:
    """The byte at an address, 1 for True."""

    def made(context: Value, builder: Builder, signature: Value, given: Value) -> Value:
        byte = builder.load(builder.inttoptr(given[0], ir.IntType(8).as_pointer()))
        return builder.zext(byte, ADDRESS)

    return types.int64(types.intp), made


@intrinsic
def store_whole(typing: Value, address: Value, what: Value) -> tuple[Value, Made]:
    return types.void(types.intp, types.int64), lambda context, builder, signature, given: _stored(
        context, builder, *given
    )


@intrinsic
def store(typing: Value, address: Value, what: Value) -> tuple[Value, Made]:
    return types.void(types.intp, lanes), lambda context, builder, signature, given: _stored(context, builder, *given)


@intrinsic
def spread(typing: Value, x: Value) -> tuple[Value, Made]:
    """One number in all places."""
    return lanes(types.float32), lambda context, builder, signature, given: _spread(builder, given[0])


def _spread(builder: Builder, x: Value) -> Value:
    nothing = ir.Constant(ir.VectorType(x.type, WIDTH), ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(nothing, x, WHOLE(0)), nothing, _wholes([0] * WIDTH))


@intrinsic
def first_of(typing: Value, a: Value, count: Value) -> tuple[Value, Made]:
    """So many numbers; after them the least there is."""

    def made(context: Value, builder: Builder, signature: Value, given: Value) -> Value:
        count = _spread(builder, builder.trunc(given[1], WHOLE))
        return builder.select(builder.icmp_signed("<", _wholes(range(WIDTH)), count), given[0], _all(float(MIN_SCORE)))

    return lanes(lanes, types.intp), made


@intrinsic
def as_it_is(typing: Value) -> tuple[Value, Made]:
    """The loop around it is to be left as it is written: it is so short that to unroll it would cost more."""

    def made(context: Value, builder: Builder, signature: Value, given: Value) -> Value:
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(ir.InlineAsm(kind, "", "", side_effect=True), [], attrs=("convergent", "nounwind"))
        return context.get_dummy_value()

    return types.void(), made


@intrinsic
def add(typing: Value, a: Value, b: Value) -> tuple[Value, Made]:
    return lanes(lanes, lanes), lambda context, builder, signature, given: builder.fadd(*given)


@intrinsic
def sub(typing: Value, a: Value, b: Value) -> tuple[Value, Made]:
    return lanes(lanes, lanes), lambda context, builder, signature, given: builder.fsub(*given)


@intrinsic
def mul(typing: Value, a: Value, b: Value) -> tuple[Value, Made]:
    return lanes(lanes, lanes), lambda context, builder, signature, given: builder.fmul(*given)


@intrinsic
def fma(typing: Value, a: Value, b: Value, c: Value) -> tuple[Value, Made]:
    """a·b + c."""
    return lanes(lanes, lanes, lanes), lambda context, builder, signature, given: _fma(builder, *given)


def _fma(builder: Builder, a: Value, b: Value, c: Value) -> Value:
    return _call(builder, "fma", FLOATS, a, b, c)


def _larger(builder: Builder, a: Value, b: Value) -> Value:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)  # b, where either is not a number


@intrinsic
def larger(typing: Value, a: Value, b: Value) -> tuple[Value, Made]:
    return lanes(lanes, lanes), lambda context, builder, signature, given: _larger(builder, *given)


@intrinsic
def largest(typing: Value, a: Value) -> tuple[Value, Made]:
    def made(context: Value, builder: Builder, signature: Value, given: Value) -> Value:
        return _call(builder, "vector.reduce.fmax", FLOAT, given[0], fastmath=("nnan",))

    return types.float32(lanes), made


@intrinsic
def total(typing: Value, a: Value) -> tuple[Value, Made]:
    def made(context: Value, builder: Builder, signature: Value, given: Value) -> Value:
        return _call(builder, "vector.reduce.fadd", FLOAT, FLOAT(0.0), given[0], fastmath=("reassoc",))

    return types.float32(lanes), made


@intrinsic
def store_totals(typing: Value, address: Value, a: Value, b: Value, c: Value, d: Value) -> tuple[Value, Made]:
    """The sums of four, side by side from an address on: in half the operations of four sums apart."""

    def halves(builder: Builder, a: Value, b: Value, apart: int) -> Value:
        """Of numbers in groups of 2 · apart, the first halves of a's groups, then those of b's, with the second halves
        added to them."""
        low = [j for j in range(WIDTH) if j // apart % 2 == 0]
        first, second = low + [j + WIDTH for j in low], [j + apart for j in low] + [j + apart + WIDTH for j in low]
        parts = (builder.shuffle_vector(a, b, _wholes(places)) for places in (first, second))
        return builder.fadd(*parts)

    def made(context: Value, builder: Builder, signature: Value, given: Value) -> Value:
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
def exp(typing: Value, a: Value) -> tuple[Value, Made]:
    """e^x = 2^n 2^f, within 3 units of the last place, of x ≤ 0; of less than −87 it is that of −87. NaN stays NaN."""

    def made(context: Value, builder: Builder, signature: Value, given: Value) -> Value:
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
