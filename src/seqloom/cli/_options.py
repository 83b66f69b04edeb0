"""Arguments and options shared by several commands, as annotated types.

A command declares, for example, `device: Device = "auto"`. Functions build options whose help differs between
commands: `as_json: Annotated[bool, json_option("One JSON object per query.")] = False`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.models import OptionInfo

from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import WHOLE_NUMBERS, format_value

BATCH_SIZE = 128
WINDOW_BATCHES = 8  # number of batches that are buffered before the first prediction, to sort lines by length


def option(name: str, help: str, minimum: int | None = None) -> OptionInfo:
    """Build an option with an explicit name."""
    return OptionInfo(default=..., param_decls=(name,), help=help, min=minimum)


def json_option(help: str) -> OptionInfo:
    """Build `--json`."""
    return option("--json", help)


def top_option(what: str) -> OptionInfo:
    """Build `--top`, which limits a ranking; `what` is the help text without the words on the order."""
    return option("--top", f"{what}, best first.", minimum=1)


def batch_option(help: str) -> OptionInfo:
    """Build `--batch`."""
    return option("--batch", help, minimum=1)


def window_option(unit: str) -> OptionInfo:
    """Build `--window`; `unit` names the items, in the plural."""
    return option(
        "--window", f"{unit} read before the first prediction. [default: {WINDOW_BATCHES} batches]", minimum=1
    )


def run_out_option(default: str) -> OptionInfo:
    """Build `--out` for commands that write a run; `default` describes the default directory."""
    return option("--out", f"The run directory to create. [default: {default}]")


Run = Annotated[Path, typer.Argument(help="A run directory.")]
TextRun = Annotated[Path, typer.Argument(help="A run directory of any text model.")]
NewRun = Annotated[Path, typer.Argument(help="The run directory to create.")]
NewFile = Annotated[Path, typer.Argument(help="The file to write, compressed if its name ends in .gz.")]
Texts = Annotated[list[str] | None, typer.Argument(help="Texts. [default: the lines of standard input]")]
RecipeWords = Annotated[
    list[str] | None,
    typer.Argument(metavar="RECIPE [KEY=VALUE]...", help="The name of a recipe or a YAML file, then overrides."),
]

Batch = Annotated[int, batch_option("Number of lines per batch.")]
Window = Annotated[int | None, window_option("Lines")]
Beam = Annotated[
    int | None, typer.Option("--beam", min=1, help="Beam size; 1 is greedy search. [default: the recipe's]")
]
Pooling = Annotated[
    Literal["mean", "first", "last", "max"], typer.Option("--pooling", help="How token vectors are pooled.")
]
InputColumns = Annotated[
    list[str] | None,
    typer.Option("--column", help="The name or number of a column that the model reads; repeat the option for pairs."),
]
LabelColumn = Annotated[
    str | None, typer.Option("--label", help="The name or number of the column of the labels or correct answers.")
]
MinProbability = Annotated[
    float | None,
    typer.Option(
        "--min-probability",
        min=0,
        max=1,
        help="Abstain below this probability: print - instead of a label. A multi-label classifier prints all labels "
        "with at least this probability. [default: the thresholds of the run, if any]",
    ),
]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder of the data sets. [default: SEQLOOM_DATA]")]
RunData = Annotated[
    Path | None,
    typer.Option("--data", help="New location of the run's data, if the files have moved: a file or a folder."),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="NAME",
        help="Also log to this tracker: mlflow, wandb or tensorboard. The option may be repeated.",
    ),
]
PlotOut = Annotated[Path | None, typer.Option("--out", help="Write a plot to this .png or .svg file.")]
JsonObject = Annotated[bool, json_option("One JSON object.")]
JsonLines = Annotated[bool, json_option("One JSON object per line.")]
Device = Annotated[str, typer.Option("--device", help="Device: auto, cpu, cuda, cuda:N or mps.")]


def drop_unset(**options: object) -> dict[str, Any]:
    """Return the options that are not None; the callee uses its defaults for the other options."""
    return {name: value for name, value in options.items() if value is not None}


def parse_words(option: str, text: str, example: str) -> tuple[str, ...]:
    """Split the comma-separated values of an option."""
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise UsageError(f"{option} must be values separated by commas, such as {example}; got {text!r}.")
    return words


def parse_numbers(option: str, text: str, example: str) -> tuple[int, ...]:
    """Parse the comma-separated whole numbers of an option."""
    try:
        numbers = tuple(int(word) for word in parse_words(option, text, example))
    except ValueError:
        raise UsageError(
            f"{option} must be whole numbers separated by commas, such as {example}; got {format_value(text)}."
        ) from None
    if any(number not in WHOLE_NUMBERS for number in numbers):
        raise UsageError(
            f"{option} must be whole numbers of at most 64 bits, such as {example}; got {format_value(text)}."
        )
    return numbers


def check_new_file(file: Path) -> None:
    """Raise an error if a file to write exists."""
    if file.exists():
        raise UsageError(f"{file} exists. Choose another name, or remove it first.")


def check_import(file: Path, run: Path, what: str) -> None:
    """Raise an error if the path to import is not a file, or if the run directory exists."""
    if run.exists():
        raise UsageError(f"{run} exists. Name a new run directory.")
    if not file.is_file():
        raise DataError(f"{file} is a folder, not {what}." if file.exists() else f"{file} does not exist.")
