"""The wrappers of a training step, and which of them a training uses."""

from collections.abc import Container, Sequence

from seqloom.core.operations import operation
from seqloom.core.tree import Tree, leaves
from seqloom.train.loop import Step
from seqloom.train.memory import watch
from seqloom.train.microbatches import split_on_oom
from seqloom.train.state import StepResult, TrainState


def wrap(state: TrainState) -> Step:
    """The step of a training that takes microbatches if it must, is accelerated if it can be, and measures memory."""
    return measure_memory(accelerate(split_on_oom, state), measured_steps(state))


@operation
def accelerate(step: Step, state: TrainState) -> Step:
    """A faster form of a step for this training: none by definition; `seqloom.accel` offers CUDA graphs."""
    return step


def measured_steps(state: TrainState) -> set[int]:
    """The second step, which is the first that finds the optimizer's state, and the largest of the first epoch."""
    steps = {min(1, state.total - 1)}
    if (largest := state.task.largest_step(state.seed)) is not None:
        steps.add(largest // state.config.accumulate)
    return steps


def measure_memory(step: Step, steps: Container[int]) -> Step:
    """Measure the memory of these steps; the most is kept in the tally."""

    def measured_step(state: TrainState, batches: Sequence[Tree], lr: float) -> StepResult:
        if state.tally.step not in steps:
            return step(state, batches, lr)
        state.optimizer.zero_grad(set_to_none=True)  # the last update's gradients are no part of this one
        with watch(state.device, leaves([state.tensors(), batches])) as peak:
            result = step(state, batches, lr)
        state.tally.memory = max(state.tally.memory, peak.bytes)
        return result

    return measured_step
