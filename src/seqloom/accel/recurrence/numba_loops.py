"""Numba kernels for the steps of `seqloom.accel.recurrence.steps` (extra `fast`).

All threads of a parallel region run each loop, and each thread computes its rows from the first step to the last.
The arguments of a loop are addresses: first its sizes (steps, rows, hidden, kind of cell), then contiguous tensors
(T, B, ·) or (B, T, ·). Matrix products use oneDNN's kernels for small matrices (`product`). These kernels read W
without transposing it, so the forward pass receives Wᵀ. oneDNN compiles a kernel for every row stride, so strides must
not depend on T.
"""

from typing import Any

import numpy as np
from numba import njit, types
from numba.np.numpy_support import carray

SIGNATURE = types.void(types.CPointer(types.CPointer(types.float32)))
Row = np.ndarray[Any, Any]
Scalar = Any
Arguments = Any  # pointers to sizes and tensors; their meaning depends on the loop
OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}  # `contract` allows fused multiply-add
BLOCK_ROWS, BLOCK_COLUMNS = 64, 256  # size of a block of a large product
DIRECT_X, DIRECT_TANH_X = 1, 2  # an input that is added without a matrix: x to the first block, or tanh x to the last
TANH, RELU, SIGMOID = 0, 1, 2  # activations of an Elman cell
GATES_CANDIDATE, Z_READS_H, Z_READS_TANH = 1, 2, 4  # flags of a cell with the reset gate before the matrix product

_int, _pointer = types.int32, types.voidptr
thread_number: Any = types.ExternalFunction("seqloom_thread_number", _int())
thread_count: Any = types.ExternalFunction("seqloom_thread_count", _int())
set_threads: Any = types.ExternalFunction("seqloom_set_threads", _int(_int))
brgemm: Any = types.ExternalFunction(
    "seqloom_brgemm",  # rows, columns, inputs; row strides of x, W, out; whether to add to out; x, W, out
    types.void(*[types.int64] * 6, types.boolean, _pointer, _pointer, _pointer, types.boolean),
)

function = njit(**OPTIONS)
f32 = np.float32
MAGIC, MAGIC_BITS = f32(12582912.0), 0x4B400000  # 1.5 · 2^23: the lowest bits of MAGIC + x are the rounded x


@function
def exp(x: Scalar) -> Scalar:
    """Compute e^x = 2^n e^r for x ≥ −87, with an error of at most 2 ulp; ∞ for x ≥ 88.7; NaN for NaN."""
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
    x = f32(-89) if x < f32(-89) else x  # e^89 is infinite, so a gate can be exactly 0
    x = f32(87) if x > f32(87) else x
    return f32(1) / (f32(1) + exp(-x))


@function
def tanh(x: Scalar) -> Scalar:
    return f32(2) * sigmoid(f32(2) * x) - f32(1)


@function
def thread_rows(rows: int) -> tuple[int, int]:
    """Return the first row of this thread and the row after its last row."""
    number, count = thread_number(), thread_count()
    return rows * number // count, rows * (number + 1) // count


@function
def block_bounds(begin: int, lo: int, hi: int) -> tuple[int, int]:
    """Return the rows of a block. The last block overlaps the previous block, so that one oneDNN kernel suffices."""
    begin = max(lo, min(begin, hi - BLOCK_ROWS))
    return begin, min(begin + BLOCK_ROWS, hi)


@function
def product(rows: int, x: Row, stride: int, weight: Row, outputs: int, inputs: int, out: Row, out_stride: int) -> None:
    """Compute out += x W for rows with the given strides and W (inputs, outputs)."""
    if rows > 0:
        brgemm(rows, outputs, inputs, stride, outputs, out_stride, True, x.ctypes, weight.ctypes, out.ctypes, False)


@function
def blocked_product(x: Row, weight: Row, out: Row) -> None:
    """Compute out += x W for the first columns of x, block by block, so that a block of W fits into the cache."""
    rows, (inputs, outputs) = len(x), weight.shape
    for column in range(0, outputs, BLOCK_COLUMNS):
        brgemm(
            rows, min(BLOCK_COLUMNS, outputs - column), inputs, x.strides[0] // 4, outputs, out.strides[0] // 4, True,
            x.ctypes, weight[:, column:].ctypes, out[:, column:].ctypes, False,
        )  # fmt: skip


