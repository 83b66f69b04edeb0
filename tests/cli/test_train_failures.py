"""System failures during training: full and failing disks, read-only mounts, early and late signals."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seqloom.core.errors import ResourceError
from seqloom.train import events as e

TOYS = ["toys-copy", "data.train=100", "data.dev=10", "data.test=10", "data.max_length=4", "model.hidden=8"]
TOYS += ["batch.size=4", "batch.length=16", "train.steps=9", "train.log_every=1", "train.evaluate_every=3"]
TOYS += ["train.schedule=constant"]


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ESTALE, errno.ENOSPC])
def test_training_continues_if_the_log_cannot_be_written(
    seqloom: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_event: Any, number: int
) -> None:
    run = tmp_path / "run"

    def break_disk() -> None:
        (run / "log.jsonl").unlink()
        monkeypatch.setattr(os, "open", failing(number))

    on_event(e.Saved, break_disk)
    shown = seqloom("train", *TOYS, "--out", run)
    monkeypatch.undo()
    assert shown.code == 5
    assert shown.err.count("\n") == 1
    assert "intact" in shown.err
    assert (run / "checkpoints" / "step-3" / "manifest.json").is_file()
    assert seqloom("train", "--resume", run).code == 0


def test_run_that_fails_before_its_first_step_is_deleted(
    seqloom: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.nn.Module.to", failing(errno.EIO))
    shown = seqloom("train", *TOYS, "--out", tmp_path / "run")
    assert shown.code == 5
    assert shown.err.startswith("seqloom: the system reported: Input/output error")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("overrides", [[], ["train.steps=30"]])
def test_read_only_run_cannot_be_resumed(
    seqloom: Any, copy: Any, monkeypatch: pytest.MonkeyPatch, overrides: list[str]
) -> None:
    run, plain = copy("toys"), os.open

    def open_read_only(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and str(path).startswith(str(run)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return plain(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", open_read_only)
    seqloom("train", "--resume", run, *overrides).fails_with(5, "Read-only file system", lines=1)


def test_system_errors_are_resource_errors() -> None:
    from seqloom.cli.app import explain

    assert explain(OSError(errno.EMFILE, "Too many open files", "x"))[0] == ResourceError.exit_code
    assert explain(OSError(errno.EBADF, "Bad file descriptor"))[0] == 1, "a bug"


def run_python(code: str, *words: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_after_the_end_does_not_change_the_exit_code(number: int) -> None:
    code = (
        "import atexit, os, sys; from seqloom.cli.app import main; "
        f"atexit.register(lambda: os.kill(os.getpid(), {int(number)})); sys.exit(main())"
    )
    process = run_python(code, "--version")
    _, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (0, "")


def test_sigterm_during_import_ends_the_process() -> None:
    code = "import sys; print('up', flush=True); from seqloom.cli.app import main; sys.exit(main())"
    process = run_python(code, "train", *TOYS, "--out", os.devnull)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM  # exit code 143 in a shell
    assert complaint == ""
