"""The strokes of a pen: sequences of points from pen-down to pen-up, and their JSON form.

    {"strokes": [[[0, 0], [3, 9], [6, 0]], [[1, 5], [5, 5]]], "text": "A", "writer": "7"}

A stroke is a list of points [x, y] or [x, y, t]; x increases to the right and y downwards, in any unit, and t is
ignored. The text and the writer are optional. A file contains one such object, a list of objects, or one object per
line (.jsonl).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError
from seqloom.core.words import format_value
from seqloom.data.files import decode_text, read_bytes
from seqloom.data.transcriptions import Signal, TranscribedExample

Points = NDArray[np.float64]  # (N, 2)
MAX_COORDINATE = 1e9  # maximum absolute value of a coordinate, so that sums of squares are finite
FORM = 'must be {"strokes": [[[x, y], …], …]}'


@dataclass(frozen=True, eq=False)
class Strokes(Signal):
    """The strokes of a writing, each with one point or more."""

    name: str
    strokes: tuple[Points, ...]

    def content(self) -> bytes:
        return b"".join(b"%d\n" % len(stroke) + stroke.tobytes() for stroke in self.strokes)

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """The smallest x and y and the largest x and y."""
        points = np.concatenate(self.strokes)
        (left, top), (right, bottom) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
        return left, top, right, bottom

    def to_json(self) -> list[list[list[float]]]:
        """Return the strokes as lists, rounded to a ten-thousandth."""
        return [np.round(stroke, 4).tolist() for stroke in self.strokes]


def parse_strokes(value: Any, name: str) -> Strokes:
    """Return strokes that are given as lists or arrays of points; raise `DataError` if they have another form."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence | np.ndarray):
        raise DataError(f"The strokes of {name} must be a list of lists of points [x, y]; got {format_value(value)}.")
    if len(value) == 0:
        raise DataError(f"{name} must have at least one stroke, but has none.")
    return Strokes(name, tuple(_parse_stroke(stroke, number, name) for number, stroke in enumerate(value, start=1)))


def _parse_stroke(value: Any, number: int, name: str) -> Points:
    """Return the points (N, 2) of a stroke."""
    where = f"Stroke {number:,} of {name}"
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence | np.ndarray):
        raise DataError(f"{where} must be a list of points [x, y]; got {format_value(value)}.")
    if len(value) == 0:
        raise DataError(f"{where} must have at least one point, but has none. Remove the stroke.")
    for point in value:
        is_list = isinstance(point, Sequence | np.ndarray) and not isinstance(point, str | bytes)
        numbers = list(point) if is_list else []
        is_number = [isinstance(each, int | float | np.number) and not isinstance(each, bool) for each in numbers]
        if len(numbers) not in (2, 3) or not all(is_number):
            raise DataError(f"{where} must consist of points [x, y] or [x, y, t]; got {format_value(point)}.")
        if not all(abs(float(each)) <= MAX_COORDINATE for each in numbers[:2]):  # False for NaN
            raise DataError(
                f"{where} must have finite coordinates of at most {MAX_COORDINATE:,.0f}; got {format_value(point)}."
            )
    return np.array([[float(x) for x in list(point)[:2]] for point in value])


def parse_writing(value: Any, name: str) -> TranscribedExample:
    """Return the strokes, the text and the writer of an object of the JSON form; both texts may be empty."""
    if not isinstance(value, Mapping) or "strokes" not in value:
        keys = f"an object with the keys {', '.join(map(str, value))}" if isinstance(value, Mapping) else None
        raise DataError(f"{name} {FORM}; got {keys or format_value(value)}.")
    texts = {key: value.get(key, "") for key in ("text", "writer")}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise DataError(f"The {key} of {name} must be a string; got {format_value(text)}.")
    return TranscribedExample(parse_strokes(value["strokes"], name), texts["text"], texts["writer"])


def read_writings(path: Path) -> Iterator[TranscribedExample]:
    """Yield the writings of a file of the JSON form."""
    return parse_writings(decode_text(read_bytes(path), path), str(path))


def parse_writings(text: str, name: str) -> Iterator[TranscribedExample]:
    """Yield the writings of a text of the JSON form; several writings are numbered from 1."""
    if not text.strip():
        raise DataError(f"{name} {FORM}; it is empty.")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        yield from _parse_lines(text, name)
        return
    if not isinstance(value, list):
        yield parse_writing(value, name)
        return
    if not value:
        raise DataError(f"{name} {FORM}, or a list of such objects; the list is empty.")
    for number, item in enumerate(value, start=1):
        yield parse_writing(item, f"{name}, {number}")


def _parse_lines(text: str, name: str) -> Iterator[TranscribedExample]:
    """Yield the writings of a text with one object per line."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            problem = "it is not JSON" if number == 1 else f"line {number:,} is not JSON"
            raise DataError(f"{name} {FORM}, or one such object per line; {problem}.") from None
        yield parse_writing(value, f"{name}, line {number:,}")
