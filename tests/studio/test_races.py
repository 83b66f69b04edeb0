"""Late responses are ignored, abandoned computations stop, and redrawing keeps the focus."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.studio.conftest import StudioPage

from seqloom.inspect.views.points import Layout
from seqloom.studio.run_folder import RunFolder
from seqloom.studio.views import vectors

MAX_STEPS = 1_000


class Late:
    """A route that delays the first request to a path until `arrive` is called."""

    def __init__(self, page: Any, path: str) -> None:
        self.page, self.held, self.path = page, list[Any](), f"**/api/{path}"
        page.route(self.path, self._asked)

    def _asked(self, route: Any) -> None:
        if self.held:
            route.continue_()
        else:
            self.held.append(route)

    def arrive(self) -> None:
        """Deliver the delayed response, and wait until the page has processed it."""
        with self.page.expect_response(self.path) as answer:
            self.held[0].continue_()
        answer.value.finished()
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def submit_text(page: Any, label: str, text: str) -> None:
    box = page.get_by_label(label, exact=True)
    box.fill(text)
    box.press("Control+Enter" if box.evaluate("node => node.tagName") == "TEXTAREA" else "Enter")


@pytest.mark.parametrize(
    ("view", "run", "path", "figure"),
    [("cell", "lm-lstm", "cell", "cell-units"), ("gradients", "lm-elman", "gradients", "gradient-tokens")],
)
def test_outdated_response_is_ignored(studio_page: StudioPage, view: str, run: str, path: str, figure: str) -> None:
    page = studio_page.open(view, run=run, text="one")
    late = Late(page, path)
    submit_text(page, "Text", "abcd")
    submit_text(page, "Text", "wxyz")
    page.locator("svg.shaded", has_text="y").first.wait_for()
    late.arrive()
    rows = studio_page.table(figure)  # tokens are columns in one table and rows in the other table
    assert ["</s>", "w", "x", "y"] in (rows[0][1:5], [row[0] for row in rows[1:5]])
    assert page.locator(".busy").count() == 0


def test_outdated_mask_prediction_is_ignored(studio_page: StudioPage) -> None:
    page = studio_page.open("write", run="bert", text="the [MASK] statement")
    late = Late(page, "write/fill")
    label = "Text with [MASK] tokens"
    submit_text(page, label, "a late [MASK]")
    submit_text(page, label, "a newer [MASK] of all")
    page.locator(".written", has_text="newer").wait_for()
    late.arrive()
    assert "newer" in page.locator(".written").inner_text()
    assert page.get_by_label(label).input_value() == "a newer [MASK] of all"


def test_card_shows_the_last_selected_run(studio_page: StudioPage) -> None:
    page = studio_page.open("runs", runs="lm-lstm")
    late = Late(page, "runs/card")
    with page.expect_request(late.path):
        page.get_by_label("Show the curves of gpt", exact=True).check()
    page.get_by_label("Show the curves of bert", exact=True).check()
    page.get_by_role("heading", name="Run card of bert").wait_for()
    late.arrive()
    assert page.get_by_role("heading", name="Run card of bert").count() == 1


def test_outdated_tour_response_is_ignored(studio_page: StudioPage) -> None:
    page = studio_page.open("walk", run="lm-lstm", text="one", stage="tokens")
    late = Late(page, "walk")
    submit_text(page, "Sentence", "abc")
    submit_text(page, "Sentence", "xyz")
    page.locator(".walk-stage", has_text="z").first.wait_for()
    late.arrive()
    assert page.get_by_label("Input token").inner_text().split()[-1] == "z"
    page.get_by_role("button", name="Next →").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: "stage=tokens" not in url)
    assert page.evaluate("() => document.activeElement.textContent") == "Next →"


def test_old_tour_is_inactive_while_loading(studio_page: StudioPage) -> None:
    """Buttons, stages, tokens and arrow keys of the previous walk have no effect."""
    page = studio_page.open("walk", run="lm-lstm", text="one", stage="tokens")
    late = Late(page, "walk")
    submit_text(page, "Sentence", "abc")
    page.locator(".walk[aria-busy]").wait_for()
    before = page.url
    for selector in (".walk-quick button", ".walk-rail button", ".walk-buttons .primary", ".tile"):
        page.locator(selector).last.click()
        page.locator(selector).last.press("Enter")
    page.locator(".walk-title").click()
    page.keyboard.press("ArrowRight")
    assert page.url == before and page.locator(".walk-title").inner_text() == "The text is split into tokens"
    page.get_by_label("Run", exact=True).select_option("gpt")  # hides the walk until the new walk is loaded
    page.locator(".walk:not([aria-busy])").wait_for()
    late.arrive()
    assert "run=gpt" in page.url and page.get_by_label("Head").count() == 1
    page.get_by_role("button", name="Next →").first.click()
    page.wait_for_url(lambda url: "stage=tokens" in url)


def test_control_keeps_focus_after_its_value_changes(studio_page: StudioPage) -> None:
    page = studio_page.open("alignment", run="translate-transformer")
    page.get_by_label("Head", exact=True).focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_url(lambda url: "head=" in url)
    page.locator("figure h2", has_text="head 1").wait_for()
    assert page.evaluate("() => document.activeElement.tagName") == "SELECT"
    assert page.evaluate("() => document.activeElement.labels[0].textContent") == "Head"


@pytest.mark.parametrize(
    ("view", "run", "control", "key", "fragment"),
    [
        ("understand", "tagger", "All tags", "Space", "all=1"),
        ("understand", "classifier", "Gradient × input", "ArrowRight", "kind="),
        ("vectors", "words", "Points", "ArrowUp", "n=1000"),
        ("vectors", "classifier", "Tokens", "ArrowRight", "kind=sentences"),
    ],
)
def test_focus_is_kept_when_the_view_is_redrawn(
    studio_page: StudioPage, view: str, run: str, control: str, key: str, fragment: str
) -> None:
    page = studio_page.open(view, run=run)
    before = page.get_by_label(control, exact=True)
    before.focus()
    kind = before.evaluate("node => node.type")
    path = "**/api/vectors" if view == "vectors" else "**/api/understand/*"
    with page.expect_response(path):
        page.keyboard.press(key)
    page.wait_for_function("fragment => location.hash.includes(fragment)", arg=fragment)
    page.wait_for_function("() => !document.querySelector('.busy')")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate("() => document.activeElement.type") == kind
    assert page.evaluate("() => document.activeElement.isConnected")


def test_abandoned_tsne_stops(studio_page: StudioPage, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [0]

    def slowly(points: Any, count: int, **_: Any) -> Iterator[Layout]:
        for step in range(1, 10_000):
            frames[0] += 1
            time.sleep(0.02)
            yield Layout(step, 10_000, np.zeros((count, 2), np.float32))

    monkeypatch.setattr(vectors, "project_tsne", slowly)
    page = studio_page.open("runs")
    page.evaluate("() => { location.hash = '#/vectors?run=words&n=500&map=tsne&perplexity=17'; }")
    page.get_by_text("t-SNE, step").wait_for()
    page.get_by_label("PCA").check()
    before = 0
    while before < frames[0] < MAX_STEPS:
        before = frames[0]
        time.sleep(0.5)
    assert before == frames[0]


def test_cache_is_invalidated_when_weights_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When training continues, cached results of the previous weights are not used for the new weights."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").touch()
    weights = tmp_path / "run" / "model.safetensors"
    weights.write_text("old")
    monkeypatch.setattr("seqloom.predict.loader.load", lambda path, device: SimpleNamespace(model=weights.read_text()))
    run_folder = RunFolder(tmp_path)

    def read_cached() -> Any:
        opened = run_folder.open("run")
        if opened.trained.model == "old":
            weights.write_text("new")
        return opened.get_or_compute("key", lambda: opened.trained.model)

    assert read_cached() == "old"
    assert read_cached() == "new"
