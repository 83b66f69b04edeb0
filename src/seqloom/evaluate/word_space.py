"""Words as points: which lie near a word, which stands to c as b stands to a, and how good that is.

cos(x, y) = x · y / (‖x‖ ‖y‖)
a : b = c : ?        the word w, none of the three, with the largest cos(w, b − a + c), a, b, c of length 1 (3CosAdd)

Word vectors are measured by pairs of words that people rated, and by analogies. There words are
looked up in any case, and a pair or question with a word that has no vector is left out: `coverage`
is the share that was asked. A metric without it says little, since frequent words are the easy
ones.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import counted, shown
from seqloom.evaluate.correlation import pearson_interval, ranks, spearman
from seqloom.evaluate.intervals import Interval, wilson

AT_ONCE = 1 << 25  # cosines held at a time
MIN_SCORED = 10  # pairs or questions; a metric of fewer is not reported
Array = NDArray[np.float32]


@dataclass(frozen=True)
class NearWord:
    word: str
    score: float  # the cosine


@dataclass(frozen=True)
class WordSpace:
    """Words, the more frequent first, and their vectors; `lowercase` says that all words were made so."""

    words: Sequence[str]
    vectors: Array  # (V, D)
    lowercase: bool = False
    name: str = "this model"

    def __post_init__(self) -> None:
        if len(self.words) < 2:
            raise DataError(f"{self.name} has vectors of {counted(len(self.words), 'word')}: two or more are needed.")

    @cached_property
    def unit(self) -> Array:
        """The vectors, each of length 1; one that is zero stays so."""
        lengths = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        scaled: Array = (self.vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
        return scaled

    @cached_property
    def places(self) -> dict[str, int]:
        return {word: place for place, word in reversed(list(enumerate(self.words)))}  # of twins the first

    @cached_property
    def folded(self) -> dict[str, int]:
        """Where a word stands whatever its case; of several spellings the most frequent."""
        return {word.casefold(): place for place, word in reversed(list(enumerate(self.words)))}

    def place(self, word: str) -> int:
        """Return where a word stands; one that is not there is refused, with what is spelled like it."""
        for spelling in (word, word.lower()) if self.lowercase else (word,):
            if spelling in self.places:
                return self.places[spelling]
        other_case = [self.words[self.folded[word.casefold()]]] if word.casefold() in self.folded else []
        near = [one for one in self.words if abs(len(one) - len(word)) <= 2 and one[:1].lower() == word[:1].lower()]
        close = dict.fromkeys([*other_case, *difflib.get_close_matches(word, near, n=5, cutoff=0.7)])
        nothing = f", and nothing of its {counted(len(self.words), 'word')} is spelled like it."
        instead = f"; did you mean {', '.join(close)}?" if close else nothing
        raise UsageError(f"{self.name} has no vector of {shown(word)}{instead}")

    def vector(self, word: str) -> Array:
        row: Array = self.vectors[self.place(word)]
        return row

    def similar(self, word: str, top: int = 10) -> list[NearWord]:
        """Return the words whose vectors point most nearly the same way, best first."""
        place = self.place(word)
        return self._best(self.unit[place], [place], top)

    def analogy(self, a: str, b: str, c: str, top: int = 5) -> list[NearWord]:
        """Return what stands to c as b stands to a, best first."""
        places = [self.place(word) for word in (a, b, c)]
        x, y, z = self.unit[places]
        return self._best(y - x + z, places, top)

    def _best(self, direction: Array, besides: Sequence[int], top: int) -> list[NearWord]:
        if top < 1:
            raise UsageError(f"top must be at least 1, got {top}.")
        length = np.linalg.norm(direction)
        scores = self.unit @ (direction / (length if length > 0 else 1))
        scores[list(besides)] = -np.inf
        order = np.argsort(-scores, kind="stable")[: min(top, len(scores) - len(set(besides)))]
        return [NearWord(self.words[place], float(scores[place])) for place in order]

    def look_up(self, *words: str) -> list[int] | None:
        """Where words stand whatever their case; None if one has no vector."""
        found = [self.folded.get(word.casefold()) for word in words]
        return None if None in found else [place for place in found if place is not None]


# --- against what people say -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RatedPair:
    one: str
    other: str
    score: float  # what people said


@dataclass(frozen=True)
class Analogy:
    """a is to b as c is to d."""

    a: str
    b: str
    c: str
    d: str
    syntactic: bool


@dataclass(frozen=True)
class Judged:
    """A metric, its interval, and how much was asked."""

    value: float | None  # None where too little could be asked
    asked: int
    total: int
    interval: Interval | None = None

    @property
    def coverage(self) -> float:
        return self.asked / self.total if self.total else 0.0


def rate_pairs(space: WordSpace, pairs: Sequence[RatedPair]) -> Judged:
    """Spearman's ρ between cosines and what people said."""
    known = [(places, pair.score) for pair in pairs if (places := space.look_up(pair.one, pair.other)) is not None]
    if len(known) < MIN_SCORED:
        return Judged(None, len(known), len(pairs))
    one, other = (space.unit[[places[side] for places, _ in known]] for side in range(2))
    cosines, said = (one * other).sum(axis=1), [score for _, score in known]
    interval = pearson_interval(ranks(cosines), ranks(said))
    return Judged(spearman(cosines, said), len(known), len(pairs), interval)


