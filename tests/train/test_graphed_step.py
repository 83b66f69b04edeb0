"""Steps as CUDA graphs: the batches that share a graph, and equality with eager steps."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from seqloom import accel
from seqloom.accel.decoding.packed import tensor_versions
from seqloom.accel.training.graphed_step import GraphedStep, shape_key
from seqloom.core.protocols import Loss
from seqloom.recipes import read_recipe
from seqloom.train.config import FitConfig
from seqloom.train.events import Prepared, Skipped
from seqloom.train.loop import make_step
from seqloom.train.state import StepResult, TrainState
from seqloom.train.wrappers import accelerate, split_on_oom, wrap
from seqloom.training import begin

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_shape_key_covers_all_tensors_and_options():
    batch = {"inputs": torch.zeros(3, 4, dtype=torch.long), "fresh": True, "read": 9}
    assert shape_key(batch) == shape_key({**batch, "inputs": torch.ones(3, 4, dtype=torch.long), "read": 7})
    for other in (
        {**batch, "inputs": torch.zeros(3, 5, dtype=torch.long)},
        {**batch, "inputs": torch.zeros(3, 4)},
        {**batch, "fresh": False},
        {**batch, "more": None},
    ):
        assert shape_key(other) != shape_key(batch)
    assert shape_key(({"h": torch.zeros(2)}, None)) == shape_key(({"h": torch.ones(2)}, None)) != shape_key(None)


def test_cpu_results_are_available_immediately(tiny_task):
    accel.install()
    state = TrainState(tiny_task(), FitConfig(steps=5, device="cpu"), seed=1)
    step = wrap(state)
    for _ in range(5):
        make_step(state, step)
        assert len(state.take_results()) == 1 and not state.pending


# --- on a GPU ---------------------------------------------------------------------------------------------------------


class Training:
    """Create a training run and its step."""

    def __init__(self, task: Any, config: FitConfig, seed: int = 1) -> None:
        accel.install()
        self.state = TrainState(task, config, seed)
        self.step = accelerate(split_on_oom, self.state)

    def update(self) -> StepResult:
        result = make_step(self.state, self.step)
        self.state.settle()
        return result


def trainings(task: Any, **options: Any) -> tuple[Training, Training]:
    config = FitConfig(**{"steps": 40, "device": "cuda", **options})
    plain, fast = Training(task(), replace(config, cuda_graphs=False)), Training(task(), config)
    assert isinstance(fast.step, GraphedStep) and plain.step is split_on_oom
    return plain, fast


@cuda
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_graphed_steps_match_eager_steps(tiny_task, optimizer):
    plain, fast = trainings(tiny_task, optimizer=optimizer, clip_norm=0.3, weight_decay=0.01, warmup=4)
    for _ in range(20):
        expected, actual = plain.update(), fast.update()
        assert actual.loss == pytest.approx(expected.loss, abs=1e-5)
        assert actual.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-4)
        assert (actual.lr, actual.tokens) == (expected.lr, expected.tokens)
    for graphed_weight, eager_weight in zip(fast.state.model.parameters(), plain.state.model.parameters(), strict=True):
        torch.testing.assert_close(graphed_weight, eager_weight, atol=1e-5, rtol=1e-4)
    assert isinstance(fast.step, GraphedStep) and fast.step.is_enabled and len(fast.step.graphs) <= 3


@cuda
def test_captured_and_replayed_steps_increment_weight_versions(tiny_task):
    """CUDA graphs and fused optimizers do not increment the version counters of weights."""
    _, fast = trainings(tiny_task)
    for _ in range(6):
        before = tensor_versions(fast.state.model.parameters())
        fast.update()
        assert tensor_versions(fast.state.model.parameters()) != before
    assert (
        isinstance(fast.step, GraphedStep) and fast.step.is_enabled and len(fast.step.graphs) < 6
    )  # some steps were replayed


@cuda
def test_results_are_read_late_and_in_order(tiny_task):
    plain, fast = trainings(tiny_task, log_every=7, evaluate_every=100, save_every=100)
    reported = []
    for _ in range(14):
        make_step(fast.state, fast.step)
        reported.append(fast.state.take_results())
    assert [len(some) for some in reported] == [0] * 6 + [7] + [0] * 6 + [7]
    losses = [update.loss for some in reported for update in some]
    assert losses == pytest.approx([plain.update().loss for _ in range(14)], abs=1e-5)
    assert fast.state.tally.recent_steps == 14


@cuda
@pytest.mark.parametrize("spoil", ["loss", float("inf"), float("nan")])
def test_non_finite_step_leaves_weights_and_optimizer_unchanged(tiny_task, same, spoil):
    _, fast = trainings(lambda: tiny_task(spoil={3: spoil}))
    for _ in range(3):
        fast.update()
    before = fast.state.state_dict()
    weights = [parameter.detach().clone() for parameter in fast.state.model.parameters()]
    moments = [{name: value.clone() for name, value in state.items()} for state in fast.state.optimizer.state.values()]
    assert fast.update().cause is not None
    assert all(torch.equal(a, b) for a, b in zip(weights, fast.state.model.parameters(), strict=True))
    for old, new in zip(moments, fast.state.optimizer.state.values(), strict=True):
        assert all(torch.equal(old[name], new[name]) for name in old)
    assert before["tally"]["skips"] == 0 and fast.state.tally.skips == 1
    assert fast.update().cause is None
    assert fast.state.tally.skips == 0


@cuda
def test_skipped_steps_are_reported_with_their_number(session, tiny_task):
    events = session(steps=12, log_every=6, device="cuda").train(tiny_task(spoil={2: "loss", 7: "loss"}))
    assert [event.step for event in events if isinstance(event, Skipped)] == [3, 8]


@cuda
def test_step_with_a_synchronizing_loss_runs_eagerly(session, tiny_task):
    task = tiny_task()
    inner = task.loss

    def waiting(model: Any, batch: Any, carry: Any) -> Loss:
        loss = inner(model, batch, carry)
        return Loss(loss.value * float(loss.value.detach() > -1), loss.carry, loss.tokens)

    task.loss = waiting
    events = session(steps=4, device="cuda").train(task)
    (prepared,) = [event for event in events if isinstance(event, Prepared)]
    assert prepared.notes == ("training without CUDA graphs: the loss synchronizes with the GPU",)


@cuda
@pytest.mark.parametrize("recipe", ["translate-cldr", "translate-cldr-transformer", "lm-bpe-gru", "gpt-pydocs"])
@pytest.mark.parametrize("steps", [20, 2000])  # the first case uses graphs; the second uses compilation and graphs
def test_graphed_and_eager_training_agree(recipe, steps, tmp_path):
    _, config = read_recipe(recipe, [f"train.steps={steps}", "train.device=cuda", "train.precision=bf16"])
    losses = {}
    for fast in (False, True):
        task = begin(config, tmp_path / str(fast)).task
        training = Training(task, replace(config.train, cuda_graphs=fast), config.seed)
        losses[fast] = [training.update().loss for _ in range(12)]
        step = training.step
        assert isinstance(step, GraphedStep) == fast
        assert not isinstance(step, GraphedStep) or step.is_enabled, training.state.events
    assert losses[True] == pytest.approx(losses[False], rel=2e-2)
