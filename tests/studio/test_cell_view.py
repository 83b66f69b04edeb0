"""The view "Inside the cell": displayed values equal the trace of the model and manual computations."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seqloom
from seqloom.inspect.views.cells import token_classes
from seqloom.studio.views import VIEWS

suits = VIEWS["cell"].suits

TEXT = "The class (a new one)"
VIEW = "cell"


def trace_model(runs: Path, text: str, layer: int) -> tuple[Any, dict[str, Any]]:
    """Return the model and its traced quantities, each (T, H)."""
    model = seqloom.load(runs / "lm-lstm", "cpu")
    ids = torch.tensor([[0, *model.tokenizer.encode(text)]])
    with torch.no_grad():
        values = model.model.eval().trace(ids)[layer]
    return model, {name: value[0].double().numpy() for name, value in values.items()}


def numbers(rows: list[list[str]]) -> Any:
    """Return the numbers of a table, without column names and first column."""
    return np.array([[float(cell) for cell in row[1:]] for row in rows[1:]])


def test_gates_match_trace(runs: Path, studio_page: Any) -> None:
    studio_page.open(VIEW, run="lm-lstm", text=TEXT, quantity="f", count="6", layer="1")
    head, *rows = studio_page.table("cell-units")
    _, values = trace_model(runs, TEXT, 0)
    assert head[:4] == ["unit", "</s>", "T", "h"]
    units = [int(row[0]) for row in rows]
    assert units == np.argsort(-values["f"].var(axis=0), kind="stable")[:6].tolist()
    np.testing.assert_allclose(numbers([head, *rows]), values["f"][:, units].T, atol=1e-3)  # float16 precision


def test_unit_table_matches_trace(runs: Path, studio_page: Any) -> None:
    studio_page.open(VIEW, run="lm-lstm", text=TEXT, unit="7")
    table = studio_page.table("cell-unit")
    _, values = trace_model(runs, TEXT, 1)
    assert table[0] == ["token", "i", "f", "o", "g", "c", "h"]
    assert [row[0] for row in table[1:5]] == ["</s>", "T", "h", "e"]
    np.testing.assert_allclose(numbers(table), np.stack([values[name][:, 7] for name in "ifogch"], axis=1), rtol=1e-4)
    gates = studio_page.table("cell-gates")
    assert [row[0] for row in gates[1:]] == ["i", "f", "o"]
    np.testing.assert_allclose([float(row[1]) for row in gates[1:]], [values[g].mean() for g in "ifo"], rtol=1e-4)
    np.testing.assert_allclose(
        [float(row[3]) for row in gates[1:]], [(values[g] > 0.9).mean() for g in "ifo"], atol=1e-4
    )


def test_step_matches_cell_equations(runs: Path, studio_page: Any) -> None:
    page = studio_page.open(VIEW, run="lm-lstm", text=TEXT, unit="5", position="4", layer="1")
    rows = {row[0]: row for row in studio_page.table("cell-step")[1:]}
    model, values = trace_model(runs, TEXT, 0)
    assert list(rows) == ["i", "f", "o", "g", "c", "h"]
    for name, row in rows.items():
        assert float(row[4]) == pytest.approx(values[name][4, 5], rel=1e-4)
    cell = model.model.stack.cells[0]
    x = model.model.embed.weight[model.tokenizer.encode(TEXT)[3]].detach().double().numpy()
    weight = cell.weight_x.detach().double().numpy()[cell.hidden + 5]  # the forget gate's row
    of_x, of_h, _ = rows["f"][2].split("; ")
    assert of_x.split(" = ")[0] == "W_xf x_t"
    assert float(of_x.split(" = ")[1]) == pytest.approx(weight @ x, rel=1e-4)
    recurrent = cell.weight_h.detach().double().numpy()[cell.hidden + 5] @ values["h"][3]
    assert float(of_h.split(" = ")[1]) == pytest.approx(recurrent, rel=1e-4)
    page.get_by_role("button", name="W_xf x_t").click()
    terms = studio_page.table("cell-term")
    assert terms[-1][0] == "sum" and float(terms[-1][3]) == pytest.approx(weight @ x, rel=1e-4)
    best = int(np.abs(weight * x).argmax())
    assert terms[1][0] == str(best) and float(terms[1][1]) == pytest.approx(weight[best], rel=1e-4)
    assert page.evaluate("location.hash").endswith("term=f.0")


def test_buttons_show_more_lines_and_the_next_step(studio_page: Any) -> None:
    page = studio_page.open(VIEW, run="lm-lstm", text=TEXT, position="4")
    step = page.locator('figure[data-figure="cell-step"]')
    assert step.locator(".equation").count() == 6
    step.get_by_role("button", name="Only the first line").click()
    assert step.locator(".equation").count() == 1
    step.get_by_role("button", name="Next line").click()
    assert step.locator(".equation").count() == 2
    with page.expect_response("**/api/cell/step"):
        step.get_by_role("button", name="Next step").click()
    page.locator(".step-note", has_text="Step t = 6").wait_for()
    assert "position=5" in page.evaluate("location.hash")
    assert step.locator(".equation").count() == 2  # the number of displayed lines is kept


def test_controls_select_quantity_order_and_unit(runs: Path, studio_page: Any) -> None:
    page = studio_page.open(VIEW, run="lm-lstm", text=TEXT, count="5")
    title = page.locator('figure[data-figure="cell-units"] h2')
    assert title.text_content() == "Hidden state h of 5 units"
    page.get_by_role("radio", name="o", exact=True).check()
    page.locator("figure h2", has_text="Gate o of 5 units").wait_for()
    page.get_by_label("Sort units by").select_option("class inside brackets")
    page.locator("figure .caption", has_text="inside brackets").wait_for()
    _, values = trace_model(runs, TEXT, 1)
    marks = token_classes(["</s>", *TEXT])["inside brackets"]
    correlations = [np.corrcoef(values["o"][:, unit], marks)[0, 1] for unit in range(24)]
    rows = studio_page.table("cell-units")
    assert [int(row[0]) for row in rows[1:]] == np.argsort(-np.abs(correlations))[:5].tolist()
    page.locator('figure[data-figure="cell-units"] .heatmap').focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Enter"):  # starts at the selected unit and token
        page.keyboard.press(key)
    page.locator("figure h2", has_text=f"Unit {rows[3][0]} over").wait_for()
    assert f"unit={rows[3][0]}&position=2" in page.evaluate("location.hash")


def test_second_text_shows_the_same_units(runs: Path, studio_page: Any) -> None:
    page = studio_page.open(VIEW, run="lm-lstm", text=TEXT, count="5")
    box = page.get_by_role("textbox", name="Second text")
    box.fill("A list of (two) names")
    box.press("Enter")
    page.wait_for_selector('figure[data-figure="cell-other"] .heatmap')
    units = [row[0] for row in studio_page.table("cell-units")[1:]]
    other = studio_page.table("cell-other")
    _, values = trace_model(runs, "A list of (two) names", 1)
    assert [row[0] for row in other[1:]] == units
    np.testing.assert_allclose(numbers(other), values["h"][:, [int(unit) for unit in units]].T, atol=1e-3)


def test_backward_encoder_reads_from_the_last_token(runs: Path, studio_page: Any) -> None:
    text = "Sunday, November 15, 2026"
    page = studio_page.open(VIEW, run="translate-gru", text=text, part="encoder-backwards", unit="3")
    table = studio_page.table("cell-unit")
    model = seqloom.load(runs / "translate-gru", "cpu").model.eval()
    tokenizer = seqloom.load(runs / "translate-gru", "cpu").tokenizer
    ids = [*tokenizer.encode(text), 0]
    assert len(table) == len(ids) + 1
    cell, state, expected = model.encoder.layers[0].backwards.cell, None, {}
    state = cell.initial_state(1)
    with torch.no_grad():
        for position in range(len(ids) - 1, -1, -1):
            state = cell(model.source_embed(torch.tensor([ids[position]])), state)
            expected[position] = state["h"][0, 3].item()
    column = table[0].index("h")
    for position, row in enumerate(table[1:]):
        assert float(row[column]) == pytest.approx(expected[position], rel=1e-3, abs=1e-5)
    assert page.locator(".step-note").text_content().startswith(f"Step t = {len(ids) - 1} of {len(ids)}")
    page.get_by_role("radio", name="decoder").check()
    page.locator("figure h2", has_text="units (decoder)").wait_for()
    page.locator(".step-note", has_text=", target ").wait_for()


def test_tagger_columns_are_words_and_both_directions_are_offered(studio_page: Any) -> None:
    page = studio_page.open(VIEW, run="tagger", text="Maria Keller lives in Oslo.")
    head = studio_page.table("cell-units")[0]
    assert head[1:4] == ["Maria", "Keller", "lives"]  # words that are not in the vocabulary are also shown
    assert page.get_by_role("radio", name="right to left ←").count() == 1


def test_invalid_requests_are_explained(client: Any) -> None:
    where = {"run": "lm-lstm", "text": TEXT}
    for wrong, words in (
        ({"part": "encoder"}, "no part 'encoder'"),
        ({"layer": 3}, "The layer must be from 1, the lowest, to 2; got 3"),
        ({"quantity": "z"}, "no quantity 'z'"),
        ({"units": [1, 99]}, "the units of the layer; got 99"),
        ({"by": "correlation", "token_class": "colour"}, "Unknown token class"),
        ({"text": "a" * 600}, "at most 512"),
        ({"text": ""}, "empty"),
        ({"target": "a"}, "Only translators accept a translation"),
    ):
        answer = client.post("/api/cell", json={**where, **wrong})
        assert answer.status_code == 400 and words in answer.json()["error"]
    assert client.post("/api/cell", json={**where, "run": "gpt"}).status_code == 400
    assert client.post("/api/cell/step", json={**where, "unit": 0, "position": 5000}).status_code == 400
    assert client.post("/api/cell", json={**where, "count": 10_000}).status_code == 422


def test_view_supports_only_recurrent_models() -> None:
    assert suits({"task": "language-model", "model": {"kind": "recurrent-lm"}})
    assert suits({"task": "translate", "model": {"kind": "recurrent-seq2seq"}})
    assert suits({"task": "tag", "model": {"kind": "tagger", "encoder": {"kind": "recurrent"}}})
    assert suits({"task": "classify", "model": {"kind": "fine-tuned-classifier", "backbone": {"kind": "bilm"}}})
    assert not suits({"task": "classify", "model": {"kind": "classifier", "encoder": {"kind": "bag"}}})
    assert not suits({"task": "language-model", "model": {"kind": "gpt"}})
    assert not suits({"task": "forecast", "model": {"kind": "lstm"}})
