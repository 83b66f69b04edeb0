"""A training step on a GPU as a CUDA graph: captured once for each shape of batch, and replayed from then on.

A small model's step is a thousand small operations, and a GPU is done with each before Python has
asked for the next. So all of a step is captured as a CUDA graph, on a batch and a carried state in
static buffers:

    loss and its gradient g     ‖g‖     g · min(1, clip/‖g‖)     the optimizer     the state carried on

Nothing in it waits for the device, and its result is read when somebody wants to know. If the loss
or ‖g‖ is not finite, the weights and the optimizer stay exactly as they were, and the carried state
begins anew, at zero.

The first batch of a shape is computed one operation at a time, then the same operations are
captured; random numbers are drawn from the step's own seed in both. So it makes no difference which
step was the first of its shape, and if kernels are deterministic a resumed training is the same to
the bit. Regions of a model may be compiled first, see `seqloom.accel.training.compiled_regions`.
"""

import math
import time
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from seqloom.accel.cuda_graphs import capture
from seqloom.accel.training.compiled_regions import RegionCompiler
from seqloom.core.device import seed_step
from seqloom.core.errors import is_out_of_memory
from seqloom.core.operations import compile_regions
from seqloom.core.tree import Tree, leaves, to_device, tree_map
from seqloom.train.events import Prepared
from seqloom.train.loop import Step
from seqloom.train.state import StepResult, TrainState

COUNT = "read"  # the entry of a batch that says how many tokens it has: no part of what is computed
MAX_GRAPHS = 512  # shapes beyond these are computed one operation at a time
MIN_REPORTED_SECONDS = 1.0  # of preparation
MIN_COMPILED_STEPS = 1000  # for fewer it takes longer to compile a model than to train it as it is


class CannotGraphError(Exception):
    """Why steps of this kind have to be made one operation at a time."""


@dataclass(frozen=True)
class StepGraph:
    """A captured step, the buffers of its batch and of the state it carries on, and how many tokens it reads."""

    graph: Any  # torch.cuda.CUDAGraph
    batch: Tree
    carry: Tree
    tokens: int


def can_graph(step: Step, state: TrainState) -> bool:
    c = state.config
    return (
        state.device.type == "cuda"
        and c.cuda_graphs
        and c.precision != "fp16"
        and c.accumulate_steps == 1
        and not c.gradient_checkpointing
    )


def graph_step(step: Step, state: TrainState) -> Step:
    return GraphedStep(step, state)


