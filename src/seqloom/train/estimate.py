"""Training without gradients: counting, expectation–maximisation. The same events and the same run as `fit`."""

import time
from collections.abc import Iterator

from seqloom.core.config import config
from seqloom.core.errors import Interrupted
from seqloom.core.protocols import Estimable, Estimate
from seqloom.train.checkpoints import CheckpointStore
from seqloom.train.events import Damaged, Evaluated, Event, Finished, Progress, Saved, Started, Stopped
from seqloom.train.stop import Stop


@config
class EstimateConfig:
    """How to estimate without gradients."""

    keep: int = 1  # newest checkpoints to keep


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
    checkpoint = store.load() if resume else None
    model, step = None, 0
    if checkpoint is not None:
        model, step = task.model(), checkpoint.step
        model.load_state_dict(checkpoint.parts["model"])
    yield Started(step, step, 0, "cpu", resumed=checkpoint is not None)
    for name, cause in store.damaged:
        yield Damaged(step, name, cause)

    began = time.perf_counter()
    stages = task.estimates(model, step)
    try:
        while (stage := _next(stages, stop)) is not None:
            step = stage.step
            yield Progress(step, stage.total, dict(stage.values))
            if stage.model is not None:
                model = stage.model
                yield Saved(step, store.save(step, {"model": dict(model.state_dict())}))
        with stop.interruptible():
            metrics = task.evaluate(model, "dev")
    except Interrupted:
        yield Stopped(step)
        return
    assert model is not None, "an estimation must end with a model"
    store.save_best(model.state_dict())
    yield Evaluated(step, "dev", metrics, best=True)
    parameters = sum(tensor.numel() for tensor in model.state_dict().values() if tensor.is_floating_point())
    seconds = time.perf_counter() - began
    yield Finished(step, "the estimation is complete", step, metrics, parameters, 0.0, seconds)


def _next(stages: Iterator[Estimate], stop: Stop) -> Estimate | None:
    """The next stage; broken off at once if asked to stop."""
    with stop.interruptible():
        return next(stages, None)
