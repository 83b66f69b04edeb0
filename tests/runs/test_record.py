"""What a training writes into its run: the log above all, the same whether or not it was interrupted."""

import io
import json
from typing import Any

import pytest

from seqloom.core import files
from seqloom.core.errors import ResourceError
from seqloom.runs import record as record_module
from seqloom.runs.run import Run
from seqloom.train.events import Evaluated, Finished, Progress, Saved, Started, event_to_json
from seqloom.train.stop import Stop
from seqloom.training import begin, resume

TENSORBOARD = record_module.open_tensorboard  # as it is before tests begin, which do without
CLOCK = ("time", "tokens_per_second", "seconds_left", "seconds", "step_seconds")


def close(events: Any) -> None:
    """Drop a training without a word, as a crash would."""
    events.close()


def log_of(path, leave_out=("started",)):
    """The log without what depends on the clock."""
    entries = [entry for entry in Run.open(path).log() if entry["event"] not in leave_out]
    return [{key: value for key, value in entry.items() if key not in CLOCK} for entry in entries]


def test_every_event_is_in_the_log_as_it_was_yielded(recipe, tmp_path):
    events = list(begin(recipe(), tmp_path / "one").events())
    entries = list(Run.open(tmp_path / "one").log())
    assert all(entry.pop("time") for entry in entries)
    assert entries == json.loads(json.dumps([event_to_json(event) for event in events]))
    assert [type(event) for event in events].count(Progress) == 4


def test_an_event_is_on_disk_before_it_is_passed_on(recipe, tmp_path):
    """A consumer that dies of an event has it in its log."""
    for count, _event in enumerate(begin(recipe(), tmp_path / "one").events(), start=1):
        assert len((tmp_path / "one" / "log.jsonl").read_text().splitlines()) == count


@pytest.mark.parametrize("task", ["language-model", "ngram"])
def test_broken_off_after_any_event_and_resumed_the_log_is_that_of_an_unbroken_run(recipe, tmp_path, task):
    whole = list(begin(recipe(task=task), tmp_path / "whole").events())
    expected = log_of(tmp_path / "whole")
    for count in range(1, len(whole)):
        path = tmp_path / f"broken-{count}"
        events = begin(recipe(task=task), path).events()
        for _ in range(count):
            next(events)
        close(events)
        with open(path / "log.jsonl", "a") as log:
            log.write('{"event": "progress", "step": 7, "val')  # a line the crash tore
        list(resume(path).events())
        assert log_of(path) == expected, f"broken off after event {count}, {whole[count - 1]}"
        for line in (path / "log.jsonl").read_text().splitlines():
            json.loads(line)


def test_stopped_and_resumed_the_curve_is_that_of_an_unbroken_run(recipe, tmp_path):
    list(begin(recipe(), tmp_path / "whole").events())
    stop = Stop()
    for event in begin(recipe(), tmp_path / "parts").events(stop):
        if isinstance(event, Progress) and event.step == 6:
            stop.request()
    list(resume(tmp_path / "parts").events())
    parts = log_of(tmp_path / "parts", leave_out=())
    assert [entry["event"] for entry in parts].count("stopped") == 1  # that it was stopped is part of the story
    assert [entry["step"] for entry in parts if entry["event"] == "started"] == [0, 6]
    session = ("started", "stopped", "saved")
    assert log_of(tmp_path / "parts", session) == log_of(tmp_path / "whole", session)


def test_an_evaluation_made_twice_is_in_the_log_once(recipe, tmp_path):
    """Stopped before the evaluation of step 4, which is made after the resume; then broken off before it is saved."""
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
        whole, parts = ([e for e in log_of(tmp_path / name) if e["event"] == kind] for name in ("whole", "parts"))
        assert parts == whole


def test_the_card_and_the_metrics(recipe, tmp_path):
    events = list(begin(recipe(), tmp_path / "one").events())
    run = Run.open(tmp_path / "one")
    best = min((event for event in events if isinstance(event, Evaluated)), key=lambda event: event.metrics["loss"])
    assert run.metrics("dev") == {"step": best.step, **best.metrics}
    card = (run.path / "card.md").read_text()
    for words in ("recurrent-lm", "seed 3", "toys, version 1 seed 0", "none needed", "PyTorch", f"at step {best.step}"):
        assert words in card
    for name, value in best.metrics.items():
        assert f"| {name} | {value:.4f} |" in card
    for split in ("train", "dev", "test"):
        assert run.data["sha256"][split][:16] in card


def test_the_log_on_a_full_disk(recipe, tmp_path, monkeypatch):
    """Closing such a log fails a second time; one clear line must come out of it all the same."""

    class Full(io.BytesIO):
        def flush(self):
            raise OSError(28, "No space left on device")

        def close(self):
            raise OSError(28, "No space left on device")

    def opened(file, mode):
        return Full() if mode == "ab" else open(file, mode)

    monkeypatch.setattr(files, "open", opened, raising=False)
    with pytest.raises(ResourceError, match=r"disk is full.*log\.jsonl") as caught:
        list(begin(recipe(), tmp_path / "one").events())
    assert caught.value.exit_code == 5
    monkeypatch.undo()
    assert isinstance(list(resume(tmp_path / "one").events())[-1], Finished)


def test_a_full_disk_in_the_middle_is_resumable(recipe, tmp_path, monkeypatch):
    list(begin(recipe(), tmp_path / "whole").events())
    seen = []
    with pytest.raises(ResourceError, match="disk is full"):
        for event in begin(recipe(), tmp_path / "parts").events():
            seen.append(event)
            if isinstance(event, Saved) and event.step == 4:
                monkeypatch.setattr("seqloom.core.files.os.replace", _full)
    monkeypatch.undo()
    assert isinstance(list(resume(tmp_path / "parts").events())[-1], Finished)
    assert log_of(tmp_path / "parts") == log_of(tmp_path / "whole")


def _full(*_):
    raise OSError(28, "No space left on device")


def test_tensorboard_gets_the_curves(recipe, tmp_path, monkeypatch):
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
    found = [(scalar.step, scalar.value) for scalar in board.Scalars("dev/loss")]
    assert [step for step, _ in found] == [step for step, _ in evaluated]
    assert [value for _, value in found] == pytest.approx([value for _, value in evaluated], rel=1e-6)
    assert [scalar.step for scalar in board.Scalars("train/loss")] == [3, 6, 9, 12]
