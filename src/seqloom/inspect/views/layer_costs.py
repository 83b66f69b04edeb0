"""A forward and a backward pass, measured: how long they take, how much memory they hold at most.

How far apart the ends of a sequence are for a layer, followed through the real layer and its gradients.

`longest_chain`: the operations that must wait for each other, counted in the graph that torch keeps of a computation.
`path`: how many layers, or steps of a recurrent one, ∂y_n/∂x_1 passes until it is not zero.

Neither depends on how wide a layer is, so both are found with narrow ones.
"""

import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.operations import definitions_only
from seqloom.nn.mixers import DilatedConvolution, Mixer, RecurrentMixer

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


# ---------------------------------------------------------------------------------------------------------------------

PATH_PATIENCE = 30.0  # seconds after which a path is given up


def longest_chain(y: Tensor) -> int:
    """The most operations in a row between y and what it was made from, each of which needs the one before it."""
    depth: dict[object, int] = {}
    waiting = [y.grad_fn]
    while waiting:
        node = waiting[-1]
        before = [] if node is None else [other for other, _ in node.next_functions if other is not None]
        unknown = [other for other in before if other not in depth]
        if unknown:
            waiting += unknown
            continue
        waiting.pop()
        leaf = node is None or node.name().endswith("AccumulateGrad")
        depth[node] = 0 if leaf else 1 + max((depth[other] for other in before), default=0)
    return depth[y.grad_fn]


def chain(mixer: Mixer, width: int, n: int) -> int:
    """Of a layer's computation for n places, by the definition: kernels hide what they do."""
    x = torch.randn(1, n, width).requires_grad_()
    with definitions_only():
        return longest_chain(mixer(x)[0])


def path(make: Callable[[int], Mixer], width: int, n: int) -> int | None:
    """How many layers, `make(depth)` at each depth, or steps lie between y_n and x_1; None if it takes too long."""
    mixer = make(0).double()
    if isinstance(mixer, RecurrentMixer):
        return _steps(mixer, n)
    if isinstance(mixer, DilatedConvolution):
        return _deeper_and_deeper(make, width, n)
    return _again_and_again(mixer, width, n)


Hop = Callable[[Tensor], Tensor]


def _hop(mixer: Mixer, width: int, n: int) -> Hop:
    """A gradient (1, n, D) of y to one of x, through the layer's own backward pass.

    Where it is not zero it is drawn anew, so that no number of hops can make it vanish or explode: only which places it
    comes to is of interest.
    """
    x = torch.randn(1, n, width, dtype=torch.float64).requires_grad_()
    y, _ = mixer(x)

    def hop(gradient: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(y, x, gradient, retain_graph=True)
        return torch.randn_like(found) * (found != 0)

    return hop


def _at_the_end(width: int, n: int) -> Tensor:
    gradient = torch.zeros(1, n, width, dtype=torch.float64)
    gradient[:, -1] = torch.randn(width, dtype=torch.float64)
    return gradient


def _arrived(gradient: Tensor) -> bool:
    return bool((gradient[:, 0] != 0).any())


def _again_and_again(mixer: Mixer, width: int, n: int) -> int | None:
    """Through one layer after another that are all alike."""
    hop, gradient = _hop(mixer, width, n), _at_the_end(width, n)
    for layers in _patiently(count(1)):
        gradient = hop(gradient)
        if _arrived(gradient):
            return layers
    return None


def _deeper_and_deeper(make: Callable[[int], Mixer], width: int, n: int) -> int | None:
    """Where a layer depends on its depth: through stacks of one, two, three …, each from its top."""
    hops: list[Hop] = []
    for layers in _patiently(count(1)):
        hops.append(_hop(make(layers - 1).double(), width, n))
        if _arrived(reduce(lambda gradient, hop: hop(gradient), reversed(hops), _at_the_end(width, n))):
            return layers
    return None


def _steps(mixer: RecurrentMixer, n: int) -> int | None:
    """From the last state back: each step of the cell hands its gradient to its own input and to the state before."""
    cell = mixer.layer.forwards.cell
    gradients = {name: torch.randn(1, cell.hidden).double() for name in cell.state_names}
    for step in _patiently(range(1, n + 1)):
        x_t = torch.randn(1, cell.inputs, dtype=torch.float64).requires_grad_()
        state = {name: torch.randn(1, cell.hidden).double().requires_grad_() for name in cell.state_names}
        after = cell(x_t, state)
        outputs = [after[name] for name in gradients]
        found = torch.autograd.grad(outputs, [x_t, *state.values()], list(gradients.values()), allow_unused=True)
        gradients = {
            name: torch.randn_like(gradient) * (gradient != 0)
            for name, gradient in zip(state, found[1:], strict=True)
            if gradient is not None
        }
        if step == n:
            return step if found[0] is not None and bool((found[0] != 0).any()) else None
    return None


def _patiently(numbers: Iterable[int]) -> Iterable[int]:
    """As many of them as there is time for."""
    began = time.perf_counter()
    for number in numbers:
        if time.perf_counter() - began > PATH_PATIENCE:
            return
        yield number
