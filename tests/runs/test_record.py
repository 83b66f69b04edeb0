"""Records of training in a run: log, card and metrics do not depend on interruptions."""

import io
import json
from typing import Any

import pytest

from seqloom.core import files
from seqloom.core.errors import ResourceError
from seqloom.core.metrics import format_metric
from seqloom.predict.card import title_of
from seqloom.runs import record as record_module
from seqloom.runs.run import Run
from seqloom.train.events import Evaluated, Finished, Progress, Saved, Started, event_to_json
from seqloom.train.stop import Stop
from seqloom.training import begin, resume

TENSORBOARD = record_module.open_tensorboard  # the original function, which a fixture replaces
CLOCK = ("time", "tokens_per_second", "seconds_left", "seconds", "step_seconds")


def close(events: Any) -> None:
    """Abort training in the same way as a crash."""
    events.close()


def read_log(path, omit=("started",)):
    """Return the log without times."""
    entries = [entry for entry in Run.open(path).log() if entry["event"] not in omit]
    return [{key: value for key, value in entry.items() if key not in CLOCK} for entry in entries]


def test_log_contains_every_event(recipe, tmp_path):
    events = list(begin(recipe(), tmp_path / "one").events())
    entries = list(Run.open(tmp_path / "one").log())
    assert all(entry.pop("time") for entry in entries)
    assert entries == json.loads(json.dumps([event_to_json(event) for event in events]))
    assert [type(event) for event in events].count(Progress) == 4


def test_event_is_logged_before_it_is_yielded(recipe, tmp_path):
    """The log contains an event even if its consumer crashes."""
    for count, _event in enumerate(begin(recipe(), tmp_path / "one").events(), start=1):
        assert len((tmp_path / "one" / "log.jsonl").read_text().splitlines()) == count


@pytest.mark.parametrize("task", ["language-model", "ngram"])
def test_log_of_crashed_and_resumed_run_matches_uninterrupted_log(recipe, tmp_path, task):
    whole = list(begin(recipe(task=task), tmp_path / "whole").events())
    expected = read_log(tmp_path / "whole")
    for count in range(1, len(whole)):
        path = tmp_path / f"crashed-{count}"
        events = begin(recipe(task=task), path).events()
        for _ in range(count):
            next(events)
        close(events)
        with open(path / "log.jsonl", "a") as log:
            log.write('{"event": "progress", "step": 7, "val')  # the line is truncated
        list(resume(path).events())
        assert read_log(path) == expected, f"crashed after event {count}, {whole[count - 1]}"
        for line in (path / "log.jsonl").read_text().splitlines():
            json.loads(line)


def test_curve_of_stopped_and_resumed_run_matches_uninterrupted_curve(recipe, tmp_path):
    list(begin(recipe(), tmp_path / "whole").events())
    stop = Stop()
    for event in begin(recipe(), tmp_path / "parts").events(stop):
        if isinstance(event, Progress) and event.step == 6:
            stop.request()
    list(resume(tmp_path / "parts").events())
    parts = read_log(tmp_path / "parts", omit=())
    assert [entry["event"] for entry in parts].count("stopped") == 1  # the stop is in the log
    assert [entry["step"] for entry in parts if entry["event"] == "started"] == [0, 6]
    session = ("started", "stopped", "saved")
    assert read_log(tmp_path / "parts", session) == read_log(tmp_path / "whole", session)


def test_repeated_evaluation_is_logged_once(recipe, tmp_path):
    """Training stops before the evaluation of step 4, resumes, and crashes before that step is saved."""
    list(begin(recipe(), tmp_path / "whole").events())
    stop = Stop()
    training = begin(recipe("train.log_every=1"), tmp_path / "parts")
    for event in training.events(stop):
        if isinstance(event, Progress) and event.step == 4:
            stop.request()
    events = resume(tmp_path / "parts").events()
    assert [type(next(events)) for _ in range(2)] == [Started, Evaluated]
    close(events)
    list(resume(tmp_path / "parts").events())
    for kind in ("evaluated", "saved"):
        whole, parts = ([e for e in read_log(tmp_path / name) if e["event"] == kind] for name in ("whole", "parts"))
        assert parts == whole


def test_card_and_metrics_are_written(recipe, tmp_path):
    events = list(begin(recipe(), tmp_path / "one").events())
    run = Run.open(tmp_path / "one")
    best = min((event for event in events if isinstance(event, Evaluated)), key=lambda event: event.metrics["loss"])
    assert run.metrics("dev") == {"step": best.step, **best.metrics}
    card = (run.path / "card.md").read_text()
    for words in ("recurrent-lm", "Seed 3", "toys, version 1 seed 0", "none needed", "PyTorch", f"at step {best.step}"):
        assert words in card
    for name, value in best.metrics.items():
        assert f"| {title_of(name)} | {format_metric(name, value)} |" in card
    for split in ("train", "dev", "test"):
        assert run.data["sha256"][split][:16] in card


def test_full_disk_while_logging_is_reported(recipe, tmp_path, monkeypatch):
    """Closing the log also fails, but the error is still a single line."""

    class Full(io.BytesIO):
        def flush(self):
            raise OSError(28, "No space left on device")

        def close(self):
            raise OSError(28, "No space left on device")

    def open_full(file, mode):
        return Full() if mode == "ab" else open(file, mode)

    monkeypatch.setattr(files, "open", open_full, raising=False)
    with pytest.raises(ResourceError, match=r"disk is full.*log\.jsonl") as caught:
        list(begin(recipe(), tmp_path / "one").events())
    assert caught.value.exit_code == 5
    monkeypatch.undo()
    assert not (tmp_path / "one").exists()  # the run failed before its first step
    assert isinstance(list(begin(recipe(), tmp_path / "one").events())[-1], Finished)


def test_training_resumes_after_full_disk(recipe, tmp_path, monkeypatch):
    list(begin(recipe(), tmp_path / "whole").events())
    seen = []
    with pytest.raises(ResourceError, match="disk is full"):
        for event in begin(recipe(), tmp_path / "parts").events():
            seen.append(event)
            if isinstance(event, Saved) and event.step == 4:
                monkeypatch.setattr("seqloom.core.files.os.replace", raise_disk_full)
    monkeypatch.undo()
    assert isinstance(list(resume(tmp_path / "parts").events())[-1], Finished)
    assert read_log(tmp_path / "parts") == read_log(tmp_path / "whole")


def raise_disk_full(*_):
    raise OSError(28, "No space left on device")


def test_tensorboard_receives_curves(recipe, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    monkeypatch.setattr(record_module, "open_tensorboard", TENSORBOARD)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = list(begin(recipe(), tmp_path / "one").events())
    board = EventAccumulator(str(tmp_path / "one" / "tensorboard"))
    board.Reload()
    evaluated = [(event.step, event.metrics["loss"]) for event in events if isinstance(event, Evaluated)]
    logged = [(scalar.step, scalar.value) for scalar in board.Scalars("dev/loss")]
    assert [step for step, _ in logged] == [step for step, _ in evaluated]
    assert [value for _, value in logged] == pytest.approx([value for _, value in evaluated], rel=1e-6)
    assert [scalar.step for scalar in board.Scalars("train/loss")] == [3, 6, 9, 12]
