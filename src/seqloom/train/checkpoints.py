"""Checkpoints on disk: complete or absent, verified on reading, never unpickled.

checkpoints/
    latest.json          which step is the newest, moved last
    step-400/
        manifest.json    format, step, identity of the run, sha256 of every file; `passing` if it was saved only because
                         training was stopped
        state.json       the shape of every part and all its plain values
        model.safetensors, optimizer.safetensors, carry.safetensors …   one per part that has tensors
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from torch import Tensor

from seqloom.core import Json
from seqloom.core.errors import CheckpointError
from seqloom.core.files import (
    disk_errors,
    make_directory,
    new_directory,
    parse_json,
    read_file,
    refuse_other_kind,
    remove,
    remove_directory,
    remove_leftovers,
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
    """The parts of a training's state after a step."""

    step: int
    parts: dict[str, Tree]


class CheckpointStore:
    """The checkpoints of one run, and the best weights beside them (`model.safetensors` in the run itself)."""

    def __init__(self, run: Path, keep: int = 2, identity: str = ""):
        """`identity` says which run the weights belong to (see `seqloom.runs.layout`)."""
        self.run = run
        self.identity = identity
        self.folder = run / "checkpoints"
        self.keep = max(1, keep)
        self.damaged: list[tuple[str, str]] = []  # what `load` had to pass over: (name, cause)
        self._unusable: set[int] = set()  # the steps among them, until they are written again

    def save(self, step: int, parts: Mapping[str, Tree], passing: bool = False) -> str:
        """Write a checkpoint whole, then move the pointer, then let the oldest go.

        One that would not have been written had nobody stopped the training is `passing`: it goes
        with the next, so that a training that was stopped keeps the same checkpoints in the end as
        one that was not.
        """
        target = self.folder / f"step-{step}"
        make_directory(self.folder)
        with disk_errors(target):
            self._tidy()
            with new_directory(target) as folder:
                self._fill(folder, step, parts, passing)
                if os.path.lexists(target):  # saved before its evaluation was made, or damaged
                    target.rename(self.folder / f".step-{step}.aside")  # where it waits for the other to take its place
            write_atomic(self.folder / "latest.json", to_json({"step": step}))
            self._unusable.discard(step)
            self._tidy()
            self._remove(self._surplus(step))
        return target.name

    def _fill(self, folder: Path, step: int, parts: Mapping[str, Tree], passing: bool) -> None:
        skeletons: dict[str, Json] = {}
        contents: dict[str, bytes] = {}
        for name, part in parts.items():
            skeletons[name], tensors = pack(part)
            if tensors:
                contents[f"{name}.safetensors"] = tensors_to_bytes(tensors)
        contents["state.json"] = to_json(skeletons).encode()
        for name, content in contents.items():
            write_flushed(folder / name, content)
        digests = {name: sha256(content) for name, content in contents.items()}
        manifest = {"format": FORMAT, "step": step, "run": self.identity, "files": digests}
        manifest |= {"passing": True} if passing else {}
        write_flushed(folder / "manifest.json", to_json(manifest).encode())

    def load(self, restore: Callable[[Checkpoint], object] | None = None) -> Checkpoint | None:
        """The newest checkpoint that is intact, or None where none was ever written.

        `restore` takes it over; if it raises `CheckpointError`, the checkpoint is damaged too, and
        the one before it is tried. It must not change anything before it knows that the checkpoint
        fits. Older checkpoints beyond those to keep are deleted; what is damaged or newer stays
        until the next save.
        """
        with disk_errors(self.folder):
            self._tidy()
        for checkpoint in self._intact(restore=restore):
            step = checkpoint.step
            with disk_errors(self.folder):  # a save that was cut short let none go
                self._remove(old for old in self._surplus(step) if old < step and old not in self._unusable)
            return checkpoint
        if self.damaged:
            causes = "; ".join(f"{name}: {cause}" for name, cause in self.damaged)
            raise CheckpointError(
                f"No checkpoint in {self.folder} can be read, so the run cannot go on: {causes}. "
                "Its best weights may still be good (`seqloom evaluate`); otherwise train anew."
            )
        return None

    def newest_weights(
        self, most: int, check: Callable[[dict[str, Tensor]], object] = lambda weights: None
    ) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """The model's tensors in the newest `most` intact checkpoints, newest first, each with its step.

        `check` raises `CheckpointError` for tensors that are not those of the model. What had to be
        passed over is in `damaged`. Nothing else of a checkpoint is read, nor looked at.
        """
        if os.access(self.folder, os.W_OK):  # a run that may only be read can still be read
            self._tidy()
        intact = self._intact(lambda checkpoint: check(checkpoint.parts.get("model", {})), only="model")
        for checkpoint in islice(intact, most):
            yield checkpoint.step, checkpoint.parts["model"]

    def _intact(self, restore: Callable[[Checkpoint], object] | None, only: str | None = None) -> Iterator[Checkpoint]:
        """Checkpoints that can be read and restored, newest first; the others are recorded as damaged."""
        self.damaged = []
        candidates = self._steps()
        newest = self._pointer(candidates)
        for step in [step for step in candidates if step <= newest]:
            try:
                checkpoint = self._read(step, only)
                if restore is not None:
                    restore(checkpoint)
            except CheckpointError as error:
                self.damaged.append((f"step-{step}", str(error)))
                self._unusable.add(step)
            else:
                yield checkpoint

    def _pointer(self, candidates: list[int]) -> int:
        """What `latest.json` says; where it is lost or leads nowhere, whatever is newest."""
        newest = candidates[0] if candidates else 0
        try:
            step = int(parse_json(read_file(self.folder / "latest.json"))["step"])
        except FileNotFoundError:
            return newest
        except (ValueError, KeyError, TypeError, OverflowError, OSError, CheckpointError):
            self.damaged.append(("latest.json", "it is not readable"))
            return newest
        if step in candidates:
            return step
        self.damaged.append((f"step-{step}", "latest.json leads to it, but it is missing"))
        return newest

    def _read(self, step: int, only: str | None = None) -> Checkpoint:
        """A checkpoint, or one part of it; what is read is checked."""
        folder = self.folder / f"step-{step}"
        refuse_other_kind(folder, stat.S_IFDIR)
        try:
            manifest = parse_json(read_file(folder / "manifest.json"))
            version, digests = manifest["format"], dict(manifest["files"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"manifest.json is not readable ({type(error).__name__}: {error})") from error
        if version != FORMAT:
            raise CheckpointError(
                f"its format is {version}, this seqloom reads format {FORMAT}; use the version that wrote it"
            )
        if manifest.get("step") != step or "state.json" not in digests:
            raise CheckpointError("manifest.json is damaged: it does not describe this checkpoint")
        if manifest.get("run") != self.identity:
            raise CheckpointError("it belongs to another run, with another recipe or other documents")
        for name in digests if only is None else {"state.json", f"{only}.safetensors"} & digests.keys():
            self._verify(folder, name, digests[name])
        try:
            skeletons = parse_json(read_file(folder / "state.json"))
        except ValueError as error:
            raise CheckpointError(f"state.json is damaged: it is not readable JSON ({error})") from error
        if not isinstance(skeletons, dict):
            raise CheckpointError("state.json is damaged: it does not list the parts of a checkpoint")
        parts: dict[str, Tree] = {}
        for name in skeletons if only is None else {only} & skeletons.keys():
            file = f"{name}.safetensors"
            tensors = tensors_from_file(folder / file) if file in digests else {}
            try:
                parts[name] = unpack(skeletons[name], tensors)
            except ValueError as error:
                raise CheckpointError(f"state.json is damaged: {name} is {error}") from error
        return Checkpoint(step, parts)

    @staticmethod
    def _verify(folder: Path, name: str, digest: str) -> None:
        if name != Path(name).name:
            raise CheckpointError(f"its manifest names a file outside it ({name})")
        try:
            content = read_file(folder / name)
        except FileNotFoundError:
            raise CheckpointError(f"{name} is missing") from None
        except OSError as error:
            raise CheckpointError(f"{name} cannot be read ({error.strerror})") from error
        if sha256(content) != digest:
            raise CheckpointError(f"{name} is damaged: it does not match its checksum")

    def save_best(self, model: Mapping[str, Tensor]) -> None:
        write_atomic(self.run / "model.safetensors", tensors_to_bytes(model, self.identity))

    def _steps(self) -> list[int]:
        try:
            names = [_STEP.fullmatch(name) for name in os.listdir(self.folder)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be read ({error.strerror}).") from error
        return sorted((int(match[1]) for match in names if match), reverse=True)

    def _tidy(self) -> None:
        """Sweep up after a save that was cut short; a replacement that was cut between its two renames is undone."""
        remove_leftovers(self.folder)
        for aside in self.folder.glob(".step-*.aside"):
            target = self.folder / aside.name.removeprefix(".").removesuffix(".aside")
            if os.path.lexists(target):
                remove(aside)
            else:
                aside.rename(target)

    def _surplus(self, newest: int) -> set[int]:
        """All but the newest intact ones. What lies after `newest` belongs to steps that are being made again."""
        steps = self._steps()
        lasting = [s for s in steps if s <= newest and s not in self._unusable and not self.is_passing(s)]
        return set(steps) - {newest, *lasting[: self.keep]}

    def is_passing(self, step: int) -> bool:
        """Whether a checkpoint was saved only because training was stopped."""
        try:
            return bool(parse_json(read_file(self.folder / f"step-{step}" / "manifest.json")).get("passing"))
        except (OSError, ValueError, AttributeError, CheckpointError):
            return False

    def _remove(self, steps: Iterable[int]) -> None:
        for step in steps:
            remove_directory(self.folder / f"step-{step}")  # at once: half of one would be taken for a damaged one
