"""Vectors of words from a file in word2vec's text format, which GloVe and fastText use too, or in its binary one.

    400000 100                       how many, and how wide: this line may be missing
    the 0.418 0.24968 -0.41242 …     a word and its numbers, with spaces between

Or, in the binary format:

    400000 100⏎                      how many, and how wide, as text
    the ␣ 100 × float32              a word, a space, its numbers with the low byte first; perhaps a line break

A file is taken for binary if it begins with such a line and what follows is not a word and its
numbers in digits. Only the words that are wanted are kept, so the file may be larger than memory.
Every line must be as wide as the first; the numbers of words that nobody wants are counted, not
read.

What people say of words, to measure vectors by, lies in `word_vectors_eval` of the data folder
(SEQLOOM_DATA): WordSim-353, SimLex-999, Google's analogies. None of it is inside seqloom.
"""

import gzip
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import DataError, UsageError
from seqloom.core.files import write_atomic
from seqloom.core.limits import refuse_device
from seqloom.core.words import counted, shown
from seqloom.data.files import BYTE_ORDER_MARK, DataSet, convert_read_errors, expand_home, read_lines
from seqloom.text import Tokenizer
from seqloom.text.base import UNKNOWN_TEXT
from seqloom.text.vocabularies import Characters, Words

MAX_LINE = 1 << 20  # bytes: no vector takes more, and a file that is no text may have no lines at all
MAX_WORD = 1 << 12  # bytes of a word in the binary format
MAX_HEAD = 64  # bytes that its first line takes
MAX_WIDTH = 1 << 16  # numbers of a vector: more would be a mistake, and might not fit into memory
NUMBER = np.dtype("<f4")
LOWERED, EXACT = 1, 2  # how a word was found
Format = Literal["text", "binary"]
Vectors = np.ndarray[Any, np.dtype[np.float32]]
Entry = tuple[int, bytes, Callable[[], Vectors | list[float]]]  # its number or line, its word, how to get its vector


@dataclass(frozen=True)
class FoundVectors:
    """The vectors of a vocabulary that a file has."""

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
    """Return the vectors of these words, which must be `width` numbers wide.

    With `lowercase`, a word that is not in the file takes the vector of its lower-case form. Of a
    word that is there twice, the first counts.
    """
    path = expand_home(path)
    exact, lowered = index_words(words), index_words([word.lower() for word in words]) if lowercase else {}
    rows, how = np.zeros((len(words), width), dtype=np.float32), np.zeros(len(words), dtype=np.int8)
    for _, word, numbers in entries(path, width):
        if word not in exact and word not in lowered:
            continue
        vector = numbers()
        for indices, quality in ((exact, EXACT), (lowered, LOWERED)):
            for index in indices.get(word, ()):
                if how[index] < quality:
                    rows[index], how[index] = vector, quality
    if not how.any():
        raise DataError(
            f"{path} has a vector for none of the {len(words):,} words of the vocabulary. Is it of another language?"
        )
    return FoundVectors(path, torch.from_numpy(rows), torch.from_numpy(how))


def read_all_vectors(path: Path) -> tuple[list[str], Vectors]:
    """Return every word with its vector (V, D). Of a word that is there twice the first counts; what is no UTF-8
    becomes �; `<unk>`, as some files have it, is no word."""
    path = expand_home(path)
    rows: dict[str, Vectors] = {}
    for number, name, numbers in entries(path):
        word = name.decode(errors="replace")
        if not word:
            raise DataError(f"Line {number:,} of {path} must begin with a word; it begins with a space.")
        if word not in rows and word != UNKNOWN_TEXT:
            rows[word] = np.array(numbers(), dtype=np.float32)
    if len(rows) < 2:
        raise DataError(f"{path} has vectors of {counted(len(rows), 'word')}: two or more are needed.")
    return list(rows), np.stack(list(rows.values()))


def write_vectors(path: Path, words: Sequence[str], vectors: Vectors, form: Format) -> None:
    """Write a file whole or not at all; one that ends in .gz is compressed."""
    if bad := [word for word in words if any(letter.isspace() for letter in word)]:
        raise UsageError(f"A word of a vector file must have no space in it; {shown(bad[0])} has one.")
    if form == "binary":
        both = zip(words, vectors.astype(NUMBER), strict=True)
        lines = [word.encode() + b" " + vector.tobytes() + b"\n" for word, vector in both]
    else:  # nine digits are enough to get the same float32 back
        numbers = " ".join(["%.9g"] * vectors.shape[1])
        both = zip(words, vectors.tolist(), strict=True)
        lines = [f"{word} {numbers % tuple(vector)}\n".encode() for word, vector in both]
    content = b"".join([f"{len(words)} {vectors.shape[1]}\n".encode(), *lines])
    write_atomic(path, gzip.compress(content, mtime=0) if path.name.endswith(".gz") else content)


