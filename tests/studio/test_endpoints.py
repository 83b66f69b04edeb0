"""Queued requests on a real server: disconnection, full queues, and endpoints without a queue."""

import inspect
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Response
from fastapi.routing import APIRoute
from tests.studio.conftest import StudioPage, Window
from tests.studio.serving import Endless, answer, ask, connect, serving, wait_until

from seqloom.studio.endpoints import JsonLinesResponse, RunRequest, queued
from seqloom.studio.queues import Queues
from seqloom.studio.server import Studio
from seqloom.studio.views import VIEWS


class Computations:
    """An application with computations that the test controls."""

    def __init__(self) -> None:
        self.app, self.slow, self.event_count, self.closed = FastAPI(), Endless(), 0, False
        self.app.state.queues = self.queues = Queues()
        self.app.state.run_folder = SimpleNamespace(open=str)
        self.app.post("/slow")(queued(self.compute_slowly))
        self.app.post("/fast")(queued(self.compute_fast))
        self.app.post("/lines")(queued(self.stream))

    def compute_slowly(self, body: RunRequest, run: object) -> dict[str, str]:
        return {"answer": self.slow()}

    def compute_fast(self, body: RunRequest, run: object) -> dict[str, str]:
        return {"answer": body.run}

    def stream(self, body: RunRequest, run: object) -> Response:
        return JsonLinesResponse(self.events())

    def events(self) -> Generator[dict[str, Any], None, None]:
        try:
            while True:
                self.event_count += 1
                yield {"number": self.event_count}
                time.sleep(0.005)
        finally:
            self.closed = True


@pytest.fixture
def computations() -> Computations:
    return Computations()


@pytest.fixture
def port(computations: Computations) -> Iterator[int]:
    with serving(computations.app) as number:
        yield number
    computations.slow.let_go.set()


def test_disconnection_stops_running_computation(computations: Computations, port: int) -> None:
    connection = ask(port, "/slow", {"run": "a"})
    wait_until(computations.slow.began.is_set)
    connection.close()
    wait_until(computations.slow.ended.is_set)
    assert not computations.slow.let_go.is_set()
    assert answer(ask(port, "/fast", {"run": "a"})) == (200, {"answer": "a"})
    assert not computations.queues._held


def test_disconnection_removes_waiting_computation(computations: Computations, port: int) -> None:
    first = ask(port, "/slow", {"run": "a"})
    wait_until(computations.slow.began.is_set)
    others = [ask(port, "/slow", {"run": "a"}) for _ in range(10)]
    wait_until(lambda: computations.queues._held["a"] == 11)
    for connection in others:
        connection.close()
    wait_until(lambda: computations.queues._held["a"] == 1)
    computations.slow.let_go.set()
    assert answer(first) == (200, {"answer": "done"})
    assert computations.slow.times == 1


def test_stream_lets_other_requests_run_and_stops_on_disconnection(computations: Computations, port: int) -> None:
    connection = ask(port, "/lines", {"run": "a"})
    wait_until(lambda: computations.event_count > 3)
    assert answer(ask(port, "/fast", {"run": "a"})) == (200, {"answer": "a"})
    connection.close()
    wait_until(lambda: computations.closed)
    event_count = computations.event_count
    time.sleep(0.1)
    assert computations.event_count == event_count and not computations.queues._held


def test_stream_ends_with_deadline_error(computations: Computations, port: int) -> None:
    computations.queues.deadline = 0.3
    with ask(port, "/lines", {"run": "a"}) as connection, connection.makefile("rb") as file:
        events = [line for line in iter(file.readline, b"0\r\n") if line.startswith(b"{")]
        assert b"stopped after 0.3 seconds" in events[-1] and len(events) > 3
    wait_until(lambda: computations.closed)


def test_all_model_endpoints_are_queued() -> None:
    for name, view in VIEWS.items():
        routes = [route for route in view.router.routes if isinstance(route, APIRoute)]
        assert routes
        for route in routes:
            assert inspect.iscoroutinefunction(route.endpoint) == (name != "runs"), route.path
            if name != "runs":
                assert "run" in inspect.signature(route.endpoint).parameters["body"].annotation.model_fields


# --- the studio itself ------------------------------------------------------------------------------------------------


@contextmanager
def occupy_model(queues: Queues, run: str) -> Iterator[Endless]:
    """Run a slow computation of a model while the block runs."""
    computations = Computations()
    computations.app.state.queues = queues
    with serving(computations.app) as port:
        connection = ask(port, "/slow", {"run": run})
        wait_until(computations.slow.began.is_set)
        try:
            yield computations.slow
        finally:
            computations.slow.let_go.set()
            answer(connection)


def test_busy_model_does_not_block_other_models(runs: Path) -> None:
    """Other models respond even if more requests are waiting than the server has threads."""
    queues = Queues(slots=60)
    with Studio(runs, queues=queues).running() as studio, occupy_model(queues, "gpt"):
        waiting = [ask(studio.port, "/api/write/next", {"run": "gpt", "text": "a"}, studio.token) for _ in range(50)]
        wait_until(lambda: queues._held["gpt"] == 51)
        assert answer(ask(studio.port, "/api/runs", {}, studio.token))[0] == 200
        assert answer(ask(studio.port, "/api/runs/card", {"run": "gpt"}, studio.token))[0] == 200
        assert answer(ask(studio.port, "/api/runs/curves", {"runs": ["gpt"]}, studio.token))[0] == 200
        question = {"run": "lm-lstm", "text": "a", "max_tokens": 3}
        assert answer(ask(studio.port, "/api/beam", question, studio.token))[0] == 200
        assert get(studio.port, "/app.js").startswith(b"HTTP/1.1 200")
        for connection in waiting:
            connection.close()
        wait_until(lambda: queues._held["gpt"] == 1)


def get(port: int, path: str) -> bytes:
    connection: socket.socket
    with connect(port) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
        return connection.recv(100)


def test_cancelled_searches_are_not_computed(runs: Path) -> None:
    with Studio(runs).running() as studio:
        question = {"run": "gpt", "beam": 16, "n_best": 16, "max_tokens": 100}

        def search(text: str) -> socket.socket:
            return ask(studio.port, "/api/beam", {**question, "text": text}, studio.token)

        assert answer(search("warm"))[0] == 200
        began = time.perf_counter()
        assert answer(search("measured"))[0] == 200
        seconds = time.perf_counter() - began
        connections = [search(f"cancelled {number}") for number in range(15)]
        time.sleep(seconds / 3)
        for connection in connections:
            connection.close()
        began = time.perf_counter()
        assert answer(search("wanted"))[0] == 200
        # Without cancellation, this would take sixteen times as long
        assert time.perf_counter() - began < 5 * seconds + 0.5


def test_full_queue_is_reported_on_the_page(window: Window, runs: Path) -> None:
    queues = Queues(slots=1)
    with Studio(runs, queues=queues).running() as studio, window.showing(studio) as opened:
        opened.refusals = True
        page = busy_page(opened, queues)
        page.get_by_text("This model already has 1 pending requests, the maximum. Try again in a moment.").wait_for()
        opened.reload()
        page.locator(".written").first.wait_for()


def busy_page(opened: StudioPage, queues: Queues) -> Any:
    with occupy_model(queues, "gpt"):
        return opened.open("write", run="gpt", text="The class")
