"""Plots of attention heads and links."""

import struct
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from seqloom.inspect.plots.figures import to_bytes
from seqloom.inspect.plots.heatmaps import MIN_LINK_WEIGHT, draw_heads, draw_links, find_links
from seqloom.inspect.views.attention import AlignmentView, AttentionMap, HeadsView, Part

pytest.importorskip("matplotlib")

ENGLISH = ["Sunday", ",", "November", "15", ",", "2026", "</s>"]
FRENCH = ["dimanche", "15", "novembre", "2026", "</s>"]
ARABIC = ["الأحد", "،", "15", "نوفمبر", "2026", "</s>"]


def maps(layers: int, heads: int, rows: list[str], columns: list[str]) -> AttentionMap:
    draw = np.random.default_rng(0)
    return AttentionMap(rows, columns, draw.dirichlet(np.ones(len(columns)) / 6, (layers, heads, len(rows))))


def grid(rows: list[str], columns: list[str]) -> AttentionMap:
    return AttentionMap(rows, columns, maps(1, 1, rows, columns).weights[0, 0])


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def thumbnails(figure: Any) -> list[Any]:
    return [axes for axes in figure.axes if axes.images]


def texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


def apart(labels: list[Any], side: str) -> bool:
    """Return whether the labels of a row, or of a column from the top, do not overlap."""
    boxes = [label.get_window_extent() for label in labels]
    if side == "down":
        return all(upper.y0 >= lower.y1 - 1 for upper, lower in pairwise(boxes))
    return all(left.x1 <= right.x0 + 1 for left, right in pairwise(boxes))


# --- all heads ------------------------------------------------------------------------------------------------------


def test_all_heads_share_one_scale() -> None:
    found = maps(3, 4, FRENCH, ENGLISH)
    figure = draw_heads(found, ["cross-attention: every head", "Sunday, November 15, 2026"])
    panels = thumbnails(figure)
    assert len(panels) == 12
    for index, axes in enumerate(panels):
        layer, head = divmod(index, 4)
        np.testing.assert_array_equal(np.asarray(axes.images[0].get_array()), found.weights[layer, head])
        assert axes.images[0].get_clim() == (0, 1)
        assert axes.get_title() == (f"head {head + 1}" if layer == 0 else "")
        assert axes.get_ylabel() == (f"layer {layer + 1}" if head == 0 else "")
    assert [label.get_text() for label in panels[4].get_yticklabels()] == FRENCH
    assert [label.get_text() for label in panels[8].get_xticklabels()] == ENGLISH
    assert figure.get_suptitle() == "cross-attention: every head\nSunday, November 15, 2026"


def test_selected_heads_are_drawn() -> None:
    found = maps(3, 4, FRENCH, ENGLISH)
    panels = thumbnails(draw_heads(found, layers=[2], heads=[1, 3]))
    assert [axes.get_title() for axes in panels] == ["head 1", "head 3"] and panels[0].get_ylabel() == "layer 2"
    np.testing.assert_array_equal(np.asarray(panels[1].images[0].get_array()), found.weights[1, 2])


@pytest.mark.parametrize(
    ("layers", "heads", "count"), [(1, 1, 1), (4, 4, 7), (2, 4, 30), pytest.param(6, 8, 7, marks=pytest.mark.slow)]
)
def test_labels_are_legible_and_do_not_overlap(layers: int, heads: int, count: int) -> None:
    words = [f"word{n}" for n in range(count)]
    figure = draw_heads(maps(layers, heads, words, words), ["a title"])
    width, height = size(to_bytes(figure))
    panels = thumbnails(figure)
    side, foot = panels[0].get_yticklabels(), panels[-1].get_xticklabels()
    assert min(label.get_fontsize() for label in [*side, *foot]) >= 6.5
    assert apart(side, "down") and apart(foot, "across")
    boxes = [label.get_window_extent() for label in [*side, *foot]]
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width + 1 for box in boxes)
    extent = panels[0].get_window_extent()
    assert extent.width / count > 12  # pixels of a square
    assert width < 2700 and height < 2700


def test_too_many_words_have_no_labels() -> None:
    words = [f"word{n}" for n in range(60)]
    figure = draw_heads(maps(2, 4, words, words), ["a title"])
    width, height = size(to_bytes(figure))
    assert width < 2700 and height < 2700
    panels = thumbnails(figure)
    assert not panels[0].get_yticklabels() and "too many words" in figure.get_supxlabel()
    assert panels[0].get_title() == "head 1" and panels[-4].get_ylabel() == "layer 2"


def test_grid_size_is_limited() -> None:
    words = [f"word{n}" for n in range(1500)]
    width, height = size(to_bytes(draw_heads(maps(1, 2, words, words))))
    assert max(width, height) < 2700


# --- links ----------------------------------------------------------------------------------------------------------


def lines(figure: Any) -> Any:
    (collection,) = figure.axes[0].collections
    return collection


def test_twelve_words_have_distinct_colours() -> None:
    words = [str(number) for number in range(12)]
    colours = lines(draw_links(AttentionMap(words, words, np.eye(12)))).get_edgecolors()
    assert len({tuple(colour) for colour in colours}) == 12


