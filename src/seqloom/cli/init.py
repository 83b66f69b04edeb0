"""`seqloom init`: write a recipe for texts, sentence pairs, labelled texts, tagged sentences or a series."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from seqloom.cli._output import check_parent_folder
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import is_unicode

TABLE_SUFFIXES = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".json")  # texts with labels
CONLL_SUFFIXES = (".conll", ".conllu", ".iob", ".bio", ".iob2")  # tagged sentences


def init(
    texts: Annotated[
        list[Path],
        typer.Argument(
            help="A UTF-8 text file, a .gz file, or a folder of .txt files. For a translator, two files; for a "
            "classifier a .csv, .tsv or .jsonl file; for a tagger a .conll or .conllu file. With --task forecast, a "
            ".csv file with a column of times and columns of numbers."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The recipe to write. [default: NAME.yaml]")] = None,
    tokens: Annotated[
        Literal["characters", "words", "byte-pair"] | None,
        typer.Option(help="The tokenizer. [default: depends on the task]"),
    ] = None,
    task: Annotated[
        Literal["language-model", "translate", "classify", "tag", "forecast"] | None,
        typer.Option(help="The task. [default: guessed from the files]"),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Classifiers: the text column. [default: text]")] = None,
    label: Annotated[str | None, typer.Option(help="Classifiers: the label column. [default: label]")] = None,
) -> None:
    """Write a commented recipe for your own data: `seqloom init corpus.txt`, then `seqloom train corpus.yaml`."""
    from seqloom.cli._recipe_drafts import Request, name_recipe, render_recipe
    from seqloom.core.files import write_atomic
    from seqloom.data.files import expand_home

    chosen = choose_task(texts, task, text is not None or label is not None)
    if chosen != "classify" and (text is not None or label is not None):
        raise UsageError("--text and --label require a classifier: add --task classify, or leave them out.")
    if chosen == "forecast" and tokens is not None:
        raise UsageError("--tokens requires texts; leave it out for a series.")
    for file in texts:
        if not expand_home(file).exists():
            hint = "" if file.is_absolute() else " and the current folder"
            raise DataError(f"{file} does not exist. Check the name{hint}.")
    name = name_recipe(chosen, texts)
    out = out or Path(f"{name or 'corpus'}.yaml")
    if out.exists():
        raise UsageError(f"{out} exists. Choose another name with --out, or remove it first.")
    if out.suffix not in (".yaml", ".yml"):
        raise UsageError(f"The name of a recipe must end in .yaml; got {out}.")
    check_parent_folder(out)
    recipe, notes = render_recipe(chosen, Request(texts, tokens, text, label), name, shlex.quote(str(out)))
    write_atomic(out, recipe)
    print(f"{' and '.join(map(str, texts))}: {notes[0]}.")
    for note in notes[1:]:
        print(f"{note}.")
    print(f"Wrote {out}. Check it, then run: seqloom train {shlex.quote(str(out))}")


def choose_task(texts: list[Path], task: str | None, columns: bool) -> str:
    """Return the given task, or guess it: two files are for a translator, one file is judged by its suffix."""
    for text in texts:
        if not is_unicode(str(text)):
            raise UsageError(f"The name of a file must be UTF-8; got {str(text)!r}. Rename the file.")
    if len(texts) > 2:
        raise UsageError(f"Name one file, or two files for a translator; got {len(texts)}.")
    if len(texts) == 2 and texts[0] == texts[1]:
        raise UsageError(f"A translator needs two different files; got {texts[0]} twice.")
    if len(texts) == 2 and task == "language-model":
        raise UsageError("A language model needs one file or folder; got two. Put the files into a folder and name it.")
    if len(texts) == 2 and task in ("classify", "tag", "forecast"):
        raise UsageError(f"The task {task} needs one file; got two. Name other files for dev and test in the recipe.")
    if task is not None:
        return task
    suffix = Path(texts[0].name.removesuffix(".gz")).suffix.lower()  # .csv of reviews.csv.gz
    if len(texts) == 2 or (suffix == ".tsv" and not columns):
        return "translate"
    if columns or suffix in TABLE_SUFFIXES:
        return "classify"
    return "tag" if suffix in CONLL_SUFFIXES else "language-model"
