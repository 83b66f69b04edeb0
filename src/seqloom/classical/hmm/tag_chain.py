"""Tags of a sentence as a Markov chain of the second order: a tag depends on the two before it.

    p(x, z) = Π_{t=1}^{T+1} A(z_{t−2}, z_{t−1}, z_t) · Π_t b(x_t | z_t)          z_{−1} = z_0 = z_{T+1} = END

It is a hidden Markov model whose states are pairs of tags. Only K of the K² pairs can follow a
pair, so a step is K³ and not K⁴ products:

    f_t(j, k) = b(x_t | k) Σ_i f_{t−1}(i, j) A_ijk          g_t(i, j) = Σ_k A_ijk b(x_{t+1} | k) g_{t+1}(j, k)

The last of the K + 1 tags is END, which no word has. f is divided by its sum at every step and the
logarithms are kept. Sentences are short and no word rules a tag out by more than some powers of
ten, so nothing is lost that way.
"""

import torch
from torch import Tensor


def viterbi(table: Tensor, emission: Tensor, mask: Tensor) -> Tensor:
    """The best tags (B, W), 0 at padding; log A (K+1, K+1, K+1), log b (B, W, K)."""
    batch, length, tags = emission.shape
    best = emission.new_full((batch, tags + 1, tags), -torch.inf)
    best[:, tags] = table[tags, tags, :tags] + emission[:, 0]  # before the first word stand two ENDs
    none, came_from = best.new_full((batch, 1, tags), -torch.inf), []
    last = best + table[:, :tags, tags]
    for t in range(1, length):
        value, before = (best.unsqueeze(3) + table[:, :tags, :tags]).max(dim=1)  # (B, K, K)
        now = torch.cat([value + emission[:, t].unsqueeze(1), none], dim=1)
        real = mask[:, t, None, None]
        best, last = torch.where(real, now, best), torch.where(real, now + table[:, :tags, tags], last)
        came_from.append(before)
    place = last.flatten(1).argmax(dim=1)
    one, two = place // tags, place % tags  # the last tag is `two`, that before it `one`
    found = [two]
    lengths = mask.sum(dim=1)
    for t in range(length - 1, 0, -1):
        inside = t < lengths
        before = came_from[t - 1].flatten(1).gather(1, (one.clamp(max=tags - 1) * tags + two).unsqueeze(1)).squeeze(1)
        one, two = torch.where(inside, before, one), torch.where(inside, one, two)
        found.append(two)
    return torch.stack(found[::-1], dim=1).masked_fill(~mask, 0)


def marginals(table: Tensor, emission: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """p(z_t = k | x) (B, W, K), 0 at padding, and log p(x) (B,)."""
    tags, length = emission.shape[2], emission.shape[1]
    chances, emitted, highest = table.exp(), *_emitted(emission)
    forward, total = _forward(chances, emitted, mask)
    after = chances[:, :tags, tags].expand(len(emission), -1, -1)  # g (B, K+1, K)
    states = []
    for t in range(length - 1, -1, -1):
        if t < length - 1:
            ahead = emitted[:, t + 1].unsqueeze(1) * after[:, :tags]  # (B, K, K): tag at t+1 after tag at t
            now = torch.einsum("ijk,bjk->bij", chances[:, :tags, :tags], ahead)
            now = now / now.amax(dim=(1, 2), keepdim=True)
            after = torch.where(mask[:, t + 1, None, None], now, after)
        joint = (forward[t] * after).sum(dim=1)  # (B, K)
        states.append(joint / joint.sum(dim=1, keepdim=True))
    posteriors = torch.stack(states[::-1], dim=1).masked_fill(~mask.unsqueeze(2), 0)
    return posteriors, total + highest.masked_fill(~mask, 0).sum(dim=1)


def log_likelihood(table: Tensor, emission: Tensor, mask: Tensor) -> Tensor:
    """log p(x) (B,), all tags summed out."""
    emitted, highest = _emitted(emission)
    return _forward(table.exp(), emitted, mask)[1] + highest.masked_fill(~mask, 0).sum(dim=1)


def score(table: Tensor, emission: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
    """log p(x, z) (B,) of given tags (B, W)."""
    end = emission.shape[2]
    chosen = tags.masked_fill(~mask, end)
    edge = chosen.new_full((len(tags), 1), end)
    whole = torch.cat([edge, edge, chosen, edge], dim=1)  # at padding END follows END
    moves = table[whole[:, :-2], whole[:, 1:-1], whole[:, 2:]]  # (B, W + 1)
    counted = torch.cat([mask.new_ones(len(mask), 1), mask], dim=1)  # every word, and the first END after them
    own = emission.gather(2, tags.masked_fill(~mask, 0).unsqueeze(2)).squeeze(2)
    return moves.masked_fill(~counted, 0).sum(dim=1) + own.masked_fill(~mask, 0).sum(dim=1)


def _emitted(emission: Tensor) -> tuple[Tensor, Tensor]:
    """b over its largest (B, W, K), and the log of that (B, W)."""
    highest = emission.amax(dim=2)
    return torch.exp(emission - highest.unsqueeze(2)), highest


def _forward(chances: Tensor, emitted: Tensor, mask: Tensor) -> tuple[list[Tensor], Tensor]:
    """f (B, K+1, K) of every word, each divided by its sum, and log p(x) (B,) but for the largest b."""
    batch, length, tags = emitted.shape
    now = emitted.new_zeros(batch, tags + 1, tags)
    now[:, tags] = chances[tags, tags, :tags] * emitted[:, 0]
    none, kept = emitted.new_zeros(batch, 1, tags), emitted.new_zeros(batch)
    found: list[Tensor] = []
    for t in range(length):
        if t:
            moved = torch.einsum("bij,ijk->bjk", found[-1], chances[:, :tags, :tags]) * emitted[:, t].unsqueeze(1)
            now = torch.cat([moved, none], dim=1)
        total = now.sum(dim=(1, 2))
        real = mask[:, t]
        kept = kept + torch.where(real, total.log(), 0)
        now = now / total[:, None, None]
        found.append(now if not t else torch.where(real[:, None, None], now, found[-1]))
    ended = (found[-1] * chances[:, :tags, tags]).sum(dim=(1, 2))
    return found, kept + ended.log()
