"""Endpoints of the studio: what the page may ask, where it is computed, and how answers travel.

A question is a pydantic model whose limits keep the answer small; what does not fit is refused
before any model is touched. It is computed in the queue of its run, and stops when the client
disconnects. An answer is JSON, JSON with arrays behind it, or one line of JSON after another.

An answer with arrays is one block of bytes, little-endian:

    length of the head (uint32) · head (JSON, padded with spaces to 8 bytes) · the arrays, each padded to 8 bytes

The head says of each array where it begins, its shape, and what it is made of: `f2` are float16
values as they are, `f4` the same in float32, `u1` are bytes b that stand for low + b · (high − low)
/ 255. A matrix of 512 × 512 is half a megabyte so, or a quarter as a thumbnail, where JSON would be
five.
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

from seqloom.core.errors import SeqloomError
from seqloom.inspect.values import Array, to_plain
from seqloom.models import MODELS
from seqloom.studio.queues import QueuePlace, Queues
from seqloom.studio.shelf import Json, OpenRun, Shelf
from seqloom.tasks import has_view

Q = TypeVar("Q", bound="RunQuestion")

# --- questions --------------------------------------------------------------------------------------------------------

LINE = 2_000  # letters of a sentence, a prompt, a source
DOCUMENT = 200_000  # letters of a text of many lines
TOKENS = 512  # of a text whose every token attends to every other
NEW_TOKENS = 400


def _check_surrogates(text: str) -> str:
    """JSON can carry halves of letters, which no tokenizer can read."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("must be UTF-8, without halves of letters")
    return text


RunId = Annotated[str, Field(min_length=1, max_length=500)]  # a name on the shelf, never a path: see `Shelf.find`
Line = Annotated[str, Field(max_length=LINE), AfterValidator(_check_surrogates)]
Document = Annotated[str, Field(max_length=DOCUMENT), AfterValidator(_check_surrogates)]


class PageQuestion(BaseModel):
    """The base of all questions: nothing that is not asked for may come along, and no number may be infinite."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class RunQuestion(PageQuestion):
    """A question about one run."""

    run: RunId


class TextQuestion(RunQuestion):
    """A text that a model reads, and the translation that a translator is made to say; None is its own."""

    text: Line
    target: Line | None = None

    @property
    def forced_target(self) -> str | None:
        """The translation to say, if one is given."""
        return (self.target or "").strip() or None


# --- views and their endpoints ----------------------------------------------------------------------------------------

CLIENT_CLOSED_REQUEST = 499  # nginx's status; nobody receives it


class View:
    """A view of the page: which runs it suits, and its endpoints under /api/<name>."""

    def __init__(
        self,
        name: str,
        suits_model: Callable[[Json], bool] = lambda model: True,
        task_view: str | None = None,  # the view that tasks name, where it is another
    ) -> None:
        self.name, self.suits_model, self.task_view = name, suits_model, task_view or name
        self.router = APIRouter(prefix=f"/api/{name}")

    def suits(self, recipe: Json) -> bool:
        """Tell from a run's recipe alone whether there is anything to see."""
        return has_view(recipe, self.task_view) and self.suits_model(recipe.get("model") or {})

    def post(self, path: str = "") -> Callable[[Callable[[Q, OpenRun], object]], Callable[[Q, OpenRun], object]]:
        """Make an endpoint of a function of a question and the run that it names."""

        def add(compute: Callable[[Q, OpenRun], object]) -> Callable[[Q, OpenRun], object]:
            self.router.post(path)(queued(compute))
            return compute

        return add


def reader_kind(model: Json) -> str | None:
    """The kind of what reads the text: of a model on a backbone, that of the backbone."""
    reader: Json = model.get("backbone") or model.get("encoder") or model
    kind: str | None = MODELS.base(reader.get("kind"))
    return kind


