"""Consumers of training events that write into the run: the log, TensorBoard, the metrics and the card."""

import json
import math
import platform
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from seqloom.core import VERSION, Json
from seqloom.core.files import append_to_file, create_file, disk_errors, make_directory, write_atomic
from seqloom.runs.run import Run
from seqloom.train.events import Evaluated, Event, Finished, Progress, Saved, event_to_json


def record(events: Iterator[Event], run: Run) -> Iterator[Event]:
    """Record every event and yield it. The first event must be `Started`; later steps are removed from the log."""
    with ExitStack() as stack:
        stack.enter_context(run.locked())
        run.remove_leftovers()
        started = next(events)
        rewrite_log(run, lambda entry: 0 < started.step >= entry["step"])  # later steps will be run again
        board = open_tensorboard(run, started.step)
        if board is not None:
            stack.callback(board.close)
        for event in chain([started], events):
            # Resuming a finished run must not replace the speed in the log.
            was_finished = isinstance(event, Finished) and any(
                entry["event"] == "finished" and entry["step"] == event.step for entry in run.log()
            )
            if isinstance(event, Evaluated) and event.best:
                run.save_metrics(event.split, {"step": event.step, **event.metrics}, locked=True)
            if isinstance(event, Finished) and not was_finished:
                write_atomic(run.path / "card.md", card(run, event))
            if not was_finished:
                append_to_log(run, event, is_repeated=event.step == started.step)
            if board is not None:
                board.add(event)
            yield event


def append_to_log(run: Run, event: Event, is_repeated: bool) -> None:
    """Append an event to the log; an evaluation or save that a resume repeats replaces the old one."""
    entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **event_to_json(event)}
    if is_repeated and isinstance(event, Evaluated | Saved):
        rewrite_log(run, lambda old: (old["event"], old["step"]) != (entry["event"], entry["step"]))
    append_to_file(run.path / "log.jsonl", json.dumps(entry) + "\n")


def rewrite_log(run: Run, keep: Callable[[dict[str, Json]], bool]) -> None:
    """Keep only some entries of the log, without a last line that a crash left incomplete."""
    lines = [json.dumps(entry) + "\n" for entry in run.log() if keep(entry)]
    write_atomic(run.path / "log.jsonl", "".join(lines))


class EventWriter:
    """A writer of TensorBoard event files with the curves of a training run.

    TensorBoard then hides `purge_step` and later steps of earlier files. torch's `SummaryWriter`
    opens its file by name at each flush, in a thread: it follows links and fails if the folder is
    removed. This writer creates one file with an unpredictable name and keeps it open.
    """

    def __init__(self, folder: Path, purge_step: int | None = None):
        """Create the file; raise ImportError if TensorBoard is not installed."""
        from tensorboard.compat.proto.event_pb2 import Event as EventRecord
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._record: Any = EventRecord
        self._summary: Any = Summary
        make_directory(folder)
        self.path = folder / f"events.out.tfevents.{time.time():.6f}.{secrets.token_hex(8)}"  # read in this order
        with disk_errors(self.path):
            self._file = create_file(self.path)
        self._records: Any = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        if purge_step is not None:
            self._write(step=purge_step, session_log=SessionLog(status=SessionLog.START))
        self.flush()

    def add(self, event: Event) -> None:
        """Write the numbers of an event, if it has any."""
        if isinstance(event, Progress):
            for name, value in event.values.items():
                self.add_scalar(f"train/{name}", value, event.step)
            self.add_scalar("train/tokens_per_second", event.tokens_per_second, event.step)
        elif isinstance(event, Evaluated):
            for name, value in event.metrics.items():
                self.add_scalar(f"{event.split}/{name}", value, event.step)
        self.flush()

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        point = self._summary.Value(tag=tag, simple_value=value)
        self._write(step=step, summary=self._summary(value=[point]))

    def flush(self) -> None:
        with disk_errors(self.path):
            self._file.flush()

    def close(self) -> None:
        with disk_errors(self.path):
            self._file.close()

    def _write(self, **content: object) -> None:
        with disk_errors(self.path):
            self._records.write(self._record(wall_time=time.time(), **content).SerializeToString())


