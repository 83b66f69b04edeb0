"""Files and recipes of small classifiers and taggers."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from seqloom.config import apply_overrides, parse_overrides
from seqloom.core.tree import pack
from seqloom.recipes import build_recipe
from seqloom.runs import record
from seqloom.runs.run import Run
from seqloom.training import begin

GOOD, BAD = ("gripping", "funny", "warm", "clever"), ("dull", "bland", "tired", "clumsy")
THINGS = ("film", "plot", "cast", "story")
PEOPLE, PLACES = ("Ann", "Bob", "Cy", "Dee", "Eve"), ("Rome", "Oslo", "New Delhi", "Bonn", "São Paulo")
VERBS = ("lives", "works", "sings")
TOPICS = {"billing": ("invoice", "refund"), "login": ("password", "account"), "urgent": ("now", "today")}

CLASSIFY: dict[str, Any] = {
    "task": "classify",
    "tokenizer": {"kind": "words", "split": "punctuation"},
    "batch": {"tokens": 64, "max_length": 20},
    "model": {
        "kind": "classifier",
        "embedding": 12,
        "encoder": {"kind": "recurrent", "cell": "gru", "hidden": 8},
        "dropout": 0.1,
    },
    "train": {"steps": 40, "lr": 0.02, "evaluate_every": 20, "log_every": 5, "device": "cpu"},
}
TAG: dict[str, Any] = {
    "task": "tag",
    "tokenizer": {"kind": "words", "min_count": 2},
    "batch": {"tokens": 64, "max_length": 24},
    "model": {
        "kind": "tagger",
        "embedding": 12,
        "characters": {"kind": "cnn", "embedding": 6, "filters": 8, "widths": [2, 3]},
        "encoder": {"kind": "recurrent", "cell": "gru", "hidden": 8},
        "dropout": 0.1,
    },
    "train": {"steps": 60, "lr": 0.02, "evaluate_every": 30, "log_every": 5, "device": "cpu"},
}


def reviews() -> list[tuple[str, str]]:
    """Return distinct texts with their labels."""
    texts = [
        (f"a {word}, {other} {thing}", label)
        for label, words in (("good", GOOD), ("bad", BAD))
        for word in words
        for other in words
        for thing in THINGS
    ]
    return [texts[53 * index % len(texts)] for index in range(len(texts))]  # 53 and 128 have no common divisor


def write_reviews(path: Path, rows: list[tuple[str, str]] | None = None) -> Path:
    lines = [f'"{text}",{label}' for text, label in (reviews() if rows is None else rows)]
    path.write_text("\n".join(["review,verdict", *lines]) + "\n", encoding="utf-8")
    return path


def tickets(count: int = 120) -> list[tuple[str, list[str]]]:
    """Return texts with their labels. Each label has two words, and a text contains one of them."""
    rows = []
    for number in range(count):
        labels = [label for bit, label in enumerate(TOPICS) if (number * 5 // 3) >> bit & 1]
        words = [TOPICS[label][(number + bit) % 2] for bit, label in enumerate(labels)]
        rows.append((" ".join(["hello", *words, f"ticket{number % 7}", f"x{number}"]), labels))
    return rows


def write_tickets(path: Path, rows: list[tuple[str, list[str]]] | None = None) -> Path:
    lines = [f"{text},{';'.join(labels)}" for text, labels in (tickets() if rows is None else rows)]
    path.write_text("\n".join(["body,topics", *lines]) + "\n", encoding="utf-8")
    return path


def ticket_recipe(folder: Path, *overrides: str) -> Any:
    """Return a recipe of a multi-label classifier."""
    file = folder / "tickets.csv"
    if not file.exists():
        write_tickets(file)
    labels = {"label": "topics", "multi_label": True, "label_separator": ";"}
    data = {"corpus": "table", "train": str(file), "text": "body", **labels, "dev_fraction": 0.2}
    return build_recipe(apply_overrides({**CLASSIFY, "data": data}, parse_overrides(overrides)), "the recipe")


def sentences() -> list[list[tuple[str, str]]]:
    """Return sentences of words and tags about who lives where."""
    rows = []
    for person in PEOPLE:
        for verb in VERBS:
            for city in PLACES:
                where = city.split()
                tags = ["B-LOC", *["I-LOC"] * (len(where) - 1)]
                rows.append([(person, "B-PER"), (verb, "O"), ("in", "O"), *zip(where, tags, strict=True), (".", "O")])
    return [rows[31 * index % len(rows)] for index in range(len(rows))]  # 31 and 75 have no common divisor


def write_sentences(path: Path, rows: list[list[tuple[str, str]]] | None = None) -> Path:
    blocks = [
        "".join(f"{word}\t{tag}\n" for word, tag in sentence) for sentence in (sentences() if rows is None else rows)
    ]
    path.write_text("\n".join(blocks), encoding="utf-8")
    return path


def classify_recipe(folder: Path, *overrides: str) -> Any:
    file = folder / "reviews.csv"
    if not file.exists():
        write_reviews(file)
    data = {"corpus": "table", "train": str(file), "text": "review", "label": "verdict"}
    return build_recipe(apply_overrides({**CLASSIFY, "data": data}, parse_overrides(overrides)), "the recipe")


def tag_recipe(folder: Path, *overrides: str) -> Any:
    file = folder / "mine.conll"
    if not file.exists():
        write_sentences(file)
    data = {"corpus": "conll", "train": str(file)}
    return build_recipe(apply_overrides({**TAG, "data": data}, parse_overrides(overrides)), "the recipe")


def trained(recipe: Any, out: Path) -> Path:
    """Train a recipe until it has finished."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(os, "fsync", lambda handle: None)
        monkeypatch.setattr(record, "open_tensorboard", lambda run, step: None)
        for _ in begin(recipe, out).events():
            pass
    return out


def assert_same_checkpoints(first: Path, second: Path) -> None:
    """Compare the newest checkpoints of two runs exactly, including weights, optimizer and tally."""
    (values, tensors), (other_values, other_tensors) = (pack(newest(run)) for run in (first, second))
    assert values == other_values
    assert all(torch.equal(tensors[name], other_tensors[name]) for name in tensors.keys() | other_tensors.keys())


def newest(run: Path) -> Any:
    checkpoint = Run.open(run).store().load()
    assert checkpoint is not None
    return checkpoint.parts
