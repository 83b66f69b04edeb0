"""Connections have limits: who is slow is disconnected, who is not is served."""

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

SOON = 0.4  # seconds in which a request must have arrived
LIMITS = Limits(receive_seconds=SOON, send_seconds=SOON, connections=8)
LARGE = 30_000_000  # bytes, more than the buffers between a server and a client that does not read


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
    """Seconds until the server closes, while the client sends a byte now and then."""
    began = time.monotonic()
    rest = iter(more)

    def sent_and_closed() -> bool:
        if (byte := next(rest, None)) is not None:
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


def test_a_silent_connection_is_closed(port: int) -> None:
    assert SOON * 0.9 < closed_after(connect(port)) < SOON + 5


def test_headers_that_come_byte_by_byte_are_not_waited_for(port: int) -> None:
    headers = b"POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: " + b"x" * 60_000
    assert SOON * 0.9 < closed_after(connect(port), headers) < SOON + 5


@pytest.mark.parametrize("path", ["/echo", "/nowhere"])
def test_a_body_that_comes_byte_by_byte_is_not_waited_for(port: int, path: str) -> None:
    """Also if the answer was sent without waiting for the body."""
    connection = connect(port)
    connection.sendall(question(path, {}, length=100_000))
    if path == "/nowhere":
        assert connection.recv(65536).startswith(b"HTTP/1.1 404")
    assert SOON * 0.9 < closed_after(connection, b" " * 60_000) < SOON + 5


def test_a_second_request_must_arrive_in_time_too(port: int) -> None:
    connection = connect(port)
    connection.sendall(question("/echo", {}))
    assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    assert SOON * 0.5 < closed_after(connection, b"POST /echo HTTP/1.1\r\nX-Slow: " + b"x" * 60_000) < SOON + 5


def test_a_request_that_has_arrived_may_take_its_time(port: int) -> None:
    assert answer(ask(port, "/echo", {"seconds": 2.5 * SOON})) == (200, {"seconds": 2.5 * SOON})


def test_a_slow_request_that_is_fast_enough_is_answered(port: int) -> None:
    connection = connect(port)
    for part in (
        b"POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        b"Content-Type: application/json\r\nContent-Length",
        b": 2",
    ):
        connection.sendall(part)
        time.sleep(SOON / 10)
    connection.sendall(b"\r\n\r\n{}")
    assert answer(connection) == (200, {})


def test_many_requests_may_come_over_one_connection(port: int) -> None:
    """For longer than one of them may take."""
    connection, began = connect(port), time.monotonic()
    with connection:
        while time.monotonic() - began < 2 * SOON:
            connection.sendall(question("/echo", {"a": 1.0}))
            received = connection.recv(65536)
            while not received.endswith(b'{"a":1.0}'):
                received += connection.recv(65536)
            time.sleep(SOON / 8)


def test_a_client_that_does_not_read_is_disconnected(port: int) -> None:
    connection = connect(port)
    connection.sendall(b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    time.sleep(3 * SOON)
    received = 0
    try:
        while part := connection.recv(1 << 20):
            received += len(part)
    except ConnectionError:
        pass
    connection.close()
    assert received < LARGE


def test_a_client_that_reads_gets_everything(port: int) -> None:
    connection = connect(port)
    connection.sendall(b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    received = 0
    while part := connection.recv(1 << 20):
        received += len(part)
    connection.close()
    assert received > LARGE


def test_silent_connections_make_room_for_others(port: int) -> None:
    with ExitStack() as opened:
        silent = [opened.enter_context(connect(port)) for _ in range(4 * LIMITS.connections)]
        assert answer(ask(port, "/echo", {"a": 2.0})) == (200, {"a": 2.0})
        closed = [is_closed(connection) for connection in silent]
        assert sum(closed) > 3 * LIMITS.connections and not all(closed[-LIMITS.connections :])


def test_requests_in_progress_are_not_closed_for_new_connections(port: int) -> None:
    busy = [ask(port, "/echo", {"seconds": 1.0}) for _ in range(LIMITS.connections)]
    time.sleep(0.2)
    late = ask(port, "/echo", {})
    wait_until(lambda: is_closed(late))
    assert [answer(connection)[0] for connection in busy] == [200] * LIMITS.connections
    late.close()
    assert answer(ask(port, "/echo", {}))[0] == 200
