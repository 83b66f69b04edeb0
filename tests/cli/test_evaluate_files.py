"""`seqloom evaluate RUN FILE` for every task. A file gives the same metrics as the split with its examples."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.masked import masked_recipe
from tests.matching import TRAIN, recipe
from tests.understanding import classify_recipe, reviews, sentences, tag_recipe, trained

from seqloom.config import apply_overrides, parse_overrides
from seqloom.recipes import build_recipe
from seqloom.runs.run import Run

STEPS = ["train.steps=2", "train.evaluate_every=1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, runs: Path) -> Path:
    """A run for each form of examples."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("pair", "score", "choice", "answer"):
        trained(recipe(folder, name, *STEPS), folder / name)
    trained(classify_recipe(folder, *STEPS), folder / "classifier")
    trained(tag_recipe(folder, *STEPS), folder / "tagger")
    trained(masked_recipe(folder, *STEPS), folder / "bert")
    rows = [{"instruction": f"say {n}", "output": f"I say {n}"} for n in range(40)]
    (folder / "told.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = {"corpus": "instructions", "train": str(folder / "told.jsonl")}
    told = {"task": "instruct", "init": {"from": str(runs / "chars")}, "data": section, "train": TRAIN}
    trained(build_recipe(apply_overrides(told, parse_overrides(STEPS)), "the recipe"), folder / "told")
    series = "day,value\n" + "".join(f"{day},{day % 7 + day / 50}\n" for day in range(120))
    (folder / "series.csv").write_text(series)
    model = {"kind": "ar", "difference": "step"}
    data = {"corpus": "series-file", "file": str(folder / "series.csv")}
    trained(build_recipe({"task": "forecast", "data": data, "model": model}, "the recipe"), folder / "series")
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_rows(path: Path, rows: list[list[str]], delimiter: str = ";") -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)


def file_of(run: Path) -> Path:
    """Return the training file of a run."""
    return Path(Run.open(run).recipe["data"]["train"])


@pytest.mark.parametrize("name", ["classifier", "tagger", "pair", "score", "choice", "answer", "told"])
def test_training_file_is_evaluated_without_options(seqloom: Any, here: Path, name: str) -> None:
    """The number of examples equals the sum over all splits."""
    path = file_of(here / name)
    result = seqloom("evaluate", name, path)
    assert result.code == 0, result.err
    counts = json.loads((here / name / "data.json").read_text())["counts"]
    unit = next(iter(counts["train"]))
    total = sum(split[unit] for split in counts.values())
    assert result.out.splitlines()[0].startswith(f"{name} on {path}: {total:,} {unit}"), result.out


def odd_classes(path: Path) -> list[str]:
    write_rows(path, [["", "Notiz", "Text", "Urteil"], *(["1", "a; b, c", *row] for row in reviews()[:40])])
    return ["--column", "Text", "--label", "Urteil"]


def odd_pairs(path: Path) -> list[str]:
    rows = [["a grey fox", "it is red", "yes"], ["a red fox", "it is green", "no"]] * 5
    write_rows(path, [["links", "rechts", "urteil"], *rows])
    return ["--column", "links", "--column", "rechts", "--label", "urteil"]


def odd_choices(path: Path) -> list[str]:
    write_rows(path, [["q", "x", "y", "right"], *[["the fox is", "red", "blue", "0"]] * 5])
    return ["--column", "q", "--column", "x", "--column", "y", "--label", "right"]


def odd_tags(path: Path) -> list[str]:
    path.write_text("\n\n".join("\n".join(f"{tag} x {word}" for word, tag in words) for words in sentences()[:9]))
    return ["--column", "3", "--label", "1"]


ODD: dict[str, tuple[str, Callable[[Path], list[str]], int]] = {
    "classifier": ("odd.csv", odd_classes, 40),
    "pair": ("odd.csv", odd_pairs, 10),
    "choice": ("odd.csv", odd_choices, 5),
    "tagger": ("odd.conll", odd_tags, 9),
}


@pytest.mark.parametrize("name", ODD)
def test_named_columns_are_read(seqloom: Any, here: Path, name: str) -> None:
    file, write, count = ODD[name]
    options = write(here / file)
    result = seqloom("evaluate", name, file, *options)
    assert result.code == 0, result.err
    assert result.out.startswith(f"{name} on {file}: {count} ")
    assert result.err.startswith(f"note: {file}: ")  # the note names the columns


