"""What a step of a beam search compares: the continuations of each source, and what has ended."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Finished = dict[str, Tensor]  # (b, k) of those that ended, best first: score, log_prob, end, node, length, finished


@dataclass(frozen=True)
class Candidates:
    """Continuations of each source (b, C), best first."""

    total: Tensor  # Σ log p
    own: Tensor  # log p of the token
    token: Tensor
    slot: Tensor  # which of the w hypotheses it continues

    def take(self, places: Tensor) -> "Candidates":
        return Candidates(*(values.gather(1, places) for values in vars(self).values()))

    def ended(self, end: int, k: int) -> Tensor:
        """Which of the k best end (b, k)."""
        return (self.token[:, :k] == end) & ~self.total[:, :k].isneginf()

    def places_going_on(self, end: int, width: int) -> Tensor:
        return (self.token == end).to(torch.int8).argsort(dim=1, stable=True)[:, :width]

    def going_on(self, end: int, width: int) -> "Candidates":
        """The best `width` of each source that do not end."""
        chosen = self.take(self.places_going_on(end, width))
        return replace(chosen, total=chosen.total.masked_fill(chosen.token == end, -math.inf))


def best_candidates(values: Tensor, ids: Tensor, log_prob: Tensor, count: int) -> Candidates:
    """The best `count` continuations of hypotheses of log_prob (b, w) by tokens ids, of log p `values` (b, w, K).

    Ties: lower hypothesis first, then lower token.
    """
    values = values.masked_fill(log_prob.isneginf().unsqueeze(2), -math.inf)  # whatever it may be, NaN too
    total = (log_prob.unsqueeze(2) + values).flatten(1)  # (b, w·K)
    total, order = total.sort(dim=1, descending=True, stable=True)
    order = order[:, :count]
    own, token = values.flatten(1).gather(1, order), ids.flatten(1).gather(1, order)
    return Candidates(total[:, :count], own, token, order // values.shape[2])


def with_new(finished: Finished, new: Finished) -> Finished:
    """The best k of what had ended and what ends now."""
    k = finished["score"].shape[1]
    together = {key: torch.cat([values, new[key]], dim=1) for key, values in finished.items()}
    order = together["score"].argsort(dim=1, descending=True, stable=True)[:, :k]
    return {key: values.gather(1, order) for key, values in together.items()}


def first_there(parts: list[Finished], count: int) -> Finished:
    """The first `count` of hypotheses that are there at all, in the order of the parts."""
    together = {key: torch.cat([part[key] for part in parts], dim=1) for key in parts[0]}
    order = together["score"].isneginf().to(torch.int8).argsort(dim=1, stable=True)[:, :count]
    return {key: values.gather(1, order) for key, values in together.items()}
