"""Confusion matrices in the terminal and in plots."""

import io
import re
import struct
from itertools import pairwise
from typing import Any, cast
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from seqloom.evaluate.classification import Confusion, Hits, calibrate
from seqloom.inspect.plots.figures import choose_fonts, format_class, to_bytes
from seqloom.inspect.plots.heatmaps import draw_confusion
from seqloom.inspect.plots.measurements import draw_reliability
from seqloom.inspect.plots.terminal import build_class_table, list_mistakes, render_confusion

WORDS = Confusion(("no", "yes"), np.array([[30, 1200], [0, 7]]))
SCRIPTS = ["日本語", "हिन्दी", "العربية", "עברית", "ไทย", "Ελληνικά", "русский", "français"]


def random_confusion(labels: list[str], seed: int = 0) -> Confusion:
    draw = np.random.default_rng(seed)
    counts = draw.poisson(0.8, size=(len(labels), len(labels))) + np.diag(draw.integers(5, 400, size=len(labels)))
    return Confusion(tuple(labels), counts)


def printed(thing: Any, width: int = 100) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(thing)
    return file.getvalue()


# --- in the terminal ------------------------------------------------------------------------------------------------


def test_table_shows_counts_with_dots_for_zeros() -> None:
    shown = render_confusion(WORDS, width=80, colour=False).plain
    assert shown.split("\n") == [
        "      no    yes ",
        "  no  30  1,200 ",
        " yes   ·      7 ",
        "",
    ]


@pytest.mark.parametrize("count", [2, 6, 18, 25])
def test_each_count_is_in_its_cell(count: int) -> None:
    confusion = random_confusion([f"class {number}" for number in range(count)])
    lines = render_confusion(confusion, width=200, colour=False).plain.split("\n")
    rows = [line for line in lines if re.match(r" +class \d+ +[\d·]", line)][-count:]
    found = [[0 if word == "·" else int(word) for word in line.split()[2:]] for line in rows]
    assert found == confusion.counts.tolist()


@pytest.mark.parametrize("count", [2, 18, 26, 40])
@pytest.mark.parametrize("colour", [True, False])
def test_table_fits_the_screen(count: int, colour: bool) -> None:
    text = render_confusion(random_confusion([f"class {number}" for number in range(count)]), width=70, colour=colour)
    assert max(map(cell_len, text.plain.split("\n"))) <= 70
    assert bool(text.spans) and any("rgb" in str(span.style) for span in text.spans) is colour
    assert ("█" in text.plain) == (count > 25 and not colour)  # with too many classes, shades replace numbers


def test_columns_are_aligned_in_any_script() -> None:
    lines = render_confusion(random_confusion(SCRIPTS), width=200, colour=False).plain.split("\n")[:-1]
    assert len(lines) == 9 and len(set(map(cell_len, lines))) == 1


def test_shades_are_row_fractions_with_legible_numbers() -> None:
    text = render_confusion(WORDS, width=80, colour=True)
    styles = {text.plain[span.start : span.end].strip(): str(span.style) for span in text.spans}
    assert "#ffffff" in styles["30"] and "#000000" in styles["1,200"] and "#000000" in styles["7"]
    assert styles["1,200"] != styles["7"]  # 98 % and 100 % of a row


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("positive", "positive"),
        ("New York", "New York"),
        ("", '""'),
        (" a", '"␣a"'),
        ("a\tb", "a⇥b"),
        ("x\x1b[1m", "x\\x1b[1m"),
        ("\u202eabc", "abc"),
    ],
)
def test_class_names_are_escaped(name: str, shown: str) -> None:
    assert format_class(name) == shown


def test_class_table_shows_metrics_and_three_averages() -> None:
    shown = printed(
        build_class_table({"PER": Hits(1, 2, 4), "[bold]x": Hits(3, 3, 3)}, label_kind="type", unit="spans")
    )
    rows = [line.split() for line in shown.splitlines()]
    assert rows == [
        ["type", "precision", "recall", "F1", "spans"],
        ["PER", "0.5000", "0.2500", "0.3333", "4"],
        ["[bold]x", "1.0000", "1.0000", "1.0000", "3"],
        ["micro", "average", "0.8000", "0.5714", "0.6667", "7"],
        ["macro", "average", "0.7500", "0.6250", "0.6667", "7"],
        ["weighted", "average", "0.7143", "0.5714", "0.6190", "7"],
    ]
    assert "0.0000" in printed(build_class_table({}))


def test_most_frequent_errors_are_listed_first() -> None:
    confusion = Confusion(("a b", "العربية", "c"), np.array([[5, 3, 12], [3, 1, 0], [0, 0, 9]]))
    assert list_mistakes(confusion) == [
        "12 ×  a b predicted as c  (60.0% of 20)",
        " 3 ×  \u2068العربية\u2069 predicted as a b  (75.0% of 4)",
        " 3 ×  a b predicted as \u2068العربية\u2069  (15.0% of 20)",
    ]
    assert len(list_mistakes(confusion, 1)) == 1 and list_mistakes(Confusion(("a",), np.array([[3]]))) == []


# --- plots ------------------------------------------------------------------------------------------------------------


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def names(figure: Any) -> tuple[list[Any], list[Any]]:
    return figure.axes[0].get_xticklabels(), figure.axes[0].get_yticklabels()


