"""Where a training begins: with the tokenizer, the shape and the weights of a run that exists.

A recipe says `init: {from: runs/X}`, and its model is one on a backbone. What the backbone is, the run
knows: it is written into the recipe before the recipe is checked, so that the run that comes of it
needs no other to be opened.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from seqloom.config import ABSENT
from seqloom.core import Json
from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.files import sha256
from seqloom.core.words import shown
from seqloom.models import FINE_TUNED_PREFIX, MODELS, InitConfig
from seqloom.models.backbones import BACKBONES, Backbone
from seqloom.runs.layout import WEIGHTS_FILE, is_missing, read_run_file
from seqloom.runs.run import Run
from seqloom.text import Tokenizer

# What may be another in fine-tuning: it changes no weight.
FREE = (
    *("dropout", "attention_dropout", "activation_dropout", "embedding_dropout", "weight_dropout"),
    *("variational_dropout", "align_layer"),
)
BESIDE_A_BODY = ("prompt-tune",)  # tasks whose model has one, which never changes
BACKBONE_KINDS = tuple(BACKBONES.names())
LANGUAGE_MODELS = ("recurrent-lm", "gpt")
# Tasks that train a model further, as it is: which kinds of it.
GOES_ON: dict[str, Collection[str]] = {
    "instruct": BACKBONE_KINDS,
    "language-model": (*LANGUAGE_MODELS, "window-lm"),
    "translate": MODELS.only("transformer", "recurrent-seq2seq").names(),
}
SHOWN = 8  # mismatches named one by one


@dataclass(frozen=True)
class WholeModel:
    """A model that goes on where another of its kind is: it takes over every weight.

    The other may have more tokens than the `vocabulary`: what follows its tokenizer's is left
    behind.
    """

    model: Any  # an nn.Module
    vocabulary: int | None = None

    def take(self, weights: Mapping[str, Tensor], whose: str) -> None:
        """Load these weights; refused, with the first mismatches named, if they do not fit."""
        here, there = self.model.state_dict(keep_vars=True), dict(weights)
        for name, tensor in weights.items():
            size = len(here[name]) if name in here and here[name].dim() else None
            if size is not None and size == self.vocabulary and len(tensor) > size:  # a row for each token
                there[name] = tensor[:size]
        wrong = [f"{name} is not there" for name in here if name not in there]
        for name, tensor in here.items():
            if name in there and tensor.shape != there[name].shape:
                shapes = ["×".join(map(str, one.shape)) for one in (there[name], tensor)]
                wrong.append(f"{name} is {shapes[0]} there and {shapes[1]} here")
        wrong += [f"{name} has no place here" for name in there if name not in here]
        if wrong:
            more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
            raise UsageError(f"The weights of {whose} do not fit the model: {'; '.join(wrong[:SHOWN])}{more}.")
        if not next(self.model.parameters()).is_meta:  # then it was only built to be counted
            self.model.load_state_dict(there)


@dataclass(frozen=True)
class Pretrained:
    """A run whose backbone is taken over."""

    run: Run
    section: Mapping[str, Json]  # the recipe's words for the backbone
    inner: bool  # whether the run was fine-tuned itself: its backbone is a part of its model

    @classmethod
    def open(cls, path: str | Path, kinds: Collection[str] = BACKBONE_KINDS) -> "Pretrained":
        """The run at this place, of one of these kinds; a word on why it cannot be taken over, if so."""
        path = Path(path)
        if is_missing(path):
            first = "Train one first"
            if path.name == "minilm":
                first = f"Import it first, `seqloom import-minilm {path}`"
            elif (Path(__file__).parents[1] / "recipes" / f"{path.name}.yaml").is_file():
                first = f"Train it first, `seqloom train {path.name}`"
            raise CheckpointError(
                f"init.from: there is no run {path}. {first}, or name another: init.from=RUN. "
                "`seqloom train gpt-pydocs` and `bert-pydocs` need no download."
            )
        run = Run.open(path)
        section: Json = run.recipe.get("model") or {}
        kind = str(section.get("kind"))
        inner = kind.startswith(FINE_TUNED_PREFIX)
        section = section.get("backbone") or {} if inner else section
        if section.get("kind") not in kinds or (inner and kinds is not BACKBONE_KINDS):
            tuned = ", or one that was fine-tuned from such a run" if kinds is BACKBONE_KINDS else ""
            use = "fine-tuned" if kinds is BACKBONE_KINDS else "gone on with"
            raise UsageError(
                f"init.from: {path} cannot be {use}: its model is of kind {kind}. "
                f"Name a run of one of the kinds {', '.join(kinds)}{tuned}."
            )
        run.tokenizer  # noqa: B018 (a run that is not about text says so here)
        return cls(run, section, inner)

    def as_language_model(self) -> "Pretrained":
        """Itself; refused where nothing in it predicts the next token."""
        if self.inner or self.kind not in LANGUAGE_MODELS:
            raise UsageError(
                f"init.from: {self.run.path} must be a language model, of kind {' or '.join(LANGUAGE_MODELS)}; it is "
                f"of kind {self.run.recipe['model']['kind']}."
            )
        return self

    @property
    def tokenizer(self) -> Tokenizer:
        return self.run.tokenizer

    @property
    def kind(self) -> str:
        return str(self.section["kind"])

    @cached_property
    def sha256(self) -> str:
        """Of the file of its weights."""
        file = self.run.path / WEIGHTS_FILE
        if is_missing(file):
            raise CheckpointError(
                f"init.from: {self.run.without_weights} Or draw all weights anew: init.weights=false."
            )
        return sha256(read_run_file(self.run.path, WEIGHTS_FILE))

    def give(self, backbone: Backbone | WholeModel) -> None:
        """Its weights to a backbone; refused, with all mismatches named, if they do not fit."""
        self.check_weights()
        weights: Mapping[str, Tensor] = self.run.weights()
        if self.inner and isinstance(backbone, Backbone):
            parts = {name.removeprefix("backbone."): x for name, x in weights.items() if name.startswith("backbone.")}
            weights = backbone.as_pretrained(parts)
        backbone.take(weights, str(self.run.path))

    def check_weights(self) -> None:
        """Refuse a run that has no weights yet."""
        self.sha256  # noqa: B018

    def describe(self, chosen: InitConfig) -> dict[str, Json]:
        """What a run remembers of where it began."""
        found = {"from": chosen.from_, "kind": self.kind, "corpus": self.run.data["corpus"], "weights": chosen.weights}
        return {"init": {**found, "sha256": self.sha256} if chosen.weights else found}


def fill_in(mapping: Mapping[str, Json]) -> dict[str, Json]:
    """A recipe's mapping with the backbone of the run `init.from`, or its whole model if a task continues it.

    What it says of the backbone itself must agree with the run, but for what changes no weight.
    """
    init, model, task = mapping.get("init"), mapping.get("model") or {}, mapping.get("task")
    path = init.get("from") if isinstance(init, Mapping) else None
    if not isinstance(path, str) or not isinstance(model, Mapping):
        return dict(mapping)  # whatever is wrong is found when the recipe is checked
    if task in GOES_ON:
        source = Pretrained.open(path, GOES_ON[task])
        source = source.as_language_model() if task == "instruct" else source
        return {**mapping, "model": merge_agreeing(source, model, "model")}
    if task in BESIDE_A_BODY:
        source = Pretrained.open(path).as_language_model()
    elif str(model.get("kind")).startswith(FINE_TUNED_PREFIX):
        source = Pretrained.open(path)
    else:
        return dict(mapping)
    return {**mapping, "model": {**model, "backbone": merge_agreeing(source, model.get("backbone"), "model.backbone")}}


def merge_agreeing(source: Pretrained, given: Json, key: str) -> dict[str, Json]:
    """The section of a run with what a recipe says of it; refused if they disagree on something that is not free."""
    wrong: list[str] = []

    def merge(there: Mapping[str, Json], given: Mapping[str, Json], path: str) -> dict[str, Json]:
        merged = dict(there)
        for name, value in given.items():
            other = there.get(name, ABSENT)
            if isinstance(value, Mapping) and isinstance(other, Mapping):
                merged[name] = merge(other, value, f"{path}.{name}")
                continue
            if name == "kind" and value == MODELS.base(other):
                continue  # the run may have an extension of the kind that the recipe names
            if name not in FREE and value != other and other is not ABSENT:  # an unknown key is refused with the recipe
                wrong.append(f"{path}.{name} is {shown(value)} here and {shown(other)} there")
            merged[name] = value
        return merged

    merged = merge(source.section, given if isinstance(given, Mapping) else {}, key)
    if wrong:
        raise UsageError(
            f"The {key.rpartition('.')[2]} is that of init.from, {source.run.path}, and this is another: "
            f"{'; '.join(wrong)}. Leave these out, or train without init.from."
        )
    return merged


def pretrained(recipe: Any) -> Pretrained | None:
    """The run a recipe begins with, opened."""
    return None if recipe.init is None else Pretrained.open(recipe.init.from_, GOES_ON.get(recipe.task, BACKBONE_KINDS))


@dataclass(frozen=True)
class StillNeeded:
    """The same when a run is gone on with: nobody needs it once there is a checkpoint, and before that it must be what
    it was."""

    run: Run
    path: str
    kinds: Collection[str]

    def give(self, backbone: Backbone | WholeModel) -> None:
        if any((self.run.path / "checkpoints").glob("step-*")):
            return
        found = Pretrained.open(self.path, self.kinds)
        if found.sha256 != self.run.data.get("init", {}).get("sha256"):
            raise CheckpointError(
                f"The weights of {self.path}, with which {self.run.path} begins, have changed since, and it has made "
                "no checkpoint yet. Train anew with --out."
            )
        found.give(backbone)

    def describe(self, chosen: InitConfig) -> dict[str, Json]:
        """What the run remembers of where it began."""
        return {"init": self.run.data["init"]}


def still_needed(recipe: Any, run: Run) -> StillNeeded | None:
    """What a run that exists began with, should it have to begin again."""
    kinds = GOES_ON.get(recipe.task, BACKBONE_KINDS)
    return None if recipe.init is None or not recipe.init.weights else StillNeeded(run, recipe.init.from_, kinds)
