"""Cost of layers by sequence length, measured on this machine.

    plan = LayersPlan(lengths=(64, 256, 1024), d_model=128)
    result = collect(plan, measure(plan))
    result.exponents("time")["self-attention"]     # time ~ n^…, fitted to the larger lengths

For every kind of layer (`seqloom.nn.mixers`) and every length n:

    time      seconds of a forward and a backward pass
    memory    peak bytes of such a pass, beyond the layer and its input
    chain     the longest chain of dependent operations in the autograd graph
    path      number of layers, or recurrent steps, until ∂y_n/∂x_1 is not zero
    count     multiplications of a forward pass, with lower-order terms

`count` is computed, not measured; it gives the exponent of the arithmetic at these lengths. Chain and path do not
depend on d_model and are measured on narrow layers.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, product
from typing import Any

import torch
from torch import Tensor

from seqloom import accel
from seqloom.core.device import choose_device, derive_seed
from seqloom.core.errors import UsageError, is_out_of_memory
from seqloom.core.limits import format_bytes
from seqloom.core.operations import definitions_only
from seqloom.core.words import did_you_mean
from seqloom.inspect.rehearsal import free_memory
from seqloom.inspect.values import check_choices
from seqloom.inspect.views.passes import OtherLoad, TrainingPass, memory_limit, peak_memory, seconds
from seqloom.nn.attention import head_problems
from seqloom.nn.mixers import MIXERS, DilatedConvolution, Mixer, RecurrentMixer, make_mixer, mixer_problems

QUANTITIES = ("time", "memory", "chain", "path", "count")
NARROW_D_MODEL = 4  # d_model for chain and path
MAX_OTHER_CORES = 0.2  # cores that other programs may use without a remark
EXPONENT_TOLERANCE = 0.15  # largest difference between the exponents of the arithmetic and of time that needs no remark
MAX_PATH_SECONDS = 30.0  # for measuring a path


@dataclass(frozen=True)
class LayersPlan:
    """The configuration of the measurements, checked when it is created."""

    lengths: tuple[int, ...] = (64, 256, 1024, 4096)
    d_model: int = 512
    kinds: tuple[str, ...] = tuple(MIXERS)
    heads: int = 8
    kernel: int = 3  # of the convolutions
    window: int = 32  # positions on either side, for windowed layers
    cell: str = "lstm"  # of the recurrent layer
    batch: int = 1  # sequences in a batch
    repeats: int = 5  # timed passes
    weights: bool = False  # compute the attention weights explicitly instead of using the fused kernel
    threads: int | None = None  # number of CPU threads; None is the default of torch
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
        """Build a layer. With another `d_model`, the layer has one head."""
        heads = self.heads if d_model is None else 1
        return make_mixer(kind, d_model or self.d_model, heads, depth=depth, **self.options(kind))


# --- chains and paths -------------------------------------------------------------------------------------------------


def longest_chain(y: Tensor) -> int:
    """Return the length of the longest chain of dependent operations from the inputs to y."""
    depth: dict[object, int] = {}
    stack = [y.grad_fn]
    while stack:
        node = stack[-1]
        before = [] if node is None else [other for other, _ in node.next_functions if other is not None]
        missing = [other for other in before if other not in depth]
        if missing:
            stack += missing
            continue
        stack.pop()
        leaf = node is None or node.name().endswith("AccumulateGrad")
        depth[node] = 0 if leaf else 1 + max((depth[other] for other in before), default=0)
    return depth[y.grad_fn]


def chain(mixer: Mixer, d_model: int, n: int) -> int:
    """Return the chain of a layer for n positions.

    The layer runs with its reference implementation, because fused kernels hide operations.
    """
    x = torch.randn(1, n, d_model).requires_grad_()
    with definitions_only():
        return longest_chain(mixer(x)[0])


def path(make: Callable[[int], Mixer], d_model: int, n: int) -> int | None:
    """Return the number of layers or steps between y_n and x_1, or None after a time limit. `make(depth)` builds a
    layer.

    A gradient passes from y_n back through the layers. After each layer, the nonzero values of the gradient are
    replaced by random numbers, so that the gradient cannot vanish or explode. The values do not matter, because only
    the reached positions are counted.
    """
    mixer, began = make(0).double(), time.perf_counter()
    if isinstance(mixer, RecurrentMixer):
        return _steps_between(mixer, n, began)
    backward_functions = [_pass_back(mixer, d_model, n)]
    gradient = torch.zeros(1, n, d_model, dtype=torch.float64)
    gradient[:, -1] = torch.randn(d_model, dtype=torch.float64)
    output_gradient = gradient
    for layers in count(1):
        if time.perf_counter() - began > MAX_PATH_SECONDS:
            return None
        if isinstance(mixer, DilatedConvolution):  # the layer depends on its depth: build stacks of 1, 2, 3 … layers
            if layers > 1:
                backward_functions.append(_pass_back(make(layers - 1).double(), d_model, n))
            gradient = output_gradient
            for pass_back in reversed(backward_functions):
                gradient = pass_back(gradient)
        else:
            gradient = backward_functions[0](gradient)
        if bool((gradient[:, 0] != 0).any()):
            return layers
    return None


def _pass_back(mixer: Mixer, d_model: int, n: int) -> Callable[[Tensor], Tensor]:
    """Return a function that maps a gradient (1, n, D) of y to the gradient of x."""
    x = torch.randn(1, n, d_model, dtype=torch.float64).requires_grad_()
    y, _ = mixer(x)

    def pass_back(gradient: Tensor) -> Tensor:
        (before,) = torch.autograd.grad(y, x, gradient, retain_graph=True)
        return torch.randn_like(before) * (before != 0)

    return pass_back


def _steps_between(mixer: RecurrentMixer, n: int, began: float) -> int | None:
    """Pass a gradient from the last state back through n steps of the cell."""
    cell = mixer.layer.forwards.cell
    gradients = {name: torch.randn(1, cell.hidden).double() for name in cell.state_names}
    for _ in range(n):
        if time.perf_counter() - began > MAX_PATH_SECONDS:
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
    """The measurement of one kind of layer at one length. A missing value is None, and `failure` states the reason."""

    kind: str
    length: int
    seconds: tuple[float, ...] = ()  # time of each pass
    memory: int | None = None
    chain: int | None = None
    path: int | None = None
    count: int | None = None
    other_cores: float | None = None  # cores that other programs used during timing
    failure: str | None = None

    @property
    def time(self) -> float | None:
        """The median time of a pass."""
        return statistics.median(self.seconds) if self.seconds else None


def measure(plan: LayersPlan) -> Iterator[Measurement]:
    """Measure every kind at every length, starting with the shortest. Yield each result as soon as it is complete."""
    accel.install()
    device = choose_device(plan.device)
    too_long: dict[str, int] = {}  # for each kind, the shortest length that did not fit
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads or threads)
    try:
        for length, kind in product(sorted(plan.lengths), plan.kinds):
            if kind in too_long:
                yield Measurement(kind, length, failure=f"skipped: {too_long[kind]:,} positions did not fit in memory")
                continue
            measured = _measure(plan, kind, length, device)
            if measured.failure is not None:
                too_long[kind] = length
            yield measured
    finally:
        torch.set_num_threads(threads)


def _measure(plan: LayersPlan, kind: str, length: int, device: torch.device) -> Measurement:
    free_bytes = free_memory(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(plan.seed, "layers", kind, length))
        try:
            with memory_limit(free_bytes, device):
                # the middle layer of a stack that connects the first and the last position
                middle = plan.layer(kind, d_model=NARROW_D_MODEL).path_length(length) // 2
                layer = plan.layer(kind, middle).to(device)
                x = torch.randn(plan.batch, length, plan.d_model).to(device).requires_grad_()
                training_pass = TrainingPass(layer, x, plan.weights and kind == "self-attention")
                other_load = OtherLoad()
                times = seconds(training_pass, device, plan.repeats)
                return Measurement(
                    kind,
                    length,
                    tuple(times),
                    other_cores=other_load.cores(),
                    memory=peak_memory(training_pass, device),
                    chain=chain(plan.layer(kind, d_model=NARROW_D_MODEL), NARROW_D_MODEL, length),
                    path=path(lambda depth: plan.layer(kind, depth, NARROW_D_MODEL), NARROW_D_MODEL, length),
                    count=plan.batch * layer.multiplications(length),
                )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
    free = "" if free_bytes is None else f"; {format_bytes(free_bytes)} were free"
    return Measurement(kind, length, failure=f"out of memory{free}")


@dataclass(frozen=True)
class Layers:
    """The measurements by kind, shortest length first."""

    plan: LayersPlan
    device: str
    threads: int
    measured: dict[str, tuple[Measurement, ...]]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(sorted(self.plan.lengths))

    def settings(self) -> str:
        """Describe the settings that affect the measured kinds."""
        plan, used = self.plan, {name for kind in self.measured for name in MIXERS[kind].options}
        attends = any(MIXERS[kind].attends for kind in self.measured)
        words = [f"d_model {plan.d_model}"]
        words += [f"{plan.heads} head{'s' if plan.heads > 1 else ''}"] if attends else []
        words += [f"window {plan.window} on either side"] if "window" in used else []
        words += [f"cell {plan.cell}"] if "cell" in used else []
        words += [f"kernel {plan.kernel}"] if "kernel" in used else []
        words += ["explicit weights"] if plan.weights and "self-attention" in self.measured else []
        return ", ".join([*words, f"batch {plan.batch}"])

    def machine(self) -> str:
        if self.device != "cpu":
            return f"float32 on {self.device}"
        return f"float32 on a CPU, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def values(self, quantity: str, kind: str) -> list[float | None]:
        return [getattr(row, quantity) for row in self.measured[kind]]

    def fitted(self, kind: str) -> tuple[int, ...]:
        """Return the lengths of the fit: the larger half of the measured lengths, but at least two."""
        measured = [row.length for row in self.measured[kind] if row.failure is None]
        return tuple(measured[-max(2, math.ceil(len(measured) / 2)) :]) if len(measured) > 1 else ()

    def fit(self) -> str:
        """Describe the lengths used for the fits, or return "" without fits."""
        ranges: dict[tuple[int, ...], list[str]] = {}
        for kind in self.measured:
            ranges.setdefault(self.fitted(kind), []).append(kind)
        return "; ".join(
            f"n = {lengths[0]:,} … {lengths[-1]:,}" + (f" ({', '.join(kinds)})" if len(ranges) > 1 else "")
            for lengths, kinds in ranges.items()
            if lengths
        )

    def exponents(self, quantity: str) -> dict[str, float | None]:
        """Return, for each kind, the slope of log(quantity) over log(length), or None if it cannot be fitted."""
        exponents = {}
        for kind, rows in self.measured.items():
            points = [(row.length, getattr(row, quantity)) for row in rows if row.length in self.fitted(kind)]
            exponents[kind] = slope([(length, value) for length, value in points if value is not None])
        return exponents

    def remarks(self) -> list[str]:
        """Report failed measurements, and times that do not grow like the number of multiplications."""
        time, count = self.exponents("time"), self.exponents("count")
        lines = []
        for kind in self.measured:
            measured, expected = time[kind], count[kind]
            if measured is not None and expected is not None and measured < expected - EXPONENT_TOLERANCE:
                lines.append(
                    f"{kind}: time grows as n^{measured:.2f}, but multiplications grow as n^{expected:.2f}: at "
                    "these lengths, fixed costs or idle processors dominate"
                )
        other_cores = max((row.other_cores or 0.0 for rows in self.measured.values() for row in rows), default=0.0)
        spare = max(0, (os.cpu_count() or 1) - self.threads)  # cores that this process does not use
        if self.device == "cpu" and other_cores > spare + MAX_OTHER_CORES:
            lines.append(
                f"other programs used up to {other_cores:.1f} cores, so the measured times are too high and their "
                "fitted exponents are unreliable"
            )
        for rows in self.measured.values():
            lines += [f"{row.kind}, n = {row.length:,}: {row.failure}" for row in rows if row.failure is not None]
            lines += [
                f"{row.kind}, n = {row.length:,}: measuring the path exceeded {MAX_PATH_SECONDS:.0f} s"
                for row in rows
                if row.failure is None and row.path is None
            ]
        return lines


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the slope of a least-squares line through the logarithms of points, or None for fewer than two points."""
    logs = [(math.log(x), math.log(y)) for x, y in points if y > 0]
    return statistics.linear_regression(*zip(*logs, strict=True)).slope if len(logs) > 1 else None


def collect(plan: LayersPlan, measurements: Iterable[Measurement]) -> Layers:
    device = choose_device(plan.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    ordered = sorted(measurements, key=lambda row: row.length)
    measured = {kind: tuple(row for row in ordered if row.kind == kind) for kind in plan.kinds}
    return Layers(plan, name, plan.threads or torch.get_num_threads(), measured)
