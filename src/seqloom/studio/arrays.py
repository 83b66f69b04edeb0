"""How answers travel: JSON, JSON with arrays behind it, or a line of JSON after another.

An answer with arrays is one block of bytes, little-endian:

    length of the head (uint32) · head (JSON, padded with spaces to 8 bytes) · the arrays, each padded to 8 bytes

The head says of each array where it begins, its shape, and what it is made of: `f2` are float16 values as they are,
`f4` the same in float32, `u1` are bytes b that stand for low + b · (high − low) / 255. A matrix of 512 × 512 is half a
megabyte so, or a quarter as a thumbnail, where JSON would be five.
"""

import json
from collections.abc import AsyncIterator, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from fastapi import Response
from fastapi.responses import StreamingResponse
from numpy.typing import NDArray
from starlette.types import Receive, Scope, Send

from seqloom.core.errors import SeqloomError
from seqloom.inspect.values import to_plain
from seqloom.studio.queues import Place

MEDIA_TYPE = "application/x-seqloom-arrays"
ALIGN = 8
LARGEST_HALF = 65504.0


@dataclass(frozen=True, eq=False)
class Packed:
    """One array as it travels."""

    data: bytes
    kind: str  # f2, f4 or u1
    shape: tuple[int, ...]
    low: float
    high: float


def half(array: Any) -> Packed:
    """As float16, with its range: three digits of every number. What is too large for that is cut."""
    values = np.asarray(array, dtype=np.float64)
    low, high = _range(values)
    cut = np.clip(np.nan_to_num(values), -LARGEST_HALF, LARGEST_HALF)
    return Packed(cut.astype("<f2").tobytes(), "f2", values.shape, low, high)


def single(array: Any) -> Packed:
    """As float32, with its range: for numbers that are computed with, −∞ among them."""
    values = np.asarray(array, dtype=np.float32)
    low, high = _range(values)
    return Packed(values.astype("<f4").tobytes(), "f4", values.shape, low, high)


def thumbnail(array: Any, low: float | None = None, high: float | None = None) -> Packed:
    """As bytes between `low` and `high`, or its least and its largest value: enough for the eye."""
    values: NDArray[Any] = np.nan_to_num(np.asarray(array, dtype=np.float64))
    least, most = _range(values)
    low, high = least if low is None else low, most if high is None else high
    steps = np.rint((values - low) / ((high - low) or 1.0) * 255)
    return Packed(np.clip(steps, 0, 255).astype(np.uint8).tobytes(), "u1", values.shape, low, high)


def _range(values: NDArray[Any]) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def packed(meta: Mapping[str, Any], **arrays: Packed) -> Response:
    """One answer: what there is to say, and the arrays behind it."""
    heads, body = {}, bytearray()
    for name, array in arrays.items():
        heads[name] = {
            "kind": array.kind,
            "shape": array.shape,
            "low": array.low,
            "high": array.high,
            "begin": len(body),
        }
        body += array.data + b"\0" * (-len(array.data) % ALIGN)
    head = _json({**meta, "arrays": heads})
    head += b" " * (-(len(head) + 4) % ALIGN)
    return Response(len(head).to_bytes(4, "little") + head + bytes(body), media_type=MEDIA_TYPE)


Events = Generator[Mapping[str, Any], None, None]


class Lines(StreamingResponse):
    """An answer in lines. Each event is one computation at the request's place in its queue, which is set before the
    answer is sent and given back after it; the events are closed then, also if the client disconnected."""

    place: Place

    def __init__(self, events: Events) -> None:
        self.events = events
        super().__init__(self._encoded(), media_type="application/x-ndjson")

    async def _encoded(self) -> AsyncIterator[bytes]:
        try:
            while (event := await self.place.run(partial(next, self.events, None))) is not None:
                yield _json(event) + b"\n"
        except SeqloomError as error:
            yield _json({"error": str(error)}) + b"\n"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.place.leave(finish=self.events.close)


def lines(events: Events) -> Lines:
    """One JSON object a line, each sent as soon as it is there. An error is the last of them."""
    return Lines(events)


def _json(value: Any) -> bytes:
    return json.dumps(to_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8")
