"""Consumers of training events that write into the run: the log, TensorBoard, the metrics and the card."""

import json
import math
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import torch

from seqloom.core.files import append_to_file, write_atomic
from seqloom.core.version import VERSION
from seqloom.runs.run import Run
from seqloom.runs.tensorboard import EventWriter
from seqloom.train.events import Evaluated, Event, Finished, Progress, Saved, event_to_json


def record(events: Iterator[Event], run: Run) -> Iterator[Event]:
    """Write every event down, then pass it on. The first event is `Started`: it says where the log goes on."""
    with ExitStack() as stack:
        stack.enter_context(run.locked())
        run.remove_leftovers()
        started = next(events)
        _rewrite(run, lambda entry: 0 < started.step >= entry["step"])  # later steps are made again
        board = _tensorboard(run, started.step)
        if board is not None:
            stack.callback(board.close)
        for event in chain([started], events):
            over = isinstance(event, Finished) and _has_finished(run, event.step)
            if isinstance(event, Evaluated) and event.best:
                run.save_metrics(event.split, {"step": event.step, **event.metrics}, locked=True)
            if isinstance(event, Finished) and not over:
                write_atomic(run.path / "card.md", card(run, event))
            if not over:
                _write(run, event, again=event.step == started.step)
            if board is not None:
                _draw(board, event)
            yield event


def _has_finished(run: Run, step: int) -> bool:
    """Resuming a run that was over has nothing to add, and knows less of its speed than the log does."""
    return any(entry["event"] == "finished" and entry["step"] == step for entry in run.log())


def _write(run: Run, event: Event, again: bool) -> None:
    """Add an event to the log. The checkpoint a run goes on from may be evaluated and saved `again`; once is enough."""
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
    entry = {"time": stamp, **event_to_json(event)}
    if again and isinstance(event, Evaluated | Saved):
        _rewrite(run, lambda old: (old["event"], old["step"]) != (entry["event"], entry["step"]))
    append_to_file(run.path / "log.jsonl", json.dumps(entry) + "\n")


def _rewrite(run: Run, keep: Callable[[dict[str, Any]], bool]) -> None:
    """The log without what is no longer true, and without a last line that a crash tore."""
    lines = [json.dumps(entry) + "\n" for entry in run.log() if keep(entry)]
    write_atomic(run.path / "log.jsonl", "".join(lines))


def _tensorboard(run: Run, step: int) -> EventWriter | None:
    """A TensorBoard writer, where the package is installed (extra `tensorboard`)."""
    try:
        return EventWriter(run.path / "tensorboard", purge_step=step + 1 if step else None)
    except ImportError:
        return None


def _draw(board: EventWriter, event: Event) -> None:
    if isinstance(event, Progress):
        for name, value in event.values.items():
            board.add_scalar(f"train/{name}", value, event.step)
        board.add_scalar("train/tokens_per_second", event.tokens_per_second, event.step)
    elif isinstance(event, Evaluated):
        for name, value in event.metrics.items():
            board.add_scalar(f"{event.split}/{name}", value, event.step)
    board.flush()


def card(run: Run, event: Finished) -> str:
    """The run for a reader: what it is, what it was trained on, how good it is, and how to get it again."""
    recipe = run.recipe
    metrics = "\n".join(f"| {name} | {number(value)} |" for name, value in event.best.items())
    return f"""# {run.path.name}

A `{recipe["model"]["kind"]}` model for the task `{recipe["task"]}`, trained by seqloom {VERSION}
with seed {recipe["seed"]}. The whole recipe is in `recipe.yaml`; train it again with `seqloom train recipe.yaml`.
{_began(run.data)}
{data_section(run.data)}
## Best evaluation on dev, at step {event.best_step}

| metric | value |
|---|---:|
{metrics}
{_translated(event, recipe)}
## Training

{event.reason} at step {event.step}, {event.seconds:.0f} s since the last start.
{_speed(event)}{event.parameters:,} parameters.
{machine()}
"""


def _began(data: Mapping[str, Any]) -> str:
    """With whose weights it began, where it did not begin with its own."""
    init = data.get("init")
    if not isinstance(init, Mapping):
        return ""
    imported = str(init["corpus"]).startswith("imported")
    source = f"`{init['from']}`, a {init['kind']} " + ("that was imported" if imported else f"of {init['corpus']}")
    if not init["weights"]:
        return f"\nIts tokenizer and the shape of its body are those of {source}; every weight was drawn anew.\n"
    return f"\nIt began with the weights of {source} (sha256 {init['sha256'][:16]}…).\n"


def data_section(data: Mapping[str, Any]) -> str:
    """What a card says of the data."""
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


def machine() -> str:
    return f"Python {platform.python_version()}, PyTorch {torch.__version__}, {platform.system()} {platform.machine()}."


def _languages(data: Mapping[str, Any]) -> str:
    return f", {data['source']} to {data['target']}" if data.get("source") and data.get("target") else ""


def vocabularies(a: Run, b: Run) -> str:
    """What tells the tokens of two runs apart."""
    plain = [f"{len(run.tokenizer):,} {run.tokenizer.kind} of {run.data['corpus']}" for run in (a, b)]
    full = [said + _languages(run.data) for said, run in zip(plain, (a, b), strict=True)]
    apart = next((said for said in (plain, full) if said[0] != said[1]), None)
    return " and ".join(apart) if apart else f"{full[0]} in both, but learned from other texts"


def _translated(event: Finished, recipe: Mapping[str, Any]) -> str:
    """What BLEU, chrF and exact match were measured on, where they were."""
    if "bleu" not in event.best:
        return ""
    pairs = recipe["batch"]["dev_pairs"]
    some = "all pairs" if pairs is None else f"at most {pairs:,} pairs"
    return (
        f"\nBLEU, chrF and exact match are of greedy translations of {some} of dev, made while it trained.\n"
        "`seqloom evaluate` translates a whole split as the recipe's `decode` says.\n"
    )


def _speed(event: Finished) -> str:
    return f"{event.tokens_per_second:,.0f} tokens/s, " if event.tokens_per_second else ""


def number(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else str(value)
