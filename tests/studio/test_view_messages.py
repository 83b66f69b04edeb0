"""Error messages, default runs and example texts of the views."""

import re
from typing import Any

import pytest
from tests.studio.conftest import StudioPage

from seqloom.inspect.views.texts import unknown_notes
from seqloom.studio.views.runs import example_texts, training_domain

expect: Any = pytest.importorskip("playwright.sync_api").expect
EMPTY = "The text is empty. Give at least one word."


@pytest.fixture
def page(studio_page: StudioPage) -> StudioPage:
    studio_page.refusals = True
    return studio_page


def test_error_about_too_few_texts_disappears_when_corrected(page: StudioPage) -> None:
    view_page = page.open("vectors", run="lm-lstm", kind="sentences", lines="one\ntwo\nthree")
    expect(view_page.locator(".notice")).to_contain_text("at least 4 points; got 3")
    assert not view_page.locator("figure[data-figure=vectors]").is_visible()
    box = view_page.get_by_role("textbox", name="Texts", exact=True)
    assert box.input_value() == "one\ntwo\nthree"
    assert view_page.get_by_label("Run", exact=True).input_value() == "lm-lstm"
    box.fill("one\ntwo\nthree\nfour\nfive")
    view_page.get_by_role("button", name="Project").click()
    expect(view_page.get_by_text("5 texts, ")).to_be_visible()
    expect(view_page.locator(".notice .problem")).to_have_count(0)


def test_analogy_error_is_shown_in_its_panel(page: StudioPage) -> None:
    view_page = page.open("vectors", run="words", a="class", b="object", c="nosuchword")
    expect(view_page.locator("[data-panel=analogy] .problem")).to_contain_text("nosuchword")
    expect(view_page.locator("[data-panel=analogy] .near")).to_have_count(0)


@pytest.mark.parametrize(
    ("view", "run", "label"),
    [
        ("write", "translate-gru", "Text to translate"),
        ("write", "bert", "Text with [MASK] tokens"),
        ("alignment", "translate-gru", "Text"),
        ("heads", "gpt", "Text"),
        ("beam", "translate-gru", "Text to translate"),
        ("cell", "lm-lstm", "Text"),
        ("gradients", "lm-lstm", "Text"),
        ("understand", "tagger", "Sentence"),
        ("understand", "classifier", "Text"),
        ("walk", "tagger", "Sentence"),
    ],
)
def test_cleared_text_remains_empty(page: StudioPage, view: str, run: str, label: str) -> None:
    """If the text is cleared, it is not replaced by the default text, and outdated figures are dimmed."""
    view_page = page.open(view, run=run)
    assert view_page.locator(".notice .problem").count() == 0
    box = view_page.get_by_role("textbox", name=label, exact=True)
    assert box.input_value()
    box.fill("")
    box.press("Control+Enter")
    expect(view_page.locator(".notice .problem")).to_have_text(EMPTY)
    pale = view_page.locator(".figure:visible").first
    if pale.count():
        assert pale.evaluate("node => getComputedStyle(node.closest('.answer') ?? node).opacity") == "0.25"
    page.reload()
    expect(view_page.locator(".notice .problem")).to_have_text(EMPTY)
    box.fill("The class")
    box.press("Control+Enter")
    expect(view_page.locator(".notice .problem")).to_have_count(0)
    expect(view_page.locator(".failed")).to_have_count(0)


def test_every_view_opens_its_default_run(page: StudioPage) -> None:
    def first(view: str) -> str:
        value: str = page.open(view).get_by_label("Run", exact=True).input_value()
        return value

    assert first("write") == first("walk") == first("beam") == "translate-gru"
    assert first("heads") == "translate-transformer"
    assert first("cell") == first("gradients") == "lm-lstm"
    assert first("vectors") == "words"
    assert first("understand") == "tagger"


def test_unknown_names_are_reported(page: StudioPage) -> None:
    view_page = page.open("cell", run="nosuch")
    expect(view_page.locator(".problem")).to_have_text("There is no run “nosuch”. Showing another run.")
    picker = view_page.get_by_label("Run", exact=True)
    assert picker.input_value() == "lm-lstm"
    picker.select_option("lm-elman")
    expect(view_page.locator(".problem")).to_have_count(0)
    view_page = page.open("alignment", run="tagger")
    expect(view_page.locator(".problem")).to_contain_text("“tagger” does not support this view")
    page.move("#/nosuch")
    expect(view_page.locator(".problem")).to_have_text("Unknown view “nosuch”. Showing the list of runs.")


@pytest.mark.parametrize("view", ["write", "alignment", "beam", "heads", "walk"])
def test_example_text_is_inserted_when_clicked(page: StudioPage, view: str) -> None:
    view_page: Any = page.open(view, run="translate-transformer")
    expect(view_page.locator(".examples")).to_contain_text("Trained on dates")
    offered = view_page.locator(".examples button").nth(1)
    offered.click()
    text = offered.inner_text()
    expect(view_page.locator(".textbox .text").first).to_have_value(text)
    expect(view_page).to_have_url(re.compile("text="))


def test_examples_match_training_kinds() -> None:
    recipe = {"task": "translate", "data": {"corpus": "cldr", "source": "en", "kinds": ["full date", "countries"]}}
    assert example_texts(recipe) == ["Sunday, November 15, 2026", "Italy, Spain, and Japan"]
    assert training_domain(recipe) == "dates, lists of countries"
    recipe["data"] = {"corpus": "cldr", "source": "de", "kinds": ["number"]}
    assert example_texts(recipe) == ["achthundertzweiundvierzig"] and training_domain(recipe) == "numbers in words"
    assert example_texts({"task": "translate", "data": {"corpus": "own"}})[0] and training_domain({"data": {}}) is None


def test_further_unknown_characters_are_counted() -> None:
    assert "'h' and 1 more of the text" in unknown_notes("abcdefghi", "text")[0]
    assert "more" not in unknown_notes("abcdefgh", "text")[0]
