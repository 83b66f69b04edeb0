"""The shelf: what runs there are, how they learned, in what their recipes differ, and texts to begin with."""

import json
import os
import stat
import time
from collections.abc import Hashable, Mapping
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

from fastapi import Request
from pydantic import Field

from seqloom.core.errors import CheckpointError, SeqloomError
from seqloom.core.files import open_regular, refuse_other_kind
from seqloom.inspect.values import to_plain
from seqloom.inspect.views.curves import differences, run_curves
from seqloom.runs.run import Run
from seqloom.studio.endpoints import PageQuestion, RunId, RunQuestion, View
from seqloom.studio.shelf import Json, Shelf, displayable, readable
from seqloom.tasks import names, task_info

view = View("runs")
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


class RunsQuestion(PageQuestion):
    """Several runs."""

    runs: list[RunId] = Field(max_length=12)


# These compute with no model and wait in no queue.


@view.router.post("", response_model=None)
def list_runs(request: Request) -> object:
    """Every run in a line. What cannot be read is listed, too, with the reason."""
    shelf: Shelf = request.app.state.shelf
    lines = [_describe_run(shelf, name, path) for name, path in shelf.paths().items()]
    return to_plain({"folder": displayable(str(shelf.folder)), "single": shelf.single, "runs": lines})


@view.router.post("/curves", response_model=None)
def curves(ask: RunsQuestion, request: Request) -> object:
    """What the logs say of several runs, and in what their recipes differ."""
    shelf: Shelf = request.app.state.shelf
    opened = {name: _open(shelf.find(name)) for name in ask.runs}
    return to_plain(
        {
            "curves": {name: run_curves(run) for name, run in opened.items()},
            "live": [name for name, run in opened.items() if _is_live(run.path)],
            "differences": differences({name: run.recipe for name, run in opened.items()}),
        }
    )


@view.router.post("/card", response_model=None)
def card(ask: RunQuestion, request: Request) -> object:
    """All there is to read of one run: its card, its recipe, its metrics. As text; the page never makes HTML of it."""
    shelf: Shelf = request.app.state.shelf
    path = shelf.find(ask.run)
    run = _open(path)
    written = path / "card.md"
    return to_plain(
        {
            "card": written.read_text("utf-8", errors="replace") if written.is_file() else None,
            "recipe": (path / "recipe.yaml").read_text("utf-8", errors="replace"),
            "metrics": {split: run.metrics(split) for split in ("dev", "test") if run.metrics(split)},
        }
    )


def _open(path: Path) -> Run:
    """Open a run none of whose files would have to be waited for."""
    for name in READ:
        refuse_other_kind(path / name)
    return Run.open(path)


def _describe_run(shelf: Shelf, name: str, path: Path) -> Json:
    """The line of a run, read again only once one of its files has changed. What is wrong with a run, whatever it is,
    is said in its line and concerns no other."""

    def describe() -> Json:
        try:
            shelf.check_name(path)
            line = _read_line(_open(path))
            json.dumps(line, ensure_ascii=False).encode("utf-8")
            return {"id": name, "name": name, "problem": None, **line}
        except Exception as error:
            problem = readable(error) or f"This run cannot be read ({type(error).__name__})."
            return {"id": name, "name": name, "problem": " ".join(problem.split()), "views": []}

    line = shelf.line(name, tuple(_stamp(path / file) for file in READ), describe)
    changed = _changed(path / "log.jsonl") or _changed(path / "recipe.yaml")
    return {**line, "changed": changed, "live": _is_live(path)}


def _read_line(run: Run) -> Json:
    from seqloom.studio.views import VIEWS

    metrics, recipe = run.metrics("dev") or {}, run.recipe
    model = recipe.get("model")
    if not recipe.get("task") or not isinstance(model, Mapping):
        raise CheckpointError("recipe.yaml is damaged: it does not name a task and a model.")
    if not isinstance(metrics, Mapping):
        raise CheckpointError("metrics/dev.json is damaged: it does not name metrics.")
    cell, seed = model.get("cell"), recipe.get("seed")
    shown = [form.format(metrics[name]) for name, form in SHOWN if isinstance(metrics.get(name), int | float)]
    line: Json = {
        "task": str(recipe.get("task")),
        "kind": str(model.get("kind")),
        "cell": cell if isinstance(cell, str) else None,
        "corpus": str((recipe.get("data") or {}).get("corpus")),
        "figure": shown[0] if shown else None,
        "seed": seed if isinstance(seed, int) else None,
        "ready": (run.path / "model.safetensors").is_file(),
        "views": [],
    }
    if line["ready"]:
        texts = examples_of(recipe)
        line |= {"example": texts[0], "examples": texts, "knows": known_of(recipe)}
        line["views"] = [name for name, one in VIEWS.items() if one.suits(recipe)]
        # Whether layers of an imported model came without weights, and were drawn by chance.
        imported = run.data.get("imported", {}) if (run.path / "data.json").is_file() else {}
        line["untaught"] = bool(imported.get("drawn"))
    return line


