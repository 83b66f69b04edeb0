"""Numba kernels of hidden Markov models, for the CPU (extra `fast`).

Scaled as in `seqloom.accel.hmm.scaled`: every step is divided by its sum, the logarithms are kept,
and a sequence is trusted only if every share that could be reached was above MIN_PROBABILITY. The
definition computes the others.
"""

from typing import Any

import numpy as np
from numba import njit

from seqloom.classical.hmm.inference import MIN_PROBABILITY
from seqloom.core.device import compile_nogil

Array = np.ndarray[Any, Any]
compiled = compile_nogil(error_model="numpy")
inlined = njit(inline="always", error_model="numpy")  # a call costs more than what these do


@inlined
def _step(share: Array, possible: Array, chances: Array, after: Array) -> bool:
    """after(k) = Σ_j share(j) chances(j, k). Whether nothing that was lost could matter."""
    states, fine = len(share), True
    for k in range(states):
        after[k] = 0.0
    for j in range(states):
        if share[j] != 0.0:
            for k in range(states):
                after[k] += share[j] * chances[j, k]
    for k in range(states):
        if not after[k] > MIN_PROBABILITY:
            for j in range(states):
                if possible[j] and chances[j, k] > 0.0:
                    fine = False
    return fine


@inlined
def _begin(start: Array, share: Array) -> tuple[float, bool]:
    """share(k) = exp(start(k) − max). The max, and whether nothing was lost."""
    highest = start.max()
    fine = highest > -np.inf
    for k in range(len(start)):
        share[k] = np.exp(start[k] - highest) if fine else 0.0
        fine &= share[k] > MIN_PROBABILITY or start[k] == -np.inf
    return highest, fine


@inlined
def _read(share: Array, possible: Array, emitted: Array, chance: Array) -> tuple[float, float]:
    """share(k) b(k) / Σ, in place; `chance` is b over its largest. The log of that, and the sum."""
    states = len(share)
    highest = emitted[0]
    for k in range(1, states):
        highest = max(highest, emitted[k])
    if highest == -np.inf:
        return -np.inf, 0.0
    total = 0.0
    for k in range(states):
        possible[k] = (share[k] > 0.0) and emitted[k] > -np.inf
        # exp is what takes longest: of the largest and of what cannot be it is known
        chance[k] = 1.0 if emitted[k] == highest else 0.0 if emitted[k] == -np.inf else np.exp(emitted[k] - highest)
        share[k] *= chance[k]
        total += share[k]
    for k in range(states):
        share[k] /= total
    return highest, total


@inlined
def _kept(total: float, product: float) -> tuple[float, float]:
    """A logarithm is taken only now and then: of a product of sums, before it grows too small or too large."""
    if 1e-150 < product < 1e150:
        return total, product
    return total + np.log(product), 1.0


@compiled
def forward(
    start: Array, chances: Array, emission: Array, lengths: Array, predicted: Array, alpha: Array, trusted: Array
) -> None:
    """p and α (B, T, N) in log space."""
    batch, _, states = emission.shape
    share, after, chance = np.empty(states), np.empty(states), np.empty(states)
    possible = np.empty(states, dtype=np.bool_)
    for row in range(batch):
        total, trusted[row] = _begin(start[row], share)
        for t in range(lengths[row]):
            for k in range(states):
                predicted[row, t, k] = (np.log(share[k]) + total) if t else start[row, k]
                alpha[row, t, k] = predicted[row, t, k] + emission[row, t, k]
            highest, summed = _read(share, possible, emission[row, t], chance)
            total += highest + np.log(summed)
            trusted[row] &= summed > MIN_PROBABILITY
            if t + 1 < lengths[row]:
                trusted[row] &= _step(share, possible, chances, after)
                share[:] = after
            if not trusted[row]:
                break


