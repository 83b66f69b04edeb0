"""The recipes that `seqloom init` writes: a template for each task, filled in to suit the data and the device."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seqloom.config import to_mapping
from seqloom.config.constraints import Difference
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import did_you_mean, format_count, format_sizes, shorten
from seqloom.data.detect import Detected
from seqloom.recipes import RECIPES

MAX_HELD_OUT = 2000  # examples that suffice for a measurement
MIN_CLASS_RATIO = 5  # if the largest class is this many times the smallest, all classes get equal weight
SHORT_SERIES_STEPS = 150  # with fewer training steps, a model with few parameters is chosen
LONG_SEASON_STEPS = 60  # a longer season has too many states for a state-space model

TOKENIZERS = {
    "characters": "  kind: characters          # or words, byte-pair: see docs/reference/recipes.md",
    "words": """\
  kind: words               # or characters, byte-pair: see docs/reference/recipes.md
  split: punctuation        # punctuation marks are tokens
  min_count: 2              # rarer words become <unk>""",
    "byte-pair": """\
  kind: byte-pair           # or characters, words: see docs/reference/recipes.md
  size: {vocabulary:<20}# tokens in the vocabulary; a translator's two languages share it""",
    "spelled-words": """\
  kind: words               # or byte-pair: see docs/reference/recipes.md
  lowercase: true           # case is read from the characters
  min_count: 2              # rarer words become <unk>, and are distinguished by their spelling""",
}
DEFAULT_VOCABULARY = 8000
COMMENTS = {  # comments on the keys of the section `data`
    "train": "the training data, optionally with .gz or .zst",
    "encoding": "of the files",
    "documents": "the unit of a document: file, line or paragraph",
    "columns": "the columns of source and target: names, or numbers counted from 1",
    "source": "language tags such as en and pt-BR; that of the target selects the tokenizer of BLEU",
    "text": "the column of the texts: its name, or its number counted from 1",
    "label": "the column of the labels: {labels}",
    "first": "the columns of the two texts",
    "options": "the column of a list of options, or a column for each option",
    "answer": "the column of the correct option: its number, or its text",
    "index_base": "the number of the first option",
    "format": "conll: columns, the word first and its tag last (columns: [1, -1]); or conllu (field: upos)",
    "invalid": "repair and count tags that violate the scheme; or refuse",
    "dev_fraction": "fraction of the {unit} held out for dev",
    "test_fraction": "fraction held out for test; or use files: dev: …, test: …",
}
INIT = """\
init:
  from: {path:<20}# the pretrained model: its tokenizer and weights

"""
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
    task: str | None = None
    tokens: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    pretrained: Path | None = None  # a run
    device: str = "cpu"


@dataclass(frozen=True)
class Draft:
    """A recipe, and sentences about its data."""

    recipe: str
    notes: list[str]
    setting: str = ""  # its name in settings.yaml


def name_recipe(task: str, files: Sequence[Path]) -> str:
    """Name a recipe: train.en and train.de give train, a.txt and b.txt give a-b, pairs.tsv.gz gives pairs."""
    from seqloom.data.files import without_compression

    names = [without_compression(file) for file in files]
    if task == "language-model":
        return names[0].removesuffix(".txt")
    if task != "translate":
        return names[0].removesuffix(Path(names[0]).suffix) or names[0]
    plain = [name.removesuffix(".txt") for name in names]
    stems = [name.rpartition(".")[0] or name for name in plain]
    return stems[0] if len(set(stems)) == 1 else "-".join(stems)


