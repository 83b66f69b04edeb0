"""A recurrent language model with every kind of dropout resumes bit for bit."""

import pytest

from seqloom.config import build
from seqloom.tasks.language_model import Recipe, Task
from seqloom.train import loop

pytestmark = pytest.mark.usefixtures("quick_disk")
STEPS = 10
DROPOUTS = {"dropout": 0.3, "variational_dropout": True, "embedding_dropout": 0.2, "weight_dropout": 0.4}


def task(**model):
    recipe = {
        "data": {"corpus": "toys", "task": "copy", "train": 60, "dev": 5, "test": 5},
        "tokenizer": {"kind": "characters"},
        "batch": {"size": 4, "length": 8},
        "model": {"kind": "recurrent-lm", "layers": 2, "hidden": 6, "embedding": 4, **DROPOUTS, **model},
        "train": {"steps": STEPS},
    }
    return Task.prepare(build(Recipe, recipe))


def resumed_differs_from_complete(session, same, until=4, **model):
    complete, parts = session("whole", steps=STEPS), session("parts", steps=STEPS)
    complete.train(task(**model))
    parts.train(task(**model), until=until)
    parts.train(task(**model), resume=True)
    return not same(parts.checkpoint(STEPS), complete.checkpoint(STEPS))


@pytest.mark.parametrize("cell", ["lstm", "mut1"])
@pytest.mark.parametrize("connections", ["none", "residual", "highway", "dense"])
def test_stopped_and_resumed_training_is_bit_identical(session, same, cell, connections) -> None:
    assert not resumed_differs_from_complete(session, same, cell=cell, connections=connections)


@pytest.mark.parametrize("name", ["dropout", "embedding_dropout", "weight_dropout"])
def test_resuming_without_seeding_each_step_changes_the_results_for_each_dropout(
    session, same, monkeypatch, name
) -> None:
    """Each kind of dropout draws random numbers, which could be lost when a run is resumed."""
    monkeypatch.setattr(loop, "seed_step", lambda *_: None)
    only = {key: value if key == name else 0.0 for key, value in DROPOUTS.items() if key != "variational_dropout"}
    assert resumed_differs_from_complete(session, same, **only)


def test_resuming_without_seeding_and_dropout_is_exact(session, same, monkeypatch) -> None:
    monkeypatch.setattr(loop, "seed_step", lambda *_: None)
    none = {"dropout": 0.0, "embedding_dropout": 0.0, "weight_dropout": 0.0}
    assert not resumed_differs_from_complete(session, same, **none)


def test_first_event_notes_projections(session) -> None:
    started = session("run", steps=1).train(task(cell="mut2", connections="residual"))[0]
    assert started.notes == (
        "MUT2 projects its input from 4 to 6 dimensions first (W_xp)",
        "the residual connection projects its input from 4 to 6 dimensions",
    )
