"""Tables with several labels per text: separators, lists, columns of 0 and 1, splits, and errors."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.understanding import TOPICS, tickets, write_tickets

from seqloom.config import build
from seqloom.core.errors import DataError, UsageError
from seqloom.data import corpora
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpora.table import split_labels
from seqloom.data.corpus import Corpus
from seqloom.data.examples import MultiLabelExample, TextClassificationExample, rarest_labels

NONE = {"dev_fraction": 0.0, "test_fraction": 0.0}


def load(path: Path, **settings: Any) -> Corpus[MultiLabelExample]:
    mapping = {"corpus": "table", "train": str(path), "text": "body", "multi_label": True, **settings}
    return corpora.load(build(CorpusConfig[TextClassificationExample], mapping))


def write_all_forms(folder: Path) -> dict[str, dict[str, Any]]:
    """Write the tickets in every form. Return the settings that read each file."""
    rows = tickets()
    write_tickets(folder / "joined.csv")
    tabs = [f"{text}\t{' | '.join(labels)}" for text, labels in rows]
    (folder / "joined.tsv").write_text("\n".join(["body\ttopics", *tabs]))
    (folder / "lists.jsonl").write_text("".join(json.dumps({"body": a, "topics": b}) + "\n" for a, b in rows))
    # The format that pandas writes
    (folder / "printed.csv").write_text("body,topics\n" + "".join(f'{a},"{b}"\n' for a, b in rows))
    flags = [f"{text},{','.join(str(int(label in labels)) for label in TOPICS)}" for text, labels in rows]
    (folder / "flags.csv").write_text("\n".join(["body," + ",".join(TOPICS), *flags]))
    return {
        "joined.csv": {"label": "topics", "label_separator": ";"},
        "joined.tsv": {"label": "topics", "label_separator": "|"},
        "lists.jsonl": {"label": "topics"},
        "printed.csv": {"label": "topics"},
        "flags.csv": {"label": list(TOPICS)},
    }


def test_all_forms_have_the_same_examples(tmp_path: Path) -> None:
    expected = [(text, tuple(sorted(labels))) for text, labels in tickets()]
    for name, settings in write_all_forms(tmp_path).items():
        corpus = load(tmp_path / name, **settings, **NONE)
        assert [(example.text, example.label_set) for example in corpus.split("train")] == expected, name
        assert corpus.labels == ("billing", "login", "urgent")
        assert corpus.label_counts("train") == dict(Counter(label for _, labels in expected for label in labels))
        empty = sum(not labels for _, labels in expected)
        assert empty and corpus.notes == (f"{empty} of the 120 training examples have no label",)


def test_folder_of_the_datasets_library_has_names_of_its_classes(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    names = list(TOPICS)
    columns = {"body": [a for a, _ in tickets()], "topics": [[names.index(label) for label in b] for _, b in tickets()]}
    classes = {"names": names, "_type": "ClassLabel"}
    for number, feature in enumerate(
        [{"feature": classes, "_type": "Sequence"}, {"feature": classes, "_type": "List"}, [classes]]
    ):
        features = {"body": {"dtype": "string", "_type": "Value"}, "topics": feature}
        table = pyarrow.table(columns).replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": features}})}
        )
        folder = tmp_path / str(number)
        folder.mkdir()
        parquet.write_table(table, folder / "data.parquet")
        corpus = load(folder, label="topics", **NONE)
        assert [set(example.label_set) for example in corpus.split("train")] == [set(labels) for _, labels in tickets()]


@pytest.mark.parametrize(
    ("cell", "labels"),
    [
        ("a;b; c", ["a", "b", "c"]),
        (";a;;", ["a"]),
        ("", []),
        ("[]", []),
        ("['a', 'b c']", ["a", "b c"]),
        ('["a", "b;c"]', ["a", "b;c"]),
        ("""['a', "b's"]""", ["a", "b's"]),
        ('["caf\\u00e9"]', ["café"]),
        ("[1, 2.5]", ["1", "2.5"]),
        ("[urgent];b", ["[urgent]", "b"]),
        ("[[1]]", ["[[1]]"]),
        ("[" * 100_000, ["[" * 100_000]),
    ],
)
def test_label_cells_are_split_at_separators(cell: str, labels: list[str]) -> None:
    assert split_labels(cell, ";") == labels


def test_order_and_repetition_of_labels_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("body,topics\none,b;a\ntwo,a;b;b\nthree,\n")
    examples = load(tmp_path / "a.csv", label="topics", label_separator=";", **NONE).split("train")
    assert examples[0].label_set == examples[1].label_set == ("a", "b")
    assert examples[2].label_set == () and examples[2].label == ""
    assert len({MultiLabelExample.of("x", labels).content() for labels in (["a, b"], ["a", "b"], ["a"], [])}) == 4


def test_labels_are_divided_evenly(tmp_path: Path) -> None:
    """Every split contains every label that is frequent enough, in about the requested fraction."""
    rows = [(f"text {number}", [f"l{k}" for k in range(8) if number % (k + 2) == 0]) for number in range(600)]
    corpus = load(write_tickets(tmp_path / "a.csv", rows), label="topics", label_separator=";")
    total = Counter(label for _, labels in rows for label in labels)
    for split in ("dev", "test"):
        counts = corpus.label_counts(split)
        assert len(corpus.split(split)) == pytest.approx(60, abs=4)
        assert all(counts[label] / count == pytest.approx(0.1, abs=0.05) for label, count in total.items())
        assert counts["l7"] == round(0.1 * total["l7"])  # the rarest label is divided exactly


def test_stratum_is_the_rarest_label() -> None:
    examples = [MultiLabelExample.of("x", labels) for labels in (["a", "b"], ["a"], ["a", "c"], ["c", "a"], [])]
    assert rarest_labels(examples) == ["b", "a", "c", "c", ""]
    assert rarest_labels([TextClassificationExample("x", "y")]) == ["y"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"label": ["a", "b"], "multi_label": False},
            r"several columns of labels, \['a', 'b'\], need multi_label: true",
        ),
        ({"label_separator": ";", "multi_label": False}, "label_separator needs multi_label: true"),
        ({"label": ["a", "b"], "label_separator": ";"}, "label_separator needs a single column"),
        ({"label_separator": ""}, "label_separator must have at least one character"),
        ({"label": ["body", "a"]}, "must be different columns"),
    ],
)
def test_inconsistent_settings_are_rejected(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(tmp_path / "a.csv", **settings)


def test_unusable_labels_are_reported(tmp_path: Path) -> None:
    (tmp_path / "flags.csv").write_text("body,a,b\none,0,1\ntwo,1,maybe\n")
    with pytest.raises(DataError, match=r"The column 'b' must have 0 or 1 in every row.* got 'maybe' at line 3 of"):
        load(tmp_path / "flags.csv", label=["a", "b"], **NONE)
    (tmp_path / "none.csv").write_text("body,topics\none,\ntwo,\n")
    with pytest.raises(DataError, match="must have labels, but no training example has one"):
        load(tmp_path / "none.csv", label="topics", **NONE)
    (tmp_path / "deep.jsonl").write_text('{"body": "one", "topics": [["a"]]}\n')
    with pytest.raises(DataError, match=r"'topics' at line 1 .* must be a string or a number"):
        load(tmp_path / "deep.jsonl", label="topics", **NONE)
    corpus = load(write_tickets(tmp_path / "a.csv"), label="topics", **NONE)  # without a separator
    assert "no training example has several labels; check data.label and data.label_separator" in corpus.notes
    (tmp_path / "lists.jsonl").write_text('{"text": "one", "label": ["a"]}\n{"text": "two", "label": ["b"]}\n')
    with pytest.raises(DataError, match="must be a string or a number"):  # control: a single label is not a list
        load(tmp_path / "lists.jsonl", text="text", label="label", multi_label=False, **NONE)


def test_labels_that_train_lacks_are_noted(tmp_path: Path) -> None:
    write_tickets(tmp_path / "train.csv")
    dev = write_tickets(tmp_path / "dev.csv", [("one", ["billing", "new"]), ("two", ["new"])])
    corpus = load(tmp_path / "train.csv", label="topics", label_separator=";", dev=str(dev), test_fraction=0.0)
    assert "2 dev labels are not in train (new): they count as missed" in corpus.notes
