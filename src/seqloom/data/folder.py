"""Where the data sets lie that are not inside the package: SEQLOOM_DATA, or the folder a command was told."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from seqloom.core.errors import DataError

VARIABLE = "SEQLOOM_DATA"
_chosen: ContextVar[Path | None] = ContextVar("data_folder", default=None)


@contextmanager
def use_data_folder(path: Path | str | None) -> Iterator[None]:
    """Within this block `path` stands before SEQLOOM_DATA; None changes nothing."""
    token = _chosen.set(_chosen.get() if path is None else Path(path))
    try:
        yield
    finally:
        _chosen.reset(token)


def data_folder() -> Path | None:
    """The folder in force, or None if neither `--data-dir` nor SEQLOOM_DATA names one."""
    chosen = _chosen.get() or os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else None


@dataclass(frozen=True)
class DataSet:
    """A set that is had elsewhere: its title, and where from."""

    title: str
    source: str

    def file(self, name: str) -> Path:
        """The file `name` of the data folder, or the same without .gz; DataError if neither is there."""
        folder = data_folder()
        if folder is None:
            raise DataError(
                f"{self.title} is not inside seqloom and {VARIABLE} is not set. Set {VARIABLE} (or give --data-dir) to "
                f"a folder that holds {name}.\nIt is had from {self.source}."
            )
        for path in (folder / name, folder / name.removesuffix(".gz")):
            if path.is_file():
                return path
        raise DataError(
            f"{self.title} needs {folder / name}, which is not there. Put it there, or point {VARIABLE} "
            f"(or --data-dir) at the folder above it.\nIt is had from {self.source}."
        )
