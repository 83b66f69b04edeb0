"""Encoding of arrays in responses, and JSON-lines streams."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from seqloom.core.errors import UsageError
from seqloom.inspect.values import to_plain as plain
from seqloom.studio.endpoints import JsonLinesResponse, pack_arrays, pack_float16, pack_uint8
from seqloom.studio.queues import Queues


def unpack(body: "bytes | memoryview[int]") -> tuple[dict[str, Any], dict[str, Any]]:
    """Decode a response in the same way as web/lib/api.js."""
    body = bytes(body)
    length = int.from_bytes(body[:4], "little")
    head, first, arrays = json.loads(body[4 : 4 + length]), 4 + length, {}
    assert first % 8 == 0
    for name, array in head["arrays"].items():
        count, begin = int(np.prod(array["shape"])), first + array["begin"]
        kind: Any = {"u1": np.uint8, "f2": np.dtype("<f2")}[array["kind"]]
        values = np.frombuffer(body, kind, count, begin).astype(np.float64).reshape(array["shape"])
        if array["kind"] == "u1":
            values = array["low"] + values * (array["high"] - array["low"]) / 255
        arrays[name] = values
    return head, arrays


def test_packed_arrays_round_trip() -> None:
    draws = np.random.default_rng(0)
    wide, small = draws.normal(size=(3, 5, 7)), draws.random((4, 1))
    head, arrays = unpack(
        pack_arrays({"words": ["a", "ü", "\u202e"]}, wide=pack_float16(wide), small=pack_uint8(small)).body
    )
    assert head["words"] == ["a", "ü", "\u202e"]
    np.testing.assert_allclose(arrays["wide"], wide, rtol=1e-3)
    np.testing.assert_allclose(arrays["small"], small, atol=(small.max() - small.min()) / 255)
    assert head["arrays"]["wide"]["low"] == wide.min() and head["arrays"]["small"]["high"] == small.max()


def test_values_are_clipped_to_range_and_constant_arrays_are_exact() -> None:
    _, arrays = unpack(pack_arrays({}, a=pack_uint8([[0.5, 2.0]], 0.0, 1.0), b=pack_uint8(np.full((2, 2), 3.0))).body)
    np.testing.assert_allclose(arrays["a"], [[0.5, 1.0]], atol=1 / 255)
    assert (arrays["b"] == 3.0).all()


def test_non_finite_values_are_replaced() -> None:
    head, arrays = unpack(pack_arrays({"loss": float("nan")}, a=pack_float16([np.nan, np.inf, -1e9, 1.0])).body)
    assert head["loss"] is None
    assert np.isfinite(arrays["a"]).all() and arrays["a"][3] == 1.0
    assert plain({"a": np.array([1.0, np.inf]), "b": (np.int64(3), True)}) == {"a": [1.0, None], "b": [3, True]}


def test_empty_array_round_trips() -> None:
    _, arrays = unpack(pack_arrays({}, a=pack_float16(np.zeros((0, 4)))).body)
    assert arrays["a"].shape == (0, 4)


def test_error_is_the_last_line_of_a_stream() -> None:
    def events() -> Any:
        yield {"token": "a\nb"}
        raise UsageError("no more")

    async def received() -> bytes:
        answer = JsonLinesResponse(events())
        answer.slot = Queues().enter("run")
        return b"".join([chunk async for chunk in answer.body_iterator])  # type: ignore[misc]

    with ThreadPoolExecutor() as pool:  # Playwright uses an event loop in this thread
        body = pool.submit(asyncio.run, received()).result()
    assert [json.loads(line) for line in body.splitlines()] == [{"token": "a\nb"}, {"error": "no more"}]


@pytest.mark.parametrize("sent", [1, 3])
def test_events_are_closed_after_disconnection(sent: int) -> None:
    """The events are closed explicitly and not by garbage collection, because the test keeps a reference."""
    closed: list[int] = []

    def counting() -> Any:
        try:
            for number in range(100):
                yield {"number": number}
        finally:
            closed.append(number)

    async def gone(message: Any) -> None:
        if json.loads(message.get("body") or "{}").get("number") == sent:
            raise OSError("gone")

    async def answered(events: Any, queues: Queues) -> None:
        answer = JsonLinesResponse(events)
        answer.slot = queues.enter("run")
        with pytest.raises(OSError, match="gone"):
            await answer({"type": "http"}, asyncio.Event().wait, gone)  # type: ignore[arg-type]
        await queues.enter("run").run(lambda: None)  # runs after the events have been closed

    events = counting()
    with ThreadPoolExecutor() as pool:
        pool.submit(asyncio.run, answered(events, Queues())).result()
    assert closed == [sent]
