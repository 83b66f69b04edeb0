"""Inference in hidden Markov models with scaled numba kernels, one sequence at a time."""

from typing import Any

import torch
from torch import Tensor

from seqloom.accel.hmm.scaled import pad_with_last, recompute_unreliable
from seqloom.classical.hmm import inference as hmm_inference
from seqloom.classical.hmm.inference import Posterior, expand_rows
from seqloom.core.device import has_numba


def applies(initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None) -> bool:
    """Return whether all tensors are on the CPU, in double precision."""
    tensors = initial, transition, emission
    return all(x.device.type == "cpu" and x.dtype == torch.float64 for x in tensors) and has_numba()


def applies_to_sums(
    start: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None, *, largest: bool = False
) -> bool:
    return not largest and applies(start, transition, emission, mask)


def recursion(
    start: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None, *, largest: bool = False
) -> tuple[Tensor, Tensor]:
    from seqloom.accel.hmm import numba_kernels

    predicted, alpha = torch.zeros_like(emission), torch.zeros_like(emission)
    reliable = torch.zeros(len(emission), dtype=torch.bool)
    inputs = to_numpy(start, transition.exp(), emission, sequence_lengths(emission, mask))
    numba_kernels.forward(*inputs, *to_numpy(predicted, alpha, reliable))
    predicted, alpha = pad_with_last(predicted, mask), pad_with_last(alpha, mask)
    return recompute_unreliable(predicted, alpha, reliable, start, transition, emission, mask)


def log_likelihood(initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None) -> Tensor:
    from seqloom.accel.hmm import numba_kernels

    hmm_inference.check(initial, transition, emission, mask)
    initial, lengths = expand_rows(initial, emission), sequence_lengths(emission, mask)
    results, reliable = emission.new_zeros(len(emission)), torch.zeros(len(emission), dtype=torch.bool)
    inputs = to_numpy(initial, transition.exp(), emission, lengths)
    numba_kernels.likelihoods(*inputs, *to_numpy(results, reliable))
    results, reliable = results.where(lengths > 0, 0), reliable | (lengths == 0)
    if not bool(reliable.all()):
        rest = (~reliable).nonzero().flatten()
        rest_mask = None if mask is None else mask[rest]
        exact = hmm_inference.forward(initial[rest], transition, emission[rest], rest_mask)
        results[rest] = exact.log_likelihood
    return results


def expected_states(initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None) -> Posterior:
    from seqloom.accel.hmm import numba_kernels

    batch, _, states = emission.shape
    posteriors, pairs = torch.zeros_like(emission), emission.new_zeros(batch, states, states)
    likelihood, reliable = emission.new_zeros(batch), torch.zeros(batch, dtype=torch.bool)
    initial, lengths = expand_rows(initial, emission), sequence_lengths(emission, mask)
    inputs = to_numpy(initial, transition.exp(), emission, lengths)
    numba_kernels.e_step(*inputs, *to_numpy(posteriors, pairs, likelihood, reliable))
    reliable |= lengths == 0
    likelihood = likelihood.where(lengths > 0, 0)
    if not bool(reliable.all()):
        rest = (~reliable).nonzero().flatten()
        exact = hmm_inference.expected_states.definition(
            initial[rest], transition, emission[rest], None if mask is None else mask[rest]
        )
        posteriors[rest], pairs[rest], likelihood[rest] = exact.states, exact.pairs, exact.log_likelihood
    return Posterior(posteriors, pairs, likelihood)


def best_path(
    initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    from seqloom.accel.hmm import numba_kernels

    states, score = torch.zeros(emission.shape[:2], dtype=torch.long), emission.new_zeros(len(emission))
    backpointers = torch.zeros(emission.shape[1:], dtype=torch.int16)
    inputs = to_numpy(expand_rows(initial, emission), transition, emission, sequence_lengths(emission, mask))
    numba_kernels.viterbi(*inputs, *to_numpy(states, score, backpointers))
    return states, score


def sequence_lengths(emission: Tensor, mask: Tensor | None) -> Tensor:
    return torch.full((len(emission),), emission.shape[1]) if mask is None else mask.sum(dim=1)


def to_numpy(*tensors: Tensor) -> list[Any]:
    return [tensor.detach().contiguous().numpy() for tensor in tensors]
