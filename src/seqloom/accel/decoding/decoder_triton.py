# mypy: ignore-errors
"""A decoder's step on a GPU: its products, its attention and its most probable tokens, each in one kernel.

Products of float32 are made by the units for TF32, which are several times as fast, in three parts:
TF32 keeps 11 bits of a number's 24, but x = x₁ + x₂ of which each is short enough, and x w ≈ x₁ w₁
+ x₂ w₁ + x₁ w₂. Weights come in parts. The units cut off what they sum, and what they sum for long
loses by it; so they sum some places at a time, and these sums are added as float32.
"""

import triton
import triton.language as tl


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == 1:  # relu
        x = tl.maximum(x, 0)
    if ACTIVATION == 2:  # gelu
        x = x * 0.5 * (1 + tl.math.erf(x * 0.7071067811865476))
    return x


@triton.jit
def parted(x):
    """x = x₁ + x₂, of which x₁ is the nearest of 11 bits."""
    large = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return large, x - large


@triton.jit
def product(
    x, large, small, bias, plus, out, rows, width, depth, share,
    BIAS: tl.constexpr, PLUS: tl.constexpr, ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """activation(x Wᵀ + b) + plus of x (R, D), W (N, D) in two parts, b (N,) and plus (R, N): ROWS · WIDTH numbers of
    `out` (R, N).

    Where there are few numbers, several share each: one takes `share` of D, and has an `out` of its
    own.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_row, is_column = row < rows, column < width
    x += row[:, None] * depth
    large += column[None, :].to(tl.int64) * depth
    small += column[None, :].to(tl.int64) * depth
    out += tl.program_id(2).to(tl.int64) * rows * width
    begin = tl.program_id(2) * share
    made = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(begin, tl.minimum(begin + share, depth), DEPTH):
        at = first + tl.arange(0, DEPTH)
        wanted = is_column[None, :] & (at < depth)[:, None]
        x1, x2 = parted(tl.load(x + at[None, :], mask=is_row[:, None] & (at < depth)[None, :], other=0))
        w1 = tl.load(large + at[:, None], mask=wanted, other=0)
        w2 = tl.load(small + at[:, None], mask=wanted, other=0)
        block = tl.dot(x2, w1, input_precision="tf32")
        block = tl.dot(x1, w2, block, input_precision="tf32")
        made += tl.dot(x1, w1, block, input_precision="tf32")
    if BIAS:
        made += tl.load(bias + column, mask=is_column, other=0)[None, :]
    made = activated(made, ACTIVATION)
    place, there = row[:, None] * width + column[None, :], is_row[:, None] & is_column[None, :]
    if PLUS:
        made += tl.load(plus + place, mask=there, other=0)
    tl.store(out + place, made, mask=there)


@triton.jit
def summed(
    parts, bias, plus, gain, shift, epsilon, out, rows, width,
    SHARES: tl.constexpr, BIAS: tl.constexpr, PLUS: tl.constexpr, ACTIVATION: tl.constexpr, NORM: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """activation(Σ parts + b) + plus of what several have made of a product: a row of parts (SHARES, R, N) to one of
    `out` (R, N). NORM: and LayerNorm of it, γ ⊙ (x − μ) / √(σ² + ε) + β."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    there, place = column < width, row * width + column
    made = tl.zeros((WIDTH,), tl.float32)
    for part in tl.static_range(SHARES):
        made += tl.load(parts + part * rows * width + place, mask=there, other=0)
    if BIAS:
        made += tl.load(bias + column, mask=there, other=0)
    made = activated(made, ACTIVATION)
    if PLUS:
        made += tl.load(plus + place, mask=there, other=0)
    if NORM:
        away = tl.where(there, made - tl.sum(made, 0) / width, 0)
        made = away * tl.rsqrt(tl.sum(away * away, 0) / width + epsilon)
        made = made * tl.load(gain + column, mask=there, other=0) + tl.load(shift + column, mask=there, other=0)
    tl.store(out + place, made, mask=there)


@triton.jit
def attend(
    q, k, v, allowed, read, out,
    q_row, source, head, place, allowed_row, heads, places,
    HYPOTHESES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, OWN: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """softmax(q kᵀ) v of one source's hypotheses and one head: rows of `out` (R, N·d).

    Scaled queries stand `q_row` apart; keys and values (B, N, P, d) stand `source`, `head` and
    `place` apart. OWN: behind the queries stand the keys and the values of the same tokens, which
    the hypotheses look at first and write to the next places; they have read `read` tokens before,
    and `allowed` (R, P) says which are whose. Else `allowed` (B, S) is added to the scores. Sums go
    on from block to block, scaled by the largest score so far:

        m' = max(m, s)     l' = l · e^(m − m') + Σ e^(s − m')     o' = o · e^(m − m') + e^(s − m') v     out = o / l
    """
    b, n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, column = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    there = row < HYPOTHESES
    mine = b * HYPOTHESES + row
    q += mine[:, None] * q_row + n * WIDTH + column[None, :]
    query = tl.load(q, mask=there[:, None], other=0)
    k += b * source + n * head
    v += b * source + n * head
    if OWN:
        places = tl.load(read).to(tl.int32) * HYPOTHESES  # the rest is still empty
        key = tl.load(q + heads * WIDTH, mask=there[:, None], other=0)
        seen = tl.load(q + 2 * heads * WIDTH, mask=there[:, None], other=0)
        written = (places + row[:, None]) * place + column[None, :]
        tl.store(k + written, key, mask=there[:, None])
        tl.store(v + written, seen, mask=there[:, None])
        largest = tl.sum(query * key, 1)
        total = tl.full((ROWS,), 1.0, tl.float32)
    else:
        largest = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        seen = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(0, places, PLACES):
        at = first + tl.arange(0, PLACES)
        inside = at < places
        keys = tl.load(k + at[None, :] * place + column[:, None], mask=inside[None, :], other=0)
        values = tl.load(v + at[:, None] * place + column[None, :], mask=inside[:, None], other=0)
        if OWN:
            wanted = there[:, None] & inside[None, :]
            real = tl.load(allowed + mine[:, None] * allowed_row + at[None, :], mask=wanted, other=0)
            scores = tl.dot(query, keys, input_precision="tf32x3")
            scores = tl.where(real != 0, scores, float("-inf"))
        else:
            added = tl.load(allowed + b * allowed_row + at, mask=inside, other=float("-inf"))
            scores = tl.dot(query, keys, input_precision="tf32x3") + added[None, :]
        above = tl.maximum(largest, tl.max(scores, 1))
        base = tl.where(above == float("-inf"), 0.0, above)
        shares = tl.exp(scores - base[:, None])
        before = tl.exp(largest - base)
        total = total * before + tl.sum(shares, 1)
        seen = seen * before[:, None] + tl.dot(shares, values, input_precision="tf32x3")
        largest = above
    seen = seen / tl.where(total == 0, 1.0, total)[:, None]
    tl.store(out + mine[:, None] * (heads * WIDTH) + n * WIDTH + column[None, :], seen, mask=there[:, None])


@triton.jit
def ranked(
    logits, values, ids, vocabulary, COUNT: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The COUNT largest of log softmax of a row (V,), and where they are; of equals the first.

        log p = s − m − log Σ exp(s − m),   m the largest s

    The largest is in the first of the blocks of largest maximum. That block alone is looked at, and
    what is left of it has another maximum.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * vocabulary
    inside = tl.arange(0, BLOCK)
    block = tl.arange(0, BLOCKS)
    every = block[:, None] * BLOCK + inside[None, :]
    all_s = tl.load(logits + every, mask=every < vocabulary, other=float("-inf"))
    tops = tl.max(all_s, 1)  # (BLOCKS,)
    highest = tl.max(tops, 0)
    total = tl.log(tl.sum(tl.sum(tl.exp(all_s - highest), 1), 0))
    last, last_token = highest, -1  # what was taken before
    for place in range(COUNT):
        top = tl.max(tops, 0)
        own = tl.min(tl.where(tops == top, block, BLOCKS - 1), 0)
        token = own * BLOCK + inside
        s = tl.load(logits + token, mask=token < vocabulary, other=float("-inf"))
        left = ((s < last) | ((s == last) & (token > last_token))) & (token < vocabulary)
        best = tl.minimum(tl.min(tl.where(left & (s == top), token, vocabulary), 0), vocabulary - 1)
        tl.store(values + row * COUNT + place, top - highest - total)
        tl.store(ids + row * COUNT + place, best.to(tl.int64))
        left = left & ((s < top) | (token > best))
        tops = tl.where(block == own, tl.max(tl.where(left, s, float("-inf")), 0), tops)
        last, last_token = top, best
