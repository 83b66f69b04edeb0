"""The view "Alignment": attention weights equal `inspect`, for one and two runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.denoising import denoise_recipe
from tests.studio.conftest import StudioPage
from tests.studio.test_heads_view import numbers, sums

import seqloom
from seqloom.studio.run_folder import RunFolder
from seqloom.studio.server import make_app
from seqloom.studio.views import VIEWS
from seqloom.training import begin

suits = VIEWS["alignment"].suits

TEXT, TARGET = "Sunday, November 15, 2026", "dimanche 15 novembre 2026"


@pytest.mark.parametrize("by", ["words", "tokens"])
def test_recurrent_attention_matches_the_output_of_inspect(studio_page: StudioPage, runs: Path, by: str) -> None:
    page = studio_page.open("alignment", run="translate-gru", text=TEXT, by=by)
    view, table = seqloom.load(runs / "translate-gru", "cpu").attention(TEXT), studio_page.table("alignment")
    grid = view.grid(tokens=by == "tokens")
    assert [row[0] for row in table[1:]] == grid.rows and table[0][1:-1] == grid.columns
    np.testing.assert_allclose(numbers(table), grid.weights, atol=6e-4)
    np.testing.assert_allclose(sums(table), 1, atol=3e-3)
    assert (view.text.strip() or "(empty)") == page.locator(".output-text").inner_text()  # the output of beam search
    assert page.locator(".alignment-selects select").count() == 0  # there is only one kind of attention


def test_selected_head_matches_the_output_of_inspect(studio_page: StudioPage, runs: Path) -> None:
    page = studio_page.open("alignment", run="translate-transformer", text=TEXT)
    model = seqloom.load(runs / "translate-transformer", "cpu")
    np.testing.assert_allclose(numbers(studio_page.table("alignment")), model.attention(TEXT).words.weights, atol=6e-4)
    page.get_by_label("Layer", exact=True).select_option("1")
    page.get_by_label("Head", exact=True).select_option("3")
    page.locator("h2", has_text="Layer 1, head 3").wait_for()
    assert "layer=1" in page.url and "head=3" in page.url
    cross = model.heads(TEXT).cross
    np.testing.assert_allclose(numbers(studio_page.table("alignment")), cross.grid(1, 3).weights, atol=6e-4)


def test_forced_translation_is_aligned_as_in_the_python_api(studio_page: StudioPage, runs: Path) -> None:
    page = studio_page.open("alignment", run="translate-gru", text=TEXT)
    page.get_by_label("Force this translation").fill(TARGET)
    page.keyboard.press("Enter")
    page.locator(".output-text", has_text=TARGET).wait_for()
    view, table = seqloom.load(runs / "translate-gru", "cpu").attention(TEXT, TARGET), studio_page.table("alignment")
    assert [row[0] for row in table[1:]] == view.words.rows
    np.testing.assert_allclose(numbers(table), view.words.weights, atol=6e-4)
    assert f"{abs(view.log_prob):.3f}" in page.locator(".model-output").inner_text()


def test_two_runs_are_compared(studio_page: StudioPage, runs: Path) -> None:
    parameters = {"run": "translate-gru", "other": "translate-transformer", "text": TEXT}
    page = studio_page.open("alignment", **parameters, target=TARGET, layer2="2", head2="1")
    first, second = studio_page.table("alignment"), studio_page.table("alignment2")
    gru, transformer = (seqloom.load(runs / parameters[name], "cpu") for name in ("run", "other"))
    np.testing.assert_allclose(numbers(first), gru.attention(TEXT, TARGET).words.weights, atol=6e-4)
    np.testing.assert_allclose(numbers(second), transformer.heads(TEXT, TARGET).cross.grid(2, 1).weights, atol=6e-4)
    left, right = (page.locator(f'figure[data-figure="{name}"]') for name in ("alignment", "alignment2"))
    box, other = left.bounding_box(), right.bounding_box()
    assert box and other and abs(box["y"] - other["y"]) < 2 and box["x"] + box["width"] <= other["x"]
    left.locator("canvas.cells").first.hover(position={"x": 4, "y": 4})  # the first source word
    assert left.locator("rect.band").count() == 2 and right.locator("rect.band").count() == 1
    assert "Sunday" in right.locator(".readout").inner_text()


def test_output_of_one_run_is_forced_for_both_runs(studio_page: StudioPage) -> None:
    def force_output(route: Any) -> None:
        """Force an output for one model, because models with little training generate almost no tokens."""
        request = route.request.post_data_json
        forced = (
            {"target": "dimanche 15"} if request["run"] == "translate-transformer" and not request["target"] else {}
        )
        route.continue_(post_data={**request, **forced})

    studio_page.page.route("**/api/alignment", force_output)
    page = studio_page.open("alignment", run="translate-gru", text=TEXT, other="translate-transformer")
    page.get_by_role("button", name="Force this translation for both models").last.click()
    page.locator(".output-text", has_text="dimanche 15").nth(1).wait_for()
    assert page.get_by_label("Force this translation").input_value() == "dimanche 15" and "target=dimanche" in page.url


def test_hovered_word_highlights_row_or_column(studio_page: StudioPage, runs: Path) -> None:
    page = studio_page.open("alignment", run="translate-gru", text=TEXT, **{"as": "both"})
    weights = seqloom.load(runs / "translate-gru", "cpu").attention(TEXT).words.weights
    label = page.locator(".heatmap svg .label").first  # the first target word
    box = label.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert page.locator("rect.band").count() == 1
    # The links are also highlighted
    assert page.locator(".links .link.highlighted").count() == (weights[0] >= 0.04).sum()
    page.locator(".heatmap").focus()
    page.keyboard.press("ArrowDown")  # from the highlighted row
    page.keyboard.press("ArrowRight")
    readout = page.locator(".heatmap-frame .readout").inner_text()
    assert float(readout.split(": ")[-1].replace("−", "-")) == pytest.approx(weights[1, 1], rel=1e-3, abs=5e-4)


def test_words_of_any_script_keep_their_direction(studio_page: StudioPage) -> None:
    page = studio_page.open(
        "alignment", run="translate-gru", text="الأحد ١٥ نوفمبر", target="猫はここ", **{"as": "both"}
    )
    words = page.locator(".links .link-text").all_text_contents()
    assert words[:4] == ["猫", "は", "こ", "こ"] and "الأحد" in words
    styles = page.eval_on_selector_all(".links .link-text", "all => all.map(n => getComputedStyle(n).unicodeBidi)")
    assert set(styles) == {"plaintext"}


def test_alignment_of_a_denoiser_is_its_cross_attention(tmp_path: Path) -> None:
    """The alignment of a denoiser is its cross-attention."""
    for _ in begin(denoise_recipe(tmp_path), tmp_path / "runs" / "bart").events():
        pass
    app = make_app(RunFolder(tmp_path / "runs"), "token")
    client = TestClient(
        app, base_url="http://127.0.0.1", headers={"authorization": "Bearer token", "host": "127.0.0.1"}
    )
    question = {"run": "bart", "text": "a red [MASK] .", "layer": 1, "head": 2}
    answer = client.post("/api/alignment", json=question)
    assert answer.status_code == 200
    grid = seqloom.load(tmp_path / "runs" / "bart", "cpu").heads(question["text"]).cross.grid(1, 2)
    head, (weights,) = unpack_response(answer.content)
    assert head["rows"] == grid.rows and head["columns"] == grid.columns and "[MASK]" in grid.columns
    np.testing.assert_allclose(weights, grid.weights, atol=6e-4)
    assert client.post("/api/alignment", json={**question, "target": "a red dog ."}).status_code == 400


def unpack_response(body: bytes) -> tuple[dict[str, Any], list[Any]]:
    """Decode a response with arrays."""
    length = int.from_bytes(body[:4], "little")
    head = json.loads(body[4 : 4 + length])
    kinds = {"f2": np.float16, "f4": np.float32, "u1": np.uint8}
    arrays = [
        np.frombuffer(body, kinds[array["kind"]], np.prod(array["shape"]), 4 + length + array["begin"]).reshape(
            array["shape"]
        )
        for array in head["arrays"].values()
    ]
    return head, arrays


def test_view_supports_only_runs_with_cross_attention() -> None:
    assert suits({"task": "translate", "model": {"kind": "recurrent-seq2seq"}})
    assert not suits({"task": "translate", "model": {"kind": "recurrent-seq2seq", "attention": None}})
    assert suits({"task": "denoise", "model": {"kind": "transformer"}})
    assert not suits({"task": "language-model", "model": {"kind": "gpt"}}) and not VIEWS["alignment"].suits({})


def test_hostile_text_is_escaped(studio_page: StudioPage) -> None:
    words = "<img src=x onerror=alert(1)> </text><script>alert(1)</script>"
    page = studio_page.open("alignment", run="translate-gru", text=words, target=words, **{"as": "both"})
    assert page.locator(".view img, .view script").count() == 0
    assert "<script>" in "".join(page.locator(".model-output").all_inner_texts())