@compiled
def likelihoods(
    start: Array, chances: Array, emission: Array, lengths: Array, likelihood: Array, trusted: Array
) -> None:
    """log p(x) (B,) alone."""
    batch, _, states = emission.shape
    share, after, chance = np.empty(states), np.empty(states), np.empty(states)
    possible = np.empty(states, dtype=np.bool_)
    for row in range(batch):
        total, good = _begin(start[row], share)
        product = 1.0
        for t in range(lengths[row]):
            highest, summed = _read(share, possible, emission[row, t], chance)
            total, product = _kept(total + highest, product * summed)
            good &= summed > MIN_PROBABILITY
            if t + 1 < lengths[row]:
                good &= _step(share, possible, chances, after)
                share[:] = after
            if not good:
                break
        likelihood[row], trusted[row] = total + np.log(product), good


@compiled
def e_step(
    start: Array,
    chances: Array,
    emission: Array,
    lengths: Array,
    posterior: Array,
    pairs: Array,
    likelihood: Array,
    trusted: Array,
) -> None:
    """p(z_t | x) (B, T, N), Σ_t p(z_t, z_{t+1} | x) (B, N, N) and log p(x) (B,).

    Forward, keeping the shares in `posterior`; then backward, which makes them posteriors on its
    way.
    """
    batch, longest, states = emission.shape
    share, after, weight = np.empty(states), np.empty(states), np.empty(states)
    possible, turned = np.empty(states, dtype=np.bool_), np.ascontiguousarray(chances.T)
    emitted = np.empty((longest, states))
    for row in range(batch):
        length = lengths[row]
        total, good = _begin(start[row], share)
        product = 1.0
        for t in range(length):
            highest, summed = _read(share, possible, emission[row, t], emitted[t])
            total, product = _kept(total + highest, product * summed)
            good &= summed > MIN_PROBABILITY
            posterior[row, t] = share
            if t + 1 < length:
                good &= _step(share, possible, chances, after)
                share[:] = after
            if not good:
                break
        likelihood[row] = total + np.log(product)
        trusted[row] = good
        if not good:
            continue
        share[:] = 1.0
        for t in range(length - 2, -1, -1):
            summed = 0.0
            for k in range(states):
                possible[k] = emission[row, t + 1, k] > -np.inf and share[k] > 0.0
                weight[k] = share[k] * emitted[t + 1, k]
                summed += weight[k]
            good &= summed > MIN_PROBABILITY
            for k in range(states):
                weight[k] /= summed
            good &= _step(weight, possible, turned, after)
            joint = 0.0
            for j in range(states):
                joint += posterior[row, t, j] * after[j]
            good &= joint > MIN_PROBABILITY
            if not good:
                break
            for j in range(states):
                ratio = posterior[row, t, j] / joint
                if ratio != 0.0:
                    for k in range(states):
                        pairs[row, j, k] += ratio * chances[j, k] * weight[k]
                posterior[row, t, j] = ratio * after[j]
            share[:] = after
        trusted[row] = good


@compiled
def viterbi(
    start: Array,
    transition: Array,
    emission: Array,
    lengths: Array,
    states_out: Array,
    score: Array,
    backpointers: Array,
) -> None:
    """The likeliest states (B, T) and log p of them (B,); log space. `backpointers` (T, N) is room to work in."""
    batch, _, states = emission.shape
    best, now = np.empty(states), np.empty(states)
    for row in range(batch):
        length = lengths[row]
        for k in range(states):
            best[k] = start[row, k] + emission[row, 0, k]
        for t in range(1, length):
            for k in range(states):
                now[k] = -np.inf
                backpointers[t, k] = 0
            for j in range(states):
                for k in range(states):
                    value = best[j] + transition[j, k]
                    if value > now[k]:
                        now[k] = value
                        backpointers[t, k] = j
            for k in range(states):
                best[k] = now[k] + emission[row, t, k]
        last = np.argmax(best)
        score[row] = best[last]
        for t in range(length - 1, -1, -1):
            states_out[row, t] = last
            last = backpointers[t, last]
