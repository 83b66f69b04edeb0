"""Labelled texts in tables of the user: formats, splits, errors."""

import csv
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.config import build
from seqloom.core.errors import DataError, UsageError
from seqloom.data import corpora
from seqloom.data.corpus import Corpus
from seqloom.data.examples import TextClassificationExample
from seqloom.data.tables import column_names, read_table

NONE = {"dev_fraction": 0.0, "test_fraction": 0.0}


def load(path: Path | str, **settings: Any) -> Corpus[TextClassificationExample]:
    return corpora.load(
        build(corpora.CorpusConfig[TextClassificationExample], {"corpus": "table", "train": str(path), **settings})
    )


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\ufeff"), max_size=20)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=6))
def test_csv_round_trips(rows: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.csv")
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
        table = read_table(path, {"t": "text", "l": "label"})
    expected = [row for row in rows if any(cell.strip() for cell in row)]
    assert [(cells["t"], cells["l"]) for _, cells in table] == expected


@pytest.mark.parametrize("name", ["a.tsv", "a.txt.gz", "a.csv", "a.csv.gz", "a.jsonl", "a.ndjson.gz"])
def test_all_formats_are_read(tmp_path: Path, name: str) -> None:
    rows = [("1", 'a "fine" film', "good"), ("2", "so so", "bad")]
    if "json" in name:
        lines = [json.dumps({"id": int(i), "review": text, "stars": label}) for i, text, label in rows]
    elif "csv" in name:
        lines = ["id,review,stars", *(f'{i},"{text.replace(chr(34), chr(34) * 2)}",{label}' for i, text, label in rows)]
    else:
        lines = ["id\treview\tstars", *("\t".join(row) for row in rows)]
    path = write(tmp_path / name, "\ufeff" + "\r\n".join(lines) + "\n\n")
    corpus = load(path, text="review", label="stars", **NONE)
    assert corpus.split("train") == [
        TextClassificationExample('a "fine" film', "good"),
        TextClassificationExample("so so", "bad"),
    ]
    assert corpus.notes == ()
    assert set(column_names(path)) == {"id", "review", "stars"}


def test_columns_are_selected_by_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "good\tone\nbad\ttwo\n")
    assert load(path, text=2, label=1, **NONE).split("train")[0] == TextClassificationExample("one", "good")
    with_header = write(tmp_path / "b.tsv", "label\ttext\ngood\tone\nbad\ttwo\n")
    assert load(with_header, text=2, label=1, header=True, **NONE).split("train")[0] == TextClassificationExample(
        "one", "good"
    )


def test_semicolons_may_separate_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'label;text\n1;"a; b, c"\n0;d\n')
    assert load(path, **NONE).split("train") == [
        TextClassificationExample("a; b, c", "1"),
        TextClassificationExample("d", "0"),
    ]


def test_cell_may_span_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'text,label\n"one\ntwo",x\n\nthree,y\n')
    assert load(path, **NONE).split("train")[0] == TextClassificationExample("one\ntwo", "x")
    assert read_table(path, {"text": "text"}) == [(2, {"text": "one\ntwo"}), (5, {"text": "three"})]


def test_json_labels_are_converted_to_text(tmp_path: Path) -> None:
    rows = [
        {"text": "a", "label": 5},
        {"text": "b", "label": True},
        {"text": "c", "label": 2.5},
        {"text": 7, "label": "x"},
    ]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert [e.label for e in load(path, **NONE).split("train")] == ["5", "true", "2.5", "x"]


def test_text_of_100_000_words_is_read(tmp_path: Path) -> None:
    """By default, the csv module rejects cells of more than 131,072 characters."""
    limit = csv.field_size_limit()
    long = "word " * 100_000
    path = write(tmp_path / "a.csv", f"text,label\n{long},x\nb,y\n")
    assert load(path, **NONE).sizes("train")["words"] == 100_001
    assert csv.field_size_limit() == limit


def test_column_name_of_200_000_characters_is_read(tmp_path: Path) -> None:
    long = "x" * 200_000
    path = write(tmp_path / "a.csv", f"text,label,{long}\na,b,c\nd,e,f\n")
    assert column_names(path) == ["text", "label", long]
    assert [e.text for e in load(path, **NONE).split("train")] == ["a", "d"]


@pytest.mark.parametrize("content", [",,,\n,,,\n", '"",""\n"",""\n'])
def test_table_of_empty_cells_is_rejected(tmp_path: Path, content: str) -> None:
    path = write(tmp_path / "a.csv", content)
    message = r"a\.csv must contain rows with text, but every cell is empty"
    with pytest.raises(DataError, match=message):
        load(path, text=1, label=2)
    with pytest.raises(DataError, match=message):
        column_names(path)


def test_carriage_return_ends_header(tmp_path: Path) -> None:
    """A carriage return ends the header in the same way as any other row."""
    assert column_names(write(tmp_path / "a.csv", "te\rxt,label\na,b\n")) == ["te"]


# --- splits -----------------------------------------------------------------------------------------------------------


def test_held_out_fractions_are_stratified(tmp_path: Path) -> None:
    rows = [f"text {n}\t{'rare' if n % 10 == 0 else 'often'}\n" for n in range(200)]
    corpus = load(write(tmp_path / "a.tsv", "text\tlabel\n" + "".join(rows)))
    assert [corpus.label_counts(split) for split in corpus.splits] == [
        {"often": 144, "rare": 16},
        {"often": 18, "rare": 2},
        {"often": 18, "rare": 2},
    ]
    reordered = load(write(tmp_path / "b.tsv", "text\tlabel\n" + "".join(rows[::-1])))
    assert {e.text for e in corpus.split("test")} == {e.text for e in reordered.split("test")}