def analogies(space: WordSpace, questions: Sequence[Analogy]) -> dict[str, Judged]:
    """The share of analogies solved: `semantic`, `syntactic` and of all.

    Words that differ in their case alone are one: the most frequent.
    """
    found = [(q, places) for q in questions if (places := space.look_up(q.a, q.b, q.c, q.d)) is not None]
    candidates = np.array(sorted(space.folded.values()))
    unit = space.unit[candidates]  # (C, D)
    asked = np.searchsorted(candidates, np.array([places for _, places in found], dtype=np.int64).reshape(-1, 4))
    right = np.zeros(len(asked), dtype=bool)
    size = max(1, AT_ONCE // len(candidates))
    for first in range(0, len(asked), size):
        part = asked[first : first + size]
        a, b, c = (unit[part[:, side]] for side in range(3))
        cosines = (b - a + c) @ unit.T  # (Q, C), but for the length of what is asked, which changes no order
        np.put_along_axis(cosines, part[:, :3], -np.inf, axis=1)
        right[first : first + size] = cosines.argmax(axis=1) == part[:, 3]
    kinds = np.array([question.syntactic for question, _ in found], dtype=bool)
    parts = {"semantic": right[~kinds], "syntactic": right[kinds], "": right}
    syntactic = sum(question.syntactic for question in questions)
    totals = {"semantic": len(questions) - syntactic, "syntactic": syntactic, "": len(questions)}
    return {
        name: Judged(None, len(solved), totals[name])
        if len(solved) < MIN_SCORED
        else Judged(float(solved.mean()), len(solved), totals[name], wilson(int(solved.sum()), len(solved)))
        for name, solved in parts.items()
    }


def measure(
    space: WordSpace, similarity: Mapping[str, Sequence[RatedPair]], questions: Sequence[Analogy]
) -> dict[str, Judged]:
    """All metrics, by name."""
    found = {name: rate_pairs(space, pairs) for name, pairs in similarity.items()}
    if questions:
        solved = analogies(space, questions)
        found |= {f"analogies_{kind}" if kind else "analogies": judged for kind, judged in solved.items()}
    return found


def as_metrics(judged: Iterable[tuple[str, Judged]]) -> dict[str, float]:
    """Plain numbers: each metric that could be computed, and its coverage."""
    metrics: dict[str, float] = {}
    for name, one in judged:
        if one.value is not None:
            metrics[name] = one.value
        metrics[f"{name}_coverage"] = one.coverage
    return metrics
