"""Answers that commands print line by line, and notes on lines with problems."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar
from unicodedata import category

from seqloom.cli._json import print_json
from seqloom.core.errors import UsageError

_COMMANDS = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of pairs, ends of lines and paragraphs
_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # letters after these run another way
_ONE_LINE = {ord("\n"): " ", ord("\r"): " ", ord("\t"): " "}
_UNKNOWN = "the vocabulary lacks parts of {lines}"


class LineAnswer(Protocol):
    """A model's answer to one line."""

    @property
    def unknown(self) -> Sequence[str]:
        """Parts of the line that the vocabulary lacks."""


class LabelProbability(Protocol):
    """A label and its probability."""

    @property
    def label(self) -> str: ...
    @property
    def probability(self) -> float: ...


T = TypeVar("T")
A = TypeVar("A", bound=LineAnswer)


def print_answers(
    answers: Iterable[A],
    print_answer: Callable[[A], None],
    problems: Mapping[str, Callable[[A], bool]],
    *,
    note_unknown: bool = True,
) -> None:
    """Print each answer as soon as it is computed; at the end, note on standard error which lines had problems.

    `problems` maps a note, in which `{lines}` stands for the number of lines, to the test of an answer it is about.
    """
    notes = Notes()
    for number, answer in enumerate(answers, start=1):
        print_answer(answer)
        if note_unknown and answer.unknown:
            notes.see(_UNKNOWN, number, f": {answer.unknown[0]!r}")
        for note, applies in problems.items():
            if applies(answer):
                notes.see(note, number)
    notes.show()


def printer(
    as_json: bool, to_json: Callable[[T], Mapping[str, Any]], to_text: Callable[[T], str]
) -> Callable[[T], None]:
    """Return the function that prints an answer, as a JSON object or as text."""
    if as_json:
        return lambda answer: print_json(to_json(answer))
    return lambda answer: print(to_text(answer), flush=True)


def label_fields(candidates: Iterable[LabelProbability]) -> list[str]:
    """Return the fields of a line of labels: label, probability, the next label …"""
    return [field for each in candidates for field in (one_line(each.label), f"{each.probability:.4f}")]


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
            notes.see(_UNKNOWN, number, f": {unknown[0]!r}")
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
