"""One run directory: create, open, read, and refuse by name what it cannot read.

runs/<name>/
    recipe.yaml          the resolved recipe, with the format of this directory
    data.json            which data it was trained on: source version, checksums, counts
    tokenizer.json       of a model of text
    sizes.json           what else the data decided of the model's shape: how many labels, how wide vectors are
    labels.json          what a classifier or tagger can say, in the order of its output
    characters.json      the alphabet of a model that also reads how words are spelled
    model.safetensors    the best weights so far
    frozen.safetensors   of a model most of which never changes: that part of it
    checkpoints/         see seqloom.train.checkpoints
    average.json         of a mean of others, instead of checkpoints: see seqloom.runs.average
    log.jsonl            every event of the training
    metrics/dev.json     the last evaluation of each split
    tensorboard/         the curves of the training, where TensorBoard is installed
    card.md              all of this for a reader
    .lock                held by the process that trains the run

The run directory may be reached through links. What is in it must be regular files and directories: a link, FIFO or
device of one of these names is refused when the run is opened, and no write follows a link (see `seqloom.core.files`).
"""

import inspect
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from seqloom.core.config import build, dump_yaml, load_yaml
from seqloom.core.device import choose_device
from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.files import (
    disk_errors,
    flush_directory,
    hold_lock,
    make_directory,
    new_directory,
    read_file,
    refuse_other_kind,
    remove_directory,
    remove_leftovers,
    reserve,
    tensors_from_file,
    to_json,
    write_atomic,
    write_flushed,
)
from seqloom.core.version import VERSION
from seqloom.runs.models import find_config
from seqloom.text import Characters, Tokenizer, tokenizer_from_json
from seqloom.train.checkpoints import CheckpointStore

FORMAT = 1
FROZEN_FILE = "frozen.safetensors"
DOCUMENTS = ("data.json", "tokenizer.json", "sizes.json", "labels.json", "characters.json")  # see above
OTHER_FILES = ("recipe.yaml", "model.safetensors", FROZEN_FILE, "average.json", "log.jsonl", "card.md", ".lock")
FOLDERS = ("checkpoints", "metrics", "tensorboard")
LEFTOVER_AGE = 60.0  # seconds after which a temporary file of a command that holds no lock was left by a kill


