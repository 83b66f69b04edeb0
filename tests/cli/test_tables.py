"""Table input and table output with `--in`, `--column` and `--out`, and `seqloom evaluate RUN FILE`."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from tests.understanding import sentences, write_reviews, write_sentences

TABLE = 'id,body,note\n7,"a dull, ""long"" film\nin two lines",ä\n8,a fine film 😀,\n9,,blank\n'


@pytest.fixture
def run(seqloom: Any, workdir: Path) -> Path:
    write_reviews(workdir / "reviews.csv")
    assert seqloom("init", "reviews.csv", "--no-estimate").code == 0
    assert seqloom("train", "reviews.yaml", "train.steps=2", "train.warmup=0", "--out", "runs/reviews").code == 0
    (workdir / "in.csv").write_text(TABLE)
    return workdir / "runs/reviews"


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_labels_are_added_to_all_columns(seqloom: Any, workdir: Path, run: Path) -> None:
    result = seqloom("classify", "runs/reviews", "--in", "in.csv", "--column", "body", "--out", "out.csv")
    assert result.code == 0, result.err
    assert "out.csv has 3 rows; new columns: label, probability" in result.err
    rows = rows_of(workdir / "out.csv")
    original = list(csv.DictReader(TABLE.splitlines(keepends=True)))
    assert [{key: row[key] for key in original[0]} for row in rows] == original
    texts = ['a dull, "long" film in two lines', "a fine film 😀"]
    expected = [json.loads(line) for line in seqloom("classify", "runs/reviews", *texts, "--json").out.splitlines()]
    assert [row["label"] for row in rows[:2]] == [line["label"] for line in expected]
    assert float(rows[0]["probability"]) == pytest.approx(expected[0]["probability"], abs=1e-5)
    assert rows[2]["label"] == ""  # the text is blank


def test_every_output_format_has_the_same_labels(seqloom: Any, workdir: Path, run: Path) -> None:
    command = ["classify", "runs/reviews", "--in", "in.csv", "--column", "2", "--top", "2"]
    for name in ("out.csv", "out.tsv", "out.jsonl"):
        assert seqloom(*command, "--out", name).code == 0
    labels = [row["label"] for row in rows_of(workdir / "out.csv")][:2]
    objects = [json.loads(line) for line in (workdir / "out.jsonl").read_text().splitlines()]
    assert [item["label"] for item in objects][:2] == labels
    assert {item["label"] for item in objects[:1]} | {objects[0]["label_2"]} == {"good", "bad"}
    assert "ä" in (workdir / "out.jsonl").read_text() and "😀" in (workdir / "out.jsonl").read_text()
    head, *lines = (workdir / "out.tsv").read_text().splitlines()
    assert head.split("\t")[:4] == ["id", "body", "note", "label"] and len(lines) == 3
    pytest.importorskip("pyarrow")
    assert seqloom(*command, "--out", "out.parquet").code == 0
    assert (
        seqloom("classify", "runs/reviews", "--in", "out.parquet", "--column", "body", "--out", "again.csv").code == 0
    )
    again = rows_of(workdir / "again.csv")
    assert [row["predicted_label"] for row in again][:2] == labels  # the input has a column with this name


def test_table_is_printed_without_out(seqloom: Any, run: Path) -> None:
    result = seqloom("classify", "runs/reviews", "--in", "in.csv", "--column", "body")
    assert list(csv.DictReader(result.out.splitlines(keepends=True)))[1]["id"] == "8"


def test_table_of_words_is_tagged(seqloom: Any, workdir: Path) -> None:
    write_sentences(workdir / "mine.conll", list(sentences()))
    assert seqloom("init", "mine.conll", "--no-estimate").code == 0
    assert seqloom("train", "mine.yaml", "train.steps=1", "train.warmup=0", "--out", "runs/tag").code == 0
    (workdir / "in.tsv").write_text("text\tid\nAnn lives in Rome.\t1\n")
    assert seqloom("tag", "runs/tag", "--in", "in.tsv", "--out", "out.jsonl").code == 0
    item = json.loads((workdir / "out.jsonl").read_text())
    assert item["id"] == "1" and isinstance(item["spans"], list) and item["tagged"].startswith("Ann")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--column", "body"], "--column and --out require a table: add --in FILE"),
        (["a text", "--in", "in.csv"], "Texts and --in cannot be used together"),
        (["--in", "in.csv"], "Name 1 column of in.csv with --column. The columns are id, body, note"),
        (["--in", "in.csv", "--column", "bodi"], "no column 'bodi' for --column: did you mean body?"),
        (["--in", "in.csv", "--column", "body", "--out", "in.csv"], "in.csv exists"),
        (["--in", "in.csv", "--column", "body", "--out", "out.xls"], "--out must end in .csv"),
        (["--in", "in.conll"], "--in must be a .csv"),
    ],
)
def test_wrong_options_are_rejected(seqloom: Any, run: Path, options: list[str], message: str) -> None:
    seqloom("classify", "runs/reviews", *options).fails_with(2, message, lines=1)


# --- evaluation -------------------------------------------------------------------------------------------------------


def test_labelled_file_is_evaluated(seqloom: Any, workdir: Path, run: Path) -> None:
    """A copy with other column names gives the same accuracy as the training file."""
    content = (workdir / "reviews.csv").read_text()
    (workdir / "other.csv").write_text(content.replace("review,verdict", "text,label", 1))
    results = [
        json.loads(seqloom("evaluate", "runs/reviews", name, "--json").out) for name in ("reviews.csv", "other.csv")
    ]
    assert results[0]["accuracy"] == results[1]["accuracy"]
    assert results[0]["data"] == "reviews.csv"
    metrics = workdir / "runs/reviews/metrics"
    assert not (metrics / "other.json").exists()  # only splits of the run are stored


def test_run_is_usable_without_its_data(seqloom: Any, workdir: Path, run: Path) -> None:
    (workdir / "reviews.csv").rename(workdir / "moved.csv")
    assert seqloom("classify", "runs/reviews", "a fine film").code == 0
    assert seqloom("evaluate", "runs/reviews", "moved.csv").code == 0


def test_split_and_file_exclude_each_other(seqloom: Any, run: Path) -> None:
    seqloom("evaluate", "runs/reviews", "reviews.csv", "--split", "dev").fails_with(
        2, "cannot be used together with --split", lines=1
    )
    seqloom("evaluate", "runs/reviews", "reviews.csv", "in.csv").fails_with(2, "is a classifier", lines=1)
