"""Texts of users, data, names, labels and cards are always escaped."""

import csv
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.studio.conftest import RUNS, StudioPage, Window
from tests.studio.hostile import HOSTILE, NEVER

from seqloom import train_recipe
from seqloom.studio.server import Studio
from seqloom.studio.views import VIEWS

LETTERS, WORDS = 1900, 60  # limits of one text
SHORT = ("walk", "heads")  # views with a limit of 64 tokens
FOR = {  # a suitable run by view
    "write": "lm-lstm",
    "alignment": "translate-gru",
    "heads": "gpt",
    "beam": "translate-transformer",
    "cell": "lm-lstm",
    "gradients": "lm-elman",
    "vectors": "words",
    "walk": "lm-lstm",
    "understand": "classifier",
    "images": "draw",
}
NAME = "<img src=x onerror=window.pwned=1>"
# Runs with hostile names, tokens, labels and cards for each view.
OWN = {
    "write": "lm",
    "alignment": "translate",
    "heads": "gpt",
    "beam": "translate",
    "cell": "lm",
    "gradients": "lm",
    "vectors": "lm",
    "walk": "lm",
    "understand": "tag",
    "images": "draw",
}


def pack_texts(words: int = LETTERS) -> list[str]:
    """Join all strings to texts of at most `words` words."""
    texts = [""]
    for text in (" ".join(text.split()) for text in HOSTILE):
        longer = f"{texts[-1]} {text}".strip()
        if len(longer) > LETTERS or len(longer.split()) > words:
            texts.append(text)
        else:
            texts[-1] = longer
    return texts


def check_harmless(studio_page: StudioPage) -> None:
    page = studio_page.page
    assert page.evaluate("() => window.pwned ?? null") is None
    assert page.evaluate("never => [...document.querySelectorAll(never)].map(node => node.outerHTML)", NEVER) == []


def no_dialogs(studio_page: StudioPage) -> list[str]:
    opened: list[str] = []

    def dismiss(dialog: Any) -> None:
        opened.append(dialog.message)
        dialog.dismiss()

    studio_page.on("dialog", dismiss)
    return opened


def test_at_least_200_hostile_strings_are_entered() -> None:
    assert len(set(HOSTILE)) >= 200
    typed = " ".join(pack_texts())
    assert all(" ".join(text.split()) in typed for text in HOSTILE)


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "runs"])
def test_typed_text_is_escaped(hostile_page: StudioPage, view: str) -> None:
    """The vocabularies of the models contain the strings, so that the strings are displayed."""
    run = f"{OWN[view]} {NAME}"
    hostile_page.open(view, run=run)
    for text in pack_texts(WORDS if view in SHORT else LETTERS):
        lines = quote("\n".join([*text.split(), "four", "lines", "at", "least"]))
        typed = f"kind=sentences&lines={lines}" if view == "vectors" else f"beam=1&length=20&text={quote(text)}"
        hostile_page.move(f"#/{view}?run={quote(run)}&{typed}")
        assert hostile_page.page.locator(".notice .problem").all_text_contents() == []
        check_harmless(hostile_page)


@pytest.mark.slow
@pytest.mark.parametrize("view", [view for view in VIEWS if view != "runs"])
def test_hostile_address_parameters_do_not_break_a_view(studio_page: StudioPage, view: str) -> None:
    """A view with invalid parameters draws as much as possible or shows an error."""
    studio_page.refusals = True
    studio_page.open(view, run=FOR[view])
    names = (
        "run",
        "layer",
        "head",
        "unit",
        "part",
        "beam",
        "other",
        "method",
        "step",
        "stage",
        "temperature",
        "search",
    )
    for text in HOSTILE[::23]:
        query = "&".join(f"{name}={quote(text)}" for name in names)
        studio_page.move(f"#/{view}?{query}")
    assert studio_page.page.locator(".view h1").count() == 1
    check_harmless(studio_page)


@pytest.fixture(scope="module")
def hostile_runs(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "hostile"
    folder.mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "runs").exists():
            _make(folder, folder / "runs")
    return folder / "runs"


