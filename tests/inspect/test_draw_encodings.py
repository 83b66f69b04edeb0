"""Plots of encodings."""

import struct
from typing import Any

import numpy as np
import pytest

from seqloom.inspect.plots.figures import choose_fonts, to_bytes
from seqloom.inspect.plots.inputs import draw_encodings, list_drawn_words
from seqloom.inspect.views.inputs import Encoded, dense_table, encode, splitter, vocabulary_of

pytest.importorskip("matplotlib")

BEAR = ["Market falls into bear territory", "Bear falls into market territory"]


def encoded(*texts: str) -> list[Encoded]:
    return encode(texts, vocabulary_of(texts, "these", splitter(), unknown=False))


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def names(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_yticklabels()]


def test_plot_shows_all_encodings() -> None:
    texts = encoded(*BEAR)
    figure = draw_encodings(texts, 8)
    panels: list[Any] = list(figure.axes)
    assert len(panels) == 8
    table = dense_table(texts[0].vocabulary, 8)
    for text, (one_hot, counts, tf_idf, dense) in zip(texts, (panels[:4], panels[4:]), strict=True):
        np.testing.assert_array_equal(np.asarray(one_hot.images[0].get_array()), text.one_hot(range(5)))
        np.testing.assert_allclose(np.asarray(dense.images[0].get_array()), table[text.columns])
        assert names(one_hot) == names(dense) == text.text.lower().split()
        assert names(counts) == names(tf_idf) == list(text.vocabulary.words)
        assert [bar.get_width() for bar in counts.patches] == [1] * 5
    titles = [text.get_text() for text in figure.texts]
    assert titles == ["one-hot\n5 × 5", "bag of words\n5", "tf–idf\n5", "dense, random\n5 × 8"]
    assert size(to_bytes(figure))


def test_squares_and_bars_share_a_scale() -> None:
    figure = draw_encodings(encoded("a a a b", "c"), 40)
    to_bytes(figure)
    panels: list[Any] = list(figure.axes)
    for panel in (panels[0], panels[3], panels[4], panels[7]):
        box, (rows, columns) = panel.get_window_extent(), panel.images[0].get_array().shape
        assert box.width / columns == pytest.approx(box.height / rows, rel=0.02)
    assert panels[1].get_xlim() == panels[5].get_xlim()
    assert figure.texts[0].get_text() == "one-hot\nT × 3"
    assert figure.texts[3].get_text().endswith("T × 40, first 32")


def test_long_texts_and_words_fit_plot() -> None:
    long = " ".join(f"word{number}" for number in range(500))
    figure = draw_encodings(encoded(long, "$x_1$ Donaudampfschifffahrtsgesellschaft", "日", "ا", "e"), 300)
    width, height = size(to_bytes(figure))
    assert width < 4000 and height < 5000 and len(figure.axes) == 16  # panels for four texts
    texts = [text for axes in figure.axes for text in [*axes.get_yticklabels(), *axes.get_xticklabels()]]
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    assert boxes and all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in boxes)
    assert not any(text.get_parse_math() for text in texts if text.get_text())
    assert set(choose_fonts(list_drawn_words(encoded("日曜日 ok"))).missing) <= set("日曜")
