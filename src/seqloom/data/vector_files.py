"""Whole files of word vectors, read and written, in word2vec's text and binary formats."""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from seqloom.core.errors import DataError, UsageError
from seqloom.core.files import write_atomic
from seqloom.core.words import counted, shown
from seqloom.data.binary_vectors import NUMBER
from seqloom.data.files import expand_home
from seqloom.data.word_vectors import entries
from seqloom.text.base import UNKNOWN_TEXT

Format = Literal["text", "binary"]
Vectors = np.ndarray[Any, np.dtype[np.float32]]


def read_whole(path: Path) -> tuple[list[str], Vectors]:
    """Every word with its vector (V, D). Of a word that is there twice the first counts; what is no UTF-8 becomes �;
    `<unk>`, as some files have it, is no word."""
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
    lines = [_entry(word, vector, form) for word, vector in zip(words, vectors, strict=True)]
    content = b"".join([f"{len(words)} {vectors.shape[1]}\n".encode(), *lines])
    write_atomic(path, gzip.compress(content, mtime=0) if path.name.endswith(".gz") else content)


def _entry(word: str, vector: Vectors, form: Format) -> bytes:
    """Nine digits are enough to get the same float32 back."""
    if form == "binary":
        return word.encode() + b" " + vector.astype(NUMBER).tobytes() + b"\n"
    return f"{word} {' '.join(['%.9g'] * len(vector)) % tuple(vector.tolist())}\n".encode()
