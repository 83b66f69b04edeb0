"""Word vectors from files in the text or binary format of word2vec; GloVe and fastText use the text format.

    400000 100                       number of vectors and their size; optional
    the 0.418 0.24968 -0.41242 …     a word and its numbers, separated by spaces

The binary format:

    400000 100⏎                      number of vectors and their size, as text
    the ␣ 100 × float32              a word, a space, its numbers in little-endian order, and optionally a line break

A file is binary if it starts with such a line and the first entry is not a word followed by decimal numbers. Only
requested words are kept, so that a file may be larger than memory. All vectors must have the same size. The numbers of
words that are not requested are counted but not parsed.

The evaluation sets are in `word_vectors_eval` of the data folder (SEQLOOM_DATA): WordSim-353,
SimLex-999 and the analogies of Google. The sets are not part of seqloom.
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
from seqloom.core.words import format_count, format_value
from seqloom.data.files import BYTE_ORDER_MARK, DataSet, convert_read_errors, expand_home, read_lines
from seqloom.text import Tokenizer
from seqloom.text.base import UNKNOWN_TEXT
from seqloom.text.vocabularies import Characters, Words

MAX_LINE_BYTES = 1 << 20  # a file with a longer line is not text
MAX_WORD_BYTES = 1 << 12  # maximum length of a word in the binary format
MAX_HEADER_BYTES = 64
MAX_VECTOR_SIZE = 1 << 16  # larger vectors are probably an error and might not fit into memory
NUMBER = np.dtype("<f4")
LOWERED, EXACT = 1, 2  # the kinds of matches of a word
Format = Literal["text", "binary"]
Vectors = np.ndarray[Any, np.dtype[np.float32]]
Entry = tuple[int, bytes, Callable[[], Vectors | list[float]]]  # number or line, word, parser of the vector


@dataclass(frozen=True)
class VocabularyVectors:
    """The vectors of a vocabulary in a file."""

    path: Path
    rows: Tensor  # (V, D) the vector of each token, or zeros if it has no vector
    how: Tensor  # (V,) LOWERED or EXACT, or 0 if the token has no vector

    @property
    def has_vector(self) -> Tensor:
        """The tokens (V,) that have a vector."""
        return self.how > 0

    def coverage(self, counts: Tensor | None = None) -> str:
        """Describe the fraction of words with a vector; `counts` (V,) are their frequencies in train."""
        number, total = int(self.has_vector.sum()), len(self.how)
        text = f"{number:,} of {total:,} words have a vector in {self.path.name} ({number / total:.1%})"
        if lowered := int((self.how == LOWERED).sum()):
            text += f", including {lowered:,} with the vector of their lowercase form"
        if counts is not None and (tokens := int(counts.sum())):
            text += f"; they cover {int(counts[self.has_vector].sum()) / tokens:.1%} of the training text"
        return text


def read_vectors(path: Path, words: Sequence[str], width: int, *, lowercase: bool = True) -> VocabularyVectors:
    """Read the vectors of these words, which must have `width` numbers.

    With `lowercase`, a word that is not in the file gets the vector of its lowercase form. If a
    word is repeated, its first vector is used.
    """
    path = expand_home(path)
    exact, lowered = index_words(words), index_words([word.lower() for word in words]) if lowercase else {}
    rows, how = np.zeros((len(words), width), dtype=np.float32), np.zeros(len(words), dtype=np.int8)
    for _, word, numbers in read_entries(path, width):
        if word not in exact and word not in lowered:
            continue
        vector = numbers()
        for indices, quality in ((exact, EXACT), (lowered, LOWERED)):
            for index in indices.get(word, ()):
                if how[index] < quality:
                    rows[index], how[index] = vector, quality
    if not how.any():
        raise DataError(
            f"{path} must have vectors for words of the vocabulary, but contains none of the {len(words):,} words. "
            "Check the language of the vectors."
        )
    return VocabularyVectors(path, torch.from_numpy(rows), torch.from_numpy(how))


def read_all_vectors(path: Path) -> tuple[list[str], Vectors]:
    """Read all words and their vectors (V, D), except `<unk>`; if a word is repeated, its first vector is used.

    Invalid UTF-8 becomes �.
    """
    path = expand_home(path)
    rows: dict[str, Vectors] = {}
    for number, name, numbers in read_entries(path):
        word = name.decode(errors="replace")
        if not word:
            raise DataError(f"Line {number:,} of {path} must start with a word, but starts with a space.")
        if word not in rows and word != UNKNOWN_TEXT:
            rows[word] = np.array(numbers(), dtype=np.float32)
    if len(rows) < 2:
        raise DataError(f"{path} must have vectors of at least two words, but has {format_count(len(rows), 'word')}.")
    return list(rows), np.stack(list(rows.values()))


def write_vectors(path: Path, words: Sequence[str], vectors: Vectors, form: Format) -> None:
    """Write a file atomically, and compress it if its name ends in .gz."""
    if invalid := [word for word in words if any(letter.isspace() for letter in word)]:
        raise UsageError(f"Words of a vector file must not contain spaces; got {format_value(invalid[0])}.")
    if form == "binary":
        pairs = zip(words, vectors.astype(NUMBER), strict=True)
        lines = [word.encode() + b" " + vector.tobytes() + b"\n" for word, vector in pairs]
    else:  # nine digits represent a float32 exactly
        numbers = " ".join(["%.9g"] * vectors.shape[1])
        pairs = zip(words, vectors.tolist(), strict=True)
        lines = [f"{word} {numbers % tuple(vector)}\n".encode() for word, vector in pairs]
    content = b"".join([f"{len(words)} {vectors.shape[1]}\n".encode(), *lines])
    write_atomic(path, gzip.compress(content, mtime=0) if path.name.endswith(".gz") else content)


def vector_words(tokenizer: Tokenizer) -> list[str]:
    """Return the word to look up for each token id."""
    if not isinstance(tokenizer, Words | Characters):
        raise UsageError("model.vectors needs a tokenizer of words: set tokenizer.kind=words, or model.vectors=null.")
    tokens = [tokenizer.token(id) for id in range(len(tokenizer))]
    if isinstance(tokenizer, Words):
        return [tokenizer.plain(token) for token in tokens]
    return tokens


def index_words(words: Sequence[str]) -> dict[bytes, list[int]]:
    """Return the indices of each word; keys are bytes, because a file may contain invalid UTF-8."""
    indices: dict[bytes, list[int]] = {}
    for index, word in enumerate(words):
        indices.setdefault(word.encode(), []).append(index)
    return indices


def read_entries(path: Path, width: int | None = None) -> Iterator[Entry]:
    """Yield the words of a file with their vectors; if `width` is given, all vectors must have `width` numbers."""
    with _open(path) as file:
        line = file.readline(MAX_HEADER_BYTES)
        header = _parse_header(line) if line.endswith(b"\n") else None
        entry = file.read(MAX_WORD_BYTES) if header is not None else b""
    if header is not None:  # the file is binary unless the first entry is written in digits
        first = entry.partition(b"\n")[0].split()
        has_digits = all(_is_number(text) for text in first[-min(header[1], 2) :])
        if b"\0" in entry or (entry.strip() and not has_digits):
            return _binary_entries(path, width)
    return _text_entries(path, width)


def _parse_header(line: bytes) -> tuple[int, int] | None:
    """Parse a line such as `400000 100`."""
    parts = line.split()
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 and all(part.isdigit() for part in parts) else None


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_width(path: Path, file_width: int, width: int | None) -> int:
    if file_width < 1:
        raise DataError(f"{path} must have a word and its numbers on each line, separated by spaces; line 1 has none.")
    if file_width > MAX_VECTOR_SIZE:
        raise DataError(
            f"The first line of {path} declares vectors of {file_width:,} numbers, but at most {MAX_VECTOR_SIZE:,} are "
            "supported. Check that line."
        )
    if width is not None and file_width != width:
        raise DataError(
            f"{path} has vectors of {file_width:,} numbers, but the embeddings of this model have {width:,}. "
            f"Set model.embedding={file_width}."
        )
    return file_width


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    with convert_read_errors(path), gzip.open(path, "rb") if path.name.endswith(".gz") else open(path, "rb") as file:
        refuse_device(path, file.fileno())
        yield file


def _text_entries(path: Path, width: int | None) -> Iterator[Entry]:
    announced, count, number = None, 0, 0
    with _open(path) as file:
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            if number == 1 and line.startswith(b"\x1f\x8b"):
                raise DataError(f"{path} is compressed with gzip. Its name must end in .gz.")
            if b"\0" in line or (len(line) == MAX_LINE_BYTES and not line.endswith(b"\n")):
                raise DataError(
                    f"{path} must be text, but line {number:,} is not. A file in the binary format of word2vec starts "
                    "with a line of two numbers, the number of vectors and their size."
                )
            line = (line.removeprefix(BYTE_ORDER_MARK.encode()) if number == 1 else line).rstrip(b" \r\n")
            if number == 1:
                header = _parse_header(line)
                announced, file_width = header if header is not None else (None, line.count(b" "))
                width = _check_width(path, file_width, width)
                if header is not None:
                    continue
            if not line:
                continue
            assert width is not None
            word = line.partition(b" ")[0]
            if line.count(b" ") != width:  # some files have words with spaces; otherwise this is an error
                parts = line.rsplit(b" ", width)
                if len(parts) <= width or _parse_number(parts[0].rpartition(b" ")[2]) is not None:
                    raise DataError(
                        f"Line {number:,} of {path} must have a word and {width:,} numbers, but has "
                        f"{line.count(b' '):,}: {format_value(line.decode(errors='replace'))}."
                    )
                word = parts[0].strip()
            count += 1
            yield number, word, partial(_parse_numbers, path, number, line, width)
    if announced is not None and count < announced:
        raise DataError(f"{path} is truncated: its first line announces {announced:,} vectors, but it has {count:,}.")
    if not count:
        raise DataError(f"{path} must have a word and its numbers on each line, but it is empty.")


def _parse_numbers(path: Path, number: int, line: bytes, width: int) -> list[float]:
    values = []
    for text in line.rsplit(b" ", width)[1:]:
        if (value := _parse_number(text)) is None:
            invalid = format_value(text.decode(errors="replace"))
            raise DataError(f"Line {number:,} of {path} must have finite numbers after its word, but has {invalid}.")
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
        header = _parse_header(file.readline(MAX_HEADER_BYTES))
        assert header is not None, "`read_entries` has parsed it"
        announced, width = header[0], _check_width(path, header[1], width)
        for number in range(1, announced + 1):
            letters = bytearray()
            while (letter := file.read(1)) not in (b" ", b""):
                if letter != b"\n" or letters:  # skip the line break after the previous vector
                    letters += letter
                if len(letters) > MAX_WORD_BYTES:
                    raise DataError(
                        f"Vector {number:,} of {path} must start with a word and a space, but has no space within "
                        f"{MAX_WORD_BYTES:,} bytes. Check its first line."
                    )
            if letter and not letters:
                raise DataError(f"Vector {number:,} of {path} must start with a word, but starts with a space.")
            content = file.read(width * NUMBER.itemsize)
            if not letter or len(content) < width * NUMBER.itemsize:
                raise DataError(
                    f"{path} is truncated: its first line announces {announced:,} vectors, but it ends within vector "
                    f"{number:,}."
                )
            yield number, bytes(letters), partial(_unpack_numbers, path, number, bytes(letters), content)


def _unpack_numbers(path: Path, number: int, word: bytes, content: bytes) -> Vectors:
    values: Vectors = np.frombuffer(content, dtype=NUMBER)
    if not np.isfinite(values).all():
        raise DataError(
            f"Vector {number:,} of {path}, that of {format_value(word.decode(errors='replace'))}, must have "
            "finite numbers."
        )
    return values


# --- evaluation sets --------------------------------------------------------------------------------------------------

SIMILARITY_SETS = {  # name of the set → its file, its delimiter, and the column of the scores
    "wordsim353": (
        DataSet("WordSim-353", "https://gabrilovich.com/resources/data/wordsim353/ (no licence is stated)"),
        "wordsim353_combined.csv",
        ",",
        2,
    ),
    "simlex999": (
        DataSet(
            "SimLex-999", "https://fh295.github.io/simlex.html (no licence is stated; its authors ask to be cited)"
        ),
        "SimLex-999.txt",
        "\t",
        3,
    ),
}
GOOGLE = DataSet("Google's analogies", "https://github.com/tmikolov/word2vec, questions-words.txt (Apache-2.0)")


@dataclass(frozen=True)
class WordSets:
    """Word pairs with ratings, and analogies."""

    rated: Mapping[str, Sequence[tuple[str, str, float]]]  # pairs and their human ratings, by set
    analogies: Sequence[tuple[str, tuple[str, str, str, str]]]  # the section, and a : b = c : d
    missing: Sequence[str]  # titles of missing sets


def read_word_sets() -> WordSets:
    """Read all sets in the data folder."""
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
    """Yield the two words and the rating of each line after the header."""
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
                f"got {format_value(lines[number - 1])}."
            )
        yield row[0].strip(), row[1].strip(), score


def _read_analogies(path: Path) -> Iterator[tuple[str, tuple[str, str, str, str]]]:
    """Yield the section and the four words of each line; a section starts with a line `: section`."""
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
                f"Line {number:,} of {path} must have four words, after a line with `: ` and the name of a section; "
                f"got {format_value(line)}."
            )
