"""The rules of beam search: which continuations remain in the beam or are finished, and when a source is done.

    score(y) = Σ_t log p(y_t | y_<t, x) / |y|^α + β Σ_j log min(Σ_t a_tj, 1)

Rows of tensors are the b sources, and columns are their hypotheses, best first. A log-probability of −∞ marks an empty
position. A length is a number, or a tensor to avoid device synchronization. The second term of the score is the
optional `coverage`.
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

NOT_NUMBERS = "The probabilities of the model are NaN: its weights are damaged. Use another checkpoint."
MAX_LENGTH_PENALTY = 10  # with larger values, the longest hypothesis always wins, and length^α may overflow

Numbers = NDArray[Any]
Finished = dict[str, Tensor]  # (b, k) finished hypotheses, best first: score, log_prob, end, node, length, finished


@dataclass(frozen=True)
class Candidates:
    """Continuations of each source (b, C), best first."""

    total: Tensor  # Σ log p
    token_log_prob: Tensor  # log p of the token
    token: Tensor
    slot: Tensor  # index of the hypothesis that the token continues

    def ended(self, end: int, k: int) -> Tensor:
        """Return which of the k best candidates end with END (b, k)."""
        return (self.token[:, :k] == end) & ~self.total[:, :k].isneginf()

    def unended_positions(self, end: int, width: int) -> Tensor:
        """Return the positions of the best `width` candidates that do not end with END."""
        return (self.token == end).to(torch.int8).argsort(dim=1, stable=True)[:, :width]

    def unended(self, end: int, width: int) -> "Candidates":
        """Return the best `width` candidates of each source that do not end with END."""
        positions = self.unended_positions(end, width)
        chosen = Candidates(*(values.gather(1, positions) for values in vars(self).values()))
        return replace(chosen, total=chosen.total.masked_fill(chosen.token == end, -math.inf))


def best_candidates(values: Tensor, ids: Tensor, log_prob: Tensor, count: int) -> Candidates:
    """Return the best `count` continuations of hypotheses (b, w) by tokens `ids` with log p `values` (b, w, K).

    Among ties, the lower hypothesis is preferred, then the lower token.
    """
    values = values.masked_fill(log_prob.isneginf().unsqueeze(2), -math.inf)  # also replaces NaN
    total = (log_prob.unsqueeze(2) + values).flatten(1)  # (b, w·K)
    total, order = total.sort(dim=1, descending=True, stable=True)
    order = order[:, :count]
    token_log_prob, token = values.flatten(1).gather(1, order), ids.flatten(1).gather(1, order)
    return Candidates(total[:, :count], token_log_prob, token, order // values.shape[2])


@config
class BeamConfig:
    beam: PositiveInt = 5  # beam size: number of hypotheses for each source; 1 is greedy search
    length_penalty: Annotated[float, Ge(0), Le(MAX_LENGTH_PENALTY)] = 1.0  # α: Σ log p is divided by length^α
    coverage_penalty: NonNegativeFloat = 0.0  # β: weight of the penalty for source positions with little attention
    n_best: PositiveInt = 1  # number of hypotheses to return, at most beam
    min_length: NonNegativeInt = 0  # minimum number of tokens before END
    # maximum number of tokens including END; null: 2 × source tokens + 20, at most 1000
    max_length: PositiveInt | None = None
    # usual: compare current scores; exact: compare the best scores that can still be reached
    stopping: Literal["usual", "exact"] = "usual"

    def problems(self) -> Iterator[str]:
        if self.n_best > self.beam >= 1:
            yield f"n_best must be at most beam, {self.beam}; got {self.n_best}"
        if self.coverage_penalty == math.inf:
            yield "coverage_penalty must be a finite number"
        if self.stopping not in ("usual", "exact"):
            yield f"stopping must be usual or exact; got {self.stopping!r}"
        if self.max_length is not None and self.max_length < self.min_length:
            yield f"max_length must be at least min_length, {self.min_length}; got {self.max_length}"


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
        """Set the log-probabilities of banned tokens, and of END before `min_length`, to −∞."""
        if len(banned):
            values = values.masked_fill((ids.unsqueeze(-1) == banned).any(dim=-1), -math.inf)
        if self.options.min_length:
            values = values.masked_fill((ids == self.end) & (length <= self.options.min_length), -math.inf)
        return values

    def add_finished(
        self, finished: Finished, best: Candidates, node: Tensor, length: int | Tensor, coverage: Tensor | None = None
    ) -> Finished:
        """Finish the continuations of nodes (b, w) that end with END and are among the k best.

        Only the k best finished hypotheses are kept.
        """
        k = self.options.beam
        ended, slot = best.ended(self.end, k), best.slot[:, :k]
        score = self.score(best.total[:, :k], length, None if coverage is None else coverage.gather(1, slot))
        new = {
            "score": score.masked_fill(~ended, -math.inf),
            "log_prob": best.total[:, :k],
            "end": best.token_log_prob[:, :k],
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
        remaining: Tensor | None = None,
    ) -> Tensor:
        """Return which sources (b,) are done.

        A source is done if n_best hypotheses are finished, and all unfinished hypotheses are worse or too long. Unless
        stopping is exact, hypotheses that still lack tokens of required terms (`remaining` > 0) are ignored, because
        each missing token will lower their scores.
        """
        best, compared = log_prob.amax(dim=1), log_prob
        if remaining is not None:
            compared = log_prob.masked_fill(remaining > 0, -math.inf)
        if self.options.stopping == "exact":  # upper bound: same log p at the length limit, without coverage penalty
            bound = self.score(best, limit)
        elif coverage is None:
            bound = self.score(compared.amax(dim=1), length)
        else:
            bound = self.score(compared, length, coverage).max(dim=1).values
        is_enough = finished["score"][:, self.options.n_best - 1] >= bound
        has_finished = ~finished["score"][:, self.options.n_best - 1].isneginf()
        return (is_enough & has_finished) | best.isneginf() | (limit <= length)

    def unfinished(
        self,
        log_prob: Tensor,
        node: Tensor,
        length: int | Tensor,
        coverage: Tensor | None = None,
        remaining: Tensor | None = None,
    ) -> Finished:
        """Return the unfinished hypotheses, best first.

        With `remaining`, the hypotheses with the fewest remaining tokens of terms come first.
        """
        scored_length = length.clamp(min=1) if isinstance(length, Tensor) else max(length, 1)
        score, order = self.score(log_prob, scored_length, coverage).sort(dim=1, descending=True, stable=True)
        if remaining is not None:
            remaining = remaining.gather(1, order).masked_fill(score.isneginf(), torch.iinfo(torch.long).max)
            by_terms = remaining.argsort(dim=1, stable=True)
            score, order = score.gather(1, by_terms), order.gather(1, by_terms)
        return {
            "score": score,
            "log_prob": log_prob.gather(1, order),
            "end": torch.zeros_like(score),
            "node": node.gather(1, order),
            "length": torch.zeros_like(order) + length,
            "finished": torch.zeros_like(score, dtype=torch.bool),
        }

    def results(self, finished: Finished, after: Finished, before: Finished) -> Finished:
        """Return the n best hypotheses of sources that are done.

        Finished hypotheses come first, followed by hypotheses that were truncated `after` the last step. For a source
        without any continuation, return its hypotheses `before` this step.
        """
        is_stuck = after["log_prob"][:, :1].isneginf() & finished["score"][:, :1].isneginf()
        before = {**before, "score": before["score"].masked_fill(~is_stuck, -math.inf)}
        parts = (finished, after, before)
        together = {key: torch.cat([part[key] for part in parts], dim=1) for key in finished}
        order = together["score"].isneginf().to(torch.int8).argsort(dim=1, stable=True)[:, : self.options.n_best]
        return {key: values.gather(1, order) for key, values in together.items()}


def no_finished(rows: int, beam: int, dtype: torch.dtype, device: torch.device) -> Finished:
    """Return empty positions for finished hypotheses."""
    empty: dict[str, tuple[float, torch.dtype]] = dict.fromkeys(("score", "log_prob", "end"), (-math.inf, dtype))
    empty |= {"node": (0, torch.long), "length": (0, torch.long), "finished": (False, torch.bool)}
    return {key: torch.full((rows, beam), value, dtype=kind, device=device) for key, (value, kind) in empty.items()}


# --- hypotheses -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hypothesis:
    """A sequence found by a search."""

    tokens: list[int]  # tokens with the forced prefix, without END
    finished: bool  # whether END was chosen; otherwise the hypothesis was truncated
    log_prob: float  # Σ log p of the tokens, and of END if finished
    score: float  # ranking score
    token_log_probs: list[float]  # log p of each token, and of END if finished
    attention: Tensor | None = None  # (T, S), on the CPU: attention weights of each token, and of END if finished


class Nodes:
    """The hypotheses of a search as a tree: each token is a node with a parent.

    Hypotheses share prefixes, so reordering the beam does not copy tokens. Only the final hypotheses are traced back to
    the root. Every step adds one node per row, and the ids of nodes are consecutive.
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
        """Store the attention weights (n, S) computed after reading these nodes (n,)."""
        self._attention.append((nodes, attention))

    @property
    def has_attention(self) -> bool:
        return bool(self._attention)

    def paths(self, last: Numbers, lengths: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return the paths of `lengths` (n,) tokens from the root to the nodes `last` (n,).

        The result contains tokens and log-probabilities (n, T), and nodes (n, 1 + T) that begin with the root.
        All rows are padded at the end.
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
        """Return the attention weights (T, S) after reading each list of nodes (T,), on the CPU."""
        read, attention = (torch.cat(part) for part in zip(*self._attention, strict=True))
        positions = torch.zeros(self.size, dtype=torch.long, device=read.device)
        positions[read] = torch.arange(len(read), device=read.device)
        weights = attention[positions[torch.cat(list(nodes)).to(read.device)]].float().cpu()
        return list(weights.split([len(part) for part in nodes]))


def collect(
    nodes: Nodes, results: Sequence[dict[str, Tensor]], sources: int, widths: Sequence[int] | None = None
) -> list[list[Hypothesis]]:
    """Build the hypotheses of each source, best first.

    Each of the `results` contains the `source` indices (b,) and, for their hypotheses (b, n), the
    last `node`, the `length` in tokens, `score`, `log_prob`, `end` (log p of END) and `finished`; a
    score of −∞ marks an empty position. Attention is cut to the source lengths `widths`.
    """
    merged = {key: torch.cat([part[key] for part in results]).cpu().numpy() for key in results[0]}  # faster in NumPy
    exists = ~np.isneginf(merged["score"])  # (B, n)
    owners = np.broadcast_to(merged.pop("source")[:, None], exists.shape)[exists].tolist()
    best = {key: values[exists] for key, values in merged.items()}
    tokens, log_probs, paths = nodes.paths(best["node"], best["length"])
    lengths, finished, ends, scores, sums = (
        best[key].tolist() for key in ("length", "finished", "end", "score", "log_prob")
    )
    attention: list[Tensor | None] = [None] * len(owners)
    if nodes.has_attention and owners:  # the attention of a token is stored at the node before the token
        all_nodes = torch.from_numpy(paths)
        before = [path[: length + done] for path, length, done in zip(all_nodes, lengths, finished, strict=True)]
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
    """The candidates (b, C) of the b active sources at one step, best first.

    A `total` of −∞ marks an empty position. Node ids are consecutive; the first ids are the roots of the sources.
    """

    length: int  # length of every candidate, in tokens
    source: Tensor  # (b,) indices in the batch
    parent: Tensor  # the node that the candidate continues
    token: Tensor
    token_log_prob: Tensor  # log p of the token
    total: Tensor  # Σ log p
    score: Tensor  # ranking score of the candidate if it ended here
    node: Tensor  # node of the candidate if it remains in the beam, else −1
    ended: Tensor  # whether the candidate was added to the finished hypotheses


class Recorder(Protocol):
    def step(self, step: SearchStep, /) -> None:
        """Receive the candidates of a step of a search."""
        ...
