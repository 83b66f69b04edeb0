"""Files, runs and recipes for tests of prompts, prompt tuning and instruction tuning."""

import json
from pathlib import Path
from typing import Any

from tests.fine_tuning import pretrained_run
from tests.understanding import reviews, write_reviews

from seqloom.config import apply_overrides, parse_overrides
from seqloom.recipes import build_recipe

TRAIN: dict[str, Any] = {"steps": 30, "lr": 0.05, "evaluate_every": 15, "log_every": 5, "device": "cpu"}


def tune_recipe(folder: Path, run: Path, *overrides: str) -> Any:
    """Return a recipe of a soft prompt that classifies reviews."""
    file = folder / "reviews.csv"
    if not file.exists():
        write_reviews(file, reviews()[:60])
    mapping = {
        "task": "prompt-tune",
        "init": {"from": str(run)},
        "data": {"corpus": "table", "train": str(file), "text": "review", "label": "verdict"},
        "batch": {"tokens": 256},
        "model": {"length": 3},
        "train": TRAIN,
    }
    return build_recipe(apply_overrides(mapping, parse_overrides(overrides)), "the recipe")


def instructions() -> list[dict[str, Any]]:
    """Return instructions that ask for the label or the last word of a review."""
    rows: list[dict[str, Any]] = []
    for number, (text, label) in enumerate(reviews()[:80]):
        if number % 2:
            rows.append({"instruction": "verdict", "input": text, "output": label})
        else:
            rows.append({"instruction": f"the last of {text}", "output": text.split()[-1]})
    return rows


def write_instructions(path: Path, rows: list[dict[str, Any]] | None = None) -> Path:
    lines = [json.dumps(row) for row in (instructions() if rows is None else rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def instruct_mapping(folder: Path, run: Path) -> dict[str, Any]:
    file = folder / "mine.jsonl"
    if not file.exists():
        write_instructions(file)
    return {
        "task": "instruct",
        "init": {"from": str(run)},
        "data": {"corpus": "instructions", "train": str(file)},
        "template": "do {instruction}\nto {input}\n= {output}",
        "batch": {"tokens": 256},
        "train": {**TRAIN, "lr": 0.01},
    }


def instruct_recipe(folder: Path, run: Path, *overrides: str) -> Any:
    mapping = apply_overrides(instruct_mapping(folder, run), parse_overrides(overrides))
    return build_recipe(mapping, "the recipe")


def wide_gpt(folder: Path) -> Path:
    """Create a run of a GPT whose context is long enough for these examples."""
    return pretrained_run(folder, "gpt", positions={"kind": "rotary"}, context=96)
