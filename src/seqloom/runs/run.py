"""One run directory: create, open, read, and refuse by name what it cannot read.

runs/<name>/
    recipe.yaml          the resolved recipe, with the format of this directory
    manifest.json        sha256 of the recipe and of the documents below: see seqloom.runs.manifest
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

from torch import Tensor, nn

from seqloom.config import build, dump_yaml, load_yaml
from seqloom.config.yaml_text import decode_utf8
from seqloom.core.allocations import build_within_memory
from seqloom.core.device import choose_device
from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.expected import check_tree
from seqloom.core.files import (
    disk_errors,
    flush_directory,
    hold_lock,
    make_directory,
    new_directory,
    parse_json,
    read_file,
    refuse_other_kind,
    remove_directory,
    remove_leftovers,
    reserve,
    tensors_from_file,
    tensors_to_bytes,
    to_json,
    write_atomic,
    write_flushed,
)
from seqloom.core.version import VERSION
from seqloom.core.words import is_unicode
from seqloom.runs.manifest import MANIFEST_FILE, RECIPE_FILE, Manifest, is_missing, read_run_file
from seqloom.runs.models import find_config
from seqloom.text import Characters, Tokenizer, tokenizer_from_json
from seqloom.train.checkpoints import CheckpointStore

FORMAT = 1
WEIGHTS_FILE = "model.safetensors"
FROZEN_FILE = "frozen.safetensors"
DOCUMENTS = ("data.json", "tokenizer.json", "sizes.json", "labels.json", "characters.json")  # see above
OTHER_FILES = (RECIPE_FILE, MANIFEST_FILE, WEIGHTS_FILE, FROZEN_FILE, "average.json", "log.jsonl", "card.md", ".lock")
FOLDERS = ("checkpoints", "metrics", "tensorboard")
LEFTOVER_AGE = 60.0  # seconds after which a temporary file of a command that holds no lock was left by a kill


class Run:
    """A run that exists on disk. Make one with `Run.create` or `Run.open`."""

    def __init__(self, path: Path, recipe: dict[str, Any], manifest: Manifest):
        self.path = path
        self.recipe = recipe
        self.manifest = manifest

    @classmethod
    def create(
        cls,
        path: Path,
        recipe: Mapping[str, Any],
        documents: Mapping[str, Any],
        files: Mapping[str, bytes] | None = None,
        *,
        weights: Mapping[str, Tensor] | None = None,
        records: Mapping[str, bytes] | None = None,
    ) -> "Run":
        """Make a new run directory; it appears complete or not at all.

        The manifest covers its JSON `documents` and other `files`. It does not cover `records`, such as a log or a
        card, on which nothing depends. `weights` become model.safetensors.
        """
        with claim(path):
            return cls.create_claimed(path, recipe, documents, files, weights=weights, records=records)

    @classmethod
    def create_claimed(
        cls,
        path: Path,
        recipe: Mapping[str, Any],
        documents: Mapping[str, Any],
        files: Mapping[str, bytes] | None = None,
        *,
        weights: Mapping[str, Tensor] | None = None,
        records: Mapping[str, bytes] | None = None,
    ) -> "Run":
        """Do what `create` does, for a caller that holds the `claim` to the path."""
        text = _recipe_text(recipe).encode()
        covered = {name: to_json(content).encode() for name, content in documents.items()} | dict(files or {})
        run = cls(path, _without_header(_parse_recipe(text, path)), Manifest.of(text, covered))
        plain = {RECIPE_FILE: text, MANIFEST_FILE: run.manifest.to_json().encode(), **covered, **(records or {})}
        if weights is not None:
            plain[WEIGHTS_FILE] = tensors_to_bytes(weights, run.identity)
        with new_directory(path) as folder:
            for name, content in plain.items():
                (folder / name).parent.mkdir(exist_ok=True)
                write_flushed(folder / name, content)
            for place in {(folder / name).parent for name in plain} - {folder}:
                flush_directory(place)
        return run

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        path = Path(path)
        refuse_other_kinds(path)
        try:
            content = read_file(path / RECIPE_FILE)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            raise _not_a_run(path) from None
        except OSError as error:
            raise CheckpointError(f"{path / RECIPE_FILE} cannot be read ({error.strerror}).") from error
        recipe = _parse_recipe(content, path)
        if "format" not in recipe:
            what = "damaged, or not seqloom's: its recipe.yaml does not say its run format"
            what = what if recipe else "damaged: its recipe.yaml is empty"
            raise CheckpointError(f"{path} is {what}. Bring the file back, copy the run again, or train anew.")
        if recipe["format"] != FORMAT:
            version, writer = recipe["format"], recipe.get("seqloom", "an unknown version")
            raise CheckpointError(
                f"{path} has run format {version}, written by seqloom {writer}; this is seqloom {VERSION}, which "
                f"reads format {FORMAT}. Use the version that wrote it, or train again."
            )
        manifest = Manifest.read(path)
        manifest.check_recipe(path, content)
        return cls(path, _without_header(recipe), manifest)

    def update_recipe(self, recipe: Mapping[str, Any]) -> None:
        text = _recipe_text(recipe).encode()
        self.manifest = self.manifest.replace_recipe(self.path, text)
        self.recipe = _without_header(_parse_recipe(text, self.path))

    @property
    def identity(self) -> str:
        """What ties weights and checkpoints to this run; see `seqloom.runs.manifest`."""
        return self.manifest.identity(self.recipe)

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
        if enough and "sizes.json" not in self.manifest.files:
            return known
        found = self._json("sizes.json")
        if not isinstance(found, dict) or not all(type(size) is int and size > 0 for size in found.values()):
            raise CheckpointError(f"{self.path / 'sizes.json'} is damaged: it does not say how wide the data is.")
        return found | known

    @cached_property
    def average(self) -> dict[str, Any] | None:
        """What it is the mean of, where `seqloom average` made it: `runs`, and of one run the `steps`."""
        if "average.json" not in self.manifest.files:
            return None
        found = self._json("average.json")
        if not isinstance(found, dict) or not isinstance(found.get("runs"), list):
            raise CheckpointError(f"{self.path / 'average.json'} is damaged: it does not say what was averaged.")
        return found

    def file(self, name: str) -> bytes:
        """The content of a file that the manifest covers, compared with its checksum."""
        return self.manifest.read_file(self.path, name)

    def documents(self) -> dict[str, Any]:
        """The documents that its task wrote, by name."""
        return {name: self._json(name) for name in DOCUMENTS if name in self.manifest.files}

    def _json(self, name: str) -> Any:
        return self._parsed(name, self.file(name))

    def _parsed(self, name: str, content: bytes) -> Any:
        try:
            return parse_json(content)
        except ValueError as error:
            raise CheckpointError(f"{self.path / name} is damaged: it is not readable JSON ({error}).") from error

    def weights(self) -> dict[str, Tensor]:
        """The tensors of the best weights, compared with their checksum; refused if they belong to another run."""
        path = self.path / WEIGHTS_FILE
        if is_missing(path):
            raise CheckpointError(self.without_weights)
        return tensors_from_file(path, self.identity)

    def model(self, device: str = "auto") -> Any:
        """The best weights of this run, ready for use."""
        name = str(self.path / WEIGHTS_FILE)
        model = self._fresh_model(name)  # before the weights: what is wrong with a document is said of the document
        return self._loaded(model, self.weights(), device, name)

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
        return self._loaded(self._fresh_model(name), weights, device, name)

    def _fresh_model(self, name: str) -> Any:
        config, sizes = self._config(), self.sizes
        with _refuse_unfitting(name), build_within_memory({"model": self.recipe.get("model"), **sizes}):
            return config.build(**sizes)

    def _loaded(self, model: Any, weights: Mapping[str, Any], device: str, name: str) -> Any:
        frozen = self.frozen()
        with _refuse_unfitting(name):
            load_weights(model, weights, frozen)
        return model.to(choose_device(device)).eval()

    def check_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Raise `CheckpointError` unless these can be the weights of this run's model."""
        self.model_of(weights, "cpu", WEIGHTS_FILE)

    def frozen(self) -> dict[str, Any]:
        """The weights that training left as they were, where they are kept apart."""
        if FROZEN_FILE not in self.manifest.files:
            return {}
        self.file(FROZEN_FILE)
        return tensors_from_file(self.path / FROZEN_FILE)

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
        return CheckpointStore(self.path, keep, self.identity)

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
        name = f"metrics/{split}.json"
        return self._parsed(name, read_run_file(self.path, name)) if not is_missing(self.path / name) else None

    def save_metrics(self, split: str, metrics: Mapping[str, Any], *, locked: bool = False) -> None:
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
            results = [self.path / "model.safetensors", *(self.path / "checkpoints").glob("*step-*")]
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


