"""The recursion of hidden Markov models by products of matrices, instead of in log space.

- scaled: each row is divided by its sum at every step, and the logarithms of the sums are kept. Terms below 10⁻³⁰⁸ of
  the largest are lost. That is detected afterwards: `trusted` says for which sequences every p_t was so large that
  nothing lost could matter. The definition computes the others.
- in pieces: a long sequence is cut into K of them that are read side by side, from every state they could begin in (a
  matrix N × N each); then one after the other gives how each really begins, and all are read once more. That takes
  2 T/K + K steps and not T.
"""

import torch
from torch import Tensor

from seqloom.classical.hmm import inference as hmm_inference
from seqloom.classical.hmm.inference import MIN_PROBABILITY, log_matmul

PIECED_STATES = 20  # most states of a model that is worth reading from each of them
AGREE = 1e-9  # how well the end of a piece and the beginning of the next must agree, relative
plain = hmm_inference.recursion.definition
step_back = hmm_inference.backtrack.definition


def recursion(
    start: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None, *, largest: bool = False
) -> tuple[Tensor, Tensor]:
    """p and α (B, T, N): in pieces where that pays, else scaled; the largest in log space."""
    if mask is not None and bool(mask.all()):
        mask = None
    if mask is not None and worth_cutting(emission):
        return _one_by_one(start, transition, emission, mask, largest)
    size = piece_size(emission) if mask is None else None
    if size is not None:
        found = _in_pieces(start, transition, emission, size, largest)
        if found is not None:
            return found
    if largest:
        return plain(start, transition, emission, mask, largest=True)
    return mend(*scaled(start, transition, emission, mask), start, transition, emission, mask)


