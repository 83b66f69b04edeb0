"""Recipes that `seqloom init` writes: a template for each task, filled in from the data."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seqloom.config.constraints import Difference
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import did_you_mean, format_count, shorten

MAX_HELD_OUT = 2000  # examples in dev, and in test
TEXT_FRACTION = 0.05  # of a text in dev, and in test
MAX_COLUMN_DIGITS = 10
IMBALANCE = 5  # class weights are balanced if the largest class is more than 5 times the smallest
SHORT_SERIES = 150  # training steps; a shorter series gets a model with few parameters
LONG_SEASON = 60  # steps; the state of a Kalman filter would be too large for a longer season

TOKENIZERS = {
    "characters": "  kind: characters          # or words, byte-pair: see docs/reference/recipes.md",
    "words": """\
  kind: words               # or characters, byte-pair: see docs/reference/recipes.md
  split: punctuation        # separate punctuation from words
  min_count: 2              # rarer words become <unk>""",
    "byte-pair": """\
  kind: byte-pair           # or characters, words: see docs/reference/recipes.md
  size: {size}                # tokens in the vocabulary, shared by the languages of a translator""",
}
SPELLED_WORDS = """\
  kind: words               # or byte-pair: see docs/reference/recipes.md
  lowercase: true           # capitals are read from the characters
  min_count: 2              # rarer words become <unk>; their characters distinguish them"""
LINEAR = """\
  kind: ar                  # closed-form solution, exact intervals; or kalman; ffn, lstm, transformer need more data
  difference: {difference:<13} # predict the difference from the last season; or step, none"""
STATE_SPACE = """\
  kind: kalman              # handles gaps and short series, exact intervals; ar and lstm need more data
  structure: {structure:<14} # hidden state: level, trend (level, slope) or seasonal (level, slope, season)"""
NEURAL = """\
  kind: lstm                # or ffn, transformer; ar and kalman are estimated without epochs
  hidden: 32
  difference: {difference:<13} # predict the difference from the last season; or step, none
  dropout: 0.1              # increase it if dev gets worse while train improves"""
ESTIMATED = "  keep_checkpoints: 1       # checkpoints"
LEARNED = """\
  epochs: {epochs:<17} # passes over all windows of the series
  optimizer: adamw          # or sgd, adam
  lr: 3.0e-3
  schedule: cosine          # or constant, inverse-sqrt, plateau
  evaluate_every: {every:<9} # steps
  device: auto              # or cpu, cuda, mps"""


@dataclass(frozen=True)
class Request:
    """The arguments of `seqloom init`."""

    files: Sequence[Path]
    tokens: str | None = None
    text: str | None = None  # columns of a table
    label: str | None = None


@dataclass(frozen=True)
class Draft:
    """Values for a template, and notes about the data."""

    fields: dict[str, object]
    notes: list[str]


def name_recipe(task: str, files: Sequence[Path]) -> str:
    """Name a recipe: train for train.en and train.de, a-b for a.txt and b.txt, pairs for pairs.tsv.gz."""
    if task == "language-model":
        return files[0].name.removesuffix(".gz").removesuffix(".txt")
    if task != "translate":
        name = files[0].name.removesuffix(".gz")
        return name.removesuffix(Path(name).suffix) or name
    names = [file.name.removesuffix(".gz").removesuffix(".txt") for file in files]
    stems = [name.rpartition(".")[0] or name for name in names]
    return stems[0] if len(set(stems)) == 1 else "-".join(stems)


def render_recipe(task: str, request: Request, name: str, path: str) -> tuple[str, list[str]]:
    """Return the text of a recipe, and notes about its data."""
    from seqloom.recipes import RECIPES

    draft = DRAFTS[task](request)
    template = (RECIPES / "templates" / f"{task}.yaml").read_text(encoding="utf-8")
    return template.format(name=to_printable(name), recipe=to_printable(path), **draft.fields), draft.notes


