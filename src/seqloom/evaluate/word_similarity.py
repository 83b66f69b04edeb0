"""How good word vectors are: do their cosines rise with what people say of pairs of words, and do they solve analogies?

Words are looked up in any case, and a pair or question with a word that has no vector is left out: `coverage` is the
share that was asked. A figure without it says little, since frequent words are the easy ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqloom.evaluate.correlation import pearson_interval, ranks, spearman
from seqloom.evaluate.intervals import Interval, wilson
from seqloom.evaluate.word_space import WordSpace

AT_ONCE = 1 << 25  # cosines held at a time
LEAST = 10  # pairs or questions: of fewer, a figure says nothing


@dataclass(frozen=True)
class RatedPair:
    one: str
    other: str
    score: float  # what people said


@dataclass(frozen=True)
class Question:
    """a is to b as c is to d."""

    a: str
    b: str
    c: str
    d: str
    syntactic: bool


@dataclass(frozen=True)
class Judged:
    """A figure, how sure it is, and of how much."""

    value: float | None  # None where too little could be asked
    asked: int
    total: int
    interval: Interval | None = None

    @property
    def coverage(self) -> float:
        return self.asked / self.total if self.total else 0.0


def rated(space: WordSpace, pairs: Sequence[RatedPair]) -> Judged:
    """Spearman's ρ between cosines and what people said."""
    known = [
        (space.folded[p.one.casefold()], space.folded[p.other.casefold()], p.score) for p in pairs if _in(space, p)
    ]
    if len(known) < LEAST:
        return Judged(None, len(known), len(pairs))
    one, other = space.unit[[row[0] for row in known]], space.unit[[row[1] for row in known]]
    cosines, said = (one * other).sum(axis=1), [row[2] for row in known]
    interval = pearson_interval(ranks(cosines), ranks(said))
    return Judged(spearman(cosines, said), len(known), len(pairs), interval)


def _in(space: WordSpace, pair: RatedPair) -> bool:
    return pair.one.casefold() in space.folded and pair.other.casefold() in space.folded


def analogies(space: WordSpace, questions: Sequence[Question]) -> dict[str, Judged]:
    """The share of analogies solved: `semantic`, `syntactic` and of all."""
    known = [q for q in questions if all(word.casefold() in space.folded for word in (q.a, q.b, q.c, q.d))]
    right = _solved(space, known)
    kinds = np.array([question.syntactic for question in known], dtype=bool)
    parts = {"semantic": ~kinds, "syntactic": kinds, "": np.ones(len(known), dtype=bool)}
    totals = {"syntactic": sum(q.syntactic for q in questions), "": len(questions)}
    totals["semantic"] = totals[""] - totals["syntactic"]
    return {name: _share(right[chosen], totals[name]) for name, chosen in parts.items()}


def _share(right: Any, total: int) -> Judged:
    if len(right) < LEAST:
        return Judged(None, len(right), total)
    return Judged(float(right.mean()), len(right), total, wilson(int(right.sum()), len(right)))


def _solved(space: WordSpace, questions: Sequence[Question]) -> Any:
    """Which questions are answered right. Words that differ in their case alone are one: the most frequent."""
    candidates = np.array(sorted(space.folded.values()))
    unit = space.unit[candidates]  # (C, D)
    row = {int(place): number for number, place in enumerate(candidates)}
    asked = np.array(
        [[row[space.folded[word.casefold()]] for word in (q.a, q.b, q.c, q.d)] for q in questions], dtype=np.int64
    ).reshape(-1, 4)
    right = np.zeros(len(asked), dtype=bool)
    size = max(1, AT_ONCE // len(candidates))
    for first in range(0, len(asked), size):
        part = asked[first : first + size]
        a, b, c = (unit[part[:, side]] for side in range(3))
        cosines = (b - a + c) @ unit.T  # (Q, C), but for the length of what is asked, which changes no order
        np.put_along_axis(cosines, part[:, :3], -np.inf, axis=1)
        right[first : first + size] = cosines.argmax(axis=1) == part[:, 3]
    return right


def measure(
    space: WordSpace, similarity: Mapping[str, Sequence[RatedPair]], questions: Sequence[Question]
) -> dict[str, Judged]:
    """All figures, by name."""
    found = {name: rated(space, pairs) for name, pairs in similarity.items()}
    if questions:
        solved = analogies(space, questions)
        found |= {f"analogies_{kind}" if kind else "analogies": judged for kind, judged in solved.items()}
    return found


def as_metrics(judged: Iterable[tuple[str, Judged]]) -> dict[str, float]:
    """Plain numbers: each figure that could be had, and its coverage."""
    made: dict[str, float] = {}
    for name, one in judged:
        if one.value is not None:
            made[name] = one.value
        made[f"{name}_coverage"] = one.coverage
    return made
