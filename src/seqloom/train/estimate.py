"""Training without gradients (counting, expectation–maximization) with the same events and run files as `fit`."""

from collections.abc import Iterator

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.device import describe_machine
from seqloom.core.errors import CheckpointError, Interrupted
from seqloom.core.protocols import Estimable, Model, ResumableModel
from seqloom.core.tree import ANYTHING, Tree, check_tree
from seqloom.train.checkpoints import Checkpoint, CheckpointStore
from seqloom.train.events import Damaged, Evaluated, Event, Finished, Meter, Progress, Saved, Started, Stopped
from seqloom.train.stop import Stop


@config
class EstimateConfig:
    """The `train` section of recipes that train without gradients."""

    keep_checkpoints: PositiveInt = 1  # number of newest checkpoints to keep


def estimate(
    task: Estimable,
    config: EstimateConfig,
    store: CheckpointStore,
    *,
    seed: int,
    stop: Stop | None = None,
    resume: bool = False,
) -> Iterator[Event]:
    """Run the stages of an estimation, save the model of each stage that has one, and evaluate the last model.

    `seed` is not used, because the task reads the random seed from the recipe. The argument exists so that the
    signature is the same as that of `fit`.
    """
    stop = stop or Stop()
    model: Model | None = None

    def restore(checkpoint: Checkpoint) -> None:
        nonlocal model
        model = restore_model(task.model(), checkpoint)

    checkpoint = store.load(restore) if resume else None
    step = saved_step = 0 if checkpoint is None else checkpoint.step
    parameters, device = task.scale()
    yield Started(step, step, parameters, device, checkpoint is not None, machine=describe_machine(device))
    for name, cause in store.damaged:
        yield Damaged(step, name, cause)
    meter, stages = Meter(), task.estimates(model, step)
    try:
        while True:
            with meter, stop.interruptible():  # a request to stop interrupts the stage
                stage = next(stages, None)
            if stage is None:
                break
            meter.add(stage.read, stage.step - step)
            step = stage.step
            progress = meter.progress(step, stage.total, dict(stage.values), stage.unit, stage.speed_unit)
            yield progress if stage.read else Progress(step, stage.total, progress.values)
            if stage.model is not None:
                model, saved_step = stage.model, step
                yield Saved(step, store.save(step, parts_of(model)))
        with stop.interruptible():
            metrics = task.evaluate(model, "dev")
    except Interrupted:
        yield Stopped(saved_step)
        return
    assert model is not None, "the last stage of an estimation must have a model"
    store.save_best(model.state_dict())
    yield Evaluated(step, "dev", metrics, best=True)
    parameters = sum(tensor.numel() for tensor in model.state_dict().values() if tensor.is_floating_point())
    yield Finished(step, "the estimation is complete", step, metrics, parameters, meter.speed(), meter.elapsed())


def parts_of(model: Model) -> dict[str, Tree]:
    """Return the parts of a checkpoint: the tensors of a model and its other training state."""
    parts: dict[str, Tree] = {"model": dict(model.state_dict())}
    if isinstance(model, ResumableModel) and (more := model.training_state()):
        parts["training"] = more
    return parts


def restore_model(model: Model, checkpoint: Checkpoint) -> Model:
    """Load the tensors of a checkpoint into a new model. Raise `CheckpointError` if they do not match the model."""
    parts = checkpoint.parts
    check_tree(dict.fromkeys(parts), dict.fromkeys(parts_of(model)), "the checkpoint")
    if not isinstance(parts["model"], dict):
        raise CheckpointError("model must be a mapping from names to tensors")
    model.load_state_dict(parts["model"])
    if "training" in parts and isinstance(model, ResumableModel):
        check_tree(parts["training"], dict.fromkeys(model.training_state(), ANYTHING), "training")
        model.load_training_state(parts["training"])
    return model
