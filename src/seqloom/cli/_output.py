"""What commands print: predictions line by line, JSON, tables, plots, and notes on lines with problems."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from seqloom.cli._input import open_lines
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table

    from seqloom.predict.base import P, Prediction, Predictor

Json = dict[str, object]
UNKNOWN = "the vocabulary lacks parts of {lines}"


# --- predictions ----------------------------------------------------------------------------------------------------


def predict_lines(
    model: "Predictor[P]",
    predict: "Callable[..., Iterable[P]]",
    texts: list[str] | None,
    batch: int,
    window: int | None,
    as_json: bool,
    to_line: "Callable[[P], str] | None" = None,
    **options: object,
) -> None:
    """Read texts, or lines of standard input, predict them by a method of a model, and print the predictions."""
    lines, size = open_lines(texts, batch, window)
    print_predictions(model, predict(lines, batch_size=batch, window=size, **options), as_json, to_line)


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
    notes = Notes()
    for number, prediction in enumerate(predictions, start=1):
        if as_json:
            print_json(prediction.to_json())
        elif print_one is not None:
            print_one(prediction)
        else:
            print(prediction.to_line() if to_line is None else to_line(prediction), flush=True)
        if prediction.unknown and not model.spells:
            notes.see(UNKNOWN, number, f": {prediction.unknown[0]!r}")
        for note, applies in model.problems.items():
            if applies(prediction):
                notes.see(note.replace("{longest}", str(model.longest)), number)
    notes.show()


class Notes:
    """How many lines were not answered as one might think, and the first of each sort; said at the end."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[int, int, str]] = {}  # what to say → of how many lines, the first, more on it

    def see(self, note: str, number: int, more: str = "") -> None:
        """Count a line; `note` has {lines} where the number of lines belongs."""
        count, first, about_first = self._lines.get(note, (0, number, more))
        self._lines[note] = count + 1, first, about_first

    def show(self) -> None:
        """Print what was counted."""
        for note, (count, first, more) in self._lines.items():
            lines = note.format(lines="1 line" if count == 1 else f"{count:,} lines")
            print_notes([f"{lines}; the first is line {first:,}{more}"])


def note_unknown(lines: Iterable[str], model: "Predictor[Prediction]", notes: Notes) -> Iterator[str]:
    """Yield the lines as they are read, noting those with parts that the vocabulary lacks."""
    for number, line in enumerate(lines, start=1):
        if unknown := unknown_pieces(model, line):
            notes.see(UNKNOWN, number, f": {unknown[0]!r}")
        yield line


def unknown_pieces(model: "Predictor[Prediction]", text: str) -> list[str]:
    """Return the parts of a text that a model's vocabulary lacks; none, where it reads characters too."""
    return [] if model.spells else model.tokenizer.unknown_pieces(text.strip())


def print_notes(notes: Iterable[str]) -> None:
    """Print notes on standard error."""
    for note in notes:
        typer.echo(f"note: {note}", err=True)


# --- values ---------------------------------------------------------------------------------------------------------


def print_json(value: Mapping[str, object]) -> None:
    """Print one JSON object on a line, in plain ASCII."""
    print(json.dumps(to_plain(value), allow_nan=False), flush=True)


def to_plain(value: Any) -> Any:
    """Return a value as JSON has it: dataclasses as objects, arrays as lists; numbers that are not finite as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    return str(value) if isinstance(value, Path) else to_plain(value.tolist())


# --- files ----------------------------------------------------------------------------------------------------------


def show_view(
    out: Path | None, draw: "Callable[[], Figure]", as_json: bool, json: Callable[[], Json], text: Callable[[], None]
) -> None:
    """Draw a view if there is a file for it, first, so that `… | head` has it too; then print it, or its JSON."""
    if out is not None:
        write_picture(out, draw())
    print_json(json()) if as_json else text()


def check_out(out: Path | None) -> None:
    """Refuse, before any work, what could not be drawn."""
    if out is not None:
        from seqloom.inspect.plots.figures import check_figure_path

        check_figure_path(out)


def write_picture(
    out: Path, figure: "Figure", keep_text: bool = False, complaint: str | None = None, said: str = "drawn: {}"
) -> None:
    """Write a plot; `complaint` says which letters no font has, which matters where text does not stay text."""
    from seqloom.core.files import write_atomic
    from seqloom.inspect.plots.figures import to_bytes

    if complaint and out.suffix.lower() == ".png":
        print_notes([f"{complaint}."])
    write_atomic(out, to_bytes(figure, out.suffix, keep_text))
    typer.echo(said.format(out), err=True)


def check_answers(path: Path | None, what: str) -> None:
    """Refuse, before any work, a file for all answers that could not be written in the end, or that is there."""
    if path is None:
        return
    from seqloom.core.files import check_writable

    if path.is_dir():
        raise UsageError(f"{path} is a folder. Name a file for the {what}.")
    if path.exists():
        raise UsageError(f"{path} exists. Choose another name for the {what}, or remove it first.")
    check_folder(path)
    check_writable(path)


def check_folder(path: Path) -> None:
    """Refuse a file in a folder that does not exist."""
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: the folder {path.parent} does not exist. Make it first.")


def write_answers(path: Path, lines: Iterable[str], what: str) -> None:
    """Write all answers to a file, and say so."""
    from seqloom.core.files import write_atomic

    write_atomic(path, "".join(lines))
    typer.echo(f"The {what} are in {path}.", err=True)


# --- terminals ------------------------------------------------------------------------------------------------------


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
    for column, head in enumerate(heads):
        if column < fold:
            table.add_column(Text(head), overflow="fold")
        else:
            table.add_column(Text(head), justify="left" if column < left else "right", no_wrap=True)
    return table


def columns(cells: Iterable[object], width: int) -> str:
    """Return cells as one line, each right-aligned in `width` characters."""
    return "".join(f"{cell!s:>{width}}" for cell in cells)
