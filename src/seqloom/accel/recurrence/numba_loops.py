"""The steps of `seqloom.accel.recurrence.steps` as numba kernels (extra `fast`): all that lies between products.

All threads of one parallel region run each loop, each its own rows from the first step to the last. A loop takes
addresses: its sizes (steps, rows, hidden, kind of cell), then tensors as they lie in memory, (T, B, ·) or (B, T, ·).
The stride of a product's rows must not depend on T, since every size has a kernel of its own. Products are
oneDNN's for small matrices (`product`), which read W as it lies; going forward they are given Wᵀ.
"""

from typing import Any

import numpy as np
from numba import njit, types
from numba.np.numpy_support import carray

SIGNATURE = types.void(types.CPointer(types.CPointer(types.float32)))
Row = np.ndarray[Any, Any]
Scalar = Any
Buffers = Any  # a tuple of arrays and sizes, which differs from cell to cell
OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}  # x·y + z may be one operation
ROWS, COLUMNS = 64, 256  # of what is multiplied at once, where there is much
X, TANH_X = 1, 2  # what a cell adds without a matrix, beside its products with x: to the first block, to the last
TANH, RELU, SIGMOID = 0, 1, 2  # kinds of an Elman cell
TAKES, LOOKS, LOOKS_AT_TANH = 1, 2, 4  # kinds of a cell that resets before its matrix: a sum of these

_int, _pointer = types.int32, types.voidptr
thread_number: Any = types.ExternalFunction("seqloom_thread_number", _int())
thread_count: Any = types.ExternalFunction("seqloom_thread_count", _int())
set_threads: Any = types.ExternalFunction("seqloom_set_threads", _int(_int))
multiply: Any = types.ExternalFunction(
    "seqloom_brgemm",  # rows, columns, what is summed; how far rows are apart in x, W, out; out += or =; x, W, out
    types.void(*[types.int64] * 6, types.boolean, _pointer, _pointer, _pointer, types.boolean),
)

function = njit(**OPTIONS)
f32 = np.float32
MAGIC, MAGIC_BITS = f32(12582912.0), 0x4B400000  # 1.5 · 2^23: plus x, its lowest bits are the whole number nearest to x


@function
def exp(x: Scalar) -> Scalar:
    """e^x = 2^n e^r of x ≥ −87, within 2 units of the last place; ∞ from 88.7 on, and NaN stays what it is."""
    shifted = x * f32(1.44269504) + MAGIC
    n = shifted - MAGIC
    r = x - n * f32(0.693359375) - n * f32(-2.12194440e-4)
    p = f32(1.9875691500e-4)
    p = p * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    p = p * (r * r) + r + f32(1)
    power = (np.float32(shifted).view(np.int32) - MAGIC_BITS + 127) << 23
    return p * np.int32(power).view(np.float32)


@function
def sigmoid(x: Scalar) -> Scalar:
    x = f32(-89) if x < f32(-89) else x  # e^89 is infinite: a gate can be 0 to the last bit
    x = f32(87) if x > f32(87) else x
    return f32(1) / (f32(1) + exp(-x))


@function
def tanh(x: Scalar) -> Scalar:
    return f32(2) * sigmoid(f32(2) * x) - f32(1)


@function
def own_rows(rows: int) -> tuple[int, int]:
    """Those of this thread."""
    number, count = thread_number(), thread_count()
    return rows * number // count, rows * (number + 1) // count


@function
def own_piece(begin: int, lo: int, hi: int) -> tuple[int, int]:
    """Its rows. The last is as large as the others and computes some again: so one kernel of oneDNN's serves all."""
    begin = max(lo, min(begin, hi - ROWS))
    return begin, min(begin + ROWS, hi)


@function
def product(rows: int, x: Row, apart: int, weight: Row, outputs: int, inputs: int, out: Row, out_apart: int) -> None:
    """out += x W of some rows, the first at `x` and at `out`, each so far from the next; W (inputs, outputs)."""
    if rows > 0:
        multiply(rows, outputs, inputs, apart, outputs, out_apart, True, x.ctypes, weight.ctypes, out.ctypes, False)


