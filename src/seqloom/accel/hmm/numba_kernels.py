"""Numba kernels of hidden Markov models, for the CPU (extra `fast`).

As in `seqloom.accel.hmm.scaled`, the values of every step are divided by their sum, and the logarithms of the sums are
accumulated. A result is reliable if the probabilities of all reachable states exceed MIN_PROBABILITY. The reference
implementation computes the sequences without a reliable result.
"""

from typing import Any

import numpy as np
from numba import njit

from seqloom.classical.hmm.inference import MIN_PROBABILITY
from seqloom.core.device import compile_nogil

Array = np.ndarray[Any, Any]
compiled = compile_nogil(error_model="numpy")
inlined = njit(inline="always", error_model="numpy")  # a call takes longer than the body


@inlined
def _apply_transition(probs: Array, is_possible: Array, transitions: Array, next_probs: Array) -> bool:
    """Compute next_probs(k) = Σ_j probs(j) transitions(j, k); return whether no reachable state underflowed."""
    states, is_reliable = len(probs), True
    for k in range(states):
        next_probs[k] = 0.0
    for j in range(states):
        if probs[j] != 0.0:
            for k in range(states):
                next_probs[k] += probs[j] * transitions[j, k]
    for k in range(states):
        if not next_probs[k] > MIN_PROBABILITY:
            for j in range(states):
                if is_possible[j] and transitions[j, k] > 0.0:
                    is_reliable = False
    return is_reliable


@inlined
def _normalize_start(start: Array, probs: Array) -> tuple[float, bool]:
    """Compute probs(k) = exp(start(k) − max); return the maximum, and whether no state underflowed."""
    highest = start.max()
    is_reliable = highest > -np.inf
    for k in range(len(start)):
        probs[k] = np.exp(start[k] - highest) if is_reliable else 0.0
        is_reliable &= probs[k] > MIN_PROBABILITY or start[k] == -np.inf
    return highest, is_reliable


@inlined
def _apply_emission(probs: Array, is_possible: Array, log_b: Array, b: Array) -> tuple[float, float]:
    """Set probs(k) to probs(k) b(k) / Σ, with b scaled by its maximum; return the log of the maximum, and Σ."""
    states = len(probs)
    highest = log_b[0]
    for k in range(1, states):
        highest = max(highest, log_b[k])
    if highest == -np.inf:
        return -np.inf, 0.0
    total = 0.0
    for k in range(states):
        is_possible[k] = (probs[k] > 0.0) and log_b[k] > -np.inf
        # exp is the slowest operation, so it is skipped for the maximum and for −∞, where its value is known.
        b[k] = 1.0 if log_b[k] == highest else 0.0 if log_b[k] == -np.inf else np.exp(log_b[k] - highest)
        probs[k] *= b[k]
        total += probs[k]
    for k in range(states):
        probs[k] /= total
    return highest, total


@inlined
def _fold_product(total: float, product: float) -> tuple[float, float]:
    """Add the logarithm of a product of sums to the total if the product may soon underflow or overflow."""
    if 1e-150 < product < 1e150:
        return total, product
    return total + np.log(product), 1.0


@compiled
def forward(
    start: Array, transitions: Array, emission: Array, lengths: Array, predicted: Array, alpha: Array, reliable: Array
) -> None:
    """Compute p and α (B, T, N) in log space."""
    batch, _, states = emission.shape
    probs, next_probs, emission_probs = np.empty(states), np.empty(states), np.empty(states)
    is_possible = np.empty(states, dtype=np.bool_)
    for row in range(batch):
        total, reliable[row] = _normalize_start(start[row], probs)
        for t in range(lengths[row]):
            for k in range(states):
                predicted[row, t, k] = (np.log(probs[k]) + total) if t else start[row, k]
                alpha[row, t, k] = predicted[row, t, k] + emission[row, t, k]
            highest, summed = _apply_emission(probs, is_possible, emission[row, t], emission_probs)
            total += highest + np.log(summed)
            reliable[row] &= summed > MIN_PROBABILITY
            if t + 1 < lengths[row]:
                reliable[row] &= _apply_transition(probs, is_possible, transitions, next_probs)
                probs[:] = next_probs
            if not reliable[row]:
                break


