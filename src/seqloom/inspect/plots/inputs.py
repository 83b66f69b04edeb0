"""A picture of texts as numbers: one-hot, counts, tf–idf and dense beside each other, a row of panels for each text.

A picture of positions: the table, a few of its rows as curves, and what two places have in common.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.core.words import counted
from seqloom.inspect.plots.attention import LETTER, SIZE, cells_of, cut
from seqloom.inspect.plots.figures import COLOURS, SIGNED, Fonts, fonts_for, label, new_figure, tidy
from seqloom.inspect.views.encodings import Array, Encoded, dense_table, occurring
from seqloom.inspect.views.positions import PositionsView

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_TEXTS, MOST_WORDS, MOST_NUMBERS = 4, 24, 32  # that are drawn
CELL = 0.28  # inches of a square, and of a bar
BARS = 1.9  # inches of a panel of bars
EDGE, GAP, TITLE = 0.25, 0.35, 0.6  # inches around the picture, between panels, of the titles
LONGEST = 16  # letters of a word
SMALL = 9.0  # points


def draw_encodings(texts: Sequence[Encoded], width: int, *, font: str | None = None) -> "Figure":
    """Only columns that are not 0 in all texts are drawn, and of long texts the first words."""
    drawn = list(texts[:MOST_TEXTS])
    columns = occurring(drawn, MOST_WORDS)
    heads = [cut(label(drawn[0].vocabulary.words[column]), LONGEST) for column in columns]
    sides = [[cut(label(word.text), LONGEST) for word in text.words[:MOST_WORDS]] for text in drawn]
    words: dict[str, Any] = {"family": fonts_of(drawn, font).families, "parse_math": False, "fontsize": SMALL}
    table = dense_table(drawn[0].vocabulary, width)[:, :MOST_NUMBERS]
    letters = LETTER * SMALL / SIZE * max(map(cells_of, [*heads, *(word for own in sides for word in own)])) + 0.15
    panels = _Panels([len(columns) * CELL, BARS, BARS, table.shape[1] * CELL], letters, sides, len(columns))
    most = [max(max(bag.values()) for bag in bags) for bags in zip(*((t.counts, t.tf_idf) for t in drawn), strict=True)]
    for row, (text, side) in enumerate(zip(drawn, sides, strict=True)):
        squares = panels.add(row, 0, len(side))
        _squares(squares, text.one_hot(columns)[:MOST_WORDS], side, "Blues", (0, 1), words)
        squares.xaxis.tick_top()
        squares.set_xticks(range(len(heads)) if row == 0 else [], heads if row == 0 else [], rotation=90, **words)
        if len(drawn) > 1:
            squares.set_ylabel(f"text {row + 1}", fontsize=SIZE)
        bags: tuple[Mapping[int, float], ...] = text.counts, text.tf_idf
        for place, bag in enumerate(bags):
            values, colour = [bag.get(column, 0.0) for column in columns], COLOURS[2 * place]
            _bars(panels.add(row, place + 1, len(columns)), values, most[place], heads, colour, words)
        dense = panels.add(row, 3, len(side))
        _squares(dense, table[text.columns[:MOST_WORDS]], side, SIGNED, (-3, 3), words)
        dense.set_xticks([])
    panels.title(_titles(drawn, width))
    return panels.figure


class _Panels:
    """Panels at their places in inches, so that squares are as large everywhere: a row for each text, four columns."""

    def __init__(self, widths: list[float], letters: float, sides: list[list[str]], bars: int) -> None:
        name = 0.3 if len(sides) > 1 else 0.0
        self.widths = widths
        self.lefts = [EDGE + name + (letters + GAP) * place + letters + sum(widths[:place]) for place in range(4)]
        heights = [max(len(side), bars) * CELL for side in sides]
        self.tops = [EDGE + TITLE + letters + sum(heights[:row]) + GAP * row for row in range(len(sides))]
        self.width, self.height = self.lefts[-1] + widths[-1] + EDGE, self.tops[-1] + heights[-1] + EDGE
        self.figure = new_figure(self.width, self.height)
        self.figure.set_layout_engine("none")

    def add(self, row: int, column: int, lines: int) -> Any:
        tall, wide = lines * CELL, self.widths[column]
        bottom = self.height - self.tops[row] - tall
        place = self.lefts[column] / self.width, bottom / self.height, wide / self.width, tall / self.height
        return self.figure.add_axes(place)

    def title(self, titles: Sequence[str]) -> None:
        for left, wide, title in zip(self.lefts, self.widths, titles, strict=True):
            middle = (left + wide / 2) / self.width
            self.figure.text(middle, 1 - EDGE / self.height, title, ha="center", va="top", fontsize=SIZE)


def _titles(texts: Sequence[Encoded], width: int) -> list[str]:
    """The names of the encodings, and how large each is; T where texts differ in length."""
    lengths, size = {len(text.words) for text in texts}, len(texts[0].vocabulary)
    length = f"{lengths.pop():,}" if len(lengths) == 1 else "T"
    some = f", the first {MOST_NUMBERS}" if width > MOST_NUMBERS else ""
    return [
        f"one-hot\n{length} × {size:,}",
        f"bag of words\n{size:,}",
        f"tf–idf\n{size:,}",
        f"dense, by lot\n{length} × {width:,}{some}",
    ]


def fonts_of(texts: Sequence[Encoded], font: str | None = None) -> Fonts:
    """The fonts the picture takes, and which letters none of them has."""
    words = {label(word.text) for text in texts[:MOST_TEXTS] for word in text.words[:MOST_WORDS]}
    return fonts_for([*words, "…"], font)


def _squares(
    axes: Any, values: Array, side: list[str], colours: str, ends: tuple[float, float], words: dict[str, Any]
) -> None:
    axes.imshow(values, cmap=colours, vmin=ends[0], vmax=ends[1], aspect="equal", interpolation="nearest")
    axes.set_yticks(range(len(side)), side, **words)
    axes.tick_params(length=0, which="both")
    axes.spines[:].set_color("0.8")
    rows, columns = values.shape
    axes.set_xticks(np.arange(1, columns) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, rows) - 0.5, minor=True)
    axes.grid(which="minor", color="0.85", linewidth=0.6)


def _bars(axes: Any, values: list[float], most: float, heads: list[str], colour: str, words: dict[str, Any]) -> None:
    """Down the side the words of the vocabulary, in its order, not in that of the text. Of all texts `most` is most."""
    bars = axes.barh(range(len(values)), values, height=0.7, color=colour)
    axes.bar_label(bars, [f"{value:.3g}" if value else "" for value in values], padding=2, fontsize=SMALL - 1)
    axes.set_yticks(range(len(heads)), heads, **words)
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.set_xlim(0, 1.25 * most)
    axes.set_xticks([])
    axes.tick_params(length=0)
    tidy(axes, grid=False).spines["bottom"].set_visible(False)


# ---------------------------------------------------------------------------------------------------------------------

TITLES = {
    "sinusoidal": "Sinusoidal positions",
    "learned": "Learned positions",
    "rotary": "Rotary positions: sine and cosine of the angles by which queries and keys are turned",
}

TOLD = {"rotary": "by which angles each place turns: their sines and cosines"}
PRODUCT = {"rotary": "q · k, for q = k before they are turned"}


def draw_positions(view: PositionsView) -> "Figure":
    figure = new_figure(13, 8.8)
    (table, products), (curves, distances) = figure.subplots(2, 2, width_ratios=(1.45, 1), height_ratios=(1.45, 1))
    _table(figure, table, view)
    _products(figure, products, view)
    _curves(curves, view)
    _distances(distances, view)
    laid = "" if view.layout is None else f", {view.layout}, base {view.base:g}"
    run = f"{view.name}: " if view.name else ""
    size = f"{counted(view.length, 'place')} × {view.width}"
    figure.suptitle(f"{run}{TITLES[view.kind]} ({size}{laid})", parse_math=False)
    for axis in (table.xaxis, table.yaxis, products.xaxis, products.yaxis, curves.xaxis, distances.xaxis):
        axis.get_major_locator().set_params(integer=True, min_n_ticks=1)  # there is no place between two
    return figure


def _table(figure: "Figure", axes: Any, view: PositionsView) -> None:
    """Places run to the right, as in the curves below."""
    reach = float(np.abs(view.table).max()) or 1.0
    image = axes.imshow(view.table.T, aspect="auto", cmap=SIGNED, vmin=-reach, vmax=reach, interpolation="nearest")
    title = TOLD.get(view.kind, "what each place is told: a column is a place's vector")
    axes.set_title(title, loc="left", fontsize=10)
    axes.set(xlabel="place", ylabel="dimension")
    for number, dimension in enumerate(view.telling()):  # where the curves below are taken from
        mark: dict[str, Any] = {"color": COLOURS[number], "fontsize": 13, "va": "center", "in_layout": False}
        axes.text(1.005, dimension, "◀", transform=axes.get_yaxis_transform(), **mark)
    figure.colorbar(image, ax=axes, pad=0.05, aspect=25)


def _curves(axes: Any, view: PositionsView) -> None:
    tidy(axes)
    for number, dimension in enumerate(view.telling()):
        axes.plot(view.table[:, dimension], color=COLOURS[number], linewidth=1.8, label=_name(view, dimension))
    axes.set_xlim(-0.5, view.length - 0.5)
    axes.set(xlabel="place", ylabel="value")
    axes.set_title("a few dimensions, marked above", loc="left", fontsize=10)
    axes.legend(ncols=2, frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, -0.42))


def _name(view: PositionsView, dimension: int) -> str:
    if not view.wavelengths:
        return f"dimension {dimension}"
    pair = dimension // 2 if view.layout == "interleaved" else dimension
    return f"dimension {dimension}: sine, again after {view.wavelengths[pair]:,.1f} places"


def _products(figure: "Figure", axes: Any, view: PositionsView) -> None:
    products = view.products
    reach = float(np.abs(products).max()) or 1.0
    image = axes.imshow(products, aspect="auto", cmap=SIGNED, vmin=-reach, vmax=reach, interpolation="nearest")
    axes.set_title(f"{PRODUCT.get(view.kind, 'dot product')}, of any two places", loc="left", fontsize=10)
    axes.set(xlabel="place", ylabel="place")
    figure.colorbar(image, ax=axes, pad=0.02, aspect=25)


def _distances(axes: Any, view: PositionsView) -> None:
    tidy(axes).axhline(0, color="black", linewidth=0.6)
    low, high = view.spread
    same = float((high - low).max()) < 1e-5  # as good as nothing in the precision of the table
    if not same:
        axes.fill_between(range(view.length), low, high, color=COLOURS[0], alpha=0.18, linewidth=0)
    axes.plot(view.by_distance, color=COLOURS[0], linewidth=1.8)
    axes.set_xlim(0, max(view.length - 1, 1))
    axes.set(xlabel="distance between two places", ylabel="share of that at distance 0")
    how = "alike wherever they stand" if same else "the mean, and a band of all pairs"
    axes.set_title(f"the same by distance: {how}", loc="left", fontsize=10)
