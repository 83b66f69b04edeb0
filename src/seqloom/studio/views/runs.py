"""The shelf: what runs there are, how they learned, and in what their recipes differ."""

import json
import os
import stat
import time
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from pydantic import Field

from seqloom.core.errors import CheckpointError, SeqloomError
from seqloom.core.files import open_regular, refuse_other_kind
from seqloom.inspect.values import to_plain
from seqloom.inspect.views.curves import differences, run_curves
from seqloom.runs.run import Run
from seqloom.studio.asking import Question, RunId, RunQuestion, StudioShelf
from seqloom.studio.examples import examples_of, known_of
from seqloom.studio.shelf import Shelf, displayable, readable

router = APIRouter(prefix="/api/runs")
READ = ("recipe.yaml", "metrics/dev.json", "metrics/test.json", "data.json", "log.jsonl", "model.safetensors")
LIVE_SECONDS = 30.0  # a log that grew since then belongs to a run that trains
SHOWN = (  # of the metrics of dev, the first that there is speaks for a run
    ("bleu", "BLEU {:.1f}"),
    ("span_f1", "span F1 {:.3f}"),
    ("accuracy", "accuracy {:.1%}"),
    ("token_accuracy", "accuracy {:.1%}"),
    ("answer_f1", "F1 {:.3f}"),
    ("masked_accuracy", "{:.1%} of gaps"),
    ("bits_per_character", "{:.3f} bits/char"),
    ("perplexity", "perplexity {:.2f}"),
    ("mase", "MASE {:.3f}"),
    ("loss", "loss {:.4f}"),
)


class RunsQuestion(Question):
    runs: list[RunId] = Field(max_length=12)


@router.post("")
def runs(shelf: StudioShelf) -> dict[str, Any]:
    """Every run in a line. What cannot be read is listed, too, with the reason."""
    found = [_remembered(shelf, name, path) for name, path in shelf.paths().items()]
    return {"folder": displayable(str(shelf.folder)), "single": shelf.single, "runs": to_plain(found)}


@router.post("/curves")
def curves(ask: RunsQuestion, shelf: StudioShelf) -> dict[str, Any]:
    """What the logs say of several runs, and in what their recipes differ."""
    opened = {name: _open(shelf.find(name)) for name in ask.runs}
    answer: dict[str, Any] = to_plain(
        {
            "curves": {name: run_curves(run) for name, run in opened.items()},
            "live": [name for name, run in opened.items() if _is_live(run.path)],
            "differences": differences({name: run.recipe for name, run in opened.items()}),
        }
    )
    return answer


@router.post("/card")
def card(ask: RunQuestion, shelf: StudioShelf) -> dict[str, Any]:
    """All there is to read of one run: its card, its recipe, its metrics. As text; the page never makes HTML of it."""
    path = shelf.find(ask.run)
    run = _open(path)
    written = path / "card.md"
    answer: dict[str, Any] = to_plain(
        {
            "card": written.read_text("utf-8", errors="replace") if written.is_file() else None,
            "recipe": (path / "recipe.yaml").read_text("utf-8", errors="replace"),
            "metrics": {split: run.metrics(split) for split in ("dev", "test") if run.metrics(split)},
        }
    )
    return answer


def _open(path: Path) -> Run:
    """Open a run none of whose files would have to be waited for."""
    for name in READ:
        refuse_other_kind(path / name)
    return Run.open(path)


def _remembered(shelf: Shelf, name: str, path: Path) -> dict[str, Any]:
    """The line of a run, read again only once one of its files has changed."""
    stamps = tuple(_stamp(path / file, time=file != "log.jsonl") for file in READ)
    line: dict[str, Any] = shelf.line(name, stamps, lambda: _line(shelf, name, path))
    changed = _changed(path / "log.jsonl") or _changed(path / "recipe.yaml")
    return {**line, "changed": changed, "live": _is_live(path)}


def _line(shelf: Shelf, name: str, path: Path) -> dict[str, Any]:
    """What is wrong with a run, whatever it is, is said in its line and concerns no other."""
    try:
        shelf.check_name(path)
        line = _described(_open(path))
        json.dumps(line, ensure_ascii=False).encode("utf-8")
        return {"id": name, "name": name, "problem": None, **line}
    except Exception as error:
        problem = readable(error) or f"This run cannot be read ({type(error).__name__})."
        return {"id": name, "name": name, "problem": " ".join(problem.split()), "views": []}


def _described(run: Run) -> dict[str, Any]:
    from seqloom.studio.views import suiting

    metrics, recipe = run.metrics("dev") or {}, run.recipe
    model = recipe.get("model")
    if not recipe.get("task") or not isinstance(model, Mapping):
        raise CheckpointError("recipe.yaml is damaged: it does not name a task and a model.")
    if not isinstance(metrics, Mapping):
        raise CheckpointError("metrics/dev.json is damaged: it does not name metrics.")
    line: dict[str, Any] = {
        "task": str(recipe.get("task")),
        "kind": str(model.get("kind")),
        "cell": _text_or_none(model.get("cell")),
        "corpus": str((recipe.get("data") or {}).get("corpus")),
        "figure": _figure(metrics),
        "seed": recipe.get("seed") if isinstance(recipe.get("seed"), int) else None,
        "ready": (run.path / "model.safetensors").is_file(),
        "views": [],
    }
    if line["ready"]:
        texts = examples_of(recipe)
        line |= {"views": suiting(recipe), "example": texts[0], "examples": texts, "knows": known_of(recipe)}
        line["untaught"] = _is_untaught(run)
    return line


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _is_untaught(run: Run) -> bool:
    """Whether layers of an imported model came without weights, and were drawn by chance."""
    return (run.path / "data.json").is_file() and bool(run.data.get("imported", {}).get("drawn"))


def _figure(metrics: Mapping[str, Any]) -> str | None:
    for name, form in SHOWN:
        if isinstance(metrics.get(name), int | float):
            return form.format(metrics[name])
    return None


def _is_live(path: Path) -> bool:
    """Whether somebody trains it: its log has grown a moment ago and has not ended."""
    changed = _changed(path / "log.jsonl")
    if changed is None or time.time() - changed > LIVE_SECONDS:
        return False
    return _last_event(path / "log.jsonl") not in ("finished", "stopped")


def _last_event(log: Path) -> str | None:
    try:
        with open(open_regular(log), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            last = file.read().rstrip().rpartition(b"\n")[2]
        return str(json.loads(last).get("event"))
    except (OSError, SeqloomError, ValueError, AttributeError, RecursionError):
        return None  # a run that was just deleted, something that is no log, or a line that is half written


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _stamp(path: Path, time: bool) -> Hashable:
    """What kind of file there is, and when it was written if `time` matters."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return stat.S_IFMT(found.st_mode), found.st_mtime_ns if time else None
