"""Candidate translations: n-best lists in the format of Moses, and the copy baseline.

    0 ||| das ist ein Haus ||| -1.23
    0 ||| dies ist ein Haus ||| LM0= -12.3 TM0= -4.5 ||| -2.01
    1 ||| …

Each line is a candidate: the number of the source line, counted from 0 and ascending, the text, and optional
fields. The last field that is a single number is the score.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from seqloom.core.errors import DataError
from seqloom.core.words import format_value
from seqloom.data.examples import ParallelExample
from seqloom.data.files import read_lines

ScoredText = tuple[str, float | None]  # a text, and its score if it has one
GRAM_SIZE = 3  # characters


def read_nbest(path: Path) -> Iterator[tuple[int, list[ScoredText]]]:
    """Yield the number of each source line with candidates, counted from 0, and its candidates."""
    last, candidates = -1, list[ScoredText]()
    for row, line in enumerate(read_lines(path), start=1):
        text, *fields = (field.strip() for field in line.split("|||"))
        if not (fields and text.isascii() and text.isdigit()):
            raise DataError(
                f"Line {row:,} of {path} must be `number ||| text ||| score`, the format of Moses; got "
                f"{format_value(line)}."
            )
        number, score = int(text), None
        for field in fields[1:]:
            score = _parse_score(field, score)
        if number < last:
            raise DataError(f"{path} must be sorted by source line, but {number} comes after {last}.")
        if number > last:
            if candidates:
                yield last, candidates
            last, candidates = number, []
        candidates.append((fields[0], score))
    yield last, candidates


def _parse_score(field: str, default: float | None) -> float | None:
    try:
        score = float(field)
    except ValueError:
        return default
    return score if math.isfinite(score) else default


def candidates_of(lines: Iterable[str], path: Path) -> Iterator[tuple[str, list[ScoredText]]]:
    """Yield each source line with its candidates; raise DataError unless lines with text and candidates match."""
    groups = read_nbest(path)
    group = next(groups, None)
    count = 0
    for count, line in enumerate(lines, start=1):
        if group is not None and group[0] == count - 1:
            yield line, group[1]
            group = next(groups, None)
        elif line.strip():
            raise DataError(f"Line {count:,} of the input has no candidates in {path}: none is numbered {count - 1}.")
        else:
            yield line, []
    if group is not None:
        raise DataError(
            f"{path} has candidates numbered {group[0]} (counted from 0), but the input has only {count:,} lines. "
            "Use the source file of the list."
        )


def copy_baseline(train: Sequence[ParallelExample], sources: Sequence[str]) -> list[str]:
    """Return for each source the target of the nearest training source; ties go to the first.

    A model that generalizes exceeds this baseline. Similarity is the cosine between the sets of character trigrams,
    weighted by inverse document frequency:
    cos(a, b) = Σ_{g ∈ a ∩ b} w_g² / (|a| |b|) with w_g = ln(N / n_g) + 1, where n_g of N training sources contain g.
    """
    if not train:
        raise DataError("The copy baseline needs at least one training pair.")
    rows_of: dict[str, list[int]] = {}  # ascending rows that contain a gram
    for row, pair in enumerate(train):
        for gram in _grams(pair.source):
            rows_of.setdefault(gram, []).append(row)
    rows = {gram: np.array(indices) for gram, indices in sorted(rows_of.items())}
    squares = {gram: (math.log(len(train) / len(indices)) + 1) ** 2 for gram, indices in rows.items()}
    lengths = np.zeros(len(train))
    for gram, indices in rows.items():
        lengths[indices] += squares[gram]
    inverse, targets = 1 / np.sqrt(lengths), []
    for source in sources:
        scores = np.zeros(len(train))
        for gram in sorted(_grams(source) & rows.keys()):  # sorted, so that sums do not depend on set order
            scores[rows[gram]] += squares[gram]
        targets.append(train[int((scores * inverse).argmax())].target)
    return targets


def _grams(text: str) -> set[str]:
    """Return the character trigrams of a text, with a delimiter at both ends."""
    delimited = f"\n{text}\n"
    return {delimited[start : start + GRAM_SIZE] for start in range(max(1, len(delimited) - GRAM_SIZE + 1))}
