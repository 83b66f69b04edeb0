"""The path of a new run is reserved for one process, and failed runs are deleted."""

import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.files import temporary_path
from seqloom.runs.layout import claim
from seqloom.runs.run import Run
from seqloom.training import begin


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_second_training_with_same_path_is_rejected(recipe: Any, tmp_path: Path) -> None:
    with claim(tmp_path / "runs" / "one"):
        before = names(tmp_path / "runs")
        for attempt in (
            lambda: begin(recipe(), tmp_path / "runs" / "one"),
            lambda: Run.create(tmp_path / "runs" / "one", {}, {}),
        ):
            with pytest.raises(UsageError, match="is being created by another process") as caught:
                attempt()
            assert caught.value.exit_code == 2
        assert names(tmp_path / "runs") == before
        Run.create(tmp_path / "runs" / "two", {}, {})
    begin(recipe(), tmp_path / "runs" / "one")
    assert names(tmp_path / "runs") == ["one", "two"]


def test_only_one_of_many_processes_creates_the_run(tmp_path: Path) -> None:
    start = threading.Barrier(8)
    outcomes: list[int | str] = []

    def create(number: int) -> None:
        start.wait()
        try:
            Run.create(tmp_path / "one", {"seed": number}, {"data.json": {"number": number}})
            outcomes.append(number)
        except UsageError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (created,) = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert len(outcomes) == 8
    assert Run.open(tmp_path / "one").recipe["seed"] == created
    assert names(tmp_path) == ["one"]


def die_while_creating(path: Path) -> None:
    with claim(path):
        half = temporary_path(path)
        half.mkdir()
        (half / "recipe.yaml").write_text("half")
        os.kill(os.getpid(), 9)


def test_leftovers_of_killed_process_do_not_block_path(recipe: Any, tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=die_while_creating, args=(tmp_path / "one",))
    process.start()
    process.join(60)
    assert process.exitcode == -9
    assert len(names(tmp_path)) == 2, "the lock file and the half-made folder"
    begin(recipe(), tmp_path / "one")
    assert names(tmp_path) == ["one"]


def test_failed_preparation_leaves_no_files(recipe: Any, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), claim(tmp_path / "deep" / "er" / "one"):
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_dangling_link_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="exists and is not a run"), claim(tmp_path / "one"):
        pass


@pytest.mark.parametrize("kind", ["link", "FIFO"])
def test_irregular_lock_file_is_rejected(tmp_path: Path, kind: str) -> None:
    (tmp_path / "precious").write_text("precious")
    lock = tmp_path / ".one.lock"
    lock.symlink_to(tmp_path / "precious") if kind == "link" else os.mkfifo(lock)
    with pytest.raises(CheckpointError, match=r"\.one\.lock must be a regular file"):
        Run.create(tmp_path / "one", {}, {})
    assert (tmp_path / "precious").read_text() == "precious"


# --- failed runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log", [None, b"", b'{"event": "started", "step": 0}\n', b"\xff\n"])
def test_run_that_failed_before_first_step_is_deleted(tmp_path: Path, log: bytes | None) -> None:
    run = Run.create(tmp_path / "one", {}, {})
    (run.path / "checkpoints").mkdir()
    if log is not None:
        (run.path / "log.jsonl").write_bytes(log)
    run.discard_unstarted()
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["checkpoints/step-3", "checkpoints/.step-3.aside", "model.safetensors"])
def test_run_with_checkpoints_or_weights_is_kept(tmp_path: Path, name: str) -> None:
    run = Run.create(tmp_path / "one", {}, {})
    (run.path / name).mkdir(parents=True)
    run.discard_unstarted()
    assert (run.path / name).exists()


def test_run_with_steps_is_kept(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "one", {}, {})
    (run.path / "log.jsonl").write_text('{"event": "progress", "step": 1}\n')
    run.discard_unstarted()
    assert run.path.exists()


def test_run_of_another_process_is_not_deleted(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "one", {}, {})
    with run.locked(), pytest.raises(UsageError, match="being trained by another process"):
        run.discard_unstarted()
    assert run.path.exists()