@function
def product_in_pieces(x: Row, weight: Row, out: Row) -> None:
    """out += x W of as many columns of x as W has rows, a few columns of W at a time, so that they are in the cache."""
    rows, (inputs, outputs) = len(x), weight.shape
    for column in range(0, outputs, COLUMNS):
        multiply(
            rows, min(COLUMNS, outputs - column), inputs, x.strides[0] // 4, outputs, out.strides[0] // 4, True,
            x.ctypes, weight[:, column:].ctypes, out[:, column:].ctypes, False,
        )  # fmt: skip


@function
def add(to: Row, what: Row) -> None:
    for j in range(len(to)):
        to[j] += what[j]


@function
def squash(a: Row) -> None:
    for j in range(len(a)):
        a[j] = sigmoid(a[j])


@function
def squashed(x: Row, out: Row) -> None:
    for j in range(len(x)):
        out[j] = tanh(x[j])


@function
def multiplied(x: Row, y: Row, out: Row) -> None:
    for j in range(len(x)):
        out[j] = x[j] * y[j]


@function
def lstm_mix(gates: Row, before: Row, content: Row, tanh_c: Row, new: Row) -> None:
    """c = f ⊙ c_{t−1} + i ⊙ g;  h = o ⊙ tanh c"""
    hidden = len(new)
    i, f, g, o = gates[:hidden], gates[hidden : 2 * hidden], gates[2 * hidden : 3 * hidden], gates[3 * hidden :]
    squash(gates[: 2 * hidden])
    squash(o)
    for j in range(hidden):
        g[j] = tanh(g[j])
    for j in range(hidden):
        content[j] = f[j] * before[j] + i[j] * g[j]
    squashed(content, tanh_c)
    multiplied(o, tanh_c, new)


@function
def lstm_unmix(gates: Row, before: Row, tanh_c: Row, dh: Row, dc: Row, da: Row, stands: Row) -> None:
    """Back through `lstm_mix`; `dc` becomes that of c_{t−1}. A row that stands still has its h from before."""
    hidden = len(dh)
    i, f, g, o = gates[:hidden], gates[hidden : 2 * hidden], gates[2 * hidden : 3 * hidden], gates[3 * hidden :]
    d_i, d_f, d_g, d_o = da[:hidden], da[hidden : 2 * hidden], da[2 * hidden : 3 * hidden], da[3 * hidden :]
    goes = f32(1) - stands
    for j in range(hidden):
        d, y = dh[j] * goes, tanh_c[j]
        d_o[j] = d * y * o[j] * (f32(1) - o[j])
        dc[j] += d * o[j] * (f32(1) - y * y)
    for j in range(hidden):
        d_i[j] = dc[j] * g[j] * i[j] * (f32(1) - i[j])
        d_g[j] = dc[j] * i[j] * (f32(1) - g[j] * g[j])
    for j in range(hidden):
        d_f[j] = dc[j] * before[j] * f[j] * (f32(1) - f[j])
        dc[j] *= f[j]


@function
def gru_mix(r: Row, z: Row, candidate: Row, inner: Row, old: Row, new: Row) -> None:
    """h̃ = tanh(a + r ⊙ inner);  h = z ⊙ h_{t−1} + (1 − z) ⊙ h̃"""
    for j in range(len(r)):
        c = tanh(candidate[j] + r[j] * inner[j])
        candidate[j] = c
        new[j] = z[j] * old[j] + (f32(1) - z[j]) * c


@function
def gru_unmix(
    r: Row, z: Row, candidate: Row, inner: Row, old: Row, d: Row, d_r: Row, d_z: Row, d_c: Row, d_inner: Row
) -> None:
    """Back through `gru_mix` and the gates; `d` becomes what goes on to h_{t−1} by z alone."""
    for j in range(len(r)):
        c, z_j, r_j, d_j = candidate[j], z[j], r[j], d[j]
        through = d_j * (f32(1) - z_j) * (f32(1) - c * c)
        d_c[j] = through
        d_inner[j] = through * r_j
        d_r[j] = through * inner[j] * r_j * (f32(1) - r_j)
        d_z[j] = d_j * (old[j] - c) * z_j * (f32(1) - z_j)
        d[j] = d_j * z_j


