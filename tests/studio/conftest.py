"""Fixtures: small trained runs, an HTTP client and a browser page for the studio."""

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
from seqloom.studio.run_folder import RunFolder
from seqloom.studio.server import Studio, make_app

TOKEN = "token-of-the-tests"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Clear the storage, and return whether the page is otherwise unmodified.
IS_UNCHANGED = """() => {
    localStorage.clear();
    const own = [window.fetch, window.setTimeout].every((one) => /native code/.test(String(one)));
    return own && document.documentElement.dataset.theme === "light";
}"""
HELD_OUT = ("data.dev=100", "data.test=100")
PEOPLE = ("data.train=600", *HELD_OUT)
CLDR = (
    "data.kinds=[full date, countries]",
    "data.train=2000",
    *HELD_OUT,
    "tokenizer.size=400",
    "batch.dev_pairs=8",
    "train.epochs=null",
    "train.evaluate_every=null",
    "train.steps=60",
    "train.warmup=5",
    "train.lr=0.02",
)
SMALL_LM = ("train.epochs=null", "train.steps=60", "batch.size=8", "model.hidden=24", "model.embedding=12")
# Recipe and overrides by run name. No corpus needs a download.
RUNS: dict[str, tuple[str, ...]] = {
    "lm-lstm": ("lm-char-lstm", *SMALL_LM, "model.layers=2"),
    "lm-elman": ("lm-char-lstm", *SMALL_LM, "model.layers=1", "model.cell=elman"),
    "lm-window": ("ffnn-pydocs", "train.epochs=null", "train.steps=5", "model.hidden=16", "model.embedding=12"),
    "gpt": (
        "gpt-pydocs",
        "train.epochs=null",
        "train.steps=20",
        "model.d_model=32",
        "model.layers=2",
        "tokenizer.size=400",
    ),
    "bert": ("bert-pydocs", "train.epochs=null", "train.steps=20", "model.d_model=32", "tokenizer.size=400"),
    "translate-gru": ("translate-cldr", *CLDR, "model.hidden=32"),
    "translate-transformer": ("translate-cldr-transformer", *CLDR, "model.d_model=32"),
    "tagger": (
        "tag-people",
        *PEOPLE,
        "train.epochs=null",
        "train.evaluate_every=null",
        "train.steps=20",
        "tokenizer.min_count=5",
        "model.characters.filters=8",
        "model.encoder.hidden=16",
    ),
    "hmm-tagger": ("hmm-tag-people", *PEOPLE),
    "classifier": (
        "languages",
        "data.train=1000",
        *HELD_OUT,
        "train.epochs=null",
        "train.steps=15",
        "model.encoder.filters=8",
    ),
    "words": ("word2vec-pydocs", "train.epochs=1", "model.vector_size=16"),
    "draw": (
        "draw-mnist",
        "data={corpus: shapes, train: 32, dev: 16, test: 16, side: 16}",
        "images.channels=1",
        "model.steps=4",
        "model.hidden=16",
        "train.epochs=null",
        "train.steps=4",
        "train.warmup=2",
        "batch.size=16",
    ),
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Train the small runs once. Parallel workers divide the work by using file locks."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "studio-runs"
    folder.mkdir(exist_ok=True)
    for how in (fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_EX):
        for name in RUNS:
            _train(name, folder, how)
    return folder


def _train(name: str, folder: Path, how: int) -> None:
    """Train a run unless it exists or another worker holds its lock. Do not wait for the lock."""
    recipe, *overrides = RUNS[name]
    with (folder / f".{name}").open("w") as lock, suppress(BlockingIOError):
        fcntl.flock(lock, how)
        if not (folder / name).exists():
            train_recipe(recipe, *overrides, out=folder / name)


@pytest.fixture(scope="session")
def run_folder(runs: Path) -> RunFolder:
    return RunFolder(runs)


@pytest.fixture(scope="session")
def client(run_folder: RunFolder) -> TestClient:
    """A client of the ASGI application that sends the token."""
    headers = {"authorization": f"Bearer {TOKEN}", "host": "127.0.0.1"}
    return TestClient(make_app(run_folder, TOKEN), base_url="http://127.0.0.1", headers=headers)


@pytest.fixture(scope="session")
def studio(runs: Path) -> Iterator[Studio]:
    """A server on an unused port."""
    with Studio(runs, port=None).running() as serving:
        yield serving


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        assert os.environ.get("CI") != "true", "CI requires a browser for the studio tests: make browser"
        pytest.skip("no browser found; on Debian and Ubuntu: apt install chromium")
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
    """A page on which no errors and no requests to other hosts may occur."""
    with window.showing(studio) as opened:
        yield opened
    assert opened.errors == []
    assert opened.foreign_requests == []


class Window:
    """A browser page that consecutive tests reuse, which saves about a second per test."""

    def __init__(self, browser: Any) -> None:
        self.browser, self.page = browser, None

    @contextmanager
    def showing(self, studio: Studio) -> Iterator["StudioPage"]:
        page, self.page = self.page or self._new(), None
        opened = StudioPage(page, studio)
        yield opened
        opened.leave()
        self.page = page  # not reached if the test failed

    def _new(self) -> Any:
        return self.browser.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True).new_page()


