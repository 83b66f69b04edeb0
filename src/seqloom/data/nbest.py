"""n-best lists as Moses writes them, one candidate a line:

    0 ||| das ist ein Haus ||| -1.23
    0 ||| dies ist ein Haus ||| LM0= -12.3 TM0= -4.5 ||| -2.01
    1 ||| …

The number of the source line, from 0 and in order; the text; then anything, of which the last field that is a single
number is the score.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from seqloom.core.errors import DataError
from seqloom.core.words import shown
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
