"""Plots of the spread over random seeds."""

import math
from typing import Any, cast

import pytest
from matplotlib.patches import Rectangle

pytest.importorskip("matplotlib")

from seqloom.inspect.plots.figures import to_bytes
from seqloom.inspect.plots.measurements import Spread, draw_spread, format_four_digits

ROWS = [Spread("first", [1.0, 2.0, 3.0], 12.5, "100"), Spread("b$b$", [5.0, math.nan], 3.0), Spread("c", [math.nan])]


def test_plot_shows_values_mean_and_spread() -> None:
    figure = draw_spread(ROWS, title="a title", metric="loss on dev")
    left, right = cast(list[Any], figure.axes)
    points = sorted(float(x) for group in left.collections for x, _ in getattr(group, "get_offsets", list)())
    # One dot per random seed, and one diamond at the mean
    assert points.count(1.0) == points.count(3.0) == 1 and points.count(2.0) == 2
    assert [label.get_text() for label in left.get_yticklabels()] == ["first\n100", "b\\$b\\$", "c"]
    bars = [segment for group in left.collections for segment in getattr(group, "get_segments", list)()]
    assert any(abs(bar[0][0] - 1.0) < 1e-9 and abs(bar[1][0] - 3.0) < 1e-9 for bar in bars)  # 2 ± 1
    assert "diverged" in [text.get_text() for text in left.texts]
    assert [bar.get_width() for bar in right.patches if isinstance(bar, Rectangle)] == [12.5, 3.0, 0.0]
    bottom, top = left.get_ylim()
    assert bottom > top  # the first row is at the top
    assert "lower is better" in left.get_xlabel()


def test_means_have_four_digits() -> None:
    assert [format_four_digits(value) for value in (2.33, 2.335, 0.5, 1234.4)] == ["2.330", "2.335", "0.5000", "1234"]
    assert [format_four_digits(value, 92.79) for value in (92.786, 8.9863, 0.00741, 100.0)] == [
        "92.79",
        "8.99",
        "0.01",
        "100.0",
    ]


@pytest.mark.parametrize(("suffix", "head"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_plot_without_times_has_one_panel(suffix: str, head: bytes) -> None:
    figure = draw_spread([Spread("a", [1.0])], title="t", metric="m", better="higher")
    assert len(figure.axes) == 1
    assert to_bytes(figure, suffix).startswith(head)
