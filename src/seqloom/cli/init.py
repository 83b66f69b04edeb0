"""Write a recipe for one's own text, sentence pairs, texts with labels, tagged sentences or series."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import is_unicode

TEMPLATE = """\
# Language model on {name}: made by `seqloom init`, yours to change. Train it with: seqloom train {recipe}
task: language-model
seed: 1                     # the same seed gives the same model, to the bit

data:
  corpus: text
  train: {path}             # a file, a .gz file, or a folder of .txt files
  documents: {documents}           # what a document is: file, line or paragraph
  dev_fraction: {fraction}        # cut from the end of the text, to choose by
  test_fraction: {fraction}       # cut after that, to report; or name files: dev: …, test: …

tokenizer:
{tokenizer}

batch:
  rows: {rows}                  # sequences read side by side; less if memory is short
  chunk: 64                 # tokens between two cuts of the gradient

model:
  kind: recurrent-lm
  cell: lstm                # or elman, gru, gru-cho: `seqloom list cells`
  layers: {layers}
  hidden: {hidden}
  dropout: {dropout}              # higher if dev gets worse while train gets better

train:
  epochs: {epochs}                # passes over the text
  optimizer: adamw          # or sgd, adam
  lr: {lr}
  schedule: cosine          # or constant, inverse-sqrt, plateau
  warmup: 50                # steps of climbing to lr
  clip: 1.0                 # longest gradient
  patience: 5               # stop after so many evaluations without a new best
  device: auto              # or cpu, cuda, mps
"""

TOKENIZERS = {
    "characters": "  kind: characters          # or words, byte-pair: see docs/recipes.md",
    "words": """\
  kind: words               # or characters, byte-pair: see docs/recipes.md
  split: punctuation        # marks apart from words
  min_count: 2              # rarer words become <unk>""",
    "byte-pair": """\
  kind: byte-pair           # or characters, words: see docs/recipes.md
  size: {size}                # tokens in the vocabulary; a translator's two languages share it""",
}


@dataclass(frozen=True)
class Size:
    """A model that fits an amount of text: small enough to train in minutes where the text is small."""

    rows: int
    layers: int
    hidden: int
    dropout: float
    epochs: int
    lr: str


