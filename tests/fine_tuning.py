"""Small runs with random weights that replace pretrained runs, and recipes that start from these runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tests.understanding import CLASSIFY, TAG, reviews, sentences, write_reviews, write_sentences
from torch import Tensor

from seqloom.config import apply_overrides, build, parse_overrides, to_mapping
from seqloom.models import MODELS
from seqloom.recipes import build_recipe
from seqloom.runs.run import Run
from seqloom.text import BytePairConfig, Tokenizer, train_tokenizer

POSITIONS = {"kind": "learned", "max_length": 32}
SHAPE: dict[str, Any] = {
    "d_model": 12,
    "heads": 2,
    "layers": 2,
    "d_ff": 16,
    "positions": POSITIONS,
    "dropout": 0.0,
}
SHAPES: dict[str, dict[str, Any]] = {
    "recurrent-lm": {"hidden": 10, "embedding": 8, "layers": 2, "tied": True},
    "gpt": SHAPE,
    "bert": SHAPE,
    "electra": SHAPE,
    "bilm": {"hidden": 6, "layers": 2, "tied": True},
}
KINDS = tuple(SHAPES)
TASKS = {"bert": "masked-lm", "electra": "masked-lm", "bilm": "bidirectional-lm"}
VECTORS = {
    "recurrent-lm": "embed.weight",
    "bilm": "backbone.embed.weight",
}  # names of the token embeddings in a pretrained model


def token_vectors(kind: str, weights: Mapping[str, Tensor]) -> Tensor:
    """Return the token embeddings of a pretrained model."""
    return weights[VECTORS.get(kind, "backbone.embedded.embed.weight")]


def tokenizer() -> Tokenizer:
    words = [" ".join(word for word, _ in sentence) for sentence in sentences()]
    return train_tokenizer(BytePairConfig(size=300), [*(text for text, _ in reviews()), *words])


def pretrained_run(folder: Path, kind: str, **changes: Any) -> Path:
    """Create a run with random weights of a model of this kind."""
    torch.manual_seed(7)
    config, run_tokenizer = build(MODELS.find(kind), {"kind": kind, **SHAPES[kind], **changes}), tokenizer()
    model = config.build(len(run_tokenizer))
    with torch.no_grad():
        for parameter in model.parameters():  # no weight is zero, as after training
            parameter += 0.1 * torch.randn_like(parameter)
    recipe = {
        "task": TASKS.get(kind, "language-model"),
        "seed": 1,
        "tokenizer": {"kind": "byte-pair"},
        "model": to_mapping(config),
    }
    data = {"corpus": "text", "version": "1", "licence": "", "sha256": {}, "counts": {}}
    Run.create(
        folder, recipe, {"tokenizer.json": run_tokenizer.to_json(), "data.json": data}, weights=model.state_dict()
    )
    return folder


def classify_mapping(folder: Path, run: Path) -> dict[str, Any]:
    file = folder / "reviews.csv"
    if not file.exists():
        write_reviews(file)
    base = {key: value for key, value in CLASSIFY.items() if key != "tokenizer"}
    data = {"corpus": "table", "train": str(file), "text": "review", "label": "verdict"}
    return {**base, "init": {"from": str(run)}, "data": data, "model": {"kind": "fine-tuned-classifier"}}


def classify_recipe(folder: Path, run: Path, *overrides: str) -> Any:
    return build_recipe(apply_overrides(classify_mapping(folder, run), parse_overrides(overrides)), "the recipe")


def tag_recipe(folder: Path, run: Path, *overrides: str) -> Any:
    file = folder / "mine.conll"
    if not file.exists():
        write_sentences(file)
    base = {key: value for key, value in TAG.items() if key != "tokenizer"}
    data = {"corpus": "conll", "train": str(file)}
    mapping = {**base, "init": {"from": str(run)}, "data": data, "model": {"kind": "fine-tuned-tagger"}}
    return build_recipe(apply_overrides(mapping, parse_overrides(overrides)), "the recipe")
