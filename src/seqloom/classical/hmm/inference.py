"""Inference in hidden Markov models, in log space: forward, backward, posteriors, Viterbi.

    p(x, z) = π(z_1) b(x_1 | z_1) Π_t A(z_{t−1}, z_t) b(x_t | z_t)

    predicted   p_1(k) = log π_k                 p_t(k) = log Σ_j exp(α_{t−1}(j) + log A_jk)
    forward     α_t(k) = p_t(k) + log b(x_t | k)                         log p(x) = log Σ_k exp α_T(k)
    backward    β_T(j) = 0                       β_t(j) = log Σ_k exp(log A_jk + log b(x_{t+1} | k) + β_{t+1}(k))
    posterior   p(z_t = k | x) ∝ exp(α_t(k) + β_t(k))
    pairs       p(z_t = j, z_{t+1} = k | x) ∝ exp(α_t(j) + log A_jk + log b(x_{t+1} | k) + β_{t+1}(k))
    Viterbi     forward with max instead of log Σ exp, and backpointers to each maximum

The functions take a model as log π (N,) or (B, N) and log A (N, N), and its emissions of symbols, words or
vectors as log b (B, T, N). Masks (B, T) are True at observed positions, which come before padding.

The forward and the backward pass are the same recursion. The backward pass runs on the reversed
sequence with A transposed: γ_t = log b(x_t | ·) + β_t satisfies the equation of α.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from seqloom.classical.tensor_model import TensorModel
from seqloom.core.errors import DataError
from seqloom.core.operations import operation

BLOCK = 1 << 22  # maximum number of elements of a table of time steps and pairs of states
MIN_PROBABILITY = 1e-100  # smallest trusted sum of scaled terms; an underflowed term is at most 10⁻¹⁰⁸ of this sum


@dataclass(frozen=True)
class Forward:
    predicted: Tensor  # p (B, T, N): log p(z_t, x_1 … x_{t−1})
    alpha: Tensor  # (B, T, N); padding repeats the value of the last real position
    log_likelihood: Tensor  # (B,), 0 for an empty sequence


@dataclass(frozen=True)
class Posterior:
    states: Tensor  # p(z_t = k | x) (B, T, N), 0 at padding
    pairs: Tensor  # Σ_t p(z_t = j, z_{t+1} = k | x) (B, N, N)
    log_likelihood: Tensor  # (B,)


def log_matmul(values: Tensor, transition: Tensor, largest: bool = False) -> Tensor:
    """Return log Σ_j exp(values(…, j) + A_jk), or with `largest` the maximum over j.

    A is one matrix (N, N), or one matrix per row.
    """
    table = values.unsqueeze(-1) + transition
    return table.amax(dim=-2) if largest else torch.logsumexp(table, dim=-2)


@operation
def recursion(
    start: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None, *, largest: bool = False
) -> tuple[Tensor, Tensor]:
    """Return p and α (B, T, N) for start (B, N), log A (N, N) and log b (B, T, N); padding repeats the last values."""
    predicted, alpha = [start], [start + emission[:, 0]]
    for t in range(1, emission.shape[1]):
        before = log_matmul(alpha[-1], transition, largest)
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
    """Return log p(x) (B,) without the posteriors."""
    return forward(initial, transition, emission, mask).log_likelihood


def backward(transition: Tensor, emission: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return β (B, T, N), which is 0 at the last position of each sequence and at padding."""
    check(transition.new_zeros(len(transition)), transition, emission, mask)
    beta, _ = _backward(transition, emission, mask)
    return beta if mask is None else beta.masked_fill(~mask.unsqueeze(2), 0)