def size_for(characters: int) -> Size:
    if characters < 100_000:
        return Size(rows=max(1, min(8, characters // 256)), layers=1, hidden=128, dropout=0.2, epochs=30, lr="1.0e-2")
    if characters < 2_000_000:
        return Size(rows=32, layers=1, hidden=256, dropout=0.2, epochs=15, lr="1.0e-2")
    return Size(rows=64, layers=2, hidden=512, dropout=0.2, epochs=10, lr="2.0e-3")


def init(
    texts: Annotated[
        list[Path],
        typer.Argument(
            help="A UTF-8 text file, a .gz file, or a folder of .txt files. For a translator, two files; for a "
            "classifier a .csv, .tsv or .jsonl file; for a tagger a .conll or .conllu file. With --task forecast, a "
            ".csv file with a column of times and columns of numbers."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The recipe to write. [default: NAME.yaml here]")] = None,
    tokens: Annotated[
        Literal["characters", "words", "byte-pair"] | None,
        typer.Option(help="What a token is. [default: by the task]"),
    ] = None,
    task: Annotated[
        Literal["language-model", "translate", "classify", "tag", "forecast"] | None,
        typer.Option(help="What to train. [default: by the number of files and how their names end]"),
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="For a classifier: the column of the texts. [default: the one called text]")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="For a classifier: the column of the labels. [default: the one called label]")
    ] = None,
) -> None:
    """Write a commented recipe for one's own text: `seqloom init corpus.txt`, then `seqloom train corpus.yaml`."""
    from seqloom.cli import _init_examples as examples
    from seqloom.cli import _init_pairs as pairs
    from seqloom.cli._init_series import write_forecaster
    from seqloom.core.files import write_atomic

    chosen = _chosen_task(texts, task, text is not None or label is not None)
    if chosen != "classify" and (text is not None or label is not None):
        raise UsageError("--text and --label name columns of a table for a classifier: --task classify.")
    if chosen == "forecast" and tokens is not None:
        raise UsageError("--tokens is about texts; a series has numbers.")
    for file in texts:
        _check_there(file)
    name = {
        "translate": lambda: pairs.recipe_name(texts),
        "language-model": lambda: texts[0].name.removesuffix(".gz").removesuffix(".txt"),
    }.get(chosen, lambda: examples.recipe_name(texts[0]))()
    out = _checked(out or Path(f"{name or 'corpus'}.yaml"))
    shown = printable(name), printable(shlex.quote(str(out)))
    if chosen == "translate":
        recipe, said = pairs.write_recipe(texts, *shown, tokens or "byte-pair", _yaml)
    elif chosen == "classify":
        recipe, said = examples.write_classifier(texts[0], shown, (text, label), tokens, _yaml)
    elif chosen == "forecast":
        recipe, said = write_forecaster(texts[0], shown, _yaml)
    elif chosen == "tag":
        recipe, said = examples.write_tagger(texts[0], shown, tokens, _yaml)
    else:
        recipe, said = _language_model(texts[0], *shown, tokens or "characters")
    write_atomic(out, recipe)
    print(f"{' and '.join(map(str, texts))}: {said[0]}.")
    for note in said[1:]:
        print(f"{note}.")
    print(f"Wrote {out}. Look it over, then: seqloom train {shlex.quote(str(out))}")


def _chosen_task(texts: list[Path], task: str | None, columns: bool) -> str:
    """What to train, if it is not said: two files are for a translator, and names tell what one file holds."""
    from seqloom.cli import _init_examples as examples

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
    ending = examples.ending(texts[0])
    if len(texts) == 2 or (ending == ".tsv" and not columns):
        return "translate"
    if columns or ending in examples.TABLES:
        return "classify"
    return "tag" if ending in examples.CONLL else "language-model"


def _check_there(file: Path) -> None:
    from seqloom.data.files import expand_home

    if not expand_home(file).exists():
        folder = "" if file.is_absolute() else ", and from which folder the command is run"
        raise DataError(f"{file} does not exist. Check the name{folder}.")


def _checked(out: Path) -> Path:
    if out.exists():
        raise UsageError(f"{out} exists. Choose another name with --out, or remove it first.")
    if out.suffix not in (".yaml", ".yml"):
        raise UsageError(f"A recipe's name must end in .yaml; got {out}.")
    if not out.parent.is_dir():
        raise UsageError(f"{out} cannot be written: the folder {out.parent} does not exist. Make it first.")
    return out


def _language_model(text: Path, name: str, recipe: str, tokens: str) -> tuple[str, list[str]]:
    """The recipe, and what to say about the text."""
    from seqloom.data.corpora import text as own_text

    fraction = 0.05
    corpus = own_text.load(own_text.Config(train=str(text), dev_fraction=fraction, test_fraction=fraction))
    train = corpus.counts("train")
    filled = TEMPLATE.format(
        name=name,
        recipe=recipe,
        path=_yaml(str(text)),
        documents="file",
        fraction=fraction,
        tokenizer=TOKENIZERS[tokens].format(size=8000),
        **vars(size_for(train.characters)),
    )
    return filled, [f"{train.words:,} words, {train.characters:,} characters to train on"]


def printable(text: str) -> str:
    """A name inside a comment, which a line break in it would end."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _yaml(text: str) -> str:
    """Text as one line of YAML, in quotes where it could be read as anything else."""
    from seqloom.config import dump_yaml

    plain = dump_yaml({"": text}).partition(": ")[2].rstrip("\n")
    if plain.isprintable():  # and so on one line
        return plain
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in text) + '"'