def _is_live(path: Path) -> bool:
    """Whether somebody trains it: its log has grown a moment ago and has not ended."""
    changed = _changed(path / "log.jsonl")
    if changed is None or time.time() - changed > LIVE_SECONDS:
        return False
    try:
        with open(open_regular(path / "log.jsonl"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            last = file.read().rstrip().rpartition(b"\n")[2]
        return str(json.loads(last).get("event")) not in ("finished", "stopped")
    except (OSError, SeqloomError, ValueError, AttributeError, RecursionError):
        return True  # a run that was just deleted, something that is no log, or a line that is half written


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _stamp(path: Path) -> Hashable:
    """What kind of file there is, and, but of a log, when it was written."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return stat.S_IFMT(status.st_mode), None if path.name == "log.jsonl" else status.st_mtime_ns


# --- texts to begin with, for a run whose data we know; what the user types takes their place -------------------------

DAY = datetime(2026, 11, 15, 9, 30)
DATE = "Sunday, November 15, 2026"  # where babel has none
OFFERED = 3
# By the name of the corpus; else by task. The first is the one to begin with.
TEXTS = {
    "pydocs": (
        "The class statement defines a new type of object.",
        "If the file does not exist, an error is raised.",
        "This function returns a list of strings.",
    ),
    "people": (
        "Maria Keller moved from Lisbon to Oslo last year.",
        "Does Dr. Tanaka still work for Nordlicht GmbH in Berlin?",
    ),
    "names": ("Kowalczyk", "Takahashi", "O'Sullivan"),
    "sst2": ("a gripping, funny and surprisingly warm film", "the plot is thin and the jokes are old"),
    "multi30k": ("A man in a blue shirt is standing on a ladder.", "Two dogs are running through the snow."),
    "tatoeba": ("I would like a cup of tea.", "Where did you learn to swim?"),
    "ptb": ("the company said it expects to report a profit",),
    "wikitext-2": ("The river rises in the mountains",),
    "tinyshakespeare": ("What light through yonder window breaks?",),
    "ud_english_ewt": ("The old man saw the boats in the harbour.",),
    "ewt": ("The old man saw the boats in the harbour.",),
    "wnut17": ("Just landed in Chicago with Anna",),
    "imported": ("The old man saw the boats in the harbour.",),
}
KNOWN = {
    "pydocs": "the English of Python's documentation",
    "people": "sentences about people, places and organisations",
    "multi30k": "captions of photographs",
    "languages": "phrases such as dates, countries and amounts, in many languages",
}
# What the kinds of phrases in the corpus `cldr` are called, and a meaning of each for an example.
PHRASES: dict[str, tuple[str, tuple[object, ...]]] = {
    "full date": ("dates", (DAY,)),
    "countries": ("lists of countries", (("IT", "ES", "JP"),)),
    "amount": ("amounts of money", (Decimal(250), "EUR")),
    "languages": ("lists of languages", (("fr", "de", "ja"),)),
    "duration": ("durations", ([(3, "hour"), (20, "minute")],)),
    "long date": ("dates", (DAY,)),
    "medium date": ("dates", (DAY,)),
    "short date": ("dates", (DAY,)),
    "date range": ("ranges of dates", (DAY, datetime(2026, 11, 20))),
    "date and time": ("dates with the time", ("full", DAY)),
    "weekday and time": ("weekdays with the time", (DAY,)),
    "time": ("times", (DAY,)),
    "number": ("numbers in words", (842,)),
    "numbers": ("choices of numbers in words", ((7, 42),)),
    "quantity": ("quantities", (5, "length-kilometer")),
    "price": ("prices", (Decimal("19.90"), "EUR")),
}


def examples_of(recipe: Json) -> list[str]:
    """A few texts such as the run has learned from."""
    data = recipe.get("data") or {}
    corpus = str(data.get("corpus"))
    task = recipe.get("task")
    example = task_info(task if task in names() else "language-model").example
    if "[MASK]" in example:
        return [example]
    if corpus == "languages":  # which of them it is has to be told
        return [phrase for tag in ("en", "fr", "ru") for phrase in _phrases(tag, ("full date",))] or [DATE]
    if corpus == "cldr":
        return list(_phrases(str(data.get("source", "en")), _kinds(data))) or [DATE]
    return list(TEXTS.get(corpus) or [example])


def known_of(recipe: Json) -> str | None:
    """What a run has learned from, in a few words, where we can say it."""
    data = recipe.get("data") or {}
    corpus = str(data.get("corpus"))
    if corpus != "cldr":
        return KNOWN.get(corpus)
    words = list(dict.fromkeys(PHRASES[kind][0] for kind in _kinds(data)))
    return ", ".join(words[:6]) + (" and more" if len(words) > 6 else "")


def _kinds(data: Json) -> tuple[str, ...]:
    """Those that the data has, in our order."""
    wanted = data.get("kinds") or PHRASES
    return tuple(kind for kind in PHRASES if kind in wanted) or tuple(PHRASES)


@lru_cache(maxsize=64)
def _phrases(language: str, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """One phrase of each kind, as the corpus says it; none where babel is missing or has no words for it."""
    phrases: list[str] = []
    with suppress(Exception):
        from seqloom.data.corpora.cldr import KINDS
        from seqloom.data.phrases import Language, text_of

        speaker, say = Language(language), {kind.name: kind.say for kind in KINDS}
        for kind in kinds[:OFFERED]:
            with suppress(Exception):
                phrases.append(text_of(say[kind](speaker, *PHRASES[kind][1])))
    return tuple(dict.fromkeys(phrases))