def queued(compute: Callable[[Q, OpenRun], object]) -> Callable[[Q, Request], Awaitable[object]]:
    """Make an endpoint that opens the run of a question and computes in the queue of that run.

    `compute` returns a response, or any values that `to_plain` takes. An answer in lines keeps its
    place in the queue until the last line is sent.
    """

    @wraps(compute)
    async def endpoint(ask: Q, request: Request) -> object:
        shelf: Shelf = request.app.state.shelf
        queues: Queues = request.app.state.queues

        def answer() -> object:
            value = compute(ask, shelf.open(ask.run))
            return value if isinstance(value, Response) else to_plain(value)

        place = queues.enter(ask.run)
        response: object = None
        try:
            response = await _until_disconnected(request, place.run(answer))
        finally:
            if isinstance(response, LineResponse):
                response.place = place
            else:
                place.leave()
        return response

    endpoint.__annotations__ = {"ask": get_type_hints(compute)["ask"], "request": Request}
    del endpoint.__wrapped__
    return endpoint


async def _until_disconnected(request: Request, computation: Awaitable[object]) -> object:
    """The result of a computation, which is cancelled if the client closes its connection first."""

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


# --- answers with arrays ----------------------------------------------------------------------------------------------

MEDIA_TYPE = "application/x-seqloom-arrays"
ALIGN = 8
LARGEST_HALF = 65504.0


@dataclass(frozen=True, eq=False)
class PackedArray:
    """One array as it travels."""

    data: bytes
    kind: str  # f2, f4 or u1
    shape: tuple[int, ...]
    low: float
    high: float


def half(array: ArrayLike) -> PackedArray:
    """As float16, with its range: three digits of every number. What is too large for that is cut."""
    values = np.asarray(array, dtype=np.float64)
    cut = np.clip(np.nan_to_num(values), -LARGEST_HALF, LARGEST_HALF)
    return PackedArray(cut.astype("<f2").tobytes(), "f2", values.shape, *_range(values))


def single(array: ArrayLike) -> PackedArray:
    """As float32, with its range: for numbers that are computed with, −∞ among them."""
    values = np.asarray(array, dtype=np.float32)
    return PackedArray(values.astype("<f4").tobytes(), "f4", values.shape, *_range(values))


def thumbnail(array: ArrayLike, low: float | None = None, high: float | None = None) -> PackedArray:
    """As bytes between `low` and `high`, or its least and its largest value: enough for the eye."""
    values = np.nan_to_num(np.asarray(array, dtype=np.float64))
    least, most = _range(values)
    low, high = least if low is None else low, most if high is None else high
    steps = np.rint((values - low) / ((high - low) or 1.0) * 255)
    return PackedArray(np.clip(steps, 0, 255).astype(np.uint8).tobytes(), "u1", values.shape, low, high)


def _range(values: Array) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def pack_arrays(meta: Mapping[str, object], **arrays: PackedArray) -> Response:
    """One answer: what there is to say, and the arrays behind it."""
    heads, body = {}, bytearray()
    for name, array in arrays.items():
        head = {name: value for name, value in vars(array).items() if name != "data"}
        heads[name] = {**head, "begin": len(body)}
        body += array.data + b"\0" * (-len(array.data) % ALIGN)
    text = _json({**meta, "arrays": heads})
    text += b" " * (-(len(text) + 4) % ALIGN)
    return Response(len(text).to_bytes(4, "little") + text + bytes(body), media_type=MEDIA_TYPE)


# --- answers in lines -------------------------------------------------------------------------------------------------

Events = Generator[Mapping[str, object], None, None]


class LineResponse(StreamingResponse):
    """One JSON object a line, each sent as soon as it is there; an error is the last of them.

    Each event is one computation at the request's place in its queue, which is set before the
    answer is sent and given back after it; the events are closed then, also if the client
    disconnected.
    """

    place: QueuePlace

    def __init__(self, events: Events) -> None:
        self.events = events
        super().__init__(self._encode(), media_type="application/x-ndjson")

    async def _encode(self) -> AsyncIterator[bytes]:
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


def _json(value: object) -> bytes:
    return json.dumps(to_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8")
