"""Wrappers of a training step: microbatches, CUDA graphs, gradient checkpointing, and measurement of memory and time.

A wrapper takes a step and returns a step with the same signature. `wrap` selects the wrappers.

The loss of a batch is the mean over n predictions. The gradient of the batch is therefore a weighted sum of the
gradients of its microbatches. Microbatch i has n_i predictions:

    L = Σ_i (n_i / n) · L_i          ∇L = Σ_i (n_i / n) · ∇L_i

The examples of a batch and their carried state are split, and the new states are concatenated. A microbatch that does
not fit in memory is halved again, down to single examples. The smallest size that did not fit is saved with the
checkpoint (`Counters.limit`), so that training does not try it again and a resumed run uses the same microbatches.
"""

import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import MethodType

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seqloom.core.errors import is_out_of_memory
from seqloom.core.memory import measure_peak
from seqloom.core.operations import operation
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree, concatenate_rows, count_rows, detach, leaves, slice_rows, to_device
from seqloom.train.events import BatchSplit
from seqloom.train.loop import Step, add_gradient, training_step
from seqloom.train.state import StepResult, TrainState, recomputable_layers


def wrap(state: TrainState) -> Step:
    """Return the step with the wrappers that the configuration and the device require.

    Memory is measured at the second step, because the optimizer state does not exist before the first step has
    finished, and at the largest step of the first epoch.
    """
    step = accelerate(split_on_oom, state)
    if state.config.gradient_checkpointing:
        step = checkpoint_activations(step, recomputable_layers(state.model))
    steps = {min(1, state.total - 1)}
    if (largest := state.task.largest_step(state.seed)) is not None:
        steps.add(largest // state.config.accumulate_steps)
    return measure_time(measure_memory(step, steps))


@operation
def accelerate(step: Step, state: TrainState) -> Step:
    """Return the step itself; `seqloom.accel` registers an implementation that replays the step as a CUDA graph."""
    return step


def measure_memory(step: Step, steps: Container[int]) -> Step:
    """Measure the peak memory of these steps and record the maximum in the tally."""

    def measured_step(state: TrainState) -> StepResult:
        if state.tally.step not in steps:
            return step(state)
        state.optimizer.zero_grad(set_to_none=True)  # gradients of the previous step are not counted
        with measure_peak(state.device, leaves([state.tensors(), state.batches()])) as peak:
            result = step(state)
        state.tally.memory = max(state.tally.memory, peak.bytes)
        return result

    return measured_step


def measure_time(step: Step) -> Step:
    """Measure the duration of every step in seconds, excluding preparation."""

    def timed_step(state: TrainState) -> StepResult:
        start = time.perf_counter()
        result = step(state)
        result.seconds = time.perf_counter() - start - result.preparation_seconds
        return result

    return timed_step


def checkpoint_activations(step: Step, layers: Sequence[nn.Module]) -> Step:
    """Recompute the activations of these layers in the backward pass of every step (gradient checkpointing).

    If each of L layers has an input of size x and activations of size a, checkpointing reduces the memory of the stack
    from L·a to L·x + a and increases the time by about a third. The recomputation restores the state of the random
    number generator, so the gradients do not change.
    """

    def checkpointed_step(state: TrainState) -> StepResult:
        with recompute_activations(layers):
            return step(state)

    return checkpointed_step


@contextmanager
def recompute_activations(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Keep only the inputs of these layers within this block and recompute their activations in the backward pass."""

    def forward(layer: nn.Module, *args: Tree, **kwargs: Tree) -> Tree:
        plain_forward = MethodType(type(layer).forward, layer)
        if layer.training and torch.is_grad_enabled():
            return checkpoint(plain_forward, *args, use_reentrant=False, **kwargs)
        return plain_forward(*args, **kwargs)

    for layer in layers:
        layer.forward = MethodType(forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


class BatchTooLargeError(Exception):
    """Raised if a microbatch does not fit in memory, so the batch must be split further."""


def split_on_oom(state: TrainState) -> StepResult:
    """Run a training step. If the step runs out of memory, restart it with smaller microbatches."""
    carry, statistics = state.carry, state.statistics_before_step()
    while True:
        state.carry = carry
        try:
            return training_step(state, add_split_gradient)
        except BatchTooLargeError:
            state.restore_statistics(statistics)  # at the end of this block, the tensors of the traceback are freed
        if state.device.type == "cuda":
            torch.cuda.empty_cache()


def add_split_gradient(state: TrainState, batch: Tree) -> Loss:
    """Add the gradient of a batch. If the batch does not fit in memory, split it into microbatches."""
    batch, tally = to_device(batch, state.device), state.tally
    count = microbatch_count(tally.limit, batch, state.carry)

    def loss_of(part: Tree, carry: Tree) -> Loss:
        with state.autocast():
            return state.task.loss(state.model, part, carry)

    def backward(value: Tensor) -> None:
        state.scaler.scale(value / state.config.accumulate_steps).backward()

    try:
        if count == 1:
            return add_gradient(state, batch)
        loss = microbatch_gradient(state.model, batch, state.carry, count, loss_of, backward)
        state.carry = loss.carry
        return loss
    except Exception as error:
        if not is_out_of_memory(error) or count == count_rows((batch, state.carry)):
            raise
        tally.limit = max(1, sum(leaf.numel() for leaf in leaves(batch)) // count)
        rows = count_rows(batch)
        split = BatchSplit(tally.step + 1, rows, microbatch_count(tally.limit, batch, state.carry))
        others = [event for event in state.events if not (isinstance(event, BatchSplit) and event.rows == rows)]
        state.events = [*others, split]  # report only the last attempt of a step
        raise BatchTooLargeError from error


def microbatch_count(limit: int | None, batch: Tree, carry: Tree = None) -> int:
    """Return the number of microbatches with fewer than `limit` values each: 1, 2, 4 …, at most one per example."""
    size, rows, count = sum(leaf.numel() for leaf in leaves(batch)), count_rows((batch, carry)), 1
    while limit is not None and size >= count * limit and count < rows:
        count = min(2 * count, rows)
    return count


def microbatch_gradient(
    model: nn.Module,
    batch: Tree,
    carry: Tree,
    count: int,
    loss_of: Callable[[Tree, Tree], Loss],
    backward: Callable[[Tensor], None],
) -> Loss:
    """Add the gradient of a batch to that of the model, one microbatch at a time. Return the detached loss.

    `loss_of` computes the loss of a batch and a carried state, and `backward` adds the gradient of a scalar.
    """
    accumulated = [parameter.grad for parameter in model.parameters()]  # gradients of other batches of this step
    model.zero_grad(set_to_none=True)
    rows, losses, sizes = count_rows(batch), [], []
    for first, last in pairwise(rows * i // count for i in range(count + 1)):
        part, part_carry = slice_rows(batch, first, last, rows), slice_rows(carry, first, last, rows)
        loss = loss_of(part, part_carry)
        size = torch.as_tensor(count_rows(part)) if loss.count is None else loss.count
        sizes.append(size.to(loss.value))
        backward(loss.value * sizes[-1] / sizes[0].clamp(min=1) / count)  # about the size of a mean, for fp16
        losses.append(Loss(loss.value.detach(), detach(loss.carry), loss.tokens))
        del loss
    n = torch.stack(sizes)
    total = n.sum().clamp(min=torch.finfo(n.dtype).tiny)  # the sum of weights may be below 1
    scale = torch.where(n.sum() > 0, sizes[0].clamp(min=1) * count / total, 0)
    for parameter, other in zip(model.parameters(), accumulated, strict=True):
        if parameter.grad is not None:
            parameter.grad.mul_(scale)
        if other is not None:
            parameter.grad = other if parameter.grad is None else parameter.grad.add_(other)
    value = (torch.stack([loss.value for loss in losses]) * n).sum() / total
    carry = concatenate_rows([loss.carry for loss in losses])
    return Loss(value, carry, sum(loss.tokens for loss in losses))
