"""The training loop and the definition of a training step.

A wrapper takes a step and returns a function with the same signature, `Step`. Wrappers can replay the step as a CUDA
graph, split a batch that does not fit in memory into microbatches, apply gradient checkpointing, or measure time and
memory. `seqloom.train.wrappers.wrap` selects the wrappers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import nn

from seqloom.core.device import preserve_threads, seed_step
from seqloom.core.errors import DivergedError, Interrupted
from seqloom.core.protocols import Loss, Task
from seqloom.core.tree import Tree, detach, to_device
from seqloom.train.checkpoints import CheckpointStore
from seqloom.train.config import FitConfig
from seqloom.train.events import Damaged, Evaluated, Event, Finished, Meter, Saved, Skipped, Stopped
from seqloom.train.state import StepResult, TrainState, non_finite_cause
from seqloom.train.stop import Stop

Step = Callable[[TrainState], StepResult]
AddGradient = Callable[[TrainState, Tree], Loss]


def add_gradient(state: TrainState, batch: Tree) -> Loss:
    """Add the gradient of one batch of a step and replace the carried state."""
    with state.autocast():
        loss = state.task.loss(state.model, to_device(batch, state.device), state.carry)
    state.scaler.scale(loss.value / state.config.accumulate_steps).backward()
    state.carry = detach(loss.carry)
    return Loss(loss.value.detach(), state.carry, loss.tokens)


def training_step(state: TrainState, add_gradient: AddGradient = add_gradient) -> StepResult:
    """Run one training step. If the loss or gradient is not finite, the weights and the optimizer do not change."""
    batches, lr, statistics = state.batches(), state.learning_rate(), state.statistics_before_step()
    seed_step(state.seed, state.tally.step)  # dropout is the same in a resumed run
    state.optimizer.zero_grad(set_to_none=True)
    losses: list[Loss] = []
    for batch in batches:
        losses.append(add_gradient(state, batch))
    loss = torch.stack([loss.value for loss in losses]).mean()
    state.scaler.unscale_(state.optimizer)
    gradients = [parameter.grad for parameter in state.model.parameters() if parameter.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    loss_value, norm_value = torch.stack([loss.float(), norm.float()]).tolist()  # the only device synchronization
    cause = non_finite_cause(loss_value, norm_value, state.model)
    if cause is None:
        clip_norm = state.config.clip_norm
        if clip_norm is not None and norm_value > clip_norm:
            torch._foreach_mul_(gradients, clip_norm / norm_value)
        for group in state.optimizer.param_groups:
            group["lr"] = lr * group.get("scale", 1.0)
        state.scaler.step(state.optimizer)
    else:
        state.carry = None
        state.restore_statistics(statistics)
    state.scaler.update()
    return state.count(StepResult(loss_value, norm_value, sum(loss.tokens for loss in losses), lr, cause))


def make_step(state: TrainState, step: Step = training_step) -> StepResult:
    """Unfreeze the layer groups that are due, and run the next step with the model in training mode."""
    if not state.model.training:  # only if needed, because train() visits hundreds of modules
        state.model.train()
    if state.layer_groups is not None:
        state.layer_groups.unfreeze(state.tally.step)
    return step(state)


def fit(
    task: Task,
    config: FitConfig,
    store: CheckpointStore,
    *,
    seed: int,
    stop: Stop | None = None,
    resume: bool = False,
    wrap: Callable[[TrainState], Step] = lambda state: training_step,
) -> Iterator[Event]:
    """Train and yield events. With `resume`, continue from the newest intact checkpoint."""
    with preserve_threads():
        state = TrainState(task, config, seed)
        checkpoint = store.load(state.restore) if resume else None
        yield state.started(resumed=checkpoint is not None)
        yield from (Damaged(state.tally.step, name, cause) for name, cause in store.damaged)
        yield from run_steps(state, wrap(state), store, stop or Stop())


def run_steps(state: TrainState, step: Step, store: CheckpointStore, stop: Stop) -> Iterator[Event]:
    """Run steps, evaluate and save until training ends or is stopped."""
    task, config, tally = state.task, state.config, state.tally
    meter = Meter()
    is_saved = True  # whether the newest checkpoint is up to date
    while True:
        if state.is_due(config.evaluate_every) and tally.evaluated != tally.step:
            try:
                with stop.interruptible():
                    metrics = state.evaluate()
            except Interrupted:
                pass  # the evaluation is still due and runs after the resume
            else:
                is_best, is_saved = state.record_evaluation(metrics), False
                if is_best:
                    store.save_best(task.inference_model(state.model).state_dict())
                yield Evaluated(tally.step, "dev", metrics, is_best)
        ending = state.reason_to_end() if not stop.requested else None
        due = state.is_due(config.save_every or config.evaluate_every)
        if not is_saved and (due or stop.requested or ending):
            is_saved, is_temporary = True, not (due or ending)  # a stop must not change which checkpoints are kept
            yield Saved(tally.step, store.save(tally.step, state.state_dict(), is_temporary))
        if stop.requested:
            yield from skipped_steps(tally.step, state.take_results())
            yield Stopped(tally.step)
            return
        if ending:
            break
        result = make_step(state, step)
        is_saved = False
        meter.add(result.tokens, seconds=result.seconds)
        yield from state.events  # events that wrappers of the step have reported
        state.events = []
        results = state.take_results()
        yield from skipped_steps(tally.step, results)
        if state.diverged is not None:
            raise DivergedError(
                f"Training diverged at step {tally.step}: {state.diverged} in {config.max_nonfinite_steps} consecutive "
                "steps. These steps changed no weights. Train again with a smaller train.lr or train.clip_norm, or "
                "with a longer train.warmup."
            )
        if tally.step % config.log_every == 0 or tally.step == state.total:
            values = state.report(results[-1])
            unit, remark = task.monitor.unit, task.monitor.remark
            yield meter.progress(tally.step, state.total, values, unit, task.speed_unit, remark)
    measured = state.parameter_count(), meter.speed(), meter.elapsed(), tally.memory or None, meter.seconds
    yield Finished(tally.step, ending, tally.best_step, tally.best or {}, *measured)


def skipped_steps(step: int, results: Sequence[StepResult]) -> Iterable[Skipped]:
    """Yield a `Skipped` event for each skipped step among the results up to `step`."""
    for number, result in enumerate(results, step - len(results) + 1):
        if result.cause is not None:
            yield Skipped(number, result.cause)
