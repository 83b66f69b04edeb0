"""The rules of beam search: which continuations of a source go on, which have ended, and when the source is done.

    score(y) = Σ_t log p(y_t | y_<t, x) / |y|^α + β Σ_j log min(Σ_t a_tj, 1)

Sources are rows b, their hypotheses columns, best first; a log-probability of −∞ is an empty place.
A length is a number, or a tensor if nothing may wait for the device. The second term of the score
is the `coverage`, if there is one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import Ge, Le, NonNegativeFloat, NonNegativeInt, PositiveInt

NOT_NUMBERS = "The model's probabilities are not numbers: its weights are bad. Use another checkpoint."
MAX_LENGTH_PENALTY = 10  # beyond it the longest always wins, and length^α soon is no number

Numbers = NDArray[Any]
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


# --- hypotheses -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hypothesis:
    """One sequence a search found."""

    tokens: list[int]  # a forced prefix included, END not
    finished: bool  # whether END was chosen; if not, the search had to stop here
    log_prob: float  # Σ log p of the tokens, and of END where it is finished
    score: float  # what it was ranked by
    token_log_probs: list[float]  # of each token, and of END
    attention: Tensor | None = None  # (T, S), on the CPU: where the model looked for each token, and for END


class Nodes:
    """The hypotheses of a search as one tree: each token is a node that knows the node before it.

    Hypotheses share their beginnings, so nothing is copied when the beam is reordered; only those
    that are wanted in the end are walked back to the root. The tree grows by as many nodes as there
    are rows at every step, and the id of a node is its position in the order of arrival.
    """

    def __init__(self) -> None:
        self.size = 0
        self._grown: list[tuple[Tensor, Tensor, Tensor]] = []
        self._attention: list[tuple[Tensor, Tensor]] = []

    def grow(self, tokens: Tensor, parents: Tensor, log_probs: Tensor) -> Tensor:
        """Add nodes (n,) and return their ids."""
        self._grown.append((tokens, parents, log_probs))
        first, self.size = self.size, self.size + len(tokens)
        return torch.arange(first, self.size, device=tokens.device)

    def attend(self, nodes: Tensor, attention: Tensor) -> None:
        """Keep the attention weights (n, S) after reading these nodes (n,): those of what comes after them."""
        self._attention.append((nodes, attention))

    @property
    def has_attention(self) -> bool:
        return bool(self._attention)

    def paths(self, last: Numbers, lengths: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The paths from the root to the nodes `last` (n,), each `lengths` (n,) tokens long.

        Tokens and log-probabilities (n, T), and the nodes (n, 1 + T) with the root in front; filled
        up at the end.
        """
        tokens, parents, log_probs = (torch.cat(part).cpu().numpy() for part in zip(*self._grown, strict=True))
        longest = int(lengths.max())
        nodes = np.zeros((len(last), longest + 1), dtype=np.int64)
        node = last
        for position in range(longest, -1, -1):
            inside = lengths >= position
            nodes[:, position] = np.where(inside, node, 0)
            node = np.where(inside, parents[node], node)
        return tokens[nodes[:, 1:]], log_probs[nodes[:, 1:]], nodes

    def attention_after(self, nodes: Sequence[Tensor]) -> list[Tensor]:
        """Of each list of nodes (T,), the attention weights after reading them: (T, S), on the CPU."""
        read, attention = (torch.cat(part) for part in zip(*self._attention, strict=True))
        positions = torch.zeros(self.size, dtype=torch.long, device=read.device)
        positions[read] = torch.arange(len(read), device=read.device)
        wanted = attention[positions[torch.cat(list(nodes)).to(read.device)]].float().cpu()
        return list(wanted.split([len(part) for part in nodes]))


def collect(
    nodes: Nodes, results: Sequence[dict[str, Tensor]], sources: int, widths: Sequence[int] | None = None
) -> list[list[Hypothesis]]:
    """The hypotheses of each source, best first.

    `results` hold, for some of the sources each, `source` (b,) and of their hypotheses (b, n), best
    first, the last `node`, the `length` in tokens, `score`, `log_prob`, `end` (log p of END) and
    whether they are `finished`; a score of −∞ is an empty position. `widths` are the sources' own
    lengths, to which their attention is cut.
    """
    merged = {key: torch.cat([part[key] for part in results]).cpu().numpy() for key in results[0]}  # NumPy is faster
    exists = ~np.isneginf(merged["score"])  # (B, n)
    owners = np.broadcast_to(merged.pop("source")[:, None], exists.shape)[exists].tolist()
    best = {key: values[exists] for key, values in merged.items()}
    tokens, log_probs, paths = nodes.paths(best["node"], best["length"])
    lengths, finished, ends, scores, sums = (
        best[key].tolist() for key in ("length", "finished", "end", "score", "log_prob")
    )
    attention: list[Tensor | None] = [None] * len(owners)
    if nodes.has_attention and owners:  # a token's attention was had at the node before it
        every = torch.from_numpy(paths)
        before = [path[: length + done] for path, length, done in zip(every, lengths, finished, strict=True)]
        attention = [
            weights if widths is None else weights[:, : widths[owner]]
            for weights, owner in zip(nodes.attention_after(before), owners, strict=True)
        ]
    hypotheses: list[list[Hypothesis]] = [[] for _ in range(sources)]
    columns = (owners, tokens.tolist(), log_probs.tolist(), lengths, finished, ends, sums, scores, attention)
    for owner, ids, values, length, done, end, log_prob, score, weights in zip(*columns, strict=True):
        hypothesis = Hypothesis(ids[:length], done, log_prob, score, values[:length] + [end] * done, weights)
        hypotheses[owner].append(hypothesis)
    return hypotheses


@dataclass(frozen=True)
class SearchStep:
    """The continuations that were compared at one step, (b, C) of the b sources still searched, best first.

    One whose `total` is −∞ is an empty place. Nodes are numbered as they come, those of the sources
    first, which are their roots.
    """

    length: int  # of every continuation, in tokens
    source: Tensor  # (b,) their places in the batch
    parent: Tensor  # the node that is continued
    token: Tensor
    own: Tensor  # log p of the token
    total: Tensor  # Σ log p
    score: Tensor  # what the continuation would be ranked by, did it end here
    node: Tensor  # what it is in the tree if it goes on; −1 if it does not
    ended: Tensor  # whether it ended and was set aside


class Recorder(Protocol):
    def step(self, step: SearchStep, /) -> None:
        """Is called after each step of a search, with everything that was compared in it."""
        ...
