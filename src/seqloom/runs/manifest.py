"""The manifest of a run: the sha256 of every file that its answers or its resumption depend on.

manifest.json
    files     of the files that are written once, when the run is created: data.json, tokenizer.json, labels.json …
    recipe    of recipe.yaml; while the recipe is being replaced, of the old and of the new one
    sha256    of these two entries themselves

Weights are replaced during training, so they carry their own checksum, and beside it the identity of the run: the
sha256 of all that decides what they mean, `files` and the recipe without its `train` section. Weights or checkpoints
that lie beside the documents of another run are refused.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seqloom.core.errors import CheckpointError
from seqloom.core.files import parse_json, read_file, sha256, to_json, write_atomic

MANIFEST_FILE = "manifest.json"
RECIPE_FILE = "recipe.yaml"
RESTORE = "Restore the file, or copy the run again"


@dataclass(frozen=True)
class Manifest:
    """The checksums of one run directory."""

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

    def identity(self, recipe: Mapping[str, Any]) -> str:
        """What ties weights to this run; the same after a resume that changes the `train` section."""
        lasting = {key: value for key, value in recipe.items() if key != "train"}
        return sha256(json.dumps([dict(self.files), lasting], sort_keys=True).encode())


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
