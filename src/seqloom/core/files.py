"""Safe file access: every file of a run is opened, written and deleted by the functions of this module.

- After a power failure, a file is either complete or absent: it is written under a temporary name, flushed to disk and
  then renamed.
- A write never follows a link. Temporary names are random, and temporary files are created exclusively. A rename
  replaces a link itself, not its target. Parent directories are not checked: `runs` and the run directory may be links.
- A read or a lock never blocks on another process: links, FIFOs, devices and directories are rejected.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as dump_safetensors
from torch import Tensor

from seqloom.core import Json
from seqloom.core.errors import CheckpointError, ResourceError, UsageError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
PERMISSION_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
BAD_PATH = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG, errno.ELOOP)
SAFE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
KINDS = {
    stat.S_IFREG: "a regular file",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp", re.DOTALL)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Convert operating system errors while writing `path` to a one-line ResourceError."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise ResourceError(
                f"The disk is full: could not write {path}. Saved files are intact; free some space and resume."
            ) from error
        if error.errno in PERMISSION_DENIED:
            raise ResourceError(f"Not allowed to write {path} ({error.strerror}). Choose another path.") from error
        reason = error.strerror or error
        if error.errno in BAD_PATH:
            raise ResourceError(f"Could not write {path} ({reason}). Choose another path.") from error
        raise ResourceError(
            f"Could not write {path} ({reason}). Saved files are intact; try again when the problem is solved."
        ) from error


# --- opening ----------------------------------------------------------------------------------------------------------


def refuse_other_kind(path: Path, expected: int = stat.S_IFREG) -> None:
    """Raise `CheckpointError` if `path` exists and is not of the expected kind, by default a regular file."""
    try:
        kind = stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:
        return  # the file is missing, or opening it reports the reason
    if kind != expected:
        raise CheckpointError(
            f"{path} must be {KINDS[expected]}; it is {KINDS.get(kind, 'something else')}. "
            "Remove it, or copy the run again."
        )


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor; reject anything else without blocking."""
    refuse_other_kind(path)  # opening a device can have side effects
    descriptor = os.open(path, flags | SAFE_FLAGS, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # the file was replaced in the meantime
        os.close(descriptor)
        raise CheckpointError(f"{path} must be a regular file.")
    return descriptor


def read_file(path: Path) -> bytes:
    """Read a regular file; reject anything else without blocking."""
    with open(open_regular(path), "rb") as file:
        return file.read()


def append_to_file(path: Path, text: str) -> None:
    """Append text to a regular file, which is created if missing."""
    with disk_errors(path), open(open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
        file.write(text.encode())


def create_file(path: Path) -> IO[bytes]:
    """Create a file that must not exist, and open it for writing."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFE_FLAGS, 0o666), "wb")


@contextmanager
def hold_lock(path: Path, busy: str) -> Iterator[None]:
    """Hold an exclusive lock on a file; raise UsageError(busy) if another process holds the lock.

    The lock is released when the block or the process ends, even if the process is killed. The file is created if it
    does not exist, and it is never written or deleted.
    """
    with disk_errors(path):
        descriptor = _lock(path, busy)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def reserve(path: Path, busy: str) -> Iterator[None]:
    """Reserve a new path; raise UsageError(busy) if another process has reserved the path.

    The reservation is a lock on `.NAME.lock` in the same directory. The lock file is removed at the end. If the process
    is killed, the lock file remains but does not block other processes.
    """
    lock = path.with_name(f".{path.name}.lock")
    with disk_errors(path):
        descriptor = _lock(lock, busy)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(path: Path, busy: str) -> int:
    """Lock a file and return its descriptor."""
    while True:
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                    return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise UsageError(busy) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the previous holder removed the file after it was opened here


# --- writing ----------------------------------------------------------------------------------------------------------


def check_writable(path: Path) -> None:
    """Check that a file can be written, by creating a temporary file in its folder."""
    with disk_errors(path):
        tempfile.TemporaryFile(dir=path.parent).close()


def flush_directory(path: Path) -> None:
    """Flush a directory to disk, so that a rename in it survives a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_flushed(path: Path, content: bytes) -> None:
    """Write a file that must not exist and flush it to disk."""
    with create_file(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replace_file(path: Path, folder: Path | None = None) -> Iterator[IO[bytes]]:
    """Write a file under a temporary name in `folder` (default: the file's folder); rename it when the block ends."""
    temporary = temporary_path(path, folder)
    with disk_errors(path):
        try:
            with create_file(temporary) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        flush_directory(path.parent)


def write_atomic(path: Path, content: bytes | str, folder: Path | None = None) -> None:
    """Replace a file atomically through a temporary file in `folder` (default: the file's folder)."""
    with replace_file(path, folder) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def make_directory(path: Path) -> None:
    """Create a directory of a run unless it exists; reject a link or a file with this name."""
    with disk_errors(path):
        try:
            path.mkdir()
        except FileExistsError:
            refuse_other_kind(path, stat.S_IFDIR)
        else:
            flush_directory(path.parent)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Fill a directory under a temporary name and rename it when the block ends, so that it is complete or absent."""
    temporary = temporary_path(path)
    with disk_errors(path):
        try:
            temporary.mkdir(parents=True)
            yield temporary
            flush_directory(temporary)
            os.replace(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        flush_directory(path.parent)


# --- deleting ---------------------------------------------------------------------------------------------------------


def temporary_path(path: Path, folder: Path | None = None) -> Path:
    """Return an unpredictable path in `folder`, or next to `path`, that `remove_leftovers` recognizes."""
    return (folder or path.parent) / f".{path.name}.{secrets.token_hex(8)}.tmp"


def remove_leftovers(folder: Path, name: str | None = None, min_age: float = 0.0) -> None:
    """Delete the temporary files and directories that killed processes left in `folder`.

    `name` restricts the deletion to the temporary copies of one file or directory. `min_age` restricts the deletion to
    paths that have not changed for this number of seconds.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _TEMPORARY.fullmatch(entry.name)
            if match is None or name not in (None, match[1]):
                continue
            with suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime >= min_age:
                    remove(Path(entry.path))


def remove_directory(path: Path) -> None:
    """Delete a directory atomically by renaming it first."""
    doomed = temporary_path(path)
    path.rename(doomed)
    remove(doomed)


def remove(path: Path) -> None:
    """Delete a file, a link or a directory with its contents; skip parts of a directory that cannot be deleted."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# --- contents ---------------------------------------------------------------------------------------------------------


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def to_json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def parse_json(content: bytes) -> Json:
    """Parse JSON; raise `ValueError` if it is not JSON, not UTF-8, or nested too deeply."""
    try:
        return json.loads(content.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.reshape(-1)
        if len(flat) == 1:  # a single element is contiguous with any stride, but `view` needs a stride of 1
            flat = flat.as_strided((1,), (1,))
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def tensors_to_bytes(tensors: Mapping[str, Tensor], run: str = "") -> bytes:
    """Encode tensors as a safetensors file whose header contains a checksum to detect damage.

    The checksum is followed by `run`, the identity of the run (see `seqloom.runs.layout`). Tensors that share memory
    (tied weights) are written once for each name. The header has a single entry, because several entries would be
    written in random order, and the bytes of the file would not be reproducible.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    seen: set[int] = set()
    for name, tensor in plain.items():
        storage = tensor.untyped_storage().data_ptr()
        if storage in seen:
            plain[name] = tensor.clone()
        seen.add(storage)
    return dump_safetensors(plain, {"sha256": f"{_digest(plain)} {run}".strip()})


def read_checksum(path: Path) -> str:
    """Return the checksum in the header of a file written by `tensors_to_bytes`, without reading the tensors."""
    try:
        os.close(open_regular(path))
        with safe_open(path, framework="pt") as file:
            return str((file.metadata() or {}).get("sha256", "")).partition(" ")[0]
    except (OSError, SafetensorError):  # reading the tensors will raise the error
        return ""


def tensors_from_file(path: Path, run: str | None = None) -> dict[str, Tensor]:
    """Read a file written by `tensors_to_bytes`; raise `CheckpointError` if any bit has changed.

    If `run` is given, the file must belong to the run with the identity `run`.
    """
    try:
        os.close(open_regular(path))  # safetensors would block on a FIFO, and reports unreadable files as missing
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing.") from None
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a readable safetensors file ({error}).") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error}).") from error
    if "sha256" not in metadata:
        raise CheckpointError(f"{path} was not written by seqloom: its header has no checksum.")
    digest, _, owner = metadata["sha256"].partition(" ")
    if metadata.keys() != {"sha256"} or digest != _digest(tensors):
        raise CheckpointError(f"{path} is damaged: its content does not match its checksum.")
    if run is not None and owner != run:
        raise CheckpointError(
            f"{path} belongs to another run: it was written with a different recipe or different documents. Copy the "
            f"complete run."
        )
    # Copy the tensors to memory that torch aligns, because the last bit of a product may depend on the alignment, and
    # the alignment in a file is arbitrary.
    return {name: tensor.clone() for name, tensor in tensors.items()}