def test_equal_texts_are_in_the_same_split(tmp_path: Path) -> None:
    rows = [f"text {n % 20}\t{'x' if n % 3 else 'y'}\n" for n in range(200)]
    corpus = load(write(tmp_path / "a.tsv", "text\tlabel\n" + "".join(rows)), dev_fraction=0.2, test_fraction=0.2)
    texts = [{e.text for e in examples} for examples in corpus.splits.values()]
    assert sum(map(len, texts)) == len(set.union(*texts)) == 20
    assert corpus.notes == ("20 of the 20 different texts of train have more than one label",)


def test_separate_files_for_splits_must_not_overlap(tmp_path: Path) -> None:
    train = write(tmp_path / "a.tsv", "text\tlabel\na\tx\nb\ty\nc\tx\n")
    dev = write(tmp_path / "d.csv", "text,label\na,x\nd,z\n")
    corpus = load(train, dev=str(dev), test_fraction=0.0)
    assert corpus.split("dev") == [TextClassificationExample("a", "x"), TextClassificationExample("d", "z")]
    assert "1 of the 2 different texts of dev also occur in train" in corpus.notes
    assert "1 dev example has a label not in train (z): it counts as wrong" in corpus.notes
    assert "data.test_fraction is 0" in corpus.absent["test"]
    with pytest.raises(DataError, match=r"data.train and data.dev must not overlap, but both read"):
        load(train, dev=str(train))


def test_files_are_located_relative_to_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    write(tmp_path / "there/a.tsv", "text\tlabel\na\tx\n")
    monkeypatch.chdir(tmp_path)
    built = build(corpora.CorpusConfig[TextClassificationExample], {"corpus": "table", "train": "a.tsv"})
    assert built.locate(tmp_path / "there").train == str(tmp_path / "there/a.tsv")


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.csv",
            "review,stars\na,1\n",
            r"name the column 'text', but has \['review', 'stars'\]: set data.text to one",
        ),
        ("a.csv", "Text,label\na,1\n", r"did you mean data.text=Text\?"),
        ("a.csv", "text,text,label\na,b,1\n", r"name the column 'text' once, but it occurs 2 times"),
        ("a.tsv", "text\tlabel\na\tx\nb\n", r"Line 3 of .*a.tsv must have 2 columns.*but has 1 column: 'b'"),
        ("a.csv", "text,label\na,x\nb, no,y\n", r"Line 3 of .* must have 2 columns.*but has 3.*Quote texts"),
        (
            "a.csv",
            'text,label\n"a,x\nb,y\n',
            r"row that starts at line 2 of .* has a quotation mark that is never closed",
        ),
        ("a.csv", 'text,label\n"a" b,x\n', r"row that starts at line 2 of .* is not valid CSV"),
        ("a.csv", "text,label\n", "no rows below the header"),
        ("a.csv", "text,label\n ,x\nb,\n", "every row has a blank text or label"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', r"Line 2 of .* column 'label', but has \['text'\]"),
        ("a.jsonl", '{"text": "a", "label": 1\n', r"Line 1 of .* must be a JSON object: Expecting"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b', "the line is incomplete: the end of the file may be"),
        ("a.jsonl", '["a", 1]\n', "Line 1 of .* must be a JSON object, such as"),
        ("a.json", '[{"text": "a",\n "label": 1}]\n', "a JSON list is not JSON Lines"),
        (
            "a.jsonl",
            '{"text": "a", "label": [1]}\n',
            r"'label' at line 1 of .* must be a string or a number; got "
            r"\[1\]",
        ),
        ("a.jsonl", '{"text": "\\ud800", "label": 1}\n', "unpaired surrogate"),
        ("a.xls", "text,label\n", r"must end in .tsv, .csv, .jsonl or .parquet.*data.format"),
        ("a.csv", "", "is empty"),
        ("a.csv", "text,label\na,x\nb,x\nc,x\n", "at least two labels"),
        ("a.csv", "text,label\na,x\nb,y\n", "too short: dev and test need"),
    ],
)
def test_invalid_files_are_rejected(tmp_path: Path, name: str, text: str, message: str) -> None:
    settings = {} if "too short" in message or "two labels" in message else NONE
    with pytest.raises(DataError, match=message) as error:
        load(write(tmp_path / name, text), **settings)
    assert str(error.value).count("\n") <= 1


def test_excluded_examples_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\tlabel\na\tx\n \tx\nb\ty\n\ty\nc\t \nd\tx\ne\ty\n")
    corpus = load(path, **NONE)
    assert [e.text for e in corpus.split("train")] == ["a", "b", "d", "e"]
    assert corpus.notes == (
        f"2 examples have no text and were left out, the first at line 3 of {path}",
        f"1 example has no label and was left out, at line 6 of {path}",
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"text": 0}, "start at 1"),
        ({"text": "label"}, "must be different columns"),
        ({"header": False}, "must be column numbers"),
        ({"dev_fraction": 0.7, "test_fraction": 0.4}, "must be less than 1"),
        ({"format": "jsonl", "text": 1, "label": 2}, "with JSON Lines, .* must be names"),
        ({"train": "a.jsonl", "text": 1, "label": 2}, "with JSON Lines, .* must be names"),
        ({"format": "xml"}, "format"),
    ],
)
def test_invalid_settings_are_rejected(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(corpora.CorpusConfig[TextClassificationExample], {"corpus": "table", "train": "a.csv", **setting})