def draft_language_model(request: Request) -> Draft:
    """Fill in the template of a language model."""
    from seqloom.data.corpora import text

    (path,) = request.files
    corpus = text.load(text.Config(train=str(path), dev_fraction=TEXT_FRACTION, test_fraction=TEXT_FRACTION))
    train = corpus.counts("train")
    if train.characters < 100_000:
        batch_size = max(1, min(8, train.characters // 256))
        size = {"batch_size": batch_size, "layers": 1, "hidden": 128, "epochs": 30, "lr": "1.0e-2"}
    elif train.characters < 2_000_000:
        size = {"batch_size": 32, "layers": 1, "hidden": 256, "epochs": 15, "lr": "1.0e-2"}
    else:
        size = {"batch_size": 64, "layers": 2, "hidden": 512, "epochs": 10, "lr": "2.0e-3"}
    tokenizer = TOKENIZERS[request.tokens or "characters"].format(size=8000)
    fields = {"path": to_yaml(str(path)), "documents": "file", "fraction": TEXT_FRACTION, "tokenizer": tokenizer}
    note = f"{train.words:,} words, {train.characters:,} characters to train on"
    return Draft({**fields, "dropout": 0.2, **size}, [note])


def draft_translator(request: Request) -> Draft:
    """Fill in the template of a translator. A table has a header if its first line is two language tags."""
    from seqloom.data.corpora import parallel
    from seqloom.data.corpora.parallel import Config, is_language
    from seqloom.data.files import expand_home, read_lines

    first, *second = request.files
    config = Config(train=(str(first), str(second[0])) if second else str(first))
    names = [to_yaml(str(file)) for file in request.files]
    files, columns = names[0], ""
    if second:  # commas and brackets are YAML syntax in a list
        has_mark = [name[0] not in "\"'" and any(mark in name for mark in ",[]{}") for name in names]
        pairs_of = zip(names, has_mark, strict=True)
        items = [json.dumps(name, ensure_ascii=False) if quote else name for name, quote in pairs_of]
        files = f"[{', '.join(items)}]"
    else:
        header = [cell.strip() for cell in read_lines(expand_home(first))[0].split("\t")]
        if len(header) > 1 and header[0] != header[1] and all(map(is_language, header[:2])):
            config = replace(config, columns=(header[0], header[1]))
            columns = f"  columns: [{header[0]}, {header[1]}]         # by their names\n"
    config, corpus = hold_out(config, parallel.load)
    sizes = corpus.sizes("train")
    size = choose_translator_size(sizes["pairs"], sizes["target_characters"])
    fields = {
        "files": files,
        "columns": columns,
        "source": to_yaml(corpus.languages[0]),
        "target": to_yaml(corpus.languages[1]),
        "fraction": config.dev_fraction,
        "tokenizer": TOKENIZERS[request.tokens or "byte-pair"].format(size=size.pop("size")),
        "dropout": 0.2,
        **size,
    }
    words = " and ".join(f"{sizes[f'{side}_words']:,}" for side in ("source", "target"))
    return Draft(fields, [f"{format_count(sizes['pairs'], 'pair')}, {words} words in train", *corpus.notes])


def choose_translator_size(pairs: int, characters: int) -> dict[str, object]:
    """Return the model and training sizes for the number of pairs and of target characters."""
    if pairs < 3_000:
        tokens = max(64, min(256, characters // 60))
        epochs = max(20, min(100, 900_000 // max(characters, 1)))  # little data needs more epochs
        size = {"size": 1000, "tokens": tokens, "hidden": 128, "epochs": epochs}
        return {**size, "lr": "5.0e-3", "warmup": 50, "patience": 20}
    if pairs < 50_000:
        size = {"size": 4000, "tokens": 2048, "hidden": 256, "epochs": 20}
        return {**size, "lr": "2.0e-3", "warmup": 200, "patience": 5}
    size = {"size": 8000, "tokens": 4096, "hidden": 512, "epochs": 10}
    return {**size, "lr": "1.0e-3", "warmup": 400, "patience": 5}


def draft_classifier(request: Request) -> Draft:
    """Fill in the template of a classifier. Columns are numbered if the file has no header."""
    from seqloom.data.corpora import load
    from seqloom.data.corpora.table import Config
    from seqloom.data.files import expand_home
    from seqloom.data.tables import column_names, format_of

    (path,) = request.files
    form = format_of(path)
    if form is None:
        raise UsageError(f"A table of texts must end in .csv, .tsv or .jsonl, with or without .gz; got {path}.")
    names = column_names(expand_home(path), form)
    chosen = {"text": request.text, "label": request.label}
    columns = {option: find_column(path, option, given, names) for option, given in chosen.items()}
    try:
        config = Config(train=str(path), text=columns["text"], label=columns["label"])
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    config, corpus = hold_out(config, load)
    counts, sizes = corpus.label_counts("train"), corpus.sizes("train")
    is_imbalanced = max(counts.values()) > IMBALANCE * min(counts.values())
    words = sizes["words"]
    tokens = request.tokens or ("words" if words > 2 * sizes["examples"] else "characters")
    fields = {
        "path": to_yaml(str(path)),
        **{option: str(name) if isinstance(name, int) else to_yaml(name) for option, name in columns.items()},
        "labels": shorten(", ".join(map(to_printable, corpus.labels))),
        "format": f"  format: {config.format}\n" if config.format else "",
        "fraction": config.dev_fraction,
        "tokenizer": TOKENIZERS[tokens].format(size=8000),
        "weights": "balanced" if is_imbalanced else "none",
        "monitor": "macro_f1" if is_imbalanced else "accuracy",
        **choose_reader_size(words),
    }
    note = f"{sizes['examples']:,} texts of {len(counts)} classes, {words:,} words to train on"
    return Draft(fields, [note, *corpus.notes])


def find_column(path: Path, option: str, given: str | None, names: list[str]) -> str | int:
    """Return the name or the number of a column: `--text 2` is the second, unless a column is named 2."""
    column = given or option
    if column in names:
        return column
    if column.isascii() and column.isdigit() and len(column) < MAX_COLUMN_DIGITS:
        return int(column)
    if given is None:
        listed = ", ".join(map(shorten, names))
        raise UsageError(f"{path} has no column {option!r}. Name the column of {option}s with --{option}: {listed}.")
    raise DataError(f"{path} has no column {given!r} for --{option}: {did_you_mean(given, names)}.")


def draft_tagger(request: Request) -> Draft:
    """Fill in the template of a tagger."""
    from seqloom.data.corpora import load
    from seqloom.data.corpora.conll import Config
    from seqloom.data.examples import has_spans, tag_counts

    (path,) = request.files
    is_conllu = path.name.removesuffix(".gz").lower().endswith(".conllu")
    config, corpus = hold_out(Config(train=str(path), format="conllu" if is_conllu else "conll"), load)
    sizes, counts = corpus.sizes("train"), tag_counts(corpus, "train")
    by_words = request.tokens in (None, "words")
    fields = {
        "path": to_yaml(str(path)),
        "form": config.format,
        "fraction": config.dev_fraction,
        "tokenizer": SPELLED_WORDS if by_words else TOKENIZERS[str(request.tokens)].format(size=8000),
        "crf": str(has_spans(corpus)).lower(),
        **choose_reader_size(sizes["words"]),
    }
    spans = f"{format_count(sum(counts.values()), 'span')} of {format_count(len(counts), 'type')}"
    kinds = spans if has_spans(corpus) else f"{len(counts)} tags"
    note = f"{sizes['sentences']:,} sentences, {sizes['words']:,} words, {kinds} to train on"
    return Draft(fields, [note, *corpus.notes])


def choose_reader_size(words: int) -> dict[str, Any]:
    """Return the model and training sizes of a classifier or tagger for a number of words."""
    if words < 50_000:
        epochs = max(15, min(40, 600_000 // max(words, 1)))  # little data needs more epochs
        tokens = max(64, min(512, words // 30))
        size = {"tokens": tokens, "hidden": 64, "epochs": epochs, "lr": "3.0e-3", "warmup": 20, "patience": 8}
    elif words < 1_000_000:
        size = {"tokens": 1024, "hidden": 128, "epochs": 10, "lr": "2.0e-3", "warmup": 100, "patience": 4}
    else:
        size = {"tokens": 4096, "hidden": 256, "epochs": 6, "lr": "1.0e-3", "warmup": 400, "patience": 3}
    return {"dropout": 0.4, **size}


def draft_forecaster(request: Request) -> Draft:
    """Fill in the template of a forecaster."""
    import torch

    from seqloom.classical.autoregressive import AutoregressiveConfig
    from seqloom.data.corpora import series_file
    from seqloom.data.series import columns_of, season_of
    from seqloom.data.tables import column_names

    (path,) = request.files
    corpus = series_file.load(series_file.Config(file=str(path)))
    train, season = corpus.split("train")[0], season_of(corpus)
    difference: Difference = "season" if season > 1 else "step"
    is_long = len(train) >= max(SHORT_SERIES, 6 * season)
    model = NEURAL
    if not is_long:
        autoregressive = AutoregressiveConfig(difference=difference).build(len(train.columns), train.season)
        values, mask = map(torch.from_numpy, train.visible())
        try:  # fails if too few rows have no gap
            autoregressive.solve([(values, mask)])
            model = LINEAR
        except DataError:
            model = STATE_SPACE
    structure = "seasonal" if 1 < season <= LONG_SEASON else "trend"
    per_epoch = max(1, (len(train) - 3 * season) // 32)
    epochs = min(60, max(5, 600 // per_epoch))
    fields = {
        "path": to_yaml(str(path)),
        "time": to_yaml(column_names(path)[0]),
        "columns": "[" + ", ".join(map(to_yaml, columns_of(corpus))) + "]",
        "season": season,
        "horizon": min(max(season, 8), 48, max(1, len(train) // 4)),
        "model": model.format(difference=difference, structure=structure),
        "train": LEARNED.format(epochs=epochs, every=max(1, epochs * per_epoch // 10)) if is_long else ESTIMATED,
    }
    variables = format_count(len(columns_of(corpus)), "variable", "variables")
    return Draft(
        fields, [f"{len(train):,} steps of {variables} to train on, {train.clock.describe()} each", *corpus.notes]
    )


DRAFTS: dict[str, Callable[[Request], Draft]] = {
    "language-model": draft_language_model,
    "translate": draft_translator,
    "classify": draft_classifier,
    "tag": draft_tagger,
    "forecast": draft_forecaster,
}


def hold_out(config: Any, load: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Load data whose dev and test have at most `MAX_HELD_OUT` examples; return its config and the data."""
    corpus = load(config)
    total = sum(map(len, corpus.splits.values()))
    if total * config.dev_fraction <= MAX_HELD_OUT:
        return config, corpus
    fraction = float(f"{MAX_HELD_OUT / total:.1g}")
    config = replace(config, dev_fraction=fraction, test_fraction=fraction)
    return config, load(config)


def to_printable(text: str) -> str:
    """Replace characters such as line breaks, which would end a comment."""
    return "".join(character if character.isprintable() else "?" for character in text)


def to_yaml(text: str) -> str:
    """Format a text as one line of YAML, in quotes if necessary."""
    from seqloom.config import dump_yaml

    plain = dump_yaml({"": text}).partition(": ")[2].rstrip("\n")
    if plain.isprintable():  # therefore one line
        return plain
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in text) + '"'
