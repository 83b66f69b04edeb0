"""Checkpoints on disk. Checkpoints are written atomically, verified when they are read, and do not use pickle.

checkpoints/
    latest.json          the step of the newest checkpoint, written last
    step-400/
        manifest.json    format, step, identity of the run, sha256 of every file; `temporary` if it was saved only
                         because training was stopped
        state.json       the structure of every part and its plain values
    model.safetensors, optimizer.safetensors, carry.safetensors …   one file for each part with tensors
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
    """The parts of the training state after a step."""

    step: int
    parts: dict[str, Tree]


class CheckpointStore:
    """The checkpoints of a run and its best weights (`model.safetensors` in the run directory).

    `identity` identifies the run to which the weights belong (see `seqloom.runs.layout`).
    """

    def __init__(self, run: Path, keep: int = 2, identity: str = ""):
        self.run = run
        self.identity = identity
        self.folder = run / "checkpoints"
        self.keep = max(1, keep)
        self.damaged: list[tuple[str, str]] = []  # checkpoints that `load` skipped, with name and cause
        self._unusable: set[int] = set()  # steps of damaged checkpoints, until they are saved again

    def save(self, step: int, parts: Mapping[str, Tree], is_temporary: bool = False) -> str:
        """Write a complete checkpoint, update `latest.json`, and remove surplus checkpoints.

        A checkpoint that is saved only because training was stopped is temporary. The next save removes it, so that
        stopping and resuming does not affect which checkpoints are kept.
        """
        target = self.folder / f"step-{step}"
        make_directory(self.folder)
        with disk_errors(target):
            self._clean_up()
            with new_directory(target) as folder:
                self._fill(folder, step, parts, is_temporary)
                if os.path.lexists(target):  # an existing checkpoint was saved before its evaluation, or is damaged
                    target.rename(self.folder / f".step-{step}.aside")  # `_clean_up` removes or restores it
            write_atomic(self.folder / "latest.json", to_json({"step": step}))
            self._unusable.discard(step)
            self._clean_up()
            self._remove(self._surplus(step))
        return target.name

    def _fill(self, folder: Path, step: int, parts: Mapping[str, Tree], is_temporary: bool) -> None:
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
        manifest |= {"temporary": True} if is_temporary else {}
        write_flushed(folder / "manifest.json", to_json(manifest).encode())

    def load(self, restore: Callable[[Checkpoint], object] | None = None) -> Checkpoint | None:
        """Load the newest intact checkpoint. Return None if there are no checkpoints.

        `restore` receives the checkpoint and must validate it before changing anything. If `restore` raises
        `CheckpointError`, the checkpoint counts as damaged, and `load` tries the previous checkpoint. `load` deletes
        surplus older checkpoints. Damaged and newer checkpoints remain until the next save.
        """
        with disk_errors(self.folder):
            self._clean_up()
        for checkpoint in self._intact(restore=restore):
            step = checkpoint.step
            with disk_errors(self.folder):  # an interrupted save may have left surplus checkpoints
                self._remove(old for old in self._surplus(step) if old < step and old not in self._unusable)
            return checkpoint
        if self.damaged:
            causes = "; ".join(f"{name}: {cause}" for name, cause in self.damaged)
            raise CheckpointError(
                f"No checkpoint in {self.folder} can be read, so the run cannot be resumed: {causes}. "
                "Its best weights may be intact (try `seqloom evaluate`); otherwise train a new run."
            )
        return None

    def newest_weights(
        self, max_count: int, check: Callable[[dict[str, Tensor]], object] = lambda weights: None
    ) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield the step and the model tensors of at most `max_count` intact checkpoints, newest first.

        `check` raises `CheckpointError` for tensors that do not match the model. `damaged` lists the checkpoints that
        were skipped. Other parts of a checkpoint are not read.
        """
        if os.access(self.folder, os.W_OK):  # a read-only run can be read, but not cleaned
            self._clean_up()
        intact = self._intact(lambda checkpoint: check(checkpoint.parts.get("model", {})), only="model")
        for checkpoint in islice(intact, max_count):
            yield checkpoint.step, checkpoint.parts["model"]

    def _intact(self, restore: Callable[[Checkpoint], object] | None, only: str | None = None) -> Iterator[Checkpoint]:
        """Yield the checkpoints that can be read and restored, newest first.

        Damaged checkpoints are added to `damaged`.
        """
        self.damaged = []
        candidates = self._steps()
        newest = self._newest_step(candidates)
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

    def _newest_step(self, candidates: list[int]) -> int:
        """Return the step in `latest.json`, or the newest candidate if this file is missing or invalid."""
        newest = candidates[0] if candidates else 0
        try:
            step = int(parse_json(read_file(self.folder / "latest.json"))["step"])
        except FileNotFoundError:
            return newest
        except (ValueError, KeyError, TypeError, OverflowError, OSError, CheckpointError):
            self.damaged.append(("latest.json", "it cannot be read"))
            return newest
        if step in candidates:
            return step
        self.damaged.append((f"step-{step}", "latest.json names it, but it is missing"))
        return newest

    def _read(self, step: int, only: str | None = None) -> Checkpoint:
        """Read and verify a checkpoint or one part of it."""
        folder = self.folder / f"step-{step}"
        refuse_other_kind(folder, stat.S_IFDIR)
        try:
            manifest = parse_json(read_file(folder / "manifest.json"))
            version, digests = manifest["format"], dict(manifest["files"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"manifest.json cannot be read ({type(error).__name__}: {error})") from error
        if version != FORMAT:
            raise CheckpointError(
                f"its format is {version}, but this version of seqloom reads format {FORMAT}; "
                "use the version that wrote it"
            )
        if manifest.get("step") != step or "state.json" not in digests:
            raise CheckpointError("manifest.json is damaged: it does not describe this checkpoint")
        if manifest.get("run") != self.identity:
            raise CheckpointError("it belongs to another run with a different recipe or different documents")
        for name in digests if only is None else {"state.json", f"{only}.safetensors"} & digests.keys():
            self._verify(folder, name, digests[name])
        try:
            skeletons = parse_json(read_file(folder / "state.json"))
        except ValueError as error:
            raise CheckpointError(f"state.json is damaged: it is not valid JSON ({error})") from error
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
            raise CheckpointError(f"its manifest names a file outside the checkpoint ({name})")
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

    def _clean_up(self) -> None:
        """Remove the remains of an interrupted save. Restore a checkpoint whose replacement was interrupted."""
        remove_leftovers(self.folder)
        for aside in self.folder.glob(".step-*.aside"):
            target = self.folder / aside.name.removeprefix(".").removesuffix(".aside")
            if os.path.lexists(target):
                remove(aside)
            else:
                aside.rename(target)

    def _surplus(self, newest: int) -> set[int]:
        """Return the steps of all checkpoints except the newest intact checkpoints.

        Checkpoints after `newest` are also surplus, because training repeats their steps.
        """
        steps = self._steps()
        lasting = [s for s in steps if s <= newest and s not in self._unusable and not self.is_temporary(s)]
        return set(steps) - {newest, *lasting[: self.keep]}

    def is_temporary(self, step: int) -> bool:
        """Return whether a checkpoint was saved only because training was stopped."""
        try:
            return bool(parse_json(read_file(self.folder / f"step-{step}" / "manifest.json")).get("temporary"))
        except (OSError, ValueError, AttributeError, CheckpointError):
            return False

    def _remove(self, steps: Iterable[int]) -> None:
        for step in steps:
            # Atomic, because a partial checkpoint would count as damaged
            remove_directory(self.folder / f"step-{step}")
