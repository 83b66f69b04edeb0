# mypy: ignore-errors
"""Triton kernels of a decoder step on a GPU: linear layers, attention, and the most probable tokens.

Products of float32 numbers use the TF32 units, which are several times as fast. TF32 has 11 of the 24 bits of float32,
so each factor is split, x = x₁ + x₂, and x w ≈ x₁ w₁ + x₂ w₁ + x₁ w₂. Weights are split in advance. The units truncate
their sums, so long sums would lose precision. The units therefore sum only short blocks, and float32 additions combine
the sums of the blocks.
"""

import triton
import triton.language as tl


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == 1:  # relu
        x = tl.maximum(x, 0)
    if ACTIVATION == 2:  # gelu
        x = x * 0.5 * (1 + tl.math.erf(x * 0.7071067811865476))
    return x


@triton.jit
def split_tf32(x):
    """Split x into x₁ + x₂, with x₁ rounded to 11 bits."""
    high = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return high, x - high


@triton.jit
def fused_linear(
    x, high, low, bias, addend, out, rows, width, depth, split_depth,
    BIAS: tl.constexpr, ADDEND: tl.constexpr, ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Compute activation(x Wᵀ + b) + addend from x (R, D), a split W (N, D), b (N,) and an addend (R, N).

    A program computes a tile of ROWS · WIDTH elements of `out` (R, N). Several programs can share a tile: each program
    sums over `split_depth` of the D inputs and writes its sums to a separate `out`.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_row, is_column = row < rows, column < width
    x += row[:, None] * depth
    high += column[None, :].to(tl.int64) * depth
    low += column[None, :].to(tl.int64) * depth
    out += tl.program_id(2).to(tl.int64) * rows * width
    start = tl.program_id(2) * split_depth
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(start, tl.minimum(start + split_depth, depth), DEPTH):
        inner = first + tl.arange(0, DEPTH)
        weight_mask = is_column[None, :] & (inner < depth)[:, None]
        x1, x2 = split_tf32(tl.load(x + inner[None, :], mask=is_row[:, None] & (inner < depth)[None, :], other=0))
        w1 = tl.load(high + inner[:, None], mask=weight_mask, other=0)
        w2 = tl.load(low + inner[:, None], mask=weight_mask, other=0)
        partial = tl.dot(x2, w1, input_precision="tf32")
        partial = tl.dot(x1, w2, partial, input_precision="tf32")
        total += tl.dot(x1, w1, partial, input_precision="tf32")
    if BIAS:
        total += tl.load(bias + column, mask=is_column, other=0)[None, :]
    total = activate(total, ACTIVATION)
    index, mask = row[:, None] * width + column[None, :], is_row[:, None] & is_column[None, :]
    if ADDEND:
        total += tl.load(addend + index, mask=mask, other=0)
    tl.store(out + index, total, mask=mask)


@triton.jit
def reduce_splits(
    partials, bias, addend, gain, shift, epsilon, out, rows, width,
    SPLITS: tl.constexpr, BIAS: tl.constexpr, ADDEND: tl.constexpr, ACTIVATION: tl.constexpr, NORM: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute a row of `out` (R, N), activation(Σ partials + b) + addend, from the partial products (SPLITS, R, N).

    With NORM, LayerNorm is applied to the row: γ ⊙ (x − μ) / √(σ² + ε) + β.
    """
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    mask, index = column < width, row * width + column
    total = tl.zeros((WIDTH,), tl.float32)
    for part in tl.static_range(SPLITS):
        total += tl.load(partials + part * rows * width + index, mask=mask, other=0)
    if BIAS:
        total += tl.load(bias + column, mask=mask, other=0)
    total = activate(total, ACTIVATION)
    if ADDEND:
        total += tl.load(addend + index, mask=mask, other=0)
    if NORM:
        centered = tl.where(mask, total - tl.sum(total, 0) / width, 0)
        total = centered * tl.rsqrt(tl.sum(centered * centered, 0) / width + epsilon)
        total = total * tl.load(gain + column, mask=mask, other=0) + tl.load(shift + column, mask=mask, other=0)
    tl.store(out + index, total, mask=mask)


@triton.jit
def attend(
    q, k, v, allowed, step, out,
    q_row, source, head, position, allowed_row, heads, positions,
    HYPOTHESES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, SELF: tl.constexpr, KEY_BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute softmax(q kᵀ) v for one head and the hypotheses of one source: rows of `out` (R, N·d).

    `q_row` is the row stride of scaled queries; `source`, `head` and `position` are the strides of keys and values
    (B, N, P, d). With SELF, the keys and values of the same tokens follow the queries in memory. A hypothesis attends
    to its own token first and writes the token's key and value to the next slot. `step` tokens precede this token, and
    `allowed` (R, P) marks the slots that the hypothesis owns. Without SELF, `allowed` (B, S) is added to the scores.
    Sums are updated block by block, scaled by the largest score:

        m' = max(m, s)     l' = l · e^(m − m') + Σ e^(s − m')     o' = o · e^(m − m') + e^(s − m') v     out = o / l
    """
    b, n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, column = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    is_hypothesis = row < HYPOTHESES
    hypothesis = b * HYPOTHESES + row
    q += hypothesis[:, None] * q_row + n * WIDTH + column[None, :]
    query = tl.load(q, mask=is_hypothesis[:, None], other=0)
    k += b * source + n * head
    v += b * source + n * head
    if SELF:
        positions = tl.load(step).to(tl.int32) * HYPOTHESES  # slots in use
        key = tl.load(q + heads * WIDTH, mask=is_hypothesis[:, None], other=0)
        output = tl.load(q + 2 * heads * WIDTH, mask=is_hypothesis[:, None], other=0)
        slot_offset = (positions + row[:, None]) * position + column[None, :]
        tl.store(k + slot_offset, key, mask=is_hypothesis[:, None])
        tl.store(v + slot_offset, output, mask=is_hypothesis[:, None])
        largest = tl.sum(query * key, 1)
        total = tl.full((ROWS,), 1.0, tl.float32)
    else:
        largest = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        output = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(0, positions, KEY_BLOCK):
        slots = first + tl.arange(0, KEY_BLOCK)
        is_slot = slots < positions
        keys = tl.load(k + slots[None, :] * position + column[:, None], mask=is_slot[None, :], other=0)
        values = tl.load(v + slots[:, None] * position + column[None, :], mask=is_slot[:, None], other=0)
        if SELF:
            owned_mask = is_hypothesis[:, None] & is_slot[None, :]
            owned = tl.load(allowed + hypothesis[:, None] * allowed_row + slots[None, :], mask=owned_mask, other=0)
            scores = tl.dot(query, keys, input_precision="tf32x3")
            scores = tl.where(owned != 0, scores, float("-inf"))
        else:
            added = tl.load(allowed + b * allowed_row + slots, mask=is_slot, other=float("-inf"))
            scores = tl.dot(query, keys, input_precision="tf32x3") + added[None, :]
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        base = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp(scores - base[:, None])
        rescale = tl.exp(largest - base)
        total = total * rescale + tl.sum(weights, 1)
        output = output * rescale[:, None] + tl.dot(weights, values, input_precision="tf32x3")
        largest = new_largest
    output = output / tl.where(total == 0, 1.0, total)[:, None]
    tl.store(
        out + hypothesis[:, None] * (heads * WIDTH) + n * WIDTH + column[None, :], output, mask=is_hypothesis[:, None]
    )


@triton.jit
def rank_tokens(
    logits, values, ids, vocabulary, COUNT: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Find the COUNT largest values of the log softmax of a row (V,), and their ids; among equal values, lowest first.

        log p = s − m − log Σ exp(s − m),   where m is the largest s

    The largest value is in the first block with the largest maximum. Only this block is searched; its maximum is then
    replaced by the maximum of its remaining values.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * vocabulary
    lane = tl.arange(0, BLOCK)
    block = tl.arange(0, BLOCKS)
    tokens = block[:, None] * BLOCK + lane[None, :]
    all_scores = tl.load(logits + tokens, mask=tokens < vocabulary, other=float("-inf"))
    block_maxima = tl.max(all_scores, 1)  # (BLOCKS,)
    highest = tl.max(block_maxima, 0)
    total = tl.log(tl.sum(tl.sum(tl.exp(all_scores - highest), 1), 0))
    last_score, last_token = highest, -1  # the result of the previous rank
    for rank in range(COUNT):
        maximum = tl.max(block_maxima, 0)
        best_block = tl.min(tl.where(block_maxima == maximum, block, BLOCKS - 1), 0)
        token = best_block * BLOCK + lane
        scores = tl.load(logits + token, mask=token < vocabulary, other=float("-inf"))
        is_left = ((scores < last_score) | ((scores == last_score) & (token > last_token))) & (token < vocabulary)
        best = tl.minimum(tl.min(tl.where(is_left & (scores == maximum), token, vocabulary), 0), vocabulary - 1)
        tl.store(values + row * COUNT + rank, maximum - highest - total)
        tl.store(ids + row * COUNT + rank, best.to(tl.int64))
        is_left = is_left & ((scores < maximum) | (token > best))
        block_maxima = tl.where(block == best_block, tl.max(tl.where(is_left, scores, float("-inf")), 0), block_maxima)
        last_score, last_token = maximum, best
