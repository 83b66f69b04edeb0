"""Requests in queues, through a real server: disconnected clients, full queues, and what never waits for a model."""

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

from seqloom.studio.endpoints import LineResponse, RunQuestion, queued
from seqloom.studio.queues import Queues
from seqloom.studio.server import Studio
from seqloom.studio.views import VIEWS


class Computations:
    """An application whose computations are of the test's own."""

    def __init__(self) -> None:
        self.app, self.slow, self.told, self.closed = FastAPI(), Endless(), 0, False
        self.app.state.queues = self.queues = Queues()
        self.app.state.shelf = SimpleNamespace(open=str)
        self.app.post("/slow")(queued(self.compute_slowly))
        self.app.post("/fast")(queued(self.compute_fast))
        self.app.post("/lines")(queued(self.stream))

    def compute_slowly(self, ask: RunQuestion, run: object) -> dict[str, str]:
        return {"answer": self.slow()}

    def compute_fast(self, ask: RunQuestion, run: object) -> dict[str, str]:
        return {"answer": ask.run}

    def stream(self, ask: RunQuestion, run: object) -> Response:
        return LineResponse(self.events())

    def events(self) -> Generator[dict[str, Any], None, None]:
        try:
            while True:
                self.told += 1
                yield {"number": self.told}
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


def test_a_running_computation_stops_when_its_client_disconnects(computations: Computations, port: int) -> None:
    connection = ask(port, "/slow", {"run": "a"})
    wait_until(computations.slow.began.is_set)
    connection.close()
    wait_until(computations.slow.ended.is_set)
    assert not computations.slow.let_go.is_set()
    assert answer(ask(port, "/fast", {"run": "a"})) == (200, {"answer": "a"})
    assert not computations.queues._held


def test_a_waiting_computation_of_a_disconnected_client_is_never_begun(computations: Computations, port: int) -> None:
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


def test_lines_end_when_their_client_disconnects_and_others_come_in_between(
    computations: Computations, port: int
) -> None:
    connection = ask(port, "/lines", {"run": "a"})
    wait_until(lambda: computations.told > 3)
    assert answer(ask(port, "/fast", {"run": "a"})) == (200, {"answer": "a"})
    connection.close()
    wait_until(lambda: computations.closed)
    told = computations.told
    time.sleep(0.1)
    assert computations.told == told and not computations.queues._held


def test_lines_beyond_the_deadline_end_with_the_reason(computations: Computations, port: int) -> None:
    computations.queues.deadline = 0.3
    with ask(port, "/lines", {"run": "a"}) as connection, connection.makefile("rb") as file:
        events = [line for line in iter(file.readline, b"0\r\n") if line.startswith(b"{")]
        assert b"This took longer than 0.3 seconds" in events[-1] and len(events) > 3
    wait_until(lambda: computations.closed)


def test_every_endpoint_but_those_of_the_list_is_queued() -> None:
    for name, view in VIEWS.items():
        routes = [route for route in view.router.routes if isinstance(route, APIRoute)]
        assert routes
        for route in routes:
            assert inspect.iscoroutinefunction(route.endpoint) == (name != "runs"), route.path
            if name != "runs":
                assert "run" in inspect.signature(route.endpoint).parameters["ask"].annotation.model_fields


# --- the studio itself ------------------------------------------------------------------------------------------------


@contextmanager
def occupied(queues: Queues, run: str) -> Iterator[Endless]:
    """A slow computation of a model is on its way."""
    own = Computations()
    own.app.state.queues = queues
    with serving(own.app) as port:
        connection = ask(port, "/slow", {"run": run})
        wait_until(own.slow.began.is_set)
        try:
            yield own.slow
        finally:
            own.slow.let_go.set()
            answer(connection)


def test_neither_list_nor_page_nor_other_models_wait_for_a_model(runs: Path) -> None:
    """Also if more requests wait for it than a server has threads for what is not queued."""
    queues = Queues(places=60)
    with Studio(runs, queues=queues).running() as studio, occupied(queues, "gpt"):
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


def test_cancelled_beams_are_not_computed(runs: Path) -> None:
    with Studio(runs).running() as studio:
        question = {"run": "gpt", "beam": 16, "n_best": 16, "max_tokens": 100}

        def search(text: str) -> socket.socket:
            return ask(studio.port, "/api/beam", {**question, "text": text}, studio.token)

        assert answer(search("warm"))[0] == 200
        began = time.perf_counter()
        assert answer(search("measured"))[0] == 200
        one = time.perf_counter() - began
        connections = [search(f"cancelled {number}") for number in range(15)]
        time.sleep(one / 3)
        for connection in connections:
            connection.close()
        began = time.perf_counter()
        assert answer(search("wanted"))[0] == 200
        assert time.perf_counter() - began < 5 * one + 0.5  # and not sixteen times as long


def test_a_full_queue_is_said_in_the_page(window: Window, runs: Path) -> None:
    queues = Queues(places=1)
    with Studio(runs, queues=queues).running() as studio, window.showing(studio) as opened:
        opened.refusals = True
        page = busy_page(opened, queues)
        page.get_by_text("1 requests already wait for this model. Try again in a moment.").wait_for()
        opened.again()
        page.locator(".written").first.wait_for()


def busy_page(opened: StudioPage, queues: Queues) -> Any:
    with occupied(queues, "gpt"):
        return opened.open("write", run="gpt", text="The class")
