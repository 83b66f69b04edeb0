"""The files of a run directory, their checksums, and how a new directory is made.

runs/<name>/
    recipe.yaml          the resolved recipe, with the format of this directory
    manifest.json        sha256 of the recipe and of the documents below, see `Manifest`
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

The run directory may be reached through links. What is in it must be regular files and directories:
a link, FIFO or device of one of these names is refused when the run is opened, and no write follows
a link (see `seqloom.core.files`).
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from seqloom.config import dump_yaml, load_yaml
from seqloom.config.yaml_text import decode_utf8
from seqloom.core import VERSION, Json
from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.files import (
    disk_errors,
    flush_directory,
    new_directory,
    parse_json,
    read_file,
    refuse_other_kind,
    remove_leftovers,
    reserve,
    sha256,
    to_json,
    write_atomic,
    write_flushed,
)
from seqloom.core.words import is_unicode

FORMAT = 1
MANIFEST_FILE, RECIPE_FILE = "manifest.json", "recipe.yaml"
WEIGHTS_FILE, FROZEN_FILE = "model.safetensors", "frozen.safetensors"
DOCUMENTS = ("data.json", "tokenizer.json", "sizes.json", "labels.json", "characters.json")  # see above
OTHER_FILES = (RECIPE_FILE, MANIFEST_FILE, WEIGHTS_FILE, FROZEN_FILE, "average.json", "log.jsonl", "card.md", ".lock")
FOLDERS = ("checkpoints", "metrics", "tensorboard")
RESTORE = "Restore the file, or copy the run again"


@dataclass(frozen=True)
class Manifest:
    """The sha256 of every file that a run's answers or its resumption depend on.

    manifest.json
        files     of the files that are written once, when the run is created: data.json, tokenizer.json, labels.json …
        recipe    of recipe.yaml; while the recipe is being replaced, of the old and of the new one
        sha256    of these two entries themselves

    Weights are replaced during training, so they carry their own checksum, and beside it the
    identity of the run: the sha256 of all that decides what they mean, `files` and the recipe
    without its `train` section. Weights or checkpoints that lie beside the documents of another run
    are refused.
    """

    files: Mapping[str, str]  # by name
    recipes: tuple[str, ...]  # one of them is that of recipe.yaml

    @classmethod
    def of(cls, recipe: bytes, files: Mapping[str, bytes]) -> "Manifest":
        """The manifest of a new run."""
        return cls({name: sha256(content) for name, content in files.items()}, (sha256(recipe),))

    @classmethod
    def read(cls, run: Path) -> "Manifest":
        """The manifest of a run directory."""
        content = read_run_file(run, MANIFEST_FILE)
        try:
            value = parse_json(content)
            manifest = cls(dict(value["files"]), tuple(value["recipe"]))
            if value["sha256"] != manifest._digest():
                raise ValueError("it does not match its own checksum")
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{run / MANIFEST_FILE} is damaged: it is not a manifest. {RESTORE}.") from error
        return manifest

    def to_json(self) -> str:
        return to_json({"files": dict(self.files), "recipe": list(self.recipes), "sha256": self._digest()})

    def _digest(self) -> str:
        return sha256(json.dumps([dict(self.files), self.recipes]).encode())

    def read_file(self, run: Path, name: str) -> bytes:
        """The content of a file of the run; refused unless it is the one that was written when the run was created."""
        if name not in self.files:
            raise CheckpointError(f"{run} is incomplete: {MANIFEST_FILE} has no {name}.")
        content = read_run_file(run, name)
        if sha256(content) != self.files[name]:
            raise CheckpointError(
                f"{run / name} is damaged: it does not match its checksum in {MANIFEST_FILE}. {RESTORE}."
            )
        return content

    def check_recipe(self, run: Path, content: bytes) -> None:
        """Refuse a recipe.yaml that was changed by something other than seqloom."""
        if sha256(content) not in self.recipes:
            raise CheckpointError(
                f"{run / RECIPE_FILE} has changed: it does not match its checksum in {MANIFEST_FILE}. {RESTORE}; what "
                f"may change in a run is given with `seqloom train --resume {run} KEY=VALUE`."
            )

    def replace_recipe(self, run: Path, content: bytes) -> "Manifest":
        """Replace recipe.yaml. The run can be opened whenever this is interrupted."""
        both = replace(self, recipes=(*self.recipes, sha256(content)))
        write_atomic(run / MANIFEST_FILE, both.to_json())
        write_atomic(run / RECIPE_FILE, content)
        after = replace(self, recipes=(sha256(content),))
        write_atomic(run / MANIFEST_FILE, after.to_json())
        return after

    def identity(self, recipe: Mapping[str, Json]) -> str:
        """What ties weights to this run; the same after a resume that changes the `train` section."""
        lasting = {key: value for key, value in recipe.items() if key != "train"}
        return sha256(json.dumps([dict(self.files), lasting], sort_keys=True).encode())


# --- reading ----------------------------------------------------------------------------------------------------------


def is_missing(path: Path) -> bool:
    """Whether there is nothing at a path; false if that cannot be said, because a folder above it cannot be read."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return True
    except OSError:
        return False
    return False


