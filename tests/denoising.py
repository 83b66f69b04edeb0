"""Recipes of tiny denoisers on the artificial language of `tests.masked`."""

from pathlib import Path
from typing import Any

from tests.masked import write_documents

from seqloom.config import apply_overrides, parse_overrides
from seqloom.recipes import build_recipe

RECIPE: dict[str, Any] = {
    "task": "denoise",
    "tokenizer": {"kind": "words"},
    "batch": {"tokens": 192, "max_length": 24, "dev_texts": 6},
    "model": {
        "kind": "start-token-transformer",
        "d_model": 16,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "d_ff": 32,
        "norm_first": True,
        "positions": {"kind": "rotary"},
        "tied": "all",
        "source_bos": 0,
    },
    "train": {"steps": 6, "lr": 0.01, "evaluate_every": 3, "log_every": 1, "device": "cpu"},
}
KINDS = ("spans", "bart")


def denoise_recipe(folder: Path, *overrides: str) -> Any:
    words = [*write_documents(folder), *overrides]
    return build_recipe(apply_overrides(RECIPE, parse_overrides(words)), "the recipe")