def test_plot_shows_counts() -> None:
    pytest.importorskip("matplotlib")
    confusion = random_confusion(["x", "y", "z"], seed=3)
    figure = draw_confusion(confusion, ["a title"], label_kind="tag", unit="words")
    axes: Any = figure.axes[0]
    np.testing.assert_array_equal(np.asarray(axes.images[0].get_array()), confusion.rates())
    assert [[text.get_text() for text in side] for side in names(figure)] == [["x", "y", "z"]] * 2
    shown = {text.get_position()[::-1]: text.get_text() for text in axes.texts}
    for index, count in np.ndenumerate(confusion.counts):
        share = confusion.rates()[index]
        percent = "<1%" if share < 0.005 else ">99%" if 0.995 <= share < 1 else f"{share:.0%}"
        assert shown.get(index) == (f"{percent}\n{count}" if count else None)
    right: Any = axes.child_axes[0]
    assert [text.get_text() for text in right.get_yticklabels()] == [f"{count:,}" for count in confusion.support]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted tag", "true tag")
    assert right.get_ylabel() == "words" and figure.get_suptitle() == "a title"


def test_fraction_below_one_is_not_shown_as_100_percent() -> None:
    pytest.importorskip("matplotlib")
    figure = draw_confusion(Confusion(("x", "y", "z"), np.array([[999, 1, 0], [0, 7, 0], [6, 0, 994]])))
    shown = [text.get_text().split("\n")[0] for text in figure.axes[0].texts]
    assert shown == [">99%", "<1%", "100%", "1%", "99%"]


@pytest.mark.parametrize("count", [1, 2, 6, 13, 18, 40])
def test_labels_do_not_overlap(count: int) -> None:
    """Names and numbers do not overlap and are inside the plot, and numbers are inside their squares."""
    pytest.importorskip("matplotlib")
    labels = [f"class number {number}" for number in range(count)]
    counts = random_confusion(labels).counts
    counts[0, -1] = 12_345_678
    figure = draw_confusion(Confusion(tuple(labels), counts), ["a title " * 90])
    width, height = size(to_bytes(figure))
    assert 500 < width < 2600 and 200 < height < 2600
    across, down = names(figure)
    assert len(down) == count and min(text.get_fontsize() for text in [*across, *down]) >= 7
    boxes = [text.get_window_extent() for text in down]
    assert all(upper.y0 >= lower.y1 - 1 for upper, lower in pairwise(boxes))
    everything = [text.get_window_extent() for text in [*across, *down]]
    assert all(box.x0 >= 0 and box.x1 <= width + 1 and box.y1 <= height + 1 and box.y0 >= 0 for box in everything)
    axes: Any = figure.axes[0]
    square = axes.get_window_extent().width / count
    numbers = [text.get_window_extent() for text in axes.texts]
    assert numbers and all(box.width <= square and box.height <= square for box in numbers)
    assert min(text.get_fontsize() for text in axes.texts) > 5
    title: Any = figure._suptitle  # type: ignore[attr-defined]
    assert title.get_text().endswith("…") and title.get_window_extent().width < width


def test_many_classes_and_long_names_do_not_enlarge_the_plot() -> None:
    pytest.importorskip("matplotlib")
    confusion = Confusion(tuple(map(str, range(300))), np.eye(300, dtype=np.int64))
    figure = draw_confusion(confusion)
    assert max(size(to_bytes(figure))) < 5000 and not names(figure)[0] and not figure.axes[0].texts
    long = draw_confusion(Confusion(("x" * 1000, "日" * 1000), np.array([[1, 2], [3, 4]])))
    assert max(size(to_bytes(long))) < 1200


def test_dollar_signs_and_all_scripts_are_drawn_as_text() -> None:
    pytest.importorskip("matplotlib")
    confusion = random_confusion(["$x_1$", "a $ b", "\\alpha", "", *SCRIPTS])
    figure = draw_confusion(confusion, ["$5 and $6"])
    assert not any(text.get_parse_math() for side in names(figure) for text in side)
    svg = to_bytes(figure, ".svg", keep_text=True)
    root = ElementTree.fromstring(svg)
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"日本語", "हिन्दी", "العربية", "a $ b", "$5 and $6"} <= set(texts)
    assert size(to_bytes(figure))
    assert set(choose_fonts(map(format_class, confusion.labels)).missing) <= set("".join(SCRIPTS))


def test_reliability_plot_shows_calibration() -> None:
    pytest.importorskip("matplotlib")
    confidence = np.array([0.95, 0.95, 0.95, 0.95, 0.55, 0.55])
    correct = np.array([True, True, False, False, True, True])
    calibration = calibrate(confidence, correct, bins=10)
    figure = draw_reliability(calibration, "$5")
    upper, lower = cast(list[Any], figure.axes)
    ends: dict[float, list[tuple[float, float]]] = {}
    for bar in upper.patches:
        centre = round(bar.get_x() + bar.get_width() / 2, 2)
        ends.setdefault(centre, []).append((round(bar.get_y(), 3), round(bar.get_y() + bar.get_height(), 3)))
    assert ends == {0.55: [(0, 0.55), (0.55, 1)], 0.95: [(0, 0.5), (0.5, 0.95)]}
    assert [round(bar.get_height(), 3) for bar in lower.patches] == [0.333, 0.667]
    assert f"{calibration.error:.3f}" in figure.get_suptitle() and figure.get_suptitle().startswith("\\$5\n")
    assert "overconfident" in figure.get_suptitle()
    assert size(to_bytes(figure))
