"""Endpoints of the studio: request bodies, computation in queues, and formats of responses.

A request body is a pydantic model. The limits of the model bound the size of the response, and an invalid body is
rejected before a model is loaded. A request is computed in the queue of its run, and the computation stops when the
client disconnects. A response is JSON, JSON followed by arrays, or a stream of JSON lines.

A response with arrays is binary, little-endian:

    header length (uint32) · header (JSON, padded with spaces to 8 bytes) · arrays, each padded to 8 bytes

The header contains the offset, shape and type of each array: `f2` is float16, `f4` is float32, and `u1` means bytes b
that encode low + b · (high − low) / 255. A 512 × 512 matrix takes half a megabyte as `f2` and a quarter of a megabyte
as `u1`; as JSON it would take five megabytes.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Annotated, TypeVar, get_type_hints

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from numpy.typing import ArrayLike
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.types import Receive, Scope, Send

from seqloom.core import JsonObject
from seqloom.core.errors import SeqloomError
from seqloom.inspect.values import Array, to_plain
from seqloom.models import MODELS
from seqloom.studio.queues import Queues, QueueSlot
from seqloom.studio.run_folder import OpenRun, RunFolder
from seqloom.tasks import has_view

B = TypeVar("B", bound="RunRequest")

# --- request bodies ---------------------------------------------------------------------------------------------------

MAX_LINE_LENGTH = 2_000  # characters
MAX_DOCUMENT_LENGTH = 200_000  # characters
MAX_TOKENS = 512  # maximum tokens of a text whose attention weights are computed
MAX_NEW_TOKENS = 400


def _check_surrogates(text: str) -> str:
    """Reject lone surrogates, which JSON can represent but UTF-8 cannot encode."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("must be valid Unicode, without lone surrogates")
    return text


RunId = Annotated[str, Field(min_length=1, max_length=500)]  # looked up by `RunFolder.find`
Line = Annotated[str, Field(max_length=MAX_LINE_LENGTH), AfterValidator(_check_surrogates)]
Document = Annotated[str, Field(max_length=MAX_DOCUMENT_LENGTH), AfterValidator(_check_surrogates)]


class PageRequest(BaseModel):
    """Base class of request bodies. Unknown fields, infinities and NaN are rejected."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class RunRequest(PageRequest):
    """A request about one run."""

    run: RunId


class TextRequest(RunRequest):
    """An input text. For a translator, `target` can force a translation; None selects the model's own translation."""

    text: Line
    target: Line | None = None

    @property
    def forced_target(self) -> str | None:
        """The target to force, or None if it is blank."""
        return (self.target or "").strip() or None


# --- views and their endpoints ----------------------------------------------------------------------------------------

CLIENT_CLOSED_REQUEST = 499  # status code of nginx for a client that has disconnected


class View:
    """A view of the page: its label in the menu, a test for suitable runs, and its endpoints under /api/<name>.

    A run is suitable if `TaskInfo.views` of its task contains the view, and `suits_model` accepts its model.
    """

    def __init__(
        self,
        name: str,
        label: str,
        suits_model: Callable[[JsonObject], bool] = lambda model: True,
        task_view: str | None = None,  # name of the view in `TaskInfo.views`, if it differs from `name`
    ) -> None:
        self.name, self.label, self.suits_model, self.task_view = name, label, suits_model, task_view or name
        self.router = APIRouter(prefix=f"/api/{name}")
        self.body_limits: dict[str, int] = {}  # maximum sizes of request bodies in bytes, by path

    def suits(self, recipe: JsonObject) -> bool:
        """Whether the view can show a run with this recipe."""
        return has_view(recipe, self.task_view) and self.suits_model(recipe.get("model") or {})

    def post(
        self, path: str = "", max_bytes: int | None = None
    ) -> Callable[[Callable[[B, OpenRun], object]], Callable[[B, OpenRun], object]]:
        """Register a function of a request body and its run as an endpoint.

        `max_bytes` is the maximum size of a request body, if it differs from `safety.MAX_BODY_BYTES`.
        """
        if max_bytes is not None:
            self.body_limits[f"{self.router.prefix}{path}"] = max_bytes

        def add(compute: Callable[[B, OpenRun], object]) -> Callable[[B, OpenRun], object]:
            self.router.post(path)(queued(compute))
            return compute

        return add


def encoder_kind(model: JsonObject) -> str | None:
    """Return the kind of the network that reads the text: backbone, encoder, or the model itself."""
    encoder: JsonObject = model.get("backbone") or model.get("encoder") or model
    kind: str | None = MODELS.base(encoder.get("kind"))
    return kind


