"""Recognition of several labels per text: separators, lists, columns of 0 and 1, and tables without such labels."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.data.test_multi_label_tables import write_all_forms
from tests.understanding import TOPICS, tickets, write_tickets

from seqloom.core.errors import UsageError
from seqloom.data.detect import detect
from seqloom.data.label_columns import are_flags, are_lists, are_parallel, find_separator

CHOICE = random.Random(1)
TEXTS = [f"please help with order number {number}" for number in range(120)]


def data_of(path: Path, **options: Any) -> dict[str, Any]:
    detected = detect([path], **options)
    assert detected.task == "classify"
    return dict(detected.data)


def test_every_form_is_recognized(tmp_path: Path) -> None:
    """The recognized settings equal those that read the file."""
    for name, settings in write_all_forms(tmp_path).items():
        data = data_of(tmp_path / name)
        expected = {"multi_label": True, **settings, "text": "body"}
        expected["label"] = tuple(expected["label"]) if isinstance(expected["label"], list) else expected["label"]
        assert {key: data.get(key) for key in expected} == expected, name


def test_detected_labels_are_described_with_columns_and_separator(tmp_path: Path) -> None:
    write_all_forms(tmp_path)
    reasons = {name: detect([tmp_path / name]).reason for name in ("joined.csv", "lists.jsonl", "flags.csv")}
    assert reasons == {
        "joined.csv": 'texts in the column "body", several labels in the column "topics", separated by ";"',
        "lists.jsonl": 'texts in the column "body", lists of labels in the column "topics"',
        "flags.csv": 'texts in the column "body", labels in 3 columns of 0 and 1: billing, login, urgent',
    }


def test_table_without_header_is_recognized(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"{text}\t{'|'.join(labels)}\n" for text, labels in tickets()))
    data = data_of(tmp_path / "a.tsv")
    assert (data["text"], data["label"], data["label_separator"]) == (1, 2, "|")
    rows = "".join(f'{text},"{", ".join(labels)}"\n' for text, labels in tickets())
    (tmp_path / "b.csv").write_text(f"what,where\n{rows}")  # unusual names
    data = data_of(tmp_path / "b.csv")
    assert (data["text"], data["label"], data["label_separator"]) == ("what", "where", ",")


def test_numbered_rows_are_not_a_series(tmp_path: Path) -> None:
    rows = [
        f"{n},{text},{','.join(str(int(label in labels)) for label in TOPICS)}"
        for n, (text, labels) in enumerate(tickets())
    ]
    (tmp_path / "a.csv").write_text("\n".join([f"id,comment_text,{','.join(TOPICS)}", *rows]))
    assert data_of(tmp_path / "a.csv")["label"] == tuple(TOPICS)


SINGLE = {
    "names with commas": ["Books, Movies & Music", "Clothing, Shoes", "Home"],
    "authors": ["Smith, John", "Doe, Jane", "Roe, Richard"],
    "decimal commas": ["1,5", "2,5", "3,0"],
    "sentences": ["yes, I think so", "no, I do not", "maybe"],
}


@pytest.mark.parametrize("name", SINGLE)
def test_single_labels_with_separators_are_not_split(tmp_path: Path, name: str) -> None:
    cells = [CHOICE.choice(SINGLE[name]) for _ in TEXTS]
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f'{a},"{b}"\n' for a, b in zip(TEXTS, cells, strict=True)))
    assert find_separator(cells) is None
    assert "multi_label" not in data_of(tmp_path / "a.csv")


def test_selected_label_column_takes_precedence_over_flags(tmp_path: Path) -> None:
    rows = [f"{text},{CHOICE.choice('01')},{CHOICE.choice('01')}" for text in TEXTS]
    (tmp_path / "a.csv").write_text("\n".join(["text,label,is_new", *rows]))
    assert data_of(tmp_path / "a.csv") == {
        "corpus": "table",
        "text": "text",
        "label": "label",
        "train": str(tmp_path / "a.csv"),
    }


def test_words_and_tags_are_not_labels(tmp_path: Path) -> None:
    rows = [{"text": text, "tokens": text.split(), "ner_tags": ["O"] * len(text.split())} for text in TEXTS]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UsageError, match="was not recognized"):
        detect([tmp_path / "a.jsonl"])
    assert are_parallel([["a", "b"]], [["c", "d"]]) and not are_parallel([["a", "b"]], [["c"]])
    assert not are_parallel([["a"], ["b"]], [["c"], ["d"]])  # single labels in lists


def test_detected_settings_can_be_overridden(tmp_path: Path) -> None:
    write_tickets(tmp_path / "a.csv")
    assert "multi_label" not in data_of(tmp_path / "a.csv", multi_label=False)
    cells = ["red, green", "blue"] * 60
    (tmp_path / "b.csv").write_text("text,label\n" + "".join(f'{a},"{b}"\n' for a, b in zip(TEXTS, cells, strict=True)))
    assert "multi_label" not in data_of(tmp_path / "b.csv")
    assert data_of(tmp_path / "b.csv", multi_label=True)["label_separator"] == ","
    (tmp_path / "c.csv").write_text("text,label\n" + "".join(f"{a},{n % 3}\n" for n, a in enumerate(TEXTS)))
    data = data_of(tmp_path / "c.csv", multi_label=True)
    assert data["multi_label"] and "label_separator" not in data


def test_columns_of_flags_and_lists_are_recognized() -> None:
    assert are_flags([0, 1, None]) and are_flags(["0", "1.0", ""]) and are_flags([True, False])
    assert not are_flags(["0", "2"]) and not are_flags(["", None])
    assert are_lists([["a"], ["a", "b"], ["b"], []]) and are_lists(["['a']", "['a', 'b']", "['b']"])
    assert not are_lists([["a", ["b"]]]) and not are_lists(["a", "b"]) and not are_lists([[str(n)] for n in range(9)])
