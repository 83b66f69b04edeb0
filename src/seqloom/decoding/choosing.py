"""What becomes of the hypotheses of a beam search in a step of one fixed shape: see `seqloom.decoding.captured`.

Everything stands in fixed places, which are written to; nothing waits for the device. A source that is done keeps what
it found. On a GPU it is one kernel, `seqloom.decoding.choosing_triton`.
"""

import importlib
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqloom.core.device import has_triton
from seqloom.decoding.candidates import best_candidates, with_new

WIDEST = 1024  # continuations of a source that the kernel is for


@dataclass(frozen=True)
class Rule:
    """What a search is to do: the same of every step."""

    beam: int
    n_best: int
    length_penalty: float
    min_length: int
    exact: bool
    end: int
    banned: tuple[int, ...]

    def score(self, log_prob: Tensor, length: Tensor) -> Tensor:
        return log_prob / length.to(log_prob.dtype) ** self.length_penalty


def choose(search: dict[str, Any], values: Tensor, ids: Tensor, banned: Tensor, rule: Rule) -> Tensor:
    """The k best continuations of each source go on, by tokens `ids` (R, K) of log p `values`, most probable first;
    those among its k best that end are set aside. Returned is which row (R,) each hypothesis was before."""
    if values.is_cuda and rule.beam * values.shape[1] <= WIDEST and has_triton():
        return choose_by_kernel(search, values, ids, banned, rule)
    (b, k), done, at = search["log_prob"].shape, search["done"].clone(), search["at"]
    length = at + 1
    values = _permitted(values.double(), ids, banned, length, rule)
    best = best_candidates(values.view(b, k, -1), ids.view(b, k, -1), search["log_prob"], 2 * k)
    chosen = best.going_on(rule.end, k)

    ended, slot = best.ended(rule.end, k), best.slot[:, :k]
    new = {
        "score": rule.score(best.total[:, :k], length).masked_fill(~ended, -math.inf),
        "log_prob": best.total[:, :k],
        "end": best.own[:, :k],
        "node": at * k + slot,
        "length": torch.zeros_like(slot) + at,
        "finished": ended,
    }
    finished = with_new(search["finished"], new)
    unfit = chosen.total[:, 0].isnan() | finished["score"][:, 0].isnan()
    search["broken"].logical_or_((unfit & ~done).any())
    search["done"].logical_or_(_stops(finished["score"], chosen.total[:, 0], search["limit"], length, rule))
    kept = {"before": search["log_prob"], "log_prob": chosen.total, "length": length, "finished": finished}
    _put_where(~done, kept, search)
    search["token"].copy_(chosen.token)
    for name, value in (("token", chosen.token), ("parent", chosen.slot), ("own", chosen.own)):
        search["history"][name].index_copy_(1, at.view(1), value.unsqueeze(1))
    return (torch.arange(b, device=at.device).unsqueeze(1) * k + chosen.slot).flatten()


def _permitted(values: Tensor, ids: Tensor, banned: Tensor, length: Tensor, rule: Rule) -> Tensor:
    if len(banned):
        values = values.masked_fill((ids.unsqueeze(-1) == banned).any(dim=-1), -math.inf)
    if rule.min_length:
        values = values.masked_fill((ids == rule.end) & (length <= rule.min_length), -math.inf)
    return values


def _stops(scores: Tensor, best: Tensor, limit: Tensor, length: Tensor, rule: Rule) -> Tensor:
    """Which sources (b,) are done, by the rule that `seqloom.decoding.beam` has; `best` (b,) is what goes on."""
    reach = rule.score(best, limit if rule.exact else length)
    return (scores[:, rule.n_best - 1] >= reach) | best.isneginf() | (limit <= length)


def _put_where(going: Tensor, new: dict[str, Any], places: dict[str, Any]) -> None:
    """Copy tensors into those of the same names, the rows (b, …) of sources that still go on (b,)."""
    for name, value in new.items():
        place = places[name]
        if isinstance(value, dict):
            _put_where(going, value, place)
        else:
            torch.where(going.view(-1, *(1,) * (place.dim() - 1)), value, place, out=place)


# On a GPU.


def choose_by_kernel(search: dict[str, Any], values: Tensor, ids: Tensor, banned: Tensor, rule: Rule) -> Tensor:
    """The same, of tensors on a GPU."""
    (b, k), (R, count) = search["log_prob"].shape, values.shape
    ended, history = search["finished"], search["history"]
    rows = torch.empty(R, dtype=torch.long, device=values.device)
    with torch.cuda.device_of(values):
        importlib.import_module("seqloom.decoding.choosing_triton").choose[(b,)](
            values.contiguous(), ids.contiguous(), banned,
            search["at"], search["limit"], search["done"].view(torch.uint8), search["length"],
            search["token"], search["log_prob"], search["before"],
            ended["score"], ended["log_prob"], ended["end"], ended["node"], ended["length"],
            ended["finished"].view(torch.uint8),
            history["token"], history["parent"], history["own"],
            search["broken"].view(torch.uint8), rows, history["token"].shape[1],
            K=k, COUNT=count, CANDIDATES=_power_of_two(k * count), PLACES=_power_of_two(2 * k),
            BANNED=len(banned), END=rule.end, N_BEST=rule.n_best, ALPHA=rule.length_penalty,
            LEAST=rule.min_length, EXACT=rule.exact, num_warps=1,
        )  # fmt: skip
    return rows


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