def load_weights(model: Any, weights: Mapping[str, Tensor], frozen: Mapping[str, Tensor]) -> None:
    """Load tensors into a model; `CheckpointError`, and nothing is changed, unless they are finite and those it has.

    `frozen` are tensors that are no part of its `state_dict()`. Classical models check their tensors themselves.
    """
    if isinstance(model, nn.Module):
        check_tree(dict(weights), dict(model.state_dict()))
    model.load_state_dict({**frozen, **weights})


def _not_a_run(path: Path) -> CheckpointError:
    """Why a directory without a recipe cannot be opened."""
    if os.path.isfile(path / "config.json"):
        return CheckpointError(
            f"{path} is not a run: it looks like a Hugging Face directory. Import it first: "
            f"seqloom import-hf {path} RUN"
        )
    problem = "has no recipe.yaml" if os.path.isdir(path) else "is a file" if os.path.exists(path) else "does not exist"
    return CheckpointError(f"{path} is not a run: it {problem}. Name a directory that `seqloom train` made.")


def _parse_recipe(content: bytes, run: Path) -> dict[str, Any]:
    """The content of a recipe.yaml, with its header."""
    name = str(run / RECIPE_FILE)
    try:
        return load_yaml(decode_utf8(content, name), name)
    except UsageError as error:
        raise CheckpointError(f"{run} is damaged: {error}") from error


def _without_header(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in recipe.items() if key not in ("format", "seqloom")}


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
    with suppress(OSError):  # a directory that cannot be listed is refused by whoever opens a file in it
        for file in (path / "metrics").glob("*.json"):
            refuse_other_kind(file)


def refuse_existing(path: Path) -> None:
    """Refuse a path at which no new run can be made."""
    if not is_unicode(str(path)):
        raise UsageError(f"The path of a run must be UTF-8, got {str(path)!r}. Choose another place with --out.")
    if not path.exists() and not path.is_symlink():
        return
    number = next(n for n in range(2, 10_000) if not path.with_name(f"{path.name}-{n}").exists())
    free = path.with_name(f"{path.name}-{number}")
    if (path / "average.json").is_file():  # there is nothing to go on with
        raise UsageError(f"{path} exists. Keep it and choose another place: --out {free}.")
    if (path / "recipe.yaml").is_file():
        raise UsageError(f"{path} exists. Go on with it: --resume {path}; or keep it and choose another: --out {free}.")
    raise UsageError(f"{path} exists and is not a run. Choose another place: --out {free}.")
