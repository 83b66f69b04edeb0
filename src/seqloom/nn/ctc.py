"""Connectionist temporal classification (Graves et al. 2006): the probability of a text, summed over its alignments.

    x_1 … x_S                         frames, each with a distribution p_t over the tokens and the blank ∅
    B(a_1 … a_S)                      the text of an alignment: repeated labels are merged, then blanks are removed
    p(y | x) = Σ_{a: B(a) = y} Π_t p_t(a_t)

    z = ∅ y_1 ∅ y_2 … ∅ y_T ∅        the states of an alignment; it starts in z_1 or z_2, ends in one of the last two
    α_1(i) = p_1(z_i)                 for i ≤ 2, else 0
    α_t(i) = (α_{t−1}(i) + α_{t−1}(i−1) + α_{t−1}(i−2) [z_i ≠ ∅ and z_i ≠ z_{i−2}]) · p_t(z_i)
    p(y | x) = α_S(2T + 1) + α_S(2T)

All sums are computed in log space. The blank has the id of END, which no text contains. A text has no alignment if it
has more tokens than there are frames; between equal tokens, one more frame is necessary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.operations import operation

BLANK = 0  # the id of ∅
LOG_ZERO = -1e30  # log 0; a finite number, because gradients of logsumexp are NaN if all terms are −∞


@operation
def ctc_log_likelihood(log_probs: Tensor, mask: Tensor, targets: Tensor, target_mask: Tensor) -> Tensor:
    """Return log p(y | x) (B,), or −∞ with a gradient of zero for a text without an alignment.

    log_probs (B, S, V) are the log-probabilities of the frames, and targets (B, T) the tokens. Masks are True at real
    positions, and padding comes last. A token equal to BLANK at the end of a text, such as END, is ignored.
    """
    z, can_skip = extended_states(targets)
    emissions = emission_log_probs(log_probs, z)
    alpha = initial_states(emissions[:, 0]).where(mask[:, :1], initial_states(torch.zeros_like(emissions[:, 0])))
    for t in range(1, emissions.shape[1]):
        alpha = advance(alpha, can_skip).add(emissions[:, t]).where(mask[:, t, None], alpha)
    last = 2 * count_tokens(targets, target_mask).unsqueeze(1)  # (B, 1)
    ends = torch.cat([alpha.gather(1, last), alpha.gather(1, (last - 1).clamp(min=0))], dim=1)  # (B, 2)
    is_end = torch.cat([last >= 0, last > 0], dim=1)
    total = ends.masked_fill(~is_end, LOG_ZERO).logsumexp(dim=1)
    return total.masked_fill(total < LOG_ZERO / 2, -torch.inf)


def extended_states(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return z (B, 2T + 1), and whether a state can follow the state before the preceding blank (B, 2T + 1)."""
    z = torch.full((len(targets), 2 * targets.shape[1] + 1), BLANK, dtype=targets.dtype, device=targets.device)
    z[:, 1::2] = targets
    before = F.pad(z, (2, 0), value=BLANK)[:, :-2]
    return z, (z != BLANK) & (z != before)


def emission_log_probs(log_probs: Tensor, z: Tensor) -> Tensor:
    """Return log p_t(z_i) (B, S, 2T + 1), at least in float32."""
    log_probs = log_probs.to(torch.promote_types(log_probs.dtype, torch.float32))
    return log_probs.gather(2, z.unsqueeze(1).expand(-1, log_probs.shape[1], -1)).clamp(min=LOG_ZERO)


def initial_states(emissions: Tensor) -> Tensor:
    """Return log α_1 (B, 2T + 1) from log p_1(z_i)."""
    is_first = torch.arange(emissions.shape[1], device=emissions.device) < 2
    return emissions.masked_fill(~is_first, LOG_ZERO)


def advance(alpha: Tensor, can_skip: Tensor) -> Tensor:
    """Return log(α(i) + α(i−1) + α(i−2) [can_skip]) (B, 2T + 1)."""
    return previous_states(alpha, can_skip).logsumexp(dim=0).clamp(min=LOG_ZERO)


def previous_states(alpha: Tensor, can_skip: Tensor) -> Tensor:
    """Return α(i), α(i−1) and α(i−2) (3, B, 2T + 1), the values of the states before each state, or log 0."""
    step = F.pad(alpha, (1, 0), value=LOG_ZERO)[:, :-1]
    skip = F.pad(alpha, (2, 0), value=LOG_ZERO)[:, :-2].masked_fill(~can_skip, LOG_ZERO)
    return torch.stack([alpha, step, skip])


def count_tokens(targets: Tensor, target_mask: Tensor) -> Tensor:
    """Return the number of tokens of each text (B,), without BLANK and padding."""
    return (target_mask & (targets != BLANK)).sum(dim=1)


@torch.no_grad()
def best_alignment(log_probs: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most probable alignment of tokens (T,) with frames (S, V).

    The result contains the number of the token of each frame (S,), counted from 0, or −1 at blanks, and the
    log-probability of the alignment, which is −∞ if there is no alignment.
    """
    z, can_skip = extended_states(tokens.unsqueeze(0))
    emissions = emission_log_probs(log_probs.unsqueeze(0), z)[0]  # (S, 2T + 1)
    score, moves = initial_states(emissions[:1])[0], []
    for emission in emissions[1:]:
        score, move = previous_states(score.unsqueeze(0), can_skip)[:, 0].max(dim=0)
        score = score + emission
        moves.append(move)
    state = len(score) - 1
    if len(score) > 1 and score[-2] > score[-1]:
        state -= 1
    best, states = score[state], [state]
    for move in reversed(moves):
        state -= int(move[state])
        states.append(state)
    path = torch.tensor(states[::-1])
    return torch.where(path % 2 == 1, path // 2, -1), best.masked_fill(best < LOG_ZERO / 2, -torch.inf)
