"""The events of a training, and the meter of its speed.

`fit` and `estimate` are generators of these events. The progress bar, the log, the live curve and
the tests are consumers of them; nothing calls back into training.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from seqloom.core import Json


@dataclass(frozen=True)
class Event:
    step: int


@dataclass(frozen=True)
class Started(Event):
    total: int
    parameters: int
    device: str
    resumed: bool
    notes: tuple[str, ...] = ()  # what the model does beyond what its recipe says


@dataclass(frozen=True)
class Progress(Event):
    total: int
    values: Mapping[str, float]  # loss, learning_rate, gradient_norm … , whatever the method measures
    tokens_per_second: float = 0.0
    seconds_left: float = 0.0
    unit: str = "nats"  # of the loss
    counted: str = "tokens"  # what speed is measured in


@dataclass(frozen=True)
class Evaluated(Event):
    split: str
    metrics: Mapping[str, float]
    best: bool


@dataclass(frozen=True)
class Saved(Event):
    checkpoint: str


@dataclass(frozen=True)
class Prepared(Event):
    """On a GPU: steps of so many shapes of batches were compiled and captured as CUDA graphs, in so many seconds."""

    seconds: float
    shapes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class BatchSplit(Event):
    """A batch of so many rows did not fit in memory; from now on those of its size are taken in microbatches."""

    rows: int
    microbatches: int


@dataclass(frozen=True)
class Skipped(Event):
    """An update that was not made, because it was not finite."""

    cause: str


@dataclass(frozen=True)
class Damaged(Event):
    """A checkpoint that could not be used; the one before it is tried."""

    checkpoint: str
    cause: str


@dataclass(frozen=True)
class Stopped(Event):
    """Stopped on request; everything is saved and the run can be resumed."""


@dataclass(frozen=True)
class Finished(Event):
    reason: str
    best_step: int
    best: Mapping[str, float]
    parameters: int  # numbers the model keeps
    tokens_per_second: float
    seconds: float
    memory: int | None = None  # most bytes in tensors during an update; None where it is not known
    updating: float | None = None  # of the seconds, those in updates: without evaluations, saves and preparation


def event_to_json(event: Event) -> dict[str, Json]:
    """Plain values for JSON, which has no word for infinity or for what is not a number: they become null."""

    def plain(value: Json) -> Json:
        if isinstance(value, Mapping):
            return {key: plain(item) for key, item in value.items()}
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {"event": type(event).__name__.lower(), **plain(asdict(event))}


def event_from_json(content: Mapping[str, Json]) -> Event:
    """The event that `event_to_json` wrote; a null among the metrics is what is not a number."""
    kind = {kind.__name__.lower(): kind for kind in Event.__subclasses__()}[content["event"]]
    values = {entry.name: content[entry.name] for entry in fields(kind) if entry.name in content}
    for name, value in values.items():
        if isinstance(value, Mapping):
            values[name] = {key: math.nan if item is None else item for key, item in value.items()}
        elif isinstance(value, list):
            values[name] = tuple(value)
    return kind(**values)


class Meter:
    """Time spent in steps: evaluations, saves, and what has to be prepared before steps can be made are left out."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.seconds = self.tokens = self.steps = 0.0
        self._reported = (0.0, 0.0, 0.0)  # seconds, tokens and steps at the last report

    def __enter__(self) -> None:
        self._entered = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._entered

    def add(self, tokens: int, steps: int = 1, seconds: float = 0.0) -> None:
        """Count steps and their tokens, and the seconds of steps that were not made in a `with` block."""
        self.tokens, self.steps, self.seconds = self.tokens + tokens, self.steps + steps, self.seconds + seconds

    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def elapsed(self) -> float:
        """Seconds since the beginning, evaluations and saves included."""
        return time.perf_counter() - self.began

    def progress(self, step: int, total: int, values: Mapping[str, float], unit: str, counted: str) -> Progress:
        """The event that says how fast it was since the last one."""
        now = (self.seconds, self.tokens, self.steps)
        seconds, tokens, steps = (a - b for a, b in zip(now, self._reported, strict=True))
        self._reported = now
        left = (total - step) * seconds / max(steps, 1)
        return Progress(step, total, values, tokens / seconds if seconds else 0.0, left, unit, counted)
