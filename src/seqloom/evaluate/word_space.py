"""Nearest neighbours and analogies of word vectors, and their evaluation.

cos(x, y) = x · y / (‖x‖ ‖y‖)
a : b = c : ?   the word w, other than a, b and c, with the largest cos(w, b − a + c) for unit vectors (3CosAdd)

Word vectors are evaluated on rated word pairs and on analogies. Words are looked up regardless of case.
Pairs and questions with an unknown word are skipped; `coverage` is the fraction of pairs or questions
that were evaluated. Always report the coverage, because frequent words are easier.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import format_count, format_value
from seqloom.evaluate.correlation import pearson_interval, ranks, spearman
from seqloom.evaluate.intervals import Interval, wilson

MAX_COSINES = 1 << 25  # maximum number of cosines in memory
MIN_SCORED = 10  # number of pairs or questions; with fewer, the metric is not reported
Array = NDArray[np.float32]


@dataclass(frozen=True)
class NearWord:
    word: str
    score: float  # the cosine


@dataclass(frozen=True)
class WordSpace:
    """Words in descending order of frequency, and their vectors; `lowercase` is True if all words are in lower case."""

    words: Sequence[str]
    vectors: Array  # (V, D)
    lowercase: bool = False
    name: str = "this model"

    def __post_init__(self) -> None:
        if len(self.words) < 2:
            raise DataError(f"At least two word vectors are needed, but {self.name} has {len(self.words)}.")

    @cached_property
    def unit(self) -> Array:
        """The vectors scaled to length 1; zero vectors stay zero."""
        lengths = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        scaled: Array = (self.vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
        return scaled

    @cached_property
    def indices(self) -> dict[str, int]:
        """The index of each word; a duplicate word has the index of its first occurrence."""
        return {word: index for index, word in reversed(list(enumerate(self.words)))}

    @cached_property
    def folded(self) -> dict[str, int]:
        """The index of each word regardless of case, which is the index of the most frequent spelling."""
        return {word.casefold(): index for index, word in reversed(list(enumerate(self.words)))}

    def index(self, word: str) -> int:
        """Return the index of a word; the error for an unknown word suggests similar spellings."""
        for spelling in (word, word.lower()) if self.lowercase else (word,):
            if spelling in self.indices:
                return self.indices[spelling]
        other_case = [self.words[self.folded[word.casefold()]]] if word.casefold() in self.folded else []
        start = word[:1].lower()
        similar = [other for other in self.words if abs(len(other) - len(word)) <= 2 and other[:1].lower() == start]
        close = dict.fromkeys([*other_case, *difflib.get_close_matches(word, similar, n=5, cutoff=0.7)])
        no_match = f", and none of its {format_count(len(self.words), 'word')} has a similar spelling."
        suggestion = f"; did you mean {', '.join(close)}?" if close else no_match
        raise UsageError(f"{self.name} has no vector of {format_value(word)}{suggestion}")

    def vector(self, word: str) -> Array:
        """Return the vector of a word."""
        row: Array = self.vectors[self.index(word)]
        return row

    def similar(self, word: str, top: int = 10) -> list[NearWord]:
        """Return the words with the most similar vectors, best first."""
        index = self.index(word)
        return self._nearest(self.unit[index], [index], top)

    def analogy(self, a: str, b: str, c: str, top: int = 5) -> list[NearWord]:
        """Return the words that are to c as b is to a, best first."""
        indices = [self.index(word) for word in (a, b, c)]
        x, y, z = self.unit[indices]
        return self._nearest(y - x + z, indices, top)

    def _nearest(self, direction: Array, excluded: Sequence[int], top: int) -> list[NearWord]:
        if top < 1:
            raise UsageError(f"top must be at least 1; got {top}.")
        length = np.linalg.norm(direction)
        scores = self.unit @ (direction / (length if length > 0 else 1))
        scores[list(excluded)] = -np.inf
        order = np.argsort(-scores, kind="stable")[: min(top, len(scores) - len(set(excluded)))]
        return [NearWord(self.words[index], float(scores[index])) for index in order]

    def look_up(self, *words: str) -> list[int] | None:
        """Return the indices of words regardless of case, or None if a word is unknown."""
        indices = [self.folded.get(word.casefold()) for word in words]
        return None if None in indices else [index for index in indices if index is not None]


# --- evaluation ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RatedPair:
    first: str
    second: str
    score: float  # mean human rating


@dataclass(frozen=True)
class Analogy:
    """a is to b as c is to d."""

    a: str
    b: str
    c: str
    d: str
    syntactic: bool


@dataclass(frozen=True)
class WordScore:
    """A metric with its interval and coverage."""

    value: float | None  # None if there are too few known questions
    evaluated: int
    total: int
    interval: Interval | None = None

    @property
    def coverage(self) -> float:
        return self.evaluated / self.total if self.total else 0.0


def rate_pairs(space: WordSpace, pairs: Sequence[RatedPair]) -> WordScore:
    """Compute Spearman's ρ between cosines and human ratings."""
    known = [(indices, pair.score) for pair in pairs if (indices := space.look_up(pair.first, pair.second)) is not None]
    if len(known) < MIN_SCORED:
        return WordScore(None, len(known), len(pairs))
    first, second = (space.unit[[indices[side] for indices, _ in known]] for side in range(2))
    cosines, ratings = (first * second).sum(axis=1), [score for _, score in known]
    interval = pearson_interval(ranks(cosines), ranks(ratings))
    return WordScore(spearman(cosines, ratings), len(known), len(pairs), interval)


