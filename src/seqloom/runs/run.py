"""Run directories: creating, opening and reading them. `seqloom.runs.layout` lists their files."""

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
    reject_special_files,
    write_directory,
)
from seqloom.text import Characters, Tokenizer, tokenizer_from_json
from seqloom.train.checkpoints import CheckpointStore

LEFTOVER_AGE = 60.0  # seconds after which a temporary file written without a lock is considered abandoned


class Run:
    """A run on disk. Use `Run.create` or `Run.open`."""

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
        """Create a new run directory atomically.

        The manifest covers the JSON `documents` and other `files`. The manifest does not cover `records` such as the
        log or the card, on which no result depends. `weights` are written to model.safetensors. `claimed` means that
        the caller holds the `claim` to the path.
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
        reject_special_files(path)
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
        """The identity that weights and checkpoints of this run contain; see `Manifest`."""
        return self.manifest.identity(self.recipe)

    # --- documents ----------------------------------------------------------------------------------------------------

    def file(self, name: str) -> bytes:
        """Read a file that the manifest covers and verify its checksum."""
        return self.manifest.read_file(self.path, name)

    def documents(self) -> dict[str, Json]:
        """Return the documents of the task by name."""
        return {name: self._json(name) for name in DOCUMENTS if name in self.manifest.files}

    def _json(self, name: str, content: bytes | None = None) -> Json:
        try:
            return parse_json(self.file(name) if content is None else content)
        except ValueError as error:
            raise CheckpointError(f"{self.path / name} is damaged: it is not valid JSON ({error}).") from error

    def _require(self, holds: bool, name: str, problem: str) -> None:
        if not holds:
            raise CheckpointError(f"{self.path / name} is damaged: {problem}.")

    @cached_property
    def data(self) -> dict[str, Json]:
        data = self._json("data.json")
        is_data = isinstance(data, dict) and {"corpus", "version", "sha256", "counts"} <= data.keys()
        self._require(is_data, "data.json", "it does not describe the data")
        return dict(data)

    @property
    def of_text(self) -> bool:
        """Whether the model reads tokens. If so, the run has a tokenizer."""
        return "tokenizer" in self.recipe

    @cached_property
    def tokenizer(self) -> Tokenizer:
        if not self.of_text:
            raise UsageError(
                f"{self.path} is not a text model: its task, {self.recipe.get('task')}, reads no text. "
                f"Evaluate it with `seqloom evaluate {self.path}`."
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
        """The labels or tags that the model predicts."""
        labels, sizes = self._json("labels.json"), self.sizes
        is_list = isinstance(labels, list) and all(isinstance(name, str) for name in labels)
        self._require(is_list, "labels.json", "it must be a list of names")
        outputs = {sizes[name] for name in ("labels", "tags") if name in sizes}  # empty if labels are generated as text
        fits = (not outputs or len(labels) in outputs) and len(set(labels)) == len(labels)
        self._require(fits, "labels.json", "its names do not match the outputs of the model")
        return list(labels)

    @cached_property
    def characters(self) -> Characters | None:
        """The alphabet of a model that reads the characters of words, or None."""
        if self.recipe["model"].get("characters") is None:
            return None
        alphabet = self._tokenizer("characters.json")
        if not isinstance(alphabet, Characters) or len(alphabet) != self.sizes.get("characters"):
            raise CheckpointError(f"{self.path / 'characters.json'} is damaged: its characters do not match the model.")
        return alphabet

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes of the model that depend on the data, which are arguments of `build` of the model config.

        The tokenizer determines the size of the vocabulary; `sizes.json` contains all other sizes, such as the number
        of labels.
        """
        known = {"vocabulary": len(self.tokenizer)} if self.of_text else {}
        parameters = inspect.signature(self.model_config().build).parameters.values()
        is_complete = known and all(p.name in known or p.default is not p.empty for p in parameters)
        if is_complete and "sizes.json" not in self.manifest.files:
            return known
        sizes = self._json("sizes.json")
        is_sizes = isinstance(sizes, dict) and all(type(size) is int and size > 0 for size in sizes.values())
        self._require(is_sizes, "sizes.json", "it must contain positive whole numbers")
        return {**sizes, **known}

    @cached_property
    def average(self) -> dict[str, Json] | None:
        """The sources of a run created by `seqloom average`: `runs`, and `steps` for one run. None for other runs."""
        if "average.json" not in self.manifest.files:
            return None
        average = self._json("average.json")
        is_average = isinstance(average, dict) and isinstance(average.get("runs"), list)
        self._require(is_average, "average.json", "it does not list the averaged runs")
        return dict(average)

    # --- the model ----------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """Load the best weights. Raise `CheckpointError` if they are damaged or belong to another run."""
        path = self.path / WEIGHTS_FILE
        if is_missing(path):
            raise CheckpointError(self.without_weights)
        return tensors_from_file(path, self.identity)

    @property
    def without_weights(self) -> str:
        """The error message for a run without model.safetensors."""
        if "imported" not in self.data:
            return (
                f"{self.path} has no model.safetensors yet: it was stopped before its first evaluation. "
                f"Resume it with `seqloom train --resume {self.path}`."
            )
        return (
            f"{self.path} is incomplete: model.safetensors is missing. The run was imported: remove it and import the "
            "model again."
        )

    def frozen(self) -> dict[str, Tensor]:
        """Load the frozen weights, if they are stored in a separate file."""
        if FROZEN_FILE not in self.manifest.files:
            return {}
        self.file(FROZEN_FILE)
        return tensors_from_file(self.path / FROZEN_FILE)

    def model(self, device: str = "auto") -> Any:
        """Return the model of this run with its best weights, in evaluation mode."""
        name = str(self.path / WEIGHTS_FILE)
        # Built before the weights are read, so that errors in documents are reported first
        model = self._build_model(name)
        return self._load_weights(model, self.weights(), device, name)

    def model_of(self, weights: Mapping[str, Tensor], device: str = "auto", name: str = "This") -> Any:
        """Return the model of this run with these weights, in evaluation mode.

        `name` is used for the weights in messages.
        """
        return self._load_weights(self._build_model(name), weights, device, name)

    def check_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Raise `CheckpointError` unless the weights match the model of this run."""
        self.model_of(weights, "cpu", WEIGHTS_FILE)

    def model_config(self) -> Any:
        """Return the model config of the recipe."""
        section: Json = self.recipe.get("model")
        file, kind = self.path / RECIPE_FILE, section.get("kind") if isinstance(section, dict) else None
        config = find_config(self.recipe.get("task"), kind)
        if config is None:
            raise CheckpointError(
                f"{file} describes a model of kind {kind!r}, which this version of seqloom does not support."
            )
        try:
            return build(config, section, source=f"{file}, model,")
        except UsageError as error:
            raise CheckpointError(str(error)) from error

    def _build_model(self, name: str) -> Any:
        """Build a new model of the recipe; `name` is the name of the weights to load."""
        config, sizes = self.model_config(), self.sizes
        with _convert_mismatch_errors(name), build_within_memory({"model": to_mapping(config), **sizes}):
            return config.build(**sizes)

    def _load_weights(self, model: Any, weights: Mapping[str, Tensor], device: str, name: str) -> Any:
        """Load tensors into a model. If the tensors do not match the model or are not finite, raise `CheckpointError`
        and change nothing.

        `state_dict()` does not contain frozen tensors. Classical models validate their tensors.
        """
        frozen = self.frozen()
        with _convert_mismatch_errors(name):
            if isinstance(model, nn.Module):
                check_tree(dict(weights), dict(model.state_dict()))
            model.load_state_dict({**frozen, **weights})
        return model.to(choose_device(device)).eval()

    # --- the training -------------------------------------------------------------------------------------------------

    def store(self, keep: int = 2) -> CheckpointStore:
        return CheckpointStore(self.path, keep, self.identity)

    def log(self) -> Iterator[dict[str, Json]]:
        """Yield every event of training, oldest first.

        The log is not part of the training state. A line that is incomplete, is not UTF-8 or is not an event is
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
        """Save the evaluation of a split. With the lock held, temporary files are not placed in `metrics`."""
        make_directory(self.path / "metrics")
        temporary_folder = self.path if locked else None
        write_atomic(self.path / "metrics" / f"{split}.json", to_json(metrics), temporary_folder)

    def discard_metrics(self) -> None:
        """Delete the evaluations of previous weights or of a previous calibration, except on dev.

        Training and `seqloom calibrate` replace the evaluation on dev themselves.
        """
        for file in (self.path / "metrics").glob("*.json"):
            if file.name != "dev.json":
                file.unlink(missing_ok=True)

    def save_card(self, text: str, *, locked: bool = False) -> None:
        """Save the card. Without the lock, its temporary file is in `metrics`, where no other process deletes it."""
        make_directory(self.path / "metrics")
        write_atomic(self.path / "card.md", text, None if locked else self.path / "metrics")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the run, so that only one process trains it. The lock is released when the process ends."""
        busy = f"{self.path} is being trained by another process. Wait for it, or stop it."
        with hold_lock(self.path / ".lock", busy):
            yield

    def remove_leftovers(self) -> None:
        """Delete temporary files of killed processes. The caller must hold the lock."""
        remove_leftovers(self.path)
        remove_leftovers(self.path / "metrics", min_age=LEFTOVER_AGE)

    def discard_unstarted(self) -> None:
        """Delete a new run whose training failed before its first step. A run with weights or checkpoints is kept."""
        with self.locked():
            results = [self.path / WEIGHTS_FILE, *(self.path / "checkpoints").glob("*step-*")]
            if not any(map(os.path.lexists, results)) and all(entry["event"] == "started" for entry in self.log()):
                remove_directory(self.path)


@contextmanager
def _convert_mismatch_errors(name: str) -> Iterator[None]:
    """Convert errors of a model about weights or sizes to a one-line `CheckpointError`."""
    try:
        yield
    except (RuntimeError, KeyError, TypeError, ValueError, CheckpointError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{name} does not match the model of its recipe ({reason}).") from error