def vector_words(tokenizer: Tokenizer) -> list[str]:
    """Return what to look up for each token, by its id."""
    if not isinstance(tokenizer, Words | Characters):
        raise UsageError("Vectors of a file are of whole words: set tokenizer.kind to words, or model.vectors to null.")
    tokens = [tokenizer.token(id) for id in range(len(tokenizer))]
    if isinstance(tokenizer, Words):
        return [tokenizer.plain(token) for token in tokens]
    return tokens


def index_words(words: Sequence[str]) -> dict[bytes, list[int]]:
    """Return the indices of each word, by its bytes: what the file has need not be valid text."""
    found: dict[bytes, list[int]] = {}
    for index, word in enumerate(words):
        found.setdefault(word.encode(), []).append(index)
    return found


def entries(path: Path, width: int | None = None) -> Iterator[Entry]:
    """Yield every word of a file with its vector; all are `width` wide, or as wide as the first."""
    with _open(path) as file:
        line = file.readline(MAX_HEAD)
        head = _parse_head(line) if line.endswith(b"\n") else None
        entry = file.read(MAX_WORD) if head is not None else b""
    if head is not None:  # binary unless the first entry is spelled in digits
        first = entry.partition(b"\n")[0].split()
        in_digits = all(_is_number(text) for text in first[-min(head[1], 2) :])
        if b"\0" in entry or (entry.strip() and not in_digits):
            return _binary_entries(path, width)
    return _text_entries(path, width)


def _parse_head(line: bytes) -> tuple[int, int] | None:
    """`400000 100`"""
    parts = line.split()
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 and all(part.isdigit() for part in parts) else None


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_width(path: Path, its_width: int, width: int | None) -> int:
    if its_width < 1:
        raise DataError(f"{path} must have a word and its numbers on each line, with spaces between; line 1 has none.")
    if its_width > MAX_WIDTH:
        raise DataError(f"{path} says that its vectors have {its_width:,} numbers each. Is its first line right?")
    if width is not None and its_width != width:
        raise DataError(
            f"{path} has vectors of {its_width:,} numbers, and the token vectors of this model have {width:,}. "
            f"Set model.embedding={its_width}."
        )
    return its_width


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    with convert_read_errors(path), gzip.open(path, "rb") if path.name.endswith(".gz") else open(path, "rb") as file:
        refuse_device(path, file.fileno())
        yield file


def _text_entries(path: Path, width: int | None) -> Iterator[Entry]:
    promised, read, number = None, 0, 0
    with _open(path) as file:
        while line := file.readline(MAX_LINE):
            number += 1
            if number == 1 and line.startswith(b"\x1f\x8b"):
                raise DataError(f"{path} is compressed with gzip. Its name must end in .gz.")
            if b"\0" in line or (len(line) == MAX_LINE and not line.endswith(b"\n")):
                raise DataError(
                    f"{path} must be text, and line {number:,} is not; a file in word2vec's binary format begins with "
                    "a line of two numbers, how many vectors there are and how wide they are."
                )
            line = (line.removeprefix(BYTE_ORDER_MARK.encode()) if number == 1 else line).rstrip(b" \r\n")
            if number == 1:
                head = _parse_head(line)
                promised, its_width = head if head is not None else (None, line.count(b" "))
                width = _check_width(path, its_width, width)
                if head is not None:
                    continue
            if not line:
                continue
            assert width is not None
            word = line.partition(b" ")[0]
            if line.count(b" ") != width:  # a word with spaces in it, as some files have; else a mistake
                parts = line.rsplit(b" ", width)
                if len(parts) <= width or _parse_number(parts[0].rpartition(b" ")[2]) is not None:
                    raise DataError(
                        f"Line {number:,} of {path} must have a word and {width:,} numbers; it has "
                        f"{line.count(b' '):,}: {shown(line.decode(errors='replace'))}."
                    )
                word = parts[0].strip()
            read += 1
            yield number, word, partial(_parse_numbers, path, number, line, width)
    if promised is not None and read < promised:
        raise DataError(f"{path} is cut short: its first line promises {promised:,} vectors, and it has {read:,}.")
    if not read:
        raise DataError(f"{path} is empty: a file of vectors must have a word and its numbers on each line.")


def _parse_numbers(path: Path, number: int, line: bytes, width: int) -> list[float]:
    values = []
    for text in line.rsplit(b" ", width)[1:]:
        if (value := _parse_number(text)) is None:
            wrong = shown(text.decode(errors="replace"))
            raise DataError(f"Line {number:,} of {path} must have finite numbers after its word; it has {wrong}.")
        values.append(value)
    return values


