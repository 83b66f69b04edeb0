"""The copy baseline: answer with the translation of the training sentence that looks most like the one asked for.

Whatever a model learns beyond looking up what it has seen shows in how far it is above this.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from seqloom.core.errors import DataError
from seqloom.data.examples import ParallelExample

SIZE = 3  # characters of a gram


def copy_baseline(train: Sequence[ParallelExample], sources: Sequence[str]) -> list[str]:
    """For each source the target of the training pair whose source is nearest; of equally near ones the first.

    Near is the cosine between the sets of character trigrams, each weighted by its rarity:
    cos(a, b) = Σ_{g ∈ a ∩ b} w_g² / (|a| |b|) with w_g = ln(N / n_g) + 1, n_g of N training sources having g.
    """
    if not train:
        raise DataError("The copy baseline needs at least one training pair.")
    postings = _postings([pair.source for pair in train])
    squares = {gram: (math.log(len(train) / len(rows)) + 1) ** 2 for gram, rows in postings.items()}
    lengths = np.zeros(len(train))
    for gram, rows in postings.items():
        lengths[rows] += squares[gram]
    inverse = 1 / np.sqrt(lengths)
    return [train[row].target for row in _nearest(sources, postings, squares, inverse)]


def _nearest(
    sources: Sequence[str], postings: dict[str, np.ndarray], squares: dict[str, float], inverse: np.ndarray
) -> Iterator[int]:
    scores = np.empty(len(inverse))
    for source in sources:
        scores[:] = 0
        for gram in sorted(_grams(source) & postings.keys()):  # sorted: sums must not depend on the order of a set
            scores[postings[gram]] += squares[gram]
        scores *= inverse
        yield int(scores.argmax())


def _postings(texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Each gram with the rows that have it, rising."""
    found: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        for gram in _grams(text):
            found.setdefault(gram, []).append(row)
    return {gram: np.array(rows) for gram, rows in sorted(found.items())}


def _grams(text: str) -> set[str]:
    """Runs of three characters, with a mark at both ends so that beginnings and ends count too."""
    marked = f"\n{text}\n"
    return {marked[start : start + SIZE] for start in range(max(1, len(marked) - SIZE + 1))}
