"""`seqloom init`: write a recipe for the user's data."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqloom.cli._options import Device, InputColumns, LabelColumn
from seqloom.cli._output import check_parent_folder
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import is_unicode

if TYPE_CHECKING:
    from seqloom.data.detected import Detected

TASKS = Literal[
    "language-model",
    "translate",
    "classify",
    "tag",
    "pair",
    "choice",
    "answer",
    "instruct",
    "forecast",
    "series-classify",
    "classify-images",
    "caption",
    "vqa",
    "word-vectors",
]
OBJECTIONS = {  # options that override the recognized task
    "classify": "--column and --label name other columns",
    "translate": "--column SOURCE and --label TARGET name other columns, and --task classify reads texts with labels",
    "pair": "--task classify or --task translate reads it as labelled texts or as translations",
    "language-model": "--task tag reads a word and its tag on each line",
}


def init(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Your data: a text file or a folder of .txt files; a .csv, .tsv, .jsonl or .parquet table; a .conll, "
            ".tmx, .xliff or .po file; a SQuAD .json file; a folder with a subfolder of images for each label; a "
            "folder of images and a table of captions; two files aligned by line for a translator; or files named "
            "after train, dev and test. Files may end in .gz or .zst."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The recipe to write. [default: NAME.yaml]")] = None,
    task: Annotated[TASKS | None, typer.Option(help="The task. [default: detected from the files]")] = None,
    column: InputColumns = None,
    label: LabelColumn = None,
    dev: Annotated[
        list[Path] | None,
        typer.Option(help="A file for dev, or two aligned files. [default: a part of the training data]"),
    ] = None,
    test: Annotated[
        list[Path] | None,
        typer.Option(help="A file for test, or two aligned files. [default: a part of the training data]"),
    ] = None,
    multi_label: Annotated[
        bool | None,
        typer.Option(
            "--multi-label/--single-label",
            help="Whether a text can have several labels. [default: detected from the data]",
        ),
    ] = None,
    tokens: Annotated[
        Literal["characters", "words", "byte-pair"] | None,
        typer.Option(help="The tokenizer. [default: depends on the task]"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model, such as lstm or transformer. [default: depends on the data and the device]"),
    ] = None,
    pretrained: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Fine-tune this model: a run, a Hugging Face directory, a model on the Hugging Face hub, or minilm.",
        ),
    ] = None,
    device: Device = "auto",
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Choose a model and a number of epochs so that training on this machine takes at most this many "
            "minutes.",
        ),
    ] = None,
    estimate: Annotated[bool, typer.Option(help="Train a few steps to estimate time and memory.")] = True,
) -> None:
    """Write a commented recipe for your own data: `seqloom init corpus.txt`, then `seqloom train corpus.yaml`."""
    from seqloom.core.device import choose_device
    from seqloom.core.files import write_atomic
    from seqloom.data.detect import detect, first_text
    from seqloom.data.files import use_encoding
    from seqloom.data.table_profile import NamedColumns
    from seqloom.data.tables import find_encoding
    from seqloom.recipes.drafts import Request, draft_recipe, name_recipe, shorten_training, smaller_drafts

    columns = NamedColumns(tuple(column or ()), label)
    held_out = {split: names for split, names in (("dev", dev), ("test", test)) if names}
    check_names([*files, *(file for names in held_out.values() for file in names)])
    encoding = find_encoding(first_text(files, task))
    with use_encoding(encoding):
        detected = detect(files, task, columns, multi_label, held_out)
    if multi_label is not None and detected.task != "classify":
        raise UsageError("--multi-label and --single-label require a classifier: add --task classify.")
    if detected.task in ("forecast", "series-classify", "classify-images") and tokens is not None:
        raise UsageError("--tokens requires texts; leave it out for a series or images.")
    name = name_recipe(detected.task, files)
    out = out or Path(f"{name or 'corpus'}.yaml")
    if out.exists():
        raise UsageError(f"{out} exists. Choose another name with --out, or remove it first.")
    if out.suffix not in (".yaml", ".yml"):
        raise UsageError(f"The name of a recipe must end in .yaml; got {out}.")
    check_parent_folder(out)
    run = None if pretrained is None else find_run(pretrained)
    request = Request(files, task, tokens, model, run, choose_device(device).type)
    draft = draft_recipe(detected, request, encoding, name, shlex.quote(str(out)))
    write_atomic(out, draft.recipe)
    print(f"{' and '.join(map(str, files))}: {detected.reason}. {draft.notes[0]}.")
    if task is None and not columns and len(files) == 1 and (objection := object_to(detected, files[0])):
        print(f"If this is wrong: {objection}.")
    if encoding != "utf-8":
        is_folder = files[0].is_dir()
        note = (
            f"Files that are not UTF-8 are read as {encoding}"
            if is_folder
            else f"The encoding is {encoding}, not UTF-8"
        )
        print(f"{note}; the recipe sets data.encoding.")
    for note in draft.notes[1:]:
        print(f"{note}.")
    if detected.task in ("pair", "choice", "answer") and run is None:
        print("A pretrained model is usually much better at this task: use --from, for example --from minilm.")
    if minutes is not None:
        drafts = smaller_drafts(draft.setting_name, detected, request, encoding, name, shlex.quote(str(out)))
        seconds = rehearse_recipe(out, draft.notes)
        while seconds is not None and seconds > 60 * minutes:
            smaller = next(drafts, None)
            draft = smaller or replace(draft, recipe=shorten_training(draft.recipe, 60 * minutes / seconds))
            write_atomic(out, draft.recipe)
            seconds = None if smaller is None else rehearse_recipe(out, draft.notes)
    elif estimate:
        rehearse_recipe(out, draft.notes)
    print(f"Wrote {out}. Check it, then run: seqloom train {shlex.quote(str(out))}")


def object_to(detected: "Detected", file: Path) -> str:
    """Return the options that change what was recognized in a file, or "" if there are none."""
    if detected.data["corpus"] == "parallel" and detected.alternatives:
        source, target = map(shlex.quote, detected.alternatives)
        return f"--column {source} --label {target} trains the other direction"
    if not file.is_file() or detected.task not in OBJECTIONS:
        return ""
    single = "--single-label reads one label per text; " if detected.data.get("multi_label") else ""
    if detected.alternatives:
        names = " or ".join(f"--label {shlex.quote(name)}" for name in detected.alternatives[:3])
        return f"{single}{names} selects another column of labels, and --column selects the texts"
    return single + OBJECTIONS[detected.task]


def check_names(files: list[Path]) -> None:
    from seqloom.data.files import expand_home

    for file in files:
        if not is_unicode(str(file)):
            raise UsageError(f"The name of a file must be UTF-8; got {str(file)!r}. Rename the file.")
        if not expand_home(file).exists():
            folder = "" if file.is_absolute() else " and the current folder"
            raise DataError(f"{file} does not exist. Check the name{folder}.")


def find_run(source: str) -> Path:
    """Return the run to fine-tune. MiniLM, Hugging Face directories and models on the hub are imported first."""
    from seqloom.cli.exchange import import_hf, import_minilm
    from seqloom.data.files import expand_home
    from seqloom.exchange.hub import is_model_name

    path = expand_home(Path(source))
    is_minilm = source == "minilm" and not path.exists()
    run = Path("runs") / path.name
    is_on_hub = is_model_name(source) and not path.parent.exists()
    if not (is_minilm or is_on_hub or path.exists()):
        raise UsageError(f"--from {source}: there is no such run or directory.")
    if (path / "recipe.yaml").exists():
        return path
    if not run.exists():
        if is_minilm:
            import_minilm(run)
        else:
            import_hf(str(path), run)
    return run


def rehearse_recipe(path: Path, known: Sequence[str] = ()) -> float | None:
    """Train a few steps, print the time and memory of the complete run, and return the time in seconds.

    Warnings that repeat one of the `known` notes are not printed.
    """
    from seqloom.cli.doctor import describe_budget
    from seqloom.inspect.doctor import examine
    from seqloom.recipes import read_recipe
    from seqloom.train.display import show_preparation

    with show_preparation():
        diagnosis = examine(read_recipe(path)[1])
    for line in describe_budget(diagnosis):
        print(line)
    for warning in diagnosis.warnings:
        if warning.replace(f"{Path.cwd()}/", "").rstrip(".") not in known:
            print(f"warning: {warning}")
    return diagnosis.seconds