def queued(compute: Callable[[B, OpenRun], object]) -> Callable[[B, Request], Awaitable[object]]:
    """Create an endpoint that opens the run of a request and computes in the queue of that run.

    `compute` returns a response, or any value that `to_plain` accepts. A stream of lines holds its slot in the queue
    until the last line has been sent.
    """

    @wraps(compute)
    async def endpoint(body: B, request: Request) -> object:
        run_folder: RunFolder = request.app.state.run_folder
        queues: Queues = request.app.state.queues

        def compute_response() -> object:
            value = compute(body, run_folder.open(body.run))
            return value if isinstance(value, Response) else to_plain(value)

        slot = queues.enter(body.run)
        response: object = None
        try:
            response = await _until_disconnected(request, slot.run(compute_response))
        finally:
            if isinstance(response, JsonLinesResponse):
                response.slot = slot
            else:
                slot.leave()
        return response

    endpoint.__annotations__ = {"body": get_type_hints(compute)["body"], "request": Request}
    del endpoint.__wrapped__
    return endpoint


async def _until_disconnected(request: Request, computation: Awaitable[object]) -> object:
    """Await a computation, and cancel it if the client disconnects first."""

    async def wait_for_disconnection() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    result = asyncio.ensure_future(computation)
    disconnection = asyncio.ensure_future(wait_for_disconnection())
    try:
        await asyncio.wait([result, disconnection], return_when=asyncio.FIRST_COMPLETED)
        return result.result() if result.done() else Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        result.cancel()
        disconnection.cancel()
        await asyncio.gather(result, disconnection, return_exceptions=True)


# --- responses with arrays --------------------------------------------------------------------------------------------

MEDIA_TYPE = "application/x-seqloom-arrays"
ALIGNMENT_BYTES = 8
MAX_FLOAT16 = 65504.0


@dataclass(frozen=True, eq=False)
class PackedArray:
    """An array in the encoding of a response."""

    data: bytes
    kind: str  # f2, f4 or u1
    shape: tuple[int, ...]
    low: float
    high: float


def pack_float16(array: ArrayLike) -> PackedArray:
    """Encode an array as float16 with three significant digits. Values beyond the range of float16 are clipped."""
    values = np.asarray(array, dtype=np.float64)
    clipped = np.clip(np.nan_to_num(values), -MAX_FLOAT16, MAX_FLOAT16)
    return PackedArray(clipped.astype("<f2").tobytes(), "f2", values.shape, *_range(values))


def pack_float32(array: ArrayLike) -> PackedArray:
    """Encode an array as float32. This type keeps −∞ and is used for values with which the page computes."""
    values = np.asarray(array, dtype=np.float32)
    return PackedArray(values.astype("<f4").tobytes(), "f4", values.shape, *_range(values))


def pack_uint8(array: ArrayLike, low: float | None = None, high: float | None = None) -> PackedArray:
    """Encode an array as bytes between `low` and `high` (default: the range of the values), for thumbnails."""
    values = np.nan_to_num(np.asarray(array, dtype=np.float64))
    minimum, maximum = _range(values)
    low, high = minimum if low is None else low, maximum if high is None else high
    steps = np.rint((values - low) / ((high - low) or 1.0) * 255)
    return PackedArray(np.clip(steps, 0, 255).astype(np.uint8).tobytes(), "u1", values.shape, low, high)


def _range(values: Array) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def pack_arrays(meta: Mapping[str, object], **arrays: PackedArray) -> Response:
    """Return a response of JSON metadata followed by arrays."""
    heads, body = {}, bytearray()
    for name, array in arrays.items():
        head = {name: value for name, value in vars(array).items() if name != "data"}
        heads[name] = {**head, "begin": len(body)}
        body += array.data + b"\0" * (-len(array.data) % ALIGNMENT_BYTES)
    text = _json({**meta, "arrays": heads})
    text += b" " * (-(len(text) + 4) % ALIGNMENT_BYTES)
    return Response(len(text).to_bytes(4, "little") + text + bytes(body), media_type=MEDIA_TYPE)


# --- responses in lines -----------------------------------------------------------------------------------------------

Events = Generator[Mapping[str, object], None, None]


class JsonLinesResponse(StreamingResponse):
    """A stream of JSON objects, one per line. Each line is sent as soon as it is computed. An error is the last line.

    Each event is computed in the slot of the request. `slot` is set before the response is sent. At the end of the
    stream, or when the client disconnects, the generator is closed and the slot is released.
    """

    slot: QueueSlot

    def __init__(self, events: Events) -> None:
        self.events = events
        super().__init__(self._encode(), media_type="application/x-ndjson")

    async def _encode(self) -> AsyncIterator[bytes]:
        try:
            while (event := await self.slot.run(partial(next, self.events, None))) is not None:
                yield _json(event) + b"\n"
        except SeqloomError as error:
            yield _json({"error": str(error)}) + b"\n"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.slot.leave(finish=self.events.close)


def _json(value: object) -> bytes:
    return json.dumps(to_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8")