def draft_recipe(detected: Detected, request: Request, encoding: str, name: str, path: str) -> Draft:
    """Return a recipe for recognized data and sentences about it; `path` is where the recipe will be."""
    header = {"name": to_printable(name), "recipe": to_printable(path)}
    if detected.task == "forecast":
        series, notes = draft_forecaster(Path(str(detected.data["file"])))
        return Draft(read_template("forecast").format(**header, **series), notes)
    from seqloom.data.corpora import find, load
    from seqloom.runs.run import Run

    extra = {} if encoding == "utf-8" else {"encoding": encoding}
    try:
        config = find(str(detected.data["corpus"])).Config(**detected.data, **extra)
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    config, corpus = hold_out(config, load)
    sizes = corpus.sizes("train")
    unit = next(iter(sizes))
    size = sizes["characters"] if detected.task == "language-model" else sizes[unit]
    setting = choose_setting(detected.task, size, request)
    tokens = request.tokens or choose_tokenizer(detected.task, setting, sizes)
    fields: dict[str, Any] = {
        "kind": "" if request.pretrained is None else Run.open(request.pretrained).recipe["model"]["kind"],
        "length": 256 if setting["model"] == "gpt" else 64,
        "twice": 2 * setting.get("hidden", 0),
        **{key: scale(value, size) for key, value in setting.items()},
        **DETAILS.get(detected.task, lambda corpus: {})(corpus),
    }
    is_pretrained = request.pretrained is not None
    section = TOKENIZERS.get(tokens, "").format(vocabulary=setting.get("vocabulary", DEFAULT_VOCABULARY))
    recipe = read_template(detected.task).format(
        **header,
        **{key: value for key, value in fields.items() if key not in ("name", "model", "train", "tokenizer")},
        init=INIT.format(path=to_yaml(str(request.pretrained))) if is_pretrained else "",
        data=data_section(config, detected, corpus, unit),
        tokenizer="" if is_pretrained or not tokens else f"tokenizer:\n{section}\n\n",
        model=read_template(f"models/{setting['model']}").format(**fields),
        more="".join(f"  {key}: {to_yaml_value(value)}\n" for key, value in setting.get("train", {}).items()),
    )
    counts = format_sizes({key.replace("_", " "): count for key, count in sizes.items()})
    return Draft(recipe, [f"{counts} to train on", *corpus.notes], setting["name"])


def smaller_drafts(chosen: str, detected: Detected, request: Request, *arguments: str) -> Iterator[Draft]:
    """Yield drafts with the settings for less data than the chosen one, the largest first."""
    names = [
        name
        for name, setting in read_settings(detected.task).items()
        if request.device == setting.get("device", request.device)
    ]
    for name in reversed(names[: names.index(chosen)] if chosen in names else []):
        yield draft_recipe(detected, replace(request, model=name), *arguments)


def shorten_training(recipe: str, ratio: float) -> str:
    """Return a recipe with the number of epochs scaled by `ratio`, but at least one."""
    return re.sub(r"(?m)^(  epochs: )(\d+)", lambda match: f"{match[1]}{max(1, int(int(match[2]) * ratio))}", recipe)


def read_settings(task: str) -> dict[str, Any]:
    import yaml

    settings: dict[str, Any] = yaml.safe_load(read_template("settings"))[task]
    return settings


def choose_setting(task: str, size: int, request: Request) -> dict[str, Any]:
    """Return the requested setting, or the first one that suits the size of the data and the device."""
    settings = read_settings(task)
    tuning = settings.pop("fine-tune", None)
    if request.pretrained is not None:
        if tuning is None:
            raise UsageError(f"--from is not available for the task {task}.")
        return {"name": "fine-tune", **tuning}
    if not settings:
        raise UsageError(f"The task {task} fine-tunes a language model: name it with --from RUN.")
    if request.model is not None:
        if request.model not in settings:
            advice = did_you_mean(request.model, settings)
            raise UsageError(f"--model {request.model} is not available for the task {task}: {advice}.")
        return {"name": request.model, **settings[request.model]}
    for name, setting in settings.items():
        if size <= setting.get("up_to", size) and request.device == setting.get("device", request.device):
            return {"name": name, **setting}
    raise AssertionError(f"the settings of {task} must include one without limits")


def scale(value: Any, size: int) -> Any:
    """Return a value of a setting; if it has bounds, compute it from the size of the data."""
    if not isinstance(value, dict) or "least" not in value:
        return value
    number = size / value["per"] if "per" in value else value["total"] / max(size, 1)
    return int(max(value["least"], min(value["most"], number)))


def choose_tokenizer(task: str, setting: Mapping[str, Any], sizes: Mapping[str, int]) -> str:
    """Return the kind of tokenizer for a task, or "" for tasks without text."""
    if task == "classify" and sizes["words"] <= 2 * sizes["examples"]:
        return "characters"  # single words, such as names
    defaults = {"translate": "byte-pair", "tag": "spelled-words", "series-classify": "", "instruct": ""}
    return str(setting.get("tokenizer", defaults.get(task, "words")))


def describe_classes(corpus: Any) -> dict[str, Any]:
    """Return the weights of classes and the metric that selects a classifier."""
    counts = corpus.label_counts("train")
    is_uneven = max(counts.values()) > MIN_CLASS_RATIO * min(counts.values())
    return {"weights": "balanced" if is_uneven else "none", "monitor": "macro_f1" if is_uneven else "accuracy"}


