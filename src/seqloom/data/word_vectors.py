"""Vectors of words from a file in word2vec's text format, which GloVe and fastText use too, or in its binary one.

    400000 100                       how many, and how wide: this line may be missing
    the 0.418 0.24968 -0.41242 …     a word and its numbers, with spaces between

Only the words that are wanted are kept, so the file may be larger than memory. Every line must be as wide as the first;
the numbers of words that nobody wants are counted, not read. What the binary format is, `binary_vectors` says.
"""

import gzip
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import DataError, UsageError
from seqloom.core.limits import refuse_device
from seqloom.core.words import shown
from seqloom.data.binary_vectors import binary_entries, is_binary
from seqloom.data.files import MARK, expand_home, readable
from seqloom.text import Tokenizer
from seqloom.text.characters import Characters
from seqloom.text.words import Words

LONGEST = 1 << 20  # bytes of a line: no vector takes more, and a file that is no text may have no lines at all
WIDEST = 1 << 16  # numbers of a vector: more would be a mistake, and might not fit into memory
LOWERED, EXACT = 1, 2  # how a word was found
Entry = tuple[
    int, bytes, Callable[[], Sequence[float]]
]  # the number of a line or entry, its word, how to get its vector


@dataclass(frozen=True)
class FoundVectors:
    path: Path
    rows: Tensor  # (V, D) the vector of each token, zero where there is none
    how: Tensor  # (V,) 0 not at all, LOWERED or EXACT

    @property
    def found(self) -> Tensor:
        """Which tokens (V,) have a vector."""
        return self.how > 0

    def coverage(self, counts: Tensor | None = None) -> str:
        """How many words have one, in words; `counts` (V,) says how often each is in the training text."""
        number, total = int(self.found.sum()), len(self.how)
        said = f"{number:,} of {total:,} words have a vector in {self.path.name} ({number / total:.1%})"
        if lowered := int((self.how == LOWERED).sum()):
            said += f", {lowered:,} of them that of their lower-case form"
        if counts is not None and (running := int(counts.sum())):
            said += f"; of the running words {int(counts[self.found].sum()) / running:.1%}"
        return said


def read_vectors(path: Path, words: Sequence[str], width: int, *, lowercase: bool = True) -> FoundVectors:
    """The vectors of these words, which must be `width` numbers wide.

    With `lowercase`, a word that is not in the file takes the vector of its lower-case form. Of a word that is there
    twice, the first counts.
    """
    path = expand_home(path)
    exact, lowered = _places(words), _places([word.lower() for word in words]) if lowercase else {}
    rows, how = np.zeros((len(words), width), dtype=np.float32), np.zeros(len(words), dtype=np.int8)
    for _, word, numbers in entries(path, width):
        if word not in exact and word not in lowered:
            continue
        vector = numbers()
        for places, quality in ((exact, EXACT), (lowered, LOWERED)):
            for place in places.get(word, ()):
                if how[place] < quality:
                    rows[place], how[place] = vector, quality
    if not how.any():
        raise DataError(
            f"{path} has a vector for none of the {len(words):,} words of the vocabulary. Is it of another language?"
        )
    return FoundVectors(path, torch.from_numpy(rows), torch.from_numpy(how))


def vector_words(tokenizer: Tokenizer) -> list[str]:
    """What to look up for each token, by its id."""
    if not isinstance(tokenizer, Words | Characters):
        raise UsageError("Vectors of a file are of whole words: set tokenizer.kind to words, or model.vectors to null.")
    tokens = [tokenizer.token(id) for id in range(len(tokenizer))]
    if isinstance(tokenizer, Words):
        return [token[1:] if tokenizer.glued(token) else token for token in tokens]
    return tokens


def _places(words: Sequence[str]) -> dict[bytes, list[int]]:
    """Where each word stands, by its bytes: what the file has need not be valid text."""
    found: dict[bytes, list[int]] = {}
    for place, word in enumerate(words):
        found.setdefault(word.encode(), []).append(place)
    return found


def entries(path: Path, width: int | None = None) -> Iterator[Entry]:
    """Every word of a file with its vector; all are `width` wide, or as wide as the first."""
    if is_binary(path):
        return binary_entries(path, lambda found: _check_width(path, found, width))
    return _text_entries(path, width)


def _text_entries(path: Path, width: int | None) -> Iterator[Entry]:
    promised, read = None, 0
    for number, line in _lines(path):
        if number == 1:
            head = _head(line)
            promised, its_width = head if head is not None else (None, line.count(b" "))
            width = _check_width(path, its_width, width)
            if head is not None:
                continue
        if not line:
            continue
        assert width is not None
        word = line.partition(b" ")[0] if line.count(b" ") == width else _long_word(path, number, line, width)
        read += 1
        yield number, word, partial(_numbers, path, number, line, width)
    if promised is not None and read < promised:
        raise DataError(f"{path} is cut short: its first line promises {promised:,} vectors, and it has {read:,}.")
    if not read:
        raise DataError(f"{path} is empty: a file of vectors must have a word and its numbers on each line.")


def _head(line: bytes) -> tuple[int, int] | None:
    """`400000 100`"""
    parts = line.split(b" ")
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 and all(part.isdigit() for part in parts) else None


def _check_width(path: Path, its_width: int, width: int | None) -> int:
    if its_width < 1:
        raise DataError(f"{path} must have a word and its numbers on each line, with spaces between; line 1 has none.")
    if its_width > WIDEST:
        raise DataError(f"{path} says that its vectors have {its_width:,} numbers each. Is its first line right?")
    if width is not None and its_width != width:
        raise DataError(
            f"{path} has vectors of {its_width:,} numbers, and the token vectors of this model have {width:,}. "
            f"Set model.embedding={its_width}."
        )
    return its_width


def _long_word(path: Path, number: int, line: bytes, width: int) -> bytes:
    """A word with spaces in it, as some files have; anything else of another width is a mistake."""
    parts = line.rsplit(b" ", width)
    if len(parts) <= width or _number(parts[0].rpartition(b" ")[2]) is not None:
        found = line.count(b" ")
        raise DataError(
            f"Line {number:,} of {path} must have a word and {width:,} numbers; it has {found:,}: "
            f"{shown(line.decode(errors='replace'))}."
        )
    return parts[0].strip()


def _numbers(path: Path, number: int, line: bytes, width: int) -> list[float]:
    texts = line.rsplit(b" ", width)[1:]
    values = [_number(text) for text in texts]
    if None in values:
        wrong = texts[values.index(None)].decode(errors="replace")
        raise DataError(f"Line {number:,} of {path} must have finite numbers after its word; it has {shown(wrong)}.")
    return [value for value in values if value is not None]


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < 1e38 else None


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, .gz or not, without the space and line break at their end."""
    packed = path.name.endswith(".gz")
    with readable(path), gzip.open(path, "rb") if packed else open(path, "rb") as file:
        refuse_device(path, file.fileno())
        number = 0
        while line := file.readline(LONGEST):
            number += 1
            if number == 1 and line.startswith(b"\x1f\x8b"):
                raise DataError(f"{path} is compressed with gzip. Its name must end in .gz.")
            if b"\0" in line or (len(line) == LONGEST and not line.endswith(b"\n")):
                raise DataError(
                    f"{path} must be text, and line {number:,} is not; a file in word2vec's binary format begins with "
                    "a line of two numbers, how many vectors there are and how wide they are."
                )
            yield number, (line.removeprefix(MARK.encode()) if number == 1 else line).rstrip(b" \r\n")