@function
def add(target: Row, values: Row) -> None:
    for j in range(len(target)):
        target[j] += values[j]


@function
def sigmoid_inplace(a: Row) -> None:
    for j in range(len(a)):
        a[j] = sigmoid(a[j])


@function
def tanh_into(x: Row, out: Row) -> None:
    for j in range(len(x)):
        out[j] = tanh(x[j])


@function
def multiply_into(x: Row, y: Row, out: Row) -> None:
    for j in range(len(x)):
        out[j] = x[j] * y[j]


@function
def lstm_mix(gates: Row, c_old: Row, c: Row, tanh_c: Row, new: Row) -> None:
    """Compute c = f ⊙ c_{t−1} + i ⊙ g and h = o ⊙ tanh c."""
    hidden = len(new)
    i, f, g, o = gates[:hidden], gates[hidden : 2 * hidden], gates[2 * hidden : 3 * hidden], gates[3 * hidden :]
    sigmoid_inplace(gates[: 2 * hidden])
    sigmoid_inplace(o)
    for j in range(hidden):
        g[j] = tanh(g[j])
    for j in range(hidden):
        c[j] = f[j] * c_old[j] + i[j] * g[j]
    tanh_into(c, tanh_c)
    multiply_into(o, tanh_c, new)


@function
def lstm_mix_backward(gates: Row, c_old: Row, tanh_c: Row, dh: Row, dc: Row, da: Row, padding: Row) -> None:
    """Compute the gradient of `lstm_mix`; `dc` becomes the gradient of c_{t−1}. A padded row keeps its previous h."""
    hidden = len(dh)
    i, f, g, o = gates[:hidden], gates[hidden : 2 * hidden], gates[2 * hidden : 3 * hidden], gates[3 * hidden :]
    d_i, d_f, d_g, d_o = da[:hidden], da[hidden : 2 * hidden], da[2 * hidden : 3 * hidden], da[3 * hidden :]
    is_real = f32(1) - padding
    for j in range(hidden):
        d, y = dh[j] * is_real, tanh_c[j]
        d_o[j] = d * y * o[j] * (f32(1) - o[j])
        dc[j] += d * o[j] * (f32(1) - y * y)
    for j in range(hidden):
        d_i[j] = dc[j] * g[j] * i[j] * (f32(1) - i[j])
        d_g[j] = dc[j] * i[j] * (f32(1) - g[j] * g[j])
    for j in range(hidden):
        d_f[j] = dc[j] * c_old[j] * f[j] * (f32(1) - f[j])
        dc[j] *= f[j]


@function
def gru_mix(r: Row, z: Row, candidate: Row, inner: Row, old: Row, new: Row) -> None:
    """Compute h̃ = tanh(a + r ⊙ inner) and h = z ⊙ h_{t−1} + (1 − z) ⊙ h̃."""
    for j in range(len(r)):
        c = tanh(candidate[j] + r[j] * inner[j])
        candidate[j] = c
        new[j] = z[j] * old[j] + (f32(1) - z[j]) * c


@function
def gru_mix_backward(
    r: Row, z: Row, candidate: Row, inner: Row, old: Row, d: Row, d_r: Row, d_z: Row, d_c: Row, d_inner: Row
) -> None:
    """Compute the gradients of `gru_mix` and the gates; `d` becomes the part of dh_{t−1} through z."""
    for j in range(len(r)):
        c, z_j, r_j, d_j = candidate[j], z[j], r[j], d[j]
        d_candidate = d_j * (f32(1) - z_j) * (f32(1) - c * c)
        d_c[j] = d_candidate
        d_inner[j] = d_candidate * r_j
        d_r[j] = d_candidate * inner[j] * r_j * (f32(1) - r_j)
        d_z[j] = d_j * (old[j] - c) * z_j * (f32(1) - z_j)
        d[j] = d_j * z_j