def describe_tags(corpus: Any) -> dict[str, Any]:
    from seqloom.data.examples import has_spans

    return {"crf": str(has_spans(corpus)).lower()}


def describe_target(corpus: Any) -> dict[str, Any]:
    """Return whether the labels of pairs are numbers on a scale."""
    from seqloom.data.corpora.sentence_pairs import is_fraction

    return {"target": "score" if any(map(is_fraction, corpus.labels)) else "class"}


DETAILS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "classify": describe_classes,
    "tag": describe_tags,
    "pair": describe_target,
}


def data_section(config: Any, detected: Detected, corpus: Any, unit: str) -> str:
    """Return the lines of the section `data`, with comments."""
    values = {key: value for key, value in to_mapping(config).items() if key in detected.data or key == "encoding"}
    if values.get("encoding") == "utf-8":
        del values["encoding"]
    more: dict[str, Any] = {
        "parallel": dict(zip(("source", "target"), corpus.languages, strict=True)),
        "text": {"documents": "file"},
    }.get(config.corpus, {})
    values |= more | ({"invalid": "repair"} if config.corpus == "conll" else {})
    for split in ("dev", "test"):
        if values.get(split) is None:
            values[f"{split}_fraction"] = getattr(config, f"{split}_fraction")
    labels = (
        shorten(", ".join(map(to_printable, corpus.labels)))
        if "label" in values and config.corpus != "series-rows"
        else ""
    )
    lines = []
    for key, value in values.items():
        comment = COMMENTS.get(key, "").format(labels=labels, unit=unit).removesuffix(": ")
        start = f"  {key}: {to_yaml_value(value)}"
        lines.append(f"{start:<27} # {comment}" if comment else start)
    return "\n".join(lines) + "\n"


def read_template(name: str) -> str:
    return (RECIPES / "templates" / f"{name}.yaml").read_text(encoding="utf-8")


def draft_forecaster(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Fill in the template of a forecaster."""
    import torch

    from seqloom.classical.autoregressive import AutoregressiveConfig
    from seqloom.data.corpora import series_file
    from seqloom.data.series import columns_of, season_of
    from seqloom.data.tables import column_names

    corpus = series_file.load(series_file.Config(file=str(path)))
    train, season = corpus.split("train")[0], season_of(corpus)
    difference: Difference = "season" if season > 1 else "step"
    is_long = len(train) >= max(SHORT_SERIES_STEPS, 6 * season)
    model = NEURAL
    if not is_long:
        autoregressive = AutoregressiveConfig(difference=difference).build(len(train.columns), train.season)
        values, mask = map(torch.from_numpy, train.visible())
        try:  # fails if too few rows have no gap
            autoregressive.solve([(values, mask)])
            model = LINEAR
        except DataError:
            model = STATE_SPACE
    structure = "seasonal" if 1 < season <= LONG_SEASON_STEPS else "trend"
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
    steps = f"{len(train):,} steps of {variables} to train on, {train.clock.describe()} each"
    return fields, [steps, *corpus.notes]


def hold_out(config: Any, load: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Load data with at most `MAX_HELD_OUT` examples in dev and in test; return its config and the data."""
    corpus = load(config)
    total = sum(map(len, corpus.splits.values()))
    if total * config.dev_fraction <= MAX_HELD_OUT:
        return config, corpus
    fraction = float(f"{MAX_HELD_OUT / total:.1g}")
    smaller = {key: min(fraction, getattr(config, key)) for key in ("dev_fraction", "test_fraction")}
    config = replace(config, **smaller)
    return config, load(config)


def to_printable(text: str) -> str:
    """Replace characters that would end a comment, such as line breaks."""
    return "".join(character if character.isprintable() else "?" for character in text)


def to_yaml(text: str) -> str:
    """Format a text as one line of YAML, in quotes if necessary."""
    from seqloom.config import dump_yaml

    plain = dump_yaml({"": text}).partition(": ")[2].rstrip("\n")
    if plain.isprintable():  # therefore one line
        return plain
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in text) + '"'


def to_yaml_value(value: Any) -> str:
    """Return a value as one line of YAML; in a list, texts with brackets or commas are quoted."""
    if isinstance(value, list | tuple):
        has_marks = [isinstance(item, str) and item.isprintable() and any(c in item for c in ",[]{}") for item in value]
        items = zip(value, has_marks, strict=True)
        return f"[{', '.join(json.dumps(i, ensure_ascii=False) if quote else to_yaml_value(i) for i, quote in items)}]"
    return to_yaml(value) if isinstance(value, str) else json.dumps(value)
