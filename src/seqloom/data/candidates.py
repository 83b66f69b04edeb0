"""Candidate translations: n-best lists in the format of Moses.

    0 ||| das ist ein Haus ||| -1.23
    0 ||| dies ist ein Haus ||| LM0= -12.3 TM0= -4.5 ||| -2.01
    1 ||| …

Each line is a candidate. A line contains the number of the source line, the text, and optional fields. The numbers
start at 0 and are in ascending order. The last field that is a single number is the score.
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from seqloom.core.errors import DataError
from seqloom.core.words import format_value
from seqloom.data.files import read_lines

ScoredText = tuple[str, float | None]  # a text and its score, or None if the list has no scores


def read_nbest(path: Path) -> Iterator[tuple[int, list[ScoredText]]]:
    """Yield the number of each source line that has candidates, counted from 0, and the candidates."""
    last, candidates = -1, list[ScoredText]()
    for line_number, line in enumerate(read_lines(path), start=1):
        number, *fields = (field.strip() for field in line.split("|||"))
        if not (fields and number.isascii() and number.isdigit()):
            raise DataError(
                f"Line {line_number:,} of {path} must be `number ||| text ||| score`, the format of Moses; got "
                f"{format_value(line)}."
            )
        source, score = int(number), None
        for field in fields[1:]:
            score = _parse_score(field, score)
        if source < last:
            raise DataError(f"{path} must be sorted by source line, but {source} comes after {last}.")
        if source > last:
            if candidates:
                yield last, candidates
            last, candidates = source, []
        candidates.append((fields[0], score))
    yield last, candidates


def _parse_score(field: str, default: float | None) -> float | None:
    """Return the number in a field, or the default if the field is not a finite number."""
    try:
        score = float(field)
    except ValueError:
        return default
    return score if math.isfinite(score) else default


def candidates_of(lines: Iterable[str], path: Path) -> Iterator[tuple[str, list[ScoredText]]]:
    """Yield each source line with its candidates.

    Raise DataError if a line with text has no candidates, or if a source line is missing.
    """
    groups = read_nbest(path)
    group = next(groups, None)
    count = 0
    for count, line in enumerate(lines, start=1):
        if group is not None and group[0] == count - 1:
            yield line, group[1]
            group = next(groups, None)
        elif line.strip():
            raise DataError(
                f"{path} must have candidates for line {count:,} of the input, numbered {count - 1} "
                f"(counted from 0), but has none."
            )
        else:
            yield line, []
    if group is not None:
        raise DataError(
            f"{path} has candidates numbered {group[0]} (counted from 0), but the input has only {count:,} lines. "
            "Use the source file of the list."
        )
