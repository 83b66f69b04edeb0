"""Runs that are trained once for all tests of the studio, a client that asks it, and a browser that opens it."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from seqloom import train_recipe
from seqloom.studio.server import Studio, make_app
from seqloom.studio.shelf import Shelf

TOKEN = "token-of-the-tests"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HELD_OUT = ("data.dev=200", "data.test=200")
PEOPLE = ("data.train=1500", *HELD_OUT)
CLDR = (
    "data.train=4000",
    *HELD_OUT,
    "tokenizer.size=400",
    "batch.dev_pairs=64",
    "train.epochs=null",
    "train.evaluate_every=null",
)
SMALL_LM = ("train.epochs=null", "train.steps=60", "batch.rows=8", "model.hidden=24", "model.embedding=12")
# Name of the run → recipe and what makes it small. All of their data is made on the spot.
RUNS: dict[str, tuple[str, ...]] = {
    "lm-lstm": ("lm-char-lstm", *SMALL_LM, "model.layers=2"),
    "lm-elman": ("lm-char-lstm", *SMALL_LM, "model.layers=1", "model.cell=elman"),
    "gpt": (
        "gpt-pydocs",
        "train.epochs=null",
        "train.steps=40",
        "model.width=32",
        "model.layers=2",
        "tokenizer.size=400",
    ),
    "bert": ("bert-pydocs", "train.epochs=null", "train.steps=20", "model.width=32", "tokenizer.size=400"),
    "translate-gru": ("translate-cldr", *CLDR, "train.steps=60", "model.hidden=32"),
    "translate-transformer": ("translate-cldr-transformer", *CLDR, "train.steps=60", "model.width=32"),
    "tagger": ("tag-people", *PEOPLE, "train.epochs=null", "train.steps=50", "model.encoder.hidden=16"),
    "hmm-tagger": ("hmm-tag-people", *PEOPLE),
    "classifier": ("languages", *HELD_OUT, "train.epochs=null", "train.steps=30", "model.encoder.filters=8"),
    "words": ("word2vec-pydocs", "train.epochs=1", "model.width=16"),
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder of small trained runs. Workers that come at the same time train one each, then wait for the others'."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "studio-runs"
    folder.mkdir(exist_ok=True)
    for how in (fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_EX):
        for name in RUNS:
            _train(name, folder, how)
    return folder


def _train(name: str, folder: Path, how: int) -> None:
    """Unless it is there, or somebody else is at it and we need not wait."""
    recipe, *overrides = RUNS[name]
    with (folder / f".{name}").open("w") as lock, suppress(BlockingIOError):
        fcntl.flock(lock, how)
        if not (folder / name).exists():
            train_recipe(recipe, *overrides, out=folder / name)


@pytest.fixture(scope="session")
def shelf(runs: Path) -> Shelf:
    return Shelf(runs)


@pytest.fixture(scope="session")
def client(shelf: Shelf) -> TestClient:
    """Asks the application itself, with the token."""
    headers = {"authorization": f"Bearer {TOKEN}", "host": "127.0.0.1"}
    return TestClient(make_app(shelf, TOKEN), base_url="http://127.0.0.1", headers=headers)


@pytest.fixture(scope="session")
def studio(runs: Path) -> Iterator[Studio]:
    """A server at a free port."""
    with Studio(runs, port=None).running() as serving:
        yield serving


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium of the system."""
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        assert os.environ.get("CI") != "true", "in CI the studio must be seen in a browser: make browser"
        pytest.skip("no browser to open the studio with; on Debian and Ubuntu: apt install chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def window(browser: Any) -> "Window":
    return Window(browser)


@pytest.fixture
def studio_page(window: "Window", studio: Studio) -> Iterator["StudioPage"]:
    """In the end nothing may have gone wrong in the page, and nobody else may have been asked."""
    with window.showing(studio) as opened:
        yield opened
    assert opened.errors == []
    assert opened.strangers == []


class Window:
    """One page for one test after another, empty between them: another one costs a browser a second."""

    def __init__(self, browser: Any) -> None:
        self.browser, self.page = browser, None

    @contextmanager
    def showing(self, studio: Studio) -> Iterator["StudioPage"]:
        page, self.page = self.page or self._new(), None
        opened = StudioPage(page, studio)
        yield opened
        opened.leave()
        self.page = page  # unless it could not be left

    def _new(self) -> Any:
        return self.browser.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True).new_page()


class StudioPage:
    """A browser page on the studio: opens views by their address, and keeps what went wrong."""

    def __init__(self, page: Any, studio: Studio) -> None:
        self.page, self.studio = page, studio
        self.listening: list[tuple[str, Any]] = []
        self.errors: list[str] = []
        self.strangers: list[str] = []
        self.refusals = False  # set where questions are meant to be refused: browsers say so in the console
        self.on("console", self._said)
        self.on("pageerror", lambda error: self.errors.append(str(error)))
        self.on("request", self._asked)

    def on(self, event: str, act: Any) -> None:
        """As `page.on`, until the page is left."""
        self.page.on(event, act)
        self.listening.append((event, act))

    def leave(self) -> None:
        """Nothing stays behind: what was kept, who listens, what was to be answered otherwise."""
        if self.page.url.startswith("http"):
            self.page.evaluate("() => localStorage.clear()")
        self.page.goto("about:blank")
        self.page.unroute_all(behavior="ignoreErrors")
        for event, act in self.listening:
            self.page.remove_listener(event, act)

    def _said(self, message: Any) -> None:
        refused = "the server responded with a status of 4" in message.text
        if message.type == "error" and not (refused and self.refusals):
            self.errors.append(message.text)

    def _asked(self, request: Any) -> None:
        own = f"http://127.0.0.1:{self.studio.port}/"
        if not request.url.startswith((own, "data:", f"blob:{own}")):
            self.strangers.append(request.url)

    def open(self, view: str, **parameters: str | list[str]) -> Any:
        """The view at its address, once it has drawn itself; gives Playwright's page."""
        self.page.goto("about:blank")
        self.page.goto(self.studio.address(view, **parameters))
        self.page.wait_for_selector(f'#main[data-state="open"] .view[data-view="{view}"]')
        return self.page

    def move(self, address: str) -> None:
        """To another address of the page that is open; back once its view has drawn itself."""
        self.page.evaluate(
            """address => new Promise(done => {
                addEventListener("hashchange", done, { once: true });
                location.hash = address;
            })""",
            address,
        )
        self.page.wait_for_selector('#main[data-state="open"]')

    def table(self, figure: str) -> list[list[str]]:
        """The text twin of a figure: its rows, the names of the columns first."""
        frame = self.page.locator(f'figure[data-figure="{figure}"]').first
        button = frame.get_by_role("button", name="Table", exact=True)
        if button.get_attribute("aria-pressed") != "true":
            button.click()
        frame.locator(".twin table").wait_for()
        rows: list[list[str]] = frame.locator(".twin table").evaluate(
            "table => [...table.rows].map(row => [...row.cells].map(cell => cell.textContent))"
        )
        return rows
