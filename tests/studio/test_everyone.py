"""For people: no serious violation of accessibility in any view, in either theme; keys reach what pointers reach."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.studio.conftest import StudioPage

from seqloom.studio.views import VIEWS

FOR: dict[str, dict[str, str | list[str]]] = {
    "runs": {"runs": ["lm-lstm", "lm-elman"]},
    "write": {"run": "lm-lstm"},
    "alignment": {"run": "translate-gru", "other": "translate-transformer"},
    "heads": {"run": "translate-transformer"},
    "beam": {"run": "translate-transformer"},
    "cell": {"run": "lm-lstm"},
    "gradients": {"run": "lm-lstm"},
    "vectors": {"run": "words"},
    "walk": {"run": "translate-transformer"},
    "understand": {"run": "tagger"},
}


def axe_source() -> str:
    package = pytest.importorskip("axe_playwright_python")
    return (Path(package.__file__).parent / "axe.min.js").read_text("utf-8")


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_for_everybody(studio_page: StudioPage, view: str) -> None:
    studio_page.page.goto("about:blank")  # the first Tab of a page that was just loaded
    page = studio_page.open(view, **FOR[view])
    check_keyboard(page)
    check_axe(page)
    check_twins(page)


def check_axe(page: Any) -> None:
    """No serious violation by axe-core, which is put into the page from outside, past the policy that keeps scripts
    out."""
    for theme in ("light", "dark"):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        found = violations(page, *([] if theme == "light" else ["color-contrast"]))  # nothing else hangs on a theme
        assert found == [], theme


def violations(page: Any, *rules: str) -> list[str]:
    """Serious ones, by all rules or by some."""
    session = page.context.new_cdp_session(page)
    if page.evaluate("() => !window.axe"):
        session.send("Runtime.evaluate", {"expression": f"{axe_source()}; 1"})
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    ask = f"axe.run(document, {json.dumps(options)}).then(found => JSON.stringify(found.violations))"
    told = session.send("Runtime.evaluate", {"expression": ask, "awaitPromise": True})
    return [
        f"{one['id']} ({one['impact']}): {node['target']} {node['failureSummary']}"
        for one in json.loads(told["result"]["value"])
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"][:3]
    ]


def check_twins(page: Any) -> None:
    """Every picture has a twin of text."""
    page.locator("main figure").first.wait_for()
    figures = page.locator("main figure")
    assert figures.count() >= 1
    assert page.locator("main canvas:not(figure canvas)").count() == 0
    for i in range(min(figures.count(), 8)):
        figures.nth(i).get_by_role("button", name="Table", exact=True).click()
        assert figures.nth(i).locator(".twin table tbody tr").count() >= 1, figures.nth(i).get_attribute("data-figure")


def check_keyboard(page: Any) -> None:
    """Nothing that can be clicked is out of reach of Tab, and what has the focus shows it."""
    unreachable = page.evaluate(
        """() => [...document.querySelectorAll("main :is(button, select, input, textarea, a[href], summary)")]
            .filter(node => node.tabIndex < 0 && !node.disabled && node.getClientRects().length)
            .filter(node => !node.matches("[role=radio], [role=option]"))  // arrows move among these
            .map(node => node.outerHTML.slice(0, 200))"""
    )
    assert unreachable == []
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"


def test_the_theme_is_kept(studio_page: StudioPage) -> None:
    page = studio_page.open("runs")
    before = page.evaluate("() => document.documentElement.dataset.theme")
    page.get_by_role("button", name="Use the dark theme").click()
    page.reload()
    page.locator(".view").wait_for()
    assert (before, page.evaluate("() => document.documentElement.dataset.theme")) == ("light", "dark")
