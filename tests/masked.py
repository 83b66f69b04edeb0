"""Documents of an artificial language, and recipes for tiny masked language models of this language."""

import random
from pathlib import Path
from typing import Any

from seqloom.config import apply_overrides, parse_overrides
from seqloom.recipes import build_recipe

SUBJECTS = {"cats": ("purr", "milk"), "dogs": ("bark", "bones"), "owls": ("hoot", "mice"), "cows": ("moo", "grass")}
RECIPE: dict[str, Any] = {
    "task": "masked-lm",
    "tokenizer": {"kind": "words"},
    "batch": {"size": 8, "max_length": 24},
    "model": {"kind": "bert", "d_model": 16, "heads": 2, "layers": 1, "d_ff": 32},
    "train": {"steps": 6, "lr": 0.01, "evaluate_every": 3, "log_every": 1, "device": "cpu"},
}


def document(draw: random.Random) -> str:
    """Draw a document about one animal."""
    who = draw.choice(list(SUBJECTS))
    sound, food = SUBJECTS[who]
    sentences = (
        f"The {who} {sound} all day .",
        f"We hear them {sound} .",
        f"They eat {food} .",
        f"{food} is what {who} eat .",
    )
    return " ".join(draw.choice(sentences) for _ in range(draw.randint(4, 9)))


def write_documents(folder: Path) -> list[str]:
    """Write files with one document per line. Return the overrides that read them."""
    overrides = ["data.corpus=text", "data.documents=line"]
    for seed, (split, count) in enumerate({"train": 60, "dev": 12, "test": 40}.items()):
        draw, file = random.Random(seed), folder / f"{split}.txt"
        file.write_text("".join(f"{document(draw)}\n" for _ in range(count)), encoding="utf-8")
        overrides.append(f"data.{split}={file}")
    return overrides


def masked_recipe(folder: Path, *overrides: str) -> Any:
    words = [*write_documents(folder), *overrides]
    return build_recipe(apply_overrides(RECIPE, parse_overrides(words)), "the recipe")
