"""Consumers of training events that write into the run: the log, the metrics and trackers."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import chain

from seqloom.core import Json
from seqloom.core.files import append_to_file, write_atomic
from seqloom.runs.run import Run
from seqloom.runs.trackers import EventWriter, open_trackers
from seqloom.train.events import Evaluated, Event, Finished, Saved, event_to_json


def record(events: Iterator[Event], run: Run, track: Sequence[str] = ()) -> Iterator[Event]:
    """Record every event and yield it. The first event must be `Started`. Its later steps are removed from the log.

    `track` names further trackers; see `seqloom.runs.trackers`.
    """
    with ExitStack() as stack:
        stack.enter_context(run.locked())
        run.remove_leftovers()
        started = next(events)
        rewrite_log(run, lambda entry: 0 < started.step >= entry["step"])  # later steps will be repeated
        board = open_tensorboard(run, started.step)
        if board is not None:
            stack.callback(board.close)
        send = stack.enter_context(open_trackers(run, track))
        for event in chain([started], events):
            # Resuming a finished run must not replace the speed in the log.
            was_finished = isinstance(event, Finished) and any(
                entry["event"] == "finished" and entry["step"] == event.step for entry in run.log()
            )
            if isinstance(event, Evaluated) and event.best and not is_logged(run, event):
                run.save_metrics(event.split, {"step": event.step, **event.metrics}, locked=True)
                run.discard_metrics()
            if not was_finished:
                append_to_log(run, event, is_repeated=event.step == started.step)
            if board is not None:
                board.add(event)
            if not was_finished:
                send(event)
            yield event


def is_logged(run: Run, event: Evaluated) -> bool:
    """Return whether this evaluation repeats the last best evaluation in the log. This occurs in resumed runs."""
    steps = [entry["step"] for entry in run.log() if entry["event"] == "evaluated" and entry.get("best")]
    return steps[-1:] == [event.step]


def append_to_log(run: Run, event: Event, is_repeated: bool) -> None:
    """Append an event to the log.

    If a resumed run repeats an evaluation or a save, the new event replaces the earlier one.
    """
    entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **event_to_json(event)}
    if is_repeated and isinstance(event, Evaluated | Saved):
        rewrite_log(run, lambda old: (old["event"], old["step"]) != (entry["event"], entry["step"]))
    append_to_file(run.path / "log.jsonl", json.dumps(entry, ensure_ascii=False) + "\n")


def rewrite_log(run: Run, keep: Callable[[dict[str, Json]], bool]) -> None:
    """Rewrite the log with the entries that `keep` selects. An incomplete last line from a crash is omitted."""
    lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in run.log() if keep(entry)]
    write_atomic(run.path / "log.jsonl", "".join(lines))


def open_tensorboard(run: Run, step: int) -> EventWriter | None:
    """Create the event file of a training run that starts at this step. Return None if TensorBoard is not installed."""
    try:
        return EventWriter(run.path / "tensorboard", purge_step=step + 1 if step else None)
    except ImportError:
        return None


def _languages(data: Mapping[str, Json]) -> str:
    return f", {data['source']} to {data['target']}" if data.get("source") and data.get("target") else ""


def vocabularies(a: Run, b: Run) -> str:
    """Describe the difference between the vocabularies of two runs."""
    short = [f"{len(run.tokenizer):,} {run.tokenizer.kind} of {run.data['corpus']}" for run in (a, b)]
    full = [description + _languages(run.data) for description, run in zip(short, (a, b), strict=True)]
    different = next((pair for pair in (short, full) if pair[0] != pair[1]), None)
    return " and ".join(different) if different else f"{full[0]} in both, but trained on different texts"