@function
def mix(z: Row, candidate: Row, old: Row, takes: int, new: Row) -> None:
    """h̃ = tanh a, and the new state between it and the old one: z is the share of h̃ (`takes`), or that of h_{t−1}."""
    if takes:
        for j in range(len(z)):
            candidate[j] = tanh(candidate[j])
            new[j] = z[j] * candidate[j] + (f32(1) - z[j]) * old[j]
    else:
        for j in range(len(z)):
            candidate[j] = tanh(candidate[j])
            new[j] = z[j] * old[j] + (f32(1) - z[j]) * candidate[j]


@function
def unmix(z: Row, candidate: Row, old: Row, takes: int, d: Row, d_z: Row, d_c: Row) -> None:
    """Back through `mix`; `d` becomes what goes on to h_{t−1} past the candidate."""
    sign = f32(1) if takes else f32(-1)
    for j in range(len(z)):
        c, d_j = candidate[j], d[j]
        share = z[j] if takes else f32(1) - z[j]
        d_c[j] = d_j * share * (f32(1) - c * c)
        d_z[j] = sign * d_j * (c - old[j]) * z[j] * (f32(1) - z[j])
        d[j] = d_j * (f32(1) - share)


@function
def through_reset(r: Row, old: Row, d_reset: Row, d: Row, d_r: Row) -> None:
    for j in range(len(r)):
        d_r[j] = d_reset[j] * old[j] * r[j] * (f32(1) - r[j])
        d[j] += d_reset[j] * r[j]


@function
def through_tanh(y: Row, d_y: Row, d: Row) -> None:
    for j in range(len(y)):
        d[j] += d_y[j] * (f32(1) - y[j] * y[j])


def inputs(given: Buffers) -> None:
    """a = W x + b of all steps, W having `outputs` rows; beside them, without a matrix, x + b or tanh x + b."""
    sizes = carray(given[0], 6)
    every, width, beside = int(sizes[0]) * int(sizes[1]), int(sizes[2]), int(sizes[3])
    outputs, blocks = int(sizes[4]), int(sizes[5])
    x, w = carray(given[1], (every, width)), carray(given[2], (width, outputs))
    bias, a = carray(given[3], (blocks,)), carray(given[4], (every, blocks))
    lo, hi = own_rows(every)
    threads = set_threads(1)
    for piece in range(lo, hi, ROWS):
        begin, end = own_piece(piece, lo, hi)
        for row in range(begin, end):
            a[row][:] = bias
            if beside == X:
                add(a[row, :width], x[row])
            elif beside == TANH_X:
                last = a[row, outputs:]
                for j in range(width):
                    last[j] += tanh(x[row, j])
        product_in_pieces(x[begin:end], w, a[begin:end, blocks - outputs if beside == X else 0 :])
    set_threads(threads)


def inputs_backward(given: Buffers) -> None:
    """dx of da."""
    sizes = carray(given[0], 6)
    every, width, beside = int(sizes[0]) * int(sizes[1]), int(sizes[2]), int(sizes[3])
    outputs, blocks = int(sizes[4]), int(sizes[5])
    x, w = carray(given[1], (every, width)), carray(given[2], (outputs, width))
    da, dx = carray(given[3], (every, blocks)), carray(given[4], (every, width))
    lo, hi = own_rows(every)
    threads = set_threads(1)
    for piece in range(lo, hi, ROWS):
        begin, end = own_piece(piece, lo, hi)
        for row in range(begin, end):
            d_x = dx[row]
            d_x[:] = 0
            if beside == X:
                add(d_x, da[row, :width])
            elif beside == TANH_X:
                d_last = da[row, outputs:]
                for j in range(width):
                    y = tanh(x[row, j])
                    d_x[j] = d_last[j] * (f32(1) - y * y)
        product_in_pieces(da[begin:end, blocks - outputs if beside == X else 0 :], w, dx[begin:end])
    set_threads(threads)


