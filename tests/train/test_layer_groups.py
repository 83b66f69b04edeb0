"""Layer groups: rates and unfreezing are pure functions of the step, and resuming is exact."""

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
def grouped_task(tiny_task: Any) -> Any:
    """The tiny task with three layer groups: embeddings, cell, and output."""

    class Grouped(tiny_task):
        def model(self) -> nn.Module:
            model = super().model()
            parts = model.embed, model.cell, model.out
            model.layer_groups = lambda: [list(part.parameters()) for part in parts]
            return model

    return Grouped


def weights(trainer: TrainState) -> list[dict[str, torch.Tensor]]:
    """Copy the weights of each layer group."""
    model: Any = trainer.model
    parts = model.embed, model.cell, model.out
    return [{name: tensor.clone() for name, tensor in part.state_dict().items()} for part in parts]


def changed_groups(before: Any, after: Any) -> list[bool]:
    """Return for each layer group whether any of its weights has changed."""
    return [any(not torch.equal(old[name], new[name]) for name in old) for old, new in zip(before, after, strict=True)]


def test_learning_rates_decrease_by_layer_and_groups_are_unfrozen_over_steps() -> None:
    groups = LayerGroups([[nn.Parameter(torch.zeros(1))] for _ in range(4)], decay=0.5, every=10, freeze=1)
    assert [groups.scale(level) for level in range(4)] == [0.125, 0.25, 0.5, 1.0]
    assert [groups.lowest(step) for step in (0, 9, 10, 19, 20, 29, 30, 1000)] == [3, 3, 2, 2, 1, 1, 1, 1]
    groups.unfreeze(10)
    assert [level[0].requires_grad for level in groups.parameters] == [False, False, True, True]
    groups.unfreeze(0)
    assert [level[0].requires_grad for level in groups.parameters] == [False, False, False, True]


@given(
    count=st.integers(1, 9), every=st.none() | st.integers(1, 50), freeze=st.integers(0, 8), step=st.integers(0, 1000)
)
def test_head_is_always_trained_and_layers_are_not_frozen_again(
    count: int, every: int | None, freeze: int, step: int
) -> None:
    groups = LayerGroups([[] for _ in range(count)], every=every, freeze=min(freeze, count - 1))
    assert 0 <= groups.freeze <= groups.lowest(step) <= groups.top
    assert groups.lowest(step + 1) <= groups.lowest(step)
    assert groups.lowest(10**6) == groups.freeze


def test_only_unfrozen_layer_groups_change(grouped_task: Any) -> None:
    """Weight decay and momentum also do not change frozen weights."""
    config = FitConfig(steps=20, lr=0.1, weight_decay=0.5, freeze=1, device="cpu")
    trainer = TrainState(grouped_task(), config, 3)
    before = weights(trainer)
    for _ in range(5):
        make_step(trainer)
    assert changed_groups(before, weights(trainer)) == [False, True, True]
    plain = TrainState(grouped_task(), FitConfig(steps=20, lr=0.1, weight_decay=0.5, device="cpu"), 3)
    before = weights(plain)
    make_step(plain)
    assert changed_groups(before, weights(plain)) == [True, True, True]  # negative control


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_one_more_layer_group_is_unfrozen_after_each_epoch(grouped_task: Any, optimizer: Any) -> None:
    config = FitConfig(steps=20, lr=0.1, optimizer=optimizer, unfreeze_every=1, device="cpu")  # an epoch is five steps
    trainer = TrainState(grouped_task(), config, 3)
    unfrozen = []
    for _ in range(12):
        before = weights(trainer)
        make_step(trainer)
        unfrozen.append(sum(changed_groups(before, weights(trainer))))
    assert unfrozen == [1] * 5 + [2] * 5 + [3] * 2


def test_each_layer_group_has_its_learning_rate(grouped_task: Any) -> None:
    """A step of gradient descent equals rate · gradient."""
    config = FitConfig(steps=20, lr=0.1, optimizer="sgd", layer_decay=0.5, clip_norm=None, device="cpu")
    trainer = TrainState(grouped_task(), config, 3)
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
def test_resuming_is_exact_when_layers_are_unfrozen(session: Any, grouped_task: Any, same: Any, case: str) -> None:
    complete = session("whole", **CASES[case])
    events = complete.train(grouped_task())
    assert isinstance(events[-1], Finished)
    assert isinstance(events[0], Started) and events[0].notes
    for step in (3, 5, 9):  # before, at and between two unfreezings
        parts = session(f"parts-{step}", **CASES[case])
        assert isinstance(parts.train(grouped_task(), until=step)[-1], Stopped)
        parts.train(grouped_task(), resume=True)
        assert same(parts.checkpoint(14), complete.checkpoint(14))


def test_different_schedule_gives_different_weights(session: Any, grouped_task: Any, same: Any) -> None:
    """Negative control for the test above."""
    runs = [session(str(every), unfreeze_every=every) for every in (1.0, 2.0)]
    for run in runs:
        run.train(grouped_task())
    assert not same(runs[0].checkpoint(14), runs[1].checkpoint(14))


def test_model_without_layer_groups_is_rejected(tiny_task: Any) -> None:
    for options, named in (
        ({"freeze": 1}, r"train\.freeze need"),
        ({"layer_decay": 0.9, "unfreeze_every": 1.0}, r"train\.layer_decay and train\.unfreeze_every"),
    ):
        with pytest.raises(UsageError, match=named):
            TrainState(tiny_task(), FitConfig(steps=1, device="cpu", **options), 3)
    assert build_layer_groups(tiny_task().model(), FitConfig(steps=1), 5) is None


def test_freezing_every_layer_group_is_rejected(grouped_task: Any) -> None:
    with pytest.raises(UsageError, match=r"at most 2, because the model has 3 layer groups .*; got 3"):
        TrainState(grouped_task(), FitConfig(steps=1, device="cpu", freeze=3), 3)


def test_parameters_frozen_by_the_model_remain_frozen(grouped_task: Any) -> None:
    model = grouped_task().model()
    model.embed.weight.requires_grad_(False)
    groups = build_layer_groups(model, FitConfig(steps=1, layer_decay=0.5), 5)
    assert groups is not None and groups.parameters[0] == []


def test_all_problems_are_reported() -> None:
    with pytest.raises(ValueError, match="freeze must be at least 0") as caught:
        FitConfig(steps=1, freeze=-1, layer_decay=1.5, unfreeze_every=0.0)
    assert "layer_decay must be at most 1" in str(caught.value)
    assert "unfreeze_every must be greater than 0" in str(caught.value)


def test_notes_describe_the_settings(grouped_task: Any) -> None:
    config = FitConfig(steps=20, lr=0.1, layer_decay=0.5, unfreeze_every=1, freeze=1, device="cpu")
    notes = TrainState(grouped_task(), config, 3).notes()
    assert len(notes) == 3
    assert (
        "from 0.025 (embeddings) to 0.1 (head)" in notes[0]
        and "1 of 3 layer groups" in notes[1]
        and "every 5 steps" in notes[2]
    )
