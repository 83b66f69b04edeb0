"""The rules of beam search: which continuations of a source go on, which have ended, and when the source is done.

    score(y) = Σ_t log p(y_t | y_<t, x) / |y|^α + β Σ_j log min(Σ_t a_tj, 1)

Sources are rows b, their hypotheses columns, best first; a log-probability of −∞ is an empty place. A length is a
number, or a tensor if nothing may wait for the device. The second term of the score is the `coverage`, if there is one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import Ge, Le, NonNegativeFloat, NonNegativeInt, PositiveInt

NOT_NUMBERS = "The model's probabilities are not numbers: its weights are bad. Use another checkpoint."
MAX_LENGTH_PENALTY = 10  # beyond it the longest always wins, and length^α soon is no number

Finished = dict[str, Tensor]  # (b, k) of those that ended, best first: score, log_prob, end, node, length, finished


@dataclass(frozen=True)
class Candidates:
    """Continuations of each source (b, C), best first."""

    total: Tensor  # Σ log p
    own: Tensor  # log p of the token
    token: Tensor
    slot: Tensor  # which of the w hypotheses it continues

    def take(self, positions: Tensor) -> "Candidates":
        return Candidates(*(values.gather(1, positions) for values in vars(self).values()))

    def ended(self, end: int, k: int) -> Tensor:
        """Which of the k best end (b, k)."""
        return (self.token[:, :k] == end) & ~self.total[:, :k].isneginf()

    def positions_going_on(self, end: int, width: int) -> Tensor:
        return (self.token == end).to(torch.int8).argsort(dim=1, stable=True)[:, :width]

    def going_on(self, end: int, width: int) -> "Candidates":
        """The best `width` of each source that do not end."""
        chosen = self.take(self.positions_going_on(end, width))
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


@config
class BeamConfig:
    beam: PositiveInt = 5  # hypotheses kept for each source; 1 is greedy search
    length_penalty: Annotated[float, Ge(0), Le(MAX_LENGTH_PENALTY)] = 1.0  # α: Σ log p is divided by length^α
    coverage_penalty: NonNegativeFloat = 0.0  # β: how much it costs to leave parts of the source unattended
    n_best: PositiveInt = 1  # how many hypotheses are returned; at most beam
    min_length: NonNegativeInt = 0  # the end may not come before this many tokens
    max_length: PositiveInt | None = None  # most tokens, the end included; None: 2 × source tokens + 20, at most 1000
    stopping: Literal["usual", "exact"] = "usual"  # once what ended is better than what goes on is now, or can ever be

    def problems(self) -> Iterator[str]:
        if self.n_best > self.beam >= 1:
            yield f"n_best must be at most beam, and {self.n_best} is more than {self.beam}"
        if self.coverage_penalty == math.inf:
            yield "coverage_penalty must be a finite number"
        if self.stopping not in ("usual", "exact"):
            yield f"stopping must be usual or exact, not {self.stopping!r}"
        if self.max_length is not None and self.max_length < self.min_length:
            yield f"max_length must be at least min_length, {self.min_length}, not {self.max_length}"


@dataclass(frozen=True)
class BeamRules:
    options: BeamConfig
    end: int
    banned: tuple[int, ...]  # tokens that are never chosen

    def score(self, log_prob: Tensor, length: int | Tensor, coverage: Tensor | None = None) -> Tensor:
        length = length.to(log_prob.dtype) if isinstance(length, Tensor) else length
        score = log_prob / length**self.options.length_penalty
        return score if coverage is None else score + coverage

    def forbid(self, values: Tensor, ids: Tensor, length: int | Tensor, banned: Tensor) -> Tensor:
        """The log-probabilities of tokens `ids`, with what may not be chosen at this length made impossible."""
        if len(banned):
            values = values.masked_fill((ids.unsqueeze(-1) == banned).any(dim=-1), -math.inf)
        if self.options.min_length:
            values = values.masked_fill((ids == self.end) & (length <= self.options.min_length), -math.inf)
        return values

    def set_aside(
        self, finished: Finished, best: Candidates, node: Tensor, length: int | Tensor, coverage: Tensor | None = None
    ) -> Finished:
        """The best k that have ended, now with those that end among the k best continuations of nodes (b, w)."""
        k = self.options.beam
        ended, slot = best.ended(self.end, k), best.slot[:, :k]
        score = self.score(best.total[:, :k], length, None if coverage is None else coverage.gather(1, slot))
        new = {
            "score": score.masked_fill(~ended, -math.inf),
            "log_prob": best.total[:, :k],
            "end": best.own[:, :k],
            "node": node.gather(1, slot),
            "length": torch.zeros_like(slot) + (length - 1),
            "finished": ended,
        }
        together = {key: torch.cat([values, new[key]], dim=1) for key, values in finished.items()}
        order = together["score"].argsort(dim=1, descending=True, stable=True)[:, :k]
        return {key: values.gather(1, order) for key, values in together.items()}

    def is_done(
        self,
        finished: Finished,
        log_prob: Tensor,
        limit: Tensor,
        length: int | Tensor,
        coverage: Tensor | None = None,
    ) -> Tensor:
        """Which sources (b,) are done: as many have ended as are wanted, and what goes on is no better, or too long."""
        best = log_prob[:, 0]
        if self.options.stopping == "exact":  # as if it kept its log p and grew to the limit; coverage can only cost
            reach = self.score(best, limit)
        elif coverage is None:
            reach = self.score(best, length)
        else:
            reach = self.score(log_prob, length, coverage).max(dim=1).values
        enough = finished["score"][:, self.options.n_best - 1] >= reach
        return enough | best.isneginf() | (limit <= length)

    def unfinished(
        self, log_prob: Tensor, node: Tensor, length: int | Tensor, coverage: Tensor | None = None
    ) -> Finished:
        """Hypotheses without an end, best first."""
        scored_length = length.clamp(min=1) if isinstance(length, Tensor) else max(length, 1)
        score, order = self.score(log_prob, scored_length, coverage).sort(dim=1, descending=True, stable=True)
        return {
            "score": score,
            "log_prob": log_prob.gather(1, order),
            "end": torch.zeros_like(score),
            "node": node.gather(1, order),
            "length": torch.zeros_like(order) + length,
            "finished": torch.zeros_like(score, dtype=torch.bool),
        }

    def results(self, finished: Finished, after: Finished, before: Finished) -> Finished:
        """The n best of sources that are done: first what ended, then what is cut short `after` the last step.

        A source that got stuck has neither, and returns its hypotheses `before` that step.
        """
        is_stuck = after["log_prob"][:, :1].isneginf() & finished["score"][:, :1].isneginf()
        before = {**before, "score": before["score"].masked_fill(~is_stuck, -math.inf)}
        parts = (finished, after, before)
        together = {key: torch.cat([part[key] for part in parts], dim=1) for key in finished}
        order = together["score"].isneginf().to(torch.int8).argsort(dim=1, stable=True)[:, : self.options.n_best]
        return {key: values.gather(1, order) for key, values in together.items()}


def no_finished(rows: int, beam: int, dtype: torch.dtype, device: torch.device) -> Finished:
    """The places of hypotheses that end, all empty."""
    empty: dict[str, tuple[float, torch.dtype]] = dict.fromkeys(("score", "log_prob", "end"), (-math.inf, dtype))
    empty |= {"node": (0, torch.long), "length": (0, torch.long), "finished": (False, torch.bool)}
    return {key: torch.full((rows, beam), value, dtype=kind, device=device) for key, (value, kind) in empty.items()}
