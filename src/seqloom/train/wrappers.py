"""The wrappers of a training step: microbatches, CUDA graphs, gradient checkpointing, measured memory and time.

Each takes a step and returns one with the same signature; `wrap` chooses them.

The loss of a batch is a mean over its n predictions, so its gradient is that of its microbatches,
each weighted by its share of them:

    L = Σ_i (n_i / n) · L_i          ∇L = Σ_i (n_i / n) · ∇L_i

Rows are shared out, and so is the state they carry on; afterwards it is concatenated again. A
microbatch that does not fit either is halved in turn, down to single rows. What was too large once
is not tried again: the smallest size that did not fit is kept with the checkpoint
(`Counters.limit`), so that a resume takes the same microbatches.
"""

import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import MethodType

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seqloom.core.errors import out_of_memory
from seqloom.core.memory import measure_peak
from seqloom.core.operations import operation
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree, concatenate_rows, count_rows, detach, leaves, slice_rows, to_device
from seqloom.train.events import BatchSplit
from seqloom.train.loop import Step, add_gradient, training_step
from seqloom.train.state import StepResult, TrainState, recomputable_layers


def wrap(state: TrainState) -> Step:
    """The step of a training with the wrappers that its configuration and its device call for.

    Memory is measured at the second step, the first that finds the optimizer's state, and at the
    largest of the first epoch.
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
    """A faster form of a step for this training: none by definition; `seqloom.accel` offers CUDA graphs."""
    return step


def measure_memory(step: Step, steps: Container[int]) -> Step:
    """Measure the memory of these steps; the most is kept in the tally."""

    def measured_step(state: TrainState) -> StepResult:
        if state.tally.step not in steps:
            return step(state)
        state.optimizer.zero_grad(set_to_none=True)  # the last update's gradients are no part of this one
        with measure_peak(state.device, leaves([state.tensors(), state.batches()])) as peak:
            result = step(state)
        state.tally.memory = max(state.tally.memory, peak.bytes)
        return result

    return measured_step


def measure_time(step: Step) -> Step:
    """Measure the seconds of every step, without those of preparation."""

    def timed_step(state: TrainState) -> StepResult:
        began = time.perf_counter()
        result = step(state)
        result.seconds = time.perf_counter() - began - result.preparation_seconds
        return result

    return timed_step


def checkpoint_activations(step: Step, layers: Sequence[nn.Module]) -> Step:
    """Recompute the activations of these layers in the backward pass of every step (gradient checkpointing).

    A stack of L layers keeps a activations of each, L·a, until the backward pass. With
    checkpointing it keeps the input x of each layer and the activations of one, L·x + a, and takes
    about a third more time. Random draws are repeated, so the gradients are the same.
    """

    def checkpointed_step(state: TrainState) -> StepResult:
        with recompute_activations(layers):
            return step(state)

    return checkpointed_step


@contextmanager
def recompute_activations(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Within this block, keep only the inputs of these layers for the gradient and compute the rest again."""

    def forward(layer: nn.Module, *arguments: Tree, **named: Tree) -> Tree:
        plain = MethodType(type(layer).forward, layer)
        if layer.training and torch.is_grad_enabled():
            return checkpoint(plain, *arguments, use_reentrant=False, **named)
        return plain(*arguments, **named)

    for layer in layers:
        layer.forward = MethodType(forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


class BatchTooLargeError(Exception):
    """There is not enough memory for a batch as it was split; in more microbatches there may be."""


def split_on_oom(state: TrainState) -> StepResult:
    """Make a training step; whenever it is out of memory, once more, from the beginning and in smaller microbatches."""
    carry = state.carry
    while True:
        state.carry = carry
        try:
            return training_step(state, add_split_gradient)
        except BatchTooLargeError:
            pass  # and with it goes what filled the memory
        if state.device.type == "cuda":
            torch.cuda.empty_cache()


def add_split_gradient(state: TrainState, batch: Tree) -> Loss:
    """Add the gradient of a batch in as many microbatches as it takes to fit."""
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
        if not out_of_memory(error) or count == count_rows((batch, state.carry)):
            raise
        tally.limit = max(1, sum(leaf.numel() for leaf in leaves(batch)) // count)
        rows = count_rows(batch)
        split = BatchSplit(tally.step + 1, rows, microbatch_count(tally.limit, batch, state.carry))
        others = [event for event in state.events if not (isinstance(event, BatchSplit) and event.rows == rows)]
        state.events = [*others, split]  # only the last of several attempts in a step counts
        raise BatchTooLargeError from error


def microbatch_count(limit: int | None, batch: Tree, carry: Tree = None) -> int:
    """In how many microbatches to take a batch, if `limit` values are too many: 1, 2, 4 …, at most one for each row."""
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
    """Add the gradient of a batch to that of the model, one microbatch at a time: the loss of the whole, detached.

    `loss_of` gives the loss of a batch and a carried state, `backward` adds the gradient of a
    scalar.
    """
    accumulated = [parameter.grad for parameter in model.parameters()]  # of other batches of this step
    model.zero_grad(set_to_none=True)
    rows, losses, sizes = count_rows(batch), [], []
    for first, last in pairwise(rows * i // count for i in range(count + 1)):
        part, part_carry = slice_rows(batch, first, last, rows), slice_rows(carry, first, last, rows)
        loss = loss_of(part, part_carry)
        size = torch.as_tensor(count_rows(part)) if loss.count is None else loss.count
        sizes.append(size.to(loss.value))
        backward(loss.value * sizes[-1] / sizes[0].clamp(min=1) / count)  # near its size as a mean, in any precision
        losses.append(Loss(loss.value.detach(), detach(loss.carry), loss.tokens))
        del loss
    n = torch.stack(sizes)
    total = n.sum().clamp(min=torch.finfo(n.dtype).tiny)  # weighted predictions may be less than one
    scale = torch.where(n.sum() > 0, sizes[0].clamp(min=1) * count / total, 0)
    for parameter, other in zip(model.parameters(), accumulated, strict=True):
        if parameter.grad is not None:
            parameter.grad.mul_(scale)
        if other is not None:
            parameter.grad = other if parameter.grad is None else parameter.grad.add_(other)
    value = (torch.stack([loss.value for loss in losses]) * n).sum() / total
    carry = concatenate_rows([loss.carry for loss in losses])
    return Loss(value, carry, sum(loss.tokens for loss in losses))
