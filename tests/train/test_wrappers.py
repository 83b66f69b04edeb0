"""Every wrapper runs the wrapped step and has the same signature as the step."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.train.conftest import TinyTask

from seqloom.core.tree import Tree
from seqloom.train.config import FitConfig
from seqloom.train.loop import Step, make_step, training_step
from seqloom.train.state import StepResult, TrainState, recomputable_layers
from seqloom.train.wrappers import (
    accelerate,
    checkpoint_activations,
    measure_memory,
    measure_time,
    split_on_oom,
    wrap,
)

WRAPPERS: dict[str, Callable[[TrainState], Step]] = {
    "splitting": lambda state: split_on_oom,
    "acceleration": lambda state: accelerate(training_step, state),
    "checkpointing": lambda state: checkpoint_activations(training_step, recomputable_layers(state.model)),
    "memory": lambda state: measure_memory(training_step, range(3)),
    "time": lambda state: measure_time(training_step),
    "all": wrap,
}


class RecomputableTask(TinyTask):
    """A task whose model consists of one recomputable layer."""

    def model(self) -> Any:
        model = super().model()
        model.cell.recomputable = True  # type: ignore[assignment]
        return model


def run_training(choose: Callable[[TrainState], Step]) -> tuple[list[StepResult], TrainState]:
    state = TrainState(
        RecomputableTask(), FitConfig(steps=3, accumulate_steps=2, device="cpu", gradient_checkpointing=True), 3
    )
    step = choose(state)
    return [make_step(state, step) for _ in range(3)], state


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrapped_step_gives_the_same_results_as_the_step(name: str, same: Callable[[Any, Any], bool]) -> None:
    plain, expected = run_training(lambda state: training_step)
    wrapped, state = run_training(WRAPPERS[name])
    assert [result.loss for result in wrapped] == [result.loss for result in plain]
    state.tally.memory = 0
    assert same(state.state_dict(), expected.state_dict())


def test_step_seconds_include_batches_but_not_preparation() -> None:
    class SlowTask(TinyTask):
        def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
            time.sleep(0.02)
            return super().batch(seed, step)

    def prepared_step(state: TrainState) -> StepResult:
        time.sleep(0.05)
        result = training_step(state)
        result.preparation_seconds = 0.05
        return result

    state = TrainState(SlowTask(), FitConfig(steps=3, device="cpu"), 3)
    assert make_step(state).seconds == 0
    began = time.perf_counter()
    seconds = make_step(state, measure_time(prepared_step)).seconds
    assert 0.02 <= seconds <= time.perf_counter() - began - 0.05


def test_batches_are_drawn_once_for_each_step() -> None:
    steps_drawn = []

    class CountingTask(TinyTask):
        def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
            steps_drawn.append(step)
            return super().batch(seed, step)

    state = TrainState(CountingTask(), FitConfig(steps=3, accumulate_steps=2, device="cpu"), 3)
    step = measure_memory(training_step, range(3))
    for _ in range(3):
        make_step(state, step)
    assert steps_drawn == list(range(6))