def analogies(space: WordSpace, questions: Sequence[Analogy]) -> dict[str, WordScore]:
    """Compute the accuracy of `semantic`, `syntactic` and all analogies.

    If words differ only in case, the most frequent word is used.
    """
    known = [(q, indices) for q in questions if (indices := space.look_up(q.a, q.b, q.c, q.d)) is not None]
    candidates = np.array(sorted(space.folded.values()))
    unit = space.unit[candidates]  # (C, D)
    rows = np.searchsorted(candidates, np.array([indices for _, indices in known], dtype=np.int64).reshape(-1, 4))
    correct = np.zeros(len(rows), dtype=bool)
    size = max(1, MAX_COSINES // len(candidates))
    for first in range(0, len(rows), size):
        part = rows[first : first + size]
        a, b, c = (unit[part[:, side]] for side in range(3))
        cosines = (b - a + c) @ unit.T  # (Q, C) up to a factor per row that does not change the order
        np.put_along_axis(cosines, part[:, :3], -np.inf, axis=1)
        correct[first : first + size] = cosines.argmax(axis=1) == part[:, 3]
    is_syntactic = np.array([question.syntactic for question, _ in known], dtype=bool)
    parts = {"semantic": correct[~is_syntactic], "syntactic": correct[is_syntactic], "": correct}
    syntactic = sum(question.syntactic for question in questions)
    totals = {"semantic": len(questions) - syntactic, "syntactic": syntactic, "": len(questions)}
    return {
        name: WordScore(None, len(solved), totals[name])
        if len(solved) < MIN_SCORED
        else WordScore(float(solved.mean()), len(solved), totals[name], wilson(int(solved.sum()), len(solved)))
        for name, solved in parts.items()
    }


def measure(
    space: WordSpace, similarity: Mapping[str, Sequence[RatedPair]], questions: Sequence[Analogy]
) -> dict[str, WordScore]:
    """Compute all metrics by name."""
    scores = {name: rate_pairs(space, pairs) for name, pairs in similarity.items()}
    if questions:
        for kind, score in analogies(space, questions).items():
            scores[f"analogies_{kind}" if kind else "analogies"] = score
    return scores


def as_metrics(scores: Iterable[tuple[str, WordScore]]) -> dict[str, float]:
    """Return the values that could be computed and the coverage of each metric."""
    metrics: dict[str, float] = {}
    for name, score in scores:
        if score.value is not None:
            metrics[name] = score.value
        metrics[f"{name}_coverage"] = score.coverage
    return metrics
