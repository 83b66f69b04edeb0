"""Lines that commands read, from arguments or standard input, in UTF-8."""

import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from itertools import count
from pathlib import Path
from typing import IO

from seqloom.cli._options import WINDOW_BATCHES
from seqloom.core.errors import DataError, UsageError
from seqloom.core.limits import max_line

FILES = (".txt", ".csv", ".tsv")  # as names of files with texts end
MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"  # before the first line: the byte order mark


def open_lines(
    texts: list[str] | None, batch: int, window: int | None, file: Path | None = None
) -> tuple[Iterable[str], int]:
    """Return the lines to answer and how many to read at once; output that is not for a terminal becomes UTF-8."""
    by_hand = not texts and file is None and sys.stdin.isatty()
    if by_hand:
        print("Type a line and press Enter; end with Ctrl-D.", file=sys.stderr)
    if not sys.stdout.isatty() and isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # a file is UTF-8 with plain line ends anywhere
    lines = read_lines(texts) if file is None else file_lines(file)
    return lines, window or (1 if by_hand else WINDOW_BATCHES * batch)


def read_lines(texts: list[str] | None) -> Iterable[str]:
    """Return the texts, or without any the lines of standard input; note a text that looks like a path."""
    lines = arguments(texts) if texts else lines_of(sys.stdin.buffer)
    note_place(texts or [])
    return lines


def file_lines(path: Path, what: str = "a text") -> Iterator[str]:
    """Yield the lines of a file."""
    try:
        with open(path, "rb") as stream:
            yield from lines_of(stream)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Name a file with {what} in each line.") from None


def arguments(texts: list[str]) -> list[str]:
    """Texts given on the command line."""
    for number, text in enumerate(texts, start=1):
        if not text.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise DataError(f"The texts must be UTF-8, but text {number} is not: {text!r}.")
    return texts


def lines_of(stream: IO[bytes]) -> Iterator[str]:
    """The lines of the input without their ends, each as soon as it is there; one that is too long is refused."""
    most = max_line()
    for number in count(1):
        line = stream.readline(most + 1)
        if not line:
            return
        if len(line) > most and not line.endswith(b"\n"):
            raise DataError(
                f"Line {number:,} of the input is longer than {most:,} bytes. Break it into lines, or allow more: "
                f"SEQLOOM_MAX_LINE={10 * most}."
            )
        try:
            text = line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise DataError(
                f"The input must be UTF-8, but line {number} holds the byte 0x{line[error.start]:02X}. "
                "Convert it, for example: iconv -f LATIN1 -t UTF-8."
            ) from None
        yield text.removeprefix(MARK) if number == 1 else text


def note_place(texts: Iterable[str], reads: bool = True) -> None:
    """Say of the first text that is a file's name, or written like a place, that it is a text here.

    `reads`: the command would read a file as its input.
    """
    for text in texts:
        if os.path.isfile(text):
            why = f"read the file with: < {shlex.quote(text)}" if reads else "files are not read here"
        elif len(text.split()) == 1 and ("/" in text or text.endswith(FILES)):
            why = "there is no such run or file"
        else:
            continue
        print(f"note: {text} is taken as a text: {why}", file=sys.stderr)
        return
