"""The recursion of hidden Markov models with scaled matrix products instead of log space.

- Scaling: each row is divided by its sum at every step, and the logarithms of the sums are accumulated. Terms smaller
  than 10⁻³⁰⁸ times the largest term underflow. `reliable` marks the sequences in which every p_t was too large for
  underflow to matter. The reference implementation computes the other sequences.
- Chunks: a long sequence is split into K chunks. The first pass computes the chunks in parallel from every possible
  start state, which gives an N × N matrix per chunk. A loop over the chunks then computes their actual start states,
  and a second parallel pass computes all steps. This takes 2 T/K + K steps instead of T.
"""

import torch
from torch import Tensor

from seqloom.classical.hmm import inference as hmm_inference
from seqloom.classical.hmm.inference import MIN_PROBABILITY, log_matmul

MAX_CHUNKED_STATES = 20  # with more states, computing each chunk from every start state is slower
AGREEMENT_TOLERANCE = 1e-9  # relative tolerance between the end of a chunk and the start of the next
definition = hmm_inference.recursion.definition
backtrack_definition = hmm_inference.backtrack.definition


def recursion(
    start: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None, *, largest: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute p and α (B, T, N), in chunks if chunks are faster.

    Without chunks, sums are scaled, and maxima are computed in log space.
    """
    if mask is not None and bool(mask.all()):
        mask = None
    if mask is not None and should_chunk(emission):
        return _run_each_sequence(start, transition, emission, mask, largest)
    length = chunk_length(emission) if mask is None else None
    if length is not None:
        chunked = _run_in_chunks(start, transition, emission, length, largest)
        if chunked is not None:
            return chunked
    if largest:
        return definition(start, transition, emission, mask, largest=True)
    return recompute_unreliable(*scaled(start, transition, emission, mask), start, transition, emission, mask)


def recompute_unreliable(
    predicted: Tensor,
    alpha: Tensor,
    reliable: Tensor,
    start: Tensor,
    transition: Tensor,
    emission: Tensor,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Recompute the unreliable rows with the reference implementation."""
    if not bool(reliable.all()):
        rows = (~reliable).nonzero().flatten()
        row_mask = None if mask is None else mask[rows]
        predicted[rows], alpha[rows] = definition(start[rows], transition, emission[rows], row_mask)
    return predicted, alpha


def scaled(
    start: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute p and α (B, T, N), and which sequences are reliable (B,)."""
    order, active = None, None
    if mask is not None:  # sort by length, longest first; each step computes the sequences that have not ended
        order, active = mask.sum(dim=1).argsort(descending=True), mask.sum(dim=0).tolist()
    rows = emission if order is None else emission[order]
    initial = start if order is None else start[order]
    highest = _replace_neg_inf(rows.amax(dim=2))  # (B, T)
    b = torch.exp(rows - highest.unsqueeze(2)).transpose(0, 1).contiguous()  # (T, B, N)
    offset = _replace_neg_inf(initial.amax(dim=1, keepdim=True))  # (B, 1)
    sums, probs = _scaled_loop(torch.exp(initial - offset), transition.exp(), b, active)
    log_sums = sums.log().T + highest  # (B, T): log of the divisor of each step
    log_scales = torch.cat([offset, offset + log_sums.cumsum(dim=1)[:, :-1]], dim=1)
    predicted = probs.transpose(0, 1).log() + log_scales.unsqueeze(2)
    alpha = predicted + rows
    real = None if mask is None else mask if order is None else mask[order]
    reliable = _is_reliable(probs.transpose(0, 1), sums.T, alpha, transition, real)
    reliable &= ((probs[0] > MIN_PROBABILITY) | (initial == -torch.inf)).all(dim=1)
    if order is None:
        return predicted, alpha, reliable
    inverse = order.argsort()
    predicted, alpha = (pad_with_last(values[inverse], mask) for values in (predicted, alpha))
    return predicted, alpha, reliable[inverse]


def _scaled_loop(initial: Tensor, transitions: Tensor, b: Tensor, active: list[int] | None) -> tuple[Tensor, Tensor]:
    """Return the divisors of the steps (T, B) and the state probabilities before each step (T, B, N)."""
    length, batch, states = b.shape
    sums, probs = b.new_ones(length, batch), b.new_ones(length, batch, states)
    probs[0] = initial
    for t in range(length):
        count = batch if active is None else active[t]
        filtered = probs[t, :count] * b[t, :count]
        total = torch.sum(filtered, dim=1, out=sums[t, :count])
        if t + 1 < length:
            torch.matmul(filtered.div_(total.unsqueeze(1)), transitions, out=probs[t + 1, :count])
    return sums, probs


def _is_reliable(probs: Tensor, sums: Tensor, alpha: Tensor, transition: Tensor, mask: Tensor | None) -> Tensor:
    """Return whether underflow is harmless (B,): every probability is large, or its state is unreachable."""
    is_possible = (alpha[:, :-1] > -torch.inf).to(alpha.dtype) @ (transition > -torch.inf).to(alpha.dtype) > 0
    states_reliable = ((probs[:, 1:] > MIN_PROBABILITY) | ~is_possible).all(dim=2)
    sums_reliable = sums > MIN_PROBABILITY
    if mask is not None:
        states_reliable, sums_reliable = states_reliable | ~mask[:, 1:], sums_reliable | ~mask
    return states_reliable.all(dim=1) & sums_reliable.all(dim=1)


def pad_with_last(values: Tensor, mask: Tensor | None) -> Tensor:
    """Fill padding with the value at the last real position, or at the first position of an empty row."""
    if mask is None:
        return values
    last = (mask.sum(dim=1) - 1).clamp(min=0)
    positions = torch.arange(values.shape[1], device=values.device).minimum(last.unsqueeze(1))
    return values.gather(1, positions.unsqueeze(2).expand_as(values))


def _replace_neg_inf(values: Tensor) -> Tensor:
    """Replace −∞ by 0, because −∞ − (−∞) is NaN."""
    return values.masked_fill(values == -torch.inf, 0)


# --- chunks -----------------------------------------------------------------------------------------------------------


def should_chunk(emission: Tensor) -> bool:
    """Return whether chunks are faster: this holds for a few long sequences with few states."""
    batch, length, states = emission.shape
    return states <= MAX_CHUNKED_STATES and length >= 1024 * batch


def chunk_length(emission: Tensor) -> int | None:
    """Return the length of the chunks, or None if chunks are not faster."""
    return int((emission.shape[1] * len(emission)) ** 0.5) if should_chunk(emission) else None


def _run_each_sequence(
    start: Tensor, transition: Tensor, emission: Tensor, mask: Tensor, largest: bool
) -> tuple[Tensor, Tensor]:
    """Run each sequence separately, without padding."""
    results = torch.zeros_like(emission), torch.zeros_like(emission)
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        if length:
            row_results = recursion(start[row, None], transition, emission[row, None, :length], largest=largest)
            for result, row_result in zip(results, row_results, strict=True):
                result[row, :length] = row_result[0]
    return pad_with_last(results[0], mask), pad_with_last(results[1], mask)


def _run_in_chunks(
    start: Tensor, transition: Tensor, emission: Tensor, size: int, largest: bool
) -> tuple[Tensor, Tensor] | None:
    """Compute p and α (B, T, N) in chunks of `size` steps; None if the result is unreliable."""
    batch, length, states = emission.shape
    count = -(-length // size)
    padding = emission.new_zeros(batch, count * size - length, states)  # padding after the end, discarded later
    chunks = torch.cat([emission, padding], dim=1).view(batch, count, size, states)
    products = (_chunk_max_products if largest else _chunk_sum_products)(transition, chunks)  # (B, K, N, N)
    starts = [start]
    for chunk in range(count - 1):
        starts.append(log_matmul(starts[-1], products[:, chunk], largest))
    flat_starts = torch.stack(starts, dim=1).flatten(0, 1)  # (B · K, N)
    if largest:
        predicted, alpha = definition(flat_starts, transition, chunks.flatten(0, 1), largest=True)
    else:
        predicted, alpha, reliable = scaled(flat_starts, transition, chunks.flatten(0, 1))
        ends = alpha.view(batch, count, size, states)[:, :-1, -1]
        if not bool(reliable.all()) or not _starts_agree(log_matmul(ends, transition), torch.stack(starts[1:], dim=1)):
            return None
    shape = (batch, count * size, states)
    return predicted.reshape(shape)[:, :length], alpha.reshape(shape)[:, :length]


def _chunk_sum_products(transition: Tensor, emission: Tensor) -> Tensor:
    """Return the log matrices (B, K, N, N) from p at the start of a chunk to p at the next start, scaled by rows."""
    transition_probs, states = transition.exp(), len(transition)
    highest = _replace_neg_inf(emission.amax(dim=3))  # (B, K, S)
    emission_probs = torch.exp(emission - highest.unsqueeze(3)).permute(2, 0, 1, 3).unsqueeze(3)  # (S, B, K, 1, N)
    table = torch.eye(states, dtype=emission.dtype, device=emission.device).expand(*emission.shape[:2], -1, -1)
    log_scale = highest.sum(dim=2)[..., None, None].expand(*emission.shape[:2], states, 1).clone()
    for step_probs in emission_probs.contiguous():
        table = table * step_probs
        total = table.sum(dim=3, keepdim=True)
        total = total.masked_fill_(total == 0, 1)
        log_scale += total.log()
        table = (table / total) @ transition_probs
    return table.log() + log_scale


def _chunk_max_products(transition: Tensor, emission: Tensor) -> Tensor:
    """Return the same matrices as `_chunk_sum_products`, with maxima instead of sums, in log space."""
    states = len(transition)
    table = torch.full((states, states), -torch.inf, dtype=emission.dtype, device=emission.device)
    table = table.fill_diagonal_(0).expand(*emission.shape[:2], -1, -1)
    for t in range(emission.shape[2]):
        table = log_matmul(table + emission[:, :, t].unsqueeze(2), transition, largest=True)
    return table


def _starts_agree(ends: Tensor, starts: Tensor) -> bool:
    """Return whether the computed ends of the chunks equal the starts of the next chunks."""
    agree = (ends == starts) | ((ends - starts).abs() <= AGREEMENT_TOLERANCE * starts.abs().clamp(min=1))
    return bool(agree.all())


# --- backtracking -----------------------------------------------------------------------------------------------------


def backtrack(backpointers: Tensor, last: Tensor) -> Tensor:
    """Return the states (B, T) of the path that ends in `last` (B,).

    The chunks of a long sequence are followed in parallel from every possible end state; a loop over the chunks then
    selects the actual end state.
    """
    batch, steps, states = backpointers.shape
    size = steps if steps < 64 * batch else max(1, int((steps * batch) ** 0.5))
    count = -(-steps // size) if steps else 0
    if count <= 1:
        return backtrack_definition(backpointers, last)
    itself = torch.arange(states, device=last.device)
    padding = count * size - steps  # in the padding before the start, every state points to itself
    chunks = torch.cat([itself.expand(batch, padding, states), backpointers], dim=1).view(batch, count, size, states)
    first_states = itself.expand(batch, count, states)  # first state of each chunk, for each end state
    for t in range(size - 1, -1, -1):
        first_states = chunks[:, :, t].gather(2, first_states)
    ends = [last]
    for chunk in range(count - 1, 0, -1):
        ends.append(first_states[:, chunk].gather(1, ends[-1].unsqueeze(1)).squeeze(1))
    flat_ends = torch.stack(ends[::-1], dim=1).flatten()  # (B · K,)
    paths = backtrack_definition(chunks.flatten(0, 1), flat_ends).view(batch, count, size + 1)
    return torch.cat([paths[:, 0, :1], paths[:, :, 1:].flatten(1)], dim=1)[:, padding:]
