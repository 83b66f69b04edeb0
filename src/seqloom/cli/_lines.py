"""What commands share that answer line by line: where lines come from, where answers go, what is said at the end."""

import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unicodedata import category

from seqloom.cli._input import arguments, lines_of
from seqloom.cli._options import WINDOW_BATCHES
from seqloom.core.errors import UsageError

FILES = (".txt", ".csv", ".tsv")  # as names of files with texts end
_COMMANDS = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of pairs, ends of lines and paragraphs
_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # letters after these run another way
_ONE_LINE = {ord("\n"): " ", ord("\r"): " ", ord("\t"): " "}


def open_lines(texts: list[str] | None, batch: int, window: int | None) -> tuple[Iterable[str], int]:
    """The lines to answer, and how many to read at once; output that is not for a terminal becomes UTF-8."""
    by_hand = not texts and sys.stdin.isatty()
    if by_hand:
        print("Type a line and press Enter; end with Ctrl-D.", file=sys.stderr)
    if not sys.stdout.isatty() and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # a file is UTF-8 with plain line ends anywhere
    lines = arguments(texts) if texts else lines_of(sys.stdin.buffer)
    note_place(texts or [])
    return lines, window or (1 if by_hand else WINDOW_BATCHES * batch)


def note_place(texts: Iterable[str], reads: bool = True) -> None:
    """Say of the first text that is a file's name, or written like a place, that it is a text here.

    `reads`: the command would read a file as its input.
    """
    if (place := next(filter(_like_a_place, texts), None)) is None:
        return
    file = f"read the file with: < {shlex.quote(place)}" if reads else "files are not read here"
    why = file if os.path.isfile(place) else "there is no such run or file"
    print(f"note: {place} is taken as a text: {why}", file=sys.stderr)


def _like_a_place(text: str) -> bool:
    """What is the name of a file, or one word that is written like that of a run or of a file."""
    return os.path.isfile(text) or (len(text.split()) == 1 and ("/" in text or text.endswith(FILES)))


def check_answers(path: Path | None, what: str) -> None:
    """Refuse, before any work, a file for all answers that could not be written in the end, or that is there."""
    if path is None:
        return
    from seqloom.core.files import check_writable

    if path.is_dir():
        raise UsageError(f"{path} is a folder. Name a file for the {what}.")
    if path.exists():
        raise UsageError(f"{path} exists. Choose another name for the {what}, or remove it first.")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: the folder {path.parent} does not exist. Make it first.")
    check_writable(path)


def one_line(text: str) -> str:
    """A name or a text that must neither end the line nor begin a new field."""
    return text.translate(_ONE_LINE)


def escaped(text: str) -> str:
    """A text as a person may see it: what would command the terminal, or turn the order of letters, is spelled out."""
    return "".join(
        _spelled(letter) if letter in _TURNING or category(letter) in _COMMANDS else letter for letter in text
    )


def _spelled(letter: str) -> str:
    return letter if letter == "\t" else letter.encode("unicode_escape").decode("ascii")


def unknown_seen(lines: Iterable[str], model: Any, notes: "Notes") -> Iterator[str]:
    """The lines as they are read; those with parts that the vocabulary lacks are noted."""
    for number, line in enumerate(lines, start=1):
        if unknown := unknown_of(model, line):
            notes.see("the vocabulary lacks parts of {lines}", number, f": {unknown[0]!r}")
        yield line


def unknown_of(model: Any, text: str) -> list[str]:
    """Parts that a model's vocabulary lacks; none, where it reads letters too."""
    found: list[str] = [] if getattr(model, "spells", False) else model.tokenizer.unknown_pieces(text.strip())
    return found


class Notes:
    """How many lines were not answered as one might think, and the first of each sort; said at the end."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, int, str]] = {}  # what to say → of how many lines, the first, more on it

    def see(self, said: str, number: int, more: str = "") -> None:
        """`said` has {lines} where the number of lines belongs."""
        count, first, before = self._found.get(said, (0, number, more))
        self._found[said] = count + 1, first, before

    def show(self) -> None:
        for said, (count, first, more) in self._found.items():
            lines = said.format(lines="1 line" if count == 1 else f"{count:,} lines")
            print(f"note: {lines}; the first is line {first:,}{more}", file=sys.stderr)
