"""The view "How it works": stages open, values equal those of the model, sums are correct, and keys navigate."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from tests.studio.conftest import StudioPage
from tests.studio.test_accessibility import violations

import seqloom
from seqloom.inspect.views.texts import translate_pair
from seqloom.studio.views import VIEWS
from seqloom.studio.views.walk import default_text

suits = VIEWS["walk"].suits

DATE = "Sunday, November 15, 2026"
WALKED = (
    "lm-lstm",
    "lm-elman",
    "lm-window",
    "gpt",
    "bert",
    "translate-gru",
    "translate-transformer",
    "tagger",
    "classifier",
)


def title(page: Any) -> str:
    text: str = page.locator(".walk-title").inner_text()
    return text


def goto(page: Any, stage: str) -> None:
    """Open a stage by its title."""
    page.locator(".walk-rail button", has=page.get_by_text(stage, exact=True)).first.click()
    assert title(page) == stage


def values(rows: list[list[str]], name: str) -> list[float]:
    """Return the numbers of the row with this name."""
    row = next(row for row in rows[1:] if row[0] == name)
    return [float(cell) for cell in row[1:] if cell not in ("–", "")]


# --- values -----------------------------------------------------------------------------------------------------------


def test_final_probabilities_match_model(studio_page: StudioPage, runs: Path) -> None:
    page = studio_page.open("walk", run="lm-lstm", text="The class", stage="softmax")
    rows = studio_page.table("walk-softmax-1")
    loaded = seqloom.load(runs / "lm-lstm", "cpu")
    ids = [0, *loaded.tokenizer.encode("The class")]
    model = loaded.model.eval()
    with torch.no_grad():
        expected = model.step(torch.tensor([ids]), model.start(rows=1)).log_probs[0].exp()
    best, token = expected.max(dim=0)
    assert float(rows[1][3]) == pytest.approx(float(best), rel=1e-4)
    assert rows[1][0] == f"“{loaded.tokenizer.token(int(token)).replace(' ', '␣')}”"
    shares = [float(row[3]) for row in rows[1:-1]]
    assert sum(shares) == pytest.approx(1, abs=1e-4)
    powers = [float(row[2]) for row in rows[1:-1]]
    assert sum(powers) == pytest.approx(float(rows[-1][2]), rel=1e-4)
    assert title(page) == "Scores become probabilities"


def test_attention_weights_match_model(studio_page: StudioPage, runs: Path) -> None:
    page = studio_page.open(
        "walk", run="translate-transformer", text=DATE, word="3", layer="2", head="3", stage="encoder-weights"
    )
    actual = np.array([[float(cell) for cell in row[1:]] for row in studio_page.table("walk-encoder-weights-2")[1:]])
    loaded = seqloom.load(runs / "translate-transformer", "cpu")
    expected = loaded.heads(DATE).encoder.tokens.weights[1, 2]
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    shares = [float(row[3]) for row in studio_page.table("walk-encoder-weights-1")[1:-1]]
    np.testing.assert_allclose(shares, expected[2], atol=1e-5)
    assert page.get_by_label("Head").input_value() == "3"


def test_translation_scores_match_those_of_the_model(studio_page: StudioPage, runs: Path) -> None:
    page = studio_page.open("walk", run="translate-gru", text=DATE, step="1", stage="softmax")
    loaded = seqloom.load(runs / "translate-gru", "cpu")
    pair = translate_pair(loaded, DATE)
    batch = pair.batch(loaded.model)
    with torch.no_grad():
        logits = loaded.model.eval()(batch["source"], batch["source_mask"], batch["inputs"])[0, 0]
    share = float(torch.softmax(logits, dim=-1)[pair.target_ids[0]])
    rows = studio_page.table("walk-softmax-1")
    name = f"“{pair.target_tokens[0].replace(' ', '␣')}”"
    assert values(rows, name)[2] == pytest.approx(share, rel=1e-4)
    assert values(rows, name)[0] == pytest.approx(float(logits[pair.target_ids[0]]), rel=1e-4)
    goto(page, "Scores become attention weights")
    shares = [float(row[3]) for row in studio_page.table("walk-weights-1")[1:-1]]
    np.testing.assert_allclose(shares, loaded.model.attention(batch)[0, 0].detach().numpy(), atol=1e-5)


def test_displayed_terms_add_up_to_the_displayed_sum(studio_page: StudioPage) -> None:
    studio_page.open("walk", run="translate-transformer", text=DATE, stage="positions", numbers="16")
    table = studio_page.table("walk-positions-1")
    parts = [np.array([float(cell) for cell in row[1:]]) for row in table[1:]]
    np.testing.assert_allclose(parts[0] + parts[1], parts[2], atol=1e-4)
    assert len(parts[0]) == 16
    studio_page.open("walk", run="translate-transformer", text=DATE, stage="encoder-scores", numbers="64")
    products = values(studio_page.table("walk-encoder-scores-1"), "products")
    assert sum(products[:-1]) == pytest.approx(products[-1], abs=1e-3)
    last = studio_page.table("walk-encoder-scores-1")[-1]
    assert float(last[-1]) == pytest.approx(products[-1] / math.sqrt(len(products) - 1), abs=1e-3)


def test_elman_step_matches_equation(studio_page: StudioPage, runs: Path) -> None:
    studio_page.open("walk", run="lm-elman", text="The", word="3", stage="step")
    rows = studio_page.table("walk-step-1")
    model = seqloom.load(runs / "lm-elman", "cpu").model
    summed, state = values(rows, "= sum"), values(rows, "→ tanh: state h")
    np.testing.assert_allclose(np.tanh(summed), state, atol=1e-4)
    ids = torch.tensor([[0, *seqloom.load(runs / "lm-elman").tokenizer.encode("The")]])
    expected = model.eval().trace(ids)[0]["h"][0, 2, :8].detach().numpy()
    np.testing.assert_allclose(state, expected, atol=1e-4)


# --- navigation -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("run", WALKED)
def test_every_stage_opens(studio_page: StudioPage, run: str) -> None:
    page = studio_page.open("walk", run=run)
    page.locator(".walk-title").wait_for()
    stages = page.locator(".walk-rail button")
    for index in range(stages.count()):
        stages.nth(index).click()
        assert page.locator(".walk-rail [aria-current]").count() == 1
        assert page.locator(".walk-panels svg, .walk-panels table, .walk-panels canvas").count() > 0
        quick = page.locator(".walk-quick button")
        assert [quick.nth(i).is_disabled() for i in (0, 1)] == [index == 0, index == stages.count() - 1]
        assert page.locator(".walk-equation").count() == page.locator(".walk-symbols").count()
        assert f"stage {index + 1} of {stages.count()}" in page.locator(".walk-position").inner_text()
    assert "forward pass of the model" in page.locator(".walk-foot .hint").inner_text()


def test_arrow_keys_change_stage_and_address(studio_page: StudioPage) -> None:
    page = studio_page.open("walk", run="lm-elman", text="The class")
    page.locator(".walk-title").wait_for()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert title(page) == "Each token becomes a vector"
    page.keyboard.press("ArrowLeft")
    assert title(page) == "The text is split into tokens"
    assert "stage=tokens" in page.url
    page.reload()
    page.locator(".walk-title").wait_for()
    assert title(page) == "The text is split into tokens"
    box = page.get_by_label("Sentence")
    box.focus()
    page.keyboard.press("ArrowRight")  # the key moves the text cursor
    assert title(page) == "The text is split into tokens"


def wait_for_walk(page: Any) -> None:
    """Wait until the walk of the current address is drawn."""
    page.locator(".walk:not([aria-busy])").wait_for()


def test_controls_select_token_step_layer_and_text(studio_page: StudioPage) -> None:
    page = studio_page.open("walk", run="lm-lstm", text="The class", stage="tokens")
    page.locator(".tile").nth(2).click()
    page.wait_for_url(lambda url: "word=3" in url)
    page.locator(".tile.followed", has_text="h").wait_for()
    page.get_by_label("Layer").select_option("2")
    page.wait_for_url(lambda url: "layer=2" in url)
    wait_for_walk(page)
    goto(page, "The next token is chosen")
    page.get_by_role("button", name="Show step 5").click()
    page.wait_for_url(lambda url: "word=5" in url)
    wait_for_walk(page)
    page.get_by_role("button", name="Next token →").click()
    page.wait_for_url(lambda url: "word=6" in url and "stage=state" in url)
    wait_for_walk(page)
    page.get_by_label("Sentence").fill("def f")
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_url(lambda url: "word=" not in url)
    wait_for_walk(page)
    goto(page, "The text is split into tokens")
    assert page.locator(".tile").count() == 6


def test_text_can_be_continued(studio_page: StudioPage) -> None:
    page = studio_page.open("walk", run="lm-lstm", text="The", stage="next")
    page.get_by_role("button", name="and continue").click()
    page.wait_for_url(lambda url: "stage=state" in url)
    page.locator(".walk-title", has_text="The hidden state").wait_for()
    assert len(page.get_by_label("Sentence").input_value()) == 4


def test_window_moves_with_the_text(studio_page: StudioPage) -> None:
    """The window of a feed-forward model has a fixed size. It is padded at the start of the text."""
    page = studio_page.open("walk", run="lm-window", text="The class", stage="window", word="2")

    def read_tiles() -> list[str]:
        tiles = page.locator('figure[data-figure="walk-window-1"] .tile').all_text_contents()
        return [re.sub(r"\d+$", "", text) for text in tiles]  # removes the token id

    assert read_tiles() == ["</s>", "</s>", "</s>", "The"]
    page.get_by_label("Sentence").fill("The class of an object is")
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_url(lambda url: "word=" not in url)
    wait_for_walk(page)
    assert read_tiles() == ["of", "an", "object", "is"]
    goto(page, "The next token is chosen")
    page.get_by_role("button", name="and continue").click()
    page.wait_for_url(lambda url: "stage=window" in url)
    wait_for_walk(page)
    assert read_tiles()[:3] == ["an", "object", "is"]


def test_stage_links_to_the_heads_view(studio_page: StudioPage) -> None:
    page = studio_page.open("walk", run="translate-transformer", text=DATE, stage="encoder-weights")
    link = page.locator(".walk-foot a", has_text="Show all layers and heads")
    assert "#/heads?" in link.get_attribute("href")
    assert "part=encoder" in link.get_attribute("href")


def test_error_is_shown_until_the_text_is_corrected(studio_page: StudioPage) -> None:
    studio_page.refusals = True
    page = studio_page.open("walk", run="lm-lstm", text="x" * 200)
    page.locator(".problem").wait_for()
    assert "at most 64 tokens" in page.locator(".problem").inner_text()
    page.get_by_label("Sentence").fill("The")
    page.get_by_role("button", name="Show", exact=True).click()
    page.locator(".walk-title").wait_for()
    assert page.locator(".problem").count() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "stages"),
    [
        ("translate-transformer", ("tokens", "encoder-scores", "cross-weights", "encoder-mix", "next")),
        ("tagger", ("chain", "next")),
    ],
)
def test_stages_are_accessible(studio_page: StudioPage, run: str, stages: tuple[str, ...]) -> None:
    """Neither theme has serious accessibility violations."""
    for stage in stages:
        page = studio_page.open("walk", run=run, stage=stage)
        page.locator(".walk-title").wait_for()
        for theme in ("light", "dark"):
            page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
            assert violations(page) == [], (stage, theme)


def test_forced_translation_defines_the_output_tokens(studio_page: StudioPage, runs: Path) -> None:
    page = studio_page.open("walk", run="translate-gru", text="Sunday", stage="next")
    box = page.get_by_label("Force this translation")
    box.fill("lundi")
    box.press("Enter")
    page.wait_for_function("() => location.hash.includes('target=lundi')")
    wait_for_walk(page)
    tokens = [*seqloom.load(runs / "translate-gru", "cpu").tokenizer.encode("lundi"), 0]
    assert page.get_by_label("Output token").locator("option").count() == len(tokens)
    assert page.get_by_label("Force this translation").input_value() == "lundi"


# --- endpoint ---------------------------------------------------------------------------------------------------------


def test_invalid_requests_are_rejected(client: TestClient) -> None:
    assert client.post("/api/walk", json={"run": "nobody"}).status_code == 404
    assert client.post("/api/walk", json={"run": "gpt", "numbers": 999}).status_code == 422
    refused = client.post("/api/walk", json={"run": "gpt", "layer": 40})
    assert (refused.status_code, "no layer 40" in refused.json()["error"]) == (400, True)
    assert "no tour" in client.post("/api/walk", json={"run": "hmm-tagger", "text": "a"}).json()["error"]


@pytest.mark.parametrize("run", WALKED)
def test_tour_values_match_the_model(client: TestClient, run: str) -> None:
    walk = client.post("/api/walk", json={"run": run}).json()
    assert walk["difference"] < 2e-5
    assert walk["stages"][0]["key"] == "text"
    assert walk["stages"][-1]["key"] == "next"


def test_default_texts_match_the_model() -> None:
    lm = {"task": "language-model", "model": {"kind": "gpt"}, "data": {"corpus": "pydocs"}}
    assert default_text(lm) == "The class"
    assert "[MASK]" in default_text({**lm, "task": "masked-lm"})
    assert suits(lm)
    assert not suits({"task": "hmm-tag", "model": {"kind": "hmm-tagger"}})
