"""A whole training step on a CUDA GPU as one thing: recorded once for each shape of batch, and from then on played.

A small model's step is a thousand small operations, and a GPU is done with each before Python has asked for the next.
So all of a step is recorded as a CUDA graph, on a batch and a carried state that stand in fixed places:

    loss and its gradient g     ‖g‖     g · min(1, clip/‖g‖)     the optimizer     the state carried on

Nothing in it waits for the device, and what came of it is read when somebody wants to know. Where the loss or ‖g‖ is
not finite, the weights and the optimizer stay exactly as they were, and the carried state begins anew, at zero.

The first batch of a shape is computed one operation at a time, then the same operations are recorded; random numbers
are drawn from the step's own seed in both. So it makes no difference which step was the first of its shape, and where
kernels are deterministic a training that is gone on with is the same to the bit. What of a model is `fusible` may be
compiled first, see `seqloom.core.fusing`.
"""

import time
import warnings
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from seqloom.core.errors import out_of_memory
from seqloom.core.fusing import Fusing, fusing
from seqloom.core.graphs import record
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree, leaves, to_device, tree_map

COUNT = "read"  # the entry of a batch that says how many tokens it has: no part of what is computed
MOST_RECORDS = 512  # shapes beyond these are computed one operation at a time
TELLING = 1.0  # seconds of preparation that are worth a word
UNREAD = 100  # steps at most whose outcome lies unread on the device


class CannotRecord(Exception):
    """Why steps of this kind have to be made one operation at a time."""


@dataclass(frozen=True)
class Record:
    """A step that was recorded, the places of its batch and of the state it carries on, and how much it reads."""

    graph: Any  # torch.cuda.CUDAGraph
    batch: Tree
    after: Tree
    tokens: int


@dataclass
class Preparation:
    """What it took until steps could be played, and what there is to say about it."""

    seconds: float = 0.0
    shapes: int = 0
    notes: list[str] = field(default_factory=list)
    said: tuple[float, int] = (0.0, 0)  # seconds and shapes that were told of

    @property
    def telling(self) -> bool:
        """Is there something new that is worth a word?"""
        return bool(self.notes) or self.seconds - self.said[0] >= TELLING

    def told(self) -> tuple[float, int, tuple[str, ...]]:
        """Seconds, shapes and notes since the last time."""
        found = self.seconds - self.said[0], self.shapes - self.said[1], tuple(self.notes)
        self.said, self.notes = (self.seconds, self.shapes), []
        return found


