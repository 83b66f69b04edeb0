"""Plots of alignments: weights, labels and fonts."""

import struct
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from seqloom.core.errors import UsageError
from seqloom.inspect.plots.figures import Fonts, choose_fonts, to_bytes
from seqloom.inspect.plots.heatmaps import draw_alignment
from seqloom.inspect.views.attention import AttentionMap

pytest.importorskip("matplotlib")

ENGLISH = ["Sunday", ",", "November", "15", ",", "2026", "</s>"]
FRENCH = ["dimanche", "15", "novembre", "2026", "</s>"]
ARABIC = ["الأحد", "،", "15", "نوفمبر", "2026", "</s>"]
STIX = "ᶁ"  # matplotlib has it in STIXGeneral, but not in DejaVu Sans


def grid(target: list[str], source: list[str]) -> AttentionMap:
    return AttentionMap(target, source, np.random.default_rng(0).dirichlet(np.ones(len(source)) / 9, len(target)))


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def labels(figure: Any) -> tuple[list[Any], list[Any]]:
    axes = figure.axes[0]
    return axes.get_xticklabels(), axes.get_yticklabels()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide all fonts except those that matplotlib includes."""
    from matplotlib import font_manager

    manager = font_manager.fontManager
    brought = [entry for entry in manager.ttflist if "mpl-data" in entry.fname]
    monkeypatch.setattr(manager, "ttflist", brought)


def test_plot_shows_weights() -> None:
    found = grid(FRENCH, ENGLISH)
    figure = draw_alignment(found, ["Sunday, November 15, 2026", "dimanche 15 novembre 2026"])
    axes: Any = figure.axes[0]
    np.testing.assert_array_equal(np.asarray(axes.images[0].get_array()), found.weights)
    assert axes.images[0].get_clim() == (0, 1)
    assert [[text.get_text() for text in side] for side in labels(figure)] == [ENGLISH, FRENCH]
    assert figure.get_suptitle() == "Sunday, November 15, 2026\ndimanche 15 novembre 2026"
    numbers = {text.get_position(): text.get_text() for text in axes.texts}
    rows, columns = np.nonzero(found.weights >= 0.05)
    assert numbers == {
        (c, r): f"{found.weights[r, c]:.2f}".lstrip("0") for r, c in zip(rows.tolist(), columns.tolist(), strict=True)
    }


def test_known_links_are_outlined() -> None:
    figure = draw_alignment(grid(FRENCH, ENGLISH), links=[(0, 0), (3, 1)])
    axes: Any = figure.axes[0]
    boxes = [patch.get_bbox() for patch in axes.patches]
    assert [(round(box.x0 + 0.46), round(box.y0 + 0.46)) for box in boxes] == [(0, 0), (3, 1)]
    assert not draw_alignment(grid(FRENCH, ENGLISH)).axes[0].patches


@pytest.mark.parametrize("count", [1, 7, 60])
def test_plot_grows_and_labels_do_not_overlap(count: int) -> None:
    figure = draw_alignment(
        grid([f"mot{n}" for n in range(count)], [f"word{n}" for n in range(count + 3)]), ["a " * 900]
    )
    width, height = size(to_bytes(figure))
    assert 550 < width < 4000 and height > 150
    across, down = labels(figure)
    assert min(label.get_fontsize() for label in [*across, *down]) >= 7
    boxes = [label.get_window_extent() for label in down]
    assert all(upper.y0 >= lower.y1 - 1 for upper, lower in pairwise(boxes))
    axes = figure.axes[0].get_window_extent()
    assert axes.width / (count + 3) > 20  # pixels of a square
    title: Any = figure._suptitle  # type: ignore[attr-defined]
    assert title.get_window_extent().width < width and title.get_text().endswith("…")
    assert all(
        label.get_window_extent().x0 >= 0 and label.get_window_extent().y1 <= height + 1 for label in [*across, *down]
    )


def test_plot_size_is_limited() -> None:
    words = [f"word{n}" for n in range(3000)]
    width, height = size(to_bytes(draw_alignment(grid(["mot"] * 40, words), ["a " * 30_000])))
    assert 5000 < width < 9000 and height < 2000
    width, height = size(to_bytes(draw_alignment(grid(["x" * 10_000, "mot"], ["y" * 10_000, "word"]))))
    assert max(width, height) < 2000


def test_dollar_signs_are_not_read_as_formulas() -> None:
    figure = draw_alignment(grid(["$x_1$", "$", "a_b^c"], ["\\alpha", "$5", "\n", ""]), ["$5 and $6"])
    assert size(to_bytes(figure))
    title: Any = figure._suptitle  # type: ignore[attr-defined]
    assert not any(text.get_parse_math() for side in labels(figure) for text in [*side, title])


def test_arabic_is_joined_from_right_to_left() -> None:
    """Initial and final forms of joined letters are narrower than isolated forms."""
    fonts = choose_fonts([*ARABIC, *ENGLISH])
    if not fonts.shapes_text:
        pytest.skip("matplotlib cannot")
    assert fonts.missing == "" and fonts.warning() is None
    figure = draw_alignment(grid(["نوفمبر", "ن و ف م ب ر".replace(" ", "\u200c")], ENGLISH))
    to_bytes(figure)
    joined, apart = (label.get_window_extent().width for label in labels(figure)[1])
    assert joined < 0.9 * apart


@pytest.mark.usefixtures("bare")
def test_missing_glyphs_are_reported() -> None:
    fonts = choose_fonts(["日曜日", "रवि", "15", *ENGLISH, "日"])
    assert fonts.missing == "".join(sorted("日曜रव" + "ि"))
    warning = fonts.warning()
    assert warning and fonts.missing in warning and "Noto" in warning and ".svg" in warning and "\n" not in warning
    assert size(to_bytes(draw_alignment(grid(["日曜日"], ENGLISH))))  # drawn as boxes, without a warning


@pytest.mark.usefixtures("bare")
def test_fonts_are_added_only_for_missing_glyphs() -> None:
    assert choose_fonts(["abc é Жﻼ ◌ …"]) == Fonts(["DejaVu Sans"], "", choose_fonts(["ﻼ"]).shapes_text)
    assert choose_fonts(["a" + STIX]) == Fonts(["DejaVu Sans", "STIXGeneral"], "", True)
    assert choose_fonts(["日"]).families == ["DejaVu Sans"]  # the font of placeholder boxes is not used
    assert choose_fonts(["a b\n\u200d"]).missing == ""  # there is nothing to draw


def test_font_of_the_user_is_used() -> None:
    assert choose_fonts(["abc"], "DejaVu Serif").families[:2] == ["DejaVu Serif", "DejaVu Sans"]
    figure = draw_alignment(grid(FRENCH, ENGLISH), font="DejaVu Serif")
    assert labels(figure)[0][0].get_fontfamily()[0] == "DejaVu Serif"
    with pytest.raises(UsageError, match=r"No font 'DejaVu Serf' is installed; did you mean DejaVu Serif\?"):
        choose_fonts(["abc"], "DejaVu Serf")


def test_missing_text_shaping_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import ft2font

    monkeypatch.delattr(ft2font, "__libraqm_version__", raising=False)
    assert "cannot join" in (choose_fonts(ARABIC).warning() or "")
    assert choose_fonts(FRENCH).warning() is None


def test_svg_keeps_text() -> None:
    figure = draw_alignment(grid(["日曜日", *ARABIC], ENGLISH), ["a < b & c"])
    svg = to_bytes(figure, ".svg", keep_text=True)
    root = ElementTree.fromstring(svg)
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"日曜日", "نوفمبر", "November", "a < b & c"} <= set(texts)
    assert "日曜日" not in to_bytes(figure, ".svg").decode().replace("<!-- 日曜日 -->", "")