class GraphedStep:
    """A training step that is replayed; `plain` makes those that cannot be captured.

    The optimizer is one of torch's fused ones, and gets a tensor on the device for a learning rate.
    """

    def __init__(self, plain: Step, state: TrainState) -> None:
        self.plain = plain
        device = state.device
        self.parameters = list(state.model.parameters())
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.outcome = torch.zeros(2, device=device)  # loss and ‖g‖ of the latest step
        self.graphs: dict[Hashable, StepGraph] = {}
        self.max_graphs = MAX_GRAPHS
        self.carries: dict[Hashable, Tree] = {}  # buffers of carried states, by their shapes
        self.is_enabled = True
        self.compiler: RegionCompiler | None = None
        # A compiler chooses kernels by the shapes it happens to meet first, so a resume would not be exact.
        if state.total >= MIN_COMPILED_STEPS and not state.config.deterministic:
            self.compiler = RegionCompiler(dynamic=state.task.largest_step(state.seed) is not None)
        self.seconds, self.shapes = 0.0, 0  # of preparation, since it was last reported
        self.notes: list[str] = []

    def __call__(self, state: TrainState) -> StepResult:
        if not self.is_enabled or not state.tally.cuda_graphs:
            return self.plain(state)
        seconds, carry, lr = self.seconds, state.carry, state.learning_rate()
        try:
            tokens = self._run(state, state.batches()[0], lr)
        except CannotGraphError as reason:
            self.notes.append(f"steps are made one operation at a time: {reason}")
            self.is_enabled = False
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.notes.append("steps are made one operation at a time: out of memory")
            self.is_enabled = state.tally.cuda_graphs = False
        if not self.is_enabled:  # by now what filled the memory is gone
            self.graphs, self.carries, state.carry = {}, {}, carry
            self._report(state)
            return self.plain(state)
        seconds = self.seconds - seconds
        self._report(state)
        unread = self.outcome.clone()
        return state.count(StepResult(math.nan, math.nan, tokens, lr, unread=unread, preparation_seconds=seconds))

    def _report(self, state: TrainState) -> None:
        """Report the preparation once there is something to say."""
        if self.notes or self.seconds >= MIN_REPORTED_SECONDS:
            state.events.append(Prepared(state.tally.step + 1, self.seconds, self.shapes, tuple(self.notes)))
            self.seconds, self.shapes, self.notes = 0.0, 0, []

    def _run(self, state: TrainState, batch: Tree, lr: float) -> int:
        """Make the step of this batch; the number of tokens it read."""
        self._set_learning_rate(state, lr)
        carry = self._buffer(state.carry)
        groups = state.layer_groups
        kind = None if groups is None else groups.lowest(state.tally.step)
        key = kind, shape_of(batch), shape_of(carry)
        if key in self.graphs:
            captured = self.graphs[key]
            _copy(batch, captured.batch)
            seed_step(state.seed, state.tally.step)
            captured.graph.replay()
            increment_version(self.parameters)  # a graph leaves no trace of what it changed
            after, tokens = captured.carry, captured.tokens
        elif len(self.graphs) < self.max_graphs:
            began = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # the compiler's, of what it might do better
                static = _without_count(to_device(batch, state.device))
                after, tokens = self._run_eagerly(state, static, carry, self._refuse_to_wait)
                self._capture(key, state, static, carry, after, tokens)
                self._drop_gradients()
            torch.cuda.synchronize(state.device)
            self.seconds += time.perf_counter() - began
            self.shapes += 1
        else:
            static = _without_count(to_device(batch, state.device))
            after, tokens = self._run_eagerly(state, static, carry)
            self._drop_gradients()
        state.carry = after
        return batch[COUNT] if isinstance(batch, dict) and COUNT in batch else tokens

    def _set_learning_rate(self, state: TrainState, lr: float) -> None:
        """Write the rate to the device, where the graphs read it."""
        for group in state.optimizer.param_groups:
            if not isinstance(group["lr"], Tensor):
                group["lr"] = torch.tensor(float(group["lr"]), device=state.device)
                if "capturable" in group:
                    group["capturable"] = state.device.type == "cuda"
            group["lr"].fill_(lr * group.get("scale", 1.0))

    def _buffer(self, carry: Tree) -> Tree:
        """A carried state in the buffer that the graphs read."""
        buffer = self.carries.setdefault(shape_of(carry), carry)
        if buffer is not carry:
            _copy(carry, buffer)
        return buffer

    def _run_eagerly(
        self,
        state: TrainState,
        batch: Tree,
        carry: Tree,
        before: Callable[[TrainState, Tree, Tree], None] | None = None,
    ) -> tuple[Tree, int]:
        """Make the step one operation at a time, on a stream of its own; and before it something else.

        If the compiler fails, the step is made without it.
        """
        current = torch.cuda.current_stream(state.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            if before is not None:
                before(state, batch, carry)
            seed_step(state.seed, state.tally.step)
            try:
                after, tokens = self._step(state, batch, carry)
            except Exception as error:  # whatever a compiler may come upon; the weights are as they were
                if self.compiler is None or is_out_of_memory(error):
                    raise
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                self.notes.append(f"the model could not be compiled and is computed as it is: {reason}")
                self.compiler = None
                seed_step(state.seed, state.tally.step)
                after, tokens = self._step(state, batch, carry)
        current.wait_stream(self.stream)
        return self._buffer(after), tokens

    def _capture(self, key: Hashable, state: TrainState, batch: Tree, carry: Tree, after: Tree, tokens: int) -> None:
        """Capture a step that has just been made. If there is no memory for it, it is the last that is tried."""
        try:
            graph = capture(lambda: _copy(self._step(state, batch, carry)[0], after), self.pool, self.stream)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.max_graphs = len(self.graphs)
            self.notes.append("out of memory: other shapes of batches are made one operation at a time")
        else:
            self.graphs[key] = StepGraph(graph, batch, after, tokens)

    def _step(self, state: TrainState, batch: Tree, carry: Tree) -> tuple[Tree, int]:
        """All of a step, on the device: the state to carry on, and how many tokens were read."""
        self._drop_gradients()
        with state.autocast(), compile_regions(self.compiler):
            loss = state.task.loss(state.model, batch, carry)
        loss.value.backward()
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        value, norm = loss.value.detach().float(), torch.nn.utils.get_total_norm(gradients).float()
        is_finite = value.isfinite() & norm.isfinite()
        self._apply(state, norm, is_finite)
        self.outcome.copy_(torch.stack([value, norm]))
        return tree_map(lambda leaf: torch.where(is_finite, leaf.detach(), 0), loss.carry), loss.tokens

    def _apply(self, state: TrainState, norm: Tensor, is_finite: Tensor) -> None:
        """The optimizer's step. It divides gradients by `grad_scale`, and does nothing if `found_inf` is 1."""
        optimizer: Any = state.optimizer
        clip_norm = state.config.clip_norm
        optimizer.grad_scale = torch.ones_like(norm) if clip_norm is None else norm.clamp(min=clip_norm) / clip_norm
        optimizer.found_inf = 1 - is_finite.float()
        known = set(optimizer.state)
        try:
            optimizer.step()
        except Exception:
            for parameter in set(optimizer.state) - known:  # its state may be there in part only
                del optimizer.state[parameter]
            raise
        finally:
            del optimizer.grad_scale, optimizer.found_inf

    def _drop_gradients(self) -> None:
        """Gradients are made anew in every step, in memory that belongs to its graph."""
        for parameter in self.parameters:
            parameter.grad = None

    def _refuse_to_wait(self, state: TrainState, batch: Tree, carry: Tree) -> None:
        """Find out, before anything is captured, whether the loss waits for the device: then it cannot be."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with state.autocast():
                state.task.loss(state.model, batch, carry).value.backward()
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "synchroniz" not in str(error):
                raise
            raise CannotGraphError("its loss waits for the GPU") from error
        finally:
            torch.cuda.set_sync_debug_mode(before)
            self._drop_gradients()


def shape_of(tree: Tree) -> Hashable:
    """What a graph depends on: the shapes and types of the tensors in a tree, and all else but `COUNT` as it is."""
    if isinstance(tree, Tensor):
        return tuple(tree.shape), tree.dtype
    if isinstance(tree, dict):
        return tuple((name, shape_of(part)) for name, part in tree.items() if name != COUNT)
    if isinstance(tree, tuple | list):
        return tuple(shape_of(part) for part in tree)
    value: Hashable = tree
    return value


def _without_count(batch: Tree) -> Tree:
    """The batch with nothing in it that is different each time and no tensor."""
    return {**batch, COUNT: 0} if isinstance(batch, dict) and COUNT in batch else batch


def _copy(new: Tree, buffer: Tree) -> None:
    """Copy the tensors of one tree into those of another; from the CPU without waiting."""
    for source, target in zip(leaves(new), leaves(buffer), strict=True):
        target.copy_(source.pin_memory() if source.device.type == "cpu" else source, non_blocking=True)
