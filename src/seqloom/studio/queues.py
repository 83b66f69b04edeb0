"""Queues of computations, one for each model: bounded, fair, with deadlines and cancellation.

    queues = Queues()
    with queues.enter("runs/gpt") as place:         # QueueFull if too many requests hold a place for this model
        answer = await place.run(compute)           # computed in a worker thread; DeadlineExceeded if it takes too long

- Computations of one model run one at a time, in the order they came. Those of different models run side by side, in
  a few worker threads that take turns between the models, so a model with many requests cannot delay the others.
- A request holds a place from its admission to its last computation; an answer in pieces is many computations from
  one place, and other requests come in between. A model has a limited number of places.
- When the awaiting task is cancelled or the deadline passes, a computation that waits is dropped at once, and one that
  runs stops where it next calls `check_cancelled`.
- An exception belongs to the request whose computation raised it; the worker goes on.

This module knows nothing of HTTP or of what is computed.
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

WORKERS = 4  # computations at the same time, each of another model
PLACES = 16  # requests of one model at the same time, waiting or running
DEADLINE = 300.0  # seconds from the admission of a request to its last computation
IDLE = 10.0  # seconds after which a thread without work ends


class QueueFull(ResourceError):
    """Too many requests hold a place for one model."""


class DeadlineExceeded(ResourceError):
    """A request took longer than it may."""


@dataclass(eq=False)
class Job:
    """One computation, which waits, runs, or is done."""

    key: Hashable
    function: Callable[[], Any]
    cancellation: Cancellation
    future: Future[Any] = field(default_factory=Future)

    def compute(self) -> None:
        """Leave the result, or what was raised, in the future."""
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
    """A queue of jobs for each key, and the threads that compute them."""

    def __init__(
        self, *, workers: int = WORKERS, places: int = PLACES, deadline: float = DEADLINE, idle: float = IDLE
    ) -> None:
        self.workers, self.places, self.deadline, self.idle = workers, places, deadline, idle
        self._changed = threading.Condition()  # guards what follows
        self._waiting: OrderedDict[Hashable, deque[Job]] = OrderedDict()  # the key whose turn is next comes first
        self._running: set[Hashable] = set()
        self._held: Counter[Hashable] = Counter()
        self._threads = 0

    def enter(self, key: Hashable) -> "QueuePlace":
        """Take a place in the queue of a key, or raise QueueFull."""
        with self._changed:
            if self._held[key] >= self.places:
                raise QueueFull(f"{self.places} requests already wait for this model. Try again in a moment.")
            self._held[key] += 1
        return QueuePlace(self, key)

    def submit(self, job: Job) -> None:
        """Put a job at the end of the queue of its key. The caller holds a place."""
        with self._changed:
            self._waiting.setdefault(job.key, deque()).append(job)
            ready = sum(key not in self._running for key in self._waiting)
            if self._threads < min(self.workers, len(self._running) + ready):
                self._threads += 1
                threading.Thread(target=self._work, name="seqloom worker", daemon=True).start()
            self._changed.notify()

    def drop(self, job: Job) -> None:
        """Cancel a job: it leaves its queue, or stops at its next step."""
        job.cancellation.cancel()
        with self._changed:
            jobs = self._waiting.get(job.key, deque())
            if job in jobs:
                jobs.remove(job)
                if not jobs:
                    del self._waiting[job.key]
        job.future.cancel()

    def leave(self, key: Hashable) -> None:
        """Give a place back."""
        with self._changed:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]

    def _work(self) -> None:
        """Compute one job after another, until there was none for so long that the thread is to end."""
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
        """The first job of the key whose turn it is; that key's next turn comes after all others'."""
        key = self._next_key()
        jobs = self._waiting.pop(key)
        job = jobs.popleft()
        if jobs:
            self._waiting[key] = jobs
        self._running.add(key)
        return job


class QueuePlace:
    """One request's place in the queue of a model, given back at the end of a `with` block."""

    def __init__(self, queues: Queues, key: Hashable) -> None:
        self.queues, self.key = queues, key
        self.ends = time.monotonic() + queues.deadline
        self._cancellation = Cancellation()

    async def run(self, function: Callable[[], T]) -> T:
        """Compute in a worker thread when it is this model's and this request's turn."""
        job = Job(self.key, function, Cancellation(self._cancellation))
        self.queues.submit(job)
        future: asyncio.Future[T] = asyncio.wrap_future(job.future)
        try:
            await asyncio.wait([future], timeout=self.ends - time.monotonic())
            if not future.done():
                seconds = f"{self.queues.deadline:g} seconds"
                raise DeadlineExceeded(f"This took longer than {seconds} and was stopped. Ask for less, or try again.")
            return future.result()
        finally:
            if not future.done():
                self.queues.drop(job)
                future.cancel()

    def leave(self, finish: Callable[[], object] | None = None) -> None:
        """Give the place back. `finish` is computed as the last of this place, even if the request was cancelled."""
        self._cancellation.cancel()
        self.queues.leave(self.key)
        if finish is not None:
            self.queues.submit(Job(self.key, finish, Cancellation()))

    def __enter__(self) -> "QueuePlace":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
