"""Accessibility of all views in both themes, tested with axe-core and the keyboard."""

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
    "images": {"run": "draw"},
}


def axe_source() -> str:
    package = pytest.importorskip("axe_playwright_python")
    return (Path(package.__file__).parent / "axe.min.js").read_text("utf-8")


@pytest.mark.parametrize("view", VIEWS)
def test_view_is_accessible(studio_page: StudioPage, view: str) -> None:
    studio_page.page.goto("about:blank")  # start with the first Tab of a new page
    page = studio_page.open(view, **FOR[view])
    check_keyboard(page)
    check_axe(page)
    check_tables(page)


def check_axe(page: Any) -> None:
    """axe-core reports no serious violations. It is injected in spite of the content security policy."""
    for theme in ("light", "dark"):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        rules = [] if theme == "light" else ["color-contrast"]  # only contrast depends on the theme
        problems = violations(page, *rules)
        assert problems == [], theme


def violations(page: Any, *rules: str) -> list[str]:
    """Return serious violations of all or some rules."""
    session = page.context.new_cdp_session(page)
    if page.evaluate("() => !window.axe"):
        session.send("Runtime.evaluate", {"expression": f"{axe_source()}; 1"})
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    expression = f"axe.run(document, {json.dumps(options)}).then(found => JSON.stringify(found.violations))"
    response = session.send("Runtime.evaluate", {"expression": expression, "awaitPromise": True})
    return [
        f"{violation['id']} ({violation['impact']}): {node['target']} {node['failureSummary']}"
        for violation in json.loads(response["result"]["value"])
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"][:3]
    ]


def check_tables(page: Any) -> None:
    """Every figure has a table."""
    page.locator("main figure").first.wait_for()
    figures = page.locator("main figure")
    assert figures.count() >= 1
    assert page.locator("main canvas:not(figure canvas)").count() == 0
    for i in range(min(figures.count(), 8)):
        figures.nth(i).get_by_role("button", name="Table", exact=True).click()
        assert figures.nth(i).locator(".figure-table table tbody tr").count() >= 1, figures.nth(i).get_attribute(
            "data-figure"
        )


def check_keyboard(page: Any) -> None:
    """All controls can be reached with Tab, and the focus is visible."""
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


def test_theme_is_stored(studio_page: StudioPage) -> None:
    page = studio_page.open("runs")
    before = page.evaluate("() => document.documentElement.dataset.theme")
    page.get_by_role("button", name="Use the dark theme").click()
    page.reload()
    page.locator(".view").wait_for()
    assert (before, page.evaluate("() => document.documentElement.dataset.theme")) == ("light", "dark")
