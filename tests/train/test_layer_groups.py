"""Levels: rates, freezing and unfreezing are pure functions of the step, and resume stays exact across them."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from seqloom.core.errors import UsageError
from seqloom.train.config import FitConfig
from seqloom.train.events import Finished, Started, Stopped
from seqloom.train.loop import make_step
from seqloom.train.optimizers import LayerGroups, build_layer_groups
from seqloom.train.state import TrainState

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def levelled_task(tiny_task: Any) -> Any:
    """The tiny task with a model of three levels: embeddings, cell, output."""

    class Levelled(tiny_task):
        def model(self) -> nn.Module:
            model = super().model()
            parts = model.embed, model.cell, model.out
            model.levels = lambda: [list(part.parameters()) for part in parts]
            return model

    return Levelled


def weights(trainer: TrainState) -> list[dict[str, torch.Tensor]]:
    """A copy, level by level."""
    model: Any = trainer.model
    parts = model.embed, model.cell, model.out
    return [{name: tensor.clone() for name, tensor in part.state_dict().items()} for part in parts]


def moved(before: Any, after: Any) -> list[bool]:
    """Which levels have changed in any number, and whether all of their tensors have."""
    return [any(not torch.equal(one[name], two[name]) for name in one) for one, two in zip(before, after, strict=True)]


def test_rates_and_what_learns() -> None:
    levels = LayerGroups([[nn.Parameter(torch.zeros(1))] for _ in range(4)], decay=0.5, every=10, freeze=1)
    assert [levels.scale(level) for level in range(4)] == [0.125, 0.25, 0.5, 1.0]
    assert [levels.lowest(step) for step in (0, 9, 10, 19, 20, 29, 30, 1000)] == [3, 3, 2, 2, 1, 1, 1, 1]
    levels.unfreeze(10)
    assert [level[0].requires_grad for level in levels.parameters] == [False, False, True, True]
    levels.unfreeze(0)
    assert [level[0].requires_grad for level in levels.parameters] == [False, False, False, True]


@given(
    count=st.integers(1, 9), every=st.none() | st.integers(1, 50), freeze=st.integers(0, 8), step=st.integers(0, 1000)
)
def test_the_head_always_learns_and_nothing_freezes_again(
    count: int, every: int | None, freeze: int, step: int
) -> None:
    levels = LayerGroups([[] for _ in range(count)], every=every, freeze=min(freeze, count - 1))
    assert 0 <= levels.freeze <= levels.lowest(step) <= levels.top
    assert levels.lowest(step + 1) <= levels.lowest(step)
    assert levels.lowest(10**6) == levels.freeze


def test_frozen_levels_do_not_move_and_the_others_do(levelled_task: Any) -> None:
    """Weight decay and momentum too: what is frozen stays to the bit."""
    config = FitConfig(steps=20, lr=0.1, weight_decay=0.5, freeze=1, device="cpu")
    trainer = TrainState(levelled_task(), config, 3)
    before = weights(trainer)
    for _ in range(5):
        make_step(trainer)
    assert moved(before, weights(trainer)) == [False, True, True]
    plain = TrainState(levelled_task(), FitConfig(steps=20, lr=0.1, weight_decay=0.5, device="cpu"), 3)
    before = weights(plain)
    make_step(plain)
    assert moved(before, weights(plain)) == [True, True, True]  # the control


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_one_more_level_learns_after_each_epoch(levelled_task: Any, optimizer: Any) -> None:
    config = FitConfig(steps=20, lr=0.1, optimizer=optimizer, unfreeze_every=1, device="cpu")  # an epoch is five steps
    trainer = TrainState(levelled_task(), config, 3)
    seen = []
    for _ in range(12):
        before = weights(trainer)
        make_step(trainer)
        seen.append(sum(moved(before, weights(trainer))))
    assert seen == [1] * 5 + [2] * 5 + [3] * 2


def test_each_level_has_a_rate_of_its_own(levelled_task: Any) -> None:
    """A plain step of gradient descent is rate · gradient."""
    config = FitConfig(steps=20, lr=0.1, optimizer="sgd", layer_decay=0.5, clip_norm=None, device="cpu")
    trainer = TrainState(levelled_task(), config, 3)
    before = weights(trainer)
    make_step(trainer)
    model: Any = trainer.model
    for scale, part, old in zip((0.25, 0.5, 1.0), (model.embed, model.cell, model.out), before, strict=True):
        for name, parameter in part.named_parameters():
            torch.testing.assert_close(parameter.detach(), old[name] - 0.1 * scale * parameter.grad)


CASES: dict[str, dict[str, Any]] = {
    "unfreezing": {"unfreeze_every": 1.0},
    "unfreezing within an epoch": {"unfreeze_every": 0.4, "layer_decay": 0.8, "weight_decay": 0.1},
    "all of it": {"unfreeze_every": 1.0, "freeze": 1, "layer_decay": 0.5, "schedule": "cosine", "accumulate_steps": 2},
    "frozen, with momentum": {"optimizer": "sgd", "momentum": 0.9, "freeze": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_resume_is_exact_across_an_unfreezing(session: Any, levelled_task: Any, same: Any, case: str) -> None:
    whole = session("whole", **CASES[case])
    events = whole.train(levelled_task())
    assert isinstance(events[-1], Finished)
    assert isinstance(events[0], Started) and events[0].notes
    for step in (3, 5, 9):  # before one, at it, in between
        parts = session(f"parts-{step}", **CASES[case])
        assert isinstance(parts.train(levelled_task(), until=step)[-1], Stopped)
        parts.train(levelled_task(), resume=True)
        assert same(parts.checkpoint(14), whole.checkpoint(14))


def test_another_plan_is_another_training(session: Any, levelled_task: Any, same: Any) -> None:
    """The control for the one above."""
    runs = [session(str(every), unfreeze_every=every) for every in (1.0, 2.0)]
    for run in runs:
        run.train(levelled_task())
    assert not same(runs[0].checkpoint(14), runs[1].checkpoint(14))


def test_a_model_without_levels_refuses_them(tiny_task: Any) -> None:
    for options, named in (
        ({"freeze": 1}, r"train\.freeze need"),
        ({"layer_decay": 0.9, "unfreeze_every": 1.0}, r"train\.layer_decay and train\.unfreeze_every"),
    ):
        with pytest.raises(UsageError, match=named):
            TrainState(tiny_task(), FitConfig(steps=1, device="cpu", **options), 3)
    assert build_layer_groups(tiny_task().model(), FitConfig(steps=1), 5) is None


def test_something_must_be_left_to_learn(levelled_task: Any) -> None:
    with pytest.raises(UsageError, match="3 levels, embeddings and head among them, so at most 2; got 3"):
        TrainState(levelled_task(), FitConfig(steps=1, device="cpu", freeze=3), 3)


def test_what_the_model_froze_itself_stays_so(levelled_task: Any) -> None:
    model = levelled_task().model()
    model.embed.weight.requires_grad_(False)
    levels = build_layer_groups(model, FitConfig(steps=1, layer_decay=0.5), 5)
    assert levels is not None and levels.parameters[0] == []


def test_all_problems_are_named() -> None:
    with pytest.raises(ValueError, match="freeze must be at least 0") as caught:
        FitConfig(steps=1, freeze=-1, layer_decay=1.5, unfreeze_every=0.0)
    assert "layer_decay must be at most 1" in str(caught.value)
    assert "unfreeze_every must be greater than 0" in str(caught.value)


def test_notes_say_what_will_happen(levelled_task: Any) -> None:
    config = FitConfig(steps=20, lr=0.1, layer_decay=0.5, unfreeze_every=1, freeze=1, device="cpu")
    notes = TrainState(levelled_task(), config, 3).notes()
    assert len(notes) == 3
    assert "0.025 below to 0.1" in notes[0] and "1 of 3 levels never" in notes[1] and "every 5 steps" in notes[2]
