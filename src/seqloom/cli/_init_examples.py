"""The recipes that `seqloom init` writes for texts with labels and for tagged sentences."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqloom.cli.init import TOKENIZERS, printable
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import counted, did_you_mean, shorten

if TYPE_CHECKING:
    from seqloom.data.corpora.table import Config as TableConfig
    from seqloom.data.corpus import Corpus
    from seqloom.data.examples import TextClassificationExample, TokenClassificationExample

TABLES = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".json")  # as files of texts and labels may end
CONLL = (".conll", ".conllu", ".iob", ".bio", ".iob2")  # and tagged sentences
HELD_OUT = 2000  # examples are enough to measure by
MOST_DIGITS = 10  # of the number of a column
UNEVEN = 5  # times as many texts of the largest class as of the smallest: then all count the same

CLASSIFIER = """\
# Classifier on {name}: made by `seqloom init`, yours to change. Train it with: seqloom train {recipe}
task: classify
seed: 1                     # the same seed gives the same model, to the bit

data:
  corpus: table
  train: {path:<19}# a .csv, .tsv or .jsonl file; may be .gz
  text: {text:<20}# the column of the texts, by its name, or its number, from 1
  label: {label:<19}# the column of the labels: {labels}
{format}  dev_fraction: {fraction:<12}# of the examples of each label, held out to choose by
  test_fraction: {fraction:<11}# held out to report; or name files: dev: …, test: …

tokenizer:
{tokenizer}

batch:
  tokens: {tokens:<18}# of a batch, padding included; less if memory is short
  max_length: 256           # tokens read of a text; of a longer one only the beginning

model:
  kind: classifier
  embedding: {hidden:<15}# width of a word's vector
  encoder:
    kind: recurrent         # or bag (the words without their order: fast, often good), convolution, transformer
    cell: lstm              # these three go with recurrent. Or gru, elman: `seqloom list cells`
    hidden: {hidden}
    bidirectional: true     # read from both ends
  pooling: max              # from many words to one answer; or mean, last, attention. Not with bag: leave it out
  dropout: {dropout}              # higher if dev gets worse while train gets better
  embedding_dropout: 0.1

loss:
  class_weights: {weights:<11}# balanced: all classes count the same, however few texts they have; or none

goal: {goal:<22}# the figure of dev that chooses the best model; or loss, accuracy, macro_f1, matthews

train:
  epochs: {epochs:<18}# passes over the texts
  optimizer: adamw          # or sgd, adam
  lr: {lr}
  schedule: cosine          # or constant, inverse-sqrt, plateau
  warmup: {warmup:<18}# steps of climbing to lr
  clip: 1.0                 # longest gradient
  patience: {patience:<16}# stop after so many evaluations without a new best
  device: auto              # or cpu, cuda, mps
"""

TAGGER = """\
# Tagger on {name}: made by `seqloom init`, yours to change. Train it with: seqloom train {recipe}
task: tag
seed: 1                     # the same seed gives the same model, to the bit

data:
  corpus: conll
  train: {path:<19}# a word and its tag on each line, a blank line between sentences; may be .gz
  format: {form:<18}# conll: columns, the word first and its tag last (columns: [1, -1]); or conllu (field: upos)
  invalid: repair           # tags that break their scheme are repaired and counted; or refuse
  dev_fraction: {fraction:<12}# of the sentences, held out to choose by
  test_fraction: {fraction:<11}# held out to report; or name files: dev: …, test: …

tokenizer:
{tokenizer}

batch:
  tokens: {tokens:<18}# of a batch, padding included; less if memory is short

model:
  kind: tagger
  embedding: {hidden:<15}# width of a word's vector
  characters:               # how words are spelled: of words that training did not have it is all there is
    kind: cnn               # or rnn
    widths: [2, 3, 4]       # these two go with cnn
    filters: 32
  encoder:
    kind: recurrent         # or convolution, transformer
    cell: lstm              # these three go with recurrent. Or gru, elman: `seqloom list cells`
    hidden: {hidden}
    bidirectional: true     # read from both ends
  crf: {crf:<21}# judge the tags of a sentence together
  dropout: {dropout}              # higher if dev gets worse while train gets better
  embedding_dropout: 0.2    # words left out at random, so that spelling and neighbours must do

train:
  epochs: {epochs:<18}# passes over the sentences
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
    """A model that fits a number of words."""

    tokens: int
    hidden: int
    dropout: float
    epochs: int
    lr: str
    warmup: int
    patience: int


