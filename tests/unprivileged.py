"""Tests of file permissions as an unprivileged user, because root can read every file."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def as_unprivileged_user(source: Path) -> Iterator[Path]:
    """Copy a folder to an accessible place, and run this block as an unprivileged user."""
    folder = Path(tempfile.mkdtemp())
    shutil.copytree(source, folder / source.name)
    os.chmod(folder, 0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield folder / source.name
    finally:
        os.seteuid(user)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
        shutil.rmtree(folder)


def forbid(path: Path) -> None:
    """Make a file or folder unreadable for its owner."""
    user = os.geteuid()
    os.seteuid(path.stat().st_uid)
    path.chmod(0)
    os.seteuid(user)
