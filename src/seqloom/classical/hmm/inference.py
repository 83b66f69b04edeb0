"""What a hidden Markov model says of sequences it has seen: forward, backward, posteriors, Viterbi; in log space.

    p(x, z) = π(z_1) b(x_1 | z_1) Π_t A(z_{t−1}, z_t) b(x_t | z_t)

    predicted   p_1(k) = log π_k                 p_t(k) = log Σ_j exp(α_{t−1}(j) + log A_jk)
    forward     α_t(k) = p_t(k) + log b(x_t | k)                         log p(x) = log Σ_k exp α_T(k)
    backward    β_T(j) = 0                       β_t(j) = log Σ_k exp(log A_jk + log b(x_{t+1} | k) + β_{t+1}(k))
    posterior   p(z_t = k | x) ∝ exp(α_t(k) + β_t(k))
    pairs       p(z_t = j, z_{t+1} = k | x) ∝ exp(α_t(j) + log A_jk + log b(x_{t+1} | k) + β_{t+1}(k))
    Viterbi     forward with max in the place of log Σ exp, and the way back from where each max came from

A model is log π (N,) or (B, N) and log A (N, N); what it thinks of the sequences is log b (B, T,
N). What is said here holds for whatever emits: symbols, vectors, words. Masks (B, T) are True at
what was seen, which stands first.

The forward and the backward pass are one recursion, the latter on the reversed sequence with A
transposed: γ_t = log b(x_t | ·) + β_t obeys the equation of α.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from seqloom.classical.tensor_model import TensorModel
from seqloom.core.errors import DataError
from seqloom.core.operations import operation

BLOCK = 1 << 22  # numbers of a table over time and pairs of states that are held at once
MIN_PROBABILITY = 1e-100  # of a share, relative to the others: a term that was lost is 10⁻¹⁰⁸ of it, or less


@dataclass(frozen=True)
class Forward:
    predicted: Tensor  # p (B, T, N): what is known of z_t before x_t is seen; log p(z_t, x_1 … x_{t−1})
    alpha: Tensor  # (B, T, N), at padding that of the last real place
    log_likelihood: Tensor  # (B,), 0 for an empty sequence


@dataclass(frozen=True)
class Posterior:
    states: Tensor  # p(z_t = k | x) (B, T, N), 0 at padding
    pairs: Tensor  # Σ_t p(z_t = j, z_{t+1} = k | x) (B, N, N)
    log_likelihood: Tensor  # (B,)


def times(values: Tensor, transition: Tensor, largest: bool = False) -> Tensor:
    """log Σ_j exp(values(…, j) + A_jk), or the max; A (N, N), or one for each row."""
    table = values.unsqueeze(-1) + transition
    return table.amax(dim=-2) if largest else torch.logsumexp(table, dim=-2)


@operation
def recursion(
    start: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None, *, largest: bool = False
) -> tuple[Tensor, Tensor]:
    """p and α (B, T, N) of start (B, N), log A (N, N) and log b (B, T, N); at padding those of the last real place."""
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


def forward(initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None) -> Forward:
    check(initial, transition, emission, mask)
    predicted, alpha = recursion(expand_rows(initial, emission), transition, emission, mask)
    total = torch.logsumexp(alpha[:, -1], dim=1)
    return Forward(predicted, alpha, total if mask is None else total.where(mask[:, 0], 0))


@operation
def log_likelihood(initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None) -> Tensor:
    """log p(x) (B,), where nothing else is wanted."""
    return forward(initial, transition, emission, mask).log_likelihood


def backward(transition: Tensor, emission: Tensor, mask: Tensor | None = None) -> Tensor:
    """β (B, T, N); 0 at the last place of each sequence, and at padding."""
    check(transition.new_zeros(len(transition)), transition, emission, mask)
    beta, _ = _backward(transition, emission, mask)
    return beta if mask is None else beta.masked_fill(~mask.unsqueeze(2), 0)


def _backward(transition: Tensor, emission: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """β, and γ = β + log b, both (B, T, N)."""
    last = emission.new_zeros(len(emission), emission.shape[2])
    beta, gamma = recursion(last, transition.T, _reverse(emission, mask), mask)
    return _reverse(beta, mask), _reverse(gamma, mask)


def posterior(initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None) -> Posterior:
    """What is known of the hidden states once all is seen; what Baum–Welch counts."""
    check(initial, transition, emission, mask)
    found = expected_states(initial, transition, emission, mask)
    if bool((found.log_likelihood == -torch.inf).any()):
        raise impossible(found.log_likelihood)
    return found


@operation
def expected_states(initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None) -> Posterior:
    """The posterior, also of sequences that cannot be: their log-likelihood is −inf."""
    found = forward(initial, transition, emission, mask)
    _, gamma = _backward(transition, emission, mask)
    # log p is the same at every t but for rounding: each t by its own, so that its probabilities sum to 1
    states = torch.softmax(found.predicted + gamma, dim=2)
    if mask is not None:
        states = states.masked_fill(~mask.unsqueeze(2), 0)
    return Posterior(states, _pairs(found.alpha, transition, gamma, mask), found.log_likelihood)


def _pairs(alpha: Tensor, transition: Tensor, gamma: Tensor, mask: Tensor | None) -> Tensor:
    """Σ_t of the posterior of pairs of states (B, N, N)

        Σ_t a_tᵀ g_{t+1} ∘ A / Z_t,   a = exp(α − max α),  g = exp(γ − max γ),  Z_t = a_t A g_{t+1}

    a product of two tables over time. Where Z is so small that terms were lost on the way, those t
    are added in log space.
    """
    batch, length, states = alpha.shape
    if length < 2:
        return alpha.new_zeros(batch, states, states)
    before, after = alpha[:, :-1], gamma[:, 1:]
    a = torch.exp(before - before.amax(dim=2, keepdim=True))
    g = torch.exp(after - after.amax(dim=2, keepdim=True))
    chances = transition.exp()
    total = ((a @ chances) * g).sum(dim=2, keepdim=True)  # Z (B, T − 1, 1)
    real = torch.ones_like(total, dtype=torch.bool) if mask is None else mask[:, 1:, None]
    lost = real & ~(total > MIN_PROBABILITY)
    scaled = torch.where(real & ~lost, a / total, 0)
    found = (scaled.transpose(1, 2) @ g) * chances
    for row, place in lost.squeeze(2).nonzero().tolist():
        table = before[row, place, :, None] + transition + after[row, place]
        found[row] += torch.softmax(table.flatten(), dim=0).view(states, states)
    return found


@torch.no_grad()
def viterbi(initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The likeliest states (B, T), 0 at padding, and log p(x, z) of them (B,); of equally likely ones, any."""
    check(initial, transition, emission, mask)
    states, score = best_path(initial, transition, emission, mask)
    if mask is not None:
        score = score.where(mask[:, 0], 0)
    if bool((score == -torch.inf).any()):
        raise impossible(score)
    return states, score


