"""What a layer costs as its sequence grows, measured on this machine: the comparison table as living code.

    plan = LayersPlan(lengths=(64, 256, 1024), width=128)
    found = collect(plan, measure(plan))
    found.exponents("time")["self-attention"]     # time ~ n^…, over the larger lengths

For every kind of layer (`seqloom.nn.mixers`) and every length n:

    time      seconds of a forward and a backward pass
    memory    bytes such a pass holds at most, beyond the layer and its input
    chain     operations that must wait for each other: `seqloom.inspect.views.layer_costs`
    path      layers, or steps of a recurrent one, between y_n and x_1
    count     multiplications of a forward pass, smaller terms of the complexity included

The last is not measured but counted: it says what exponent the arithmetic alone would have at these lengths.
"""

import math
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from seqloom import accel
from seqloom.core.device import choose_device
from seqloom.core.errors import UsageError, out_of_memory
from seqloom.core.limits import format_bytes
from seqloom.core.seeding import derive
from seqloom.core.words import did_you_mean
from seqloom.inspect.doctor import memory_at_hand
from seqloom.inspect.views.layer_costs import (
    PATH_PATIENCE,
    Neighbours,
    TrainingPass,
    chain,
    path,
    peak_memory,
    seconds,
    within,
)
from seqloom.nn.mixers import MIXERS, Mixer, make_mixer, mixer_problems
from seqloom.nn.multihead import head_problems

QUANTITIES = ("time", "memory", "chain", "path", "count")
CROWDED = 0.2  # cores that others may use without a word
HIDDEN = 0.15  # by so much may time's exponent be below that of the arithmetic, before something is said about it


@dataclass(frozen=True)
class LayersPlan:
    """What to measure. Everything is checked when a plan is made, before any work."""

    lengths: tuple[int, ...] = (64, 256, 1024, 4096)
    width: int = 512
    kinds: tuple[str, ...] = tuple(MIXERS)
    heads: int = 8
    kernel: int = 3  # of the convolutions
    window: int = 32  # windowed: places seen on either side
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
        for name in ("kinds", "lengths"):
            values = getattr(self, name)
            if not values:
                raise UsageError(f"A table needs at least one of {name}; got none.")
            if len(set(values)) < len(values):
                raise UsageError(f"The {name} must differ from each other; got {', '.join(map(str, values))}.")
        if min(self.lengths) < 1:
            raise UsageError(f"A length must be at least 1; got {', '.join(map(str, self.lengths))}.")
        for name in ("width", "batch", "repeats", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1; got {value}.")
        for problem in self._problems():
            raise UsageError(f"{problem[0].upper()}{problem[1:]}.")

    def _problems(self) -> Iterator[str]:
        """What the layers themselves have to say."""
        if any(MIXERS[kind].attends for kind in self.kinds):
            yield from head_problems(self.width, self.heads, None)
        try:
            for kind in self.kinds:
                yield from mixer_problems(kind, self.width, **self.options(kind))
        except ValueError as error:
            yield str(error)

    def options(self, kind: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in MIXERS[kind].options}

    def layer(self, kind: str, depth: int = 0, width: int | None = None) -> Mixer:
        """One of these layers, or one `width` wide, its heads as narrow."""
        heads = self.heads if width is None else 1
        return make_mixer(kind, width or self.width, heads, depth=depth, **self.options(kind))


NARROW = 4  # what only asks what depends on what needs no more


@dataclass(frozen=True)
class Measured:
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


def measure(plan: LayersPlan) -> Iterator[Measured]:
    """Every kind at every length, from the shortest, each as soon as it is measured."""
    accel.install()
    device = choose_device(plan.device)
    too_long: dict[str, int] = {}  # by kind, the first length that did not fit
    with _threads(plan.threads):
        for length in sorted(plan.lengths):
            for kind in plan.kinds:
                if kind in too_long:
                    yield Measured(kind, length, failure=f"not tried: {too_long[kind]:,} places were too many already")
                    continue
                one = _measure(plan, kind, length, device)
                if one.failure is not None:
                    too_long[kind] = length
                yield one


def _measure(plan: LayersPlan, kind: str, length: int, device: torch.device) -> Measured:
    room = memory_at_hand(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(plan.seed, "layers", kind, length))
        try:
            with within(room, device):
                return _whole(plan, kind, length, device)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
    free = "" if room is None else f"; {format_bytes(room)} were free"
    return Measured(kind, length, failure=f"out of memory{free}")


def _whole(plan: LayersPlan, kind: str, length: int, device: torch.device) -> Measured:
    middle = plan.layer(kind, width=NARROW).path_length(length) // 2  # of a stack that reaches from end to end
    layer = plan.layer(kind, middle).to(device)
    x = torch.randn(plan.batch, length, plan.width).to(device).requires_grad_()
    passing = TrainingPass(layer, x, plan.weights and kind == "self-attention")
    neighbours = Neighbours()
    taken = seconds(passing, device, plan.repeats)
    others = neighbours.cores()
    return Measured(
        kind,
        length,
        tuple(taken),
        peak_memory(passing, device),
        chain(plan.layer(kind, width=NARROW), NARROW, length),
        path(lambda depth: plan.layer(kind, depth, NARROW), NARROW, length),
        plan.batch * layer.multiplications(length),
        others,
    )


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(number or before)
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Layers:
    """What was found, by kind and from the shortest length."""

    plan: LayersPlan
    device: str
    threads: int
    measured: dict[str, tuple[Measured, ...]]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(sorted(self.plan.lengths))

    def settings(self) -> str:
        """In words, as far as they matter to these kinds."""
        plan, used = self.plan, {name for kind in self.measured for name in MIXERS[kind].options}
        attends = any(MIXERS[kind].attends for kind in self.measured)
        words = [f"width {plan.width}"]
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
        return {kind: self._exponent(quantity, kind) for kind in self.measured}

    def _exponent(self, quantity: str, kind: str) -> float | None:
        fitted = self.fitted(kind)
        points = [(one.length, getattr(one, quantity)) for one in self.measured[kind] if one.length in fitted]
        return slope([(length, value) for length, value in points if value is not None])

    def crowd(self) -> float | None:
        """The most cores that other programs used while something was timed, if they can have been in the way."""
        known = [one.others for rows in self.measured.values() for one in rows if one.others is not None]
        left = max(0, (os.cpu_count() or 1) - self.threads)
        return max(known) if self.device == "cpu" and known and max(known) > left + CROWDED else None

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
        if (crowd := self.crowd()) is not None:
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
    if len(logs) < 2:
        return None
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*logs, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)


def collect(plan: LayersPlan, found: Iterable[Measured]) -> Layers:
    device = choose_device(plan.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    ordered = sorted(found, key=lambda one: one.length)
    measured = {kind: tuple(one for one in ordered if one.kind == kind) for kind in plan.kinds}
    return Layers(plan, name, plan.threads or torch.get_num_threads(), measured)
