"""The runs that a studio shows. The runs are found below one folder, identified by name, and opened on demand.

The id of a run is its path relative to the folder, for example `quickstart-en-fr` or `ladder/gru-1`. An id is looked up
in the list of runs and never converted to a path, so that no id can refer to a file outside the folder.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from seqloom.core import JsonObject
from seqloom.core.errors import CheckpointError, SeqloomError, UsageError
from seqloom.predict.base import Predictor

T = TypeVar("T")
P = TypeVar("P")
Trained = Predictor[Any]

MAX_DEPTH = 3  # number of directory levels that are searched; the runs of a ladder are one level down
MAX_OPEN_MODELS = 8
MAX_CACHED_RESULTS = 48
# Maximum size of all cached results; the attention weights of one long text can take 10⁸ bytes
MAX_CACHED_BYTES = 1_000_000_000


class UnknownRun(UsageError):
    """The folder contains no run with this id."""


class RunFolder:
    """The runs below `folder`, or the run in `folder` itself."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        if not folder.is_dir():
            reason = "is a file" if folder.exists() else "does not exist"
            raise UsageError(f"{folder} {reason}. Name a directory of runs, or one run.")
        self.folder, self.device = folder, device
        self._models: OrderedDict[str, OpenRun] = OrderedDict()
        self._results: OrderedDict[Hashable, Any] = OrderedDict()
        self._summaries: dict[str, tuple[Hashable, JsonObject]] = {}
        self._lock = threading.Lock()  # protects the dictionaries above; never held during a computation

    @property
    def single(self) -> bool:
        """Whether the folder is itself a run."""
        return (self.folder / "recipe.yaml").is_file()

    def paths(self) -> dict[str, Path]:
        """All runs by id, sorted."""
        if self.single:
            return {display_name(self.folder.resolve().name): self.folder}
        return dict(sorted(self._find_below(self.folder, MAX_DEPTH)))

    def _find_below(self, folder: Path, depth: int) -> Iterator[tuple[str, Path]]:
        try:
            # Symbolic links are not followed, because they could lead out of the folder
            with os.scandir(folder) as entries:
                folders = [
                    Path(entry.path)
                    for entry in entries
                    if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."
                ]
        except OSError:
            return
        for path in folders:
            if os.path.lexists(path / "recipe.yaml"):  # if the file is not regular, the list shows the error
                yield display_name(path.relative_to(self.folder).as_posix()), path
            elif depth > 1:
                yield from self._find_below(path, depth - 1)

    def find(self, run: str) -> Path:
        path = self.paths().get(run)
        if path is None:
            raise UnknownRun(f"There is no run {run!r}. Reload the list of runs.")
        self.check_name(path)
        return path

    def check_name(self, path: Path) -> None:
        """Reject a run whose relative path is not UTF-8."""
        below = str(path).removeprefix(str(self.folder)).strip("/")
        if below != display_name(below):
            raise CheckpointError(f"The directory name {display_name(below)} is not UTF-8. Rename it.")

    def summary(self, run: str, stamps: Hashable, describe: Callable[[], JsonObject]) -> JsonObject:
        """Return the list entry of a run.

        The entry is computed again only when the stamps of the files of the run have changed.
        """
        cached = self._summaries.get(run)
        if cached is None or cached[0] != stamps:
            cached = self._summaries[run] = (stamps, describe())
        return cached[1]

    def open(self, run: str) -> "OpenRun":
        """Load the trained model of a run, or return it if it is already loaded.

        Models are not thread-safe: call this method only from the queue of the run (`endpoints.queued`).
        """
        from seqloom.predict.loader import load

        path = self.find(run)
        try:
            stamp = (path / "model.safetensors").stat().st_mtime_ns  # reload a run whose training has continued
        except FileNotFoundError:
            stamp = 0
        with self._lock:
            opened = self._models.get(run)
            if opened is not None and opened.stamp == stamp:
                self._models.move_to_end(run)
                return opened
        trained = load(path, self.device)
        trained.model  # noqa: B018 (load the model now, so that errors are reported here)
        opened = OpenRun(self, run, stamp, trained)
        with self._lock:
            self._models[run] = opened
            while len(self._models) > MAX_OPEN_MODELS:
                self._models.popitem(last=False)
        return opened

    def get_or_compute(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the cached result of `compute`, or compute and cache the result. The oldest results are evicted."""
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                cached: T = self._results[key]
                return cached
        result = compute()
        with self._lock:
            self._results[key] = result
            while len(self._results) > MAX_CACHED_RESULTS or (
                len(self._results) > 1 and self._count_bytes() > MAX_CACHED_BYTES
            ):
                self._results.popitem(last=False)
        return result

    def _count_bytes(self) -> int:
        """Count the bytes of the results that have `nbytes`."""
        return sum(getattr(result, "nbytes", 0) for result in self._results.values())


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A run with its loaded model."""

    run_folder: RunFolder
    name: str
    stamp: int  # modification time of the weights
    trained: Trained

    def get_or_compute(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the result that is cached for these weights, or compute it."""
        return self.run_folder.get_or_compute((self.name, self.stamp, key), compute)

    def require(self, kind: type[P], expected: str) -> P:
        """Return the model if it is of this kind. Otherwise, raise an error that names the `expected` kind of run."""
        if not isinstance(self.trained, kind):
            raise UsageError(f"{self.name} is {self.trained.description}. Choose {expected}.")
        return self.trained


def display_name(name: str) -> str:
    """Return a file name as text. Bytes that are not UTF-8 are shown as escapes such as \\xff."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def user_message(error: BaseException) -> str | None:
    """Return the message of an error that the user can fix, or None for an internal error."""
    if isinstance(error, SeqloomError):
        return str(error)
    if isinstance(error, RecursionError):
        return "A file of the run is nested too deeply."
    if isinstance(error, UnicodeError):
        return "A file of the run contains text that is not valid Unicode, such as a lone surrogate."
    if isinstance(error, OSError):
        name = f"{Path(error.filename).name}: " if isinstance(error.filename, str) else ""
        return str(CheckpointError(f"A file of the run cannot be read: {name}{error.strerror or error}"))
    return None