class CapturedStep:
    """`loss(batch, carry)` and everything after it, for one model and its optimizer.

    The optimizer is one of torch's fused ones, with a tensor on the device for a learning rate.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[Tree, Tree], Loss],
        *,
        clip: float | None,
        autocast: Callable[[], AbstractContextManager[Any]],
        device: torch.device,
        fused: Fusing | None = None,
    ) -> None:
        self.optimizer, self.loss, self.clip, self.autocast, self.device = optimizer, loss, clip, autocast, device
        self.parameters = list(model.parameters())
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.outcome = torch.zeros(2, device=device)  # loss and ‖g‖ of the step just made
        self.unread = torch.zeros(UNREAD, 2, device=device)
        self.waiting = 0  # how many of them nobody has read yet
        self.records: dict[Hashable, Record] = {}
        self.most = MOST_RECORDS
        self.places: dict[Hashable, Tree] = {}  # of carried states, by their shapes
        self.preparation = Preparation()
        self.fused = fused

    def __call__(self, batch: Tree, carry: Tree, seed: Callable[[], None], kind: Hashable = None) -> tuple[Tree, int]:
        """Make the step of this batch: the state to carry on, and how many tokens were read.

        `seed` makes the step's random numbers what they are; `kind` tells apart steps that differ in more than shapes.
        """
        carry = self._placed(carry)
        key = kind, shape_of(batch), shape_of(carry)
        if key in self.records:
            record = self.records[key]
            _put(batch, record.batch)
            seed()
            record.graph.replay()
            increment_version(self.parameters)  # a graph leaves no trace of what it changed
            after, tokens = record.after, record.tokens
        elif len(self.records) < self.most:
            began = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # the compiler's, of what it might do better
                after, tokens = self._first(key, batch, carry, seed)
            torch.cuda.synchronize(self.device)
            self.preparation.seconds += time.perf_counter() - began
            self.preparation.shapes += 1
        else:
            after, tokens = self._unrecorded(_uncounted(to_device(batch, self.device)), carry, seed)
            self._forget_gradients()
        self.unread[self.waiting].copy_(self.outcome)
        self.waiting += 1
        return after, _counted(batch, tokens)

    def read(self) -> list[tuple[float, float]]:
        """Loss and ‖g‖ of the steps nobody has asked about yet. This waits for the device."""
        found, self.waiting = self.unread[: self.waiting].tolist(), 0
        return [(loss, norm) for loss, norm in found]

    @property
    def full(self) -> bool:
        """Whether outcomes must be read before there can be another."""
        return self.waiting == UNREAD

    def _placed(self, carry: Tree) -> Tree:
        """A carried state where the records look for it."""
        place = self.places.setdefault(shape_of(carry), carry)
        if place is not carry:
            _put(carry, place)
        return place

    def _first(self, key: Hashable, batch: Tree, carry: Tree, seed: Callable[[], None]) -> tuple[Tree, int]:
        """The step one operation at a time, and then its record."""
        batch = _uncounted(to_device(batch, self.device))
        place, tokens = self._unrecorded(batch, carry, seed, self._refuse_to_wait)
        self._keep(key, batch, carry, place, tokens)
        self._forget_gradients()
        return place, tokens

    def _unrecorded(
        self, batch: Tree, carry: Tree, seed: Callable[[], None], before: Callable[[Tree, Tree], None] | None = None
    ) -> tuple[Tree, int]:
        """The step one operation at a time, on a stream of its own; and before it something else."""
        here = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            if before is not None:
                before(batch, carry)
            after, tokens = self._tried(batch, carry, seed)
        here.wait_stream(self.stream)
        return self._placed(after), tokens

    def _keep(self, key: Hashable, batch: Tree, carry: Tree, place: Tree, tokens: int) -> None:
        """Record a step that has just been made. Where there is no memory for it, it is the last that is tried."""
        try:
            graph = record(lambda: _put(self._step(batch, carry)[0], place), self.pool, self.stream)
        except Exception as error:
            if not out_of_memory(error):
                raise
            self.most = len(self.records)
            self.preparation.notes.append("out of memory: other shapes of batches are made one operation at a time")
        else:
            self.records[key] = Record(graph, batch, place, tokens)

    def _tried(self, batch: Tree, carry: Tree, seed: Callable[[], None]) -> tuple[Tree, int]:
        """A step; without the compiler, if that fails."""
        seed()
        try:
            return self._step(batch, carry)
        except Exception as error:  # whatever a compiler may come upon; the weights are as they were
            if self.fused is None or out_of_memory(error):
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.preparation.notes.append(f"the model could not be compiled and is computed as it is: {reason}")
            self.fused = None
            seed()
            return self._step(batch, carry)

    def _step(self, batch: Tree, carry: Tree) -> tuple[Tree, int]:
        """All of a step, on the device: the state to carry on, and how many tokens were read."""
        self._forget_gradients()
        with self.autocast(), fusing(self.fused):
            found = self.loss(batch, carry)
        found.value.backward()
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        loss, norm = found.value.detach().float(), torch.nn.utils.get_total_norm(gradients).float()
        finite = loss.isfinite() & norm.isfinite()
        self._apply(norm, finite)
        self.outcome.copy_(torch.stack([loss, norm]))
        return tree_map(lambda leaf: torch.where(finite, leaf.detach(), 0), found.carry), found.tokens

    def _apply(self, norm: Tensor, finite: Tensor) -> None:
        """The optimizer's step. It divides gradients by `grad_scale`, and does nothing where `found_inf` is 1."""
        optimizer: Any = self.optimizer
        optimizer.grad_scale = torch.ones_like(norm) if self.clip is None else norm.clamp(min=self.clip) / self.clip
        optimizer.found_inf = 1 - finite.float()
        known = set(optimizer.state)
        try:
            optimizer.step()
        except Exception:
            for parameter in set(optimizer.state) - known:  # it may have made half of what it keeps of one
                del optimizer.state[parameter]
            raise
        finally:
            del optimizer.grad_scale, optimizer.found_inf

    def _forget_gradients(self) -> None:
        """They are made anew in every step, in memory that belongs to its record."""
        for parameter in self.parameters:
            parameter.grad = None

    def _refuse_to_wait(self, batch: Tree, carry: Tree) -> None:
        """What waits for the device cannot be recorded: find out, before anything is."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with self.autocast():
                self.loss(batch, carry).value.backward()
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "synchroniz" not in str(error):
                raise
            raise CannotRecord("its loss waits for the GPU") from error
        finally:
            torch.cuda.set_sync_debug_mode(before)
            self._forget_gradients()


def shape_of(tree: Tree) -> Hashable:
    """What a record depends on: the shapes and kinds of the tensors in a tree, and all else but `COUNT` as it is."""
    if isinstance(tree, Tensor):
        return tuple(tree.shape), tree.dtype
    if isinstance(tree, dict):
        return tuple((name, shape_of(part)) for name, part in tree.items() if name != COUNT)
    if isinstance(tree, tuple | list):
        return tuple(shape_of(part) for part in tree)
    found: Hashable = tree
    return found


def _uncounted(batch: Tree) -> Tree:
    """The batch with nothing in it that is different each time and no tensor."""
    return {**batch, COUNT: 0} if isinstance(batch, dict) and COUNT in batch else batch


def _counted(batch: Tree, by_shape: int) -> int:
    """How many tokens a batch has, where its shape does not say it."""
    counted: int = batch[COUNT] if isinstance(batch, dict) and COUNT in batch else by_shape
    return counted


def _put(new: Tree, place: Tree) -> None:
    """Copy the tensors of one tree into those of another; from the CPU without waiting."""
    for source, goal in zip(leaves(new), leaves(place), strict=True):
        goal.copy_(source.pin_memory() if source.device.type == "cpu" else source, non_blocking=True)
