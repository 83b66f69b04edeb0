"""What a layer costs as its sequence grows, measured on this machine: the comparison table as living code.

    plan = LayersPlan(lengths=(64, 256, 1024), d_model=128)
    found = collect(plan, measure(plan))
    found.exponents("time")["self-attention"]     # time ~ n^…, over the larger lengths

For every kind of layer (`seqloom.nn.mixers`) and every length n:

    time      seconds of a forward and a backward pass
    memory    bytes such a pass holds at most, beyond the layer and its input
    chain     operations that must wait for each other, counted in the graph that torch keeps of a computation
    path      layers, or steps of a recurrent one, that ∂y_n/∂x_1 passes until it is not zero
    count     multiplications of a forward pass, smaller terms of the complexity included

The last is not measured but counted: it says what exponent the arithmetic alone would have at these
lengths. Chain and path do not depend on how wide a layer is, so both are found with narrow ones.
"""

import math
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seqloom import accel
from seqloom.core.device import choose_device, derive_seed
from seqloom.core.errors import UsageError, is_out_of_memory
from seqloom.core.limits import format_bytes
from seqloom.core.operations import definitions_only
from seqloom.core.words import did_you_mean
from seqloom.inspect.rehearsal import free_memory
from seqloom.inspect.values import check_choices
from seqloom.nn.attention import Mixer, head_problems
from seqloom.nn.mixers import MIXERS, DilatedConvolution, RecurrentMixer, make_mixer, mixer_problems

QUANTITIES = ("time", "memory", "chain", "path", "count")
NARROW = 4  # what only asks what depends on what needs no wider layers
CROWDED = 0.2  # cores that others may use without a word
HIDDEN = 0.15  # by so much may time's exponent be below that of the arithmetic, before something is said about it
WARM_UP = 3  # passes at most that are not counted: the first one prepares kernels and takes memory …
WARM_UP_SECONDS = 0.5  # … but no further one after so many seconds
PATIENCE = 20.0  # no new pass is begun after so many seconds of passes
PATH_PATIENCE = 30.0  # seconds after which a path is given up


@dataclass(frozen=True)
class LayersPlan:
    """What to measure. Everything is checked when a plan is made, before any work."""

    lengths: tuple[int, ...] = (64, 256, 1024, 4096)
    d_model: int = 512
    kinds: tuple[str, ...] = tuple(MIXERS)
    heads: int = 8
    kernel: int = 3  # of the convolutions
    window: int = 32  # windowed: positions seen on either side
    cell: str = "lstm"  # of the recurrent layer
    batch: int = 1  # sequences in a pass
    repeats: int = 5  # passes that are timed
    weights: bool = False  # self-attention in the open, its weights written down
    threads: int | None = None  # on a CPU; None is as many as torch takes
    seed: int = 1
    device: str = "auto"

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in MIXERS:
                raise UsageError(f"There is no layer {kind!r}: {did_you_mean(kind, MIXERS)}.")
        check_choices("A table", "", kinds=self.kinds, lengths=self.lengths)
        if min(self.lengths) < 1:
            raise UsageError(f"A length must be at least 1; got {', '.join(map(str, self.lengths))}.")
        numbers = {"d_model": self.d_model, "batch": self.batch, "repeats": self.repeats, "threads": self.threads}
        for name, value in numbers.items():
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1; got {value}.")
        for problem in self._layer_problems():
            raise UsageError(f"{problem[0].upper()}{problem[1:]}.")

    def _layer_problems(self) -> Iterator[str]:
        if any(MIXERS[kind].attends for kind in self.kinds):
            yield from head_problems(self.d_model, self.heads, None)
        try:
            for kind in self.kinds:
                yield from mixer_problems(kind, self.d_model, **self.options(kind))
        except ValueError as error:
            yield str(error)

    def options(self, kind: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in MIXERS[kind].options}

    def layer(self, kind: str, depth: int = 0, d_model: int | None = None) -> Mixer:
        """One of these layers, or one `d_model` wide, its heads as narrow."""
        heads = self.heads if d_model is None else 1
        return make_mixer(kind, d_model or self.d_model, heads, depth=depth, **self.options(kind))


# --- time and memory of a pass ----------------------------------------------------------------------------------------


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
    """Time each pass after the warm-up; fewer than `repeats` if they take long."""
    for most, patience in ((WARM_UP, WARM_UP_SECONDS), (repeats, PATIENCE)):
        taken: list[float] = []
        while len(taken) < most and sum(taken) < patience:
            passing.clear()
            synchronize(device)
            began = time.perf_counter()
            passing.run()
            synchronize(device)
            taken.append(time.perf_counter() - began)
    return taken


