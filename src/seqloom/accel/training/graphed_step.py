"""Training steps as CUDA graphs: captured once per batch shape, then replayed.

A step of a small model consists of about a thousand small operations, each faster than its launch from Python. The
whole step is therefore captured as a CUDA graph, with its batch and its carry in static buffers:

    loss and its gradient g     ‖g‖     g · min(1, clip/‖g‖)     optimizer step     next carry

The graph never synchronizes; loss and ‖g‖ are read on demand. If the loss or ‖g‖ is not finite, weights and optimizer
state do not change, and the carry is set to zero.

The first step of a shape runs eagerly; then the same operations are captured. Both executions use the random seed of
the step. The result therefore does not depend on which step was the first of its shape. With deterministic kernels, a
resumed run is bit-identical to an uninterrupted run. Regions of the model can be compiled first: see
`seqloom.accel.training.compiled_regions`.
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

TOKEN_COUNT = "read"  # the key of a batch's number of tokens, which the graph does not use
MAX_GRAPHS = 512  # maximum number of graphs; further shapes run eagerly
MIN_REPORTED_SECONDS = 1.0  # shorter preparation is not reported
MIN_COMPILED_STEPS = 1000  # with fewer steps, compilation takes longer than it saves


class CannotGraphError(Exception):
    """The step cannot be captured; the message gives the reason."""


@dataclass(frozen=True)
class StepGraph:
    """A captured step, the static buffers of its batch and its carry, and its number of tokens."""

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
    """A training step that replays CUDA graphs; `plain` runs steps that cannot be captured.

    The optimizer must be a fused optimizer of torch; its learning rate becomes a tensor on the device.
    """

    def __init__(self, plain: Step, state: TrainState) -> None:
        self.plain = plain
        device = state.device
        self.parameters = list(state.model.parameters())
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.loss_and_norm = torch.zeros(2, device=device)  # values of the latest step
        self.graphs: dict[Hashable, StepGraph] = {}
        self.max_graphs = MAX_GRAPHS
        self.carries: dict[Hashable, Tree] = {}  # static buffers, by shape
        self.is_enabled = True
        self.compiler: RegionCompiler | None = None
        # The compiler selects kernels by the first shapes that it sees, so a resumed run would not be exact.
        if state.total >= MIN_COMPILED_STEPS and not state.config.deterministic:
            self.compiler = RegionCompiler(dynamic=state.task.largest_step(state.seed) is not None)
        self.seconds, self.shapes = 0.0, 0  # preparation time and captured shapes since the last report
        self.notes: list[str] = []

    def __call__(self, state: TrainState) -> StepResult:
        if not self.is_enabled or not state.tally.cuda_graphs:
            return self.plain(state)
        seconds, carry, lr = self.seconds, state.carry, state.learning_rate()
        try:
            tokens = self._run(state, state.batches()[0], lr)
        except CannotGraphError as reason:
            self.notes.append(f"training without CUDA graphs: {reason}")
            self.is_enabled = False
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.notes.append("training without CUDA graphs: out of memory")
            self.is_enabled = state.tally.cuda_graphs = False
        if not self.is_enabled:  # the memory of the failed attempt has already been released
            self.graphs, self.carries, state.carry = {}, {}, carry
            self._report(state)
            return self.plain(state)
        seconds = self.seconds - seconds
        self._report(state)
        unread = self.loss_and_norm.clone()
        return state.count(StepResult(math.nan, math.nan, tokens, lr, unread=unread, preparation_seconds=seconds))

    def _report(self, state: TrainState) -> None:
        """Report notes, and the preparation time if it is long enough."""
        if self.notes or self.seconds >= MIN_REPORTED_SECONDS:
            state.events.append(Prepared(state.tally.step + 1, self.seconds, self.shapes, tuple(self.notes)))
            self.seconds, self.shapes, self.notes = 0.0, 0, []

    def _run(self, state: TrainState, batch: Tree, lr: float) -> int:
        """Run the step of a batch and return its number of tokens."""
        self._set_learning_rate(state, lr)
        carry = self._static_carry(state.carry)
        groups = state.layer_groups
        lowest_group = None if groups is None else groups.lowest(state.tally.step)
        key = lowest_group, shape_key(batch), shape_key(carry)
        if key in self.graphs:
            graphed = self.graphs[key]
            _copy(batch, graphed.batch)
            seed_step(state.seed, state.tally.step)
            graphed.graph.replay()
            increment_version(self.parameters)  # a replay does not update tensor versions
            after, tokens = graphed.carry, graphed.tokens
        elif len(self.graphs) < self.max_graphs:
            started = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # performance hints of the compiler
                static = _zero_token_count(to_device(batch, state.device))
                after, tokens = self._run_eagerly(state, static, carry, self._check_no_sync)
                self._capture(key, state, static, carry, after, tokens)
                self._clear_gradients()
            torch.cuda.synchronize(state.device)
            self.seconds += time.perf_counter() - started
            self.shapes += 1
        else:
            static = _zero_token_count(to_device(batch, state.device))
            after, tokens = self._run_eagerly(state, static, carry)
            self._clear_gradients()
        state.carry = after
        return batch[TOKEN_COUNT] if isinstance(batch, dict) and TOKEN_COUNT in batch else tokens

    def _set_learning_rate(self, state: TrainState, lr: float) -> None:
        """Write the learning rate to the device, where the graphs read it."""
        for group in state.optimizer.param_groups:
            if not isinstance(group["lr"], Tensor):
                group["lr"] = torch.tensor(float(group["lr"]), device=state.device)
                if "capturable" in group:
                    group["capturable"] = state.device.type == "cuda"
            group["lr"].fill_(lr * group.get("scale", 1.0))

    def _static_carry(self, carry: Tree) -> Tree:
        """Copy a carry to the static buffer of its shape."""
        buffer = self.carries.setdefault(shape_key(carry), carry)
        if buffer is not carry:
            _copy(carry, buffer)
        return buffer

    def _run_eagerly(
        self,
        state: TrainState,
        batch: Tree,
        carry: Tree,
        check: Callable[[TrainState, Tree, Tree], None] | None = None,
    ) -> tuple[Tree, int]:
        """Run the step eagerly on the capture stream, after `check`; if the compiler fails, run the step without it."""
        current = torch.cuda.current_stream(state.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            if check is not None:
                check(state, batch, carry)
            seed_step(state.seed, state.tally.step)
            statistics = state.statistics_before_step()
            try:
                after, tokens = self._step(state, batch, carry)
            except Exception as error:  # any compiler error; the weights have not changed
                state.restore_statistics(statistics)
                if self.compiler is None or is_out_of_memory(error):
                    raise
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                self.notes.append(f"training without torch.compile: {reason}")
                self.compiler = None
                seed_step(state.seed, state.tally.step)
                after, tokens = self._step(state, batch, carry)
        current.wait_stream(self.stream)
        return self._static_carry(after), tokens

    def _capture(self, key: Hashable, state: TrainState, batch: Tree, carry: Tree, after: Tree, tokens: int) -> None:
        """Capture the step that has just run; stop capturing if memory runs out."""
        try:
            graph = capture(lambda: _copy(self._step(state, batch, carry)[0], after), self.pool, self.stream)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.max_graphs = len(self.graphs)
            self.notes.append("out of memory for CUDA graphs: other batch shapes run without them")
        else:
            self.graphs[key] = StepGraph(graph, batch, after, tokens)

    def _step(self, state: TrainState, batch: Tree, carry: Tree) -> tuple[Tree, int]:
        """Run a whole step on the device and return the next carry and the number of tokens."""
        self._clear_gradients()
        statistics = state.statistics_before_step()
        with state.autocast(), compile_regions(self.compiler):
            loss = state.task.loss(state.model, batch, carry)
        loss.value.backward()
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        value, norm = loss.value.detach().float(), torch.nn.utils.get_total_norm(gradients).float()
        is_finite = value.isfinite() & norm.isfinite()
        self._apply(state, norm, is_finite)
        state.restore_statistics(statistics, keep=is_finite)
        self.loss_and_norm.copy_(torch.stack([value, norm]))
        return tree_map(lambda leaf: torch.where(is_finite, leaf.detach(), 0), loss.carry), loss.tokens

    def _apply(self, state: TrainState, norm: Tensor, is_finite: Tensor) -> None:
        """Run the optimizer, which divides gradients by `grad_scale` and does nothing if `found_inf` is 1."""
        optimizer: Any = state.optimizer
        clip_norm = state.config.clip_norm
        optimizer.grad_scale = torch.ones_like(norm) if clip_norm is None else norm.clamp(min=clip_norm) / clip_norm
        optimizer.found_inf = 1 - is_finite.float()
        initialized = set(optimizer.state)
        try:
            optimizer.step()
        except Exception:
            for parameter in set(optimizer.state) - initialized:  # remove partly initialized state
                del optimizer.state[parameter]
            raise
        finally:
            del optimizer.grad_scale, optimizer.found_inf

    def _clear_gradients(self) -> None:
        """Remove gradients, because every graph allocates its own gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def _check_no_sync(self, state: TrainState, batch: Tree, carry: Tree) -> None:
        """Raise `CannotGraphError` if the loss synchronizes with the device."""
        previous_mode, statistics = torch.cuda.get_sync_debug_mode(), state.statistics_before_step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with state.autocast():
                state.task.loss(state.model, batch, carry).value.backward()
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "synchroniz" not in str(error):
                raise
            raise CannotGraphError("the loss synchronizes with the GPU") from error
        finally:
            torch.cuda.set_sync_debug_mode(previous_mode)
            state.restore_statistics(statistics)
            self._clear_gradients()


def shape_key(tree: Tree) -> Hashable:
    """Return the key of a graph: shapes and dtypes of a tree's tensors, and its other values except `TOKEN_COUNT`."""
    if isinstance(tree, Tensor):
        return tuple(tree.shape), tree.dtype
    if isinstance(tree, dict):
        return tuple((name, shape_key(part)) for name, part in tree.items() if name != TOKEN_COUNT)
    if isinstance(tree, tuple | list):
        return tuple(shape_key(part) for part in tree)
    value: Hashable = tree
    return value


def _zero_token_count(batch: Tree) -> Tree:
    """Set the number of tokens of a batch to 0, because the number is not a tensor and differs between batches."""
    return {**batch, TOKEN_COUNT: 0} if isinstance(batch, dict) and TOKEN_COUNT in batch else batch


def _copy(tree: Tree, buffer: Tree) -> None:
    """Copy the tensors of a tree to buffers; copies from the CPU are asynchronous."""
    for source, target in zip(leaves(tree), leaves(buffer), strict=True):
        target.copy_(source.pin_memory() if source.device.type == "cpu" else source, non_blocking=True)
