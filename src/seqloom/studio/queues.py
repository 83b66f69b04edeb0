"""Queues of computations, one for each model. The queues are bounded and fair, with deadlines and cancellation.

    queues = Queues()
    with queues.enter("runs/gpt") as slot:        # QueueFull if too many requests hold a slot of this model
        result = await slot.run(compute)          # runs in a worker thread; DeadlineExceeded if it takes too long

- Computations of one model run one at a time, first in, first out. Computations of different models run in parallel in
  a few worker threads, which serve the models in round-robin order, so that a model with many requests does not delay
  the others.
- A request holds a slot from admission to its last computation. A streamed response is a series of computations in one
  slot, and other requests run between them. Each model has a limited number of slots.
- When the awaiting task is cancelled or the deadline passes, a waiting computation is removed immediately, and a
  running computation stops at its next call of `check_cancelled`.
- An exception is raised in the request that caused it, and the worker thread continues.

This module does not depend on HTTP or on the models.
"""

import asyncio
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from seqloom.core.errors import ResourceError
from seqloom.core.progress import Cancellation, check_cancelled

T = TypeVar("T")

MAX_WORKERS = 4  # maximum number of worker threads; each thread computes for a different model
MAX_SLOTS = 16  # maximum number of waiting or running requests for a model
DEADLINE_SECONDS = 300.0  # seconds from the admission of a request to its last computation
IDLE_SECONDS = 10.0  # seconds after which an idle thread exits


class QueueFull(ResourceError):
    """All slots of a model are in use."""


class DeadlineExceeded(ResourceError):
    """A request exceeded its deadline."""


@dataclass(eq=False)
class Job:
    """One computation and its future."""

    key: Hashable
    function: Callable[[], Any]
    cancellation: Cancellation
    future: Future[Any] = field(default_factory=Future)

    def compute(self) -> None:
        """Run the computation, and store the result or the exception in the future."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            with self.cancellation.active():
                check_cancelled()
                result = self.function()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Queues:
    """The queues of jobs, one for each key, and the worker threads."""

    def __init__(
        self,
        *,
        workers: int = MAX_WORKERS,
        slots: int = MAX_SLOTS,
        deadline: float = DEADLINE_SECONDS,
        idle: float = IDLE_SECONDS,
    ) -> None:
        self.workers, self.slots, self.deadline, self.idle = workers, slots, deadline, idle
        self._changed = threading.Condition()  # protects the attributes below
        self._waiting: OrderedDict[Hashable, deque[Job]] = OrderedDict()  # the next key is first
        self._running: set[Hashable] = set()
        self._held: Counter[Hashable] = Counter()
        self._threads = 0

    def enter(self, key: Hashable) -> "QueueSlot":
        """Take a slot in the queue of a key, or raise QueueFull."""
        with self._changed:
            if self._held[key] >= self.slots:
                raise QueueFull(
                    f"This model already has {self.slots} pending requests, the maximum. Try again in a moment."
                )
            self._held[key] += 1
        return QueueSlot(self, key)

    def submit(self, job: Job) -> None:
        """Append a job to the queue of its key. The caller must hold a slot."""
        with self._changed:
            self._waiting.setdefault(job.key, deque()).append(job)
            ready = sum(key not in self._running for key in self._waiting)
            if self._threads < min(self.workers, len(self._running) + ready):
                self._threads += 1
                threading.Thread(target=self._work, name="seqloom worker", daemon=True).start()
            self._changed.notify()

    def drop(self, job: Job) -> None:
        """Cancel a job. A waiting job is removed from its queue; a running job stops at its next `check_cancelled`."""
        job.cancellation.cancel()
        with self._changed:
            jobs = self._waiting.get(job.key, deque())
            if job in jobs:
                jobs.remove(job)
                if not jobs:
                    del self._waiting[job.key]
        job.future.cancel()

    def leave(self, key: Hashable) -> None:
        """Release a slot."""
        with self._changed:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]

    def _work(self) -> None:
        """Compute jobs until no job has arrived for `idle` seconds."""
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._next_key() is not None, timeout=self.idle):
                    self._threads -= 1
                    return
                job = self._take()
            try:
                job.compute()
            finally:
                with self._changed:
                    self._running.discard(job.key)
                    self._changed.notify()

    def _next_key(self) -> Hashable | None:
        return next((key for key in self._waiting if key not in self._running), None)

    def _take(self) -> Job:
        """Remove and return the first job of the next key. The key then moves to the end of the queue."""
        key = self._next_key()
        jobs = self._waiting.pop(key)
        job = jobs.popleft()
        if jobs:
            self._waiting[key] = jobs
        self._running.add(key)
        return job


class QueueSlot:
    """The slot of one request in the queue of a model, released at the end of a `with` block."""

    def __init__(self, queues: Queues, key: Hashable) -> None:
        self.queues, self.key = queues, key
        self.deadline = time.monotonic() + queues.deadline
        self._cancellation = Cancellation()

    async def run(self, function: Callable[[], T]) -> T:
        """Compute `function` in a worker thread when the turn of this request comes."""
        job = Job(self.key, function, Cancellation(self._cancellation))
        self.queues.submit(job)
        future: asyncio.Future[T] = asyncio.wrap_future(job.future)
        try:
            await asyncio.wait([future], timeout=self.deadline - time.monotonic())
            if not future.done():
                seconds = f"{self.queues.deadline:g} seconds"
                raise DeadlineExceeded(f"The computation was stopped after {seconds}. Request less, or try again.")
            return future.result()
        finally:
            if not future.done():
                self.queues.drop(job)
                future.cancel()

    def leave(self, finish: Callable[[], object] | None = None) -> None:
        """Release the slot. `finish` runs as the last computation of the slot, even if the request was cancelled."""
        self._cancellation.cancel()
        self.queues.leave(self.key)
        if finish is not None:
            self.queues.submit(Job(self.key, finish, Cancellation()))

    def __enter__(self) -> "QueueSlot":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
