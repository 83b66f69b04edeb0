"""Plots of gates and gradients."""

from typing import Any

import pytest

pytest.importorskip("matplotlib")

from seqloom.inspect.plots.cells import draw_gradients, draw_unit
from seqloom.inspect.plots.figures import to_bytes
from seqloom.inspect.views.cells import GateTrace, gate_trace
from seqloom.inspect.views.gradients import GradientReport, clipping, flows, gradient_trace, recurrent_matrices


@pytest.mark.parametrize("tokens", [["</s>", *"the cat"], ["</s>", "the", "cat", "sat", "down", "again", "and", "￭."]])
def test_text_is_coloured_by_unit(make: Any, tokens: list[str]) -> None:
    read = gate_trace(make("gru", 1), list(range(1, len(tokens))))
    figure = draw_unit(GateTrace(tokens, read.cell, read.layers), 3)
    to_bytes(figure)  # computes the layout
    strip: Any = figure.axes[0]
    shown = [text.get_text() for text in strip.texts]
    assert shown == [token.replace(" ", "␣").replace("￭", "▪") for token in tokens[1:]]
    for text in strip.texts:  # no label is clipped
        box, around = text.get_window_extent(), strip.get_window_extent()
        assert around.y0 <= box.y0 and box.y1 <= around.y1


def report(model: Any, ids: list[int], name: str) -> GradientReport:
    training = [(10, 2.0), (20, 1.0)]
    trace, matrices = gradient_trace(model, ids), recurrent_matrices(model)
    return GradientReport(
        name, model.config.cell, trace, matrices, flows(model, ids), clipping(model, ids, 1.0), training
    )


def overlaps(boxes: list[Any]) -> list[tuple[int, int]]:
    pairs = [(a, b) for a in range(len(boxes)) for b in range(a)]
    return [(a, b) for a, b in pairs if boxes[a].overlaps(boxes[b])]


@pytest.mark.parametrize("depths", [[1], [1, 1, 1], [1, 1, 1, 1, 2, 3]])
def test_elements_do_not_overlap_for_many_runs(make: Any, ids: list[int], depths: list[int]) -> None:
    cells = ["elman", "lstm", "gru", "mut1", "elman", "lstm"]
    reports = [
        report(make(cell, depth), ids, f"run {number} of six")
        for number, (cell, depth) in enumerate(zip(cells, depths, strict=False))
    ]
    figure = draw_gradients(reports)
    to_bytes(figure)  # computes the layout
    norms, values, _, training = figure.axes
    names = [label.get_window_extent() for label in values.get_xticklabels()]
    assert len(names) == sum(len(one.matrices) for one in reports)
    assert overlaps(names) == []
    assert overlaps([text.get_window_extent() for text in values.texts]) == []
    if len(depths) > 3:
        for axes in (norms, values, training):
            legend: Any = axes.get_legend()
            assert not legend.get_window_extent().overlaps(axes.get_window_extent())
