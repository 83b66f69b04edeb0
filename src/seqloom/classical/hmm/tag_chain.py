"""The tags of a sentence as a second-order Markov chain: a tag depends on the previous two tags.

    p(x, z) = Π_{t=1}^{T+1} A(z_{t−2}, z_{t−1}, z_t) · Π_t b(x_t | z_t)          z_{−1} = z_0 = z_{T+1} = END

The chain is a hidden Markov model whose states are pairs of tags. Only K of the K² pairs can follow a
given pair, so a step takes K³ instead of K⁴ products:

    f_t(j, k) = b(x_t | k) Σ_i f_{t−1}(i, j) A_ijk          g_t(i, j) = Σ_k A_ijk b(x_{t+1} | k) g_{t+1}(j, k)

The last of the K + 1 tags is END, which is not the tag of any word. f is normalized at every step, and
the logarithms of the sums are accumulated. Sentences are short and emissions differ by only a few
powers of ten, so underflow cannot occur.
"""

import torch
from torch import Tensor


def viterbi(table: Tensor, emission: Tensor, mask: Tensor) -> Tensor:
    """Return the best tags (B, W), 0 at padding, for log A (K+1, K+1, K+1) and log b (B, W, K)."""
    batch, length, tags = emission.shape
    best = emission.new_full((batch, tags + 1, tags), -torch.inf)
    best[:, tags] = table[tags, tags, :tags] + emission[:, 0]  # two ENDs precede the first word
    none, backpointers = best.new_full((batch, 1, tags), -torch.inf), []
    last = best + table[:, :tags, tags]
    for t in range(1, length):
        value, before = (best.unsqueeze(3) + table[:, :tags, :tags]).max(dim=1)  # (B, K, K)
        now = torch.cat([value + emission[:, t].unsqueeze(1), none], dim=1)
        real = mask[:, t, None, None]
        best, last = torch.where(real, now, best), torch.where(real, now + table[:, :tags, tags], last)
        backpointers.append(before)
    best_pair = last.flatten(1).argmax(dim=1)
    previous, current = best_pair // tags, best_pair % tags
    path = [current]
    lengths = mask.sum(dim=1)
    for t in range(length - 1, 0, -1):
        inside = t < lengths
        pair = previous.clamp(max=tags - 1) * tags + current
        before = backpointers[t - 1].flatten(1).gather(1, pair.unsqueeze(1)).squeeze(1)
        previous, current = torch.where(inside, before, previous), torch.where(inside, previous, current)
        path.append(current)
    return torch.stack(path[::-1], dim=1).masked_fill(~mask, 0)


def marginals(table: Tensor, emission: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return p(z_t = k | x) (B, W, K), 0 at padding, and log p(x) (B,)."""
    tags, length = emission.shape[2], emission.shape[1]
    transition, (emitted, highest) = table.exp(), _scale_emissions(emission)
    forward, total = _forward(transition, emitted, mask)
    after = transition[:, :tags, tags].expand(len(emission), -1, -1)  # g (B, K+1, K)
    states = []
    for t in range(length - 1, -1, -1):
        if t < length - 1:
            ahead = emitted[:, t + 1].unsqueeze(1) * after[:, :tags]  # (B, K, K): tag at t+1 after tag at t
            now = torch.einsum("ijk,bjk->bij", transition[:, :tags, :tags], ahead)
            now = now / now.amax(dim=(1, 2), keepdim=True)
            after = torch.where(mask[:, t + 1, None, None], now, after)
        joint = (forward[t] * after).sum(dim=1)  # (B, K)
        states.append(joint / joint.sum(dim=1, keepdim=True))
    posteriors = torch.stack(states[::-1], dim=1).masked_fill(~mask.unsqueeze(2), 0)
    return posteriors, total + highest.masked_fill(~mask, 0).sum(dim=1)


def log_likelihood(table: Tensor, emission: Tensor, mask: Tensor) -> Tensor:
    """Return log p(x) (B,), with p(x) summed over all tag sequences."""
    emitted, highest = _scale_emissions(emission)
    return _forward(table.exp(), emitted, mask)[1] + highest.masked_fill(~mask, 0).sum(dim=1)


def score(table: Tensor, emission: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
    """Return log p(x, z) (B,) of given tags (B, W)."""
    end = emission.shape[2]
    chosen = tags.masked_fill(~mask, end)
    edge = chosen.new_full((len(tags), 1), end)
    padded = torch.cat([edge, edge, chosen, edge], dim=1)  # at padding, END follows END
    transitions = table[padded[:, :-2], padded[:, 1:-1], padded[:, 2:]]  # (B, W + 1)
    counted = torch.cat([mask.new_ones(len(mask), 1), mask], dim=1)  # all words and the first END after the words
    emitted = emission.gather(2, tags.masked_fill(~mask, 0).unsqueeze(2)).squeeze(2)
    return transitions.masked_fill(~counted, 0).sum(dim=1) + emitted.masked_fill(~mask, 0).sum(dim=1)


def _scale_emissions(emission: Tensor) -> tuple[Tensor, Tensor]:
    """Return b / max b (B, W, K) and log max b (B, W)."""
    highest = emission.amax(dim=2)
    return torch.exp(emission - highest.unsqueeze(2)), highest


def _forward(transition: Tensor, emitted: Tensor, mask: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the normalized f (B, K+1, K) of every word, and log p(x) (B,) without the log max b."""
    batch, length, tags = emitted.shape
    now = emitted.new_zeros(batch, tags + 1, tags)
    now[:, tags] = transition[tags, tags, :tags] * emitted[:, 0]
    none, log_total = emitted.new_zeros(batch, 1, tags), emitted.new_zeros(batch)
    steps: list[Tensor] = []
    for t in range(length):
        if t:
            now = torch.einsum("bij,ijk->bjk", steps[-1], transition[:, :tags, :tags]) * emitted[:, t].unsqueeze(1)
            now = torch.cat([now, none], dim=1)
        total = now.sum(dim=(1, 2))
        real = mask[:, t]
        log_total = log_total + torch.where(real, total.log(), 0)
        now = now / total[:, None, None]
        steps.append(now if not t else torch.where(real[:, None, None], now, steps[-1]))
    ended = (steps[-1] * transition[:, :tags, tags]).sum(dim=(1, 2))
    return steps, log_total + ended.log()