def _parse_number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < 1e38 else None


def _binary_entries(path: Path, width: int | None) -> Iterator[Entry]:
    with _open(path) as file:
        head = _parse_head(file.readline(MAX_HEAD))
        assert head is not None, "`entries` has read it"
        promised, width = head[0], _check_width(path, head[1], width)
        for number in range(1, promised + 1):
            letters = bytearray()
            while (letter := file.read(1)) not in (b" ", b""):
                if letter != b"\n" or letters:  # a line break after the vector before it
                    letters += letter
                if len(letters) > MAX_WORD:
                    raise DataError(
                        f"Vector {number:,} of {path} must begin with a word and a space; it has none within "
                        f"{MAX_WORD:,} bytes. Is its first line right?"
                    )
            if letter and not letters:
                raise DataError(f"Vector {number:,} of {path} must begin with a word; it begins with a space.")
            content = file.read(width * NUMBER.itemsize)
            if not letter or len(content) < width * NUMBER.itemsize:
                raise DataError(
                    f"{path} is cut short: its first line promises {promised:,} vectors, and it ends within number "
                    f"{number:,}."
                )
            yield number, bytes(letters), partial(_unpack_numbers, path, number, bytes(letters), content)


def _unpack_numbers(path: Path, number: int, word: bytes, content: bytes) -> Vectors:
    values: Vectors = np.frombuffer(content, dtype=NUMBER)
    if not np.isfinite(values).all():
        raise DataError(
            f"Vector {number:,} of {path}, that of {shown(word.decode(errors='replace'))}, must have finite numbers; "
            "one is not."
        )
    return values


# --- what people say of words -----------------------------------------------------------------------------------------

SIMILARITY_SETS = {  # the set, its file, what stands between columns, and the column of the scores
    "wordsim353": (
        DataSet("WordSim-353", "https://gabrilovich.com/resources/data/wordsim353/ (no licence is stated)"),
        "wordsim353_combined.csv",
        ",",
        2,
    ),
    "simlex999": (
        DataSet("SimLex-999", "https://fh295.github.io/simlex.html (no licence is stated; it asks to be cited)"),
        "SimLex-999.txt",
        "\t",
        3,
    ),
}
GOOGLE = DataSet("Google's analogies", "https://github.com/tmikolov/word2vec, questions-words.txt (Apache-2.0)")


@dataclass(frozen=True)
class WordSets:
    """Word pairs with ratings, and analogies."""

    rated: Mapping[str, Sequence[tuple[str, str, float]]]  # pairs and what people said of them, by the set's name
    analogies: Sequence[tuple[str, tuple[str, str, str, str]]]  # the section, and a : b = c : d
    missing: Sequence[str]  # titles of the sets that are not there


def word_sets() -> WordSets:
    """Return all sets that are there."""
    rated: dict[str, list[tuple[str, str, float]]] = {}
    analogies: list[tuple[str, tuple[str, str, str, str]]] = []
    missing = []

    def locate(source: DataSet, name: str) -> Path | None:
        try:
            return source.file(f"word_vectors_eval/{name}")
        except DataError:
            missing.append(source.title)
            return None

    for key, (source, name, delimiter, column) in SIMILARITY_SETS.items():
        if path := locate(source, name):
            rated[key] = list(_read_ratings(path, delimiter, column))
    if path := locate(GOOGLE, "questions-words.txt.gz"):
        analogies = list(_read_analogies(path))
    return WordSets(rated, analogies, missing)


def _read_ratings(path: Path, delimiter: str, column: int) -> Iterator[tuple[str, str, float]]:
    """A head line, then two words and, in a later column, a number."""
    lines = read_lines(path)
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        row = line.split(delimiter)
        try:
            score = float(row[column])
        except (ValueError, IndexError):
            score = math.nan
        if not math.isfinite(score) or not (row[0].strip() and row[1].strip()):
            raise DataError(
                f"Line {number:,} of {path} must have two words and, in column {column + 1}, a number; "
                f"it is {shown(lines[number - 1])}."
            )
        yield row[0].strip(), row[1].strip(), score


def _read_analogies(path: Path) -> Iterator[tuple[str, tuple[str, str, str, str]]]:
    """`: section`, then four words on each line."""
    section = ""
    for number, line in enumerate(read_lines(path), start=1):
        words = line.split()
        if line.startswith(":"):
            section = line[1:].strip()
        elif len(words) == 4 and section:
            a, b, c, d = words
            yield section, (a, b, c, d)
        elif words:
            raise DataError(
                f"Line {number:,} of {path} must be four words after a line with `: ` and a section's name; "
                f"it is {shown(line)}."
            )
