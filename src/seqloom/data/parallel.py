"""Candidate translations: n-best lists as Moses writes them, and the copy baseline.

    0 ||| das ist ein Haus ||| -1.23
    0 ||| dies ist ein Haus ||| LM0= -12.3 TM0= -4.5 ||| -2.01
    1 ||| …

A candidate a line: the number of the source line, from 0 and in order; the text; then anything, of
which the last field that is a single number is the score.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.examples import ParallelExample
from seqloom.data.files import read_lines

Scored = tuple[str, float | None]  # a text, and its score if it has one
GRAM_SIZE = 3  # characters of a gram


def read_nbest(path: Path) -> Iterator[tuple[int, list[Scored]]]:
    """Yield the number of each source line that has candidates, from 0, and these in the order of the file."""
    last, candidates = -1, list[Scored]()
    for place, line in enumerate(read_lines(path), start=1):
        text, *fields = (field.strip() for field in line.split("|||"))
        if not (fields and text.isascii() and text.isdigit()):
            raise DataError(
                f"Line {place:,} of {path} must be `number ||| text ||| score`, as Moses writes it; got {shown(line)}."
            )
        number, score = int(text), None
        for field in fields[1:]:
            score = _parse_score(field, score)
        if number < last:
            raise DataError(f"{path} must be in the order of its source lines, but {number} comes after {last}.")
        if number > last:
            if candidates:
                yield last, candidates
            last, candidates = number, []
        candidates.append((fields[0], score))
    yield last, candidates


def _parse_score(field: str, otherwise: float | None) -> float | None:
    try:
        score = float(field)
    except ValueError:
        return otherwise
    return score if math.isfinite(score) else otherwise


def lists_for(lines: Iterable[str], path: Path) -> Iterator[tuple[str, list[Scored]]]:
    """Yield each source line with its candidates: a line with words must have some, and a candidate a line."""
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


def copy_baseline(train: Sequence[ParallelExample], sources: Sequence[str]) -> list[str]:
    """Return for each source the target of the training pair whose source is nearest; of equally near ones the first.

    Whatever a model learns beyond looking up what it has seen shows in how far it is above this. Near is the cosine
    between the sets of character trigrams, each weighted by its rarity:
    cos(a, b) = Σ_{g ∈ a ∩ b} w_g² / (|a| |b|) with w_g = ln(N / n_g) + 1, n_g of N training sources having g.
    """
    if not train:
        raise DataError("The copy baseline needs at least one training pair.")
    rows_of: dict[str, list[int]] = {}  # each gram with the rows that have it, rising
    for row, pair in enumerate(train):
        for gram in _grams(pair.source):
            rows_of.setdefault(gram, []).append(row)
    rows = {gram: np.array(own) for gram, own in sorted(rows_of.items())}
    squares = {gram: (math.log(len(train) / len(own)) + 1) ** 2 for gram, own in rows.items()}
    lengths = np.zeros(len(train))
    for gram, own in rows.items():
        lengths[own] += squares[gram]
    inverse, targets = 1 / np.sqrt(lengths), []
    for source in sources:
        scores = np.zeros(len(train))
        for gram in sorted(_grams(source) & rows.keys()):  # sorted: sums must not depend on the order of a set
            scores[rows[gram]] += squares[gram]
        targets.append(train[int((scores * inverse).argmax())].target)
    return targets


def _grams(text: str) -> set[str]:
    """Return runs of three characters, with a mark at both ends so that beginnings and ends count too."""
    marked = f"\n{text}\n"
    return {marked[start : start + GRAM_SIZE] for start in range(max(1, len(marked) - GRAM_SIZE + 1))}
