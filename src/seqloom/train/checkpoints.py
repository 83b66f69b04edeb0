"""Checkpoints on disk: complete or absent, verified on reading, never unpickled.

checkpoints/
    latest.json          which step is the newest, moved last
    step-400/
        manifest.json    format, step, sha256 of every file; `passing` if it was saved only because training was stopped
        state.json       the shape of every part and all its plain values
        model.safetensors, optimizer.safetensors, carry.safetensors …   one per part that has tensors
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from seqloom.core.errors import CheckpointError
from seqloom.core.files import (
    disk_errors,
    flush_directory,
    new_directory,
    sha256,
    tensors_from_file,
    tensors_to_bytes,
    to_json,
    write_atomic,
    write_flushed,
)
from seqloom.core.tree import Tree, pack, unpack

FORMAT = 1
_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    step: int
    parts: dict[str, Tree]


class CheckpointStore:
    """The checkpoints of one run, and the best weights beside them (`model.safetensors` in the run itself)."""

    def __init__(self, run: Path, keep: int = 2):
        self.run = run
        self.folder = run / "checkpoints"
        self.keep = max(1, keep)
        self.damaged: list[tuple[str, str]] = []  # what `load` had to pass over: (name, cause)
        self._unusable: set[int] = set()  # the steps among them, until they are written again

    def save(self, step: int, parts: Mapping[str, Tree], passing: bool = False) -> str:
        """Write a checkpoint whole, then move the pointer, then let the oldest go.

        One that would not have been written had nobody stopped the training is `passing`: it goes with the next, so
        that a training that was stopped keeps the same checkpoints in the end as one that was not.
        """
        target = self.folder / f"step-{step}"
        with disk_errors(target):
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True)
                flush_directory(self.run)
            self._tidy()
            with new_directory(target) as folder:
                self._fill(folder, step, parts, passing)
                if target.exists():  # saved before its evaluation was made, or damaged
                    target.rename(self._aside(step))
            write_atomic(self.folder / "latest.json", to_json({"step": step}))
            self._unusable.discard(step)
            self._prune(step)
        return target.name

    def _fill(self, folder: Path, step: int, parts: Mapping[str, Tree], passing: bool) -> None:
        skeletons: dict[str, Any] = {}
        digests: dict[str, str] = {}
        for name, part in parts.items():
            skeletons[name], tensors = pack(part)
            if tensors:
                self._write(folder, f"{name}.safetensors", tensors_to_bytes(tensors), digests)
        self._write(folder, "state.json", to_json(skeletons).encode(), digests)
        manifest = {"format": FORMAT, "step": step, "files": digests, **({"passing": True} if passing else {})}
        write_flushed(folder / "manifest.json", to_json(manifest).encode())

    @staticmethod
    def _write(folder: Path, name: str, content: bytes, digests: dict[str, str]) -> None:
        write_flushed(folder / name, content)
        digests[name] = sha256(content)

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that is intact, or None where none was ever written."""
        self.damaged = []
        with disk_errors(self.folder):
            self._tidy()
        candidates = self._steps()
        newest = self._pointer(candidates)
        for step in [step for step in candidates if step <= newest]:
            try:
                return self._read(step)
            except CheckpointError as error:
                self.damaged.append((f"step-{step}", str(error)))
                self._unusable.add(step)
        if self.damaged:
            causes = "; ".join(f"{name}: {cause}" for name, cause in self.damaged)
            raise CheckpointError(
                f"No checkpoint in {self.folder} can be read, so the run cannot go on: {causes}. "
                "Its best weights may still be good (`seqloom evaluate`); otherwise train anew."
            )
        return None

    def newest_weights(self, most: int) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """The model's tensors in the newest `most` intact checkpoints, newest first, each with its step.

        What had to be passed over is in `damaged`. Nothing else of a checkpoint is read, nor looked at.
        """
        self.damaged = []
        if os.access(self.folder, os.W_OK):  # a run that may only be read can still be read
            self._tidy()
        candidates = self._steps()
        newest = self._pointer(candidates)
        found = 0
        for step in [step for step in candidates if step <= newest]:
            if found == most:
                return
            try:
                weights = self._read(step, only="model").parts["model"]
            except CheckpointError as error:
                self.damaged.append((f"step-{step}", str(error)))
                continue
            found += 1
            yield step, weights

    def _pointer(self, candidates: list[int]) -> int:
        """What `latest.json` says; where it is lost or leads nowhere, whatever is newest."""
        newest = candidates[0] if candidates else 0
        try:
            step = int(json.loads((self.folder / "latest.json").read_text())["step"])
        except FileNotFoundError:
            return newest
        except (ValueError, KeyError, TypeError, OverflowError, OSError):
            self.damaged.append(("latest.json", "it is not readable"))
            return newest
        if step in candidates:
            return step
        self.damaged.append((f"step-{step}", "latest.json leads to it, but it is missing"))
        return newest

    def _read(self, step: int, only: str | None = None) -> Checkpoint:
        """A checkpoint, or one part of it; what is read is checked."""
        folder = self.folder / f"step-{step}"
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
            version, digests = manifest["format"], dict(manifest["files"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"manifest.json is not readable ({type(error).__name__}: {error})") from error
        if version != FORMAT:
            raise CheckpointError(
                f"its format is {version}, this seqloom reads format {FORMAT}; use the version that wrote it"
            )
        if manifest.get("step") != step or "state.json" not in digests:
            raise CheckpointError("manifest.json is damaged: it does not describe this checkpoint")
        wanted = digests if only is None else {"state.json", f"{only}.safetensors"} & digests.keys()
        self._verify(folder, {name: digests[name] for name in wanted})
        skeletons = json.loads((folder / "state.json").read_text())
        names = skeletons if only is None else {only} & skeletons.keys()
        return Checkpoint(step, {name: self._part(folder, name, skeletons[name]) for name in names})

    @staticmethod
    def _verify(folder: Path, digests: Mapping[str, str]) -> None:
        for name, expected in digests.items():
            if name != Path(name).name:
                raise CheckpointError(f"its manifest names a file outside it ({name})")
            try:
                content = (folder / name).read_bytes()
            except FileNotFoundError:
                raise CheckpointError(f"{name} is missing") from None
            except OSError as error:
                raise CheckpointError(f"{name} cannot be read ({error.strerror})") from error
            if sha256(content) != expected:
                raise CheckpointError(f"{name} is damaged: it does not match its checksum")

    @staticmethod
    def _part(folder: Path, name: str, skeleton: Any) -> Tree:
        path = folder / f"{name}.safetensors"
        return unpack(skeleton, tensors_from_file(path) if path.exists() else {})

    def save_best(self, model: Mapping[str, Tensor]) -> None:
        write_atomic(self.run / "model.safetensors", tensors_to_bytes(model))

    def _steps(self) -> list[int]:
        names = [_STEP.fullmatch(entry.name) for entry in self.folder.iterdir()] if self.folder.is_dir() else []
        return sorted((int(match[1]) for match in names if match), reverse=True)

    def _aside(self, step: int) -> Path:
        """Where a checkpoint waits while another of the same step takes its place."""
        return self.folder / f".step-{step}.aside"

    def _tidy(self) -> None:
        """Sweep up after a save that was cut short; a replacement that was cut between its two renames is undone."""
        for leftover in self.folder.glob(".*"):
            target = self.folder / leftover.name.removeprefix(".").removesuffix(".aside")
            if leftover.suffix == ".aside" and not target.exists():
                leftover.rename(target)
            elif leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)

    def _prune(self, newest: int) -> None:
        """Keep the newest intact ones. What lies after `newest` belongs to steps that are being made again."""
        self._tidy()
        steps = self._steps()
        lasting = [s for s in steps if s <= newest and s not in self._unusable and not self._passing(s)]
        for step in set(steps) - {newest, *lasting[: self.keep]}:
            self._remove(self.folder / f"step-{step}")

    def _passing(self, step: int) -> bool:
        try:
            return bool(json.loads((self.folder / f"step-{step}" / "manifest.json").read_text()).get("passing"))
        except (OSError, ValueError, AttributeError):
            return False

    @staticmethod
    def _remove(folder: Path) -> None:
        """Rename first, so that a half-deleted checkpoint is never taken for a damaged one."""
        doomed = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
