"""Texts that lie near a query: sentence search by vectors.

    s(q, x) = v(q) · v(x) / (‖v(q)‖ ‖v(x)‖)          v as `seqloom.api.embedding` has it

Texts are read a window at a time, and of each window only what may be among the best is kept: there may be as many as
one likes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqloom.api.embedding import Array, TextPooling, check_pooling, embed
from seqloom.api.lines import check_sizes, lines_of, windows
from seqloom.core.errors import DataError

EQUAL = 6  # decimals in which scores must differ: a line has the last digits of those it was read with


@dataclass(frozen=True)
class Near:
    """A text near a query."""

    score: float  # the cosine, from -1 to 1
    line: int  # where it came, counted from 1
    text: str


@dataclass(frozen=True)
class Found:
    """A query, and the texts nearest to it, best first; of texts equally near, those that came first."""

    query: str
    best: list[Near]
    texts: int  # how many it was compared with
    blank: int = 0  # how many more there were, which are like nothing


def similar(
    trained: Any,
    queries: str | Iterable[str],
    texts: Iterable[str],
    *,
    top: int = 5,
    pooling: TextPooling = "mean",
    batch_size: int = 32,
    window: int = 1024,
) -> list[Found]:
    """Each query with the `top` texts whose cosines with it are largest."""
    check_sizes(top=top, batch_size=batch_size, window=window)
    check_pooling(pooling)
    asked = list(lines_of(queries))
    if blank := [number for number, query in enumerate(asked, start=1) if not query.strip()]:
        raise DataError(f"A query must not be blank; number {blank[0]:,} of {len(asked):,} is.")

    def vectors(lines: Sequence[str]) -> Array:
        return embed(trained, lines, pooling, normalize=True, batch_size=batch_size, window=window)

    wanted = vectors(asked)  # (Q, H)
    best: list[list[Near]] = [[] for _ in asked]
    seen = read = 0
    for lines in windows(texts, window):
        kept = [(seen + place, line) for place, line in enumerate(lines, start=1) if line.strip()]
        seen, read = seen + len(lines), read + len(kept)
        if kept:
            scores = wanted @ vectors([line for _, line in kept]).T  # (Q, N)
            best = [_merged(own, row, kept, top) for own, row in zip(best, scores, strict=True)]
    return [Found(query, own, read, seen - read) for query, own in zip(asked, best, strict=True)]


def _merged(best: list[Near], scores: Array, lines: Sequence[tuple[int, str]], top: int) -> list[Near]:
    """The best of those before and of those that came now. Sorting is stable: who came first stands first."""
    chosen = np.argsort(-scores.round(EQUAL), kind="stable")[:top]
    new = [Near(float(scores[place]), *lines[place]) for place in chosen]
    return sorted([*best, *new], key=lambda near: -round(near.score, EQUAL))[:top]
