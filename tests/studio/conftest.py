"""Runs that are trained once for all tests of the studio, a client that asks it, and a browser that opens it."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from seqloom import train_recipe
from seqloom.studio.server import Studio, make_app
from seqloom.studio.shelf import Shelf

TOKEN = "token-of-the-tests"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CLDR = ("data.train=4000", "tokenizer.size=400", "batch.dev_pairs=64", "train.epochs=null", "train.evaluate_every=null")
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
    "tagger": ("tag-people", "data.train=1500", "train.epochs=null", "train.steps=50", "model.encoder.hidden=16"),
    "hmm-tagger": ("hmm-tag-people", "data.train=1500"),
    "classifier": ("languages", "train.epochs=null", "train.steps=30", "model.encoder.filters=8"),
    "words": ("word2vec-pydocs", "train.epochs=1", "model.width=16"),
}


def _train(folder: Path) -> None:
    for name, (recipe, *overrides) in RUNS.items():
        if not (folder / name).exists():
            train_recipe(recipe, *overrides, out=folder / name)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder of small trained runs: made by the first worker that comes, awaited by the others."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "studio-runs"
    folder.mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _train(folder)
    return folder


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


@pytest.fixture
def studio_page(browser: Any, studio: Studio) -> Iterator["StudioPage"]:
    """A page of its own. In the end nothing may have gone wrong in it, and nobody else may have been asked."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True)
    opened = StudioPage(context.new_page(), studio)
    yield opened
    context.close()
    assert opened.errors == []
    assert opened.strangers == []


class StudioPage:
    """A browser page on the studio: opens views by their address, and keeps what went wrong."""

    def __init__(self, page: Any, studio: Studio) -> None:
        self.page, self.studio = page, studio
        self.errors: list[str] = []
        self.strangers: list[str] = []
        self.refusals = False  # set where questions are meant to be refused: browsers say so in the console
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._asked)

    def _said(self, message: Any) -> None:
        refused = "the server responded with a status of 4" in message.text
        if message.type == "error" and not (refused and self.refusals):
            self.errors.append(message.text)

    def _asked(self, request: Any) -> None:
        own = f"http://127.0.0.1:{self.studio.port}/"
        if not request.url.startswith((own, "data:", f"blob:{own}")):
            self.strangers.append(request.url)

    def open(self, view: str, **parameters: str) -> Any:
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
