"""A run directory: create, open and read it. `seqloom.runs.layout` lists its files."""

import inspect
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from seqloom.config import build, to_mapping
from seqloom.core import Json
from seqloom.core.device import choose_device
from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.files import (
    hold_lock,
    make_directory,
    parse_json,
    read_file,
    remove_directory,
    remove_leftovers,
    tensors_from_file,
    tensors_to_bytes,
    to_json,
    write_atomic,
)
from seqloom.core.memory import build_within_memory
from seqloom.core.tree import check_tree
from seqloom.models import find_config
from seqloom.runs.layout import (
    DOCUMENTS,
    FROZEN_FILE,
    MANIFEST_FILE,
    RECIPE_FILE,
    WEIGHTS_FILE,
    Manifest,
    claim,
    is_missing,
    parse_recipe,
    read_recipe_file,
    read_run_file,
    recipe_text,
    refuse_other_kinds,
    write_directory,
)
from seqloom.text import Characters, Tokenizer, tokenizer_from_json
from seqloom.train.checkpoints import CheckpointStore

LEFTOVER_AGE = 60.0  # seconds after which a temporary file of a command that holds no lock was left by a kill


class Run:
    """A run that exists on disk. Make one with `Run.create` or `Run.open`."""

    def __init__(self, path: Path, recipe: dict[str, Json], manifest: Manifest):
        self.path = path
        self.recipe = recipe
        self.manifest = manifest

    @classmethod
    def create(
        cls,
        path: Path,
        recipe: Mapping[str, Json],
        documents: Mapping[str, Json],
        files: Mapping[str, bytes] | None = None,
        *,
        weights: Mapping[str, Tensor] | None = None,
        records: Mapping[str, bytes] | None = None,
        claimed: bool = False,
    ) -> "Run":
        """Make a new run directory; it appears complete or not at all.

        The manifest covers its JSON `documents` and other `files`. It does not cover `records`,
        such as a log or a card, on which nothing depends. `weights` become model.safetensors.
        `claimed`: the caller holds the `claim` to the path.
        """
        text = recipe_text(recipe).encode()
        covered = {name: to_json(content).encode() for name, content in documents.items()} | dict(files or {})
        run = cls(path, parse_recipe(text, path), Manifest.of(text, covered))
        plain = {RECIPE_FILE: text, MANIFEST_FILE: run.manifest.to_json().encode(), **covered, **(records or {})}
        if weights is not None:
            plain[WEIGHTS_FILE] = tensors_to_bytes(weights, run.identity)
        with nullcontext() if claimed else claim(path):
            write_directory(path, plain)
        return run

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        path = Path(path)
        refuse_other_kinds(path)
        content = read_recipe_file(path)
        recipe = parse_recipe(content, path)
        manifest = Manifest.read(path)
        manifest.check_recipe(path, content)
        return cls(path, recipe, manifest)

    def update_recipe(self, recipe: Mapping[str, Json]) -> None:
        text = recipe_text(recipe).encode()
        self.manifest = self.manifest.replace_recipe(self.path, text)
        self.recipe = parse_recipe(text, self.path)

    @property
    def identity(self) -> str:
        """What ties weights and checkpoints to this run; see `Manifest`."""
        return self.manifest.identity(self.recipe)

    # --- documents ----------------------------------------------------------------------------------------------------

    def file(self, name: str) -> bytes:
        """The content of a file that the manifest covers, compared with its checksum."""
        return self.manifest.read_file(self.path, name)

    def documents(self) -> dict[str, Json]:
        """The documents that its task wrote, by name."""
        return {name: self._json(name) for name in DOCUMENTS if name in self.manifest.files}

    def _json(self, name: str, content: bytes | None = None) -> Json:
        try:
            return parse_json(self.file(name) if content is None else content)
        except ValueError as error:
            raise CheckpointError(f"{self.path / name} is damaged: it is not readable JSON ({error}).") from error

    def _require(self, holds: bool, name: str, problem: str) -> None:
        if not holds:
            raise CheckpointError(f"{self.path / name} is damaged: {problem}.")

    @cached_property
    def data(self) -> dict[str, Json]:
        data = self._json("data.json")
        is_data = isinstance(data, dict) and {"corpus", "version", "sha256", "counts"} <= data.keys()
        self._require(is_data, "data.json", "it does not say what the data was")
        return dict(data)

    @property
    def of_text(self) -> bool:
        """Whether its model reads tokens, and so has a tokenizer."""
        return "tokenizer" in self.recipe

    @cached_property
    def tokenizer(self) -> Tokenizer:
        if not self.of_text:
            raise UsageError(
                f"{self.path} is no model of text: its task, {self.recipe.get('task')}, reads numbers. "
                f"Measure it with `seqloom evaluate {self.path}`."
            )
        return self._tokenizer("tokenizer.json")

    def _tokenizer(self, name: str) -> Tokenizer:
        content = self._json(name)
        try:
            return tokenizer_from_json(content)
        except CheckpointError as error:
            raise CheckpointError(f"{self.path / name} cannot be used. {error}") from error

    @cached_property
    def labels(self) -> list[str]:
        """What its model can say: labels of texts, or tags of words."""
        labels, sizes = self._json("labels.json"), self.sizes
        is_list = isinstance(labels, list) and all(isinstance(name, str) for name in labels)
        self._require(is_list, "labels.json", "it must be a list of names")
        outputs = {sizes[name] for name in ("labels", "tags") if name in sizes}  # none, where labels are said in words
        fits = (not outputs or len(labels) in outputs) and len(set(labels)) == len(labels)
        self._require(fits, "labels.json", "its names are not those of the model")
        return list(labels)

    @cached_property
    def characters(self) -> Characters | None:
        """The alphabet of a model that reads how words are spelled; None if it does not."""
        if self.recipe["model"].get("characters") is None:
            return None
        alphabet = self._tokenizer("characters.json")
        if not isinstance(alphabet, Characters) or len(alphabet) != self.sizes.get("characters"):
            raise CheckpointError(f"{self.path / 'characters.json'} is damaged: its letters are not the model's.")
        return alphabet

    @cached_property
    def sizes(self) -> dict[str, int]:
        """What the data decided of the model's shape: the arguments of its config's `build`.

        The tokenizer says how large the vocabulary is, and `sizes.json` all else: how many labels
        there are, say.
        """
        known = {"vocabulary": len(self.tokenizer)} if self.of_text else {}
        parameters = inspect.signature(self._config().build).parameters.values()
        enough = known and all(one.name in known or one.default is not one.empty for one in parameters)
        if enough and "sizes.json" not in self.manifest.files:
            return known
        sizes = self._json("sizes.json")
        is_sizes = isinstance(sizes, dict) and all(type(size) is int and size > 0 for size in sizes.values())
        self._require(is_sizes, "sizes.json", "it does not say how wide the data is")
        return {**sizes, **known}

    @cached_property
    def average(self) -> dict[str, Json] | None:
        """What it is the mean of, where `seqloom average` made it: `runs`, and of one run the `steps`."""
        if "average.json" not in self.manifest.files:
            return None
        average = self._json("average.json")
        is_average = isinstance(average, dict) and isinstance(average.get("runs"), list)
        self._require(is_average, "average.json", "it does not say what was averaged")
        return dict(average)

    # --- the model ----------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """The tensors of the best weights, compared with their checksum; refused if they belong to another run."""
        path = self.path / WEIGHTS_FILE
        if is_missing(path):
            raise CheckpointError(self.without_weights)
        return tensors_from_file(path, self.identity)

    @property
    def without_weights(self) -> str:
        """What to say of a run that has no model.safetensors: it is not there yet, or no longer."""
        if "imported" not in self.data:
            return (
                f"{self.path} has no model.safetensors yet: it was stopped before its first evaluation. "
                f"Go on with `seqloom train --resume {self.path}`."
            )
        return (
            f"{self.path} is incomplete: model.safetensors is missing. It was imported, not trained here: remove it, "
            "and import it again."
        )

    def frozen(self) -> dict[str, Tensor]:
        """The weights that training left as they were, where they are kept apart."""
        if FROZEN_FILE not in self.manifest.files:
            return {}
        self.file(FROZEN_FILE)
        return tensors_from_file(self.path / FROZEN_FILE)

    def model(self, device: str = "auto") -> Any:
        """The best weights of this run, ready for use."""
        name = str(self.path / WEIGHTS_FILE)
        model = self._build_model(name)  # before the weights: what is wrong with a document is said of the document
        return self._load_weights(model, self.weights(), device, name)

    def model_of(self, weights: Mapping[str, Tensor], device: str = "auto", name: str = "This") -> Any:
        """The model of this run with these weights, ready for use; `name` is what to call them."""
        return self._load_weights(self._build_model(name), weights, device, name)

    def check_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Raise `CheckpointError` unless these can be the weights of this run's model."""
        self.model_of(weights, "cpu", WEIGHTS_FILE)

    def _config(self) -> Any:
        """The config of the model that the recipe describes."""
        section: Json = self.recipe.get("model")
        file, kind = self.path / RECIPE_FILE, section.get("kind") if isinstance(section, dict) else None
        config = find_config(self.recipe.get("task"), kind)
        if config is None:
            raise CheckpointError(f"{file} describes a model of kind {kind!r}, which this seqloom does not know.")
        try:
            return build(config, section, source=f"{file}, model,")
        except UsageError as error:
            raise CheckpointError(str(error)) from error

    def _build_model(self, name: str) -> Any:
        """A new model as the recipe describes it; `name` is that of the weights it is built for."""
        config, sizes = self._config(), self.sizes
        with _refuse_unfitting(name), build_within_memory({"model": to_mapping(config), **sizes}):
            return config.build(**sizes)

    def _load_weights(self, model: Any, weights: Mapping[str, Tensor], device: str, name: str) -> Any:
        """Load tensors into a model; `CheckpointError`, and nothing is changed, unless they are finite and its own.

        Frozen tensors are no part of its `state_dict()`. Classical models check their tensors
        themselves.
        """
        frozen = self.frozen()
        with _refuse_unfitting(name):
            if isinstance(model, nn.Module):
                check_tree(dict(weights), dict(model.state_dict()))
            model.load_state_dict({**frozen, **weights})
        return model.to(choose_device(device)).eval()

    # --- the training -------------------------------------------------------------------------------------------------

    def store(self, keep: int = 2) -> CheckpointStore:
        return CheckpointStore(self.path, keep, self.identity)

    def log(self) -> Iterator[dict[str, Json]]:
        """Every event of the training, oldest first.

        The log is no part of the state: a line that is cut short, not UTF-8 or not an event is
        skipped.
        """
        path = self.path / "log.jsonl"
        for line in read_file(path).split(b"\n") if path.exists() else []:
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, dict) and type(entry.get("event")) is str and type(entry.get("step")) is int:
                yield entry

    def metrics(self, split: str) -> dict[str, Json] | None:
        name = f"metrics/{split}.json"
        metrics: dict[str, Json] | None = None
        if not is_missing(self.path / name):
            metrics = self._json(name, read_run_file(self.path, name))
        return metrics

    def save_metrics(self, split: str, metrics: Mapping[str, Json], *, locked: bool = False) -> None:
        """Keep the evaluation of a split. A caller that holds the lock leaves nothing in `metrics` if it is killed."""
        make_directory(self.path / "metrics")
        temporary_folder = self.path if locked else None
        write_atomic(self.path / "metrics" / f"{split}.json", to_json(metrics), temporary_folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process may train a run at a time; the lock goes with the process, however it ends."""
        busy = f"{self.path} is being trained by another process. Wait for it, or stop it."
        with hold_lock(self.path / ".lock", busy):
            yield

    def remove_leftovers(self) -> None:
        """Delete the temporary files of killed processes. The caller holds the lock; `evaluate` needs none."""
        remove_leftovers(self.path)
        remove_leftovers(self.path / "metrics", min_age=LEFTOVER_AGE)

    def discard_unstarted(self) -> None:
        """Delete a new run whose training failed before its first step. One with weights or checkpoints is kept."""
        with self.locked():
            results = [self.path / WEIGHTS_FILE, *(self.path / "checkpoints").glob("*step-*")]
            if not any(map(os.path.lexists, results)) and all(entry["event"] == "started" for entry in self.log()):
                remove_directory(self.path)


@contextmanager
def _refuse_unfitting(name: str) -> Iterator[None]:
    """Turn what a model says of weights or sizes that are not its own into one line."""
    try:
        yield
    except (RuntimeError, KeyError, TypeError, ValueError, CheckpointError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{name} does not fit the model its recipe describes ({reason}).") from error
