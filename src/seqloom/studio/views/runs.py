"""The list of runs: training curves, recipe differences, run cards and example texts."""

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

from seqloom.core import JsonObject
from seqloom.core.errors import CheckpointError, SeqloomError
from seqloom.core.files import open_regular, refuse_other_kind
from seqloom.inspect.values import to_plain
from seqloom.inspect.views.curves import differences, run_curves
from seqloom.runs.run import Run
from seqloom.studio.endpoints import PageRequest, RunId, RunRequest, View
from seqloom.studio.run_folder import RunFolder, display_name, user_message
from seqloom.tasks import names as task_names
from seqloom.tasks import task_info

view = View("runs", "Runs")
RUN_FILES = ("recipe.yaml", "metrics/dev.json", "metrics/test.json", "data.json", "log.jsonl", "model.safetensors")
LIVE_SECONDS = 30.0  # a run whose log changed within this time counts as training
HEADLINE_METRICS = (  # the first of these metrics that metrics/dev.json contains is shown
    ("bleu", "BLEU {:.1f}"),
    ("span_f1", "span F1 {:.3f}"),
    ("accuracy", "accuracy {:.1%}"),
    ("token_accuracy", "accuracy {:.1%}"),
    ("answer_f1", "F1 {:.3f}"),
    ("masked_accuracy", "masked accuracy {:.1%}"),
    ("bits_per_character", "{:.3f} bits/char"),
    ("bleu_4", "BLEU-4 {:.1f}"),
    ("perplexity", "perplexity {:.2f}"),
    ("mase", "MASE {:.3f}"),
    ("loss", "loss {:.4f}"),
)


class RunsRequest(PageRequest):
    """Several runs."""

    runs: list[RunId] = Field(max_length=12)


# These endpoints do not use a model or a queue.


@view.router.post("", response_model=None)
def list_runs(request: Request) -> object:
    """List all runs. A run that cannot be read is listed with the reason for the error."""
    run_folder: RunFolder = request.app.state.run_folder
    lines = [_describe_run(run_folder, name, path) for name, path in run_folder.paths().items()]
    return to_plain({"folder": display_name(str(run_folder.folder)), "single": run_folder.single, "runs": lines})


@view.router.post("/curves", response_model=None)
def curves(body: RunsRequest, request: Request) -> object:
    """Return the training curves of several runs and the differences between their recipes."""
    run_folder: RunFolder = request.app.state.run_folder
    opened = {name: _open(run_folder.find(name)) for name in body.runs}
    return to_plain(
        {
            "curves": {name: run_curves(run) for name, run in opened.items()},
            "live": [name for name, run in opened.items() if _is_live(run.path)],
            "differences": differences({name: run.recipe for name, run in opened.items()}),
        }
    )


@view.router.post("/card", response_model=None)
def card(body: RunRequest, request: Request) -> object:
    """Return the card, recipe and metrics of one run as text. The page never parses this text as HTML."""
    run_folder: RunFolder = request.app.state.run_folder
    path = run_folder.find(body.run)
    run = _open(path)
    card_path = path / "card.md"
    return to_plain(
        {
            "card": card_path.read_text("utf-8", errors="replace") if card_path.is_file() else None,
            "recipe": (path / "recipe.yaml").read_text("utf-8", errors="replace"),
            "metrics": {split: run.metrics(split) for split in ("dev", "test") if run.metrics(split)},
        }
    )


def _open(path: Path) -> Run:
    """Open a run after checking that its files are regular, because reading a FIFO would block."""
    for name in RUN_FILES:
        refuse_other_kind(path / name)
    return Run.open(path)


def _describe_run(run_folder: RunFolder, name: str, path: Path) -> JsonObject:
    """Return the list entry of a run, cached until one of its files changes.

    Any error is stored as the `problem` of the entry, so that a damaged run does not affect the other runs.
    """

    def describe() -> JsonObject:
        try:
            run_folder.check_name(path)
            entry = _read_entry(_open(path))
            json.dumps(entry, ensure_ascii=False).encode("utf-8")
            return {"id": name, "name": name, "problem": None, **entry}
        except Exception as error:
            problem = user_message(error) or f"This run cannot be read ({type(error).__name__})."
            return {"id": name, "name": name, "problem": " ".join(problem.split()), "views": []}

    entry = run_folder.summary(name, tuple(_stamp(path / file) for file in RUN_FILES), describe)
    changed = _modified_at(path / "log.jsonl") or _modified_at(path / "recipe.yaml")
    return {**entry, "changed": changed, "live": _is_live(path)}


def _read_entry(run: Run) -> JsonObject:
    from seqloom.studio.views import VIEWS

    metrics, recipe = run.metrics("dev") or {}, run.recipe
    model = recipe.get("model")
    if not recipe.get("task") or not isinstance(model, Mapping):
        raise CheckpointError("recipe.yaml is damaged: task or model is missing.")
    if not isinstance(metrics, Mapping):
        raise CheckpointError("metrics/dev.json is damaged: it must be an object.")
    cell, seed = model.get("cell"), recipe.get("seed")
    headlines = [
        template.format(metrics[name])
        for name, template in HEADLINE_METRICS
        if isinstance(metrics.get(name), int | float)
    ]
    entry: JsonObject = {
        "task": str(recipe.get("task")),
        "kind": str(model.get("kind")),
        "cell": cell if isinstance(cell, str) else None,
        "corpus": str((recipe.get("data") or {}).get("corpus")),
        "metric": headlines[0] if headlines else None,
        "seed": seed if isinstance(seed, int) else None,
        "ready": (run.path / "model.safetensors").is_file(),
        "views": [],
    }
    if entry["ready"]:
        texts = example_texts(recipe)
        entry |= {"example": texts[0], "examples": texts, "domain": training_domain(recipe)}
        entry["views"] = [name for name, view in VIEWS.items() if view.suits(recipe)]
        # Whether an imported model has randomly initialized layers.
        imported = run.data.get("imported", {}) if (run.path / "data.json").is_file() else {}
        entry["untrained"] = bool(imported.get("initialized"))
    return entry