@operation
def best_path(
    initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same without checks; the score of what cannot be is −inf."""
    _, best = recursion(expand_rows(initial, emission), transition, emission, mask, largest=True)
    score, last = best[:, -1].max(dim=1)
    batch, length, count = best.shape
    width = max(1, BLOCK // (batch * count * count))
    parts = [best.new_empty(batch, 0, count, dtype=torch.long)]
    for begin in range(0, length - 1, width):
        some = best[:, begin : min(begin + width, length - 1)]
        parts.append((some.unsqueeze(2) + transition.T).argmax(dim=3))  # (B, w, N after, N before)
    came_from = torch.cat(parts, dim=1)  # ψ_t(k), the best state before k at t, for t = 2 … T (B, T − 1, N)
    if mask is None:
        return backtrack(came_from, last), score
    came_from = torch.where(mask[:, 1:, None], came_from, torch.arange(count, device=last.device))
    return backtrack(came_from, last).masked_fill(~mask, 0), score


@operation
def backtrack(came_from: Tensor, last: Tensor) -> Tensor:
    """The states (B, T) of the path that ends in `last` (B,)."""
    states = [last]
    for t in range(came_from.shape[1] - 1, -1, -1):
        states.append(came_from[:, t].gather(1, states[-1].unsqueeze(1)).squeeze(1))
    return torch.stack(states[::-1], dim=1)


def expand_rows(initial: Tensor, emission: Tensor) -> Tensor:
    return initial.expand(len(emission), emission.shape[2])


def _reverse(values: Tensor, mask: Tensor | None) -> Tensor:
    """Reverse every sequence (B, T, N); padding stays last."""
    if mask is None:
        return values.flip(1)
    positions = torch.arange(values.shape[1], device=values.device).expand(mask.shape)
    reversed_ = mask.sum(dim=1, keepdim=True) - 1 - positions
    return values.gather(1, torch.where(mask, reversed_, positions).unsqueeze(2).expand_as(values))


def check(initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None) -> None:
    """A loop over time would not notice a wrong shape, and NaN would spread over all of it."""
    states = transition.shape[0]
    if transition.shape != (states, states) or initial.shape[-1] != states:
        raise ValueError(f"log A must be ({states}, {states}) and log π (…, {states}); got {tuple(transition.shape)}")
    if emission.dim() != 3 or emission.shape[1] < 1 or emission.shape[2] != states:
        raise ValueError(f"log b must have shape (B, T, {states}), T ≥ 1; got {tuple(emission.shape)}")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != emission.shape[:2]):
        raise ValueError(f"mask must be torch.bool {tuple(emission.shape[:2])}; got {mask.dtype} {tuple(mask.shape)}")
    if mask is not None and bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise ValueError("what was seen must stand first and padding last; a mask goes from False to True")
    for name, values in (("log π", initial), ("log A", transition), ("log b", emission)):
        if bool(values.isnan().any()):
            raise ValueError(f"{name} must be numbers or −inf; got NaN")


class MarkovModel(TensorModel):
    """Base of hidden Markov models: the states of a single sequence."""

    transition: Tensor  # log A (N, N)

    @property
    def log_initial(self) -> Tensor:
        """log π (N,)."""
        raise NotImplementedError

    def emitted(self, sequence: Tensor) -> Tensor:
        """log b (B, T, N) of sequences (B, T, …)."""
        raise NotImplementedError

    def likeliest_states(self, sequence: Tensor) -> Tensor:
        """The likeliest states (T,) of a sequence (T, …)."""
        return viterbi(self.log_initial, self.transition, self.emitted(sequence[None].to(self.device)))[0][0]

    def state_posteriors(self, sequence: Tensor) -> Tensor:
        """p of every state (T, N) at each position of a sequence (T, …), once all of it is read."""
        return posterior(self.log_initial, self.transition, self.emitted(sequence[None].to(self.device))).states[0]


def row_shares(counts: Tensor) -> Tensor:
    """Divide each row by its sum; one without counts becomes uniform."""
    total = counts.sum(dim=1, keepdim=True)
    return torch.where(total > 0, counts / total, 1 / counts.shape[1])


def impossible(log_likelihood: Tensor) -> DataError:
    """The error of sequences that this model cannot have produced."""
    rows = (~log_likelihood.isfinite()).nonzero().flatten().tolist()
    some = ", ".join(str(row + 1) for row in rows[:5]) + (" …" if len(rows) > 5 else "")
    return DataError(
        f"{len(rows)} of {len(log_likelihood)} sequences ({some}) cannot come from this model: its probability of them "
        "is 0. Give what was never seen a share: model.smoothing above 0."
    )
