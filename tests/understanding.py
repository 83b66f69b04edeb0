"""Small classifiers and taggers on files of one's own, for the tests of everything that uses them."""

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
    """Texts and their labels; each text once."""
    texts = [
        (f"a {one}, {other} {thing}", label)
        for label, words in (("good", GOOD), ("bad", BAD))
        for one in words
        for other in words
        for thing in THINGS
    ]
    return [texts[53 * place % len(texts)] for place in range(len(texts))]  # 53 and 128 have no common divisor


def write_reviews(path: Path, rows: list[tuple[str, str]] | None = None) -> Path:
    lines = [f'"{text}",{label}' for text, label in (reviews() if rows is None else rows)]
    path.write_text("\n".join(["review,verdict", *lines]) + "\n", encoding="utf-8")
    return path


def sentences() -> list[list[tuple[str, str]]]:
    """Words and their tags: who lives where."""
    found = []
    for person in PEOPLE:
        for verb in VERBS:
            for place in PLACES:
                where = place.split()
                tags = ["B-LOC", *["I-LOC"] * (len(where) - 1)]
                found.append([(person, "B-PER"), (verb, "O"), ("in", "O"), *zip(where, tags, strict=True), (".", "O")])
    return [found[31 * place % len(found)] for place in range(len(found))]  # 31 and 75 have no common divisor


def write_sentences(path: Path, made: list[list[tuple[str, str]]] | None = None) -> Path:
    blocks = ["".join(f"{word}\t{tag}\n" for word, tag in one) for one in (sentences() if made is None else made)]
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
    """Train a recipe to its end."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(os, "fsync", lambda handle: None)
        monkeypatch.setattr(record, "open_tensorboard", lambda run, step: None)
        for _ in begin(recipe, out).events():
            pass
    return out


def assert_same_checkpoints(one: Path, other: Path) -> None:
    """The newest of two runs, whole: weights, optimizer, tally, to the bit."""
    (left, its), (right, others) = (pack(newest(run)) for run in (one, other))
    assert left == right
    assert all(torch.equal(its[name], others[name]) for name in its.keys() | others.keys())


def newest(run: Path) -> Any:
    checkpoint = Run.open(run).store().load()
    assert checkpoint is not None
    return checkpoint.parts
