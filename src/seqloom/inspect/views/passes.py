"""A forward and a backward pass, measured: how long they take, how much memory they hold at most."""

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

WARM_UP = 3  # passes at most that are not counted: the first one prepares kernels and takes memory …
WARM_UP_SECONDS = 0.5  # … but no further one after so many seconds
PATIENCE = 20.0  # no new pass is begun after so many seconds of passes


class TrainingPass:
    """What training does with a layer: y from x, then the gradients of x and of all weights from one of y."""

    def __init__(self, layer: nn.Module, x: Tensor, weights: bool = False) -> None:
        self.layer, self.x, self.gradient = layer, x, torch.randn_like(x)
        self.options = {"weights": True} if weights else {}

    def clear(self) -> None:
        """Forget the last pass."""
        self.layer.zero_grad(set_to_none=True)
        self.x.grad = None

    def run(self) -> None:
        y, _ = self.layer(self.x, **self.options)
        y.backward(self.gradient)


def seconds(passing: TrainingPass, device: torch.device, repeats: int) -> list[float]:
    """Of each pass after the warm-up; fewer than `repeats` if they take long."""
    warm: list[float] = []
    while len(warm) < WARM_UP and sum(warm) < WARM_UP_SECONDS:
        warm.append(_timed(passing, device))
    found: list[float] = []
    while len(found) < repeats and sum(found) < PATIENCE:
        found.append(_timed(passing, device))
    return found


def _timed(passing: TrainingPass, device: torch.device) -> float:
    passing.clear()
    synchronize(device)
    began = time.perf_counter()
    passing.run()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: torch.device) -> None:
    """A GPU works on while Python goes on; wait for it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def peak_memory(passing: TrainingPass, device: torch.device) -> int | None:
    """The most bytes that a pass holds at once beyond what was held before it; None where there is no telling.

    On CUDA torch counts them itself. On a CPU they are added up from what torch's allocator hands out and takes back
    during the pass, as its profiler saw it: temporary tensors inside of operations are counted, what the libraries
    beneath take for themselves is not.
    """
    passing.clear()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        passing.run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    return _peak_of_allocations(passing) if device.type == "cpu" else None


def _peak_of_allocations(passing: TrainingPass) -> int:
    from torch.profiler import ProfilerActivity, profile

    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with _silent():
        profiler.start()
    try:
        passing.run()
    finally:  # a profiler that is left on would see everything that follows
        with _silent():
            profiler.stop()
    results: Any = profiler.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@contextmanager
def _silent() -> Iterator[None]:
    """torch's profiler tells standard error that it starts and that it stops, past Python."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def within(room: int | None, device: torch.device) -> Iterator[None]:
    """On a CPU, have an allocation beyond `room` bytes fail at once, before the system ends some process for it."""
    status = Path("/proc/self/status")
    if room is None or device.type != "cpu" or not status.exists():
        yield
        return
    taken = next((int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmData:")), 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = 1024 * taken + room
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    with suppress(OSError, ValueError):  # where it may not be set, things are as they were
        resource.setrlimit(resource.RLIMIT_DATA, (min([wanted, *limits]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@dataclass
class Neighbours:
    """How much of this machine's processors others used meanwhile: times are too long if it was much."""

    began: tuple[float, float, float] | None = field(default_factory=lambda: _used())

    def cores(self) -> float | None:
        """On average since then; None where there is no telling."""
        now = _used()
        if self.began is None or now is None or now[0] - self.began[0] < 0.1:
            return None
        passed, all_, own = (after - before for before, after in zip(self.began, now, strict=True))
        return max(0.0, (all_ - own) / passed)


def _used() -> tuple[float, float, float] | None:
    """The time, seconds that all processors have worked, and those of them for this process."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    ticks = [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return time.perf_counter(), (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK"), time.process_time()
