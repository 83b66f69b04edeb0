"""Time and peak memory of a forward and a backward pass, and the load of other programs."""

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

WARM_UP = 3  # maximum number of untimed passes: the first compiles kernels and allocates memory
WARM_UP_SECONDS = 0.5  # no further warm-up pass is started after this time
MAX_TIMING_SECONDS = 20.0  # no further pass is started after this time


class TrainingPass:
    """A forward pass that computes y from x, and a backward pass with the gradients of x and of all weights."""

    def __init__(self, layer: nn.Module, x: Tensor, weights: bool = False) -> None:
        self.layer, self.x, self.gradient = layer, x, torch.randn_like(x)
        self.options = {"weights": True} if weights else {}

    def clear(self) -> None:
        """Clear the gradients of the last pass."""
        self.layer.zero_grad(set_to_none=True)
        self.x.grad = None

    def run(self) -> None:
        y, _ = self.layer(self.x, **self.options)
        y.backward(self.gradient)


def seconds(training_pass: TrainingPass, device: torch.device, repeats: int) -> list[float]:
    """Return the time of each pass after the warm-up. Slow layers run fewer than `repeats` passes."""
    for max_passes, max_seconds in ((WARM_UP, WARM_UP_SECONDS), (repeats, MAX_TIMING_SECONDS)):
        times: list[float] = []
        while len(times) < max_passes and sum(times) < max_seconds:
            training_pass.clear()
            synchronize(device)
            began = time.perf_counter()
            training_pass.run()
            synchronize(device)
            times.append(time.perf_counter() - began)
    return times


def synchronize(device: torch.device) -> None:
    """Wait for the device, which runs asynchronously."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def peak_memory(training_pass: TrainingPass, device: torch.device) -> int | None:
    """Measure the peak bytes that a pass allocates, or return None if the device has no counters.

    CUDA counts these bytes. On a CPU, the allocations and deallocations that torch's profiler records during the pass
    are summed: temporary tensors inside operations are included, but the memory of other libraries is not.
    """
    training_pass.clear()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        training_pass.run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu":
        return None
    from torch.profiler import ProfilerActivity, profile

    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with _silence_stderr():
        profiler.start()
    try:
        training_pass.run()
    finally:  # otherwise the profiler would record all later operations
        with _silence_stderr():
            profiler.stop()
    results: Any = profiler.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@contextmanager
def _silence_stderr() -> Iterator[None]:
    """Suppress the messages that torch's profiler writes to standard error from C++."""
    saved = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


@contextmanager
def memory_limit(limit: int | None, device: torch.device) -> Iterator[None]:
    """Limit allocations on a CPU to `limit` bytes, so that they fail before the system kills a process."""
    status = Path("/proc/self/status")
    if limit is None or device.type != "cpu" or not status.exists():
        yield
        return
    used = next((int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmData:")), 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    max_bytes = 1024 * used + limit
    limits = [value for value in (soft, hard) if value != resource.RLIM_INFINITY]
    with suppress(OSError, ValueError):  # without permission, no limit is set
        resource.setrlimit(resource.RLIMIT_DATA, (min([max_bytes, *limits]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@dataclass
class OtherLoad:
    """The processor use of other programs, which increases the measured times."""

    began: tuple[float, float, float] | None = field(default_factory=lambda: _processor_times())

    def cores(self) -> float | None:
        """Return the mean number of cores used since the start, or None if unknown."""
        now = _processor_times()
        if self.began is None or now is None or now[0] - self.began[0] < 0.1:
            return None
        elapsed, total, own = (after - before for before, after in zip(self.began, now, strict=True))
        return max(0.0, (total - own) / elapsed)


def _processor_times() -> tuple[float, float, float] | None:
    """Return the current time, the busy seconds of all processors, and the busy seconds of this process."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    ticks = [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return time.perf_counter(), (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK"), time.process_time()
