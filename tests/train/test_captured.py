"""Steps that are recorded and played: which belong together, and that they do what steps do one operation at a time."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from seqloom.core.protocols import Loss
from seqloom.nn.packed import versions
from seqloom.recipes import read_recipe
from seqloom.train.captured import Preparation, shape_of
from seqloom.train.config import FitConfig
from seqloom.train.events import Prepared, Skipped
from seqloom.train.trainer import Trainer
from seqloom.training import begin

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_a_shape_is_that_of_all_tensors_and_whatever_else_decides_what_is_computed():
    batch = {"inputs": torch.zeros(3, 4, dtype=torch.long), "fresh": True, "read": 9}
    assert shape_of(batch) == shape_of({**batch, "inputs": torch.ones(3, 4, dtype=torch.long), "read": 7})
    for other in (
        {**batch, "inputs": torch.zeros(3, 5, dtype=torch.long)},
        {**batch, "inputs": torch.zeros(3, 4)},
        {**batch, "fresh": False},
        {**batch, "more": None},
    ):
        assert shape_of(other) != shape_of(batch)
    assert shape_of(({"h": torch.zeros(2)}, None)) == shape_of(({"h": torch.ones(2)}, None)) != shape_of(None)


def test_a_word_about_preparation_once_there_is_something_to_say():
    preparation = Preparation()
    worth_a_word = []
    for preparation.seconds, preparation.shapes in ((0.0, 0), (0.4, 1), (2.5, 3)):
        worth_a_word.append(preparation.telling)
    assert worth_a_word == [False, False, True]
    assert preparation.told() == (2.5, 3, ())
    worth_a_word = [preparation.telling]
    preparation.notes.append("as it is")
    worth_a_word.append(preparation.telling)
    assert worth_a_word == [False, True]
    assert preparation.told() == (0.0, 0, ("as it is",))


def test_on_a_cpu_every_step_is_known_at_once(tiny_task):
    trainer = Trainer(tiny_task(), FitConfig(steps=5, device="cpu"), seed=1)
    assert trainer.captured is None
    assert [len(trainer.advance()) for _ in range(5)] == [1] * 5
    assert trainer.settle() == []


# --- on a GPU ---------------------------------------------------------------------------------------------------------


def trainers(task: Any, **options: Any) -> tuple[Trainer, Trainer]:
    config = FitConfig(**{"steps": 40, "device": "cuda", **options})
    plain = Trainer(task(), replace(config, fast=False), seed=1)
    fast = Trainer(task(), config, seed=1)
    assert fast.captured is not None and plain.captured is None
    return plain, fast


@cuda
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_the_same_as_one_operation_at_a_time(tiny_task, optimizer):
    plain, fast = trainers(tiny_task, optimizer=optimizer, clip=0.3, weight_decay=0.01, warmup=4)
    for _ in range(20):
        wanted, found = plain.update(), fast.update()
        assert found.loss == pytest.approx(wanted.loss, abs=1e-5)
        assert found.gradient_norm == pytest.approx(wanted.gradient_norm, rel=1e-4)
        assert (found.rate, found.tokens) == (wanted.rate, wanted.tokens)
    for own, other in zip(fast.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-4)
    assert fast.captured is not None and len(fast.captured.records) <= 3


@cuda
def test_what_a_step_changed_is_seen_whether_it_is_recorded_or_repeated(tiny_task):
    """Neither a graph nor a fused optimizer raises the versions of weights by itself."""
    _, fast = trainers(tiny_task)
    for _ in range(6):
        before = versions(fast.model.parameters())
        fast.update()
        assert versions(fast.model.parameters()) != before
    assert fast.captured is not None and len(fast.captured.records) < 6  # some were repeated


@cuda
def test_outcomes_are_read_late_and_in_order(tiny_task):
    plain, fast = trainers(tiny_task, log_every=7, evaluate_every=100, save_every=100)
    told = [fast.advance() for _ in range(14)]
    assert [len(some) for some in told] == [0] * 6 + [7] + [0] * 6 + [7]
    losses = [update.loss for some in told for update in some]
    assert losses == pytest.approx([plain.update().loss for _ in range(14)], abs=1e-5)
    assert fast.tally.recent_steps == 14


@cuda
@pytest.mark.parametrize("spoil", ["loss", float("inf"), float("nan")])
def test_a_spoilt_step_leaves_weights_and_optimizer_alone(tiny_task, same, spoil):
    _, fast = trainers(lambda: tiny_task(spoil={3: spoil}))
    for _ in range(3):
        fast.update()
    before = fast.state()
    weights = [parameter.detach().clone() for parameter in fast.model.parameters()]
    moments = [{name: value.clone() for name, value in state.items()} for state in fast.optimizer.state.values()]
    assert fast.update().cause is not None
    assert all(torch.equal(a, b) for a, b in zip(weights, fast.model.parameters(), strict=True))
    for old, new in zip(moments, fast.optimizer.state.values(), strict=True):
        assert all(torch.equal(old[name], new[name]) for name in old)
    assert before["tally"]["skips"] == 0 and fast.tally.skips == 1
    assert fast.update().cause is None
    assert fast.tally.skips == 0


@cuda
def test_skips_are_reported_where_they_were(session, tiny_task):
    events = session(steps=12, log_every=6, device="cuda").train(tiny_task(spoil={2: "loss", 7: "loss"}))
    assert [event.step for event in events if isinstance(event, Skipped)] == [3, 8]


@cuda
def test_a_loss_that_waits_is_computed_one_operation_at_a_time(session, tiny_task):
    task = tiny_task()
    inner = task.loss

    def waiting(model: Any, batch: Any, carry: Any) -> Loss:
        found = inner(model, batch, carry)
        return Loss(found.value * float(found.value.detach() > -1), found.carry, found.tokens)

    task.loss = waiting
    events = session(steps=4, device="cuda").train(task)
    (prepared,) = [event for event in events if isinstance(event, Prepared)]
    assert prepared.notes == ("steps are made one operation at a time: its loss waits for the GPU",)


@cuda
@pytest.mark.parametrize("recipe", ["translate-cldr", "translate-cldr-transformer", "lm-bpe-gru", "gpt-pydocs"])
@pytest.mark.parametrize("steps", [20, 2000])  # recorded; compiled and recorded
def test_models_learn_alike(recipe, steps, tmp_path):
    _, made = read_recipe(recipe, [f"train.steps={steps}", "train.device=cuda", "train.precision=bf16"])
    losses = {}
    for fast in (False, True):
        task = begin(made, tmp_path / str(fast)).task
        trainer = Trainer(task, replace(made.train, fast=fast), made.seed)
        losses[fast] = [trainer.update().loss for _ in range(12)]
        assert (trainer.captured is not None) == fast, trainer.preparation.notes
    assert losses[True] == pytest.approx(losses[False], rel=2e-2)
