"""The one recursion of hidden Markov models, over time and batched.

    p_1 = start      α_t = p_t + e_t      p_t(k) = log Σ_j exp(α_{t−1}(j) + A_jk)     or max_j in the place of log Σ exp

Ways to the same numbers:

- `plain`, the equations as they stand, in log space: any numbers, slow.
- scaled: products of matrices, with each row divided by its sum at every step and the logarithms of the sums kept. What
  is lost there, terms below 10⁻³⁰⁸ of the largest, is found afterwards: `trusted` says for which sequences every p_t
  was so large that nothing lost could matter. The others go the plain way.
- in pieces: a long sequence is cut into K of them that are read side by side, from every state they could begin in (a
  matrix N × N each); then one after the other gives how each really begins, and all are read once more. That takes
  2 T/K + K steps and not T.
- scaled and in machine code (`seqloom.classical.hmm_kernels`), where numba is installed: a step is then so cheap that
  nothing need be cut.
"""

from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

SMALLEST = 1e-100  # of a share, relative to the others: a term that was lost is 10⁻¹⁰⁸ of it, or less
PIECED_STATES = 20  # most states of a model that is worth reading from each of them
AGREE = 1e-9  # how well the end of a piece and the beginning of the next must agree, relative


def recursion(
    start: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None, *, largest: bool = False
) -> tuple[Tensor, Tensor]:
    """p and α (B, T, N) of start (B, N), log A (N, N) and log b (B, T, N); at padding those of the last real place."""
    if mask is not None and bool(mask.all()):
        mask = None
    if not largest and (fast := kernels(start, transition, emission)) is not None:
        predicted, alpha, trusted = _compiled(fast, start, transition, emission, mask)
        return _mended(predicted, alpha, trusted, start, transition, emission, mask)
    if mask is not None and worth_cutting(emission):
        return _one_by_one(start, transition, emission, mask, largest)
    size = piece_size(emission) if mask is None else None
    if size is not None:
        found = _in_pieces(start, transition, emission, size, largest)
        if found is not None:
            return found
    if largest:
        return plain(start, transition, emission, mask, largest=True)
    predicted, alpha, trusted = scaled(start, transition, emission, mask)
    return _mended(predicted, alpha, trusted, start, transition, emission, mask)


def _mended(
    predicted: Tensor,
    alpha: Tensor,
    trusted: Tensor,
    start: Tensor,
    transition: Tensor,
    emission: Tensor,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """What cannot be trusted goes the plain way."""
    if not bool(trusted.all()):
        rows = (~trusted).nonzero().flatten()
        own = None if mask is None else mask[rows]
        predicted[rows], alpha[rows] = plain(start[rows], transition, emission[rows], own)
    return predicted, alpha


def times(values: Tensor, transition: Tensor, largest: bool = False) -> Tensor:
    """log Σ_j exp(values(…, j) + A_jk), or the max; A (N, N), or one for each row."""
    table = values.unsqueeze(-1) + transition
    return table.amax(dim=-2) if largest else torch.logsumexp(table, dim=-2)


def plain(
    start: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None, *, largest: bool = False
) -> tuple[Tensor, Tensor]:
    predicted, alpha = [start], [start + emission[:, 0]]
    for t in range(1, emission.shape[1]):
        before = times(alpha[-1], transition, largest)
        now = before + emission[:, t]
        if mask is not None:
            real = mask[:, t : t + 1]
            before, now = torch.where(real, before, predicted[-1]), torch.where(real, now, alpha[-1])
        predicted.append(before)
        alpha.append(now)
    return torch.stack(predicted, dim=1), torch.stack(alpha, dim=1)


# --- scaled ---------------------------------------------------------------------------------------------------------


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
    trusted &= ((shares[0] > SMALLEST) | (begin == -torch.inf)).all(dim=1)
    if order is None:
        return predicted, alpha, trusted
    back = order.argsort()
    predicted, alpha = (_padded(values[back], mask) for values in (predicted, alpha))
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
    fine = ((shares[:, 1:] > SMALLEST) | ~possible).all(dim=2)
    kept = sums > SMALLEST
    if mask is not None:
        fine, kept = fine | ~mask[:, 1:], kept | ~mask
    return fine.all(dim=1) & kept.all(dim=1)


def _by_length(emission: Tensor, mask: Tensor | None) -> tuple[Tensor | None, list[int] | None]:
    """The longest sequences first, and how many there are at each place: those alone are computed."""
    if mask is None:
        return None, None
    return mask.sum(dim=1).argsort(descending=True), mask.sum(dim=0).tolist()


def _padded(values: Tensor, mask: Tensor | None) -> Tensor:
    """At padding what stands at the last real place, or at the first."""
    if mask is None:
        return values
    last = (mask.sum(dim=1) - 1).clamp(min=0)
    places = torch.arange(values.shape[1], device=values.device).minimum(last.unsqueeze(1))
    return values.gather(1, places.unsqueeze(2).expand_as(values))


def _finite(values: Tensor) -> Tensor:
    """What nothing can come from is measured from 0: −inf − (−inf) is no number."""
    return values.masked_fill(values == -torch.inf, 0)


# --- compiled -------------------------------------------------------------------------------------------------------


def kernels(*tensors: Tensor) -> ModuleType | None:
    """The compiled loops, where numba is installed; they are for the CPU and double precision."""
    fit = all(one.device.type == "cpu" and one.dtype == torch.float64 for one in tensors)
    return _kernels() if fit else None


@cache
def _kernels() -> ModuleType | None:
    try:
        from seqloom.classical import hmm_kernels
    except ImportError:  # numba is missing
        return None
    return hmm_kernels


def lengths_of(emission: Tensor, mask: Tensor | None) -> Tensor:
    return torch.full((len(emission),), emission.shape[1]) if mask is None else mask.sum(dim=1)


def arrays(*tensors: Tensor) -> list[Any]:
    return [one.detach().contiguous().numpy() for one in tensors]


def _compiled(
    fast: ModuleType, start: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    predicted, alpha = torch.zeros_like(emission), torch.zeros_like(emission)
    trusted = torch.zeros(len(emission), dtype=torch.bool)
    fast.forward(
        *arrays(start, transition.exp(), emission, lengths_of(emission, mask)), *arrays(predicted, alpha, trusted)
    )
    return _padded(predicted, mask), _padded(alpha, mask), trusted


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
    return _padded(both[0], mask), _padded(both[1], mask)


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
        begins.append(times(begins[-1], through[:, piece], largest))
    began = torch.stack(begins, dim=1).flatten(0, 1)  # (B · K, N)
    if largest:
        predicted, alpha = plain(began, transition, whole.flatten(0, 1), largest=True)
    else:
        predicted, alpha, trusted = scaled(began, transition, whole.flatten(0, 1))
        ends = alpha.view(batch, pieces, size, states)[:, :-1, -1]
        if not bool(trusted.all()) or not _agree(times(ends, transition), torch.stack(begins[1:], dim=1)):
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
        table = times(table + emission[:, :, t].unsqueeze(2), transition, largest=True)
    return table


def _agree(ended: Tensor, began: Tensor) -> bool:
    """Whether pieces, read for themselves, end as the next ones were said to begin; −inf where those are."""
    same = (ended == began) | ((ended - began).abs() <= AGREE * began.abs().clamp(min=1))
    return bool(same.all())