def size_for(words: int) -> Size:
    if words < 50_000:
        epochs = max(15, min(40, 600_000 // max(words, 1)))  # a few texts must be read often
        tokens = max(64, min(512, words // 30))
        return Size(tokens=tokens, hidden=64, dropout=0.4, epochs=epochs, lr="3.0e-3", warmup=20, patience=8)
    if words < 1_000_000:
        return Size(tokens=1024, hidden=128, dropout=0.4, epochs=10, lr="2.0e-3", warmup=100, patience=4)
    return Size(tokens=4096, hidden=256, dropout=0.4, epochs=6, lr="1.0e-3", warmup=400, patience=3)


def ending(path: Path) -> str:
    """`.csv` of reviews.csv.gz"""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def recipe_name(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    return name.removesuffix(Path(name).suffix) or name


# --- texts with labels ----------------------------------------------------------------------------------------------


def write_classifier(
    path: Path,
    names: tuple[str, str],
    columns: tuple[str | None, str | None],
    tokens: str | None,
    quoted: Callable[[str], str],
) -> tuple[str, list[str]]:
    """The recipe, and what to say about the texts. `columns` of the texts and of the labels."""
    from seqloom.data.corpora import load

    corpus: Corpus[TextClassificationExample]
    config, corpus = _held_out(_table(path, *columns), load)
    counts, sizes = corpus.label_counts("train"), corpus.sizes("train")
    uneven = max(counts.values()) > UNEVEN * min(counts.values())
    words = sizes["words"]
    text = CLASSIFIER.format(
        name=names[0],
        recipe=names[1],
        path=quoted(str(path)),
        text=_column(config.text, quoted),
        label=_column(config.label, quoted),
        labels=_listed(list(corpus.labels)),
        format=f"  format: {config.format}\n" if config.format else "",
        fraction=config.dev_fraction,
        tokenizer=TOKENIZERS[tokens or ("words" if words > 2 * sizes["examples"] else "characters")].format(size=8000),
        weights="balanced" if uneven else "none",
        goal="macro_f1" if uneven else "accuracy",
        **vars(size_for(words)),
    )
    said = f"{sizes['examples']:,} texts of {len(counts)} classes, {words:,} words to train on"
    return text, [said, *corpus.notes]


def _table(path: Path, text: str | None, label: str | None) -> "TableConfig":
    """The table as the recipe will name it. Columns are named, or numbers where the first line has no names."""
    from seqloom.data.corpora.table import Config
    from seqloom.data.files import expand_home
    from seqloom.data.tables import column_names, format_of

    form = format_of(path)
    if form is None:
        raise UsageError(f"{path} must end in .csv, .tsv or .jsonl (or .gz after it) to hold texts with labels.")
    names = column_names(expand_home(path), form)
    texts, labels = _chosen(path, "text", text, names), _chosen(path, "label", label, names)
    try:
        return Config(train=str(path), text=texts, label=labels)
    except ValueError as error:
        raise UsageError(f"{error}.") from None


def _chosen(path: Path, option: str, given: str | None, names: list[str]) -> str | int:
    """The name of a column, or its number: `--text 2` is the second one, unless one is called so."""
    column = given or option
    if column in names:
        return column
    if column.isascii() and column.isdigit() and len(column) < MOST_DIGITS:
        return int(column)
    if given is None:
        listed = ", ".join(map(shorten, names))
        raise UsageError(f"Say which column of {path} holds the {option}s: --{option} NAME, one of: {listed}.")
    raise DataError(f"{path} has no column {given!r} for --{option}: {did_you_mean(given, names)}.")


def _column(column: str | int, quoted: Callable[[str], str]) -> str:
    return str(column) if isinstance(column, int) else quoted(column)


def _listed(names: list[str], most: int = 60) -> str:
    """Names inside a comment: on one line, and not too many."""
    text = ", ".join(map(printable, names))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _held_out(config: Any, load: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The data and its config, which holds out of much of it only as much as it takes to measure."""
    corpus = load(config)
    total = sum(map(len, corpus.splits.values()))
    if total * config.dev_fraction <= HELD_OUT:
        return config, corpus
    fraction = float(f"{HELD_OUT / total:.1g}")
    config = replace(config, dev_fraction=fraction, test_fraction=fraction)
    return config, load(config)


# --- tagged sentences -----------------------------------------------------------------------------------------------


def write_tagger(
    path: Path, names: tuple[str, str], tokens: str | None, quoted: Callable[[str], str]
) -> tuple[str, list[str]]:
    """The recipe, and what to say about the sentences."""
    from seqloom.data.corpora import load
    from seqloom.data.corpora.conll import Config
    from seqloom.data.examples import has_spans, tag_counts

    corpus: Corpus[TokenClassificationExample]
    given = Config(train=str(path), format="conllu" if ending(path) == ".conllu" else "conll")
    config, corpus = _held_out(given, load)
    sizes, counts = corpus.sizes("train"), tag_counts(corpus, "train")
    words = """\
  kind: words               # or byte-pair: see docs/recipes.md
  lowercase: true           # capitals are read from the characters
  min_count: 2              # rarer words become <unk>, and are told apart by their spelling"""
    text = TAGGER.format(
        name=names[0],
        recipe=names[1],
        path=quoted(str(path)),
        form=config.format,
        fraction=config.dev_fraction,
        tokenizer=words if tokens in (None, "words") else TOKENIZERS[tokens].format(size=8000),
        crf=str(has_spans(corpus)).lower(),
        **vars(size_for(sizes["words"])),
    )
    spans = f"{counted(sum(counts.values()), 'span')} of {counted(len(counts), 'type')}"
    kinds = spans if has_spans(corpus) else f"{len(counts)} tags"
    return text, [f"{sizes['sentences']:,} sentences, {sizes['words']:,} words, {kinds} to train on", *corpus.notes]
