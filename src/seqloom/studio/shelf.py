"""The runs a studio shows: found below one folder, known by name, opened when they are asked for.

A run's id is its place below the folder, `quickstart-en-fr` or `ladder/gru-1`. It is looked up
among the runs that were found, and never made into a path: what is not below the folder cannot be
named.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from seqloom.core.errors import CheckpointError, SeqloomError, UsageError
from seqloom.predict.base import Predictor

T = TypeVar("T")
P = TypeVar("P")
Json = dict[str, Any]
Trained = Predictor[Any]

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
        self._models: OrderedDict[str, OpenRun] = OrderedDict()
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()
        self._lines: dict[str, tuple[Hashable, Json]] = {}
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
        try:
            with os.scandir(folder) as entries:  # links are not followed: they could lead anywhere
                folders = [
                    Path(one.path) for one in entries if one.is_dir(follow_symlinks=False) and one.name[0] != "."
                ]
        except OSError:
            return
        for path in folders:
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

    def line(self, run: str, stamps: Hashable, make: Callable[[], Json]) -> Json:
        """What the list says of a run, made again only when the stamps of its files are others."""
        kept = self._lines.get(run)
        if kept is None or kept[0] != stamps:
            kept = self._lines[run] = (stamps, make())
        return kept[1]

    def open(self, run: str) -> "OpenRun":
        """Open the trained model of a run, once. Models are not thread-safe: call this from the run's queue alone
        (`endpoints.queued`), which computes one thing at a time."""
        from seqloom.predict.loader import load

        path = self.find(run)
        try:
            stamp = (path / "model.safetensors").stat().st_mtime_ns  # a run that trains on is opened anew
        except FileNotFoundError:
            stamp = 0
        with self._lock:
            opened = self._models.get(run)
            if opened is not None and opened.stamp == stamp:
                self._models.move_to_end(run)
                return opened
        trained = load(path, self.device)
        trained.model  # noqa: B018 (opened here, so that what is wrong with it is said here)
        opened = OpenRun(self, run, stamp, trained)
        with self._lock:
            self._models[run] = opened
            while len(self._models) > OPEN_MODELS:
                self._models.popitem(last=False)
        return opened

    def remember(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, computed once, as long as there is room for it."""
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                kept: T = self._answers[key]
                return kept
        made = make()
        with self._lock:
            self._answers[key] = made
            while len(self._answers) > REMEMBERED or (len(self._answers) > 1 and self._count_bytes() > KEPT_BYTES):
                self._answers.popitem(last=False)
        return made

    def _count_bytes(self) -> int:
        """Of the answers that say how large they are."""
        return sum(getattr(answer, "nbytes", 0) for answer in self._answers.values())


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A run with its trained model, as an endpoint uses it."""

    shelf: Shelf
    name: str
    stamp: int  # when its weights were written
    trained: Trained

    def remember(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` computes with these weights, computed once."""
        return self.shelf.remember((self.name, self.stamp, key), make)

    def expect(self, kind: type[P], wanted: str) -> P:
        """The model, if it is of this kind; else say what kind of run to choose."""
        if not isinstance(self.trained, kind):
            raise UsageError(f"{self.name} is {self.trained.what}. Choose a run that {wanted}.")
        return self.trained


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
