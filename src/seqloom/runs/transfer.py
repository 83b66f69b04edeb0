"""Transfer of the tokenizer, the architecture and the weights of an existing run (`init.from`).

With `init: {from: runs/X}`, the section of the backbone is copied from that run into the recipe before the recipe is
validated. As a result, the new run can be opened without the source run.
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
from seqloom.core.words import format_value
from seqloom.models import FINE_TUNED_PREFIX, MODELS, InitConfig
from seqloom.models.backbones import BACKBONES, Backbone
from seqloom.runs.layout import WEIGHTS_FILE, is_missing, read_run_file
from seqloom.runs.run import Run
from seqloom.text import Tokenizer

# Keys that may differ in fine-tuning, because they do not affect the weights.
FREE_KEYS = (
    *("dropout", "attention_dropout", "activation_dropout", "embedding_dropout", "weight_dropout"),
    *("variational_dropout", "align_layer"),
)
FROZEN_BACKBONE_TASKS = ("prompt-tune",)
BACKBONE_KINDS = tuple(BACKBONES.names())
LANGUAGE_MODELS = ("recurrent-lm", "gpt")
# Tasks that continue the training of a complete model, with the model kinds that they accept.
CONTINUED_KINDS: dict[str, Collection[str]] = {
    "instruct": BACKBONE_KINDS,
    "language-model": (*LANGUAGE_MODELS, "window-lm"),
    "translate": MODELS.only("transformer", "recurrent-seq2seq").names(),
}
MAX_LISTED_MISMATCHES = 8


@dataclass(frozen=True)
class CompleteModel:
    """A model that receives every weight of another model of its kind.

    If the other model has more tokens than `vocabulary`, the additional tokens are dropped.
    """

    model: Any  # an nn.Module
    vocabulary: int | None = None

    def load_pretrained(self, weights: Mapping[str, Tensor], origin: str) -> None:
        """Load these weights. If the weights do not match, raise `UsageError` with the first mismatches."""
        here, there = self.model.state_dict(keep_vars=True), dict(weights)
        for name, tensor in weights.items():
            size = len(here[name]) if name in here and here[name].dim() else None
            if size is not None and size == self.vocabulary and len(tensor) > size:  # a row for each token
                there[name] = tensor[:size]
        wrong = [f"{name} is missing" for name in here if name not in there]
        for name, tensor in here.items():
            if name in there and tensor.shape != there[name].shape:
                shapes = ["×".join(map(str, one.shape)) for one in (there[name], tensor)]
                wrong.append(f"{name} is {shapes[0]} in the run and {shapes[1]} in the new model")
        wrong += [f"{name} is unexpected" for name in there if name not in here]
        if wrong:
            limit = MAX_LISTED_MISMATCHES
            more = f"; and {len(wrong) - limit} more" if len(wrong) > limit else ""
            raise UsageError(f"The weights of {origin} do not match the model: {'; '.join(wrong[:limit])}{more}.")
        if not next(self.model.parameters()).is_meta:  # a model on the meta device is built only to count parameters
            self.model.load_state_dict(there)


@dataclass(frozen=True)
class Pretrained:
    """A run whose backbone is transferred."""

    run: Run
    section: Mapping[str, Json]  # the section of the backbone in its recipe
    inner: bool  # whether the run is fine-tuned; its backbone is then a part of its model

    @classmethod
    def open(cls, path: str | Path, kinds: Collection[str] = BACKBONE_KINDS) -> "Pretrained":
        """Open the run at a path. Raise an error if its model has none of these kinds."""
        path = Path(path)
        if is_missing(path):
            first = "Train one first"
            if path.name == "minilm":
                first = f"Import it first, `seqloom import-minilm {path}`"
            elif (Path(__file__).parents[1] / "recipes" / f"{path.name}.yaml").is_file():
                first = f"Train it first, `seqloom train {path.name}`"
            raise CheckpointError(
                f"init.from: there is no run {path}. {first}, or use another: init.from=RUN. "
                "`seqloom train gpt-pydocs` and `bert-pydocs` need no download."
            )
        run = Run.open(path)
        section: Json = run.recipe.get("model") or {}
        kind = str(section.get("kind"))
        inner = kind.startswith(FINE_TUNED_PREFIX)
        section = section.get("backbone") or {} if inner else section
        if section.get("kind") not in kinds or (inner and kinds is not BACKBONE_KINDS):
            tuned = ", or a run fine-tuned from one" if kinds is BACKBONE_KINDS else ""
            use = "fine-tuned" if kinds is BACKBONE_KINDS else "trained further"
            raise UsageError(
                f"init.from: {path} cannot be {use}: its model is of kind {kind}. "
                f"Use a run of one of the kinds {', '.join(kinds)}{tuned}."
            )
        run.tokenizer  # noqa: B018 (raises an error for a run without text)
        return cls(run, section, inner)

    def as_language_model(self) -> "Pretrained":
        """Return this source. Raise `UsageError` if its model is not a language model."""
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
        """The SHA-256 digest of the weights file."""
        file = self.run.path / WEIGHTS_FILE
        if is_missing(file):
            raise CheckpointError(
                f"init.from: {self.run.without_weights} Or use random initial weights: init.weights=false."
            )
        return sha256(read_run_file(self.run.path, WEIGHTS_FILE))

    def give(self, backbone: Backbone | CompleteModel) -> None:
        """Load the weights into a backbone. If the weights do not match, raise an error that lists the mismatches."""
        self.check_weights()
        weights: Mapping[str, Tensor] = self.run.weights()
        if self.inner and isinstance(backbone, Backbone):
            parts = {name.removeprefix("backbone."): x for name, x in weights.items() if name.startswith("backbone.")}
            weights = backbone.rename_to_pretrained(parts)
        backbone.load_pretrained(weights, str(self.run.path))

    def check_weights(self) -> None:
        """Raise `CheckpointError` if the run has no weights yet."""
        self.sha256  # noqa: B018

    def describe(self, chosen: InitConfig) -> dict[str, Json]:
        """Return the description of the source for the new run."""
        source = {"from": chosen.from_, "kind": self.kind, "corpus": self.run.data["corpus"], "weights": chosen.weights}
        return {"init": {**source, "sha256": self.sha256} if chosen.weights else source}


def fill_in(mapping: Mapping[str, Json]) -> dict[str, Json]:
    """Fill in the backbone of the run in `init.from`. If the task trains the model further, fill in the complete model.

    Keys that the recipe sets must agree with the run, except for `FREE_KEYS`.
    """
    init, model, task = mapping.get("init"), mapping.get("model") or {}, mapping.get("task")
    path = init.get("from") if isinstance(init, Mapping) else None
    if not isinstance(path, str) or not isinstance(model, Mapping):
        return dict(mapping)  # the problem is reported when the recipe is validated
    if task in CONTINUED_KINDS:
        source = Pretrained.open(path, CONTINUED_KINDS[task])
        source = source.as_language_model() if task == "instruct" else source
        return {**mapping, "model": merge_agreeing(source, model, "model")}
    if task in FROZEN_BACKBONE_TASKS:
        source = Pretrained.open(path).as_language_model()
    elif str(model.get("kind")).startswith(FINE_TUNED_PREFIX):
        source = Pretrained.open(path)
    else:
        return dict(mapping)
    return {**mapping, "model": {**model, "backbone": merge_agreeing(source, model.get("backbone"), "model.backbone")}}


def merge_agreeing(source: Pretrained, given: Json, key: str) -> dict[str, Json]:
    """Merge the section of a run with that of a recipe. Raise `UsageError` if keys other than `FREE_KEYS` disagree."""
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
            if name not in FREE_KEYS and value != other and other is not ABSENT:  # validation rejects unknown keys
                wrong.append(f"{path}.{name} is {format_value(value)}, but {format_value(other)} in the run")
            merged[name] = value
        return merged

    merged = merge(source.section, given if isinstance(given, Mapping) else {}, key)
    if wrong:
        name = key.rpartition(".")[2]
        raise UsageError(
            f"The {name} must match the {name} of init.from ({source.run.path}), but these keys differ: "
            f"{'; '.join(wrong)}. Remove these keys from the recipe, or train without init.from."
        )
    return merged


def pretrained(recipe: Any) -> Pretrained | None:
    """Open the run from which a recipe starts. Return None if the recipe does not name a run."""
    kinds = CONTINUED_KINDS.get(recipe.task, BACKBONE_KINDS)
    return None if recipe.init is None else Pretrained.open(recipe.init.from_, kinds)


@dataclass(frozen=True)
class ResumedSource:
    """The source of a resumed run, which must not change until the run has a checkpoint."""

    run: Run
    path: str
    kinds: Collection[str]

    def give(self, backbone: Backbone | CompleteModel) -> None:
        if any((self.run.path / "checkpoints").glob("step-*")):
            return
        source = Pretrained.open(self.path, self.kinds)
        if source.sha256 != self.run.data.get("init", {}).get("sha256"):
            raise CheckpointError(
                f"The weights of {self.path}, from which {self.run.path} starts, have changed, and it has no "
                "checkpoint yet. Train a new run with --out."
            )
        source.give(backbone)

    def describe(self, chosen: InitConfig) -> dict[str, Json]:
        """Return the description of the source."""
        return {"init": self.run.data["init"]}


def resumed_source(recipe: Any, run: Run) -> ResumedSource | None:
    """Return the source of an existing run, which is needed if training has to start again."""
    kinds = CONTINUED_KINDS.get(recipe.task, BACKBONE_KINDS)
    return None if recipe.init is None or not recipe.init.weights else ResumedSource(run, recipe.init.from_, kinds)
