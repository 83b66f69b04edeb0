"""The studio in a notebook: an iframe of a server, or a static plot."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest

import seqloom
import seqloom.studio
from seqloom.core.errors import UsageError
from seqloom.studio import notebook


@pytest.fixture(autouse=True)
def stop_servers() -> Any:
    """Stop the servers after each test."""
    yield
    for serving in notebook._SERVERS.values():
        serving.server.should_exit = True
    notebook._SERVERS.clear()


def source(embedded: Any) -> str:
    match = re.search(r'<iframe src="([^"]*)"', embedded._repr_html_())
    assert match is not None
    return unescape(match[1])


def test_run_is_shown_in_iframe(runs: Path) -> None:
    embedded = seqloom.studio.show(runs / "gpt", view="heads", text='a "class" <b>', layer=2)
    address = source(embedded)
    view, _, query = urlsplit(address).fragment.partition("?")
    parameters = {name: values[0] for name, values in parse_qs(query).items()}
    assert view == "/heads"
    assert (parameters["run"], parameters["text"], parameters["layer"]) == ("gpt", 'a "class" <b>', "2")
    assert "<b>" not in embedded._repr_html_()
    with urlopen(address.partition("#")[0]) as answer:
        assert b"seqloom studio" in answer.read()
        assert "frame-ancestors http://localhost:*" in answer.headers["content-security-policy"]


def test_repr_hides_token(runs: Path) -> None:
    embedded = seqloom.studio.show(runs / "gpt")
    assert "token" not in repr(embedded)


def test_folder_has_one_server(runs: Path) -> None:
    first, second = seqloom.studio.show(runs), seqloom.studio.show(runs, view="walk", run="lm-lstm")
    assert urlsplit(source(first)).netloc == urlsplit(source(second)).netloc
    model = seqloom.load(runs / "lm-lstm")
    assert "run=lm-lstm" in source(seqloom.studio.show(model, view="cell", text="The"))


def test_notebook_may_embed_the_page(runs: Path, browser: Any) -> None:
    """A page on another local port, such as that of a notebook, may embed the studio."""
    embedded = seqloom.studio.show(runs, view="walk", run="lm-elman", text="The class")
    errors: list[str] = []
    with serve_page(f"<!doctype html><title>notebook</title><body>{embedded._repr_html_()}</body>") as address:
        page = browser.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        page.frame_locator("iframe").locator(".walk-title").wait_for(timeout=20_000)
        page.close()
    assert errors == []


@contextmanager
def serve_page(html: str) -> Iterator[str]:
    """Serve a page on another port."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *words: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("run", "view", "parameters", "expected"),
    [
        ("translate-gru", "alignment", {"text": "Sunday"}, "data:image/png;base64,"),
        ("gpt", "heads", {"text": "The class"}, "data:image/png;base64,"),
        ("lm-lstm", "cell", {"text": "The class", "layer": 1}, "data:image/png;base64,"),
        ("lm-lstm", "runs", {}, "data:image/png;base64,"),
        ("lm-lstm", "walk", {"text": "a <b>", "word": 2}, "<table"),
    ],
)
def test_static_view_needs_no_server(
    runs: Path, run: str, view: str, parameters: dict[str, Any], expected: str
) -> None:
    html = seqloom.studio.show(runs / run, view=view, static=True, **parameters)._repr_html_()
    assert expected in html
    assert "<iframe" not in html
    assert notebook._SERVERS == {}
    assert "a <b>" not in html


@pytest.mark.parametrize(
    ("run", "view", "alternatives"),
    [
        ("translate-gru", "alignment", [{"target": "lundi"}, {"by": "tokens"}, {"end": "yes"}]),
        ("translate-transformer", "alignment", [{"target": "lundi"}, {"layer": 1, "head": 2}, {"layer": 1}]),
        ("translate-transformer", "heads", [{"target": "lundi", "part": "cross"}, {"layer": 2, "head": "mean"}]),
    ],
)
def test_static_view_uses_parameters(runs: Path, run: str, view: str, alternatives: list[dict[str, Any]]) -> None:
    """Different layers, heads and translations give different plots."""
    plain: dict[str, Any] = {"text": "Sunday", "target": "dimanche matin"}
    parameter_sets = [plain, *({**plain, **changes} for changes in alternatives)]
    pages = [
        seqloom.studio.show(runs / run, view=view, static=True, **parameters).html for parameters in parameter_sets
    ]
    assert len(set(pages)) == len(parameter_sets)
    if run == "translate-transformer":
        with pytest.raises(UsageError, match="99"):
            seqloom.studio.show(runs / run, view=view, static=True, layer=1, head=99, **plain)


def test_invalid_views_are_rejected(runs: Path) -> None:
    with pytest.raises(UsageError, match="no view 'head'"):
        seqloom.studio.show(runs, view="head")
    with pytest.raises(UsageError, match="for beam, leave static out"):
        seqloom.studio.show(runs / "gpt", view="beam", static=True)
    with pytest.raises(UsageError, match="needs a text"):
        seqloom.studio.show(runs / "gpt", view="heads", static=True)
