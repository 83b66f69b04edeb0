"""Small text files in a temporary folder, and recipes that use them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seqloom.config import apply_overrides, build, parse_overrides
from seqloom.runs import record
from seqloom.tasks import task_info

TRAIN = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog", "on the mat the cat sat", "the end"]
DEV = ["the cat sat on a log", "a dög and the cat"]  # ö is not in the training text
TEST = ["the dog and the end", "", "a mat"]


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., Any]:
    for name, documents in (("train", TRAIN), ("dev", DEV), ("test", TEST)):
        (tmp_path / f"{name}.txt").write_text("\n".join(documents) + "\n", encoding="utf-8")
    files = {name: str(tmp_path / f"{name}.txt") for name in ("train", "dev", "test")}
    recipes: dict[str, dict[str, Any]] = {
        "language-model": {
            "task": "language-model",
            "batch": {"size": 3, "length": 8},
            "model": {"kind": "recurrent-lm", "hidden": 6, "embedding": 5},
            "train": {"steps": 6, "lr": 0.02, "evaluate_every": 3, "log_every": 1, "device": "cpu"},
        },
        "ngram": {"task": "ngram", "model": {"kind": "ngram", "order": 3}},
    }

    def make(*overrides: str, task: str = "language-model") -> Any:
        shared = {"data": {"corpus": "text", "documents": "line", **files}, "tokenizer": {"kind": "characters"}}
        return build(task_info(task).recipe, apply_overrides({**recipes[task], **shared}, parse_overrides(overrides)))

    return make


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(record, "open_tensorboard", lambda run, step: None)