class StudioPage:
    """A browser page that opens views of the studio and records errors."""

    def __init__(self, page: Any, studio: Studio) -> None:
        self.page, self.studio = page, studio
        self.listeners: list[tuple[str, Any]] = []
        self.errors: list[str] = []
        self.foreign_requests: list[str] = []
        self.refusals = False  # True if the test expects 4xx responses, which browsers report as errors
        if page.url.startswith("http") and not page.url.startswith(self.origin):
            page.goto("about:blank")  # a page of another studio may still be loading
        self.on("console", self._record_error)
        self.on("pageerror", lambda error: self.errors.append(str(error)))
        self.on("request", self._record_request)

    def on(self, event: str, handler: Any) -> None:
        """Like `page.on`, but only until `leave`."""
        self.page.on(event, handler)
        self.listeners.append((event, handler))

    def leave(self) -> None:
        """Remove storage, listeners and routes. If the page is unmodified, it stays open for the next test."""
        if self.page.url.startswith("http") and not self.page.evaluate(IS_UNCHANGED):
            self.page.goto("about:blank")
        self.page.unroute_all(behavior="ignoreErrors")
        for event, handler in self.listeners:
            self.page.remove_listener(event, handler)

    def _record_error(self, message: Any) -> None:
        refused = "the server responded with a status of 4" in message.text
        if message.type == "error" and not (refused and self.refusals):
            self.errors.append(message.text)

    @property
    def origin(self) -> str:
        """The origin of this studio."""
        return f"http://127.0.0.1:{self.studio.port}/"

    def _record_request(self, request: Any) -> None:
        if not request.url.startswith((self.origin, "data:", f"blob:{self.origin}")):
            self.foreign_requests.append(request.url)

    def open(self, view: str, **parameters: str | list[str]) -> Any:
        """Open a view, wait until it has been drawn, and return the Playwright page."""
        address = self.studio.address(view, **parameters)
        if self.page.url.startswith(self.origin):
            self.move(f"#{address.partition('#')[2]}")
        else:
            self.page.goto(address)
        self.page.wait_for_selector(f'#main[data-state="open"] .view[data-view="{view}"]')
        return self.page

    def reload(self) -> None:
        """Load the current address again."""
        self.move(f"#{self.page.url.partition('#')[2]}&")  # a different address with the same parameters

    def move(self, address: str) -> None:
        """Navigate to another address on the open page, and wait until its view has been drawn."""
        self.page.evaluate(
            """address => new Promise(done => {
                addEventListener("hashchange", done, { once: true });
                location.hash = address;
            })""",
            address,
        )
        self.page.wait_for_selector('#main[data-state="open"]')

    def table(self, figure: str) -> list[list[str]]:
        """Return the table of a figure, with the column names as the first row."""
        frame = self.page.locator(f'figure[data-figure="{figure}"]').first
        button = frame.get_by_role("button", name="Table", exact=True)
        if button.get_attribute("aria-pressed") != "true":
            button.click()
        frame.locator(".figure-table table").wait_for()
        rows: list[list[str]] = frame.locator(".figure-table table").evaluate(
            "table => [...table.rows].map(row => [...row.cells].map(cell => cell.textContent))"
        )
        return rows