@compiled
def likelihoods(
    start: Array, transitions: Array, emission: Array, lengths: Array, likelihood: Array, reliable: Array
) -> None:
    """Compute log p(x) (B,)."""
    batch, _, states = emission.shape
    probs, next_probs, emission_probs = np.empty(states), np.empty(states), np.empty(states)
    is_possible = np.empty(states, dtype=np.bool_)
    for row in range(batch):
        total, is_reliable = _normalize_start(start[row], probs)
        product = 1.0
        for t in range(lengths[row]):
            highest, summed = _apply_emission(probs, is_possible, emission[row, t], emission_probs)
            total, product = _fold_product(total + highest, product * summed)
            is_reliable &= summed > MIN_PROBABILITY
            if t + 1 < lengths[row]:
                is_reliable &= _apply_transition(probs, is_possible, transitions, next_probs)
                probs[:] = next_probs
            if not is_reliable:
                break
        likelihood[row], reliable[row] = total + np.log(product), is_reliable


@compiled
def e_step(
    start: Array,
    transitions: Array,
    emission: Array,
    lengths: Array,
    posterior: Array,
    pairs: Array,
    likelihood: Array,
    reliable: Array,
) -> None:
    """Compute p(z_t | x) (B, T, N), Σ_t p(z_t, z_{t+1} | x) (B, N, N) and log p(x) (B,).

    The forward pass writes filtered probabilities to `posterior`; the backward pass converts them to posteriors.
    """
    batch, longest, states = emission.shape
    probs, next_probs, weight = np.empty(states), np.empty(states), np.empty(states)
    is_possible, transposed = np.empty(states, dtype=np.bool_), np.ascontiguousarray(transitions.T)
    emission_probs = np.empty((longest, states))
    for row in range(batch):
        length = lengths[row]
        total, is_reliable = _normalize_start(start[row], probs)
        product = 1.0
        for t in range(length):
            highest, summed = _apply_emission(probs, is_possible, emission[row, t], emission_probs[t])
            total, product = _fold_product(total + highest, product * summed)
            is_reliable &= summed > MIN_PROBABILITY
            posterior[row, t] = probs
            if t + 1 < length:
                is_reliable &= _apply_transition(probs, is_possible, transitions, next_probs)
                probs[:] = next_probs
            if not is_reliable:
                break
        likelihood[row] = total + np.log(product)
        reliable[row] = is_reliable
        if not is_reliable:
            continue
        probs[:] = 1.0
        for t in range(length - 2, -1, -1):
            summed = 0.0
            for k in range(states):
                is_possible[k] = emission[row, t + 1, k] > -np.inf and probs[k] > 0.0
                weight[k] = probs[k] * emission_probs[t + 1, k]
                summed += weight[k]
            is_reliable &= summed > MIN_PROBABILITY
            for k in range(states):
                weight[k] /= summed
            is_reliable &= _apply_transition(weight, is_possible, transposed, next_probs)
            joint = 0.0
            for j in range(states):
                joint += posterior[row, t, j] * next_probs[j]
            is_reliable &= joint > MIN_PROBABILITY
            if not is_reliable:
                break
            for j in range(states):
                ratio = posterior[row, t, j] / joint
                if ratio != 0.0:
                    for k in range(states):
                        pairs[row, j, k] += ratio * transitions[j, k] * weight[k]
                posterior[row, t, j] = ratio * next_probs[j]
            probs[:] = next_probs
        reliable[row] = is_reliable


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
    """Compute the most probable states (B, T) and their log p (B,); `backpointers` (T, N) is a workspace."""
    batch, _, states = emission.shape
    best, next_best = np.empty(states), np.empty(states)
    for row in range(batch):
        length = lengths[row]
        for k in range(states):
            best[k] = start[row, k] + emission[row, 0, k]
        for t in range(1, length):
            for k in range(states):
                next_best[k] = -np.inf
                backpointers[t, k] = 0
            for j in range(states):
                for k in range(states):
                    value = best[j] + transition[j, k]
                    if value > next_best[k]:
                        next_best[k] = value
                        backpointers[t, k] = j
            for k in range(states):
                best[k] = next_best[k] + emission[row, t, k]
        last = np.argmax(best)
        score[row] = best[last]
        for t in range(length - 1, -1, -1):
            states_out[row, t] = last
            last = backpointers[t, last]
