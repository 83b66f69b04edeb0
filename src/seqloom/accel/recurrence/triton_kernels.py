# mypy: ignore-errors
"""What lies between the products of `seqloom.accel.recurrence.triton_steps`: an elementwise kernel before each.

Buffers are time-major and whole; t says which step is meant. `a` (T, B, 3H) holds r, z and the
candidate side by side, `states` (T + 1, B, H) the first state and all others. All is computed in
float32, or with WIDE in float64. TAKES: z is the share of the candidate, else that of the old
state. LOOKS: z looks at nothing (0), h (1), tanh h (2).
"""

import triton
import triton.language as tl

BLOCK = 256
ANY = ["t", "last", "dy_t", "dy_row", "dy_column"]  # not worth a kernel of their own when they are 1 or round


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    return 2 / (1 + tl.exp(-2 * x)) - 1


@triton.jit
def places(t, hidden, numbers, BLOCK: tl.constexpr):
    """Of every number of a step: its place in (T, B, H), that of its r in (T, B, 3H), row, column, and if it is one."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = place // hidden
    column = place - row * hidden
    begin = t.to(tl.int64) * numbers
    return begin + place, 3 * begin + row * (3 * hidden) + column, row, column, place < numbers


@triton.jit
def load(pointer, place, there, WIDE: tl.constexpr):
    return tl.load(pointer + place, mask=there, other=0).to(tl.float64 if WIDE else tl.float32)


@triton.jit(do_not_specialize=ANY)
def gates(
    t, a, for_gates, for_z, states, reset, hidden, numbers,
    TAKES: tl.constexpr, LOOKS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """r, z = σ(a + what h gives); reset = r ⊙ h_{t−1}"""
    place, of_r, row, column, there = places(t, hidden, numbers, BLOCK)
    joint = 2 * hidden if LOOKS == 1 else hidden
    r = sigmoid(load(a, of_r, there, WIDE) + load(for_gates, row * joint + column, there, WIDE))
    z = load(a, of_r + hidden, there, WIDE)
    if LOOKS == 1:
        z += load(for_gates, row * joint + hidden + column, there, WIDE)
    if LOOKS == 2:
        z += load(for_z, row * hidden + column, there, WIDE)
    tl.store(a + of_r, r, mask=there)
    tl.store(a + of_r + hidden, sigmoid(z), mask=there)
    tl.store(reset + place, r * load(states, place, there, WIDE), mask=there)


@triton.jit(do_not_specialize=ANY)
def mix(
    t, a, for_c, states, seen, tanh_h, hidden, numbers,
    TAKES: tl.constexpr, LOOKS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """h̃ = tanh(a + what r ⊙ h gives); h_t between it and h_{t−1}. `seen` is h_t as products see it."""
    place, of_r, row, column, there = places(t, hidden, numbers, BLOCK)
    z, old = load(a, of_r + hidden, there, WIDE), load(states, place, there, WIDE)
    candidate = tanh(load(a, of_r + 2 * hidden, there, WIDE) + load(for_c, row * hidden + column, there, WIDE))
    new = z * candidate + (1 - z) * old if TAKES else z * old + (1 - z) * candidate
    tl.store(a + of_r + 2 * hidden, candidate, mask=there)
    tl.store(states + place + numbers, new, mask=there)
    tl.store(seen + place + numbers, new, mask=there)
    if LOOKS == 2:
        tl.store(tanh_h + place + numbers, tanh(new), mask=there)


@triton.jit(do_not_specialize=ANY)
def unmix(
    t, last, a, states, dy, dy_t, dy_row, dy_column, by_gates, dh, da, hidden, numbers,
    TAKES: tl.constexpr, LOOKS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Back through `mix`: dh of all ways but one, that by h̃, which is still to come."""
    place, of_r, row, column, there = places(t, hidden, numbers, BLOCK)
    at, later = row * hidden + column, there & (t < last)  # the last step has all of its dh in it
    z, old, candidate = (
        load(a, of_r + hidden, there, WIDE),
        load(states, place, there, WIDE),
        load(a, of_r + 2 * hidden, there, WIDE),
    )
    of_dy = t.to(tl.int64) * dy_t + row * dy_row.to(tl.int64) + column * dy_column
    d = load(dh, at, there, WIDE) + load(by_gates, at, later, WIDE) + load(dy, of_dy, later, WIDE)
    if TAKES:
        share, d_z = z, d * (candidate - old)
    else:
        share, d_z = 1 - z, d * (old - candidate)
    tl.store(da + of_r + hidden, d_z * z * (1 - z), mask=there)
    tl.store(da + of_r + 2 * hidden, d * share * (1 - candidate * candidate), mask=there)
    tl.store(dh + at, d * (1 - share), mask=there)


@triton.jit(do_not_specialize=ANY)
def unreset(
    t, a, states, tanh_h, by_reset, by_tanh, dh, da, hidden, numbers,
    TAKES: tl.constexpr, LOOKS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Back through r ⊙ h_{t−1}, and through tanh h_{t−1} where z looks at it."""
    place, of_r, row, column, there = places(t, hidden, numbers, BLOCK)
    at = row * hidden + column
    r, d_reset = load(a, of_r, there, WIDE), load(by_reset, at, there, WIDE)
    d = load(dh, at, there, WIDE) + d_reset * r
    if LOOKS == 2:
        y = load(tanh_h, place, there, WIDE)
        d += load(by_tanh, at, there, WIDE) * (1 - y * y)
    tl.store(da + of_r, d_reset * load(states, place, there, WIDE) * r * (1 - r), mask=there)
    tl.store(dh + at, d, mask=there)
