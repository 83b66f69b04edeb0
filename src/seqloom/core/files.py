"""Writing that survives a power cut: a temporary name, flushed to disk, then renamed."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as dump_safetensors
from torch import Tensor

from seqloom.core.errors import CheckpointError, ResourceError


REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full or read-only disk, or a path where no file can be, into one clear line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceError(
                f"The disk is full: could not write {path}. What was saved is intact; free some space and resume."
            ) from error
        if error.errno in REFUSED:
            raise ResourceError(f"Not allowed to write {path} ({error.strerror}). Choose another place.") from error
        if error.errno in NO_PLACE:
            raise ResourceError(f"Could not write {path} ({error.strerror}). Choose another place.") from error
        raise


def check_writable(folder: Path) -> None:
    """Refuse, before any work, a folder where nothing could be written in the end: something is, for a moment."""
    with disk_errors(folder):
        tempfile.TemporaryFile(dir=folder).close()


def flush_directory(path: Path) -> None:
    """Make a rename inside `path` durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_flushed(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replace a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    data = content.encode() if isinstance(content, str) else content
    with disk_errors(path):
        try:
            write_flushed(temporary, data)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        flush_directory(path.parent)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Fill a directory under a temporary name; it appears under its own name complete, or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    with disk_errors(path):
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            yield temporary
            flush_directory(temporary)
            os.replace(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        flush_directory(path.parent)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file whose header carries the digest of its content, so that damage is seen on reading.

    Tensors that share memory (tied weights) are written once for each name. The digest is all the header says besides,
    since of several entries the order, and so the bytes of the file, would be up to chance.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    seen: set[int] = set()
    for name, tensor in plain.items():
        storage = tensor.untyped_storage().data_ptr()
        if storage in seen:
            plain[name] = tensor.clone()
        seen.add(storage)
    return dump_safetensors(plain, {"sha256": _digest(plain)})


def tensors_from_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a file written by `tensors_to_bytes`; refused if a single bit of it has changed."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing.") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file ({error}).") from error
    if "sha256" not in metadata:
        raise CheckpointError(f"{path} was not written by seqloom: its header has no checksum.")
    if {"format": "pt", **metadata} != {"format": "pt", "sha256": _digest(tensors)}:  # older files say the format
        raise CheckpointError(f"{path} is damaged: its content does not match its checksum.")
    return tensors
