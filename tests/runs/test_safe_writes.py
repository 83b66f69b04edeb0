"""Hostile or damaged run directories: no file outside the run is changed, and no command blocks."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seqloom import training
from seqloom.core.errors import CheckpointError, SeqloomError
from seqloom.core.files import temporary_path
from seqloom.runs import record as record_module
from seqloom.runs.run import Run
from seqloom.train.events import Damaged, Finished
from seqloom.training import begin

TENSORBOARD = record_module.open_tensorboard  # the original function, which a fixture replaces

FILES = [
    "recipe.yaml",
    "data.json",
    "tokenizer.json",
    "sizes.json",
    "model.safetensors",
    "frozen.safetensors",
    "log.jsonl",
    "card.md",
    "average.json",
    "calibration.json",
    ".lock",
    "metrics/dev.json",
]
FOLDERS = ["checkpoints", "metrics", "tensorboard"]
OLD_TEMPORARY_NAMES = [
    ".log.jsonl.tmp",
    ".card.md.tmp",
    ".recipe.yaml.tmp",
    ".model.safetensors.tmp",
    "metrics/.dev.json.tmp",
    "checkpoints/.latest.json.tmp",
    "checkpoints/.step-14.tmp",
]


@pytest.fixture(scope="module")
def template(recipe: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run of 12 steps that each test copies."""
    path = tmp_path_factory.mktemp("template") / "run"
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(record_module, "open_tensorboard", lambda run, step: None)
        list(begin(recipe(), path).events())
    return path


@pytest.fixture
def run(template: Path, tmp_path: Path) -> Path:
    path = tmp_path / "run"
    shutil.copytree(template, path)
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder outside the run, which no command may change."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_text("precious")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def replace_by(path: Path, make: str, outside: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if make == "link":
        path.symlink_to(outside / "precious")
    elif make == "dangling link":
        path.symlink_to(outside / "new")
    elif make == "FIFO":
        os.mkfifo(path)
    else:
        path.mkdir()


def resume(run: Path, *overrides: str) -> list[object]:
    return list(training.resume(run, overrides or ["train.steps=14"]).events())


@pytest.mark.parametrize("make", ["link", "dangling link", "FIFO", "directory"])
@pytest.mark.parametrize("name", FILES)
def test_irregular_run_file_is_rejected_without_blocking(run: Path, outside: Path, name: str, make: str) -> None:
    replace_by(run / name, make, outside)
    kind = {"dangling link": "symbolic link", "link": "symbolic link"}.get(make, make)
    with pytest.raises(CheckpointError, match=rf"{name} must be a regular file; it is a {kind}\.") as caught:
        resume(run)
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)
    assert contents(outside) == {"precious": "precious"}


@pytest.mark.parametrize("name", FOLDERS)
def test_linked_folder_is_rejected_without_blocking(run: Path, outside: Path, name: str) -> None:
    shutil.rmtree(run / name, ignore_errors=True)
    (run / name).symlink_to(outside)
    with pytest.raises(CheckpointError, match=rf"{name} must be a directory; it is a symbolic link\."):
        resume(run)
    assert contents(outside) == {"precious": "precious"}


@pytest.mark.parametrize("name", OLD_TEMPORARY_NAMES)
def test_links_with_guessed_temporary_names_are_not_followed(run: Path, outside: Path, name: str) -> None:
    (run / name).symlink_to(outside / "precious")
    assert isinstance(resume(run)[-1], Finished)
    assert contents(outside) == {"precious": "precious"}


@pytest.mark.parametrize("name", ["log.jsonl", "card.md", "metrics", "tensorboard", "checkpoints"])
def test_link_created_during_training_is_not_followed(
    run: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    monkeypatch.setattr(record_module, "open_tensorboard", TENSORBOARD)
    events = training.resume(run, ["train.steps=20"]).events()
    next(events)
    shutil.rmtree(run / name) if name in FOLDERS else (run / name).unlink()
    (run / name).symlink_to(outside if name in FOLDERS else outside / "precious")
    with contextlib.suppress(SeqloomError):
        list(events)
    assert contents(outside) == {"precious": "precious"}


@pytest.mark.parametrize("make", ["link", "FIFO", "directory"])
@pytest.mark.parametrize("name", ["manifest.json", "state.json", "model.safetensors", ""])
def test_irregular_checkpoint_file_is_treated_as_damaged(run: Path, outside: Path, name: str, make: str) -> None:
    replace_by(run / "checkpoints" / "step-12" / name, make, outside)
    events = resume(run)
    assert [event.checkpoint for event in events if isinstance(event, Damaged)] == ["step-12"]
    assert isinstance(events[-1], Finished)
    assert contents(outside) == {"precious": "precious"}


@pytest.mark.parametrize("make", ["link", "FIFO"])
def test_irregular_checkpoint_pointer_is_treated_as_damaged(run: Path, outside: Path, make: str) -> None:
    replace_by(run / "checkpoints" / "latest.json", make, outside)
    events = resume(run)
    assert [event.checkpoint for event in events if isinstance(event, Damaged)] == ["latest.json"]
    assert contents(outside) == {"precious": "precious"}


def test_run_directory_may_be_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "one").symlink_to(run)
    (tmp_path / "linked").symlink_to(tmp_path / "runs")
    assert isinstance(resume(tmp_path / "linked" / "one")[-1], Finished)
    assert (tmp_path / "runs" / "one").is_symlink()


def test_resuming_removes_leftovers_of_a_killed_process(run: Path) -> None:
    leftovers = [temporary_path(run / name) for name in ("card.md", "metrics/dev.json", "checkpoints/latest.json")]
    for leftover in leftovers:
        leftover.write_text("half")
        os.utime(leftover, (0, 0))
    folder = temporary_path(run / "checkpoints" / "step-14")
    folder.mkdir()
    resume(run)
    assert not [path for path in [*leftovers, folder] if path.exists()]


def test_temporary_file_of_running_evaluation_is_kept(run: Path) -> None:
    """`evaluate` holds no lock."""
    temporary = temporary_path(run / "metrics" / "test.json")
    temporary.write_text("half")
    resume(run)
    assert temporary.exists()


BAD_LINES = [
    b"\xff",
    b'{"event": "progress", "step": 3, "x": "\xc3"}',
    b"[" * 100_000,
    b'{"event": 1, "step": 2}',
    b'{"event": "progress", "step": "x"}',
    b'{"event": "progress", "step": NaN}',
    b"\x00",
]


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: repr(line[:40]))
def test_log_line_without_event_is_skipped(run: Path, line: bytes) -> None:
    before = list(Run.open(run).log())
    log = run / "log.jsonl"
    first, _, rest = log.read_bytes().partition(b"\n")
    log.write_bytes(first + b"\n" + line + b"\n" + rest)
    assert list(Run.open(run).log()) == before
    assert isinstance(resume(run)[-1], Finished)
    assert line not in log.read_bytes().split(b"\n")


def test_removed_tensorboard_folder_does_not_stop_training(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    monkeypatch.setattr(record_module, "open_tensorboard", TENSORBOARD)
    events = training.resume(run, ["train.steps=20"]).events()
    next(events)
    shutil.rmtree(run / "tensorboard")
    assert isinstance(list(events)[-1], Finished)
