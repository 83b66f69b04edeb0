"""The translation task with every kind of encoder layer: short training runs on real phrases."""

import statistics
from typing import Any

import pytest

from seqloom.accel.decoding import packed
from seqloom.nn.mixers import MIXERS
from seqloom.recipes import read_recipe
from seqloom.tasks.translate import Task
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState

SMALL = [
    "data.train=300",
    "data.dev=8",
    "data.test=8",
    "tokenizer.size=400",
    "model.kind=transformer",
    "model.d_model=32",
    "model.encoder_layers=2",
    "model.decoder_layers=1",
    "train.lr=1e-2",
    "train.warmup=5",
    "train.device=cpu",
]


@pytest.mark.parametrize("kind", MIXERS)
def test_short_training_on_phrases_lowers_loss(kind: str) -> None:
    pytest.importorskip("babel", reason="the extra corpora is not installed")
    recipe: Any = read_recipe("translate-cldr", [*SMALL, f"model.encoder_layer={kind}"])[1]
    task = Task.prepare(recipe)
    trainer = TrainState(task, recipe.train, recipe.seed)
    losses = [make_step(trainer).loss for _ in range(50)]
    assert statistics.fmean(losses[-5:]) < 0.8 * statistics.fmean(losses[:5])
    metrics = task.validate(trainer.model.eval())
    assert metrics["loss"] < losses[0] and 0 <= metrics["bleu"] <= 100


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_translations_during_training_use_current_weights(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached weights for decoding are invalidated when an optimizer changes the weights."""
    pytest.importorskip("babel", reason="the extra corpora is not installed")
    monkeypatch.setattr(packed, "MIN_ONEDNN_PRODUCTS", 0)  # applies to any number of pairs
    recipe: Any = read_recipe("translate-cldr", [*SMALL, "data.dev=40", f"train.optimizer={optimizer}"])[1]
    task = Task.prepare(recipe)
    trainer, fresh = TrainState(task, recipe.train, recipe.seed), task.model().eval()
    for _ in range(2):
        for _ in range(15):
            make_step(trainer)
        fresh.load_state_dict(trainer.model.state_dict())
        assert task.validate(trainer.model.eval()) == pytest.approx(task.validate(fresh), rel=1e-6)
        trainer.model.train()
