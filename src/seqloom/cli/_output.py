"""Output of the commands: predictions, JSON, tables, plots and notes."""

import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from seqloom.cli._input import open_lines
from seqloom.core.errors import UsageError
from seqloom.core.words import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table

    from seqloom.predict.base import AnyPredictor, P, Predictor

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
    """Read texts or lines of standard input, apply a method of a model to them, and print its predictions."""
    lines, size = open_lines(texts, batch, window)
    print_predictions(model, predict(lines, batch_size=batch, window=size, stream=True, **options), as_json, to_line)


def print_predictions(
    model: "Predictor[P]",
    predictions: "Iterable[P]",
    as_json: bool,
    to_line: "Callable[[P], str] | None" = None,
    print_one: "Callable[[P], None] | None" = None,
) -> None:
    """Print each prediction as soon as it is computed; then print notes on problematic lines to standard error.

    `to_line` and `print_one` replace the default format of a prediction.
    """
    for prediction in note_problems(model, predictions, "line"):
        if as_json:
            print_json(prediction.to_json())
        elif print_one is not None:
            print_one(prediction)
        else:
            print(prediction.to_line() if to_line is None else to_line(prediction), flush=True)


def format_lists(to_fields: "Callable[[P], Iterable[Sequence[str]]]") -> "Callable[[P], str]":
    """Return a function that formats n-best lists as Moses does.

    Each candidate has a line that contains the number of the input, counted from 0, and the fields of the candidate.
    """
    numbers = itertools.count()

    def to_lines(prediction: "P") -> str:
        number = next(numbers)
        return "\n".join(" ||| ".join((str(number), *fields)) for fields in to_fields(prediction))

    return to_lines


def note_problems(model: "Predictor[P]", predictions: "Iterable[P]", unit: str) -> "Iterator[P]":
    """Yield predictions, then print notes on problematic lines; `unit` is line or row."""
    notes = Notes(unit)
    for number, prediction in enumerate(predictions, start=1):
        yield prediction
        if prediction.unknown and not model.reads_characters:
            notes.add(UNKNOWN, number, f": {prediction.unknown[0]!r}")
        for note, applies in model.notes.items():
            if details := applies(prediction):
                details = f": {details}" if isinstance(details, str) else ""
                notes.add(note.replace("{max_length}", str(model.max_length)), number, details)
    notes.show()


class Notes:
    """Counts of problematic lines, by kind of problem."""

    def __init__(self, unit: str = "line") -> None:
        self.unit = unit
        self._lines: dict[str, tuple[int, int, str]] = {}  # note → number of lines, first line, details

    def add(self, note: str, number: int, details: str = "") -> None:
        """Count a line for a note. The placeholder {lines} in `note` is later replaced by the number of lines."""
        count, first, details = self._lines.get(note, (0, number, details))
        self._lines[note] = count + 1, first, details

    def show(self) -> None:
        """Print each note with the number of input lines that it applies to."""
        for note, (count, first, details) in self._lines.items():
            lines = note.format(lines=format_count(count, self.unit))
            print_notes([f"{lines}; the first is {self.unit} {first:,}{details}"])


def note_unknown(lines: Iterable[str], model: "AnyPredictor", notes: Notes) -> Iterator[str]:
    """Yield lines, and count the lines that contain pieces outside the vocabulary."""
    for number, line in enumerate(lines, start=1):
        if unknown := find_unknown_pieces(model, line):
            notes.add(UNKNOWN, number, f": {unknown[0]!r}")
        yield line


def find_unknown_pieces(model: "AnyPredictor", text: str) -> list[str]:
    """Return the parts of a text that are not in the vocabulary; the list is empty if the model reads characters."""
    return [] if model.reads_characters else model.tokenizer.unknown_pieces(text.strip())


def print_notes(notes: Iterable[str]) -> None:
    """Print notes on standard error."""
    for note in notes:
        typer.echo(f"note: {note}", err=True)


# --- values ---------------------------------------------------------------------------------------------------------