def _is_live(path: Path) -> bool:
    """Whether the run is training, that is, its log changed recently and does not end with a final event."""
    changed = _modified_at(path / "log.jsonl")
    if changed is None or time.time() - changed > LIVE_SECONDS:
        return False
    try:
        with open(open_regular(path / "log.jsonl"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            last = file.read().rstrip().rpartition(b"\n")[2]
        return str(json.loads(last).get("event")) not in ("finished", "stopped")
    except (OSError, SeqloomError, ValueError, AttributeError, RecursionError):
        return True  # the file was deleted meanwhile, is not a log, or has an incomplete last line


def _modified_at(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _stamp(path: Path) -> Hashable:
    """Return the type and the modification time of a file.

    For a log, which changes continually, return only the type.
    """
    try:
        status = path.lstat()
    except OSError:
        return None
    return stat.S_IFMT(status.st_mode), None if path.name == "log.jsonl" else status.st_mtime_ns


# --- example texts --------------------------------------------------------------------------------------------------

EXAMPLE_DAY = datetime(2026, 11, 15, 9, 30)
EXAMPLE_DATE = "Sunday, November 15, 2026"  # used if babel is not installed
MAX_EXAMPLES = 3
# Example texts by corpus. The first text is the default.
CORPUS_EXAMPLES = {
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
CORPUS_DOMAINS = {
    "pydocs": "the documentation of Python",
    "people": "sentences about people, locations and organizations",
    "multi30k": "captions of photographs",
    "languages": "phrases such as dates, countries and amounts, in many languages",
}
# The kinds of phrases in the corpus `cldr`: a description, and the arguments of an example.
PHRASES: dict[str, tuple[str, tuple[object, ...]]] = {
    "full date": ("dates", (EXAMPLE_DAY,)),
    "countries": ("lists of countries", (("IT", "ES", "JP"),)),
    "amount": ("amounts of money", (Decimal(250), "EUR")),
    "languages": ("lists of languages", (("fr", "de", "ja"),)),
    "duration": ("durations", ([(3, "hour"), (20, "minute")],)),
    "long date": ("dates", (EXAMPLE_DAY,)),
    "medium date": ("dates", (EXAMPLE_DAY,)),
    "short date": ("dates", (EXAMPLE_DAY,)),
    "date range": ("ranges of dates", (EXAMPLE_DAY, datetime(2026, 11, 20))),
    "date and time": ("dates with the time", ("full", EXAMPLE_DAY)),
    "weekday and time": ("weekdays with the time", (EXAMPLE_DAY,)),
    "time": ("times", (EXAMPLE_DAY,)),
    "number": ("numbers in words", (842,)),
    "numbers": ("choices of numbers in words", ((7, 42),)),
    "quantity": ("quantities", (5, "length-kilometer")),
    "price": ("prices", (Decimal("19.90"), "EUR")),
}


def example_texts(recipe: JsonObject) -> list[str]:
    """Return a few texts that resemble the training data of a run."""
    data = recipe.get("data") or {}
    corpus = str(data.get("corpus"))
    task = recipe.get("task")
    example = task_info(task if task in task_names() else "language-model").example
    if "[MASK]" in example:
        return [example]
    if corpus == "languages":  # one example for each of three languages
        return [phrase for tag in ("en", "fr", "ru") for phrase in _phrases(tag, ("full date",))] or [EXAMPLE_DATE]
    if corpus == "cldr":
        return list(_phrases(str(data.get("source", "en")), _phrase_kinds(data))) or [EXAMPLE_DATE]
    return list(CORPUS_EXAMPLES.get(corpus) or [example])


def training_domain(recipe: JsonObject) -> str | None:
    """Describe the training data of a run. Return None if no description is known."""
    data = recipe.get("data") or {}
    corpus = str(data.get("corpus"))
    if corpus != "cldr":
        return CORPUS_DOMAINS.get(corpus)
    names = list(dict.fromkeys(PHRASES[kind][0] for kind in _phrase_kinds(data)))
    return ", ".join(names[:6]) + (" and more" if len(names) > 6 else "")


def _phrase_kinds(data: JsonObject) -> tuple[str, ...]:
    """Return the kinds of phrases in the data, in the order of PHRASES."""
    kinds = data.get("kinds") or PHRASES
    return tuple(kind for kind in PHRASES if kind in kinds) or tuple(PHRASES)


@lru_cache(maxsize=64)
def _phrases(language: str, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return one phrase of each kind. Without babel, return no phrases."""
    phrases: list[str] = []
    with suppress(Exception):
        from seqloom.data.corpora.cldr import KINDS
        from seqloom.data.phrases import Language, text_of

        speaker, say = Language(language), {kind.name: kind.say for kind in KINDS}
        for kind in kinds[:MAX_EXAMPLES]:
            with suppress(Exception):
                phrases.append(text_of(say[kind](speaker, *PHRASES[kind][1])))
    return tuple(dict.fromkeys(phrases))
