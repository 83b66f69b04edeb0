"""The runs a studio shows: found below one folder, known by name, opened when they are asked for.

A run's id is its place below the folder, `quickstart-en-fr` or `ladder/gru-1`. It is looked up among the runs that
were found, and never made into a path: what is not below the folder cannot be named.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from seqloom.core.errors import CheckpointError, SeqloomError, UsageError

T = TypeVar("T")

DEPTH = 3  # folders between the studio's and a run: ladders keep theirs one below
OPEN_MODELS = 8
REMEMBERED = 48  # answers to questions that are likely to be asked again
KEPT_BYTES = 1_000_000_000  # of them all: a large model's heads on a long text have hundreds of millions


class UnknownRun(UsageError):
    """No run of that name is on the shelf."""


class Shelf:
    """The runs below `folder`, or the one run that it is."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        if not folder.is_dir():
            what = "is a file" if folder.exists() else "does not exist"
            raise UsageError(f"{folder} {what}. Name the folder that holds your runs, or one run.")
        self.folder, self.device = folder, device
        self._models: OrderedDict[str, tuple[int, Any]] = OrderedDict()
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()
        self._lines: dict[str, tuple[Hashable, dict[str, Any]]] = {}
        self._lock = threading.Lock()  # guards the dictionaries above, and is never held while something is computed

    @property
    def single(self) -> bool:
        """Whether the folder is itself a run."""
        return (self.folder / "recipe.yaml").is_file()

    def paths(self) -> dict[str, Path]:
        """Every run by its id, in the order of the names."""
        if self.single:
            return {displayable(self.folder.resolve().name): self.folder}
        return dict(sorted(self._below(self.folder, DEPTH)))

    def _below(self, folder: Path, depth: int) -> Iterator[tuple[str, Path]]:
        for entry in _folders(folder):
            path = Path(entry.path)
            if os.path.lexists(path / "recipe.yaml"):  # what is wrong with it, if it is no file, the list says
                yield displayable(path.relative_to(self.folder).as_posix()), path
            elif depth > 1:
                yield from self._below(path, depth - 1)

    def find(self, run: str) -> Path:
        found = self.paths().get(run)
        if found is None:
            raise UnknownRun(f"No run is called {run!r} here. Reload the list of runs.")
        self.check_name(found)
        return found

    def check_name(self, path: Path) -> None:
        """Refuse a run whose name, or that of a folder between it and the studio's, is not UTF-8."""
        below = str(path).removeprefix(str(self.folder)).strip("/")
        if below != displayable(below):
            raise CheckpointError(f"The name of the folder {displayable(below)} is not UTF-8. Rename it.")

    def line(self, run: str, stamps: Hashable, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What the list says of a run, made again only when the stamps of its files are others."""
        kept = self._lines.get(run)
        if kept is None or kept[0] != stamps:
            kept = self._lines[run] = (stamps, make())
        return kept[1]

    @contextmanager
    def using(self, run: str) -> Iterator[Any]:
        """The trained model of a run, opened once. Models are not thread-safe: call this from the run's queue alone
        (`endpoints.queued`), which computes one thing at a time."""
        yield self._trained(run)

    def _trained(self, run: str) -> Any:
        from seqloom.predict.loader import load

        path, stamp = self.find(run), self.stamp(run)
        with self._lock:
            kept = self._models.get(run)
            if kept is not None and kept[0] == stamp:
                self._models.move_to_end(run)
                return kept[1]
        trained = load(path, self.device)
        trained.model  # noqa: B018 (opened here, so that what is wrong with it is said here)
        with self._lock:
            self._models[run] = (stamp, trained)
            while len(self._models) > OPEN_MODELS:
                self._models.popitem(last=False)
        return trained

    def stamp(self, run: str) -> int:
        """When the weights were written: a run that trains on is opened anew."""
        try:
            return (self.find(run) / "model.safetensors").stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def remember(self, run: str, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, computed once as long as the run's weights are the same. The key must be hashable.

        For what is made of a model, ask while it is in use: a run that is trained meanwhile has other weights on disk.
        """
        with self._lock:
            opened = self._models.get(run)
        whole = (run, self.stamp(run) if opened is None else opened[0], key)
        with self._lock:
            if whole in self._answers:
                self._answers.move_to_end(whole)
                kept: T = self._answers[whole]
                return kept
        made = make()
        with self._lock:
            self._answers[whole] = made
            while len(self._answers) > REMEMBERED or (len(self._answers) > 1 and self._kept_bytes() > KEPT_BYTES):
                self._answers.popitem(last=False)
        return made

    def _kept_bytes(self) -> int:
        """Of the answers that say how large they are."""
        return sum(getattr(answer, "nbytes", 0) for answer in self._answers.values())


def _folders(folder: Path) -> list[os.DirEntry[str]]:
    """Folders below this one. Links are not followed: they could lead anywhere."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."]
    except OSError:
        return []


def displayable(name: str) -> str:
    """A file name as text: a byte that is not UTF-8 is written as \\xff."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def readable(error: BaseException) -> str | None:
    """The words of an error that is the user's to mend, None for one of ours."""
    if isinstance(error, SeqloomError):
        return str(error)
    if isinstance(error, RecursionError):
        return "A file of the run is nested too deeply to be read."
    if isinstance(error, UnicodeError):
        return "A file of the run holds text that is not valid Unicode, such as a lone surrogate."
    if isinstance(error, OSError):
        named = f"{Path(error.filename).name}: " if isinstance(error.filename, str) else ""
        return str(CheckpointError(f"A file of the run cannot be read: {named}{error.strerror or error}"))
    return None
