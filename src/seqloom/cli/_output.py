"""What commands print: predictions line by line, JSON, and notes on lines with problems."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import category

import typer

from seqloom.core.errors import UsageError
from seqloom.core.metrics import OF_HUNDRED

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table

    from seqloom.predict.base import P, Predictor

_COMMANDS = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of pairs, ends of lines and paragraphs
_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # letters after these run another way
_UNKNOWN = "the vocabulary lacks parts of {lines}"


def print_predictions(
    model: "Predictor[P]",
    predictions: "Iterable[P]",
    as_json: bool,
    to_line: "Callable[[P], str] | None" = None,
    print_one: "Callable[[P], None] | None" = None,
) -> None:
    """Print each prediction as soon as it is computed; at the end, note on standard error which lines had problems.

    `to_line` and `print_one` replace the line that a prediction itself gives.
    """
    notes, problems = Notes(), model.problems()
    for number, prediction in enumerate(predictions, start=1):
        if as_json:
            print_json(prediction.to_json())
        elif print_one is not None:
            print_one(prediction)
        else:
            print(prediction.to_line() if to_line is None else to_line(prediction), flush=True)
        if prediction.unknown and not model.spells:
            notes.see(_UNKNOWN, number, f": {prediction.unknown[0]!r}")
        for note, applies in problems.items():
            if applies(prediction):
                notes.see(note, number)
    notes.show()


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on a line, in plain ASCII; numbers that are not finite become null."""
    print(json.dumps(finite(value), allow_nan=False), flush=True)


def finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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


def escaped(text: str) -> str:
    """A text as a person may see it: what would command the terminal, or turn the order of letters, is spelled out."""
    return "".join(
        _spelled(letter) if letter in _TURNING or category(letter) in _COMMANDS else letter for letter in text
    )


def _spelled(letter: str) -> str:
    return letter if letter == "\t" else letter.encode("unicode_escape").decode("ascii")


def unknown_seen(lines: Iterable[str], model: "Predictor[Any]", notes: "Notes") -> Iterator[str]:
    """The lines as they are read; those with parts that the vocabulary lacks are noted."""
    for number, line in enumerate(lines, start=1):
        if unknown := unknown_of(model, line):
            notes.see(_UNKNOWN, number, f": {unknown[0]!r}")
        yield line


def unknown_of(model: "Predictor[Any]", text: str) -> list[str]:
    """Return the parts of a text that a model's vocabulary lacks; none, where it reads characters too."""
    return [] if model.spells else model.tokenizer.unknown_pieces(text.strip())


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


def check_out(out: Path | None) -> None:
    """Refuse, before any work, what could not be drawn."""
    if out is not None:
        from seqloom.inspect.plots.figures import check_picture

        check_picture(out)


def write_picture(out: Path, figure: "Figure", text_stays_text: bool = False) -> None:
    from seqloom.core.files import write_atomic
    from seqloom.inspect.plots.figures import to_bytes

    write_atomic(out, to_bytes(figure, out.suffix, text_stays_text))
    typer.echo(f"drawn: {out}", err=True)


def coloured_console(color: bool | None) -> tuple["Console", bool]:
    """Return where to print, and whether in colours: as told, else by the terminal."""
    from rich.console import Console

    if color is None:
        console = Console(highlight=False)
        return console, console.color_system is not None and not console.no_color
    if color and not sys.stdout.isatty():  # nobody can be asked how many colours there are
        return Console(highlight=False, force_terminal=True, color_system="truecolor", no_color=False), True
    return Console(highlight=False, no_color=not color), color


def wide_console(width: int = 200) -> "Console":
    """Return a console as wide as the terminal; a pipe has `width` columns, so that nothing is cut off."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else width)


def plain_table(heads: Iterable[str], left: int = 1, fold: int = 0) -> "Table":
    """Return a table without lines: the first `left` columns to the left, and the first `fold` in several lines."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for place, head in enumerate(heads):
        if place < fold:
            table.add_column(Text(head), overflow="fold")
        else:
            table.add_column(Text(head), justify="left" if place < left else "right", no_wrap=True)
    return table


def format_metric(name: str, value: float) -> str:
    """Return a value with two digits after the point if it goes from 0 to 100, otherwise four."""
    if name in OF_HUNDRED:
        return f"{value:.2f}"
    return f"{value:{'.4f' if value < 1e6 else '.3e'}}"