def _make(data: Path, runs: Path) -> None:
    words = ["".join(text.split()) or "x" for text in HOSTILE if "\0" not in text and len(text) < 100]
    (data / "text.txt").write_text("\n".join(" ".join(words) for _ in range(6)), "utf-8")
    for side in ("source", "target"):
        (data / f"pairs.{side}").write_text("\n".join(words[i] for _ in range(3) for i in range(len(words))), "utf-8")
    (data / "tags.conll").write_text(_conll(words), "utf-8")
    with (data / "table.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text", "label"], *([word, label] for word in words for label in words[:3])])
    lm = (
        f"data.train={data / 'text.txt'}",
        "data.corpus=text",
        "tokenizer.kind=words",
        "tokenizer.split=whitespace",
        "tokenizer.min_count=1",
    )
    short = ("train.epochs=null", "train.steps=4")
    recipes: dict[str, tuple[str, ...]] = {
        "lm": ("lm-word-lstm", *lm, *short, "model.hidden=16", "batch.size=2", "batch.length=16"),
        "translate": (
            "translate-files",
            f"data.train=[{data / 'pairs.source'}, {data / 'pairs.target'}]",
            *short,
            "model.hidden=16",
            "tokenizer={kind: words, split: whitespace, min_count: 1}",
        ),
        "tag": (
            "tag-conll",
            f"data.train={data / 'tags.conll'}",
            *short,
            "model.encoder.hidden=16",
            "tokenizer.min_count=1",
        ),
        "classify": (
            "classify-table",
            f"data.train={data / 'table.csv'}",
            *short,
            "model.encoder.hidden=16",
            "tokenizer.min_count=1",
            "tokenizer.split=whitespace",
        ),
        "gpt": (
            "gpt-pydocs",
            *lm,
            *short,
            "model.d_model=16",
            "model.layers=1",
            "batch.length=16",
            "model.positions.max_length=64",
            "batch.size=2",
            "batch.eval_size=2",
        ),
        "draw": RUNS["draw"],
    }
    for name, (recipe, *overrides) in recipes.items():
        path = runs / f"{name} {NAME}"
        train_recipe(recipe, *overrides, out=path)
        (path / "card.md").write_text(
            "# " + "\n\n".join(HOSTILE) + f"\n\n| {NAME} | x |\n|---|---|\n| {NAME} | x |\n", "utf-8"
        )
        metrics = json.loads((path / "metrics" / "dev.json").read_text())
        (path / "metrics" / "dev.json").write_text(json.dumps({**metrics, NAME: 1.0}))


def _conll(words: list[str]) -> str:
    """Return sentences of hostile words with hostile labels."""
    labels = ["O", f"B-{NAME.replace(' ', '')}", "B-<script>alert(1)</script>"]
    lines = [f"{word}\t{labels[i % 3]}" + ("\n" if i % 5 == 4 else "") for i, word in enumerate(words * 3)]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def hostile_studio(hostile_runs: Path) -> Iterator[Studio]:
    with Studio(hostile_runs).running() as serving:
        yield serving


@pytest.fixture
def hostile_page(window: Window, hostile_studio: Studio) -> Iterator[StudioPage]:
    with window.showing(hostile_studio) as opened:
        dialogs = no_dialogs(opened)
        yield opened
    assert dialogs == [] and opened.errors == [] and opened.foreign_requests == []


@pytest.mark.parametrize("view", VIEWS)
def test_names_tokens_labels_and_cards_are_escaped(hostile_page: StudioPage, view: str) -> None:
    names = list(hostile_page.studio.run_folder.paths())
    assert all(NAME in name for name in names) and len(names) == 6
    run = f"{OWN.get(view, 'lm')} {NAME}"
    text = " ".join(word for word in HOSTILE[3:60] if " " not in word and "\0" not in word)[:300]
    hostile_page.open(view, run=run, runs=names, text=text)
    check_harmless(hostile_page)
    assert NAME in hostile_page.page.locator("main").inner_text()
    for button in hostile_page.page.get_by_role("button", name="Table", exact=True).all()[:6]:
        button.click()
    check_harmless(hostile_page)
