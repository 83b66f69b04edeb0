"""Model cards: every number equals that of the run, every example can be run, and labels are escaped."""

import json
import re
import shlex
import urllib.request
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import seqloom
from seqloom.cli.app import main
from seqloom.core.markdown import escape, fence, table
from seqloom.exchange.conversion import export_run
from seqloom.predict.card import format_card, format_time, training_sessions
from seqloom.runs.run import Run
from seqloom.studio.server import Studio
from seqloom.training import resume

LABELS = ["billing | invoices", "`login` ``twice``", "other\\*misc*", "<b>&amp;", "rare"]
TRAIN = {"steps": 6, "evaluate_every": 3, "save_every": 3, "device": "cpu"}
SIZES = {"embedding": 8, "encoder": {"kind": "recurrent", "hidden": 8}}


def read_markdown(text: str) -> list[Any]:
    """Parse Markdown in the same way as GitHub. Return the tokens."""
    return MarkdownIt("commonmark").enable("table").parse(text)


def cells(text: str) -> list[list[str]]:
    """Return the displayed text of the cells of all tables, row by row."""
    rows: list[list[str]] = []
    for token in read_markdown(text):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and rows and token.children is not None:
            rows[-1].append("".join(part.content for part in token.children))
    return rows


def section(card: str, title: str) -> str:
    """Return a section of a card, without its title."""
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", card, re.MULTILINE | re.DOTALL)
    return str(text)


def front_matter(card: str) -> dict[str, Any]:
    return dict(yaml.safe_load(card.split("---\n")[1]))


def examples(card: str, language: str) -> list[str]:
    return [token.content for token in read_markdown(card) if token.type == "fence" and token.info == language]


