# mypy: ignore-errors
"""Elementwise kernels between the matrix products of `seqloom.accel.recurrence.triton_steps`.

Buffers are time-major and hold all steps; t is the step. `a` (T, B, 3H) holds r, z and the candidate. `states`
(T + 1, B, H) holds the initial state and the states after all steps. Computation is in float32, or in float64 with
FLOAT64. With GATES_CANDIDATE, z is the weight of the candidate; otherwise z is the weight of the previous state.
Z_INPUT is the state that z reads: none (0), h (1) or tanh h (2).
"""

import triton
import triton.language as tl

BLOCK = 256
UNSPECIALIZED = ["t", "last", "dy_t", "dy_row", "dy_column"]  # one compiled kernel serves all values


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    return 2 / (1 + tl.exp(-2 * x)) - 1


@triton.jit
def locate(t, hidden, size, BLOCK: tl.constexpr):
    """Return the indices of a step's elements in (T, B, H) and of their r in (T, B, 3H), rows, columns and the mask."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = index // hidden
    column = index - row * hidden
    start = t.to(tl.int64) * size
    return start + index, 3 * start + row * (3 * hidden) + column, row, column, index < size


@triton.jit
def load(pointer, index, mask, FLOAT64: tl.constexpr):
    return tl.load(pointer + index, mask=mask, other=0).to(tl.float64 if FLOAT64 else tl.float32)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def gates(
    t, a, gates_product, z_product, states, reset, hidden, size,
    GATES_CANDIDATE: tl.constexpr, Z_INPUT: tl.constexpr, FLOAT64: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute r, z = σ(a + product with h) and reset = r ⊙ h_{t−1}."""
    index, r_index, row, column, mask = locate(t, hidden, size, BLOCK)
    joint = 2 * hidden if Z_INPUT == 1 else hidden
    r = sigmoid(load(a, r_index, mask, FLOAT64) + load(gates_product, row * joint + column, mask, FLOAT64))
    z = load(a, r_index + hidden, mask, FLOAT64)
    if Z_INPUT == 1:
        z += load(gates_product, row * joint + hidden + column, mask, FLOAT64)
    if Z_INPUT == 2:
        z += load(z_product, row * hidden + column, mask, FLOAT64)
    tl.store(a + r_index, r, mask=mask)
    tl.store(a + r_index + hidden, sigmoid(z), mask=mask)
    tl.store(reset + index, r * load(states, index, mask, FLOAT64), mask=mask)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def mix(
    t, a, candidate_product, states, states_cast, tanh_h, hidden, size,
    GATES_CANDIDATE: tl.constexpr, Z_INPUT: tl.constexpr, FLOAT64: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute h̃ = tanh(a + product with r ⊙ h) and its interpolation h_t. `states_cast` has the dtype of products."""
    index, r_index, row, column, mask = locate(t, hidden, size, BLOCK)
    z, old = load(a, r_index + hidden, mask, FLOAT64), load(states, index, mask, FLOAT64)
    offset = row * hidden + column
    candidate = tanh(load(a, r_index + 2 * hidden, mask, FLOAT64) + load(candidate_product, offset, mask, FLOAT64))
    new = z * candidate + (1 - z) * old if GATES_CANDIDATE else z * old + (1 - z) * candidate
    tl.store(a + r_index + 2 * hidden, candidate, mask=mask)
    tl.store(states + index + size, new, mask=mask)
    tl.store(states_cast + index + size, new, mask=mask)
    if Z_INPUT == 2:
        tl.store(tanh_h + index + size, tanh(new), mask=mask)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def mix_backward(
    t, last, a, states, dy, dy_t, dy_row, dy_column, d_gates, dh, da, hidden, size,
    GATES_CANDIDATE: tl.constexpr, Z_INPUT: tl.constexpr, FLOAT64: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of `mix`; `reset_backward` adds the part of dh that flows through h̃."""
    index, r_index, row, column, mask = locate(t, hidden, size, BLOCK)
    offset, not_last = row * hidden + column, mask & (t < last)  # dh of the last step is complete
    z, old, candidate = (
        load(a, r_index + hidden, mask, FLOAT64),
        load(states, index, mask, FLOAT64),
        load(a, r_index + 2 * hidden, mask, FLOAT64),
    )
    dy_index = t.to(tl.int64) * dy_t + row * dy_row.to(tl.int64) + column * dy_column
    d = load(dh, offset, mask, FLOAT64) + load(d_gates, offset, not_last, FLOAT64)
    d += load(dy, dy_index, not_last, FLOAT64)
    if GATES_CANDIDATE:
        candidate_weight, d_z = z, d * (candidate - old)
    else:
        candidate_weight, d_z = 1 - z, d * (old - candidate)
    tl.store(da + r_index + hidden, d_z * z * (1 - z), mask=mask)
    tl.store(da + r_index + 2 * hidden, d * candidate_weight * (1 - candidate * candidate), mask=mask)
    tl.store(dh + offset, d * (1 - candidate_weight), mask=mask)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def reset_backward(
    t, a, states, tanh_h, d_reset_product, d_tanh_product, dh, da, hidden, size,
    GATES_CANDIDATE: tl.constexpr, Z_INPUT: tl.constexpr, FLOAT64: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of r ⊙ h_{t−1}, and of tanh h_{t−1} if z reads it."""
    index, r_index, row, column, mask = locate(t, hidden, size, BLOCK)
    offset = row * hidden + column
    r, d_reset = load(a, r_index, mask, FLOAT64), load(d_reset_product, offset, mask, FLOAT64)
    d = load(dh, offset, mask, FLOAT64) + d_reset * r
    if Z_INPUT == 2:
        y = load(tanh_h, index, mask, FLOAT64)
        d += load(d_tanh_product, offset, mask, FLOAT64) * (1 - y * y)
    tl.store(da + r_index, d_reset * load(states, index, mask, FLOAT64) * r * (1 - r), mask=mask)
    tl.store(dh + offset, d, mask=mask)
