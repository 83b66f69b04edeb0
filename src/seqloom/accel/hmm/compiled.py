"""Hidden Markov models with numba kernels: scaled, one sequence after the other, so that nothing need be cut."""

from typing import Any

import torch
from torch import Tensor

from seqloom.accel.hmm.scaled import mend, pad_with_last
from seqloom.classical.hmm import inference as hmm_inference
from seqloom.classical.hmm.inference import Posterior, expand_rows
from seqloom.core.device import has_numba


def applies(initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None) -> bool:
    """The kernels are for the CPU and double precision."""
    fit = all(one.device.type == "cpu" and one.dtype == torch.float64 for one in (initial, transition, emission))
    return fit and has_numba()


def applies_to_sums(
    start: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None, *, largest: bool = False
) -> bool:
    return not largest and applies(start, transition, emission, mask)


def recursion(
    start: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None, *, largest: bool = False
) -> tuple[Tensor, Tensor]:
    from seqloom.accel.hmm import numba_kernels

    predicted, alpha = torch.zeros_like(emission), torch.zeros_like(emission)
    trusted = torch.zeros(len(emission), dtype=torch.bool)
    given = arrays(start, transition.exp(), emission, lengths_of(emission, mask))
    numba_kernels.forward(*given, *arrays(predicted, alpha, trusted))
    predicted, alpha = pad_with_last(predicted, mask), pad_with_last(alpha, mask)
    return mend(predicted, alpha, trusted, start, transition, emission, mask)


def log_likelihood(initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None) -> Tensor:
    from seqloom.accel.hmm import numba_kernels

    hmm_inference.check(initial, transition, emission, mask)
    rows, lengths = expand_rows(initial, emission), lengths_of(emission, mask)
    found, trusted = emission.new_zeros(len(emission)), torch.zeros(len(emission), dtype=torch.bool)
    numba_kernels.likelihoods(*arrays(rows, transition.exp(), emission, lengths), *arrays(found, trusted))
    found, trusted = found.where(lengths > 0, 0), trusted | (lengths == 0)
    if not bool(trusted.all()):
        left = (~trusted).nonzero().flatten()
        own = None if mask is None else mask[left]
        found[left] = hmm_inference.forward(rows[left], transition, emission[left], own).log_likelihood
    return found


def expected_states(initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None) -> Posterior:
    from seqloom.accel.hmm import numba_kernels

    batch, _, states = emission.shape
    found, pairs = torch.zeros_like(emission), emission.new_zeros(batch, states, states)
    likelihood, trusted = emission.new_zeros(batch), torch.zeros(batch, dtype=torch.bool)
    rows, lengths = expand_rows(initial, emission), lengths_of(emission, mask)
    given = arrays(rows, transition.exp(), emission, lengths)
    numba_kernels.e_step(*given, *arrays(found, pairs, likelihood, trusted))
    trusted |= lengths == 0
    likelihood = likelihood.where(lengths > 0, 0)
    if not bool(trusted.all()):
        left = (~trusted).nonzero().flatten()
        own = hmm_inference.expected_states.definition(
            rows[left], transition, emission[left], None if mask is None else mask[left]
        )
        found[left], pairs[left], likelihood[left] = own.states, own.pairs, own.log_likelihood
    return Posterior(found, pairs, likelihood)


def best_path(
    initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    from seqloom.accel.hmm import numba_kernels

    states, score = torch.zeros(emission.shape[:2], dtype=torch.long), emission.new_zeros(len(emission))
    room = torch.zeros(emission.shape[1:], dtype=torch.int16)
    given = arrays(expand_rows(initial, emission), transition, emission, lengths_of(emission, mask))
    numba_kernels.viterbi(*given, *arrays(states, score, room))
    return states, score


def lengths_of(emission: Tensor, mask: Tensor | None) -> Tensor:
    return torch.full((len(emission),), emission.shape[1]) if mask is None else mask.sum(dim=1)


def arrays(*tensors: Tensor) -> list[Any]:
    return [one.detach().contiguous().numpy() for one in tensors]
