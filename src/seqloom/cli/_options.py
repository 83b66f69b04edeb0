"""Arguments and options that several commands declare, each as an annotated type.

A command writes `device: Device = "auto"`. Where commands describe the same option in different
words, a function builds it from these: `as_json: Annotated[bool, json_option("One object per
query.")] = False`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.models import OptionInfo

from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import WHOLE_NUMBERS, format_value

BATCH_SIZE = 128
WINDOW_BATCHES = 8  # batches read before the first line is answered, so that lines of one length are read together


def option(name: str, help: str, least: int | None = None) -> OptionInfo:
    """Build an option with a name of its own."""
    return OptionInfo(default=..., param_decls=(name,), help=help, min=least)


def json_option(help: str) -> OptionInfo:
    """Build `--json`."""
    return option("--json", help)


def top_option(what: str) -> OptionInfo:
    """Build `--top`, which limits a ranking; `what` names what is ranked."""
    return option("--top", f"{what}, best first.", least=1)


def batch_option(help: str) -> OptionInfo:
    """Build `--batch`."""
    return option("--batch", help, least=1)


def window_option(unit: str) -> OptionInfo:
    """Build `--window`; `unit` names what is read, in the plural."""
    return option("--window", f"{unit} read before the first is answered. [default: {WINDOW_BATCHES} batches]", least=1)


def run_out_option(default: str) -> OptionInfo:
    """Build `--out` of commands that write a run; `default` describes the directory they choose."""
    return option("--out", f"Where to write the run. [default: {default}]")


Run = Annotated[Path, typer.Argument(help="A run directory.")]
TextRun = Annotated[Path, typer.Argument(help="A run directory of any text model.")]
NewRun = Annotated[Path, typer.Argument(help="The run directory to create.")]
NewFile = Annotated[Path, typer.Argument(help="The file to write; .gz is compressed.")]
Texts = Annotated[list[str] | None, typer.Argument(help="Texts. [default: the lines of standard input]")]
RecipeWords = Annotated[
    list[str] | None,
    typer.Argument(metavar="RECIPE [KEY=VALUE]...", help="The name of a recipe or a YAML file, then overrides."),
]

Batch = Annotated[int, batch_option("Lines read together.")]
Window = Annotated[int | None, window_option("Lines")]
Beam = Annotated[
    int | None, typer.Option("--beam", min=1, help="Beam size; 1 is greedy search. [default: the recipe's]")
]
Pooling = Annotated[
    Literal["mean", "first", "last", "max"], typer.Option("--pooling", help="How token vectors are pooled.")
]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder of the data sets. [default: SEQLOOM_DATA]")]
PictureOut = Annotated[Path | None, typer.Option("--out", help="Write a plot to this .png or .svg file.")]
JsonObject = Annotated[bool, json_option("One JSON object.")]
JsonLines = Annotated[bool, json_option("One object per line.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")]


def drop_unset(**options: object) -> dict[str, Any]:
    """Return the options that have a value; the others are left to the defaults of what is called."""
    return {name: value for name, value in options.items() if value is not None}


def parse_words(option: str, text: str, example: str) -> tuple[str, ...]:
    """Return the words of an option, which have commas between."""
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise UsageError(f"{option} takes one or more, with commas between, like {example}; got {text!r}.")
    return words


def parse_numbers(option: str, text: str, example: str) -> tuple[int, ...]:
    """Return the whole numbers of an option, which have commas between."""
    try:
        numbers = tuple(int(word) for word in parse_words(option, text, example))
    except ValueError:
        raise UsageError(
            f"{option} takes whole numbers with commas between, like {example}; got {format_value(text)}."
        ) from None
    if any(number not in WHOLE_NUMBERS for number in numbers):
        raise UsageError(f"{option} takes whole numbers of at most 64 bits, like {example}; got {format_value(text)}.")
    return numbers


def check_new_file(file: Path) -> None:
    """Refuse a file to write that exists."""
    if file.exists():
        raise UsageError(f"{file} exists. Choose another name, or remove it first.")


def check_import(file: Path, run: Path, what: str) -> None:
    """Refuse a file to import that is none, and a run directory that exists."""
    if run.exists():
        raise UsageError(f"{run} exists. Name a run directory that is not there yet.")
    if not file.is_file():
        raise DataError(f"{file} is a folder, not {what}." if file.exists() else f"{file} does not exist.")
