"""The files of a run directory, their checksums, and the creation of a new directory.

runs/<name>/
    recipe.yaml          the complete recipe, with the format of this directory
    manifest.json        sha256 of the recipe and of the documents below; see `Manifest`
    data.json            the training data: source version, checksums, counts
    tokenizer.json       the tokenizer of a text model
    sizes.json           other sizes of the model that depend on the data, such as the number of labels
    labels.json          the labels or tags that the model predicts, in the order of its outputs
    characters.json      the alphabet of a model that reads the characters of words
    model.safetensors    the best weights so far
    frozen.safetensors   the frozen weights of a model, if most of it is frozen
    checkpoints/         the training state; see seqloom.train.checkpoints
    calibration.json     the temperature and the thresholds of a classifier; see seqloom.runs.calibration
    average.json         the sources of an averaged run, instead of checkpoints; see seqloom.runs.average
    log.jsonl            every event of training
    metrics/dev.json     the last evaluation of each split
    tensorboard/         the training curves, if TensorBoard is installed
    trackers.json        the identifiers of the run in other trackers; see seqloom.runs.trackers
    estimator.json       the labels of a classifier or the series of a forecaster; see seqloom.estimators
    card.md              the model card; see seqloom.predict.card
    .lock                a lock that is held by the process that trains the run

The path of a run directory may contain links. Its content must be regular files and directories: if a link, FIFO or
device has one of these names, the run cannot be opened. Writing never follows a link (see `seqloom.core.files`).
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
WEIGHTS_FILE, FROZEN_FILE, CALIBRATION_FILE = "model.safetensors", "frozen.safetensors", "calibration.json"
TRACKERS_FILE, ESTIMATOR_FILE = "trackers.json", "estimator.json"
# Documents of the list above
DOCUMENTS = ("data.json", "tokenizer.json", "sizes.json", "labels.json", "characters.json")
OTHER_FILES = (
    *(RECIPE_FILE, MANIFEST_FILE, WEIGHTS_FILE, FROZEN_FILE, CALIBRATION_FILE),
    *("average.json", "log.jsonl", TRACKERS_FILE, ESTIMATOR_FILE, "card.md", ".lock"),
)
FOLDERS = ("checkpoints", "metrics", "tensorboard")
RESTORE = "Restore the file, or copy the run again"


@dataclass(frozen=True)
class Manifest:
    """The sha256 of every file on which predictions or resumed training depend.

    manifest.json
        files     the sha256 of the files that are written once, when the run is created: data.json, labels.json …
        recipe    the sha256 of recipe.yaml; while the recipe is being replaced, of the old and the new recipe
        sha256    the sha256 of the two entries above

    Weights are replaced during training. Their files therefore contain a checksum and the identity of the run. The
    identity is the sha256 of `files` and of the recipe without its `train` section, which define the meaning of the
    weights. Weights and checkpoints of another run are rejected.
    """

    files: Mapping[str, str]  # checksums by file name
    recipes: tuple[str, ...]  # checksums, one of which is that of recipe.yaml

    @classmethod
    def of(cls, recipe: bytes, files: Mapping[str, bytes]) -> "Manifest":
        """Return the manifest of a new run."""
        return cls({name: sha256(content) for name, content in files.items()}, (sha256(recipe),))

    @classmethod
    def read(cls, run: Path) -> "Manifest":
        """Read and verify the manifest of a run directory."""
        content = read_run_file(run, MANIFEST_FILE)
        try:
            value = parse_json(content)
            manifest = cls(dict(value["files"]), tuple(value["recipe"]))
            if value["sha256"] != manifest._digest():
                raise ValueError("it does not match its checksum")
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{run / MANIFEST_FILE} is damaged: it is not a manifest. {RESTORE}.") from error
        return manifest

    def to_json(self) -> str:
        return to_json({"files": dict(self.files), "recipe": list(self.recipes), "sha256": self._digest()})

    def _digest(self) -> str:
        return sha256(json.dumps([dict(self.files), self.recipes]).encode())

    def read_file(self, run: Path, name: str) -> bytes:
        """Read a file of the run. Raise `CheckpointError` if it has changed since the run was created."""
        if name not in self.files:
            raise CheckpointError(f"{run} is incomplete: {MANIFEST_FILE} has no {name}.")
        content = read_run_file(run, name)
        if sha256(content) != self.files[name]:
            raise CheckpointError(
                f"{run / name} is damaged: it does not match its checksum in {MANIFEST_FILE}. {RESTORE}."
            )
        return content

    def check_recipe(self, run: Path, content: bytes) -> None:
        """Raise `CheckpointError` if recipe.yaml was edited by hand."""
        if sha256(content) not in self.recipes:
            raise CheckpointError(
                f"{run / RECIPE_FILE} has changed: it does not match its checksum in {MANIFEST_FILE}. {RESTORE}; to "
                f"change settings of a run, use `seqloom train --resume {run} KEY=VALUE`."
            )

    def replace_recipe(self, run: Path, content: bytes) -> "Manifest":
        """Replace recipe.yaml. The run can be opened even if the replacement is interrupted."""
        both = replace(self, recipes=(*self.recipes, sha256(content)))
        write_atomic(run / MANIFEST_FILE, both.to_json())
        write_atomic(run / RECIPE_FILE, content)
        after = replace(self, recipes=(sha256(content),))
        write_atomic(run / MANIFEST_FILE, after.to_json())
        return after

    def identity(self, recipe: Mapping[str, Json]) -> str:
        """Return the identity of the run, which does not depend on the `train` section."""
        lasting = {key: value for key, value in recipe.items() if key != "train"}
        return sha256(json.dumps([dict(self.files), lasting], sort_keys=True).encode())


# --- reading ----------------------------------------------------------------------------------------------------------


def is_missing(path: Path) -> bool:
    """Return whether nothing exists at a path. Return False if a parent directory cannot be read."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return True
    except OSError:
        return False
    return False


