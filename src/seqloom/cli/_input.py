"""Input of the commands: lines of UTF-8 text from arguments, files or standard input."""

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
from seqloom.core.words import is_unicode

TEXT_SUFFIXES = (".txt", ".csv", ".tsv")
BYTE_ORDER_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"


def open_lines(
    texts: list[str] | None, batch: int, window: int | None, file: Path | None = None, are_paths: bool = False
) -> tuple[Iterable[str], int]:
    """Return the lines to predict and the window size; if the output is not a terminal, set it to UTF-8.

    With `are_paths`, the lines are paths of files to read; otherwise, print a note if a text looks like a path.
    """
    by_hand = not texts and file is None and sys.stdin.isatty()
    if by_hand:
        print("Type a line and press Enter; end with Ctrl-D.", file=sys.stderr)
    write_utf8()
    lines = read_lines(texts, are_paths) if file is None else read_file_lines(file)
    return lines, window or (1 if by_hand else WINDOW_BATCHES * batch)


def write_utf8() -> None:
    """If the output is not a terminal, set it to UTF-8 with the line end "\\n" on all systems."""
    if not sys.stdout.isatty() and isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")


def read_lines(texts: list[str] | None, are_paths: bool = False) -> Iterable[str]:
    """Return the texts, or the lines of standard input if `texts` is None; print a note if a text looks like a path."""
    lines = check_unicode(texts) if texts else decode_lines(sys.stdin.buffer)
    note_path([] if are_paths else texts or [])
    return lines


def read_file_lines(path: Path, what: str = "one text") -> Iterator[str]:
    """Yield the lines of a file."""
    try:
        with open(path, "rb") as stream:
            yield from decode_lines(stream)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Name a file with {what} per line.") from None


def check_unicode(texts: list[str]) -> list[str]:
    """Return the texts of the command line; raise an error if a text is not UTF-8."""
    for number, text in enumerate(texts, start=1):
        if not is_unicode(text):
            raise DataError(f"The texts must be UTF-8, but text {number} is not: {text!r}. Convert it first.")
    return texts


def decode_lines(stream: IO[bytes]) -> Iterator[str]:
    """Yield the lines of a stream as they arrive, without line endings.

    Raise an error if a line is too long or not UTF-8.
    """
    limit = max_line()
    for number in count(1):
        line = stream.readline(limit + 1)
        if not line:
            return
        if len(line) > limit and not line.endswith(b"\n"):
            raise DataError(
                f"Line {number:,} of the input is longer than {limit:,} bytes. Split it, or raise the limit: "
                f"SEQLOOM_MAX_LINE={10 * limit}."
            )
        try:
            text = line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise DataError(
                f"The input must be UTF-8, but line {number} contains the byte 0x{line[error.start]:02X}. "
                "Convert it, for example: iconv -f LATIN1 -t UTF-8."
            ) from None
        yield text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text


def note_path(texts: Iterable[str], reads_files: bool = True) -> None:
    """Print a note if a text looks like a path, because the command reads it as a text.

    Only the first such text is reported. `reads_files` states whether the command can read a file as its input.
    """
    for text in texts:
        if os.path.isfile(text):
            hint = f"to read the file: < {shlex.quote(text)}" if reads_files else "this command does not read files"
        elif len(text.split()) == 1 and ("/" in text or text.endswith(TEXT_SUFFIXES)):
            hint = "no such run or file exists"
        else:
            continue
        print(f"note: {text} is used as a text; {hint}", file=sys.stderr)
        return
