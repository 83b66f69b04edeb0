"""A linear-chain conditional random field, which models the tags of a sentence jointly.

    s(y) = a_{y_1} + Σ_t e_{t, y_t} + Σ_t A_{y_{t-1}, y_t} + z_{y_T}
    p(y) = exp(s(y)) / Z,     Z = Σ_y exp(s(y)) over all K^T sequences of tags

    forward     α_1(k) = a_k + e_{1,k}     α_t(k) = e_{t,k} + log Σ_j exp(α_{t-1}(j) + A_{jk})
                log Z = log Σ_k exp(α_T(k) + z_k)
    backward    β_T(j) = z_j               β_t(j) = log Σ_k exp(A_{jk} + e_{t+1,k} + β_{t+1}(k))
    marginals   p(y_t = k) = exp(α_t(k) + β_t(k) − log Z)
    Viterbi     forward with max instead of log Σ exp, then backtracking along the argmax

e are the emissions (B, T, K) of a model; A, a and z are learned. If A, a and z are zero, p(y) is a product of
softmaxes.

Masks (B, T) are True at words; padding comes last. A sentence without words has exactly one tag sequence, the empty
sequence.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from seqloom.core.iob import Scheme, may_follow
from seqloom.nn.masks import any_known_true, zero_padding
from seqloom.nn.softmax import at_least_float32

FORBIDDEN = -1e6  # score of forbidden transitions, whose exp is 0 in every precision and whose sums stay finite


class LinearChainCRF(nn.Module):
    """A CRF over K tags. With `learned=False`, A, a and z stay zero.

    `allowed` (K + 1, K + 1) is True if a tag (column) may follow another tag (row). The last row represents the start
    of the sentence, and the last column its end. `constrain` sets `allowed`. Forbidden transitions have probability 0
    and are never decoded. `allowed` is saved with the weights.
    """

    start: Tensor
    transitions: Tensor
    end: Tensor
    allowed: Tensor

    def __init__(self, tags: int, *, learned: bool = True) -> None:
        super().__init__()
        if tags < 1:
            raise ValueError(f"the number of tags must be at least 1; got {tags}")
        self.tags, self.learned = tags, learned
        for name, shape in (("start", (tags,)), ("transitions", (tags, tags)), ("end", (tags,))):
            if learned:
                self.register_parameter(name, nn.Parameter(torch.zeros(shape)))
            else:
                self.register_buffer(name, torch.zeros(shape), persistent=False)
        self.register_buffer("allowed", torch.ones(tags + 1, tags + 1, dtype=torch.bool))

    def extra_repr(self) -> str:
        return f"{self.tags}" if self.learned else f"{self.tags}, learned=False"

    def constrain(self, names: Sequence[str], scheme: Scheme = "IOB2") -> None:
        """Forbid transitions that the scheme does not allow, such as I-PER after O. `names` lists the tags in order."""
        if len(names) != self.tags:
            raise ValueError(f"names must have {self.tags} entries, one for each tag; got {len(names)}")
        around = [*names, None]
        table = [[may_follow(before, tag, scheme) for tag in around] for before in around]
        if not any(table[k][k] and table[-1][k] and table[k][-1] for k in range(self.tags)):
            raise ValueError(f"none of the tags {', '.join(names)} is a valid {scheme} sequence on its own")
        with torch.no_grad():
            self.allowed.copy_(torch.tensor(table))

    # --- training ---------------------------------------------------------------------------------------------------

    def log_likelihood(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Compute log p(y) (B,) of tags (B, T) given emissions (B, T, K), or 0 for sentences without words."""
        return self.score(emissions, tags, mask) - self.log_partition(emissions, mask)

    def score(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Compute s(y) of each sentence (B,)."""
        emissions = self._validate(emissions, mask)
        start, transitions, end = self._potentials(FORBIDDEN)
        tags = tags.masked_fill(~mask, 0)
        tag_scores = emissions.gather(2, tags.unsqueeze(2)).squeeze(2)  # (B, T)
        moves = transitions[tags[:, :-1], tags[:, 1:]]  # (B, T − 1)
        last = tags.gather(1, (mask.sum(dim=1, keepdim=True) - 1).clamp(min=0)).squeeze(1)  # (B,)
        inside = tag_scores.sum(dim=1) + moves.masked_fill(~mask[:, 1:], 0).sum(dim=1)
        return (start[tags[:, 0]] + inside + end[last]).where(mask[:, 0], 0)

    def log_partition(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Compute log Z of each sentence (B,)."""
        emissions = self._validate(emissions, mask)
        _, _, end = self._potentials(FORBIDDEN)
        return torch.logsumexp(self._forward(emissions, mask)[-1] + end, dim=1).where(mask[:, 0], 0)

    def _forward(self, emissions: Tensor, mask: Tensor) -> list[Tensor]:
        """Compute α_t (B, K) for every t. Padding repeats the value of the last word."""
        start, transitions, _ = self._potentials(FORBIDDEN)
        alphas = [start + emissions[:, 0]]
        for t in range(1, emissions.shape[1]):
            step = emissions[:, t] + torch.logsumexp(alphas[-1].unsqueeze(2) + transitions, dim=1)
            alphas.append(torch.where(mask[:, t : t + 1], step, alphas[-1]))
        return alphas

    def _backward(self, emissions: Tensor, mask: Tensor) -> list[Tensor]:
        """Compute β_t (B, K) for every t. Padding repeats the value of the last word."""
        _, transitions, end = self._potentials(FORBIDDEN)
        betas = [end.expand(len(emissions), -1)]
        for t in range(emissions.shape[1] - 1, 0, -1):
            step = torch.logsumexp(transitions + (emissions[:, t] + betas[-1]).unsqueeze(1), dim=2)
            betas.append(torch.where(mask[:, t : t + 1], step, betas[-1]))
        return betas[::-1]

    # --- prediction -------------------------------------------------------------------------------------------------

    def marginals(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Compute the marginals p(y_t = k) (B, T, K), which are 0 at padding."""
        emissions = self._validate(emissions, mask)
        alphas, betas = self._forward(emissions, mask), self._backward(emissions, mask)
        both = torch.stack([alpha + beta for alpha, beta in zip(alphas, betas, strict=True)], dim=1)
        # Normalize at each t, so that rounding errors in log Z have no effect.
        return both.softmax(dim=2).masked_fill(~mask.unsqueeze(2), 0)

    @torch.no_grad()
    def viterbi(self, emissions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Find the best tags of each sentence (B, T), 0 at padding, and their scores (B,)."""
        emissions = self._validate(emissions, mask)
        start, transitions, end = self._potentials(-math.inf)
        score, came_from = start + emissions[:, 0], []  # (B, K)
        itself = torch.arange(self.tags, device=mask.device)
        for t in range(1, emissions.shape[1]):
            real = mask[:, t : t + 1]
            best, before = (score.unsqueeze(2) + transitions).max(dim=1)
            came_from.append(torch.where(real, before, itself))
            score = torch.where(real, best + emissions[:, t], score)
        total, last = (score + end).max(dim=1)
        tags = [last]
        for before in reversed(came_from):
            tags.append(before.gather(1, tags[-1].unsqueeze(1)).squeeze(1))
        return torch.stack(tags[::-1], dim=1).masked_fill(~mask, 0), total.where(mask[:, 0], 0)

    def _potentials(self, forbidden: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return a (K,), A (K, K) and z (K,) with `forbidden` at forbidden transitions."""
        barred, last = ~self.allowed, self.tags
        start = at_least_float32(self.start).masked_fill(barred[last, :last], forbidden)
        transitions = at_least_float32(self.transitions).masked_fill(barred[:last, :last], forbidden)
        return start, transitions, at_least_float32(self.end).masked_fill(barred[:last, last], forbidden)

    def _validate(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Validate the shapes. Return the emissions, converted to at least float32 and set to zero at padding."""
        if emissions.dim() != 3 or emissions.shape[1] < 1 or emissions.shape[2] != self.tags:
            raise ValueError(f"emissions must have shape (B, T, {self.tags}), T ≥ 1; got {tuple(emissions.shape)}")
        if mask.dtype != torch.bool or mask.shape != emissions.shape[:2]:
            shape = tuple(emissions.shape[:2])
            raise ValueError(f"mask must be torch.bool {shape}; got {mask.dtype} {tuple(mask.shape)}")
        if any_known_true(mask[:, 1:] & ~mask[:, :-1]):
            raise ValueError("padding must come last, but a row of the mask changes from False to True")
        return zero_padding(at_least_float32(emissions), mask)
