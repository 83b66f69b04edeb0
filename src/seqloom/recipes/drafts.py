"""The recipes that `seqloom init` writes: a template for each task, filled in to suit the data and the device."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from seqloom.config import to_mapping
from seqloom.config.constraints import Difference
from seqloom.core import Json
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import find_nearest, format_count, format_sizes, shorten
from seqloom.data.detected import Detected
from seqloom.data.splits import missing_fractions
from seqloom.recipes import RECIPES

NOT_IN_TEMPLATES = ("name", "model", "train", "tokenizer")  # keys of settings that templates do not contain
# unit of the size that selects a setting
SIZE_UNITS = {"language-model": "characters", "word-vectors": "words", "caption": "captions"}
MAX_HELD_OUT = 2000  # this number of examples suffices for a measurement
MIN_CLASS_RATIO = 5  # above this ratio of the largest to the smallest class, all classes get equal weight
SHORT_SERIES_STEPS = 150  # with fewer training steps, a model with few parameters is chosen
IMAGE_SAMPLE = 50  # number of images whose sizes are examined
MAX_SIDE = 64  # maximum side in pixels; larger images are scaled
LONG_SEASON_STEPS = 60  # a longer season has too many states for a state-space model

TOKENIZER_SECTIONS = {
    "characters": "  kind: characters          # or words, byte-pair: see docs/reference/recipes.md",
    "words": """\
  kind: words               # or characters, byte-pair: see docs/reference/recipes.md
  split: punctuation        # punctuation marks are tokens
  min_count: 2              # rarer words become <unk>""",
    "lowercase-words": """\
  kind: words               # or characters, byte-pair: see docs/reference/recipes.md
  split: punctuation        # punctuation marks are tokens
  lowercase: true           # ignore case
  min_count: {min_count:<15}# rarer words become <unk>""",
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
    "train": "the training data, optionally compressed (.gz or .zst)",
    "image-files.train": "a folder with a subfolder of images for each label, or a table of paths",
    "encoding": "of files that are not UTF-8",
    "reuse_train": "dev and test are the training text, which has too few lines to be divided",
    "documents": "what counts as a document: file, line or paragraph",
    "columns": "the columns of source and target: names, or numbers counted from 1",
    "source": "language tags such as en and pt-BR; the target language selects the BLEU tokenizer",
    "text": "the column of the texts: its name, or its number counted from 1",
    "label": "the column of the labels: {labels}",
    "image": "the column of the image paths, which are relative to the folder of the table",
    "caption-files.train": "a table; rows with the same image are its captions",
    "caption-files.image": "the column of the paths",
    "folder": "the folder of the images",
    "caption": "the column of the captions",
    "vqa-files.train": "a table of questions about images",
    "vqa-files.image": "the column of the paths",
    "question": "the column of the questions",
    "vqa-files.answer": "the column of the answers",
    "choices": "the column of the choices: lists, or texts separated by semicolons",
    "question_type": "the column of the types of questions, for separate accuracies",
    "dialogue": "the column of the dialogues about an image, whose questions follow each other",
    "labels": "a column of 0 and 1 for each label",
    "multi_label": "a text has any number of labels",
    "label_separator": "the separator of the labels in a cell; lists need no separator",
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
  from: {path:<19} # the pretrained model: its tokenizer and weights

"""
FORECASTERS = {
    "LINEAR": """\
  kind: ar                  # or kalman; both have exact intervals; ffn, lstm and transformer need more data
  difference: {difference:<13} # predict the difference from the last season; or step, none""",
    "STATE_SPACE": """\
  kind: kalman              # handles gaps and short series, exact intervals; ar and lstm need more data
  structure: {structure:<14} # hidden state: level, trend (level, slope) or seasonal (level, slope, season)""",
    "NEURAL": """\
  kind: {name:<19} # lstm, ffn or transformer; ar and kalman are estimated without epochs
  {size}: 32
  difference: {difference:<13} # predict the difference from the last season; or step, none
  dropout: 0.1              # increase it if dev gets worse while train improves""",
}
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
    model: str | None = None
    pretrained: Path | None = None  # the run of a pretrained model
    device: str = "cpu"


