"""word2vec's binary format: vectors as the bytes of their numbers.

    400000 100⏎                   how many, and how wide, as text
    the ␣ 100 × float32           a word, a space, its numbers with the low byte first; perhaps a line break

A file is taken for binary if it begins with such a line and what follows is not a word and its numbers in digits.
"""

import gzip
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from seqloom.core.errors import DataError
from seqloom.core.limits import refuse_device
from seqloom.core.words import shown
from seqloom.data.files import readable

LONGEST_WORD = 1 << 12  # bytes
HEAD = 64  # bytes that the first line takes at most
NUMBER = np.dtype("<f4")


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    with gzip.open(path, "rb") if path.name.endswith(".gz") else open(path, "rb") as file:
        refuse_device(path, file.fileno())
        yield file


def is_binary(path: Path) -> bool:
    """Whether its first entry is not spelled in digits."""
    with readable(path), opened(path) as file:
        head = _head(file.readline(HEAD))
        if head is None:
            return False
        entry = file.read(LONGEST_WORD)
    first = entry.partition(b"\n")[0].split()
    in_digits = all(map(_spelled, first[-min(head[1], 2) :]))
    return b"\0" in entry or (bool(entry.strip()) and not in_digits)


def _spelled(number: bytes) -> bool:
    try:
        float(number)
    except ValueError:
        return False
    return True


def _head(line: bytes) -> tuple[int, int] | None:
    parts = line.split()
    whole = line.endswith(b"\n") and len(parts) == 2 and all(part.isdigit() for part in parts)
    return (int(parts[0]), int(parts[1])) if whole else None


def binary_entries(
    path: Path, check_width: Callable[[int], int]
) -> Iterator[tuple[int, bytes, Callable[[], Sequence[float]]]]:
    """The number of each entry, its word, and how to get its vector."""
    with readable(path), opened(path) as file:
        head = _head(file.readline(HEAD))
        assert head is not None, "whoever reads it as binary has looked"
        promised, width = head[0], check_width(head[1])
        for number in range(1, promised + 1):
            word = _word(path, file, number, promised)
            content = file.read(width * NUMBER.itemsize)
            if len(content) < width * NUMBER.itemsize:
                raise _cut_short(path, number, promised)
            yield number, word, partial(_numbers, path, number, word, content)


def _word(path: Path, file: IO[bytes] | gzip.GzipFile, number: int, promised: int) -> bytes:
    letters = bytearray()
    while (letter := file.read(1)) != b" ":
        if not letter:
            raise _cut_short(path, number, promised)
        if letter != b"\n" or letters:  # a line break after the vector before it
            letters += letter
        if len(letters) > LONGEST_WORD:
            raise DataError(
                f"Vector {number:,} of {path} must begin with a word and a space; it has none within "
                f"{LONGEST_WORD:,} bytes. Is its first line right?"
            )
    if not letters:
        raise DataError(f"Vector {number:,} of {path} must begin with a word; it begins with a space.")
    return bytes(letters)


def _numbers(path: Path, number: int, word: bytes, content: bytes) -> Sequence[float]:
    values = np.frombuffer(content, dtype=NUMBER)
    if not np.isfinite(values).all():
        raise DataError(
            f"Vector {number:,} of {path}, that of {shown(word.decode(errors='replace'))}, must have finite numbers; "
            "one is not."
        )
    found: Sequence[float] = values  # type: ignore[assignment]
    return found


def _cut_short(path: Path, number: int, promised: int) -> DataError:
    return DataError(
        f"{path} is cut short: its first line promises {promised:,} vectors, and it ends within number {number:,}."
    )
