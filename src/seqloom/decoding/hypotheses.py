"""The hypotheses of a search as one tree: each token is a node that knows the node before it. And what a search shows
a `Recorder` of its steps.

Hypotheses share their beginnings, so nothing is copied when the beam is reordered; only those that are wanted in the
end are walked back to the root.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[Any]


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
    """The tree, grown by as many nodes as there are rows at every step. Node ids are places in the order of arrival."""

    def __init__(self) -> None:
        self._grown: list[tuple[Tensor, Tensor, Tensor]] = []
        self._attention: list[tuple[Tensor, Tensor]] = []
        self._size = 0

    @property
    def size(self) -> int:
        return self._size

    def grow(self, tokens: Tensor, parents: Tensor, log_probs: Tensor) -> Tensor:
        """Add nodes (n,) and say their ids."""
        self._grown.append((tokens, parents, log_probs))
        first, self._size = self._size, self._size + len(tokens)
        return torch.arange(first, self._size, device=tokens.device)

    def attend(self, nodes: Tensor, attention: Tensor) -> None:
        """Where the model looked (n, S) after reading these nodes (n,): the attention of what comes after them."""
        self._attention.append((nodes, attention))

    @property
    def attended(self) -> bool:
        return bool(self._attention)

    def paths(self, last: Numbers, lengths: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The paths from the root to the nodes `last` (n,), each `lengths` (n,) tokens long.

        Tokens and log-probabilities (n, T), and the nodes (n, 1 + T) with the root in front; filled up at the end.
        """
        tokens, parents, log_probs = (torch.cat(part).cpu().numpy() for part in zip(*self._grown, strict=True))
        longest = int(lengths.max())
        nodes = np.zeros((len(last), longest + 1), dtype=np.int64)
        node = last
        for place in range(longest, -1, -1):
            inside = lengths >= place
            nodes[:, place] = np.where(inside, node, 0)
            node = np.where(inside, parents[node], node)
        return tokens[nodes[:, 1:]], log_probs[nodes[:, 1:]], nodes

    def attention_after(self, nodes: Sequence[Tensor]) -> list[Tensor]:
        """Of each list of nodes (T,), where the model looked after reading them: (T, S), on the CPU."""
        read, attention = (torch.cat(part) for part in zip(*self._attention, strict=True))
        place = torch.zeros(self._size, dtype=torch.long, device=read.device)
        place[read] = torch.arange(len(read), device=read.device)
        wanted = attention[place[torch.cat(list(nodes)).to(read.device)]].float().cpu()
        return list(wanted.split([len(part) for part in nodes]))


def collect(
    nodes: Nodes, found: Sequence[dict[str, Tensor]], sources: int, widths: Sequence[int] | None = None
) -> list[list[Hypothesis]]:
    """The hypotheses of each source, best first.

    `found` holds, for some of the sources each, `source` (b,) and of their hypotheses (b, n), best first, the last
    `node`, the `length` in tokens, `score`, `log_prob`, `end` (log p of END) and whether they are `finished`; a score
    of −∞ is an empty place. `widths` are the sources' own lengths, to which their attention is cut.
    """
    merged = {key: torch.cat([part[key] for part in found]).cpu().numpy() for key in found[0]}  # NumPy is the faster
    there = ~np.isneginf(merged["score"])  # (B, n)
    owners = np.broadcast_to(merged.pop("source")[:, None], there.shape)[there].tolist()
    best = {key: values[there] for key, values in merged.items()}
    tokens, log_probs, paths = nodes.paths(best["node"], best["length"])
    lengths, finished, ends, scores, sums = (
        best[key].tolist() for key in ("length", "finished", "end", "score", "log_prob")
    )
    looked: list[Tensor | None] = [None] * len(owners)
    if nodes.attended and owners:  # a token's attention was had at the node before it
        every = torch.from_numpy(paths)
        before = [path[: length + done] for path, length, done in zip(every, lengths, finished, strict=True)]
        looked = [
            weights if widths is None else weights[:, : widths[owner]]
            for weights, owner in zip(nodes.attention_after(before), owners, strict=True)
        ]
    results: list[list[Hypothesis]] = [[] for _ in range(sources)]
    rows = zip(owners, tokens.tolist(), log_probs.tolist(), lengths, finished, ends, sums, scores, looked, strict=True)
    for owner, ids, own, length, done, end, log_prob, score, weights in rows:
        values = own[:length] + [end] * done
        results[owner].append(Hypothesis(ids[:length], done, log_prob, score, values, weights))
    return results


@dataclass(frozen=True)
class SearchStep:
    """The continuations that were compared at one step, (b, C) of the b sources still searched, best first.

    One whose `total` is −∞ is an empty place. Nodes are numbered as they come, those of the sources first, which are
    their roots.
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