@pytest.mark.parametrize("least", [0.0, MIN_LINK_WEIGHT, 0.3, 1.1])
def test_each_weight_above_threshold_is_drawn_as_one_line(least: float) -> None:
    found = grid(FRENCH, ENGLISH)
    figure = draw_links(found, ["a title"], min_weight=least)
    assert len(lines(figure).get_paths()) == int((found.weights >= least).sum())
    assert figure.get_supxlabel() == f"weights below {least:g} are not drawn"


def test_line_width_and_opacity_increase_with_the_weight() -> None:
    weights = np.array([[0.9, 0.1, 0], [0, 0.4, 0.6]])
    figure = draw_links(AttentionMap(["x", "y"], ["a", "b", "c"], weights))
    axes: Any = figure.axes[0]
    position = {text.get_text(): text.get_position() for text in axes.texts}
    assert position["x"][0] < 0 < 1 < position["a"][0]  # queries are on the left
    assert (
        position["x"][1] < position["y"][1] and position["a"][1] < position["b"][1] < position["c"][1]
    )  # from top to bottom, because the axis is inverted
    assert axes.yaxis_inverted()
    found = {}
    for path, width, colour in zip(
        lines(figure).get_paths(), lines(figure).get_linewidths(), lines(figure).get_edgecolors(), strict=True
    ):
        ends = tuple(path.vertices[0]), tuple(path.vertices[-1])
        assert (ends[0][0], ends[1][0]) == (0, 1)
        row = next(word for word in "xy" if position[word][1] == ends[0][1])
        column = next(word for word in "abc" if position[word][1] == ends[1][1])
        found[row + column] = width, colour[3]
    assert sorted(found, key=found.__getitem__) == ["xb", "yb", "yc", "xa"]  # by width and by opacity
    assert sorted(found, key=lambda pair: found[pair][1]) == ["xb", "yb", "yc", "xa"]
    assert texts(axes)[2] == "produces (target)" and "key (source)" in texts(axes)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 9), (7, 5), (30, 30), (30, 3)])
def test_link_labels_fit_without_overlap(rows: int, columns: int) -> None:
    figure = draw_links(grid([f"mot{n}" for n in range(rows)], [f"word{n}" for n in range(columns)]), ["a " * 300])
    width, height = size(to_bytes(figure))
    shown: Any = figure.axes[0].texts
    for beginning in ("mot", "word"):
        side = [text for text in shown if text.get_text().startswith(beginning)]
        assert apart(side, "down") and min(text.get_fontsize() for text in side) >= 10
        boxes = [text.get_window_extent() for text in side]
        assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in boxes)
    assert height < 2000


def test_link_plot_size_is_limited() -> None:
    words = [f"word{n}" for n in range(400)]
    found = draw_links(AttentionMap(words, words, np.eye(400)))
    assert found.get_figheight() < 70 and len(lines(found).get_paths()) == 400


def test_links_exclude_small_weights() -> None:
    assert find_links(np.array([[0.05, 0.95], [0.04, 0.2]])) == [(0, 0, 0.05), (0, 1, 0.95), (1, 1, 0.2)]
    assert find_links(np.zeros((2, 2))) == []


# --- any script -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["grid", "links"])
def test_right_to_left_scripts_are_joined(kind: str) -> None:
    from seqloom.inspect.plots.figures import choose_fonts

    if not choose_fonts(ARABIC).shapes_text:
        pytest.skip("matplotlib cannot")
    words = ["نوفمبر", "ن و ف م ب ر".replace(" ", "\u200c")]
    found = maps(1, 1, words, ENGLISH)
    if kind == "grid":
        figure = draw_heads(found)
        to_bytes(figure)
        shown = thumbnails(figure)[0].get_yticklabels()
    else:
        figure = draw_links(AttentionMap(*found[:2], found.weights[0, 0]))
        to_bytes(figure)
        shown = figure.axes[0].texts[:2]
    joined, broken = (text.get_window_extent().width for text in shown)
    assert joined < 0.9 * broken


def test_dollar_signs_are_not_read_as_formulas() -> None:
    words = ["$x_1$", "$", "a_b^c", "\n", ""]
    for figure in (draw_heads(maps(1, 2, words, words), ["$5 and $6"]), draw_links(grid(words, words), ["$5 and $6"])):
        assert size(to_bytes(figure))
        svg = to_bytes(figure, ".svg", keep_text=True).decode()
        assert "$x_1$" in svg and "⏎" in svg


def test_font_of_the_user_is_used() -> None:
    figure = draw_links(grid(FRENCH, ENGLISH), font="DejaVu Serif")
    assert figure.axes[0].texts[0].get_fontfamily()[0] == "DejaVu Serif"
    label = thumbnails(draw_heads(maps(1, 1, FRENCH, ENGLISH), font="DejaVu Serif"))[0].get_yticklabels()[0]
    assert label.get_fontfamily()[0] == "DejaVu Serif"


# --- notebooks ------------------------------------------------------------------------------------------------------


def test_views_of_attention_are_pictures_in_notebooks() -> None:
    weights, single = maps(2, 3, FRENCH, ENGLISH), grid(FRENCH, ENGLISH)
    part = Part("cross", weights, weights, default_layer=1)
    heads = HeadsView("a model", "source", "target", False, True, -1.0, {"cross": part})
    alignment = AlignmentView("source", "target", False, True, -1.0, single, single)
    assert len(thumbnails(heads.draw())) == 6
    assert all(size(view._repr_png_() or b"") > (100, 100) for view in (heads, alignment))
