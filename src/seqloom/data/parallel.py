"""Candidate translations: n-best lists as Moses writes them, and the copy baseline."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.examples import ParallelExample
from seqloom.data.files import read_lines

Scored = tuple[str, float | None]  # a text, and its score if it has one


def read_nbest(path: Path) -> Iterator[tuple[int, list[Scored]]]:
    """For each source line that has any, its number, from 0, and its candidates in the order of the file."""
    last = -1
    for number, group in groupby(_entries(path), key=lambda entry: entry[0]):
        if number <= last:
            raise DataError(f"{path} must be in the order of its source lines, but {number} comes after {last}.")
        last = number
        yield number, [given for _, given in group]


def lists_for(lines: Iterable[str], path: Path) -> Iterator[tuple[str, list[Scored]]]:
    """Each source line with its candidates. A line with words must have some, and a candidate must have a line."""
    groups = read_nbest(path)
    waiting = next(groups, None)
    count = 0
    for count, line in enumerate(lines, start=1):
        if waiting is not None and waiting[0] == count - 1:
            yield line, waiting[1]
            waiting = next(groups, None)
        elif line.strip():
            raise DataError(f"Line {count:,} of the input has no candidates in {path}: none is numbered {count - 1}.")
        else:
            yield line, []
    if waiting is not None:
        raise DataError(
            f"{path} has candidates numbered {waiting[0]}, from 0, but the input has only {count:,} lines. "
            "Give the lines that the list was made from."
        )


def _entries(path: Path) -> Iterator[tuple[int, Scored]]:
    for place, line in enumerate(read_lines(path), start=1):
        number, *fields = (field.strip() for field in line.split("|||"))
        if not (fields and number.isascii() and number.isdigit()):
            raise DataError(
                f"Line {place:,} of {path} must be `number ||| text ||| score`, as Moses writes it; got {shown(line)}."
            )
        scores = [score for score in map(_number, fields[1:]) if score is not None]
        yield int(number), (fields[0], scores[-1] if scores else None)


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


# --- copy baseline --------------------------------------------------------------------------------


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