def synchronize(device: torch.device) -> None:
    """A GPU works on while Python goes on; wait for it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def peak_memory(passing: TrainingPass, device: torch.device) -> int | None:
    """The most bytes that a pass holds at once beyond what was held before it; None where there is no telling.

    On CUDA torch counts them itself. On a CPU they are added up from what torch's allocator hands
    out and takes back during the pass, as its profiler saw it: temporary tensors inside of
    operations are counted, what the libraries beneath take for themselves is not.
    """
    passing.clear()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        passing.run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu":
        return None
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


# --- chains and paths -------------------------------------------------------------------------------------------------


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


def chain(mixer: Mixer, d_model: int, n: int) -> int:
    """Of a layer's computation for n places, by the definition: kernels hide what they do."""
    x = torch.randn(1, n, d_model).requires_grad_()
    with definitions_only():
        return longest_chain(mixer(x)[0])


def path(make: Callable[[int], Mixer], d_model: int, n: int) -> int | None:
    """How many layers, `make(depth)` at each depth, or steps lie between y_n and x_1; None if it takes too long.

    A gradient goes from y_n back through the layers' own backward passes. Where it is not zero it
    is drawn anew after each, so that no number of them can make it vanish or explode: only which
    positions it comes to is of interest.
    """
    mixer, began = make(0).double(), time.perf_counter()
    if isinstance(mixer, RecurrentMixer):
        return _steps_between(mixer, n, began)
    tops = [_pass_back(mixer, d_model, n)]
    gradient = torch.zeros(1, n, d_model, dtype=torch.float64)
    gradient[:, -1] = torch.randn(d_model, dtype=torch.float64)
    last = gradient
    for layers in count(1):
        if time.perf_counter() - began > PATH_PATIENCE:
            return None
        if isinstance(mixer, DilatedConvolution):  # depends on its depth: through stacks of one, two, three …
            tops = tops if layers == 1 else [*tops, _pass_back(make(layers - 1).double(), d_model, n)]
            gradient = last
            for pass_back in reversed(tops):
                gradient = pass_back(gradient)
        else:
            gradient = tops[0](gradient)
        if bool((gradient[:, 0] != 0).any()):
            return layers
    return None


def _pass_back(mixer: Mixer, d_model: int, n: int) -> Callable[[Tensor], Tensor]:
    """A function from a gradient (1, n, D) of y to one of x."""
    x = torch.randn(1, n, d_model, dtype=torch.float64).requires_grad_()
    y, _ = mixer(x)

    def pass_back(gradient: Tensor) -> Tensor:
        (before,) = torch.autograd.grad(y, x, gradient, retain_graph=True)
        return torch.randn_like(before) * (before != 0)

    return pass_back


def _steps_between(mixer: RecurrentMixer, n: int, began: float) -> int | None:
    """From the last state back: each step of the cell hands its gradient to its own input and to the state before."""
    cell = mixer.layer.forwards.cell
    gradients = {name: torch.randn(1, cell.hidden).double() for name in cell.state_names}
    for _ in range(n):
        if time.perf_counter() - began > PATH_PATIENCE:
            return None
        x_t = torch.randn(1, cell.inputs, dtype=torch.float64).requires_grad_()
        state = {name: torch.randn(1, cell.hidden).double().requires_grad_() for name in cell.state_names}
        after = cell(x_t, state)
        outputs = [after[name] for name in gradients]
        by_input, *by_state = torch.autograd.grad(
            outputs, [x_t, *state.values()], list(gradients.values()), allow_unused=True
        )
        gradients = {
            name: torch.randn_like(gradient) * (gradient != 0)
            for name, gradient in zip(state, by_state, strict=True)
            if gradient is not None
        }
    return n if by_input is not None and bool((by_input != 0).any()) else None


# --- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measurement:
    """One kind of layer at one length. What could not be found is None, and `failure` says why."""

    kind: str
    length: int
    seconds: tuple[float, ...] = ()  # of each pass
    memory: int | None = None
    chain: int | None = None
    path: int | None = None
    count: int | None = None
    others: float | None = None  # cores that other programs used while passes were timed
    failure: str | None = None

    @property
    def time(self) -> float | None:
        """The median pass."""
        return statistics.median(self.seconds) if self.seconds else None


def measure(plan: LayersPlan) -> Iterator[Measurement]:
    """Every kind at every length, from the shortest, each as soon as it is measured."""
    accel.install()
    device = choose_device(plan.device)
    too_long: dict[str, int] = {}  # by kind, the first length that did not fit
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads or threads)
    try:
        for length, kind in product(sorted(plan.lengths), plan.kinds):
            if kind in too_long:
                yield Measurement(kind, length, failure=f"not tried: {too_long[kind]:,} places were too many already")
                continue
            measured = _measure(plan, kind, length, device)
            if measured.failure is not None:
                too_long[kind] = length
            yield measured
    finally:
        torch.set_num_threads(threads)


