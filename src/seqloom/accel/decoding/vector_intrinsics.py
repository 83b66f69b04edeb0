"""SIMD operations on sixteen float32 values (`Lanes`) for numba, in vector registers of any size.

Arguments named `address` are memory addresses.
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

LANES = 16
REGISTER = 4 * LANES  # bytes
MIN_SCORE = np.float32(-3e38)  # below any score
f32 = np.float32
FLOAT, INT32, INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
FLOATS, INT32S = ir.VectorType(FLOAT, LANES), ir.VectorType(INT32, LANES)
MAGIC, MAGIC_BITS = 12582912.0, 0x4B400000  # 1.5 · 2^23: the lowest bits of MAGIC + x are the rounded x
EXP2 = 1.326472715e-3, 9.671512643e-3, 5.550733743e-2, 0.2402224209, 0.6931469776, 1.0  # 2^f for |f| ≤ ½, error 1e-7
Array = np.ndarray[Any, Any]
Value = Any  # a type, a value or a context of numba or LLVM
Builder = Any
intrinsic: Any = numba_intrinsic  # numba supplies the first argument
Codegen = Callable[[Value, Builder, Value, Value], Value]


class Lanes(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Lanes")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Value, numba_type: Value) -> None:
        super().__init__(manager, numba_type, FLOATS)


lanes = Lanes()


def _floats(x: float) -> Value:
    return ir.Constant(FLOATS, [float(f32(x))] * LANES)


def _ints(values: Value) -> Value:
    return ir.Constant(ir.VectorType(INT32, len(values)), list(values))


def _call(builder: Builder, name: str, return_type: Value, *args: Value, fastmath: tuple[str, ...] = ()) -> Value:
    function = ir.FunctionType(return_type, [arg.type for arg in args])
    intrinsic_function = cgutils.get_or_insert_function(builder.module, function, f"llvm.{name}.v{LANES}f32")
    return builder.call(intrinsic_function, args, fastmath=fastmath)


def _load(builder: Builder, address: Value, element_type: Value) -> Value:
    load_instruction = builder.load(builder.inttoptr(address, element_type.as_pointer()))
    load_instruction.align = 4
    return load_instruction


def _store(context: Value, builder: Builder, address: Value, value: Value) -> Value:
    store_instruction = builder.store(value, builder.inttoptr(address, value.type.as_pointer()))
    store_instruction.align = 4
    return context.get_dummy_value()


@intrinsic
def address(typing: Value, array: Value) -> tuple[Value, Codegen]:
    """Return the address of an array."""

    def codegen(context: Value, builder: Builder, signature: Value, args: Value) -> Value:
        return builder.ptrtoint(context.make_array(signature.args[0])(context, builder, args[0]).data, INT64)

    return types.intp(array), codegen


@intrinsic
def load(typing: Value, address: Value) -> tuple[Value, Codegen]:
    """Load sixteen numbers."""
    return lanes(types.intp), lambda context, builder, signature, args: _load(builder, args[0], FLOATS)


@intrinsic
def load_broadcast(typing: Value, address: Value) -> tuple[Value, Codegen]:
    """Load a number into all lanes."""
    return lanes(types.intp), lambda context, builder, signature, args: _broadcast(
        builder, _load(builder, args[0], FLOAT)
    )


@intrinsic
def load_int(typing: Value, address: Value) -> tuple[Value, Codegen]:
    """Load an integer."""
    return types.int64(types.intp), lambda context, builder, signature, args: _load(builder, args[0], INT64)


@intrinsic
def load_flag(typing: Value, address: Value) -> tuple[Value, Codegen]:
    """Load a bool as 0 or 1."""

    def codegen(context: Value, builder: Builder, signature: Value, args: Value) -> Value:
        byte = builder.load(builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
        return builder.zext(byte, INT64)

    return types.int64(types.intp), codegen


@intrinsic
def store_int(typing: Value, address: Value, value: Value) -> tuple[Value, Codegen]:
    return types.void(types.intp, types.int64), lambda context, builder, signature, args: _store(
        context, builder, *args
    )


@intrinsic
def store(typing: Value, address: Value, value: Value) -> tuple[Value, Codegen]:
    return types.void(types.intp, lanes), lambda context, builder, signature, args: _store(context, builder, *args)


@intrinsic
def broadcast(typing: Value, x: Value) -> tuple[Value, Codegen]:
    """Copy a number to all lanes."""
    return lanes(types.float32), lambda context, builder, signature, args: _broadcast(builder, args[0])


def _broadcast(builder: Builder, x: Value) -> Value:
    undefined = ir.Constant(ir.VectorType(x.type, LANES), ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(undefined, x, INT32(0)), undefined, _ints([0] * LANES))


@intrinsic
def mask_tail(typing: Value, a: Value, count: Value) -> tuple[Value, Codegen]:
    """Replace all lanes after the first `count` by `MIN_SCORE`."""

    def codegen(context: Value, builder: Builder, signature: Value, args: Value) -> Value:
        count = _broadcast(builder, builder.trunc(args[1], INT32))
        is_kept = builder.icmp_signed("<", _ints(range(LANES)), count)
        return builder.select(is_kept, args[0], _floats(float(MIN_SCORE)))

    return lanes(lanes, types.intp), codegen


@intrinsic
def prevent_unrolling(typing: Value) -> tuple[Value, Codegen]:
    """Keep LLVM from unrolling the enclosing loop, because unrolling slows down a loop this short."""

    def codegen(context: Value, builder: Builder, signature: Value, args: Value) -> Value:
        function_type = ir.FunctionType(ir.VoidType(), [])
        builder.call(ir.InlineAsm(function_type, "", "", side_effect=True), [], attrs=("convergent", "nounwind"))
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def add(typing: Value, a: Value, b: Value) -> tuple[Value, Codegen]:
    return lanes(lanes, lanes), lambda context, builder, signature, args: builder.fadd(*args)


@intrinsic
def sub(typing: Value, a: Value, b: Value) -> tuple[Value, Codegen]:
    return lanes(lanes, lanes), lambda context, builder, signature, args: builder.fsub(*args)


@intrinsic
def mul(typing: Value, a: Value, b: Value) -> tuple[Value, Codegen]:
    return lanes(lanes, lanes), lambda context, builder, signature, args: builder.fmul(*args)


@intrinsic
def fma(typing: Value, a: Value, b: Value, c: Value) -> tuple[Value, Codegen]:
    """Compute a·b + c."""
    return lanes(lanes, lanes, lanes), lambda context, builder, signature, args: _fma(builder, *args)


def _fma(builder: Builder, a: Value, b: Value, c: Value) -> Value:
    return _call(builder, "fma", FLOATS, a, b, c)


def _maximum(builder: Builder, a: Value, b: Value) -> Value:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)  # b if either is NaN


@intrinsic
def maximum(typing: Value, a: Value, b: Value) -> tuple[Value, Codegen]:
    return lanes(lanes, lanes), lambda context, builder, signature, args: _maximum(builder, *args)


@intrinsic
def max_lane(typing: Value, a: Value) -> tuple[Value, Codegen]:
    def codegen(context: Value, builder: Builder, signature: Value, args: Value) -> Value:
        return _call(builder, "vector.reduce.fmax", FLOAT, args[0], fastmath=("nnan",))

    return types.float32(lanes), codegen


@intrinsic
def sum_lanes(typing: Value, a: Value) -> tuple[Value, Codegen]:
    def codegen(context: Value, builder: Builder, signature: Value, args: Value) -> Value:
        return _call(builder, "vector.reduce.fadd", FLOAT, FLOAT(0.0), args[0], fastmath=("reassoc",))

    return types.float32(lanes), codegen


@intrinsic
def store_sums(typing: Value, address: Value, a: Value, b: Value, c: Value, d: Value) -> tuple[Value, Codegen]:
    """Store the sums of four vectors at an address, with half the operations of four separate sums."""

    def add_halves(builder: Builder, a: Value, b: Value, distance: int) -> Value:
        """Add the second half of each group of 2 · distance lanes to its first half; return the sums of a and b."""
        low = [j for j in range(LANES) if j // distance % 2 == 0]
        low += [j + LANES for j in low]
        orders = low, [j + distance for j in low]
        parts = (builder.shuffle_vector(a, b, _ints(order)) for order in orders)
        return builder.fadd(*parts)

    def codegen(context: Value, builder: Builder, signature: Value, args: Value) -> Value:
        address, *vectors = args
        pairs = [add_halves(builder, vectors[i], vectors[i + 1], 8) for i in (0, 2)]  # 8 lanes of each
        sums = add_halves(builder, pairs[0], pairs[1], 4)  # 4 lanes each of a, b, c, d
        undefined = ir.Constant(FLOATS, ir.Undefined)
        for distance in (2, 1):
            order = [j ^ distance for j in range(LANES)]
            sums = builder.fadd(sums, builder.shuffle_vector(sums, undefined, _ints(order)))
        return _store(context, builder, address, builder.shuffle_vector(sums, undefined, _ints([0, 4, 8, 12])))

    return types.void(types.intp, lanes, lanes, lanes, lanes), codegen


@intrinsic
def exp(typing: Value, a: Value) -> tuple[Value, Codegen]:
    """Compute e^x = 2^n 2^f for x ≤ 0, clamped at −87, with an error of at most 3 ulp; NaN for NaN."""

    def codegen(context: Value, builder: Builder, signature: Value, args: Value) -> Value:
        log2_e = _floats(math.log2(math.e))
        (x,), least = args, _floats(-87.0)
        x = builder.select(builder.fcmp_ordered("<", x, least), least, x)
        shifted = _fma(builder, x, log2_e, _floats(MAGIC))
        n = builder.fsub(shifted, _floats(MAGIC))
        f = _fma(builder, x, log2_e, builder.fneg(n))
        p = _floats(EXP2[0])
        for coefficient in EXP2[1:]:
            p = _fma(builder, p, f, _floats(coefficient))
        exponent = builder.add(builder.bitcast(shifted, INT32S), _ints([127 - MAGIC_BITS] * LANES))
        return builder.fmul(p, builder.bitcast(builder.shl(exponent, _ints([23] * LANES)), FLOATS))

    return lanes(lanes), codegen