def _backward(transition: Tensor, emission: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return β and γ = β + log b, both (B, T, N)."""
    last = emission.new_zeros(len(emission), emission.shape[2])
    beta, gamma = recursion(last, transition.T, _reverse(emission, mask), mask)
    return _reverse(beta, mask), _reverse(gamma, mask)


def posterior(initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None) -> Posterior:
    """Compute the posteriors of states and of pairs of states, which are the expected counts of Baum–Welch."""
    check(initial, transition, emission, mask)
    expected = expected_states(initial, transition, emission, mask)
    if bool((expected.log_likelihood == -torch.inf).any()):
        raise impossible_error(expected.log_likelihood)
    return expected


@operation
def expected_states(initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None) -> Posterior:
    """Compute the posteriors without checks; a sequence of probability 0 has log-likelihood −inf."""
    filtered = forward(initial, transition, emission, mask)
    _, gamma = _backward(transition, emission, mask)
    # Normalize each t separately, because the values of log p at different t differ by rounding.
    states = torch.softmax(filtered.predicted + gamma, dim=2)
    if mask is not None:
        states = states.masked_fill(~mask.unsqueeze(2), 0)
    return Posterior(states, _pairs(filtered.alpha, transition, gamma, mask), filtered.log_likelihood)


def _pairs(alpha: Tensor, transition: Tensor, gamma: Tensor, mask: Tensor | None) -> Tensor:
    """Sum the posteriors of pairs of states over time (B, N, N):

        Σ_t a_tᵀ g_{t+1} ∘ A / Z_t,   a = exp(α − max α),  g = exp(γ − max γ),  Z_t = a_t A g_{t+1}

    The sum is a matrix product over time. Steps whose Z is so small that terms may have underflowed
    are added in log space.
    """
    batch, length, states = alpha.shape
    if length < 2:
        return alpha.new_zeros(batch, states, states)
    before, after = alpha[:, :-1], gamma[:, 1:]
    a = torch.exp(before - before.amax(dim=2, keepdim=True))
    g = torch.exp(after - after.amax(dim=2, keepdim=True))
    probabilities = transition.exp()
    total = ((a @ probabilities) * g).sum(dim=2, keepdim=True)  # Z (B, T − 1, 1)
    real = torch.ones_like(total, dtype=torch.bool) if mask is None else mask[:, 1:, None]
    underflow = real & ~(total > MIN_PROBABILITY)
    scaled = torch.where(real & ~underflow, a / total, 0)
    pairs = (scaled.transpose(1, 2) @ g) * probabilities
    for row, position in underflow.squeeze(2).nonzero().tolist():
        table = before[row, position, :, None] + transition + after[row, position]
        pairs[row] += torch.softmax(table.flatten(), dim=0).view(states, states)
    return pairs


@torch.no_grad()
def viterbi(initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the most likely states (B, T), 0 at padding, and their log p(x, z) (B,); ties are broken arbitrarily."""
    check(initial, transition, emission, mask)
    states, score = best_path(initial, transition, emission, mask)
    if mask is not None:
        score = score.where(mask[:, 0], 0)
    if bool((score == -torch.inf).any()):
        raise impossible_error(score)
    return states, score


@operation
def best_path(
    initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `viterbi` without checks; an impossible sequence has score −inf."""
    _, best = recursion(expand_rows(initial, emission), transition, emission, mask, largest=True)
    score, last = best[:, -1].max(dim=1)
    batch, length, count = best.shape
    width = max(1, BLOCK // (batch * count * count))
    parts = [best.new_empty(batch, 0, count, dtype=torch.long)]
    for begin in range(0, length - 1, width):
        window = best[:, begin : min(begin + width, length - 1)]
        parts.append((window.unsqueeze(2) + transition.T).argmax(dim=3))  # (B, w, N after, N before)
    backpointers = torch.cat(parts, dim=1)  # (B, T − 1, N): ψ_t(k), the best state before state k at t = 2 … T
    if mask is None:
        return backtrack(backpointers, last), score
    backpointers = torch.where(mask[:, 1:, None], backpointers, torch.arange(count, device=last.device))
    return backtrack(backpointers, last).masked_fill(~mask, 0), score


@operation
def backtrack(backpointers: Tensor, last: Tensor) -> Tensor:
    """Follow the backpointers from the states `last` (B,); return the path (B, T)."""
    states = [last]
    for t in range(backpointers.shape[1] - 1, -1, -1):
        states.append(backpointers[:, t].gather(1, states[-1].unsqueeze(1)).squeeze(1))
    return torch.stack(states[::-1], dim=1)


def expand_rows(initial: Tensor, emission: Tensor) -> Tensor:
    """Expand log π to (B, N)."""
    return initial.expand(len(emission), emission.shape[2])


def _reverse(values: Tensor, mask: Tensor | None) -> Tensor:
    """Reverse every sequence (B, T, N) and keep the padding at the end."""
    if mask is None:
        return values.flip(1)
    positions = torch.arange(values.shape[1], device=values.device).expand(mask.shape)
    reversed_ = mask.sum(dim=1, keepdim=True) - 1 - positions
    return values.gather(1, torch.where(mask, reversed_, positions).unsqueeze(2).expand_as(values))


def check(initial: Tensor, transition: Tensor, emission: Tensor, mask: Tensor | None) -> None:
    """Raise `ValueError` for wrong shapes or NaN, which the loops over time would not detect."""
    states = transition.shape[0]
    if transition.shape != (states, states) or initial.shape[-1] != states:
        raise ValueError(f"log A must be ({states}, {states}) and log π (…, {states}); got {tuple(transition.shape)}")
    if emission.dim() != 3 or emission.shape[1] < 1 or emission.shape[2] != states:
        raise ValueError(f"log b must have shape (B, T, {states}), T ≥ 1; got {tuple(emission.shape)}")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != emission.shape[:2]):
        raise ValueError(f"mask must be torch.bool {tuple(emission.shape[:2])}; got {mask.dtype} {tuple(mask.shape)}")
    if mask is not None and bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise ValueError("padding must come last, but a row of the mask changes from False to True")
    for name, values in (("log π", initial), ("log A", transition), ("log b", emission)):
        if bool(values.isnan().any()):
            raise ValueError(f"{name} must not contain NaN")


class MarkovModel(TensorModel):
    """Base class of hidden Markov models, with methods that infer the states of a single sequence."""

    transition: Tensor  # log A (N, N)

    @property
    def log_initial(self) -> Tensor:
        """log π (N,)."""
        raise NotImplementedError

    def emission_log_probs(self, sequence: Tensor) -> Tensor:
        """Return log b (B, T, N) of sequences (B, T, …)."""
        raise NotImplementedError

    def likeliest_states(self, sequence: Tensor) -> Tensor:
        """Return the most likely states (T,) of a sequence (T, …)."""
        emission = self.emission_log_probs(sequence[None].to(self.device))
        return viterbi(self.log_initial, self.transition, emission)[0][0]

    def state_posteriors(self, sequence: Tensor) -> Tensor:
        """Return p(z_t | x) of every state (T, N) given the complete sequence (T, …)."""
        emission = self.emission_log_probs(sequence[None].to(self.device))
        return posterior(self.log_initial, self.transition, emission).states[0]


def normalize_rows(counts: Tensor) -> Tensor:
    """Divide each row by its sum; a row without counts becomes uniform."""
    total = counts.sum(dim=1, keepdim=True)
    return torch.where(total > 0, counts / total, 1 / counts.shape[1])


def impossible_error(log_likelihood: Tensor) -> DataError:
    """Return the error for sequences of probability 0."""
    rows = (~log_likelihood.isfinite()).nonzero().flatten().tolist()
    numbers = ", ".join(str(row + 1) for row in rows[:5]) + (" …" if len(rows) > 5 else "")
    return DataError(
        f"{len(rows)} of {len(log_likelihood)} sequences ({numbers}) have probability 0 under this model. "
        "Set model.smoothing above 0."
    )
