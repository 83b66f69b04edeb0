import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from seqloom.core import files
from seqloom.core.errors import CheckpointError, ResourceError, UsageError
from seqloom.core.files import (
    append_to_file,
    check_writable,
    hold_lock,
    make_directory,
    new_directory,
    parse_json,
    read_file,
    remove_leftovers,
    reserve,
    sha256,
    temporary_path,
    tensors_from_file,
    tensors_to_bytes,
    to_json,
    write_atomic,
    write_flushed,
)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def test_write_replaces_complete_file(tmp_path: Path) -> None:
    path = tmp_path / "card.md"
    write_atomic(path, "old and long")
    write_atomic(path, "größer")
    assert contents(tmp_path) == {"card.md": "größer".encode()}


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_keeps_old_file_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    path = tmp_path / "recipe.yaml"
    write_atomic(path, b"old")
    monkeypatch.setattr(os, step, failing(number))
    with pytest.raises(ResourceError, match=r"disk is full.*recipe\.yaml") as caught:
        write_atomic(path, b"new")
    assert caught.value.exit_code == 5
    assert contents(tmp_path) == {"recipe.yaml": b"old"}


def test_write_to_dev_full_is_reported() -> None:
    """/dev/full rejects writes like a full disk, but only when Python flushes its buffer."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(ResourceError, match="disk is full"), files.disk_errors(full), full.open("wb") as file:
        file.write(b"x")


def test_interrupted_write_keeps_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    write_atomic(path, b"old")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"new")
    assert contents(tmp_path) == {"log": b"old"}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_missing_permission_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "replace", failing(number))
    with pytest.raises(ResourceError, match="Not allowed to write"):
        write_atomic(tmp_path / "x", b"")


@pytest.mark.parametrize("name", ["missing/x", "file/x", "file/x/y", "folder", "n" * 300])
def test_invalid_path_is_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResourceError, match="Could not write"):
        write_atomic(tmp_path / name, b"")
    if name.startswith("file"):
        with pytest.raises(ResourceError, match="Could not write"), new_directory(tmp_path / name):
            pass
        with pytest.raises(ResourceError, match="Could not write"):
            check_writable(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc")
def test_unwritable_proc_folder_is_reported() -> None:
    with pytest.raises(ResourceError, match="write /proc"):
        check_writable(Path("/proc/x.png"))


def test_check_writable_leaves_no_file(tmp_path: Path) -> None:
    check_writable(tmp_path / "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ENOLCK])
@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
def test_other_system_errors_are_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, step: str
) -> None:
    write_atomic(tmp_path / "x", b"old")
    monkeypatch.setattr(os, step, failing(number))
    with pytest.raises(ResourceError, match=rf"Could not write .*x \({os.strerror(number)}\)") as caught:
        write_atomic(tmp_path / "x", b"new")
    assert caught.value.exit_code == 5
    monkeypatch.undo()
    assert contents(tmp_path) == {"x": b"old"}


def test_file_is_flushed_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is fsync of the file, rename, fsync of the folder.

    With any other order, a power failure can lose data.
    """
    order: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted(name: str, function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            order.append(name)
            function(*arguments)

        return call

    monkeypatch.setattr(os, "fsync", noted("fsync", fsync))
    monkeypatch.setattr(os, "replace", noted("replace", replace))
    write_atomic(tmp_path / "x", b"1")
    assert order == ["fsync", "replace", "fsync"]


def test_directory_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    with pytest.raises(RuntimeError), new_directory(path) as folder:
        (folder / "half").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with new_directory(path) as folder:
        (folder / "whole").write_text("x")
        assert not path.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-1"]
    assert contents(path) == {"whole": b"x"}


def test_existing_directory_is_not_overwritten(tmp_path: Path) -> None:
    with new_directory(tmp_path / "step-1") as folder:
        (folder / "old").write_text("x")
    with pytest.raises(ResourceError, match="step-1"), new_directory(tmp_path / "step-1") as folder:
        (folder / "new").write_text("x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-1"]
    assert contents(tmp_path / "step-1") == {"old": b"x"}


# --- links, FIFOs, devices --------------------------------------------------------------------------------------------


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.write_text("precious")
    return path


def place_link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def place_fifo(path: Path, _: Path) -> None:
    os.mkfifo(path)


def place_directory(path: Path, _: Path) -> None:
    path.mkdir()


def place_device(path: Path, _: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root may create a device")


PLACES = [
    (place_link, "a symbolic link"),
    (place_fifo, "a FIFO"),
    (place_directory, "a directory"),
    (place_device, "a device"),
]


def lock(path: Path) -> None:
    with hold_lock(path, "busy"):
        pass


@pytest.mark.parametrize(("place", "kind"), PLACES)
@pytest.mark.parametrize(
    "use",
    [read_file, tensors_from_file, lambda path: append_to_file(path, "x"), lock],
    ids=["read", "st", "add", "lock"],
)
def test_other_kinds_of_files_are_rejected_without_blocking(
    tmp_path: Path, precious: Path, place: Callable[..., None], kind: str, use: Callable[[Path], object]
) -> None:
    path = tmp_path / "run-file"
    place(path, precious)
    with pytest.raises(CheckpointError, match=rf"run-file must be a regular file; it is {kind}\.") as caught:
        use(path)
    assert "\n" not in str(caught.value)
    assert precious.read_text() == "precious"


def test_atomic_write_replaces_the_link_but_not_its_target(tmp_path: Path, precious: Path) -> None:
    link = tmp_path / "card.md"
    link.symlink_to(precious)
    write_atomic(link, "new")
    assert (precious.read_text(), link.read_text(), link.is_symlink()) == ("precious", "new", False)


def test_temporary_names_are_unique_and_created_exclusively(
    tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len({temporary_path(tmp_path / "x") for _ in range(100)}) == 100
    monkeypatch.setattr(secrets, "token_hex", lambda _: "0" * 16)  # an attacker guesses the name
    (tmp_path / ".x.0000000000000000.tmp").symlink_to(precious)
    with pytest.raises(ResourceError, match="Could not write"):
        write_atomic(tmp_path / "x", b"new")
    assert precious.read_text() == "precious"


def test_new_file_is_not_written_through_link(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "x").symlink_to(precious)
    with pytest.raises(FileExistsError):
        write_flushed(tmp_path / "x", b"new")
    assert precious.read_text() == "precious"


def test_make_directory_rejects_link_and_file(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "metrics").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "metrics", precious):
        with pytest.raises(CheckpointError, match=rf"{path.name} must be a directory"):
            make_directory(path)
    make_directory(tmp_path / "new")
    make_directory(tmp_path / "new")
    assert (tmp_path / "new").is_dir()


def test_append_creates_file_and_adds_to_end(tmp_path: Path) -> None:
    append_to_file(tmp_path / "log", "ä\n")
    append_to_file(tmp_path / "log", "b\n")
    assert (tmp_path / "log").read_text("utf-8") == "ä\nb\n"


# --- locks and leftovers ----------------------------------------------------------------------------------------------


def test_lock_is_exclusive_and_does_not_change_file(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_text("kept")
    with hold_lock(path, "busy"), pytest.raises(UsageError, match="busy"), hold_lock(path, "busy"):
        pass
    with hold_lock(path, "busy"):
        pass
    assert path.read_text() == "kept"


def test_reserved_name_is_released(tmp_path: Path) -> None:
    with reserve(tmp_path / "one", "busy"), reserve(tmp_path / "two", "busy"):
        with pytest.raises(UsageError, match="busy"), reserve(tmp_path / "one", "busy"):
            pass
        assert sorted(path.name for path in tmp_path.iterdir()) == [".one.lock", ".two.lock"]
    assert not list(tmp_path.iterdir())


def test_lock_on_removed_file_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that opened the file just before the holder of the lock removed it does not hold the lock."""
    lock, flock = tmp_path / ".one.lock", fcntl.flock
    removed: list[Path] = []

    def remove_first(descriptor: int, flags: int) -> None:
        if not removed:
            removed.append(lock)
            lock.unlink()
        flock(descriptor, flags)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with reserve(tmp_path / "one", "busy"):
        assert lock.exists()
        with pytest.raises(UsageError), reserve(tmp_path / "one", "busy"):
            pass


def test_failed_reservation_names_the_path(tmp_path: Path) -> None:
    with (
        pytest.raises(ResourceError, match=r"Could not write .*missing/one"),
        reserve(tmp_path / "missing/one", "busy"),
    ):
        pass


def test_only_leftovers_of_killed_processes_are_removed(tmp_path: Path, precious: Path) -> None:
    kept = {"precious", ".x.tmp", ".hidden", ".x.0123.tmp", "x.0123456789abcdef.tmp"}
    for name in kept - {"precious"}:
        (tmp_path / name).write_text("kept")
    temporary_path(tmp_path / "x").write_text("half")
    temporary_path(tmp_path / "link").symlink_to(precious)
    folder = temporary_path(tmp_path / "step-1")
    folder.mkdir()
    (folder / "link").symlink_to(precious)
    remove_leftovers(tmp_path, name="step-1")
    assert not folder.exists()
    assert len(list(tmp_path.iterdir())) == len(kept) + 2
    remove_leftovers(tmp_path, min_age=60)
    assert len(list(tmp_path.iterdir())) == len(kept) + 2, "they may still be written"
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept
    assert precious.read_text() == "precious"
    remove_leftovers(tmp_path / "missing")


def test_json_is_not_ascii_escaped() -> None:
    assert to_json({"ß": [1, "ø"]}) == '{\n "ß": [\n  1,\n  "ø"\n ]\n}\n'
    assert sha256(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


TENSORS = {
    "weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "step": torch.tensor(7),
    "mask": torch.tensor([True, False]),
    "empty": torch.zeros(0, 4, dtype=torch.float64),
}


def written(tmp_path: Path, tensors: dict[str, Tensor]) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(tensors_to_bytes(tensors))
    return path


def test_tensor_round_trip_is_bit_identical(tmp_path: Path) -> None:
    read = tensors_from_file(written(tmp_path, TENSORS))
    assert set(read) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_tensors_read_from_file_are_aligned(tmp_path: Path) -> None:
    """Products of the same numbers with another memory alignment may differ in the last bit."""
    own = torch.empty(64).data_ptr()
    whole = next(power for power in (64, 32, 16) if own % power == 0)
    for length in range(1, 9):  # the length of the header changes
        read = tensors_from_file(written(tmp_path, {"n" * length: torch.ones(3), "other": torch.ones(5, 7)}))
        assert [tensor.data_ptr() % whole for tensor in read.values()] == [0, 0]


def test_views_and_parameters_are_written(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4).requires_grad_()
    tensors: dict[str, Tensor] = {"transposed": base.T, "row": base[1], "column": base[:, 1], "base": base}
    read = tensors_from_file(written(tmp_path, tensors))
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)])
def test_single_number_with_any_stride_is_written(tmp_path: Path, shape: tuple[int, ...]) -> None:
    single = torch.tensor([5.0, 6.0, 7.0]).as_strided(shape, (3,) * len(shape), storage_offset=1)
    write_atomic(tmp_path / "x", tensors_to_bytes({"x": single}))
    assert tensors_from_file(tmp_path / "x")["x"].tolist() == torch.full(shape, 6.0).tolist()


def test_equal_tensors_give_equal_bytes() -> None:
    assert len({tensors_to_bytes(TENSORS) for _ in range(20)}) == 1


def test_header_with_other_entries_is_rejected(tmp_path: Path) -> None:
    path = written(tmp_path, TENSORS)
    with safe_open(path, framework="pt") as file:
        digest = file.metadata()["sha256"]
    path.write_bytes(save(TENSORS, {"format": "pt", "sha256": digest}))
    with pytest.raises(CheckpointError, match="damaged"):
        tensors_from_file(path)


def test_tensors_of_another_run_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    path.write_bytes(tensors_to_bytes(TENSORS, "abc"))
    assert set(tensors_from_file(path, "abc")) == set(tensors_from_file(path)) == set(TENSORS)
    for other in ("", "abd"):
        with pytest.raises(CheckpointError, match=r"one\.safetensors belongs to another run"):
            tensors_from_file(path, other)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff", b"", b"{", b"1" * 5000])
def test_invalid_json_raises_value_error(content: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(content)


def test_tied_tensors_are_written_for_each_name(tmp_path: Path) -> None:
    shared = torch.arange(4.0)
    read = tensors_from_file(written(tmp_path, {"embedding": shared, "output": shared, "view": shared[:2]}))
    assert torch.equal(read["embedding"], shared)
    assert torch.equal(read["output"], shared)
    assert torch.equal(read["view"], shared[:2])
    read["output"].zero_()
    assert torch.equal(read["embedding"], shared)


CONTENT = tensors_to_bytes(TENSORS)


def test_every_flipped_bit_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for place in range(len(CONTENT)):
        for bit in {place % 8, place * 3 % 8}:
            path.write_bytes(CONTENT[:place] + bytes([CONTENT[place] ^ 1 << bit]) + CONTENT[place + 1 :])
            with pytest.raises(CheckpointError, match=r"x\.safetensors"):
                tensors_from_file(path)


def test_changed_dtype_name_or_shape_is_detected(tmp_path: Path) -> None:
    """The changed headers are valid, and the bytes that follow them are unchanged."""
    path = tmp_path / "x.safetensors"
    for old, new in ((b'"F32"', b'"I32"'), (b'"weight"', b'"height"'), (b"[2,3]", b"[3,2]"), (b'"BF16"', b'"F16" ')):
        assert CONTENT.count(old) == 1
        path.write_bytes(CONTENT.replace(old, new))
        with pytest.raises(CheckpointError, match="does not match its checksum"):
            tensors_from_file(path)


@pytest.mark.parametrize("length", [0, 4, 8, 100, len(CONTENT) - 1])
def test_truncated_file_is_detected(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(CONTENT[:length])
    with pytest.raises(CheckpointError):
        tensors_from_file(path)


def test_missing_and_foreign_files_have_different_messages(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(CheckpointError, match="is missing"):
        tensors_from_file(path)
    path.write_bytes(save({"a": torch.zeros(1)}))
    with pytest.raises(CheckpointError, match="not written by seqloom"):
        tensors_from_file(path)
    with pytest.raises(CheckpointError):
        tensors_from_file(tmp_path)
