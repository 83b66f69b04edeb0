"""Test servers, raw connections, and a computation that ends on request."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from seqloom.core.progress import check_cancelled
from seqloom.studio.safety import LimitedProtocol, Limits

TIMEOUT_SECONDS = 20.0


class Endless:
    """A computation that runs until it is cancelled or `let_go` is set."""

    def __init__(self) -> None:
        self.began, self.ended, self.let_go = threading.Event(), threading.Event(), threading.Event()
        self.times = 0

    def __call__(self) -> str:
        self.times += 1
        self.began.set()
        try:
            while not self.let_go.wait(0.002):
                check_cancelled()
            return "done"
        finally:
            self.ended.set()


@contextmanager
def serving(app: FastAPI, limits: Limits | None = None) -> Iterator[int]:
    """Serve an application with the connection limits of the studio. Yield the port."""
    listening = socket.create_server(("127.0.0.1", 0))
    protocol: Any = partial(LimitedProtocol, limits or Limits())
    config = uvicorn.Config(app, http=protocol, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(timeout=10)


def wait_until(condition: Callable[[], bool], patience: float = TIMEOUT_SECONDS) -> None:
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.005)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)


def question(path: str, body: Any, token: str = "", length: int | None = None) -> bytes:
    """Return a request. A larger `length` makes its body incomplete."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length or len(content)}\r\n\r\n"
    )
    return head.encode() + content


def ask(port: int, path: str, body: Any, token: str = "") -> socket.socket:
    """Send a request without waiting for the response."""
    connection = connect(port)
    connection.sendall(question(path, body, token))
    return connection


def answer(connection: socket.socket) -> tuple[int, Any]:
    """Return the status and the JSON body of a response with Content-Length."""
    with connection, connection.makefile("rb") as file:
        status, length = int(file.readline().split()[1]), 0
        while line := file.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return status, json.loads(file.read(length) or b"null")


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection."""
    connection.settimeout(0.0)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