def write_lines(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def tickets(folder: Path) -> dict[str, Any]:
    """A classifier whose labels contain characters that Markdown interprets."""
    rows = [json.dumps({"text": f"ticket {n} word{n % 5}", "label": LABELS[n % 4]}) for n in range(80)]
    rows.append(json.dumps({"text": "ticket word0", "label": "rare"}))
    files = {name: write_lines(folder / f"{name}.jsonl", rows[: 81 if name == "train" else 40]) for name in SPLITS}
    return {"task": "classify", "data": {"corpus": "table", **files}, "model": {"kind": "classifier", **SIZES}}


def sentences(folder: Path) -> dict[str, Any]:
    lines = [
        f"{word}\t{tag}"
        for _ in range(12)
        for word, tag in (("Ada", "B-PER"), ("met", "O"), ("Bob", "B-PER"), ("", ""))
    ]
    files = {name: write_lines(folder / f"{name}.conll", [line.strip() for line in lines]) for name in SPLITS}
    return {"task": "tag", "data": {"corpus": "conll", **files}, "model": {"kind": "tagger", **SIZES}}


def pairs(folder: Path) -> dict[str, Any]:
    rows = [f"the {noun} {verb}\tdas {noun} {verb}" for noun in ("cat", "dog", "owl") for verb in ("sat", "ran", "hid")]
    files = {name: write_lines(folder / f"{name}.tsv", rows) for name in SPLITS}
    model = {"kind": "recurrent-seq2seq", "hidden": 8, "embedding": 8}
    return {
        "task": "translate",
        "data": {"corpus": "parallel", "source": "en", "target": "de", **files},
        "model": model,
    }


def text(folder: Path, **recipe: Any) -> dict[str, Any]:
    lines = [f"the {noun} {verb} here" for noun in ("cat", "dog", "owl") for verb in ("sat", "ran", "hid")]
    files = {name: write_lines(folder / f"{name}.txt", [name, *lines]) for name in SPLITS}
    return {"data": {"corpus": "text", "documents": "line", **files}, **recipe}


SPLITS = ("train", "dev", "test")
RECIPES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "classifier": tickets,
    "tagger": sentences,
    "translator": pairs,
    "gpt": lambda folder: text(
        folder,
        task="language-model",
        tokenizer={"kind": "characters"},
        batch={"size": 2, "length": 16},
        model={
            "kind": "gpt",
            "d_model": 8,
            "heads": 2,
            "layers": 1,
            "positions": {"kind": "learned", "max_length": 16},
        },
    ),
    "masked": lambda folder: text(
        folder,
        task="masked-lm",
        objective="mlm",
        tokenizer={"kind": "words"},
        model={"kind": "bert", "d_model": 8, "heads": 2, "layers": 1},
        batch={"max_length": 32},
    ),
    "hmm": lambda folder: text(folder, task="hmm", model={"kind": "hmm", "states": 2}, train={"restarts": 1}),
    "ngram": lambda folder: text(folder, task="ngram", tokenizer={"kind": "words"}, model={"kind": "ngram"}, train={}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run of every kind, and an imported run."""
    folder = tmp_path_factory.mktemp("cards")
    for name, recipe in RECIPES.items():
        (data := folder / f"data-{name}").mkdir()
        mapping = recipe(data)
        seqloom.train_recipe({"train": TRAIN, "tokenizer": {"kind": "words"}, **mapping}, out=folder / name)
    export_run(folder / "gpt", folder / "hf")
    seqloom.import_hf(folder / "hf", folder / "imported")
    return folder


NAMES = [*RECIPES, "imported"]


def card_of(run: Path) -> str:
    return (run / "card.md").read_text("utf-8")


def test_labels_are_displayed_unchanged_with_their_counts(runs: Path) -> None:
    rows = cells(section(card_of(runs / "classifier"), "Labels"))
    data = (runs / "data-classifier" / "train.jsonl").read_text("utf-8").splitlines()
    counts = Counter(json.loads(line)["label"] for line in data)
    assert {row[0]: int(row[1]) for row in rows[1:]} == counts and len(rows) == 1 + len(LABELS)


@given(
    st.text(st.characters(codec="utf-8", exclude_categories=("C", "Zl", "Zp")), min_size=1).map(str.strip).filter(bool)
)
@example("a | b")
@example("`x` ``y`` \\")
@example("[a](b) <i> &amp; *c* _d_ ~~e~~ $f$ ![g](h)")
def test_escaped_text_is_displayed_unchanged(name: str) -> None:
    rows = cells(table(["label", "n"], [[escape(name), "1"]], numbers=[1]))
    assert rows[1] == [name, "1"]


def test_fence_is_longer_than_the_backticks_of_its_code() -> None:
    code = "a\n```\nb ```` c"
    assert examples(fence("bash", code), "bash") == [code + "\n"]


@pytest.mark.parametrize("name", NAMES)
def test_python_example_in_the_card_is_executable(
    runs: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(runs)
    (code,) = examples(card_of(runs / name), "python")
    exec(compile(code, "card.md", "exec"), {})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("name", NAMES)
def test_shell_examples_in_the_card_are_executable(runs: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    for command in examples(card_of(runs / name), "bash")[0].splitlines():
        program, *words = shlex.split(command)
        assert program == "seqloom" and main(words) == 0, command


@pytest.mark.parametrize("name", NAMES)
def test_http_example_of_the_card_returns_predictions(runs: Path, name: str) -> None:
    _, request = examples(card_of(runs / name), "bash")
    start, curl = request.replace("\\\n", " ").splitlines()
    assert start.startswith(f"seqloom studio {name} --port 8733")
    words = shlex.split(curl)
    with Studio(runs / name).running() as studio:
        url = words[1].replace("8733", str(studio.port))
        headers = {"Authorization": f"Bearer {studio.token}", "Content-Type": "application/json"}
        body = words[words.index("-d") + 1].encode()
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as response:
            lines = [json.loads(line) for line in response.read().splitlines()]
    assert "error" not in lines[-1] and (len(lines) == 1 or all("text" in line for line in lines[1:-1]))


@pytest.mark.parametrize("name", NAMES)
def test_card_is_valid_and_names_no_folder_of_this_machine(runs: Path, name: str) -> None:
    card = card_of(runs / name)
    metadata = front_matter(card)
    assert metadata["library_name"] == "seqloom" and "seqloom" in metadata["tags"]
    assert str(runs) not in card and "None" not in card and "{" not in re.sub(r"(?s)```.*?```", "", card)
    rows = cells(card)
    assert all(len(row) > 1 for row in rows)


def test_evaluation_adds_the_test_results_to_the_card(tmp_path: Path, runs: Path) -> None:
    """Further training with better weights removes the results on test, because they belong to the previous weights."""
    seqloom.train_recipe({"train": TRAIN, "tokenizer": {"kind": "words"}, **tickets(tmp_path)}, out=tmp_path / "run")
    before = card_of(tmp_path / "run")
    assert "Not measured: test." in before and "| test |" not in section(before, "Results")
    metrics = seqloom.load(tmp_path / "run").evaluate("test")
    run, card = Run.open(tmp_path / "run"), card_of(tmp_path / "run")
    assert set(run.documents()) >= {"data.json", "labels.json"}  # their checksums match the manifest
    shown = {row[0]: row[2] for row in cells(section(card, "Results")) if len(row) == 3}
    low, high = json.loads((run.path / "metrics/test.json").read_text())["intervals"]["accuracy"]
    assert shown["accuracy"] == f"{metrics['accuracy']:.4f} ({low:.4f} to {high:.4f})"
    assert shown["↳ majority baseline"] == f"{metrics['majority']:.4f}"
    dev, test = front_matter(card)["model-index"][0]["results"]
    assert dev["dataset"]["split"] == "dev" and test["dataset"]["split"] == "test"
    assert {"type": "accuracy", "name": "accuracy", "value": metrics["accuracy"]} in test["metrics"]
    list(resume(tmp_path / "run").events())  # nothing is left to train
    assert card_of(tmp_path / "run") == card
    list(resume(tmp_path / "run", ["train.steps=60"]).events())
    assert Run.open(tmp_path / "run").metrics("test") is None and "Not measured: test." in card_of(tmp_path / "run")


def test_dev_results_are_those_of_the_best_step(runs: Path) -> None:
    for name in RECIPES:
        run = Run.open(runs / name)
        best = [entry for entry in run.log() if entry["event"] == "evaluated" and entry["best"]][-1]
        shown = {row[0]: row[1] for row in cells(section(format_card(run), "Results"))[1:]}
        value = next(value for title, value in shown.items() if title.startswith("loss"))
        assert float(value.split()[0]) == pytest.approx(best["metrics"]["loss"], abs=5e-5)
        assert f"step {best['step']}" in card_of(run.path)


def test_settings_are_those_that_differ_from_the_defaults(runs: Path) -> None:
    rows = {row[0]: row[1:] for row in cells(section(card_of(runs / "classifier"), "Training"))[1:]}
    assert rows["model.embedding"] == ["8", "128"] and rows["train.steps"] == ["6", "null"]
    assert "train.lr" not in rows and not any(key.startswith("data") for key in rows)


def test_limits_name_labels_with_few_examples_and_low_f1(runs: Path) -> None:
    seqloom.load(runs / "classifier").evaluate("test")
    limits = section(card_of(runs / "classifier"), "Limits")
    assert "Labels with fewer than 10 training examples: rare." in limits
    assert "not calibrated" in limits and "single seed" in limits
    by_class = Run.open(runs / "classifier").metrics("test")["by_class"]  # type: ignore[index]
    weak = [escape(label) for label, values in by_class.items() if values["expected"] and values["f1"] < 0.5]
    assert weak and f"below 0.5 on test: {', '.join(weak)}." in limits


def test_training_time_sums_sessions_without_the_breaks() -> None:
    times = ("10:00:00", "10:00:30", "12:00:00", "12:01:00")
    kinds = ("started", "stopped", "started", "finished")
    log = [{"event": kind, "time": f"2026-01-01T{time}+00:00"} for kind, time in zip(kinds, times, strict=True)]
    log.append({"event": "started", "time": "2026-01-01T13:00:00+00:00"})  # nothing was left to train
    assert [time.total_seconds() for time in training_sessions(log)] == [30, 60]
    assert [format_time(timedelta(seconds=time)) for time in (90, 600, 36_000)] == ["90 s", "10 min", "10 h"]