@function
def mix(z: Row, candidate: Row, old: Row, gates_candidate: int, new: Row) -> None:
    """Interpolate h̃ = tanh a with h_{t−1}; z is the weight of h̃ (`gates_candidate`) or of h_{t−1}."""
    if gates_candidate:
        for j in range(len(z)):
            candidate[j] = tanh(candidate[j])
            new[j] = z[j] * candidate[j] + (f32(1) - z[j]) * old[j]
    else:
        for j in range(len(z)):
            candidate[j] = tanh(candidate[j])
            new[j] = z[j] * old[j] + (f32(1) - z[j]) * candidate[j]


@function
def mix_backward(z: Row, candidate: Row, old: Row, gates_candidate: int, d: Row, d_z: Row, d_c: Row) -> None:
    """Compute the gradient of `mix`; `d` becomes the part of dh_{t−1} that bypasses the candidate."""
    sign = f32(1) if gates_candidate else f32(-1)
    for j in range(len(z)):
        c, d_j = candidate[j], d[j]
        candidate_weight = z[j] if gates_candidate else f32(1) - z[j]
        d_c[j] = d_j * candidate_weight * (f32(1) - c * c)
        d_z[j] = sign * d_j * (c - old[j]) * z[j] * (f32(1) - z[j])
        d[j] = d_j * (f32(1) - candidate_weight)


@function
def reset_gate_backward(r: Row, old: Row, d_reset: Row, d: Row, d_r: Row) -> None:
    for j in range(len(r)):
        d_r[j] = d_reset[j] * old[j] * r[j] * (f32(1) - r[j])
        d[j] += d_reset[j] * r[j]


@function
def tanh_backward(y: Row, d_y: Row, d: Row) -> None:
    for j in range(len(y)):
        d[j] += d_y[j] * (f32(1) - y[j] * y[j])


def project_inputs(args: Arguments) -> None:
    """Compute a = W x + b for all steps, with x + b or tanh x + b for the block without a matrix."""
    sizes = carray(args[0], 6)
    positions, width, direct = int(sizes[0]) * int(sizes[1]), int(sizes[2]), int(sizes[3])
    outputs, blocks = int(sizes[4]), int(sizes[5])
    x, weight = carray(args[1], (positions, width)), carray(args[2], (width, outputs))
    bias, a = carray(args[3], (blocks,)), carray(args[4], (positions, blocks))
    lo, hi = thread_rows(positions)
    threads = set_threads(1)
    for block in range(lo, hi, BLOCK_ROWS):
        begin, end = block_bounds(block, lo, hi)
        for row in range(begin, end):
            a[row][:] = bias
            if direct == DIRECT_X:
                add(a[row, :width], x[row])
            elif direct == DIRECT_TANH_X:
                last = a[row, outputs:]
                for j in range(width):
                    last[j] += tanh(x[row, j])
        blocked_product(x[begin:end], weight, a[begin:end, blocks - outputs if direct == DIRECT_X else 0 :])
    set_threads(threads)


def project_inputs_backward(args: Arguments) -> None:
    """Compute dx from da."""
    sizes = carray(args[0], 6)
    positions, width, direct = int(sizes[0]) * int(sizes[1]), int(sizes[2]), int(sizes[3])
    outputs, blocks = int(sizes[4]), int(sizes[5])
    x, weight = carray(args[1], (positions, width)), carray(args[2], (outputs, width))
    da, dx = carray(args[3], (positions, blocks)), carray(args[4], (positions, width))
    lo, hi = thread_rows(positions)
    threads = set_threads(1)
    for block in range(lo, hi, BLOCK_ROWS):
        begin, end = block_bounds(block, lo, hi)
        for row in range(begin, end):
            d_x = dx[row]
            d_x[:] = 0
            if direct == DIRECT_X:
                add(d_x, da[row, :width])
            elif direct == DIRECT_TANH_X:
                d_last = da[row, outputs:]
                for j in range(width):
                    y = tanh(x[row, j])
                    d_x[j] = d_last[j] * (f32(1) - y * y)
        blocked_product(da[begin:end, blocks - outputs if direct == DIRECT_X else 0 :], weight, dx[begin:end])
    set_threads(threads)


