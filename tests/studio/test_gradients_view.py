"""The view "Gradient flow": gradient norms equal autograd, and singular values equal NumPy."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seqloom
from seqloom.inspect.views.gradients import clipping, gradient_trace
from seqloom.studio.views.cell import describe_gradient_norms

TEXT = "The class statement"
VIEW = "gradients"
BOTH = {"run": "lm-elman", "runs": "lm-lstm", "text": TEXT}


def columns(table: list[list[str]]) -> dict[str, Any]:
    """Return the columns of a table by name. Missing values are NaN."""
    head, *rows = table
    return {
        name: np.array([float("nan") if row[k] == "–" else float(row[k].replace(",", "")) for row in rows])
        for k, name in enumerate(head)
    }


def by_autograd(runs: Path, of: str) -> Any:
    """Return ‖∂L/∂h_t‖ of the Elman model from its equation in float64, last state first."""
    loaded = seqloom.load(runs / "lm-elman", "cpu")
    model = loaded.model.double().eval()
    cell, ids = model.stack.cells[0], [0, *loaded.tokenizer.encode(TEXT)]
    h, states, losses = torch.zeros(cell.hidden, dtype=torch.float64), [], []
    for token, target in pairwise(ids):
        x = model.embed.weight[token]
        h = torch.tanh(cell.weight_x @ x + cell.bias_x + cell.weight_h @ h + cell.bias_h)
        states.append(h)
        losses.append(-model.output.log_probs(model.project(h)[None])[0, target])
    loss = losses[-1] if of == "last" else torch.stack(losses).sum()
    return np.array([gradient.norm().item() for gradient in torch.autograd.grad(loss, states)])[::-1]


@pytest.mark.parametrize("of", ["last", "total"])
def test_gradient_norms_match_autograd(of: str, runs: Path, studio_page: Any) -> None:
    studio_page.open(VIEW, **BOTH, of=of)
    shown_columns = columns(studio_page.table("gradient-flow"))
    assert list(shown_columns) == ["steps back", "lm-elman, h", "lm-lstm, layer 2, h", "lm-lstm, layer 2, c"]
    np.testing.assert_array_equal(shown_columns["steps back"], np.arange(len(TEXT)))
    np.testing.assert_allclose(shown_columns["lm-elman, h"], by_autograd(runs, of), rtol=1e-5)
    trace: Any = gradient_trace(seqloom.load(runs / "lm-lstm", "cpu"), TEXT, of=of)  # type: ignore[arg-type]
    for name in "hc":
        np.testing.assert_allclose(shown_columns[f"lm-lstm, layer 2, {name}"], trace.layers[1][name][::-1], rtol=1e-5)


def test_singular_values_match_weights(runs: Path, studio_page: Any) -> None:
    studio_page.open(VIEW, **BOTH)
    rows = studio_page.table("singular-values")
    assert [row[0] for row in rows[1:]] == ["lm-elman: W_h h", *(f"lm-lstm: W_h {g}, layer 2" for g in "ifgo")]
    weight = seqloom.load(runs / "lm-elman", "cpu").model.stack.cells[0].weight_h.detach().double().numpy()
    singular_values = [float(value) for value in rows[1][5].split()]
    np.testing.assert_allclose(singular_values, np.linalg.svd(weight)[1], rtol=1e-4, atol=1e-6)
    assert float(rows[1][4]) == pytest.approx(np.abs(np.linalg.eigvals(weight)).max(), rel=1e-4)
    bound = columns(studio_page.table("gradient-bound"))
    name = next(name for name in bound if "upper bound" in name)
    np.testing.assert_allclose(bound[name], singular_values[0] ** np.arange(len(TEXT)), rtol=1e-4)
    measured = bound["lm-elman: ‖∂hₜ/∂hₖ‖"]
    assert (measured <= bound[name] * 1.0001).all() and measured[0] == 1


def test_clipping_slider_changes_the_clipping_factors(runs: Path, studio_page: Any) -> None:
    page = studio_page.open(VIEW, **BOTH, clip="0.1")
    norms = [clipping(seqloom.load(runs / run, "cpu"), TEXT, None).norm for run in ("lm-elman", "lm-lstm")]
    rows = studio_page.table("gradient-clipping")[1:]
    for row, norm in zip(rows, norms, strict=True):
        assert float(row[1]) == pytest.approx(norm, rel=1e-5)
        assert float(row[3]) == pytest.approx(min(1, 0.1 / norm), rel=1e-5)
    slider = page.get_by_label("Clip at θ")
    slider.focus()
    slider.press("End")
    assert [float(row[3]) for row in studio_page.table("gradient-clipping")[1:]] == [1, 1]
    assert "clip=" in page.evaluate("location.hash") and "clip=0.1&" not in page.evaluate("location.hash")


def test_clipped_fraction_counts_all_steps() -> None:
    """Rare large norms are counted even if the thinned curve omits them."""
    norms = [(step, 9.0 if step % 1000 == 1 else 1.0) for step in range(1, 4001)]
    description: Any = describe_gradient_norms(norms)
    assert len(description["training"]) == 1500 and description["logged"] == 4000
    assert sum(size > 2 for size in description["sorted_norms"]) / len(description["sorted_norms"]) == 4 / 4000
    many: Any = describe_gradient_norms([(step, float(step % 100)) for step in range(100_000)])
    assert len(many["sorted_norms"]) == 5000
    assert sum(size > 89.5 for size in many["sorted_norms"]) / 5000 == pytest.approx(0.1, abs=1e-3)


def test_forced_translation_defines_the_decoder_steps(runs: Path, studio_page: Any) -> None:
    source, target = "Sunday, November 15, 2026", "lundi"
    page = studio_page.open(VIEW, run="translate-gru", text=source, part="decoder")
    page.get_by_label("Force this translation").fill(target)
    page.get_by_label("Force this translation").press("Enter")
    page.wait_for_function("() => location.hash.includes('target=lundi') && !document.querySelector('.busy')")
    ids = seqloom.load(runs / "translate-gru", "cpu").tokenizer.encode(target)
    page.wait_for_function("() => /target <\\/s>/.test(document.querySelector('.answer').textContent)")
    assert len(studio_page.table("gradient-flow")) == len(ids) + 2  # column names and END


def test_runs_can_be_added_and_removed(studio_page: Any) -> None:
    page = studio_page.open(VIEW, run="lm-elman", text=TEXT)
    assert len(studio_page.table("gradient-flow")[0]) == 2
    page.get_by_label("Compare with").select_option("lm-lstm")
    page.locator(".key", has_text="lm-lstm, layer 2, c").first.wait_for()
    page.get_by_label("Layers").select_option("all")
    page.locator(".key", has_text="lm-lstm, layer 1, h").first.wait_for()
    assert len(studio_page.table("gradient-flow")[0]) == 6
    page.get_by_role("button", name="Remove").first.click()
    page.locator(".key", has_text="left to right →, layer 2, h").first.wait_for()
    assert "run=lm-lstm" in page.evaluate("location.hash")


def test_encoder_receives_gradient(runs: Path, studio_page: Any) -> None:
    page = studio_page.open(VIEW, run="translate-gru", text="Sunday, November 15, 2026", part="encoder-forwards")
    shown_columns = columns(studio_page.table("gradient-flow"))
    ids = seqloom.load(runs / "translate-gru", "cpu").tokenizer.encode("Sunday, November 15, 2026")
    assert len(shown_columns["steps back"]) == len(ids) + 1
    assert (shown_columns["encoder, left to right →, h"] > 0).all()  # attention connects every position to the loss
    page.get_by_label("Cells").select_option("decoder")
    page.locator('figure[data-figure="gradient-tokens"]', has_text="</s>").wait_for()
    assert list(columns(studio_page.table("gradient-flow"))) == ["steps back", "decoder, h"]


def test_invalid_requests_are_explained(client: Any) -> None:
    where = {"run": "lm-lstm", "text": TEXT}
    for wrong, words in (
        ({"at": 99}, "the index of a token; got 99"),
        ({"text": ""}, "empty"),
        ({"run": "gpt"}, "cells"),
    ):
        answer = client.post("/api/gradients", json={**where, **wrong})
        assert answer.status_code == 400 and words in answer.json()["error"]
    assert client.post("/api/gradients", json={**where, "of": "nothing"}).status_code == 422