def test_label_option_alone_keeps_the_text_column_of_the_training_data(seqloom: Any, here: Path) -> None:
    """Otherwise, the column "text" would be recognized."""
    data = file_of(here / "classifier")
    with open(data, newline="") as file:
        header, *rows = list(csv.reader(file))
    write_rows(here / "odd.csv", [[*header, "text", "gold"], *([*row, "nothing here at all", row[1]] for row in rows)])
    same = seqloom("evaluate", "classifier", data, "--json").json
    other = seqloom("evaluate", "classifier", "odd.csv", "--label", "gold", "--json").json
    assert other["loss"] == pytest.approx(same["loss"], rel=1e-6)


def test_nested_keys_and_other_encodings_are_read(seqloom: Any, here: Path) -> None:
    rows = [{"doc": {"body": text, "n": 1}, "gold": label} for text, label in reviews()[:30]]
    (here / "odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "30 examples" in seqloom("evaluate", "classifier", "odd.jsonl").out
    content = "text;label\n" + "".join(f"{text} „schön“ – naïve;{label}\n" for text, label in reviews()[:30])
    (here / "latin.csv").write_bytes(content.encode("cp1252"))
    result = seqloom("evaluate", "classifier", "latin.csv")
    assert "30 examples" in result.out and "latin.csv is not UTF-8, and is read as cp1252" in result.err


def test_series_is_evaluated_on_its_second_half(seqloom: Any, here: Path) -> None:
    result = seqloom("evaluate", "series", "series.csv", "--json")
    assert result.json["mase"] < result.json["naive_mase"]
    assert "the first half of series.csv is the history" in result.err
    seqloom("evaluate", "series", "series.csv", "--label", "value").fails_with(2, "do not apply to series", lines=1)


def test_text_and_column_of_a_table_have_the_same_metrics(seqloom: Any, here: Path, runs: Path) -> None:
    texts = ["the cat sat here .", "the dog saw in the hay ."]
    (here / "a.txt").write_text("\n".join(texts) + "\n")
    write_rows(here / "a.csv", [["n", "body"], *([str(n), text] for n, text in enumerate(texts))])
    (here / "many").mkdir()
    (here / "many/a.txt").write_text("\n".join(texts) + "\n")
    results = [
        seqloom("evaluate", runs / "chars", name, *rest, "--documents", "line", "--json").json
        for name, *rest in (["a.txt"], ["a.csv", "--column", "body"], ["many"])
    ]
    assert results[0]["loss"] == results[1]["loss"] == results[2]["loss"] and results[0]["documents"] == 2
    assert seqloom("evaluate", "bert", "a.csv", "--column", "body", "--json").json["documents"] == 2
    seqloom("evaluate", runs / "chars", "a.csv").fails_with(
        2, "is a table with the columns n, body", "Name the text column", lines=1
    )


def test_pairs_in_files_and_tables_have_the_same_metrics(
    seqloom: Any, here: Path, translators: Path, pairs: Path
) -> None:
    sides = [(pairs / f"test.{language}").read_text().splitlines() for language in ("en", "de")]
    write_rows(here / "a.csv", [["de", "no", "en"], *([b, "x", a] for a, b in zip(*sides, strict=True))])
    named = ["a.csv", "--column", "en", "--label", "de"]
    results = [
        seqloom("evaluate", translators / "one", *files, "--json").json
        for files in ([pairs / "test.en", pairs / "test.de"], named, ["--split", "test"])
    ]
    assert results[0]["bleu"] == results[1]["bleu"] == results[2]["bleu"] and results[0]["pairs"] == len(sides[0])


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["pair", "reviews.csv"],
            2,
            "was not recognized as data for the task pair. Its columns: a, b. Name the columns",
        ),
        (["classifier", "reviews.csv", "--column", "c"], 3, "reviews.csv has no column 'c' for --column"),
        (["classifier", "--column", "a"], 2, "--column and --label require a file: add FILE after the run."),
        (["classifier", "--column", "reviews.csv"], 2, "To evaluate reviews.csv: seqloom evaluate RUN reviews.csv"),
        (["classifier", "missing.csv"], 3, "missing.csv does not exist"),
        (["answer", "questions.json", "--label", "x"], 2, "is a SQuAD file; leave them out"),
        (["score", "pairs.tsv"], 3, "every label must be a number"),
    ],
)
def test_unsuitable_file_is_reported_with_a_short_message(
    seqloom: Any, here: Path, words: list[str], code: int, message: str
) -> None:
    (here / "reviews.csv").write_text("a,b\n1,2\n3,4\n")
    seqloom("evaluate", *words).fails_with(code, message, lines=2)