def print_json(value: Mapping[str, object]) -> None:
    """Print a JSON object on one line."""
    print(json_line(value), flush=True)


def json_line(value: Mapping[str, object]) -> str:
    """Return a JSON object on one line. Only line separators and unpaired surrogates are escaped."""
    text = json.dumps(to_plain(value), allow_nan=False, ensure_ascii=False)
    return re.sub("[\x85\u2028\u2029\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def to_plain(value: Any) -> Any:
    """Convert a value to JSON types: dataclasses become objects, arrays lists, and non-finite numbers null."""
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
    return to_plain(value.tolist()) if hasattr(value, "tolist") else str(value)


# --- files ----------------------------------------------------------------------------------------------------------


def show_view(
    out: Path | None, draw: "Callable[[], Figure]", as_json: bool, json: Callable[[], Json], text: Callable[[], None]
) -> None:
    """Plot a view if `out` is given, then print the view or its JSON.

    The plot is written first because `… | head` may interrupt printing.
    """
    if out is not None:
        write_plot(out, draw())
    print_json(json()) if as_json else text()


def check_plot_path(out: Path | None) -> None:
    """Raise an error before any work if a plot could not be written."""
    if out is not None:
        from seqloom.inspect.plots.figures import check_figure_path

        check_figure_path(out)


def write_plot(
    out: Path, figure: "Figure", keep_text: bool = False, warning: str | None = None, message: str = "Wrote {}."
) -> None:
    """Write a plot.

    `warning` names characters that no font contains. The warning is printed only for PNG files, which contain text as
    pixels.
    """
    from seqloom.core.files import write_atomic
    from seqloom.inspect.plots.figures import to_bytes

    if warning and out.suffix.lower() == ".png":
        print_notes([f"{warning}."])
    write_atomic(out, to_bytes(figure, out.suffix, keep_text))
    typer.echo(message.format(out), err=True)


def check_new_output(path: Path | None, what: str) -> None:
    """Raise an error before any work if an output file exists or could not be written."""
    if path is None:
        return
    from seqloom.core.files import check_writable

    if path.is_dir():
        raise UsageError(f"{path} is a folder. Name a file for the {what}.")
    if path.exists():
        raise UsageError(f"{path} exists. Choose another name for the {what}, or remove it first.")
    check_parent_folder(path)
    check_writable(path)


def check_parent_folder(path: Path) -> None:
    """Raise an error if the folder of a file does not exist."""
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: the folder {path.parent} does not exist. Create it first.")


def write_output(path: Path, lines: Iterable[str], what: str) -> None:
    """Write lines to a file and print its name."""
    from seqloom.core.files import write_atomic

    write_atomic(path, "".join(lines))
    typer.echo(f"The {what} are in {path}.", err=True)


# --- terminals ------------------------------------------------------------------------------------------------------


def open_console(color: bool | None) -> tuple["Console", bool]:
    """Return a console and whether it uses colours; the default depends on the terminal."""
    from rich.console import Console

    if color is None:
        console = Console(highlight=False)
        return console, console.color_system is not None and not console.no_color
    if color and not sys.stdout.isatty():  # the number of colours is unknown
        return Console(highlight=False, force_terminal=True, color_system="truecolor", no_color=False), True
    return Console(highlight=False, no_color=not color), color


def open_wide_console(width: int = 200) -> "Console":
    """Return a console as wide as the terminal, or with `width` columns for a pipe, so that nothing is cropped."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else width)


def make_table(heads: Iterable[str], left: int = 1, fold: int = 0) -> "Table":
    """Return a table without borders. The first `left` columns are left-aligned, and the first `fold` columns wrap."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for column, head in enumerate(heads):
        if column < fold:
            table.add_column(Text(head), overflow="fold")
        else:
            table.add_column(Text(head), justify="left" if column < left else "right", no_wrap=True)
    return table


def align_cells(cells: Iterable[object], width: int) -> str:
    """Join cells, each right-aligned in `width` characters."""
    return "".join(f"{cell!s:>{width}}" for cell in cells)