def elman_forward(args: Arguments) -> None:
    """Compute h_t = g(a_t + W h_{t−1}) in place of `a`. `padding` is 1 at padded positions."""
    sizes = carray(args[0], 4)
    steps, rows, hidden, kind = int(sizes[0]), int(sizes[1]), int(sizes[2]), int(sizes[3])
    lo, hi = thread_rows(rows)
    first, w = carray(args[1], (rows, hidden)), carray(args[2], (1,))
    a, padding = carray(args[3], (steps, rows, hidden)), carray(args[4], (steps, rows))
    threads = set_threads(1)
    for t in range(steps):
        old = first if t == 0 else a[t - 1]
        product(hi - lo, old[lo], hidden, w, hidden, hidden, a[t, lo], hidden)
        for row in range(lo, hi):
            new = a[t, row]
            if padding[t, row] != 0:
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


def elman_backward(args: Arguments) -> None:
    """Compute da of all steps; dh of the last state is replaced by the gradient of the initial state."""
    sizes = carray(args[0], 4)
    steps, rows, hidden, kind = int(sizes[0]), int(sizes[1]), int(sizes[2]), int(sizes[3])
    lo, hi = thread_rows(rows)
    shape = (steps, rows, hidden)
    w, padding = carray(args[1], (1,)), carray(args[2], (steps, rows))
    h, dy, dh, da = carray(args[3], shape), carray(args[4], shape), carray(args[5], shape[1:]), carray(args[6], shape)
    threads = set_threads(1)
    for t in range(steps - 1, -1, -1):
        for row in range(lo, hi):
            d, d_new, new = dh[row], da[t, row], h[t, row]
            padded = padding[t, row]
            if padded != 0:
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
            if padded == 0:
                d[:] = 0
            if t > 0:
                add(d, dy[t - 1, row])
        product(hi - lo, da[t, lo], hidden, w, hidden, hidden, dh[lo], hidden)
    set_threads(threads)


def lstm_forward(args: Arguments) -> None:
    """Run the steps of an LSTM; `a` becomes i, f, g, o. `padding` is 1 at padded positions."""
    sizes = carray(args[0], 4)
    steps, rows, hidden = int(sizes[0]), int(sizes[1]), int(sizes[2])
    lo, hi = thread_rows(rows)
    shape = (steps, rows, hidden)
    h_first, c_first, w = carray(args[1], (rows, hidden)), carray(args[2], (rows, hidden)), carray(args[3], (1,))
    a, padding, h = carray(args[4], (steps, rows, 4 * hidden)), carray(args[5], (steps, rows)), carray(args[6], shape)
    c, tanh_c = carray(args[7], shape), carray(args[8], shape)
    threads = set_threads(1)
    for t in range(steps):
        h_old = h_first if t == 0 else h[t - 1]
        c_old = c_first if t == 0 else c[t - 1]
        product(hi - lo, h_old[lo], hidden, w, 4 * hidden, hidden, a[t, lo], 4 * hidden)
        for row in range(lo, hi):
            lstm_mix(a[t, row], c_old[row], c[t, row], tanh_c[t, row], h[t, row])
            if padding[t, row] != 0:
                h[t, row][:] = h_old[row]
    set_threads(threads)


def lstm_backward(args: Arguments) -> None:
    """Compute da of all steps; dh and dc of the last state are replaced by the gradients of the initial state."""
    sizes = carray(args[0], 4)
    steps, rows, hidden = int(sizes[0]), int(sizes[1]), int(sizes[2])
    lo, hi = thread_rows(rows)
    shape, wide = (steps, rows, hidden), (steps, rows, 4 * hidden)
    c_first, w, padding = carray(args[1], (rows, hidden)), carray(args[2], (1,)), carray(args[3], (steps, rows))
    a, c, tanh_c, dy = carray(args[4], wide), carray(args[5], shape), carray(args[6], shape), carray(args[7], shape)
    dh, dc, da = carray(args[8], (rows, hidden)), carray(args[9], (rows, hidden)), carray(args[10], wide)
    threads = set_threads(1)
    for t in range(steps - 1, -1, -1):
        c_old = c_first if t == 0 else c[t - 1]
        for row in range(lo, hi):
            lstm_mix_backward(a[t, row], c_old[row], tanh_c[t, row], dh[row], dc[row], da[t, row], padding[t, row])
            if padding[t, row] == 0:
                dh[row][:] = 0
            if t > 0:
                add(dh[row], dy[t - 1, row])
        product(hi - lo, da[t, lo], 4 * hidden, w, hidden, 4 * hidden, dh[lo], hidden)
    set_threads(threads)


