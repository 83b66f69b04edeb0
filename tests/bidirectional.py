"""Recipes of tiny bidirectional language models on the artificial language of `tests.masked`."""

from pathlib import Path
from typing import Any

from tests.masked import write_documents

from seqloom.config import apply_overrides, parse_overrides
from seqloom.recipes import build_recipe

RECIPE: dict[str, Any] = {
    "task": "bidirectional-lm",
    "tokenizer": {"kind": "words"},
    "batch": {"tokens": 256, "max_length": 24},
    "model": {"kind": "bilm", "hidden": 16, "layers": 2},
    "train": {"steps": 6, "lr": 0.01, "evaluate_every": 3, "log_every": 1, "device": "cpu"},
}


def bidirectional_recipe(folder: Path, *overrides: str) -> Any:
    words = [*write_documents(folder), *overrides]
    return build_recipe(apply_overrides(RECIPE, parse_overrides(words)), "the recipe")