def _measure(plan: LayersPlan, kind: str, length: int, device: torch.device) -> Measurement:
    room = free_memory(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(plan.seed, "layers", kind, length))
        try:
            with within(room, device):
                middle = plan.layer(kind, d_model=NARROW).path_length(length) // 2  # of a stack from end to end
                layer = plan.layer(kind, middle).to(device)
                x = torch.randn(plan.batch, length, plan.d_model).to(device).requires_grad_()
                passing = TrainingPass(layer, x, plan.weights and kind == "self-attention")
                neighbours = Neighbours()
                taken = seconds(passing, device, plan.repeats)
                return Measurement(
                    kind,
                    length,
                    tuple(taken),
                    others=neighbours.cores(),
                    memory=peak_memory(passing, device),
                    chain=chain(plan.layer(kind, d_model=NARROW), NARROW, length),
                    path=path(lambda depth: plan.layer(kind, depth, NARROW), NARROW, length),
                    count=plan.batch * layer.multiplications(length),
                )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
    free = "" if room is None else f"; {format_bytes(room)} were free"
    return Measurement(kind, length, failure=f"out of memory{free}")


@dataclass(frozen=True)
class Layers:
    """What was found, by kind and from the shortest length."""

    plan: LayersPlan
    device: str
    threads: int
    measured: dict[str, tuple[Measurement, ...]]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(sorted(self.plan.lengths))

    def settings(self) -> str:
        """In words, as far as they matter to these kinds."""
        plan, used = self.plan, {name for kind in self.measured for name in MIXERS[kind].options}
        attends = any(MIXERS[kind].attends for kind in self.measured)
        words = [f"d_model {plan.d_model}"]
        words += [f"{plan.heads} head{'s' if plan.heads > 1 else ''}"] if attends else []
        words += [f"window {plan.window} on either side"] if "window" in used else []
        words += [f"cell {plan.cell}"] if "cell" in used else []
        words += [f"kernel {plan.kernel}"] if "kernel" in used else []
        words += ["weights written down"] if plan.weights and "self-attention" in self.measured else []
        return ", ".join([*words, f"batch {plan.batch}"])

    def machine(self) -> str:
        if self.device != "cpu":
            return f"float32 on {self.device}"
        return f"float32 on a CPU, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def values(self, quantity: str, kind: str) -> list[float | None]:
        return [getattr(one, quantity) for one in self.measured[kind]]

    def fitted(self, kind: str) -> tuple[int, ...]:
        """The lengths an exponent is taken from: the larger half of those that could be measured, two at least."""
        known = [one.length for one in self.measured[kind] if one.failure is None]
        return tuple(known[-max(2, math.ceil(len(known) / 2)) :]) if len(known) > 1 else ()

    def fit(self) -> str:
        """In words, which lengths exponents are taken from; nothing where there are none."""
        ranges: dict[tuple[int, ...], list[str]] = {}
        for kind in self.measured:
            ranges.setdefault(self.fitted(kind), []).append(kind)
        return "; ".join(
            f"n = {lengths[0]:,} … {lengths[-1]:,}" + (f" ({', '.join(kinds)})" if len(ranges) > 1 else "")
            for lengths, kinds in ranges.items()
            if lengths
        )

    def exponents(self, quantity: str) -> dict[str, float | None]:
        """By kind, the slope of the logarithm of a quantity against that of the length; None where it has none."""
        exponents = {}
        for kind, rows in self.measured.items():
            points = [(one.length, getattr(one, quantity)) for one in rows if one.length in self.fitted(kind)]
            exponents[kind] = slope([(length, value) for length, value in points if value is not None])
        return exponents

    def remarks(self) -> list[str]:
        """Where time does not grow as the arithmetic does, and what could not be measured."""
        time, count = self.exponents("time"), self.exponents("count")
        lines = []
        for kind in self.measured:
            spent, due = time[kind], count[kind]
            if spent is not None and due is not None and spent < due - HIDDEN:
                lines.append(
                    f"{kind}: time grows as n^{spent:.2f}, multiplications as n^{due:.2f}: at these lengths fixed "
                    "costs, or processors that only longer sequences keep busy, still hide the rest"
                )
        crowd = max((one.others or 0.0 for rows in self.measured.values() for one in rows), default=0.0)
        spare = max(0, (os.cpu_count() or 1) - self.threads)  # cores that others may use without being in the way
        if self.device == "cpu" and crowd > spare + CROWDED:
            lines.append(
                f"other programs used up to {crowd:.1f} cores meanwhile: times are too long, exponents of time doubtful"
            )
        for rows in self.measured.values():
            lines += [f"{one.kind}, n = {one.length:,}: {one.failure}" for one in rows if one.failure is not None]
            lines += [
                f"{one.kind}, n = {one.length:,}: the path was given up after {PATH_PATIENCE:.0f} s"
                for one in rows
                if one.failure is None and one.path is None
            ]
        return lines


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Of the straight line nearest to the points' logarithms, by least squares; None for fewer than two."""
    logs = [(math.log(x), math.log(y)) for x, y in points if y > 0]
    return statistics.linear_regression(*zip(*logs, strict=True)).slope if len(logs) > 1 else None


def collect(plan: LayersPlan, found: Iterable[Measurement]) -> Layers:
    device = choose_device(plan.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    ordered = sorted(found, key=lambda one: one.length)
    measured = {kind: tuple(one for one in ordered if one.kind == kind) for kind in plan.kinds}
    return Layers(plan, name, plan.threads or torch.get_num_threads(), measured)