def elman_forward(given: Buffers) -> None:
    """h_t = g(a_t + W h_{t−1}); `a` becomes h. `stands` is 1 where a row stands still."""
    sizes = carray(given[0], 4)
    steps, rows, hidden, kind = int(sizes[0]), int(sizes[1]), int(sizes[2]), int(sizes[3])
    lo, hi = own_rows(rows)
    first, w = carray(given[1], (rows, hidden)), carray(given[2], (1,))
    a, stands = carray(given[3], (steps, rows, hidden)), carray(given[4], (steps, rows))
    threads = set_threads(1)
    for t in range(steps):
        old = first if t == 0 else a[t - 1]
        product(hi - lo, old[lo], hidden, w, hidden, hidden, a[t, lo], hidden)
        for row in range(lo, hi):
            new = a[t, row]
            if stands[t, row] != 0:
                new[:] = old[row]
            elif kind == TANH:
                for j in range(hidden):
                    new[j] = tanh(new[j])
            elif kind == RELU:
                for j in range(hidden):
                    new[j] = f32(0) if new[j] < f32(0) else new[j]
            else:
                for j in range(hidden):
                    new[j] = sigmoid(new[j])
    set_threads(threads)


def elman_backward(given: Buffers) -> None:
    """da of all steps, and dh, that of the last state, becomes that of the first."""
    sizes = carray(given[0], 4)
    steps, rows, hidden, kind = int(sizes[0]), int(sizes[1]), int(sizes[2]), int(sizes[3])
    lo, hi = own_rows(rows)
    shape = (steps, rows, hidden)
    w, stands = carray(given[1], (1,)), carray(given[2], (steps, rows))
    h, dy, dh, da = (
        carray(given[3], shape),
        carray(given[4], shape),
        carray(given[5], shape[1:]),
        carray(given[6], shape),
    )
    threads = set_threads(1)
    for t in range(steps - 1, -1, -1):
        for row in range(lo, hi):
            d, d_new, new = dh[row], da[t, row], h[t, row]
            still = stands[t, row]
            if still != 0:
                d_new[:] = 0
            elif kind == TANH:
                for j in range(hidden):
                    d_new[j] = d[j] * (f32(1) - new[j] * new[j])
            elif kind == RELU:
                for j in range(hidden):
                    d_new[j] = d[j] if new[j] > f32(0) else f32(0)
            else:
                for j in range(hidden):
                    d_new[j] = d[j] * new[j] * (f32(1) - new[j])
            if still == 0:
                d[:] = 0
            if t > 0:
                add(d, dy[t - 1, row])
        product(hi - lo, da[t, lo], hidden, w, hidden, hidden, dh[lo], hidden)
    set_threads(threads)


def lstm_forward(given: Buffers) -> None:
    """`a` becomes i, f, g, o. `stands` is 1 where a row stands still."""
    sizes = carray(given[0], 4)
    steps, rows, hidden = int(sizes[0]), int(sizes[1]), int(sizes[2])
    lo, hi = own_rows(rows)
    shape = (steps, rows, hidden)
    h_first, c_first, w = carray(given[1], (rows, hidden)), carray(given[2], (rows, hidden)), carray(given[3], (1,))
    a, stands, h = carray(given[4], (steps, rows, 4 * hidden)), carray(given[5], (steps, rows)), carray(given[6], shape)
    c, tanh_c = carray(given[7], shape), carray(given[8], shape)
    threads = set_threads(1)
    for t in range(steps):
        h_old = h_first if t == 0 else h[t - 1]
        c_old = c_first if t == 0 else c[t - 1]
        product(hi - lo, h_old[lo], hidden, w, 4 * hidden, hidden, a[t, lo], 4 * hidden)
        for row in range(lo, hi):
            lstm_mix(a[t, row], c_old[row], c[t, row], tanh_c[t, row], h[t, row])
            if stands[t, row] != 0:
                h[t, row][:] = h_old[row]
    set_threads(threads)


