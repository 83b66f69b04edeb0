"""Where a new run can be made: its path is reserved from before the work begins until the run exists."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from seqloom.core.errors import UsageError
from seqloom.core.files import disk_errors, flush_directory, new_directory, remove_leftovers, reserve, write_flushed
from seqloom.core.words import is_unicode


@contextmanager
def claim(path: Path) -> Iterator[None]:
    """Reserve the path of a new run, from before the work for it begins until the run exists.

    A path that exists, or that another process has reserved, is refused. What a killed process left of a run of that
    name is removed.
    """
    refuse_existing(path)
    missing = [folder for folder in path.absolute().parents if not folder.exists()]
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        busy = f"{path} is being made by another process. Wait for it, or choose another place with --out."
        with reserve(path, busy):
            refuse_existing(path)  # it may have been made since
            remove_leftovers(path.parent, path.name)
            yield
    finally:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()  # unless there is something in it now


def write_directory(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a new directory with these files; it appears complete or not at all."""
    with new_directory(path) as folder:
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_flushed(folder / name, content)
        for place in {(folder / name).parent for name in files} - {folder}:
            flush_directory(place)


def refuse_existing(path: Path) -> None:
    """Refuse a path at which no new run can be made."""
    if not is_unicode(str(path)):
        raise UsageError(f"The path of a run must be UTF-8, got {str(path)!r}. Choose another place with --out.")
    if not path.exists() and not path.is_symlink():
        return
    number = next(n for n in range(2, 10_000) if not path.with_name(f"{path.name}-{n}").exists())
    free = path.with_name(f"{path.name}-{number}")
    if (path / "average.json").is_file():  # there is nothing to go on with
        raise UsageError(f"{path} exists. Keep it and choose another place: --out {free}.")
    if (path / "recipe.yaml").is_file():
        raise UsageError(f"{path} exists. Go on with it: --resume {path}; or keep it and choose another: --out {free}.")
    raise UsageError(f"{path} exists and is not a run. Choose another place: --out {free}.")
