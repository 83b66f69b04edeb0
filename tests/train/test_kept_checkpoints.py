"""The kept checkpoints do not depend on stops. Checkpoints can be read for averaging."""

import itertools
import json
import shutil

import pytest
import torch

from seqloom.core.files import temporary_path
from seqloom.train.checkpoints import CheckpointStore
from seqloom.train.events import Finished

pytestmark = pytest.mark.usefixtures("quick_disk")


def kept_steps(session):
    return {path.name for path in (session.path / "checkpoints").glob("step-*")}


# --- with and without a stop ------------------------------------------------------------------------------------------

OPTIONS = {"keep_checkpoints": 3, "evaluate_every": 4, "save_every": 2, "steps": 13}
STOPS = [(1,), (4,), (5,), (3, 5, 7), (9, 10, 11), (11, 12), tuple(range(1, 13))]


@pytest.mark.parametrize("stops", STOPS, ids=str)
def test_stopped_training_keeps_the_same_checkpoints(session, tiny_task, contents, same, stops):
    complete, parts = session("whole", **OPTIONS), session("parts", **OPTIONS)
    complete.train(tiny_task())
    for step in stops:
        parts.train(tiny_task(), until=step, resume=step != stops[0])
    assert isinstance(parts.train(tiny_task(), resume=True)[-1], Finished)
    assert kept_steps(parts) == kept_steps(complete) == {"step-10", "step-12", "step-13"}
    for name in kept_steps(complete):
        assert same(*(contents(run.path / "checkpoints" / name) for run in (parts, complete)))


def test_permanent_save_at_a_stop_displaces_a_checkpoint(session, tiny_task, monkeypatch):
    """Negative control: if the save at a stop were not temporary, it would displace a checkpoint."""
    monkeypatch.setattr(CheckpointStore, "is_temporary", lambda self, step: False)
    parts = session("parts", **OPTIONS)
    parts.train(tiny_task(), until=11)
    parts.train(tiny_task(), resume=True)
    assert kept_steps(parts) == {"step-11", "step-12", "step-13"}


def test_stopped_run_has_all_checkpoints(session, tiny_task):
    parts = session("parts", **OPTIONS)
    parts.train(tiny_task(), until=9)
    assert kept_steps(parts) == {"step-4", "step-6", "step-8", "step-9"}
    assert json.loads((parts.path / "checkpoints/step-9/manifest.json").read_text())["temporary"] is True
    assert "temporary" not in json.loads((parts.path / "checkpoints/step-8/manifest.json").read_text())
    assert [step for step, _ in CheckpointStore(parts.path).newest_weights(9)] == [9, 8, 6, 4]


def test_stop_at_a_saved_step_is_not_temporary(session, tiny_task):
    parts = session("parts", **OPTIONS)
    parts.train(tiny_task(), until=8)
    assert kept_steps(parts) == {"step-4", "step-6", "step-8"}
    assert "temporary" not in json.loads((parts.path / "checkpoints/step-8/manifest.json").read_text())


# --- reading weights --------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    (tmp_path / "run").mkdir()
    checkpoint_store = CheckpointStore(tmp_path / "run", keep=5)
    for step in (2, 9, 10, 100):
        parts = {"model": {"w": torch.full((2,), float(step))}, "optimizer": {"m": torch.ones(3)}, "tally": {"x": 1}}
        checkpoint_store.save(step, parts)
    return checkpoint_store


def weights(store, max_count):
    return [(step, tensors["w"].tolist()) for step, tensors in store.newest_weights(max_count)]


def test_newest_weights_come_first(store):
    assert weights(store, 3) == [(100, [100, 100]), (10, [10, 10]), (9, [9, 9])]
    assert [step for step, _ in weights(store, 99)] == [100, 10, 9, 2]
    assert store.damaged == []


def test_run_without_checkpoints_has_no_weights(tmp_path):
    assert list(CheckpointStore(tmp_path).newest_weights(3)) == []


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json"])
def test_damaged_weights_are_reported_and_the_previous_used(store, name):
    path = store.folder / "step-10" / name
    path.write_bytes(path.read_bytes()[:-3])
    assert [step for step, _ in weights(store, 3)] == [100, 9, 2]
    ((checkpoint, cause),) = store.damaged
    assert checkpoint == "step-10" and name in cause


def test_optimizer_state_is_not_read(store):
    (store.folder / "step-10" / "optimizer.safetensors").write_bytes(b"")
    assert [step for step, _ in weights(store, 3)] == [100, 10, 9]
    assert store.damaged == []


def test_checkpoints_after_latest_json_are_ignored(store):
    (store.folder / "latest.json").write_text('{"step": 10}')
    assert [step for step, _ in weights(store, 2)] == [10, 9]


def test_read_only_run_is_read_without_deleting_leftovers(store, monkeypatch):
    leftover = temporary_path(store.folder / "step-7")
    leftover.mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert len(weights(store, 2)) == 2
    assert leftover.exists()
    monkeypatch.undo()
    assert len(weights(store, 2)) == 2
    assert not leftover.exists()


def test_checkpoint_set_aside_by_a_crash_is_restored(store):
    shutil.move(store.folder / "step-100", store.folder / ".step-100.aside")
    assert [step for step, _ in weights(store, 2)] == [100, 10]


def test_only_requested_checkpoints_are_read(store, monkeypatch):
    read, plain = [], CheckpointStore._read

    def reading(self, step, only):
        read.append(step)
        return plain(self, step, only)

    monkeypatch.setattr(CheckpointStore, "_read", reading)
    assert len(list(itertools.islice(store.newest_weights(3), 2))) == 2
    assert read == [100, 10]
