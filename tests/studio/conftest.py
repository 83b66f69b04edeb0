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
# Whether a page is as it was loaded, once what it kept is cleared away.
AS_IT_WAS = """() => {
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
# Name of the run → recipe and what makes it small. All of their data is made on the spot.
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
    """One page for one test after another: another one costs a browser a second, and loading it anew half of that."""

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
        if page.url.startswith("http") and not page.url.startswith(self.own):
            page.goto("about:blank")  # another studio's page may still be asking for its last parts
        self.on("console", self._said)
        self.on("pageerror", lambda error: self.errors.append(str(error)))
        self.on("request", self._asked)

    def on(self, event: str, act: Any) -> None:
        """As `page.on`, until the page is left."""
        self.page.on(event, act)
        self.listening.append((event, act))

    def leave(self) -> None:
        """Nothing stays behind: what was kept, who listens, what was to be answered otherwise, what was done to the
        page itself. The page stays, if it is as it was: the next view is opened in it, as by a link."""
        if self.page.url.startswith("http") and not self.page.evaluate(AS_IT_WAS):
            self.page.goto("about:blank")
        self.page.unroute_all(behavior="ignoreErrors")
        for event, act in self.listening:
            self.page.remove_listener(event, act)

    def _said(self, message: Any) -> None:
        refused = "the server responded with a status of 4" in message.text
        if message.type == "error" and not (refused and self.refusals):
            self.errors.append(message.text)

    @property
    def own(self) -> str:
        """How all addresses of this studio begin."""
        return f"http://127.0.0.1:{self.studio.port}/"

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.own, "data:", f"blob:{self.own}")):
            self.strangers.append(request.url)

    def open(self, view: str, **parameters: str | list[str]) -> Any:
        """The view at its address, once it has drawn itself; gives Playwright's page."""
        address = self.studio.address(view, **parameters)
        if self.page.url.startswith(self.own):
            self.move(f"#{address.partition('#')[2]}")
        else:
            self.page.goto(address)
        self.page.wait_for_selector(f'#main[data-state="open"] .view[data-view="{view}"]')
        return self.page

    def again(self) -> None:
        """The address that the page shows, opened once more."""
        self.move(f"#{self.page.url.partition('#')[2]}&")  # another one, but it says the same

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
