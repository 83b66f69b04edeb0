"""Experiment trackers: names, resuming, failures, and the values that MLflow and Weights & Biases store."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seqloom.core.errors import CheckpointError, ResourceError, UsageError
from seqloom.runs import trackers
from seqloom.runs.run import Run
from seqloom.runs.trackers import check_trackers, flatten, open_trackers, scalars
from seqloom.train.events import Evaluated, Event, Finished, Progress, Saved, Stopped
from seqloom.train.stop import Stop
from seqloom.training import Training, begin, resume


class Memory:
    """A tracker that keeps events in memory."""

    opened: list["Memory"]

    def __init__(self, run: Run, identifier: str):
        self.given, self.identifier = identifier, identifier or "new"
        self.events: list[Event] = []
        self.is_closed = False
        self.opened.append(self)

    def add(self, event: Event) -> None:
        if self.given == "" and event.step == 8:
            raise ConnectionError("the server is gone.\nsecond line")
        self.events.append(event)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> list[Memory]:
    """Register a tracker with the name json, a module that is always installed. Return the opened trackers."""
    Memory.opened = []
    monkeypatch.setitem(trackers.TRACKERS, "json", ("Memory", Memory))
    return Memory.opened


def run_until(training: Training, step: int) -> None:
    """Train until a checkpoint at this step, then stop."""
    stop = Stop()
    for event in training.events(stop):
        if isinstance(event, Saved) and event.step == step:
            stop.request()


def kill_at(training: Training, step: int) -> None:
    """Train until a step, and then lose the process before a checkpoint of this step is saved."""
    events = training.events()
    next(event for event in events if event.step == step and isinstance(event, Progress))
    events.close()  # type: ignore[attr-defined]


def expected(events: list[Event], name: str) -> list[tuple[int, float]]:
    return [(event.step, scalars(event)[name]) for event in events if name in scalars(event)]


# --- choice and failures ----------------------------------------------------------------------------------------------


def test_numbers_in_events_are_logged_by_name() -> None:
    progress = Progress(3, 9, {"loss": 1.5}, tokens_per_second=7.0)
    assert scalars(progress) == {"train/loss": 1.5, "train/tokens_per_second": 7.0}
    assert scalars(Evaluated(3, "dev", {"accuracy": 0.5}, True)) == {"dev/accuracy": 0.5}
    assert scalars(Finished(9, "done", 3, {"accuracy": 0.5}, 1, 1.0, 1.0)) == {"best/accuracy": 0.5}
    assert scalars(Stopped(3)) == {}
    nested = {"seed": 1, "train": {"lr": 0.1, "betas": [0.9, 0.99], "schedule": "cosine", "steps": None}}
    assert dict(flatten(nested)) == {
        "seed": "1",
        "train.lr": "0.1",
        "train.betas": "[0.9, 0.99]",
        "train.schedule": "cosine",
        "train.steps": "null",
    }


def test_unknown_and_missing_trackers_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"There is no tracker 'mlfow': did you mean mlflow\?"):
        check_trackers(["mlfow"])
    (tmp_path / "wandb").mkdir()  # this folder contains files of wandb and is not the package
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(ResourceError, match=r"wandb needs Weights & Biases: pip install 'seqloom\[wandb\]'"):
        check_trackers(["wandb"])


def test_failing_tracker_does_not_stop_training(recipe: Any, tmp_path: Path, memory: Any, caplog: Any) -> None:
    training = begin(recipe(), tmp_path / "one")
    events = list(Training(training.run, training.task, training.recipe, track=["json"]).events())
    assert isinstance(events[-1], Finished)
    assert max(event.step for event in memory[0].events) < 8 and not memory[0].is_closed
    assert caplog.messages == ["warning: json failed, so training continues without it: the server is gone"]


def test_resumed_run_continues_its_trackers(recipe: Any, tmp_path: Path, memory: Any) -> None:
    training = begin(recipe(), tmp_path / "one")
    run_until(Training(training.run, training.task, training.recipe, track=["json"]), 4)
    assert json.loads((tmp_path / "one" / "trackers.json").read_text()) == {"json": "new"}
    list(resume(tmp_path / "one").events())  # the tracker is not named again
    first, second = memory
    assert (first.given, second.given) == ("", "new") and first.is_closed and second.is_closed
    assert [event.step for event in second.events if isinstance(event, Evaluated)] == [8, 12]
    list(begin(recipe(), tmp_path / "other").events())
    assert len(memory) == 2 and not (tmp_path / "other" / "trackers.json").exists()


@pytest.mark.parametrize("content", ["{", "[1]", '{"ftp": "x"}', '{"mlflow": "../x"}', '{"mlflow": 3}'])
def test_damaged_identifiers_are_reported(recipe: Any, tmp_path: Path, content: str) -> None:
    run = begin(recipe(), tmp_path / "one").run
    (run.path / "trackers.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"trackers.json is damaged. Remove it"), open_trackers(run, ()):
        pass


def test_tracker_that_cannot_be_opened_is_an_error(recipe: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def fail(run: Run, identifier: str) -> Any:
        raise OSError("no such server")

    monkeypatch.setitem(trackers.TRACKERS, "json", ("Memory", fail))
    training = begin(recipe(), tmp_path / "one")
    with pytest.raises(ResourceError, match=r"Memory cannot be used: no such server. Train without --track json."):
        list(Training(training.run, training.task, training.recipe, track=["json"]).events())


# --- MLflow and Weights & Biases --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_mlflow_stores_recipe_and_curves_once(recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    pytest.importorskip("alembic", reason="the extra mlflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    whole = list(begin(recipe(), tmp_path / "whole").events())
    training = begin(recipe(), tmp_path / "parts")
    run_until(Training(training.run, training.task, training.recipe, track=["mlflow"]), 4)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (experiment,) = [entry for entry in client.search_experiments() if entry.name == "seqloom"]
    (stored,) = client.search_runs([experiment.experiment_id])
    assert stored.info.status == "KILLED" and stored.info.run_name == "parts"
    assert stored.data.params["train.lr"] == "0.02" and stored.data.params["model.cell"] == "gru"
    assert len(stored.data.params) == len(dict(flatten(training.run.recipe)))
    kill_at(resume(tmp_path / "parts"), 6)  # step 6 was logged, but training repeats it
    list(resume(tmp_path / "parts").events())
    (stored,) = client.search_runs([experiment.experiment_id])
    assert stored.info.status == "FINISHED"
    for name in ("train/loss", "dev/loss", "best/loss"):
        history = [(metric.step, metric.value) for metric in client.get_metric_history(stored.info.run_id, name)]
        assert history == expected(whole, name)


def test_wandb_stores_recipe_and_curves_offline(recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    whole = list(begin(recipe(), tmp_path / "whole").events())
    training = begin(recipe(), tmp_path / "parts")
    run_until(Training(training.run, training.task, training.recipe, track=["wandb"]), 4)
    list(resume(tmp_path / "parts").events())
    identifier = json.loads((tmp_path / "parts" / "trackers.json").read_text())["wandb"]
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert [file.name for file in files] == [f"run-{identifier}.wandb"] * 2
    records = [record for file in files for record in wandb_records(file.read_bytes())]
    configs = {update.key: json.loads(update.value_json) for r in records for update in r.run.config.update}
    assert configs["train"]["lr"] == 0.02 and configs["model"]["cell"] == "gru"
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    for name in ("train/loss", "dev/loss", "best/loss"):
        assert [(row["_step"], row[name]) for row in rows if name in row] == expected(whole, name)


def wandb_records(content: bytes) -> Iterator[Any]:
    """Yield the records of a file of Weights & Biases, which has a header of 7 bytes and a log in LevelDB format."""
    from wandb.proto.wandb_internal_pb2 import Record

    position = 7
    assert len(content) < 32768  # one block, so no record is divided
    while position + 7 <= len(content):
        length = int.from_bytes(content[position + 4 : position + 6], "little")
        yield Record.FromString(content[position + 7 : position + 7 + length])
        position += 7 + length
