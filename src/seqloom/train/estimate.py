"""Training without gradients: counting, expectation–maximisation. The same events and the same run as `fit`."""

import time
from collections.abc import Iterator
from typing import Any

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import CheckpointError, Interrupted
from seqloom.core.expected import ANYTHING, check_tree
from seqloom.core.protocols import Estimable, Estimate
from seqloom.train.checkpoints import Checkpoint, CheckpointStore
from seqloom.train.events import Damaged, Evaluated, Event, Finished, Progress, Saved, Started, Stopped
from seqloom.train.stop import Stop


@config
class EstimateConfig:
    """How to estimate without gradients."""

    keep: PositiveInt = 1  # newest checkpoints to keep


def estimate(
    task: Estimable,
    config: EstimateConfig,
    store: CheckpointStore,
    *,
    seed: int,
    stop: Stop | None = None,
    resume: bool = False,
) -> Iterator[Event]:
    """Run the stages of an estimation, keeping every model worth keeping; then evaluate the last.

    Estimations here draw no random numbers of their own; `seed` is taken so that both ways of training are called
    alike, and reaches the task through its recipe.
    """
    stop = stop or Stop()
    model: Any = None

    def restore(checkpoint: Checkpoint) -> None:
        nonlocal model
        model = _restored(task.model(), checkpoint)

    checkpoint = store.load(restore) if resume else None
    step = 0 if checkpoint is None else checkpoint.step
    parameters, device = task.scale()
    yield Started(step, step, parameters, device, resumed=checkpoint is not None)
    for name, cause in store.damaged:
        yield Damaged(step, name, cause)

    clock = _Clock(step)
    kept = step
    stages = task.estimates(model, step)
    try:
        while (stage := _next(stages, stop, clock)) is not None:
            step = stage.step
            yield clock.progress(stage)
            if stage.model is not None:
                model, kept = stage.model, step
                yield Saved(step, store.save(step, _parts(model)))
        with stop.interruptible():
            metrics = task.evaluate(model, "dev")
    except Interrupted:
        yield Stopped(kept)
        return
    assert model is not None, "an estimation must end with a model"
    store.save_best(model.state_dict())
    yield Evaluated(step, "dev", metrics, best=True)
    parameters = sum(tensor.numel() for tensor in model.state_dict().values() if tensor.is_floating_point())
    yield Finished(step, "the estimation is complete", step, metrics, parameters, clock.speed, clock.seconds)


class _Clock:
    """How fast an estimation goes, by what its stages say they read; only stages are timed for that."""

    def __init__(self, step: int) -> None:
        self._began = self._last = time.perf_counter()
        self._step, self._read, self._spent = step, 0, 0.0

    def start(self) -> None:
        """A stage begins."""
        self._last = time.perf_counter()

    def progress(self, stage: Estimate) -> Progress:
        spent, steps = time.perf_counter() - self._last, stage.step - self._step
        self._step = stage.step
        self._read, self._spent = self._read + stage.read, self._spent + spent
        if not stage.read:
            return Progress(stage.step, stage.total, dict(stage.values))
        left = (stage.total - stage.step) * spent / max(steps, 1)
        speed = stage.read / max(spent, 1e-9)
        return Progress(stage.step, stage.total, dict(stage.values), speed, left, stage.unit, stage.counted)

    @property
    def speed(self) -> float:
        return self._read / self._spent if self._spent else 0.0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began


def _parts(model: Any) -> dict[str, Any]:
    parts = {"model": dict(model.state_dict())}
    if hasattr(model, "training_state") and (more := model.training_state()):
        parts["training"] = more
    return parts


def _restored(model: Any, checkpoint: Checkpoint) -> Any:
    """A fresh model with the tensors of a checkpoint; `CheckpointError` if they are not those of such a model."""
    parts = checkpoint.parts
    check_tree(dict.fromkeys(parts), dict.fromkeys(_parts(model)), "the checkpoint")
    if not isinstance(parts["model"], dict):
        raise CheckpointError("model must be tensors by name")
    model.load_state_dict(parts["model"])
    if "training" in parts:
        check_tree(parts["training"], dict.fromkeys(model.training_state(), ANYTHING), "training")
        model.load_training_state(parts["training"])
    return model


def _next(stages: Iterator[Estimate], stop: Stop, clock: _Clock) -> Estimate | None:
    """The next stage; broken off at once if asked to stop."""
    clock.start()
    with stop.interruptible():
        return next(stages, None)
