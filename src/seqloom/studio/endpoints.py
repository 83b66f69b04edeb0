"""Endpoints that compute with a model: they wait in the model's queue, and stop when the client disconnects."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, TypeVar

from fastapi import Request, Response

from seqloom.inspect.values import to_plain
from seqloom.studio.arrays import Lines
from seqloom.studio.queues import Queues

T = TypeVar("T")

CLIENT_CLOSED_REQUEST = 499  # nginx's status; nobody receives it


class Disconnected(Exception):
    """The client closed its connection before the answer was there."""


def queued(compute: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Make an endpoint of a function whose argument `ask` names a `run`: it is computed in the queue of that run.

    It returns a response, or any values that `to_plain` takes. An answer in lines keeps its place in the queue until
    the last line is sent.
    """

    @wraps(compute)
    async def endpoint(*, request: Request, **arguments: Any) -> Any:
        queues: Queues = request.app.state.queues
        place = queues.enter(arguments["ask"].run)
        answer: Any = None
        try:
            answer = await _until_disconnected(request, place.run(partial(_answer, compute, arguments)))
        except Disconnected:
            answer = Response(status_code=CLIENT_CLOSED_REQUEST)
        finally:
            if isinstance(answer, Lines):
                answer.place = place
            else:
                place.leave()
        return answer

    own = inspect.signature(compute)
    request = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)
    endpoint.__signature__ = own.replace(parameters=[*own.parameters.values(), request])  # type: ignore[attr-defined]
    return endpoint


def _answer(compute: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """What an endpoint returns: a response as it is, anything else as JSON has it."""
    found = compute(**arguments)
    return found if isinstance(found, Response) else to_plain(found)


async def _until_disconnected(request: Request, computation: Coroutine[Any, Any, T]) -> T:
    """The result of a computation, which is cancelled if the client closes its connection first."""
    result = asyncio.ensure_future(computation)
    disconnection = asyncio.ensure_future(_disconnection(request))
    try:
        await asyncio.wait([result, disconnection], return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise Disconnected
        return result.result()
    finally:
        result.cancel()
        disconnection.cancel()
        await asyncio.gather(result, disconnection, return_exceptions=True)


async def _disconnection(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
