"""Plots of a metric against a variable."""

import math
from typing import Any

from seqloom.inspect.plots.figures import to_bytes
from seqloom.inspect.plots.measurements import MeasuredLine, draw_against


def test_plot_shows_all_lines_and_values() -> None:
    lines = [
        MeasuredLine("bert", {0.01: [70.0, 72.0, 71.0], 0.1: [80.0, 81.0, 82.0], 1.0: [84.0, 84.5, 85.0]}),
        MeasuredLine("scratch $1", {0.01: [55.0, math.nan, 56.0], 1.0: [math.nan]}, dashed=True),
    ]
    figure = draw_against(lines, title="shares", x_label="share", y_label="accuracy", percent=True)
    axes: Any = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1 %", "10 %", "100 %"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["bert", r"scratch \$1"]
    first, second = (container.lines[0] for container in axes.containers)
    assert list(first.get_ydata()) == [71.0, 81.0, 84.5] and first.get_linestyle() == "-"
    assert list(second.get_ydata()) == [55.5] and second.get_linestyle() == "--"
    assert sum(len(points.get_offsets()) for points in axes.collections if hasattr(points, "get_offsets")) >= 11
    assert to_bytes(figure, ".png").startswith(b"\x89PNG")