def gru_forward(args: Arguments) -> None:
    """Run the steps of a GRU; `a` becomes r, z, h̃, and `inner` becomes W h_{t−1} + b of the candidate."""
    sizes = carray(args[0], 4)
    steps, rows, hidden = int(sizes[0]), int(sizes[1]), int(sizes[2])
    lo, hi = thread_rows(rows)
    first, w_rz, w_c = carray(args[1], (rows, hidden)), carray(args[2], (1,)), carray(args[3], (1,))
    bias, a = carray(args[4], (hidden,)), carray(args[5], (steps, rows, 3 * hidden))
    inner, h = carray(args[6], (steps, rows, hidden)), carray(args[7], (steps, rows, hidden))
    threads = set_threads(1)
    for t in range(steps):
        old = first if t == 0 else h[t - 1]
        for row in range(lo, hi):
            inner[t, row][:] = bias
        product(hi - lo, old[lo], hidden, w_rz, 2 * hidden, hidden, a[t, lo], 3 * hidden)
        product(hi - lo, old[lo], hidden, w_c, hidden, hidden, inner[t, lo], hidden)
        for row in range(lo, hi):
            gates = a[t, row]
            sigmoid_inplace(gates[: 2 * hidden])
            gru_mix(gates[:hidden], gates[hidden : 2 * hidden], gates[2 * hidden :], inner[t, row], old[row], h[t, row])
    set_threads(threads)


def gru_backward(args: Arguments) -> None:
    sizes = carray(args[0], 4)
    steps, rows, hidden = int(sizes[0]), int(sizes[1]), int(sizes[2])
    lo, hi = thread_rows(rows)
    shape, wide = (steps, rows, hidden), (steps, rows, 3 * hidden)
    first, w_rz, w_c = carray(args[1], (rows, hidden)), carray(args[2], (1,)), carray(args[3], (1,))
    a, inner, h, dy = carray(args[4], wide), carray(args[5], shape), carray(args[6], shape), carray(args[7], shape)
    dh, da, d_inner = carray(args[8], (rows, hidden)), carray(args[9], wide), carray(args[10], shape)
    threads = set_threads(1)
    for t in range(steps - 1, -1, -1):
        old = first if t == 0 else h[t - 1]
        for row in range(lo, hi):
            g, d = a[t, row], da[t, row]
            gru_mix_backward(
                g[:hidden], g[hidden : 2 * hidden], g[2 * hidden :], inner[t, row], old[row],
                dh[row], d[:hidden], d[hidden : 2 * hidden], d[2 * hidden :], d_inner[t, row],
            )  # fmt: skip
            if t > 0:
                add(dh[row], dy[t - 1, row])
        product(hi - lo, da[t, lo], 3 * hidden, w_rz, hidden, 2 * hidden, dh[lo], hidden)
        product(hi - lo, d_inner[t, lo], hidden, w_c, hidden, hidden, dh[lo], hidden)
    set_threads(threads)


