"""The files of a run directory.

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

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from seqloom.config import dump_yaml, load_yaml
from seqloom.config.yaml_text import decode_utf8
from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.files import read_file, refuse_other_kind
from seqloom.core.version import VERSION
from seqloom.runs.manifest import MANIFEST_FILE, RECIPE_FILE

FORMAT = 1
WEIGHTS_FILE = "model.safetensors"
FROZEN_FILE = "frozen.safetensors"
DOCUMENTS = ("data.json", "tokenizer.json", "sizes.json", "labels.json", "characters.json")  # see above
OTHER_FILES = (RECIPE_FILE, MANIFEST_FILE, WEIGHTS_FILE, FROZEN_FILE, "average.json", "log.jsonl", "card.md", ".lock")
FOLDERS = ("checkpoints", "metrics", "tensorboard")


def refuse_other_kinds(path: Path) -> None:
    """Refuse a run in which a link, FIFO, device or directory stands where a file belongs."""
    for name in (*OTHER_FILES, *DOCUMENTS):
        refuse_other_kind(path / name)
    for name in FOLDERS:
        refuse_other_kind(path / name, stat.S_IFDIR)
    with suppress(OSError):  # a directory that cannot be listed is refused by whoever opens a file in it
        for file in (path / "metrics").glob("*.json"):
            refuse_other_kind(file)


def recipe_text(recipe: Mapping[str, Any]) -> str:
    """The content of recipe.yaml: a header that says which format the directory has, and the recipe."""
    return dump_yaml({"format": FORMAT, "seqloom": VERSION, **recipe})


def parse_recipe(content: bytes, run: Path) -> dict[str, Any]:
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


def read_recipe_file(run: Path) -> bytes:
    """The content of a run's recipe.yaml; `CheckpointError` says why a path is no run."""
    try:
        return read_file(run / RECIPE_FILE)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise not_a_run(run) from None
    except OSError as error:
        raise CheckpointError(f"{run / RECIPE_FILE} cannot be read ({error.strerror}).") from error


def not_a_run(path: Path) -> CheckpointError:
    """Why a directory without a recipe cannot be opened."""
    if os.path.isfile(path / "config.json"):
        return CheckpointError(
            f"{path} is not a run: it looks like a Hugging Face directory. Import it first: "
            f"seqloom import-hf {path} RUN"
        )
    problem = "has no recipe.yaml" if os.path.isdir(path) else "is a file" if os.path.exists(path) else "does not exist"
    return CheckpointError(f"{path} is not a run: it {problem}. Name a directory that `seqloom train` made.")
