# mypy: ignore-errors
"""The Triton kernel that applies the rules of beam search to a step: see `seqloom.accel.search.graphed_search`.

The order follows `seqloom.decoding.rules`: larger values come first, and ties keep their order.
"""

import triton
import triton.language as tl


@triton.jit
def first_largest(x, is_left):
    """Return the index of the largest remaining value, or the first such index if values are equal."""
    largest = tl.max(tl.where(is_left, x, float("-inf")), 0)
    is_largest = is_left & ((x == largest) | (x != x))
    return tl.min(tl.where(is_largest, tl.arange(0, x.shape[0]), x.shape[0]), 0)


@triton.jit
def select_one(x, is_chosen):
    """Return the chosen element of x."""
    return tl.sum(tl.where(is_chosen, x, 0), 0)


@triton.jit
def power(length, ALPHA: tl.constexpr):
    """Return length^α."""
    if ALPHA == 0.0:
        result = length * 0 + 1
    elif ALPHA == 1.0:
        result = length
    else:
        result = tl.exp(ALPHA * tl.log(length))
    return result


@triton.jit
def choose(
    values, ids, banned, step_pointer, limit, done, length, token, log_prob, before,
    f_score, f_log_prob, f_end, f_node, f_length, f_finished,
    h_token, h_parent, h_log_prob, diverged, rows, steps,
    K: tl.constexpr, COUNT: tl.constexpr, CANDIDATES: tl.constexpr, FINISHED_SLOTS: tl.constexpr,
    BANNED: tl.constexpr, END: tl.constexpr, N_BEST: tl.constexpr, ALPHA: tl.constexpr,
    MIN_LENGTH: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Choose from the continuations (k, COUNT) of the hypotheses of a source.

    Continuations with END that are among the k best become finished hypotheses. The k best continuations without END
    are continued. The results of a source that is done do not change.
    """
    b = tl.program_id(0).to(tl.int64)
    step = tl.load(step_pointer)
    new_length = (step + 1).to(tl.float64)
    is_running = tl.load(done + b) == 0
    candidate = tl.arange(0, CANDIDATES)
    slots = candidate // COUNT
    is_left = candidate < K * COUNT
    token_log_prob = tl.load(values + b * K * COUNT + candidate, mask=is_left, other=0).to(tl.float64)
    tokens = tl.load(ids + b * K * COUNT + candidate, mask=is_left, other=0)
    for number in range(BANNED):
        token_log_prob = tl.where(tokens == tl.load(banned + number), float("-inf"), token_log_prob)
    if MIN_LENGTH > 0:
        token_log_prob = tl.where((tokens == END) & (step + 1 <= MIN_LENGTH), float("-inf"), token_log_prob)
    prefix_log_prob = tl.load(log_prob + b * K + slots, mask=is_left, other=0)
    token_log_prob = tl.where(prefix_log_prob == float("-inf"), float("-inf"), token_log_prob)
    total = prefix_log_prob + token_log_prob
    has_nan = tl.max(tl.where(is_left & (total != total), 1, 0), 0) != 0

    # Previously finished hypotheses (k), and slots for hypotheses that finish in this step (k).
    finished_slot = tl.arange(0, FINISHED_SLOTS)
    is_old = finished_slot < K
    score = tl.load(f_score + b * K + finished_slot, mask=is_old, other=float("-inf"))
    sums = tl.load(f_log_prob + b * K + finished_slot, mask=is_old, other=0)
    ends = tl.load(f_end + b * K + finished_slot, mask=is_old, other=0)
    nodes = tl.load(f_node + b * K + finished_slot, mask=is_old, other=0)
    lengths = tl.load(f_length + b * K + finished_slot, mask=is_old, other=0)
    finished = tl.load(f_finished + b * K + finished_slot, mask=is_old, other=0).to(tl.int32)

    if is_running:
        previous = tl.load(log_prob + b * K + finished_slot, mask=is_old, other=0)
        tl.store(before + b * K + finished_slot, previous, mask=is_old)
    running, best_total = 0, -float("inf") * new_length
    for number in range(2 * K):
        is_chosen = candidate == first_largest(total, is_left)
        is_left = is_left & ~is_chosen
        total_log_prob, chosen_log_prob = select_one(total, is_chosen), select_one(token_log_prob, is_chosen)
        chosen_token, slot = select_one(tokens, is_chosen), select_one(slots, is_chosen)
        if chosen_token == END:
            if (number < K) & (total_log_prob != float("-inf")):
                is_new = finished_slot == K + number
                score = tl.where(is_new, total_log_prob / power(new_length, ALPHA), score)
                sums = tl.where(is_new, total_log_prob, sums)
                ends = tl.where(is_new, chosen_log_prob, ends)
                nodes = tl.where(is_new, step * K + slot, nodes)
                lengths = tl.where(is_new, step, lengths)
                finished = tl.where(is_new, 1, finished)
        elif running < K:
            if running == 0:
                best_total = total_log_prob
            target = b * K + running
            tl.store(token + target, chosen_token)
            tl.store(rows + target, b * K + slot)
            if is_running:
                tl.store(log_prob + target, total_log_prob)
            history_index = (b * steps + step) * K + running
            tl.store(h_token + history_index, chosen_token)
            tl.store(h_parent + history_index, slot.to(tl.int64))
            tl.store(h_log_prob + history_index, chosen_log_prob)
            running += 1

    worst_finished = best_total  # the worst of the n best
    is_left = finished_slot < 2 * K
    for number in range(K):
        is_chosen = finished_slot == first_largest(score, is_left)
        is_left = is_left & ~is_chosen
        target = b * K + number
        chosen_score = select_one(score, is_chosen)
        if number == N_BEST - 1:
            worst_finished = chosen_score
        if is_running:
            tl.store(f_score + target, chosen_score)
            tl.store(f_log_prob + target, select_one(sums, is_chosen))
            tl.store(f_end + target, select_one(ends, is_chosen))
            tl.store(f_node + target, select_one(nodes, is_chosen))
            tl.store(f_length + target, select_one(lengths, is_chosen))
            tl.store(f_finished + target, select_one(finished, is_chosen))

    max_length = tl.load(limit + b)
    reachable_score = best_total / (power(max_length.to(tl.float64), ALPHA) if EXACT else power(new_length, ALPHA))
    is_done = (worst_finished >= reachable_score) | (best_total == float("-inf")) | (max_length <= step + 1)
    if is_running:
        tl.store(length + b, step + 1)
        if is_done:
            tl.store(done + b, 1)
        if has_nan:
            tl.store(diverged, 1)