def mend(
    predicted: Tensor,
    alpha: Tensor,
    trusted: Tensor,
    start: Tensor,
    transition: Tensor,
    emission: Tensor,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute the rows that cannot be trusted by the definition."""
    if not bool(trusted.all()):
        rows = (~trusted).nonzero().flatten()
        own = None if mask is None else mask[rows]
        predicted[rows], alpha[rows] = plain(start[rows], transition, emission[rows], own)
    return predicted, alpha


def scaled(
    start: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """p and α (B, T, N), and which sequences they can be trusted for (B,)."""
    order, active = _by_length(emission, mask)
    rows = emission if order is None else emission[order]
    begin = start if order is None else start[order]
    highest = _finite(rows.amax(dim=2))  # (B, T)
    chances = torch.exp(rows - highest.unsqueeze(2)).transpose(0, 1).contiguous()  # (T, B, N)
    first = _finite(begin.amax(dim=1))  # (B,)
    sums, shares = _scaled_loop(torch.exp(begin - first.unsqueeze(1)), transition.exp(), chances, active)
    logs = sums.log().T + highest  # (B, T): log of what each step divided by
    before = torch.cat([first.unsqueeze(1), first.unsqueeze(1) + logs.cumsum(dim=1)[:, :-1]], dim=1)
    predicted = shares.transpose(0, 1).log() + before.unsqueeze(2)
    alpha = predicted + rows
    real = None if mask is None else mask if order is None else mask[order]
    trusted = _trusted(shares.transpose(0, 1), sums.T, alpha, transition, real)
    trusted &= ((shares[0] > MIN_PROBABILITY) | (begin == -torch.inf)).all(dim=1)
    if order is None:
        return predicted, alpha, trusted
    back = order.argsort()
    predicted, alpha = (pad_with_last(values[back], mask) for values in (predicted, alpha))
    return predicted, alpha, trusted[back]


def _scaled_loop(share: Tensor, chances: Tensor, emitted: Tensor, active: list[int] | None) -> tuple[Tensor, Tensor]:
    """Σ_k (T, B), what each step divided by, and the shares of the states before each step (T, B, N)."""
    length, batch, states = emitted.shape
    sums, shares = emitted.new_ones(length, batch), emitted.new_ones(length, batch, states)
    shares[0] = share
    for t in range(length):
        count = batch if active is None else active[t]
        now = shares[t, :count] * emitted[t, :count]
        total = torch.sum(now, dim=1, out=sums[t, :count])
        if t + 1 < length:
            torch.matmul(now.div_(total.unsqueeze(1)), chances, out=shares[t + 1, :count])
    return sums, shares


def _trusted(shares: Tensor, sums: Tensor, alpha: Tensor, transition: Tensor, mask: Tensor | None) -> Tensor:
    """Whether nothing that was lost matters (B,): each share is large, or truly 0, no way leading there."""
    possible = (alpha[:, :-1] > -torch.inf).to(alpha.dtype) @ (transition > -torch.inf).to(alpha.dtype) > 0
    fine = ((shares[:, 1:] > MIN_PROBABILITY) | ~possible).all(dim=2)
    kept = sums > MIN_PROBABILITY
    if mask is not None:
        fine, kept = fine | ~mask[:, 1:], kept | ~mask
    return fine.all(dim=1) & kept.all(dim=1)


def _by_length(emission: Tensor, mask: Tensor | None) -> tuple[Tensor | None, list[int] | None]:
    """The longest sequences first, and how many there are at each place: those alone are computed."""
    if mask is None:
        return None, None
    return mask.sum(dim=1).argsort(descending=True), mask.sum(dim=0).tolist()


def pad_with_last(values: Tensor, mask: Tensor | None) -> Tensor:
    """At padding what stands at the last real place, or at the first."""
    if mask is None:
        return values
    last = (mask.sum(dim=1) - 1).clamp(min=0)
    places = torch.arange(values.shape[1], device=values.device).minimum(last.unsqueeze(1))
    return values.gather(1, places.unsqueeze(2).expand_as(values))


def _finite(values: Tensor) -> Tensor:
    """What nothing can come from is measured from 0: −inf − (−inf) is no number."""
    return values.masked_fill(values == -torch.inf, 0)


# --- in pieces ------------------------------------------------------------------------------------------------------


def worth_cutting(emission: Tensor) -> bool:
    """Whether there are a few long sequences, of few states; else reading them whole is as fast."""
    batch, length, states = emission.shape
    return states <= PIECED_STATES and length >= 1024 * batch


def piece_size(emission: Tensor) -> int | None:
    """How long the pieces of long sequences are; None where they are not to be cut."""
    return int((emission.shape[1] * len(emission)) ** 0.5) if worth_cutting(emission) else None


def _one_by_one(
    start: Tensor, transition: Tensor, emission: Tensor, mask: Tensor, largest: bool
) -> tuple[Tensor, Tensor]:
    """Each sequence by itself, as long as it is."""
    both = torch.zeros_like(emission), torch.zeros_like(emission)
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        if length:
            own = recursion(start[row, None], transition, emission[row, None, :length], largest=largest)
            for whole, part in zip(both, own, strict=True):
                whole[row, :length] = part[0]
    return pad_with_last(both[0], mask), pad_with_last(both[1], mask)


def _in_pieces(
    start: Tensor, transition: Tensor, emission: Tensor, size: int, largest: bool
) -> tuple[Tensor, Tensor] | None:
    """None where it cannot be trusted."""
    batch, length, states = emission.shape
    pieces = -(-length // size)
    lacking = emission.new_zeros(batch, pieces * size - length, states)  # after the end: read, and thrown away
    whole = torch.cat([emission, lacking], dim=1).view(batch, pieces, size, states)
    through = (_most_through if largest else _sum_through)(transition, whole)  # (B, K, N, N)
    begins = [start]
    for piece in range(pieces - 1):
        begins.append(log_matmul(begins[-1], through[:, piece], largest))
    began = torch.stack(begins, dim=1).flatten(0, 1)  # (B · K, N)
    if largest:
        predicted, alpha = plain(began, transition, whole.flatten(0, 1), largest=True)
    else:
        predicted, alpha, trusted = scaled(began, transition, whole.flatten(0, 1))
        ends = alpha.view(batch, pieces, size, states)[:, :-1, -1]
        if not bool(trusted.all()) or not _agree(log_matmul(ends, transition), torch.stack(begins[1:], dim=1)):
            return None
    shape = (batch, pieces * size, states)
    return predicted.reshape(shape)[:, :length], alpha.reshape(shape)[:, :length]


def _sum_through(transition: Tensor, emission: Tensor) -> Tensor:
    """From p at the beginning of each piece to p at that of the next (B, K, N, N), log space; scaled by rows."""
    chances, states = transition.exp(), len(transition)
    highest = _finite(emission.amax(dim=3))  # (B, K, S)
    emitted = torch.exp(emission - highest.unsqueeze(3)).permute(2, 0, 1, 3).unsqueeze(3)  # (S, B, K, 1, N)
    table = torch.eye(states, dtype=emission.dtype, device=emission.device).expand(*emission.shape[:2], -1, -1)
    kept = highest.sum(dim=2)[..., None, None].expand(*emission.shape[:2], states, 1).clone()
    for now in emitted.contiguous():
        table = table * now
        total = table.sum(dim=3, keepdim=True)
        total = total.masked_fill_(total == 0, 1)
        kept += total.log()
        table = (table / total) @ chances
    return table.log() + kept


def _most_through(transition: Tensor, emission: Tensor) -> Tensor:
    """The same with max, in log space."""
    states = len(transition)
    table = torch.full((states, states), -torch.inf, dtype=emission.dtype, device=emission.device)
    table = table.fill_diagonal_(0).expand(*emission.shape[:2], -1, -1)
    for t in range(emission.shape[2]):
        table = log_matmul(table + emission[:, :, t].unsqueeze(2), transition, largest=True)
    return table


def _agree(ended: Tensor, began: Tensor) -> bool:
    """Whether pieces, read for themselves, end as the next ones were said to begin; −inf where those are."""
    same = (ended == began) | ((ended - began).abs() <= AGREE * began.abs().clamp(min=1))
    return bool(same.all())


# --- the way back -----------------------------------------------------------------------------------------------------


def backtrack(backpointers: Tensor, last: Tensor) -> Tensor:
    """The states (B, T) of the path that ends in `last` (B,).

    A long sequence is cut into pieces that go back side by side from every state they could end in;
    which one it was is known when those after them are through.
    """
    batch, steps, states = backpointers.shape
    size = steps if steps < 64 * batch else max(1, int((steps * batch) ** 0.5))
    pieces = -(-steps // size) if steps else 0
    if pieces <= 1:
        return step_back(backpointers, last)
    itself = torch.arange(states, device=last.device)
    lacking = pieces * size - steps  # before the beginning, every state came from itself
    whole = torch.cat([itself.expand(batch, lacking, states), backpointers], dim=1).view(batch, pieces, size, states)
    reached = itself.expand(batch, pieces, states)  # where each piece begins, by the state it ends in
    for t in range(size - 1, -1, -1):
        reached = whole[:, :, t].gather(2, reached)
    ends = [last]
    for piece in range(pieces - 1, 0, -1):
        ends.append(reached[:, piece].gather(1, ends[-1].unsqueeze(1)).squeeze(1))
    ends_of = torch.stack(ends[::-1], dim=1).flatten()  # (B · pieces,)
    within = step_back(whole.flatten(0, 1), ends_of).view(batch, pieces, size + 1)
    return torch.cat([within[:, 0, :1], within[:, :, 1:].flatten(1)], dim=1)[:, lacking:]