def read_run_file(run: Path, name: str) -> bytes:
    """Read a file of a run. Raise `CheckpointError` if the file is missing or cannot be read."""
    try:
        return read_file(run / name)
    except FileNotFoundError:
        raise CheckpointError(f"{run} is incomplete: {name} is missing.") from None
    except OSError as error:
        raise CheckpointError(f"{run / name} cannot be read ({error.strerror}).") from error


def reject_special_files(path: Path) -> None:
    """Reject a run with a link, FIFO, device or directory in place of a file."""
    for name in (*OTHER_FILES, *DOCUMENTS):
        refuse_other_kind(path / name)
    for name in FOLDERS:
        refuse_other_kind(path / name, stat.S_IFDIR)
    with suppress(OSError):  # the error is raised later, when a file in it is read
        for file in (path / "metrics").glob("*.json"):
            refuse_other_kind(file)


def read_recipe_file(run: Path) -> bytes:
    """Read recipe.yaml of a run. If the path is not a run, raise `CheckpointError` with the reason."""
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
    raise CheckpointError(f"{run} is not a run: it {problem}. Pass a directory created by `seqloom train`.")


def recipe_text(recipe: Mapping[str, Json]) -> str:
    """Return the content of recipe.yaml: a header with the format of the directory, and the recipe."""
    return dump_yaml({"format": FORMAT, "seqloom": VERSION, **recipe})


def parse_recipe(content: bytes, run: Path) -> dict[str, Json]:
    """Parse the content of recipe.yaml. Raise `CheckpointError` if this version cannot read it."""
    name = str(run / RECIPE_FILE)
    try:
        recipe = load_yaml(decode_utf8(content, name), name)
    except UsageError as error:
        raise CheckpointError(f"{run} is damaged: {error}") from error
    if "format" not in recipe:
        what = "damaged or not a seqloom run: its recipe.yaml has no run format"
        what = what if recipe else "damaged: its recipe.yaml is empty"
        raise CheckpointError(f"{run} is {what}. Restore the file, copy the run again, or train a new run.")
    if recipe["format"] != FORMAT:
        version, writer = recipe["format"], recipe.get("seqloom", "an unknown version")
        raise CheckpointError(
            f"{run} has run format {version}, written by seqloom {writer}; this is seqloom {VERSION}, which "
            f"reads format {FORMAT}. Use the version that wrote it, or train a new run."
        )
    return {key: value for key, value in recipe.items() if key not in ("format", "seqloom")}


# --- creating ---------------------------------------------------------------------------------------------------------


@contextmanager
def claim(path: Path) -> Iterator[None]:
    """Reserve the path of a new run until the run exists.

    A path that exists or is reserved by another process is rejected. Files that a killed process left are removed.
    """
    reject_existing(path)
    missing = [folder for folder in path.absolute().parents if not folder.exists()]
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        busy = f"{path} is being created by another process. Wait for it, or choose another path with --out."
        with reserve(path, busy):
            reject_existing(path)  # another process may have created the run meanwhile
            remove_leftovers(path.parent, path.name)
            yield
    finally:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()  # fails if it is no longer empty


def write_directory(path: Path, files: Mapping[str, bytes]) -> None:
    """Create a directory with these files atomically."""
    with new_directory(path) as folder:
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_flushed(folder / name, content)
        for subfolder in {(folder / name).parent for name in files} - {folder}:
            flush_directory(subfolder)


def reject_existing(path: Path) -> None:
    """Raise `UsageError` if no new run can be created at a path."""
    if not is_unicode(str(path)):
        raise UsageError(f"The path of a run must be UTF-8; got {str(path)!r}. Choose another path with --out.")
    if not path.exists() and not path.is_symlink():
        return
    number = next(n for n in range(2, 10_000) if not path.with_name(f"{path.name}-{n}").exists())
    free = path.with_name(f"{path.name}-{number}")
    if (path / "average.json").is_file():  # an average cannot be resumed
        raise UsageError(f"{path} exists. Choose another path: --out {free}.")
    if (path / RECIPE_FILE).is_file():
        raise UsageError(f"{path} exists. Resume it: --resume {path}; or choose another path: --out {free}.")
    raise UsageError(f"{path} exists and is not a run. Choose another path: --out {free}.")