class Run:
    """A run that exists on disk. Make one with `Run.create` or `Run.open`."""

    def __init__(self, path: Path, recipe: dict[str, Any]):
        self.path = path
        self.recipe = recipe

    @classmethod
    def create(
        cls,
        path: Path,
        recipe: Mapping[str, Any],
        documents: Mapping[str, Any],
        files: Mapping[str, bytes] | None = None,
    ) -> "Run":
        """Make a new run directory with its JSON documents and other files; it appears complete or not at all."""
        with claim(path):
            return cls.create_claimed(path, recipe, documents, files)

    @classmethod
    def create_claimed(
        cls,
        path: Path,
        recipe: Mapping[str, Any],
        documents: Mapping[str, Any],
        files: Mapping[str, bytes] | None = None,
    ) -> "Run":
        """Do what `create` does, for a caller that holds the `claim` to the path."""
        with new_directory(path) as folder:
            write_flushed(folder / "recipe.yaml", _recipe_text(recipe).encode())
            plain = {name: to_json(content).encode() for name, content in documents.items()} | dict(files or {})
            for name, content in plain.items():
                (folder / name).parent.mkdir(exist_ok=True)
                write_flushed(folder / name, content)
            for place in {(folder / name).parent for name in plain} - {folder}:
                flush_directory(place)
        return cls(path, dict(recipe))

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        path = Path(path)
        refuse_other_kinds(path)
        if not (path / "recipe.yaml").is_file():
            if (path / "config.json").is_file():
                raise CheckpointError(
                    f"{path} is not a run: it looks like a Hugging Face directory. Import it first: "
                    f"seqloom import-hf {path} RUN"
                )
            problem = "has no recipe.yaml" if path.is_dir() else "does not exist" if not path.exists() else "is a file"
            raise CheckpointError(f"{path} is not a run: it {problem}. Name a directory that `seqloom train` made.")
        try:
            recipe = load_yaml(path / "recipe.yaml")
        except UsageError as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error
        if "format" not in recipe:
            what = "damaged, or not seqloom's: its recipe.yaml does not say its run format"
            what = what if recipe else "damaged: its recipe.yaml is empty"
            raise CheckpointError(f"{path} is {what}. Bring the file back, copy the run again, or train anew.")
        version = recipe.pop("format")
        writer = recipe.pop("seqloom", "an unknown version")
        if version != FORMAT:
            raise CheckpointError(
                f"{path} has run format {version}, written by seqloom {writer}; this is seqloom {VERSION}, which "
                f"reads format {FORMAT}. Use the version that wrote it, or train again."
            )
        return cls(path, recipe)

    def update_recipe(self, recipe: Mapping[str, Any]) -> None:
        write_atomic(self.path / "recipe.yaml", _recipe_text(recipe))
        self.recipe = dict(recipe)

    @cached_property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = self._json("data.json")
        if not isinstance(data, dict) or not {"corpus", "version", "sha256", "counts"} <= data.keys():
            raise CheckpointError(f"{self.path / 'data.json'} is damaged: it does not say what the data was.")
        return data

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
        found, sizes = self._json("labels.json"), self.sizes
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise CheckpointError(f"{self.path / 'labels.json'} is damaged: it must be a list of names.")
        outputs = {sizes[name] for name in ("labels", "tags") if name in sizes}  # none, where labels are said in words
        if (outputs and len(found) not in outputs) or len(set(found)) < len(found):
            raise CheckpointError(f"{self.path / 'labels.json'} is damaged: its names are not those of the model.")
        return found

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

        The tokenizer says how large the vocabulary is, and `sizes.json` all else: how many labels there are, say.
        """
        known = {"vocabulary": len(self.tokenizer)} if self.of_text else {}
        asked = inspect.signature(self._config().build).parameters.values()
        enough = known and all(one.name in known or one.default is not one.empty for one in asked)
        if enough and not (self.path / "sizes.json").is_file():
            return known
        found = self._json("sizes.json")
        if not isinstance(found, dict) or not all(type(size) is int and size > 0 for size in found.values()):
            raise CheckpointError(f"{self.path / 'sizes.json'} is damaged: it does not say how wide the data is.")
        return found | known

    @cached_property
    def average(self) -> dict[str, Any] | None:
        """What it is the mean of, where `seqloom average` made it: `runs`, and of one run the `steps`."""
        if not (self.path / "average.json").exists():
            return None
        found = self._json("average.json")
        if not isinstance(found, dict) or not isinstance(found.get("runs"), list):
            raise CheckpointError(f"{self.path / 'average.json'} is damaged: it does not say what was averaged.")
        return found

    def _json(self, name: str) -> Any:
        try:
            return json.loads(read_file(self.path / name).decode("utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"{self.path} is incomplete: {name} is missing.") from None
        except (ValueError, OSError) as error:
            raise CheckpointError(f"{self.path / name} is damaged: it is not readable JSON ({error}).") from error

    def model(self, device: str = "auto") -> Any:
        """The best weights of this run, ready for use."""
        weights = self.path / "model.safetensors"
        if not weights.exists():
            raise CheckpointError(self.without_weights)
        model = self.model_of(tensors_from_file(weights), device, str(weights))
        _refuse_not_finite(model, weights)
        return model

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

    def model_of(self, weights: Mapping[str, Any], device: str = "auto", name: str = "This") -> Any:
        """The model of this run with these weights, ready for use; `name` is what to call them."""
        config, sizes = self._config(), self.sizes
        try:
            model = config.build(**sizes)
            model.load_state_dict({**self.frozen(), **weights})
        except (RuntimeError, KeyError, TypeError, ValueError, CheckpointError) as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(f"{name} does not fit the model its recipe describes ({reason}).") from error
        return model.to(choose_device(device)).eval()

    def frozen(self) -> dict[str, Any]:
        """The weights that training left as they were, where they are kept apart."""
        path = self.path / FROZEN_FILE
        return tensors_from_file(path) if path.exists() else {}

    def _config(self) -> Any:
        """What the recipe says of the model."""
        section: Any = self.recipe.get("model")
        kind = section.get("kind") if isinstance(section, dict) else None
        config = find_config(self.recipe.get("task"), kind)
        if config is None:
            raise CheckpointError(
                f"{self.path / 'recipe.yaml'} describes a model of kind {kind!r}, which this seqloom does not know."
            )
        try:
            return build(config, section, source=f"{self.path / 'recipe.yaml'}, model,")
        except UsageError as error:
            raise CheckpointError(str(error)) from error

    def store(self, keep: int = 2) -> CheckpointStore:
        return CheckpointStore(self.path, keep)

    def log(self) -> Iterator[dict[str, Any]]:
        """Every event of the training, oldest first.

        The log is no part of the state: a line that is cut short, not UTF-8 or not an event is skipped.
        """
        path = self.path / "log.jsonl"
        for line in read_file(path).split(b"\n") if path.exists() else []:
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, dict) and type(entry.get("event")) is str and type(entry.get("step")) is int:
                yield entry

    def metrics(self, split: str) -> dict[str, Any] | None:
        path = self.path / "metrics" / f"{split}.json"
        return self._json(f"metrics/{split}.json") if path.exists() else None

    def save_metrics(self, split: str, metrics: Mapping[str, Any]) -> None:
        make_directory(self.path / "metrics")
        write_atomic(self.path / "metrics" / f"{split}.json", to_json(metrics))

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
            results = [self.path / "model.safetensors", *(self.path / "checkpoints").glob("*step-*")]
            if not any(map(os.path.lexists, results)) and all(entry["event"] == "started" for entry in self.log()):
                remove_directory(self.path)


def _refuse_not_finite(model: Any, path: Path) -> None:
    """Whatever is asked of such a model, the answer would mean nothing."""
    named = model.named_parameters() if isinstance(model, nn.Module) else ()
    if bad := [name for name, parameter in named if not parameter.isfinite().all()]:
        more = f" and {len(bad) - 1:,} more" if len(bad) > 1 else ""
        raise CheckpointError(
            f"{path} has weights that are not finite numbers ({bad[0]}{more}): the model is spoilt. Use another "
            "run, or train anew."
        )


def _recipe_text(recipe: Mapping[str, Any]) -> str:
    return dump_yaml({"format": FORMAT, "seqloom": VERSION, **recipe})


@contextmanager
def claim(path: Path) -> Iterator[None]:
    """Reserve the path of a new run, from before the work for it begins until the run exists.

    A path that exists, or that another process has reserved, is refused. What a killed process left of a run of that
    name is removed.
    """
    refuse_existing(path)
    missing = [folder for folder in path.absolute().parents if not folder.exists()]
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        busy = f"{path} is being made by another process. Wait for it, or choose another place with --out."
        with reserve(path, busy):
            refuse_existing(path)  # it may have been made since
            remove_leftovers(path.parent, path.name)
            yield
    finally:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()  # unless there is something in it now


def refuse_other_kinds(path: Path) -> None:
    """Refuse a run in which a link, FIFO, device or directory stands where a file belongs."""
    for name in (*OTHER_FILES, *DOCUMENTS):
        refuse_other_kind(path / name)
    for name in FOLDERS:
        refuse_other_kind(path / name, stat.S_IFDIR)
    for file in (path / "metrics").glob("*.json"):
        refuse_other_kind(file)


def refuse_existing(path: Path) -> None:
    if not path.exists() and not path.is_symlink():
        return
    number = next(n for n in range(2, 10_000) if not path.with_name(f"{path.name}-{n}").exists())
    free = path.with_name(f"{path.name}-{number}")
    if (path / "average.json").is_file():  # there is nothing to go on with
        raise UsageError(f"{path} exists. Keep it and choose another place: --out {free}.")
    if (path / "recipe.yaml").is_file():
        raise UsageError(f"{path} exists. Go on with it: --resume {path}; or keep it and choose another: --out {free}.")
    raise UsageError(f"{path} exists and is not a run. Choose another place: --out {free}.")
