"""Write a recipe for one's own text, sentence pairs, texts with labels, tagged sentences or series."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from seqloom.cli._output import check_folder
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import is_unicode

TABLES = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".json")  # as files of texts and labels may end
CONLL = (".conll", ".conllu", ".iob", ".bio", ".iob2")  # and tagged sentences


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
    from seqloom.cli._recipe_drafts import Request, recipe_name, write_recipe
    from seqloom.core.files import write_atomic
    from seqloom.data.files import expand_home

    chosen = choose_task(texts, task, text is not None or label is not None)
    if chosen != "classify" and (text is not None or label is not None):
        raise UsageError("--text and --label name columns of a table for a classifier: --task classify.")
    if chosen == "forecast" and tokens is not None:
        raise UsageError("--tokens is about texts; a series has numbers.")
    for file in texts:
        if not expand_home(file).exists():
            folder = "" if file.is_absolute() else ", and from which folder the command is run"
            raise DataError(f"{file} does not exist. Check the name{folder}.")
    name = recipe_name(chosen, texts)
    out = out or Path(f"{name or 'corpus'}.yaml")
    if out.exists():
        raise UsageError(f"{out} exists. Choose another name with --out, or remove it first.")
    if out.suffix not in (".yaml", ".yml"):
        raise UsageError(f"A recipe's name must end in .yaml; got {out}.")
    check_folder(out)
    recipe, notes = write_recipe(chosen, Request(texts, tokens, text, label), name, shlex.quote(str(out)))
    write_atomic(out, recipe)
    print(f"{' and '.join(map(str, texts))}: {notes[0]}.")
    for note in notes[1:]:
        print(f"{note}.")
    print(f"Wrote {out}. Look it over, then: seqloom train {shlex.quote(str(out))}")


def choose_task(texts: list[Path], task: str | None, columns: bool) -> str:
    """What to train, if it is not said: two files are for a translator, and names tell what one file holds."""
    for text in texts:
        if not is_unicode(str(text)):
            raise UsageError(f"The name of the text must be UTF-8, got {str(text)!r}. Rename the file.")
    if len(texts) > 2:
        raise UsageError(f"Give one text, or two files for a translator; got {len(texts)}.")
    if len(texts) == 2 and texts[0] == texts[1]:
        raise UsageError(f"A translator needs two different files; got {texts[0]} twice.")
    if len(texts) == 2 and task == "language-model":
        raise UsageError("A language model is made from one text; put several files into a folder and name that.")
    if len(texts) == 2 and task in ("classify", "tag", "forecast"):
        raise UsageError(f"For the task {task} name one file; files of their own for dev and test go into the recipe.")
    if task is not None:
        return task
    ending = Path(texts[0].name.removesuffix(".gz")).suffix.lower()  # .csv of reviews.csv.gz
    if len(texts) == 2 or (ending == ".tsv" and not columns):
        return "translate"
    if columns or ending in TABLES:
        return "classify"
    return "tag" if ending in CONLL else "language-model"