def reset_forward(args: Arguments) -> None:
    """Run the steps of a cell with the reset gate before the matrix product.

    `a` becomes r, z, h̃; `reset` becomes r ⊙ h_{t−1}; `tanh_h` becomes tanh h_{t−1} if z reads it; `out` becomes h as
    (B, T, H).
    """
    sizes = carray(args[0], 4)
    steps, rows, hidden, kind = int(sizes[0]), int(sizes[1]), int(sizes[2]), int(sizes[3])
    lo, hi = thread_rows(rows)
    shape = (steps, rows, hidden)
    first, w_joint = carray(args[1], (rows, hidden)), carray(args[2], (1,))
    w_z, w_c = carray(args[3], (1,)), carray(args[4], (1,))
    a, reset = carray(args[5], (steps, rows, 3 * hidden)), carray(args[6], shape)
    h, tanh_h, out = carray(args[7], shape), carray(args[8], shape), carray(args[9], (rows, steps, hidden))
    joint = 2 * hidden if kind & Z_READS_H else hidden
    threads = set_threads(1)
    for t in range(steps):
        old = first if t == 0 else h[t - 1]
        product(hi - lo, old[lo], hidden, w_joint, joint, hidden, a[t, lo], 3 * hidden)
        if kind & Z_READS_TANH:
            for row in range(lo, hi):
                tanh_into(old[row], tanh_h[t, row])
            product(hi - lo, tanh_h[t, lo], hidden, w_z, hidden, hidden, a[t, lo, hidden:], 3 * hidden)
        for row in range(lo, hi):
            sigmoid_inplace(a[t, row, : 2 * hidden])
            multiply_into(a[t, row, :hidden], old[row], reset[t, row])
        product(hi - lo, reset[t, lo], hidden, w_c, hidden, hidden, a[t, lo, 2 * hidden :], 3 * hidden)
        for row in range(lo, hi):
            z, candidate = a[t, row, hidden : 2 * hidden], a[t, row, 2 * hidden :]
            mix(z, candidate, old[row], kind & GATES_CANDIDATE, h[t, row])
            out[row, t][:] = h[t, row]
    set_threads(threads)


def reset_backward(args: Arguments) -> None:
    """Compute da of all steps; dy is (B, T, H), like the outputs."""
    sizes = carray(args[0], 4)
    steps, rows, hidden, kind = int(sizes[0]), int(sizes[1]), int(sizes[2]), int(sizes[3])
    lo, hi = thread_rows(rows)
    shape, wide = (steps, rows, hidden), (steps, rows, 3 * hidden)
    first, w_joint = carray(args[1], (rows, hidden)), carray(args[2], (1,))
    w_z, w_c = carray(args[3], (1,)), carray(args[4], (1,))
    a, h, tanh_h = carray(args[5], wide), carray(args[6], shape), carray(args[7], shape)
    dy, dh = carray(args[8], (rows, steps, hidden)), carray(args[9], (rows, hidden))
    da, scratch = carray(args[10], wide), carray(args[11], (rows, hidden))
    joint = 2 * hidden if kind & Z_READS_H else hidden
    threads = set_threads(1)
    for t in range(steps - 1, -1, -1):
        old = first if t == 0 else h[t - 1]
        for row in range(lo, hi):
            scratch[row][:] = 0
            mix_backward(
                a[t, row, hidden : 2 * hidden], a[t, row, 2 * hidden :], old[row], kind & GATES_CANDIDATE,
                dh[row], da[t, row, hidden : 2 * hidden], da[t, row, 2 * hidden :],
            )  # fmt: skip
            if t > 0:
                add(dh[row], dy[row, t - 1])
        product(hi - lo, da[t, lo, 2 * hidden :], 3 * hidden, w_c, hidden, hidden, scratch[lo], hidden)
        for row in range(lo, hi):
            reset_gate_backward(a[t, row, :hidden], old[row], scratch[row], dh[row], da[t, row, :hidden])
        product(hi - lo, da[t, lo], 3 * hidden, w_joint, hidden, joint, dh[lo], hidden)
        if kind & Z_READS_TANH:
            for row in range(lo, hi):
                scratch[row][:] = 0
            product(hi - lo, da[t, lo, hidden:], 3 * hidden, w_z, hidden, hidden, scratch[lo], hidden)
            for row in range(lo, hi):
                tanh_backward(tanh_h[t, row], scratch[row], dh[row])
    set_threads(threads)


LOOPS = {
    loop.__name__: loop
    for loop in (
        project_inputs,
        project_inputs_backward,
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