def lstm_backward(given: Buffers) -> None:
    """da of all steps; dh and dc, those of the last state, become those of the first."""
    sizes = carray(given[0], 4)
    steps, rows, hidden = int(sizes[0]), int(sizes[1]), int(sizes[2])
    lo, hi = own_rows(rows)
    shape, wide = (steps, rows, hidden), (steps, rows, 4 * hidden)
    c_first, w, stands = carray(given[1], (rows, hidden)), carray(given[2], (1,)), carray(given[3], (steps, rows))
    a, c, tanh_c, dy = carray(given[4], wide), carray(given[5], shape), carray(given[6], shape), carray(given[7], shape)
    dh, dc, da = carray(given[8], (rows, hidden)), carray(given[9], (rows, hidden)), carray(given[10], wide)
    threads = set_threads(1)
    for t in range(steps - 1, -1, -1):
        c_old = c_first if t == 0 else c[t - 1]
        for row in range(lo, hi):
            lstm_unmix(a[t, row], c_old[row], tanh_c[t, row], dh[row], dc[row], da[t, row], stands[t, row])
            if stands[t, row] == 0:
                dh[row][:] = 0
            if t > 0:
                add(dh[row], dy[t - 1, row])
        product(hi - lo, da[t, lo], 4 * hidden, w, hidden, 4 * hidden, dh[lo], hidden)
    set_threads(threads)


def gru_forward(given: Buffers) -> None:
    """`a` becomes r, z, h̃; `inner` W h_{t−1} + b of the candidate."""
    sizes = carray(given[0], 4)
    steps, rows, hidden = int(sizes[0]), int(sizes[1]), int(sizes[2])
    lo, hi = own_rows(rows)
    first, w_rz, w_c = carray(given[1], (rows, hidden)), carray(given[2], (1,)), carray(given[3], (1,))
    bias, a = carray(given[4], (hidden,)), carray(given[5], (steps, rows, 3 * hidden))
    inner, h = carray(given[6], (steps, rows, hidden)), carray(given[7], (steps, rows, hidden))
    threads = set_threads(1)
    for t in range(steps):
        old = first if t == 0 else h[t - 1]
        for row in range(lo, hi):
            inner[t, row][:] = bias
        product(hi - lo, old[lo], hidden, w_rz, 2 * hidden, hidden, a[t, lo], 3 * hidden)
        product(hi - lo, old[lo], hidden, w_c, hidden, hidden, inner[t, lo], hidden)
        for row in range(lo, hi):
            gates = a[t, row]
            squash(gates[: 2 * hidden])
            gru_mix(gates[:hidden], gates[hidden : 2 * hidden], gates[2 * hidden :], inner[t, row], old[row], h[t, row])
    set_threads(threads)


def gru_backward(given: Buffers) -> None:
    sizes = carray(given[0], 4)
    steps, rows, hidden = int(sizes[0]), int(sizes[1]), int(sizes[2])
    lo, hi = own_rows(rows)
    shape, wide = (steps, rows, hidden), (steps, rows, 3 * hidden)
    first, w_rz, w_c = carray(given[1], (rows, hidden)), carray(given[2], (1,)), carray(given[3], (1,))
    a, inner, h, dy = carray(given[4], wide), carray(given[5], shape), carray(given[6], shape), carray(given[7], shape)
    dh, da, d_inner = carray(given[8], (rows, hidden)), carray(given[9], wide), carray(given[10], shape)
    threads = set_threads(1)
    for t in range(steps - 1, -1, -1):
        old = first if t == 0 else h[t - 1]
        for row in range(lo, hi):
            g, d = a[t, row], da[t, row]
            gru_unmix(
                g[:hidden], g[hidden : 2 * hidden], g[2 * hidden :], inner[t, row], old[row],
                dh[row], d[:hidden], d[hidden : 2 * hidden], d[2 * hidden :], d_inner[t, row],
            )  # fmt: skip
            if t > 0:
                add(dh[row], dy[t - 1, row])
        product(hi - lo, da[t, lo], 3 * hidden, w_rz, hidden, 2 * hidden, dh[lo], hidden)
        product(hi - lo, d_inner[t, lo], hidden, w_c, hidden, hidden, dh[lo], hidden)
    set_threads(threads)