@dataclass(frozen=True)
class Draft:
    """A recipe with notes on its data."""

    recipe: str
    notes: list[str]
    setting_name: str = ""  # name of the setting in settings.yaml


def name_recipe(task: str, files: Sequence[Path]) -> str:
    """Name a recipe: train.en and train.de give train, a.txt and b.txt give a-b, pairs.tsv.gz gives pairs.

    A folder gives its own name.
    """
    from seqloom.data.files import without_compression

    if len(files) == 1 and files[0].is_dir():
        return files[0].name
    names = [without_compression(file) for file in files]
    if task == "language-model":
        return names[0].removesuffix(".txt")
    if task != "translate":
        return names[0].removesuffix(Path(names[0]).suffix) or names[0]
    plain = [name.removesuffix(".txt") for name in names]
    stems = [name.rpartition(".")[0] or name for name in plain]
    return stems[0] if len(set(stems)) == 1 else "-".join(stems)


def draft_recipe(detected: Detected, request: Request, encoding: str, name: str, path: str) -> Draft:
    """Return a recipe for recognized data, with notes on the data. `path` is the path of the recipe."""
    header = {"name": to_printable(name) or "corpus", "recipe": to_printable(path)}
    if detected.task == "forecast":
        series, notes = draft_forecaster(detected.data, request.model)
        return Draft(read_template("forecast").format(**header, **series), notes)
    from seqloom.data.corpora import find, load

    extra = {} if encoding == "utf-8" else {"encoding": encoding}
    try:
        config = find(str(detected.data["corpus"])).Config(**detected.data, **extra)
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    config, corpus = load_with_limited_holdout(config, load)
    sizes = corpus.sizes("train")
    unit = next(iter(sizes))
    size = sizes[SIZE_UNITS.get(detected.task, unit)]
    setting = choose_setting(detected.task, size, request, sizes.get("words", math.inf) / max(1, size))
    fields = template_fields(detected.task, request, setting, corpus, size)
    is_pretrained = request.pretrained is not None
    tokens = "" if is_pretrained else request.tokens or choose_tokenizer(detected.task, setting, sizes)
    recipe = read_template(setting.get("task", detected.task)).format(
        **header,
        **{key: value for key, value in fields.items() if key not in NOT_IN_TEMPLATES},
        init=INIT.format(path=to_yaml(str(request.pretrained))) if is_pretrained else "",
        data=data_section(config, detected, corpus, unit),
        tokenizer=tokenizer_section(tokens, fields),
        model=read_template(f"models/{setting['model']}").format(**fields),
        more="".join(f"  {key}: {to_yaml_value(value)}\n" for key, value in setting.get("train", {}).items()),
    )
    counts = format_sizes({key.replace("_", " "): count for key, count in sizes.items()})
    return Draft(recipe, [f"{counts} to train on", *corpus.notes], setting["name"])


