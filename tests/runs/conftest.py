"""Small recipes for the toy corpus, and file access without fsync."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from seqloom.config import apply_overrides, build, parse_overrides
from seqloom.runs import record
from seqloom.tasks import task_info

TOYS = {"corpus": "toys", "train": 60, "dev": 6, "test": 6, "max_length": 6}
RECIPES: dict[str, dict[str, Any]] = {
    "language-model": {
        "task": "language-model",
        "seed": 3,
        "data": TOYS,
        "tokenizer": {"kind": "characters"},
        "batch": {"size": 4, "length": 8},
        "model": {"kind": "recurrent-lm", "cell": "gru", "hidden": 8, "dropout": 0.2},
        "train": {"steps": 12, "lr": 0.02, "evaluate_every": 4, "log_every": 3, "device": "cpu"},
    },
    "ngram": {
        "task": "ngram",
        "data": TOYS,
        "tokenizer": {"kind": "characters"},
        "model": {"kind": "ngram", "order": 3},
    },
}


@pytest.fixture(scope="session")
def recipe() -> Callable[..., Any]:
    def make(*overrides: str, task: str = "language-model") -> Any:
        mapping = apply_overrides(RECIPES[task], parse_overrides(overrides))
        return build(task_info(task).recipe, mapping)

    return make


@pytest.fixture(autouse=True)
def skip_fsync_and_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(record, "open_tensorboard", lambda run, step: None)