def open_tensorboard(run: Run, step: int) -> EventWriter | None:
    """Create the event file of a training run from this step; return None if TensorBoard is not installed."""
    try:
        return EventWriter(run.path / "tensorboard", purge_step=step + 1 if step else None)
    except ImportError:
        return None


# --- the card ---------------------------------------------------------------------------------------------------------


def card(run: Run, event: Finished) -> str:
    """Write the card of a run: model, data, metrics and how to reproduce it."""
    recipe, init, start, translations = run.recipe, run.data.get("init"), "", ""
    metrics = "\n".join(f"| {name} | {format_number(value)} |" for name, value in event.best.items())
    speed = f"{event.tokens_per_second:,.0f} tokens/s, " if event.tokens_per_second else ""
    if isinstance(init, Mapping):
        imported = str(init["corpus"]).startswith("imported")
        source = f"`{init['from']}`, a {init['kind']} " + ("that was imported" if imported else f"of {init['corpus']}")
        if init["weights"]:
            start = f"\nIts training started from the weights of {source} (sha256 {init['sha256'][:16]}…).\n"
        else:
            start = f"\nIt has the tokenizer and the architecture of {source}, but random initial weights.\n"
    if "bleu" in event.best:
        pairs = recipe["batch"]["dev_pairs"]
        pairs_text = "all pairs" if pairs is None else f"at most {pairs:,} pairs"
        translations = (
            f"\nBLEU, chrF and exact match are measured on greedy translations of {pairs_text} of dev.\n"
            "`seqloom evaluate` translates a complete split with the search options in `decode`.\n"
        )
    return f"""# {run.path.name}

A `{recipe["model"]["kind"]}` model for the task `{recipe["task"]}`, trained by seqloom {VERSION}
with seed {recipe["seed"]}. The complete recipe is in `recipe.yaml`; reproduce it with `seqloom train recipe.yaml`.
{start}
{data_section(run.data)}
## Best evaluation on dev, at step {event.best_step}

| metric | value |
|---|---:|
{metrics}
{translations}
## Training

{event.reason} at step {event.step}, {event.seconds:.0f} s since the last start.
{speed}{event.parameters:,} parameters.
{describe_machine()}
"""


def data_section(data: Mapping[str, Json]) -> str:
    """Write the section of a card about the data."""
    units = [unit for unit in next(iter(data["counts"].values()), {}) if unit != "bytes"]
    counts = "\n".join(
        " | ".join([f"| {split}", *(f"{c[unit]:,}" for unit in units), f"{data['sha256'][split][:16]}… |"])
        for split, c in data["counts"].items()
    )
    ends = "\nEach document's end counts as one word and one character.\n" if "documents" in units else ""
    return f"""## Data

{data["corpus"]}{_languages(data)}, version {data["version"]}. Licence: {data["licence"]}.

{" | ".join(["| split", *(unit.replace("_", " ") for unit in units), "sha256 |"])}
|---|{"---:|" * len(units)}---|
{counts}
{ends}"""


def describe_machine() -> str:
    return f"Python {platform.python_version()}, PyTorch {torch.__version__}, {platform.system()} {platform.machine()}."


def _languages(data: Mapping[str, Json]) -> str:
    return f", {data['source']} to {data['target']}" if data.get("source") and data.get("target") else ""


def vocabularies(a: Run, b: Run) -> str:
    """Describe the difference between the vocabularies of two runs."""
    short = [f"{len(run.tokenizer):,} {run.tokenizer.kind} of {run.data['corpus']}" for run in (a, b)]
    full = [description + _languages(run.data) for description, run in zip(short, (a, b), strict=True)]
    different = next((pair for pair in (short, full) if pair[0] != pair[1]), None)
    return " and ".join(different) if different else f"{full[0]} in both, but trained on different texts"


def format_number(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else str(value)
