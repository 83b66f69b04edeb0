"""Plots of gates and gradients: size, labels and files."""

import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from seqloom.core.errors import ResourceError, UsageError
from seqloom.inspect.plots.cells import draw_gates, draw_gradients, draw_unit
from seqloom.inspect.plots.figures import (
    check_figure_path,
    escape_math,
    figure_width,
    format_token,
    mark_isolated_points,
    new_figure,
    to_bytes,
)
from seqloom.inspect.views.cells import GateTrace, LayerTrace, gate_trace
from seqloom.inspect.views.gradients import Clipping, GradientReport, flows, gradient_trace, recurrent_matrices
from seqloom.nn.cells import CELLS

pytest.importorskip("matplotlib")


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and png.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def words(figure: Any) -> list[str]:
    """Return all texts of a figure."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text() and text.get_visible()]


def overlapping(axes: Any) -> list[tuple[str, str]]:
    """Return the neighbouring labels of the x axis that overlap after drawing."""
    labels = [label for label in axes.get_xticklabels() if label.get_text()]
    boxes = [label.get_window_extent() for label in labels]
    return [
        (labels[n].get_text(), labels[n + 1].get_text())
        for n in range(len(boxes) - 1)
        if boxes[n].x1 > boxes[n + 1].x0 + 0.5
    ]


def report(model: Any, ids: list[int], name: str, of: Any = "last") -> GradientReport:
    return GradientReport(
        name,
        model.config.cell,
        gradient_trace(model, ids, of=of),
        recurrent_matrices(model),
        flows(model, ids),
        Clipping(2.0, 1.0),
        [(1, 3.0), (2, 0.5)],
    )


@pytest.mark.parametrize("cell", CELLS)
def test_each_cell_is_drawn(cell: str, make: Any, ids: list[int]) -> None:
    model = make(cell)
    trace = gate_trace(model, ids)
    for number in (1, None):
        figure = draw_gates(trace, number, title="a run")
        found = words(figure)
        assert f"a run: all units (layer {number or 2} of 2)" in found
        for name, does in CELLS[cell].gates.items():
            assert f"{name} {does}" in found
    width, height = size(to_bytes(figure))
    assert 1000 < width < 4000 and 200 < height < 3000
    assert any("unit 3" in text for text in words(draw_unit(trace, 3)))
    both = draw_gradients([report(model, ids, "one"), report(make("elman", layers=1), ids, "two")])
    assert len(both.axes) == 4
    assert any("bound" in text for text in words(both))


def test_several_runs_share_one_plot(make: Any, ids: list[int]) -> None:
    runs = [report(make(cell), ids, f"runs/{cell}") for cell in ("elman", "lstm", "gru")]
    figure = draw_gradients(runs)
    width, height = size(to_bytes(figure))
    assert width > height > 1000
    for axes in figure.axes[:2]:
        assert overlapping(axes) == []
    first: Any = figure.axes[0]
    legend = [text.get_text() for text in first.get_legend().get_texts()]
    assert legend[:4] == [
        "runs/elman: h, layer 1",
        "runs/elman: h, layer 2",
        "runs/lstm: h, layer 1",
        "runs/lstm: c, layer 1",
    ]


def test_plot_shows_measurements(make: Any, ids: list[int]) -> None:
    model = make("lstm", layers=1)
    trace = gate_trace(model, ids)
    figure = draw_gates(trace)
    maps = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    units = trace.layers[0].most_varying()
    for drawn, name in zip(maps, ("i", "f", "o", "g", "c", "h"), strict=True):
        np.testing.assert_array_equal(np.asarray(drawn), trace.layers[0].values[name][:, units].T)
    found = report(model, ids, "x")
    lines = draw_gradients([found]).axes[0].lines
    np.testing.assert_array_equal(lines[0].get_xdata(), found.trace.distances)
    np.testing.assert_array_equal(lines[0].get_ydata(), found.trace.layers[0]["h"])
    total = draw_gradients([report(model, ids, "x", of="total")]).axes[0]
    np.testing.assert_array_equal(total.lines[0].get_xdata(), range(len(ids)))


def test_values_below_axis_are_marked(make: Any, ids: list[int]) -> None:
    found = report(make("elman", layers=1), ids, "x")
    assert not any("continues below" in text for text in words(draw_gradients([found])))
    fading = 10.0 ** -np.arange(0, 5 * len(ids), 5)[::-1]
    trace = replace(found.trace, layers=({"h": fading},))
    norms: Any = draw_gradients([replace(found, trace=trace)]).axes[0]
    (mark,) = [line for line in norms.lines if line.get_marker() == "v"]
    floor = norms.get_ylim()[0]
    assert mark.get_xdata()[0] == min(d for d, n in zip(trace.distances, fading, strict=True) if n < floor)
    assert norms.texts[-1].get_text() == f"▼ continues below, down to {fading.min():.0e}"


def test_empty_panels_are_omitted(make: Any, ids: list[int]) -> None:
    lstm = report(make("lstm", layers=1), ids, "x")
    assert len(draw_gradients([lstm]).axes) == 3  # only Elman cells have a bound, so there is no fourth panel
    untrained = GradientReport(lstm.name, lstm.cell, lstm.trace, lstm.matrices, [], Clipping(2.0, None), [])
    assert len(draw_gradients([untrained]).axes) == 2


def trace_of(tokens: list[str]) -> GateTrace:
    draw = np.random.default_rng(1)
    values: dict[str, Any] = {"z": draw.random((len(tokens), 40)), "h": draw.standard_normal((len(tokens), 40))}
    return GateTrace(tokens, "x", (LayerTrace(values, {"z": "near 1 keeps"}, ("h",)),))


TOKENS = {
    "letters": ["</s>", *"If the class is not None,\n\tit returns $5 or $6."],
    "words": ["</s>", "Whoever", "understands", "incomprehensibilities", ",", "may", "read", "on", "."],
    "many": ["</s>", *("abc d" * 300)],
    "one": ["</s>", "a"],
    "strange": ["</s>", "漢", "\x07", "\\$", "$x$", "_y", "🦉"],
}


@pytest.mark.parametrize("kind", TOKENS)
def test_labels_do_not_overlap(kind: str) -> None:
    trace = trace_of(TOKENS[kind])
    for figure in (draw_gates(trace), draw_unit(trace, 0)):
        width, height = size(to_bytes(figure))  # a missing glyph raises a warning, which fails the test
        assert 1000 < width < 4000 and 300 < height < 1200
        (labelled,) = [axes for axes in figure.axes if any(map(visible_label, axes.get_xticklabels()))]
        if kind != "strange":
            assert overlapping(labelled) == []


def visible_label(label: Any) -> bool:
    return bool(label.get_text()) and bool(label.get_visible())


def test_overlapping_labels_are_detected() -> None:
    figure = new_figure(2, 2)
    axes = figure.add_subplot()
    axes.set_xticks(range(9), ["incomprehensibilities"] * 9)
    to_bytes(figure)
    assert overlapping(axes)


def test_whitespace_and_dollar_signs_are_visible() -> None:
    found = words(draw_gates(trace_of(TOKENS["letters"])))
    assert {"␣", "⏎", "⇥", r"\$"} <= set(found)
    assert format_token("a b\n") == "a␣b⏎"
    assert format_token("\x1b[31m") == "\\x1b[31m"
    assert escape_math("$x$") == r"\$x\$"


def test_nonfinite_states_are_drawn() -> None:
    trace = trace_of(["</s>", *"abcd"])
    trace.layers[0].values["h"][3:] = np.inf
    trace.layers[0].values["h"][4:] = np.nan
    for figure in (draw_gates(trace), draw_unit(trace, 0)):
        assert size(to_bytes(figure))


def test_zero_gradients_are_drawn(make: Any, ids: list[int]) -> None:
    found = report(make("elman", layers=1), ids, "$a$ & _b")
    found.trace.layers[0]["h"][:] = 0
    assert size(to_bytes(draw_gradients([found])))


def test_svg_is_valid_and_deterministic() -> None:
    figure = draw_gates(trace_of(["</s>", *"a<b & c"]))
    svg = to_bytes(figure, ".SVG")
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(72 * figure_width(8))
    assert b"<dc:date>" not in svg


@pytest.mark.parametrize("name", ["x.pdf", "x", "png", "x.png.txt"])
def test_other_suffixes_are_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"must end in \.png or \.svg"):
        check_figure_path(tmp_path / name)


def test_unwritable_paths_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the folder .* does not exist"):
        check_figure_path(tmp_path / "no" / "x.png")
    (tmp_path / "y.svg").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        check_figure_path(tmp_path / "y.svg")
    check_figure_path(tmp_path / "z.PNG")


def test_message_for_missing_matplotlib_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ResourceError, match=r"pip install 'seqloom\[plot\]'"):
        check_figure_path(tmp_path / "x.png")


def test_single_value_between_gaps_is_drawn_as_a_dot() -> None:
    gap = float("nan")
    assert mark_isolated_points([1.0, gap, 2.0, gap, 3.0, 4.0])["markevery"] == [0, 2]
    assert mark_isolated_points([1.0, 2.0, gap, 3.0, 4.0]) == {}