def template_fields(
    task: str, request: Request, setting: Mapping[str, Json], corpus: Any, size: int
) -> dict[str, Json]:
    """Return the values for the templates of a task and its model, from the setting, corpus and pretrained run."""
    kind = ""
    if request.pretrained is not None:
        from seqloom.runs.transfer import BACKBONE_KINDS, CONTINUED_KINDS, Pretrained

        pretrained = Pretrained.open(request.pretrained, CONTINUED_KINDS.get(task, BACKBONE_KINDS))
        kind = pretrained.run.recipe["model"]["kind"]
    return {
        "kind": kind,
        "length": 256 if setting["model"] == "gpt" else 64,
        "warmup": 50,
        "twice": 2 * setting.get("hidden", 0),
        "heads": max(4, setting.get("hidden", 0) // 64),
        **DETAILS.get(task, lambda corpus: {})(corpus),
        **{key: resolve_bounds(value, size) for key, value in setting.items()},
    }


def tokenizer_section(tokens: str, fields: Mapping[str, Json]) -> str:
    """Return the section `tokenizer` for a kind of tokenizer, or "" if the kind is empty."""
    if not tokens:
        return ""
    section = TOKENIZER_SECTIONS[tokens].format(
        vocabulary=fields.get("vocabulary", DEFAULT_VOCABULARY), min_count=fields.get("min_count", 2)
    )
    return f"tokenizer:\n{section}\n\n"


def smaller_drafts(
    chosen: str, detected: Detected, request: Request, encoding: str, name: str, path: str
) -> Iterator[Draft]:
    """Yield drafts with the settings for less data than the chosen setting, starting with the largest setting.

    settings.yaml sorts the settings that are selected by size from small to large.
    """
    setting_names = [
        setting_name
        for setting_name, setting in read_settings(detected.task).items()
        if request.device == setting.get("device", request.device)
    ]
    for smaller in reversed(setting_names[: setting_names.index(chosen)] if chosen in setting_names else []):
        yield draft_recipe(detected, replace(request, model=smaller), encoding, name, path)


def shorten_training(recipe: str, ratio: float) -> str:
    """Return a recipe whose number of epochs is scaled by `ratio`, but is at least one."""
    return re.sub(r"(?m)^(  epochs: )(\d+)", lambda match: f"{match[1]}{max(1, int(int(match[2]) * ratio))}", recipe)


def read_settings(task: str) -> dict[str, Json]:
    import yaml

    settings: dict[str, Json] = yaml.safe_load(read_template("settings"))[task]
    return settings


def choose_setting(task: str, size: int, request: Request, words_per_example: float = math.inf) -> dict[str, Json]:
    """Return the requested setting, or the first setting that suits the size, the words per example, and the device."""
    settings = read_settings(task)
    tuning = settings.pop("fine-tune", None)
    if request.pretrained is not None:
        if tuning is None:
            raise UsageError(f"The task {task} cannot start from a pretrained model.")
        return {"name": "fine-tune", **tuning}
    if not settings:
        raise UsageError(f"The task {task} fine-tunes a language model: name it with --from RUN (Python: pretrained).")
    if request.model is not None:
        settings = named_settings(task, request.model, settings)
    for name, setting in settings.items():
        is_suitable = size <= setting.get("up_to", size) and words_per_example > setting.get("min_words", 0)
        if len(settings) == 1 or (is_suitable and request.device == setting.get("device", request.device)):
            return {"name": name, **setting}
    raise AssertionError(f"the settings of {task} must include one without limits")


def named_settings(task: str, model: str, settings: Mapping[str, Json]) -> dict[str, Json]:
    """Return the setting with this name, or all settings that have it as an alternative name."""
    name = re.sub(r"[\s_]+", "-", model.strip().lower())
    if name in settings:
        return {name: settings[name]}
    shared = {key: setting for key, setting in settings.items() if name in setting.get("also", ())}
    if not shared:
        others = [other for setting in settings.values() for other in setting.get("also", ())]
        close, choices = find_nearest(name, [*settings, *others]), f"choose from {', '.join(settings)}"
        advice = f"did you mean {close}? ({choices})" if close else choices
        raise UsageError(f"The task {task} has no model {shorten(model)}: {advice}.")
    return shared


def resolve_bounds(value: Any, size: int) -> Any:
    """Return a setting's value for a template. If the value has bounds, compute it from the size of the data."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, dict) or "least" not in value:
        return value
    number = size / value["per"] if "per" in value else value["total"] / max(size, 1)
    return int(max(value["least"], min(value["most"], number)))


def choose_tokenizer(task: str, setting: Mapping[str, Json], sizes: Mapping[str, int]) -> str:
    """Return the kind of tokenizer for a task, or "" for tasks without text."""
    if task == "classify" and sizes["words"] <= 2 * sizes["examples"]:
        return "characters"  # single words, such as names
    defaults = {
        "translate": "byte-pair",
        "tag": "spelled-words",
        "series-classify": "",
        "classify-images": "",
        "instruct": "",
    }
    return str(setting.get("tokenizer", defaults.get(task, "words")))


def describe_classes(corpus: Any) -> dict[str, Json]:
    """Return the weights of classes and the metric that selects a classifier."""
    from seqloom.data.examples import MultiLabelExample

    counts = corpus.label_counts("train")
    is_uneven = max(counts.values()) > MIN_CLASS_RATIO * min(counts.values())
    if issubclass(corpus.example_type, MultiLabelExample):
        others = "micro_f1, macro_f1, samples_f1, subset_accuracy"
        return {"weights": "none", "monitor": "average_precision", "monitors": others}
    metric = "macro_f1" if is_uneven else "accuracy"
    return {
        "weights": "balanced" if is_uneven else "none",
        "monitor": metric,
        "monitors": "accuracy, macro_f1, matthews",
    }


def describe_tags(corpus: Any) -> dict[str, Json]:
    from seqloom.data.examples import has_spans

    return {"crf": str(has_spans(corpus)).lower()}


def describe_image_sizes(corpus: Any) -> dict[str, Json]:
    """Return the size and the channels to which images are converted.

    The size and the channels are chosen from a sample of the images.
    """
    sample = [example.image.decode().pixels.shape for example in corpus.split("train")[:IMAGE_SAMPLE]]
    sides = sorted(min(height, width) for height, width, _ in sample)
    return {
        "side": min(MAX_SIDE, sides[len(sides) // 2]),
        "channels": 1 if all(channels == 1 for *_, channels in sample) else 3,
    }


def describe_labelled_images(corpus: Any) -> dict[str, Json]:
    return describe_image_sizes(corpus) | describe_classes(corpus)


def describe_target(corpus: Any) -> dict[str, Json]:
    """Return whether the labels of pairs are numbers on a scale."""
    from seqloom.data.corpora.sentence_pairs import is_fraction

    return {"target": "score" if any(map(is_fraction, corpus.labels)) else "class"}


DETAILS: dict[str, Callable[[Any], dict[str, Json]]] = {
    "classify": describe_classes,
    "classify-images": describe_labelled_images,
    "caption": describe_image_sizes,
    "vqa": describe_image_sizes,
    "tag": describe_tags,
    "pair": describe_target,
}


def data_section(config: Any, detected: Detected, corpus: Any, unit: str) -> str:
    """Return the lines of the section `data`, with comments."""
    values = {key: value for key, value in to_mapping(config).items() if key in detected.data or key == "encoding"}
    if values.get("encoding") == "utf-8":
        del values["encoding"]
    more: dict[str, Json] = {
        "parallel": dict(zip(("source", "target"), corpus.languages, strict=True)),
        "text": {"documents": "file"},
    }.get(config.corpus, {})
    values |= {key: value for key, value in more.items() if key not in values}
    values |= {"invalid": "repair"} if config.corpus == "conll" else {}
    reuses_train = to_mapping(config).get("reuse_train", False)
    values |= {"reuse_train": True} if reuses_train else {}
    for split in ("dev", "test"):
        if values.get(split) is None and not reuses_train:
            values[f"{split}_fraction"] = getattr(config, f"{split}_fraction")
    labels = (
        shorten(", ".join(map(to_printable, corpus.labels)))
        if "label" in values and config.corpus != "series-rows"
        else ""
    )
    lines = []
    for key, value in values.items():
        kind = "labels" if key == "label" and isinstance(value, list | tuple) else key
        comment = COMMENTS.get(f"{config.corpus}.{key}", COMMENTS.get(kind, ""))
        comment = comment.format(labels=labels, unit=unit).removesuffix(": ")
        start = f"  {key}: {to_yaml_value(value)}"
        lines.append(f"{start:<27} # {comment}" if comment else start)
    return "\n".join(lines) + "\n"


def read_template(name: str) -> str:
    return (RECIPES / "templates" / f"{name}.yaml").read_text(encoding="utf-8")


def draft_forecaster(data: Mapping[str, object], name: str | None = None) -> tuple[dict[str, Json], list[str]]:
    """Return the values for the template of a forecaster, and notes on its data. `name` is the name of the model."""
    import torch

    from seqloom.classical.autoregressive import AutoregressiveConfig
    from seqloom.data.corpora import series_file
    from seqloom.data.series import columns_of, season_of
    from seqloom.data.tables import column_names

    config = series_file.Config(**cast(Any, data))
    corpus, settings = series_file.load(config), read_settings("forecast")
    train, season = corpus.split("train")[0], season_of(corpus)
    difference: Difference = "season" if season > 1 else "step"
    is_long = len(train) >= max(SHORT_SERIES_STEPS, 6 * season)
    if name is not None:
        (name,) = named_settings("forecast", name, settings)
    elif is_long:
        name = "lstm"
    else:
        autoregressive = AutoregressiveConfig(difference=difference).build(len(train.columns), train.season)
        values, mask = map(torch.from_numpy, train.visible())
        try:  # fails if not enough rows are complete
            autoregressive.solve([(values, mask)])
            name = "ar"
        except DataError:
            name = "kalman"
    setting = {"size": "", **settings[name]}
    is_neural = setting["form"] == "NEURAL"
    structure = "seasonal" if 1 < season <= LONG_SEASON_STEPS else "trend"
    per_epoch = max(1, (len(train) - 3 * season) // 32)
    epochs = min(60, max(5, 600 // per_epoch))
    fields = {
        "path": to_yaml(config.file),
        "time": to_yaml(column_names(Path(config.file))[0]),
        "columns": "[" + ", ".join(map(to_yaml, columns_of(corpus))) + "]",
        "season": season,
        "horizon": min(max(season, 8), 48, max(1, len(train) // 4)),
        "dev_fraction": config.dev_fraction,
        "test_fraction": config.test_fraction,
        "model": FORECASTERS[setting["form"]].format(
            difference=difference, structure=structure, name=name, size=setting["size"]
        ),
        "train": LEARNED.format(epochs=epochs, every=max(1, epochs * per_epoch // 10)) if is_neural else ESTIMATED,
    }
    variables = format_count(len(columns_of(corpus)), "variable", "variables")
    steps = f"{len(train):,} steps of {variables} to train on, {train.clock.describe()} each"
    return fields, [steps, *corpus.notes]


def load_with_limited_holdout(config: Any, load: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Load data with at most `MAX_HELD_OUT` examples held out for dev and for test. Return the config and the corpus.

    If a fraction holds out more examples, a smaller fraction with two digits replaces it. A split may exceed the limit
    by a part of its last group, because groups of examples are not divided. If a text has too few lines for three
    splits, dev and test are the training text.
    """
    from seqloom.data.corpora.text import TooShortTextError

    try:
        corpus = load(config)
    except TooShortTextError:  # a text of one or two lines
        config = replace(config, reuse_train=True)
        return config, load(config)
    fractions = missing_fractions(config, config.files())
    total = sum(len(corpus.splits[split]) for split in ("train", *fractions))
    too_large = [split for split, fraction in fractions.items() if fraction * total > MAX_HELD_OUT]
    if not too_large:
        return config, corpus
    limit = MAX_HELD_OUT / total
    scale = 10 ** (1 - math.floor(math.log10(limit)))
    config = replace(config, **{f"{split}_fraction": math.floor(limit * scale) / scale for split in too_large})
    return config, load(config)


def to_printable(text: str) -> str:
    """Replace characters that would end a comment, such as line breaks."""
    return "".join(character if character.isprintable() else "?" for character in text)


def to_yaml(text: str) -> str:
    """Format a text as one line of YAML, in quotes if necessary."""
    from seqloom.config import dump_yaml

    plain = dump_yaml({"": text}).partition(": ")[2].rstrip("\n")
    if plain.isprintable():  # a printable text is a single line
        return plain
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in text) + '"'


def to_yaml_value(value: Any) -> str:
    """Return a value as one line of YAML. In a list, texts with brackets or commas are quoted."""
    if isinstance(value, list | tuple):
        has_marks = [isinstance(item, str) and item.isprintable() and any(c in item for c in ",[]{}") for item in value]
        items = zip(value, has_marks, strict=True)
        return f"[{', '.join(json.dumps(i, ensure_ascii=False) if quote else to_yaml_value(i) for i, quote in items)}]"
    return to_yaml(value) if isinstance(value, str) else json.dumps(value)
