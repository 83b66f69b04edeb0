"""Write a recipe for one's own text."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from seqloom.core.errors import UsageError

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
  size: 8000                # tokens in the vocabulary""",
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
    text: Annotated[Path, typer.Argument(help="A UTF-8 text file, a .gz file, or a folder of .txt files.")],
    out: Annotated[Path | None, typer.Option(help="The recipe to write. [default: NAME.yaml here]")] = None,
    tokens: Annotated[
        Literal["characters", "words", "byte-pair"], typer.Option(help="What to predict.")
    ] = "characters",
) -> None:
    """Write a commented recipe for one's own text: `seqloom init corpus.txt`, then `seqloom train corpus.yaml`."""
    from seqloom.core.files import write_atomic
    from seqloom.data.corpora import text as own_text

    if any("\ud800" <= letter <= "\udfff" for letter in str(text)):
        raise UsageError(f"The name of the text must be UTF-8, got {str(text)!r}. Rename the file.")
    name = text.name.removesuffix(".gz").removesuffix(".txt") or "corpus"
    out = out or Path(f"{name}.yaml")
    if out.exists():
        raise UsageError(f"{out} exists. Choose another name with --out, or remove it first.")
    if out.suffix not in (".yaml", ".yml"):
        raise UsageError(f"A recipe's name must end in .yaml; got {out}.")
    if not out.parent.is_dir():
        raise UsageError(f"{out} cannot be written: the folder {out.parent} does not exist. Make it first.")
    fraction = 0.05
    corpus = own_text.load(own_text.Config(train=str(text), dev_fraction=fraction, test_fraction=fraction))
    train = corpus.counts("train")
    write_atomic(out, _fill(text, name, out, tokens, train.characters, fraction))
    print(f"{text}: {train.words:,} words, {train.characters:,} characters to train on.")
    print(f"Wrote {out}. Look it over, then: seqloom train {shlex.quote(str(out))}")


def _fill(text: Path, name: str, out: Path, tokens: str, characters: int, fraction: float) -> str:
    size = size_for(characters)
    return TEMPLATE.format(
        name=_printable(name),
        recipe=_printable(shlex.quote(str(out))),
        path=_yaml(str(text)),
        documents="file",
        fraction=fraction,
        tokenizer=TOKENIZERS[tokens],
        **vars(size),
    )


def _printable(text: str) -> str:
    """A name inside a comment, which a line break in it would end."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _yaml(text: str) -> str:
    """Text as one line of YAML, in quotes where it could be read as anything else."""
    from seqloom.core.config import dump_yaml

    plain = dump_yaml({"": text}).partition(": ")[2].rstrip("\n")
    if plain.isprintable():  # and so on one line
        return plain
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in text) + '"'
