"""The recipe that `seqloom init` writes for sentence pairs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from seqloom.cli.init import TOKENIZERS
from seqloom.core.words import counted

if TYPE_CHECKING:
    from seqloom.data.corpora.pairs import Config

HELD_OUT = 2000  # pairs are enough to measure by

TEMPLATE = """\
# Translator on {name}: made by `seqloom init`, yours to change. Train it with: seqloom train {recipe}
task: translate
seed: 1                     # the same seed gives the same model, to the bit

data:
  corpus: pairs
  train: {files:<18} # two files, line by line, or one with a tab between source and target
{columns}  source: {source:<18}# the languages, as tags such as en and pt-BR; BLEU counts by the target's
  target: {target}
  dev_fraction: {fraction:<12}# of the pairs, held out to choose by
  test_fraction: {fraction:<11}# held out to report; or name files: dev: …, test: …

tokenizer:
{tokenizer}

batch:
  tokens: {tokens:<18}# of a batch on its longer side; less if memory is short

model:
  kind: recurrent-seq2seq
  cell: gru                 # or lstm, elman, gru-cho: `seqloom list cells`
  hidden: {hidden}
  attention:                # or attention: null, for none
    order: bahdanau         # or luong, which is faster
    score: additive         # or general, dot, scaled-dot, cosine, location
  dropout: {dropout}              # higher if dev gets worse while train gets better

decode:
  beam: 5                   # hypotheses kept while translating; 1 is greedy and fastest

train:
  epochs: {epochs:<18}# passes over the pairs
  optimizer: adamw          # or sgd, adam
  lr: {lr}
  schedule: cosine          # or constant, inverse-sqrt, plateau
  warmup: {warmup:<18}# steps of climbing to lr
  clip: 1.0                 # longest gradient
  patience: {patience:<16}# stop after so many evaluations without a new best
  device: auto              # or cpu, cuda, mps
"""


@dataclass(frozen=True)
class Size:
    """A translator that fits an amount of text."""

    size: int
    tokens: int
    hidden: int
    dropout: float
    epochs: int
    lr: str
    warmup: int
    patience: int


def size_for(pairs: int, characters: int) -> Size:
    """For so many pairs, whose target sides have so many characters together."""
    if pairs < 3_000:
        tokens = max(64, min(256, characters // 60))
        epochs = max(20, min(100, 900_000 // max(characters, 1)))  # a few sentences must be read often
        return Size(
            size=1000, tokens=tokens, hidden=128, dropout=0.2, epochs=epochs, lr="5.0e-3", warmup=50, patience=20
        )
    if pairs < 50_000:
        return Size(size=4000, tokens=2048, hidden=256, dropout=0.2, epochs=20, lr="2.0e-3", warmup=200, patience=5)
    return Size(size=8000, tokens=4096, hidden=512, dropout=0.2, epochs=10, lr="1.0e-3", warmup=400, patience=5)


def recipe_name(files: Sequence[Path]) -> str:
    """train.en and train.de give train; a.txt and b.txt give a-b; pairs.tsv.gz gives pairs."""
    names = [file.name.removesuffix(".gz").removesuffix(".txt") for file in files]
    stems = [name.rpartition(".")[0] or name for name in names]
    return stems[0] if len(set(stems)) == 1 else "-".join(stems)


def settings(files: Sequence[Path]) -> "Config":
    """The pairs as the recipe will name them; a table whose first line is two language tags has a header."""
    from seqloom.data.corpora.pairs import Config, is_language
    from seqloom.data.files import expand_home, read_lines

    if len(files) == 2:
        return Config(train=(str(files[0]), str(files[1])))
    header = [cell.strip() for cell in read_lines(expand_home(files[0]))[0].split("\t")]
    if len(header) > 1 and header[0] != header[1] and all(map(is_language, header[:2])):
        return Config(train=str(files[0]), columns=(header[0], header[1]))
    return Config(train=str(files[0]))


def write_recipe(
    files: Sequence[Path], name: str, recipe: str, tokens: str, quoted: Callable[[str], str]
) -> tuple[str, list[str]]:
    """The recipe, and what to say about the pairs. `quoted` is text as YAML."""
    from seqloom.data.corpora import pairs as own_pairs
    from seqloom.data.examples import side_counts

    config = settings(files)
    corpus = own_pairs.load(config)
    pairs = sum(map(len, corpus.splits.values()))
    if pairs * config.dev_fraction > HELD_OUT:
        fraction = float(f"{HELD_OUT / pairs:.1g}")
        config = replace(config, dev_fraction=fraction, test_fraction=fraction)
        corpus = own_pairs.load(config)
    counts = side_counts(corpus.split("train"))
    size = size_for(len(corpus.split("train")), counts["target"].characters)
    names = [quoted(str(file)) for file in files]
    named = isinstance(config.columns[0], str)
    text = TEMPLATE.format(
        name=name,
        recipe=recipe,
        files=f"[{', '.join(map(_in_list, names))}]" if len(files) == 2 else names[0],
        columns=f"  columns: [{', '.join(map(str, config.columns))}]         # by their names\n" if named else "",
        source=quoted(corpus.languages[0]),
        target=quoted(corpus.languages[1]),
        fraction=config.dev_fraction,
        tokenizer=TOKENIZERS[tokens].format(size=size.size),
        **{key: value for key, value in vars(size).items() if key != "size"},
    )
    sizes = corpus.sizes("train")
    words = " and ".join(f"{sizes[f'{side}_words']:,}" for side in ("source", "target"))
    return text, [f"{counted(sizes['pairs'], 'pair')}, {words} words in train", *corpus.notes]


def _in_list(plain: str) -> str:
    """Text as YAML once more, where a comma or a bracket would mean something."""
    if plain[0] not in "\"'" and any(mark in plain for mark in ",[]{}"):
        return json.dumps(plain, ensure_ascii=False)
    return plain
