"""Connection limits: slow clients are disconnected, and other clients are served."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from tests.studio.serving import answer, ask, connect, is_closed, question, serving, wait_until

from seqloom.studio.safety import Limits

LIMIT_SECONDS = 0.4
LIMITS = Limits(receive_seconds=LIMIT_SECONDS, send_seconds=LIMIT_SECONDS, connections=8)
LARGE = 30_000_000  # bytes, larger than the socket buffers


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    app = FastAPI()

    @app.post("/echo")
    async def echo(body: dict[str, float]) -> dict[str, float]:
        await asyncio.sleep(body.get("seconds", 0.0))
        return body

    @app.get("/large")
    async def large() -> PlainTextResponse:
        return PlainTextResponse("x" * LARGE)

    with serving(app, LIMITS) as number:
        yield number


def closed_after(connection: socket.socket, more: bytes = b"") -> float:
    """Return the seconds until the server closes a connection on which a client sends single bytes."""
    began = time.monotonic()
    remaining = iter(more)

    def sent_and_closed() -> bool:
        if (byte := next(remaining, None)) is not None:
            try:
                connection.setblocking(True)
                connection.sendall(bytes([byte]))
            except ConnectionError:
                return True
            time.sleep(0.01)
        return is_closed(connection)

    wait_until(sent_and_closed)
    connection.close()
    return time.monotonic() - began


def test_silent_connection_is_closed(port: int) -> None:
    assert LIMIT_SECONDS * 0.9 < closed_after(connect(port)) < LIMIT_SECONDS + 5


def test_slow_headers_time_out(port: int) -> None:
    headers = b"POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: " + b"x" * 60_000
    assert LIMIT_SECONDS * 0.9 < closed_after(connect(port), headers) < LIMIT_SECONDS + 5


@pytest.mark.parametrize("path", ["/echo", "/nowhere"])
def test_slow_body_times_out(port: int, path: str) -> None:
    """The limit also applies if the response is sent before the body has arrived."""
    connection = connect(port)
    connection.sendall(question(path, {}, length=100_000))
    if path == "/nowhere":
        assert connection.recv(65536).startswith(b"HTTP/1.1 404")
    assert LIMIT_SECONDS * 0.9 < closed_after(connection, b" " * 60_000) < LIMIT_SECONDS + 5


def test_second_request_times_out(port: int) -> None:
    connection = connect(port)
    connection.sendall(question("/echo", {}))
    assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    seconds = closed_after(connection, b"POST /echo HTTP/1.1\r\nX-Slow: " + b"x" * 60_000)
    assert LIMIT_SECONDS * 0.5 < seconds < LIMIT_SECONDS + 5


def test_complete_request_has_no_timeout(port: int) -> None:
    assert answer(ask(port, "/echo", {"seconds": 2.5 * LIMIT_SECONDS})) == (200, {"seconds": 2.5 * LIMIT_SECONDS})


def test_slow_request_within_limit_is_answered(port: int) -> None:
    connection = connect(port)
    for part in (
        b"POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        b"Content-Type: application/json\r\nContent-Length",
        b": 2",
    ):
        connection.sendall(part)
        time.sleep(LIMIT_SECONDS / 10)
    connection.sendall(b"\r\n\r\n{}")
    assert answer(connection) == (200, {})


def test_connection_is_reused(port: int) -> None:
    """The connection stays open for longer than the time limit for one request."""
    connection, began = connect(port), time.monotonic()
    with connection:
        while time.monotonic() - began < 2 * LIMIT_SECONDS:
            connection.sendall(question("/echo", {"a": 1.0}))
            received = connection.recv(65536)
            while not received.endswith(b'{"a":1.0}'):
                received += connection.recv(65536)
            time.sleep(LIMIT_SECONDS / 8)


def test_client_that_does_not_read_is_disconnected(port: int) -> None:
    connection = connect(port)
    connection.sendall(b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    time.sleep(3 * LIMIT_SECONDS)
    received = 0
    try:
        while part := connection.recv(1 << 20):
            received += len(part)
    except ConnectionError:
        pass
    connection.close()
    assert received < LARGE


def test_large_response_is_complete(port: int) -> None:
    connection = connect(port)
    connection.sendall(b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    received = 0
    while part := connection.recv(1 << 20):
        received += len(part)
    connection.close()
    assert received > LARGE


def test_silent_connections_are_evicted(port: int) -> None:
    with ExitStack() as opened:
        silent = [opened.enter_context(connect(port)) for _ in range(4 * LIMITS.connections)]
        assert answer(ask(port, "/echo", {"a": 2.0})) == (200, {"a": 2.0})
        closed = [is_closed(connection) for connection in silent]
        assert sum(closed) > 3 * LIMITS.connections and not all(closed[-LIMITS.connections :])


def test_active_requests_are_not_evicted(port: int) -> None:
    busy = [ask(port, "/echo", {"seconds": 1.0}) for _ in range(LIMITS.connections)]
    time.sleep(0.2)
    late = ask(port, "/echo", {})
    wait_until(lambda: is_closed(late))
    assert [answer(connection)[0] for connection in busy] == [200] * LIMITS.connections
    late.close()
    assert answer(ask(port, "/echo", {}))[0] == 200
