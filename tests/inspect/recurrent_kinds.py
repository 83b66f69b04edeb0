"""Small trained models of every kind that has recurrent cells, which tests share."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tests.bidirectional import bidirectional_recipe
from tests.understanding import classify_recipe, tag_recipe, trained

from seqloom.models.recurrent_seq2seq import AttentionConfig, RecurrentSeq2SeqConfig
from seqloom.predict.loader import load
from seqloom.text.vocabularies import Characters

LETTERS = "abcdefghijklmno "
SOURCE, TARGET = "a big cabin", "ein heim"
QUICK = ("train.steps=1", "train.evaluate_every=1")


def translator(attention: dict[str, Any] | None = None, **options: Any) -> Any:
    """Build a translator whose weights are large enough for all gates to vary."""
    torch.manual_seed(2)
    tokenizer = Characters(LETTERS)
    looks = None if attention is None else AttentionConfig(**attention)
    config = RecurrentSeq2SeqConfig(**{"hidden": 6, "embedding": 4, "attention": looks, **options})
    model = config.build(len(tokenizer))
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -0.6, 0.6)
    return SimpleNamespace(model=model.eval(), tokenizer=tokenizer, name="runs/x", what="a translator")


def loaded(recipe: Any, out: Path) -> Any:
    predictor = load(trained(recipe, out), "cpu")
    torch.manual_seed(3)
    for parameter in predictor.model.parameters():
        torch.nn.init.uniform_(parameter, -0.6, 0.6)
    return predictor


TRANSLATORS: dict[str, Callable[[], Any]] = {
    "no attention": lambda: translator(None, cell="lstm", encoder_layers=2, decoder_layers=2),
    "no attention, reversed": lambda: translator(None, cell="elman", reverse=True),
    "luong": lambda: translator({"order": "luong"}, cell="lstm", decoder_layers=2),
    "bahdanau": lambda: translator({"order": "bahdanau", "score": "additive"}, cell="gru", context="every"),
    "both ways, reversed": lambda: translator({"input_feeding": True}, cell="gru-cho", reverse=True),
}
LINES = {
    "classifier": "a funny, clever plot",
    "classifier, kept apart": "a funny, clever plot",
    "tagger": "Ann lives in New Delhi .",
    "tagger, each by itself": "Ann lives in New Delhi .",
    "bilm": "The cats purr all day .",
}


def readers(folder: Path) -> dict[str, Any]:
    """Train models that read a text of words."""
    encoder, document = "model.encoder", folder / "documents"
    document.mkdir()
    apart = (f"{encoder}.depth=apart", f"{encoder}.layers=2", f"{encoder}.cell=lstm")
    by_itself = ("model.crf=false", "model.characters=null", f"{encoder}.layers=2", f"{encoder}.cell=mut1")
    recipes = {
        "classifier": classify_recipe(folder, *QUICK),
        "classifier, kept apart": classify_recipe(folder, *apart, *QUICK),
        "tagger": tag_recipe(folder, *QUICK),
        "tagger, each by itself": tag_recipe(folder, *by_itself, *QUICK),
        "bilm": bidirectional_recipe(document, "model.hidden=6", *QUICK),
    }
    return {name: loaded(recipe, folder / f"run-{index}") for index, (name, recipe) in enumerate(recipes.items())}
