"""Model sizes that depend on the data: the vocabulary of the tokenizer and the entries of sizes.json."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checksums import update_checksums

from seqloom.config import to_mapping
from seqloom.core.errors import CheckpointError
from seqloom.models.classifier import ClassifierConfig
from seqloom.models.gpt import GPTConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.models.tagger import TaggerConfig
from seqloom.nn.encoders import RecurrentEncoderConfig
from seqloom.nn.lexicon import CharacterCNNConfig
from seqloom.runs.run import Run
from seqloom.text.vocabularies import Words, WordsConfig

ENCODER = RecurrentEncoderConfig(hidden=6)
WITH_CHARACTERS: dict[str, Any] = {"characters": CharacterCNNConfig(filters=4)}
KINDS: dict[str, tuple[Any, dict[str, int]]] = {
    "classifier": (ClassifierConfig(embedding=8, encoder=ENCODER), {"labels": 3}),
    "classifier-characters": (
        ClassifierConfig(embedding=8, encoder=ENCODER, **WITH_CHARACTERS),
        {"labels": 3, "characters": 9},
    ),
    "tagger": (TaggerConfig(embedding=8, encoder=ENCODER), {"tags": 5}),
    "tagger-characters": (TaggerConfig(embedding=8, encoder=ENCODER, **WITH_CHARACTERS), {"tags": 5, "characters": 9}),
    "recurrent-lm": (RecurrentLMConfig(hidden=6), {}),
    "gpt": (GPTConfig(d_model=8, heads=2, layers=1), {}),
}


def create_run(path: Path, kind: str) -> tuple[Run, Any]:
    """Create a run like that of a finished training run. Return it with its model."""
    config, sizes = KINDS[kind]
    tokenizer = Words.train(WordsConfig(), ["a few words, some of them twice: words"])
    torch.manual_seed(0)
    model = config.build(vocabulary=len(tokenizer), **sizes)
    documents = {"tokenizer.json": tokenizer.to_json(), **({"sizes.json": sizes} if sizes else {})}
    recipe = {"tokenizer": {"kind": "words"}, "model": to_mapping(config)}
    run = Run.create(path, recipe, documents, weights=model.state_dict())
    return Run.open(run.path), model


@pytest.mark.parametrize("kind", KINDS)
def test_model_is_restored(tmp_path, kind) -> None:
    run, model = create_run(tmp_path / "one", kind)
    assert run.sizes == {"vocabulary": 10, **KINDS[kind][1]}
    restored = run.model("cpu")
    assert type(restored) is type(model) and not restored.training
    torch.testing.assert_close(dict(restored.state_dict()), dict(model.state_dict()), atol=0, rtol=0)


def test_constraints_are_restored_with_weights(tmp_path) -> None:
    run, model = create_run(tmp_path / "one", "tagger")
    model.constrain(["B-LOC", "B-PER", "I-LOC", "I-PER", "O"])
    run.store().save_best(model.state_dict())
    assert torch.equal(run.model("cpu").chain.allowed, model.chain.allowed) and not model.chain.allowed.all()


def test_missing_or_damaged_sizes_are_reported(tmp_path) -> None:
    path = tmp_path / "one"
    create_run(path, "classifier")
    for content in ("{", "[]", '{"labels": 0}', '{"labels": "3"}', '{"labels": true}'):
        (path / "sizes.json").write_text(content)
        update_checksums(path)
        with pytest.raises(CheckpointError, match=r"sizes\.json is damaged"):
            _ = Run.open(path).sizes
    (path / "sizes.json").unlink()
    with pytest.raises(CheckpointError, match=r"is incomplete: sizes\.json is missing"):
        Run.open(path).model("cpu")


def test_sizes_of_another_model_are_rejected(tmp_path) -> None:
    path = tmp_path / "one"
    create_run(path, "classifier")
    for sizes in ({"labels": 4}, {"tags": 3}, {"labels": 3, "wings": 2}):
        (path / "sizes.json").write_text(json.dumps(sizes))
        update_checksums(path)
        with pytest.raises(CheckpointError, match="does not match the model of its recipe"):
            Run.open(path).model("cpu")
    (path / "sizes.json").write_text(json.dumps({"labels": 3, "vocabulary": 77}))
    update_checksums(path)
    assert Run.open(path).sizes == {"labels": 3, "vocabulary": 10}  # the tokenizer takes precedence over sizes.json
