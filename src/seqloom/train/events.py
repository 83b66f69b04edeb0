"""Training events and the measurement of training speed.

`fit` and `estimate` are generators of events. The progress bar, the log and the live curve consume the events; training
has no callbacks.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from seqloom.core import Json


@dataclass(frozen=True)
class Event:
    """The base class of all events."""

    step: int


@dataclass(frozen=True)
class Started(Event):
    """Training starts."""

    total: int  # total number of steps
    parameters: int  # number of trainable parameters
    device: str  # device of the model, such as cpu or cuda:0
    resumed: bool  # whether training continues from a checkpoint
    notes: tuple[str, ...] = ()  # behaviour of the model that the recipe does not show
    machine: str = ""  # processor or GPU, and versions of Python and PyTorch


@dataclass(frozen=True)
class Progress(Event):
    """The state of training, reported every `train.log_every` steps."""

    total: int  # total number of steps
    values: Mapping[str, float]  # metrics such as loss (mean since the last event), learning_rate and gradient_norm
    tokens_per_second: float = 0.0  # mean speed since the last event
    seconds_left: float = 0.0  # estimated remaining time, without evaluations
    unit: str = "nats"  # unit of the loss
    speed_unit: str = "tokens"  # unit of the speed, such as tokens or values
    remark: str = ""  # how the loss differs from the loss on dev


@dataclass(frozen=True)
class Evaluated(Event):
    """A split was evaluated."""

    split: str  # name of the split, such as dev
    metrics: Mapping[str, float]  # value of each metric
    best: bool  # whether this is the best evaluation so far


@dataclass(frozen=True)
class Saved(Event):
    """A checkpoint was saved."""

    checkpoint: str  # name of the checkpoint, such as step-400


@dataclass(frozen=True)
class Prepared(Event):
    """The training steps were compiled and captured as CUDA graphs (only on a GPU)."""

    seconds: float  # duration of compilation and capture
    shapes: int  # number of batch shapes
    notes: tuple[str, ...] = ()  # notes, for example why nothing was compiled


@dataclass(frozen=True)
class BatchSplit(Event):
    """A batch did not fit in memory. Further batches of at least this size are split into microbatches."""

    rows: int  # batch size
    microbatches: int  # parts that a batch is split into


@dataclass(frozen=True)
class Skipped(Event):
    """An optimizer step was skipped because the loss or the gradient was not finite."""

    cause: str  # the loss, or the parameter whose gradient is not finite


@dataclass(frozen=True)
class Damaged(Event):
    """A checkpoint could not be used; training tries the previous checkpoint."""

    checkpoint: str  # name of the checkpoint
    cause: str  # why the checkpoint cannot be used


@dataclass(frozen=True)
class Stopped(Event):
    """Training stopped on request. Everything is saved, and the run can be resumed."""


@dataclass(frozen=True)
class Finished(Event):
    """Training finished."""

    reason: str  # why training finished, such as the last step or no improvement for train.patience evaluations
    best_step: int  # step of the best evaluation
    best: Mapping[str, float]  # metrics of the best evaluation
    parameters: int  # number of parameters of the trained model
    tokens_per_second: float  # mean speed over all steps
    seconds: float  # total training time
    memory: int | None = None  # peak tensor memory of a step, in bytes; None if unknown
    step_seconds: float | None = None  # seconds spent in steps, without evaluations, saves and preparation


def event_to_json(event: Event) -> dict[str, Json]:
    """Convert an event to plain values for JSON. Infinity and NaN, which JSON cannot represent, become null."""

    def to_plain(value: Json) -> Json:
        if isinstance(value, Mapping):
            return {key: to_plain(item) for key, item in value.items()}
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {"event": type(event).__name__.lower(), **to_plain(asdict(event))}


def event_from_json(content: Mapping[str, Json]) -> Event:
    """Convert the result of `event_to_json` back to an event. Null metrics become NaN."""
    kind = {kind.__name__.lower(): kind for kind in Event.__subclasses__()}[content["event"]]
    values = {entry.name: content[entry.name] for entry in fields(kind) if entry.name in content}
    for name, value in values.items():
        if isinstance(value, Mapping):
            values[name] = {key: math.nan if item is None else item for key, item in value.items()}
        elif isinstance(value, list):
            values[name] = tuple(value)
    return kind(**values)


class Meter:
    """A stopwatch that measures steps and excludes evaluations, saves and preparation."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.seconds = self.tokens = self.steps = 0.0
        self._reported = (0.0, 0.0, 0.0)  # seconds, tokens and steps at the last report

    def __enter__(self) -> None:
        self._entered = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._entered

    def add(self, tokens: int, steps: int = 1, seconds: float = 0.0) -> None:
        """Count steps, their tokens, and the seconds of steps that run outside a `with` block."""
        self.tokens, self.steps, self.seconds = self.tokens + tokens, self.steps + steps, self.seconds + seconds

    def speed(self) -> float:
        """Return the tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def elapsed(self) -> float:
        """Return the seconds since the start, including evaluations and saves."""
        return time.perf_counter() - self.start

    def progress(
        self, step: int, total: int, values: Mapping[str, float], unit: str, speed_unit: str, remark: str = ""
    ) -> Progress:
        """Return a progress event with the speed since the previous progress event."""
        now = (self.seconds, self.tokens, self.steps)
        seconds, tokens, steps = (a - b for a, b in zip(now, self._reported, strict=True))
        self._reported = now
        left = (total - step) * seconds / max(steps, 1)
        return Progress(step, total, values, tokens / seconds if seconds else 0.0, left, unit, speed_unit, remark)
