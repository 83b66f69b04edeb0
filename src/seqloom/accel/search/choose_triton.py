# mypy: ignore-errors
"""What a step of a beam search does with what the model says, in one kernel: see `seqloom.accel.search.graphed_search`.

Everything is compared as `seqloom.decoding.rules` does it: larger first, and of equals the one that
stands first.
"""

import triton
import triton.language as tl


@triton.jit
def first_largest(x, left):
    """The largest of those that are left, and where it stands first."""
    largest = tl.max(tl.where(left, x, float("-inf")), 0)
    here = left & ((x == largest) | (x != x))
    return tl.min(tl.where(here, tl.arange(0, x.shape[0]), x.shape[0]), 0)


@triton.jit
def at_place(x, chosen):
    """The one number of x that is chosen."""
    return tl.sum(tl.where(chosen, x, 0), 0)


@triton.jit
def power(length, ALPHA: tl.constexpr):
    """length^α"""
    if ALPHA == 0.0:
        found = length * 0 + 1
    elif ALPHA == 1.0:
        found = length
    else:
        found = tl.exp(ALPHA * tl.log(length))
    return found


@triton.jit
def choose(
    values, ids, banned, at, limit, done, length, token, log_prob, before,
    f_score, f_log_prob, f_end, f_node, f_length, f_finished,
    h_token, h_parent, h_own, broken, rows, steps,
    K: tl.constexpr, COUNT: tl.constexpr, CANDIDATES: tl.constexpr, PLACES: tl.constexpr,
    BANNED: tl.constexpr, END: tl.constexpr, N_BEST: tl.constexpr, ALPHA: tl.constexpr,
    MIN_LENGTH: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The continuations (k, COUNT) of one source's hypotheses: those among the k best that end are set aside, the k
    best that do not go on. What a source that is done has found stays as it is."""
    b = tl.program_id(0).to(tl.int64)
    step = tl.load(at)
    now = (step + 1).to(tl.float64)
    going = tl.load(done + b) == 0
    candidate = tl.arange(0, CANDIDATES)
    slots = candidate // COUNT
    left = candidate < K * COUNT
    own = tl.load(values + b * K * COUNT + candidate, mask=left, other=0).to(tl.float64)
    said = tl.load(ids + b * K * COUNT + candidate, mask=left, other=0)
    for place in range(BANNED):
        own = tl.where(said == tl.load(banned + place), float("-inf"), own)
    if MIN_LENGTH > 0:
        own = tl.where((said == END) & (step + 1 <= MIN_LENGTH), float("-inf"), own)
    so_far = tl.load(log_prob + b * K + slots, mask=left, other=0)
    own = tl.where(so_far == float("-inf"), float("-inf"), own)
    total = so_far + own
    bad = tl.max(tl.where(left & (total != total), 1, 0), 0) != 0

    # What had ended (k), and room for what ends now (k).
    place = tl.arange(0, PLACES)
    old = place < K
    score = tl.load(f_score + b * K + place, mask=old, other=float("-inf"))
    sums = tl.load(f_log_prob + b * K + place, mask=old, other=0)
    ends = tl.load(f_end + b * K + place, mask=old, other=0)
    nodes = tl.load(f_node + b * K + place, mask=old, other=0)
    lengths = tl.load(f_length + b * K + place, mask=old, other=0)
    finished = tl.load(f_finished + b * K + place, mask=old, other=0).to(tl.int32)

    if going:
        tl.store(before + b * K + place, tl.load(log_prob + b * K + place, mask=old, other=0), mask=old)
    on, best = 0, -float("inf") * now
    for number in range(2 * K):
        chosen = candidate == first_largest(total, left)
        left = left & ~chosen
        sum_, own_ = at_place(total, chosen), at_place(own, chosen)
        said_, slot = at_place(said, chosen), at_place(slots, chosen)
        if said_ == END:
            if (number < K) & (sum_ != float("-inf")):
                new = place == K + number
                score = tl.where(new, sum_ / power(now, ALPHA), score)
                sums = tl.where(new, sum_, sums)
                ends = tl.where(new, own_, ends)
                nodes = tl.where(new, step * K + slot, nodes)
                lengths = tl.where(new, step, lengths)
                finished = tl.where(new, 1, finished)
        elif on < K:
            if on == 0:
                best = sum_
            goal = b * K + on
            tl.store(token + goal, said_)
            tl.store(rows + goal, b * K + slot)
            if going:
                tl.store(log_prob + goal, sum_)
            there = (b * steps + step) * K + on
            tl.store(h_token + there, said_)
            tl.store(h_parent + there, slot.to(tl.int64))
            tl.store(h_own + there, own_)
            on += 1

    worst = best  # of the n best that have ended
    left = place < 2 * K
    for number in range(K):
        chosen = place == first_largest(score, left)
        left = left & ~chosen
        goal = b * K + number
        found = at_place(score, chosen)
        if number == N_BEST - 1:
            worst = found
        if going:
            tl.store(f_score + goal, found)
            tl.store(f_log_prob + goal, at_place(sums, chosen))
            tl.store(f_end + goal, at_place(ends, chosen))
            tl.store(f_node + goal, at_place(nodes, chosen))
            tl.store(f_length + goal, at_place(lengths, chosen))
            tl.store(f_finished + goal, at_place(finished, chosen))

    most = tl.load(limit + b)
    reach = best / (power(most.to(tl.float64), ALPHA) if EXACT else power(now, ALPHA))
    stops = (worst >= reach) | (best == float("-inf")) | (most <= step + 1)
    if going:
        tl.store(length + b, step + 1)
        if stops:
            tl.store(done + b, 1)
        if bad:
            tl.store(broken, 1)