def reset_forward(given: Buffers) -> None:
    """`a` becomes r, z, h̃; `reset` r ⊙ h_{t−1}; `tanh_h`, where z looks at it, tanh h_{t−1}; `out` h as (B, T, H)."""
    sizes = carray(given[0], 4)
    steps, rows, hidden, kind = int(sizes[0]), int(sizes[1]), int(sizes[2]), int(sizes[3])
    lo, hi = own_rows(rows)
    shape = (steps, rows, hidden)
    first, w_joint = carray(given[1], (rows, hidden)), carray(given[2], (1,))
    w_z, w_c = carray(given[3], (1,)), carray(given[4], (1,))
    a, reset = carray(given[5], (steps, rows, 3 * hidden)), carray(given[6], shape)
    h, tanh_h, out = carray(given[7], shape), carray(given[8], shape), carray(given[9], (rows, steps, hidden))
    joint = 2 * hidden if kind & LOOKS else hidden
    threads = set_threads(1)
    for t in range(steps):
        old = first if t == 0 else h[t - 1]
        product(hi - lo, old[lo], hidden, w_joint, joint, hidden, a[t, lo], 3 * hidden)
        if kind & LOOKS_AT_TANH:
            for row in range(lo, hi):
                squashed(old[row], tanh_h[t, row])
            product(hi - lo, tanh_h[t, lo], hidden, w_z, hidden, hidden, a[t, lo, hidden:], 3 * hidden)
        for row in range(lo, hi):
            squash(a[t, row, : 2 * hidden])
            multiplied(a[t, row, :hidden], old[row], reset[t, row])
        product(hi - lo, reset[t, lo], hidden, w_c, hidden, hidden, a[t, lo, 2 * hidden :], 3 * hidden)
        for row in range(lo, hi):
            mix(a[t, row, hidden : 2 * hidden], a[t, row, 2 * hidden :], old[row], kind & TAKES, h[t, row])
            out[row, t][:] = h[t, row]
    set_threads(threads)


def reset_backward(given: Buffers) -> None:
    """dy is (B, T, H), as outputs are."""
    sizes = carray(given[0], 4)
    steps, rows, hidden, kind = int(sizes[0]), int(sizes[1]), int(sizes[2]), int(sizes[3])
    lo, hi = own_rows(rows)
    shape, wide = (steps, rows, hidden), (steps, rows, 3 * hidden)
    first, w_joint = carray(given[1], (rows, hidden)), carray(given[2], (1,))
    w_z, w_c = carray(given[3], (1,)), carray(given[4], (1,))
    a, h, tanh_h = carray(given[5], wide), carray(given[6], shape), carray(given[7], shape)
    dy, dh = carray(given[8], (rows, steps, hidden)), carray(given[9], (rows, hidden))
    da, spare = carray(given[10], wide), carray(given[11], (rows, hidden))
    joint = 2 * hidden if kind & LOOKS else hidden
    threads = set_threads(1)
    for t in range(steps - 1, -1, -1):
        old = first if t == 0 else h[t - 1]
        for row in range(lo, hi):
            spare[row][:] = 0
            unmix(
                a[t, row, hidden : 2 * hidden], a[t, row, 2 * hidden :], old[row], kind & TAKES,
                dh[row], da[t, row, hidden : 2 * hidden], da[t, row, 2 * hidden :],
            )  # fmt: skip
            if t > 0:
                add(dh[row], dy[row, t - 1])
        product(hi - lo, da[t, lo, 2 * hidden :], 3 * hidden, w_c, hidden, hidden, spare[lo], hidden)
        for row in range(lo, hi):
            through_reset(a[t, row, :hidden], old[row], spare[row], dh[row], da[t, row, :hidden])
        product(hi - lo, da[t, lo], 3 * hidden, w_joint, hidden, joint, dh[lo], hidden)
        if kind & LOOKS_AT_TANH:
            for row in range(lo, hi):
                spare[row][:] = 0
            product(hi - lo, da[t, lo, hidden:], 3 * hidden, w_z, hidden, hidden, spare[lo], hidden)
            for row in range(lo, hi):
                through_tanh(tanh_h[t, row], spare[row], dh[row])
    set_threads(threads)


LOOPS = {
    one.__name__: one
    for one in (
        inputs,
        inputs_backward,
        elman_forward,
        elman_backward,
        lstm_forward,
        lstm_backward,
        gru_forward,
        gru_backward,
        reset_forward,
        reset_backward,
    )
}