def read_run_file(run: Path, name: str) -> bytes:
    """The content of a file of a run; `CheckpointError` says whether it is missing or cannot be read."""
    try:
        return read_file(run / name)
    except FileNotFoundError:
        raise CheckpointError(f"{run} is incomplete: {name} is missing.") from None
    except OSError as error:
        raise CheckpointError(f"{run / name} cannot be read ({error.strerror}).") from error


def refuse_other_kinds(path: Path) -> None:
    """Refuse a run in which a link, FIFO, device or directory stands where a file belongs."""
    for name in (*OTHER_FILES, *DOCUMENTS):
        refuse_other_kind(path / name)
    for name in FOLDERS:
        refuse_other_kind(path / name, stat.S_IFDIR)
    with suppress(OSError):  # a directory that cannot be listed is refused by whoever opens a file in it
        for file in (path / "metrics").glob("*.json"):
            refuse_other_kind(file)


def read_recipe_file(run: Path) -> bytes:
    """The content of a run's recipe.yaml; `CheckpointError` says why a path is no run."""
    try:
        return read_file(run / RECIPE_FILE)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        pass
    except OSError as error:
        raise CheckpointError(f"{run / RECIPE_FILE} cannot be read ({error.strerror}).") from error
    if os.path.isfile(run / "config.json"):
        raise CheckpointError(
            f"{run} is not a run: it looks like a Hugging Face directory. Import it first: seqloom import-hf {run} RUN"
        )
    problem = "has no recipe.yaml" if os.path.isdir(run) else "is a file" if os.path.exists(run) else "does not exist"
    raise CheckpointError(f"{run} is not a run: it {problem}. Name a directory that `seqloom train` made.")


def recipe_text(recipe: Mapping[str, Json]) -> str:
    """The content of recipe.yaml: a header that says which format the directory has, and the recipe."""
    return dump_yaml({"format": FORMAT, "seqloom": VERSION, **recipe})


def parse_recipe(content: bytes, run: Path) -> dict[str, Json]:
    """The recipe in the content of a recipe.yaml; `CheckpointError` if this version cannot read it."""
    name = str(run / RECIPE_FILE)
    try:
        recipe = load_yaml(decode_utf8(content, name), name)
    except UsageError as error:
        raise CheckpointError(f"{run} is damaged: {error}") from error
    if "format" not in recipe:
        what = "damaged, or not seqloom's: its recipe.yaml does not say its run format"
        what = what if recipe else "damaged: its recipe.yaml is empty"
        raise CheckpointError(f"{run} is {what}. Bring the file back, copy the run again, or train anew.")
    if recipe["format"] != FORMAT:
        version, writer = recipe["format"], recipe.get("seqloom", "an unknown version")
        raise CheckpointError(
            f"{run} has run format {version}, written by seqloom {writer}; this is seqloom {VERSION}, which "
            f"reads format {FORMAT}. Use the version that wrote it, or train again."
        )
    return {key: value for key, value in recipe.items() if key not in ("format", "seqloom")}


# --- creating ---------------------------------------------------------------------------------------------------------


@contextmanager
def claim(path: Path) -> Iterator[None]:
    """Reserve the path of a new run, from before the work for it begins until the run exists.

    A path that exists, or that another process has reserved, is refused. What a killed process left
    of a run of that name is removed.
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


def write_directory(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a new directory with these files; it appears complete or not at all."""
    with new_directory(path) as folder:
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_flushed(folder / name, content)
        for place in {(folder / name).parent for name in files} - {folder}:
            flush_directory(place)


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
    if (path / RECIPE_FILE).is_file():
        raise UsageError(f"{path} exists. Go on with it: --resume {path}; or keep it and choose another: --out {free}.")
    raise UsageError(f"{path} exists and is not a run. Choose another place: --out {free}.")
