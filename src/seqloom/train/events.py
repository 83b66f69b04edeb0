"""What training says while it runs.

`fit` and `estimate` are generators of these events. The progress bar, the log, the live curve and the tests are
consumers of them; nothing calls back into training.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


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


def event_to_json(event: Event) -> dict[str, Any]:
    """Plain values for JSON, which has no word for infinity or for what is not a number: they become null."""
    return {"event": type(event).__name__.lower(), **_plain(asdict(event))}


def event_from_json(content: Mapping[str, Any]) -> Event:
    """The event that `event_to_json` wrote; a null among the figures is what is not a number."""
    kinds = {kind.__name__.lower(): kind for kind in Event.__subclasses__()}
    kind = kinds[content["event"]]
    return kind(**{entry.name: _read(content[entry.name]) for entry in fields(kind) if entry.name in content})


def _read(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: math.nan if item is None else item for key, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
