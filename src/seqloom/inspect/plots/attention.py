"""Pictures of one attention map: keys across the top, queries, or what they produce, down the side.

Pictures of heads: all of a part as thumbnails, and attention as links between words.

One head alone is a heat map: `draw_alignment`.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.inspect.plots.figures import MORE_COLOURS, WIDEST, Fonts, fonts_for, label, new_figure
from seqloom.inspect.values import Array
from seqloom.inspect.views.attention import AttentionMap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL, SMALLEST = 0.46, 0.2  # inches of a square; where there are many they are drawn smaller
LARGEST = 60.0  # inches of all squares a side: of still more, words are numbered and squares as small as it takes
LONGEST = 40  # letters of a word; what is longer is cut
LETTER = 0.095  # inches of a letter
SIZE, SMALL = 11.0, 7.0  # points
AXIS = 0.25  # inches of the title of an axis
NUMBERS = 16  # squares a side up to which they hold their numbers
KNOWN = "#D55E00"


def draw_alignment(
    grid: AttentionMap, title: Sequence[str] = (), *, links: Iterable[tuple[int, int]] = (), font: str | None = None
) -> "Figure":
    """A heat map of weights from 0 to 1. `links` (source place, target place) are outlined: known ones, say.

    `title` are lines, each cut to what fits. `font` is the family to try first.
    """
    sides, heads = ([cut(label(word), LONGEST) for word in words] for words in (grid.rows, grid.columns))
    most = max(len(sides), len(heads))
    cell, numbered = min(CELL, max(SMALLEST, WIDEST / 2 / most), LARGEST / most), most * SMALLEST > LARGEST
    size = max(SMALL, SIZE * cell / CELL)
    letter = LETTER * size / SIZE
    left, top = letter * max(map(cells_of, sides)), letter * max(map(cells_of, heads))
    flat = top < 0.9 * cell
    width = max(5.0, left + len(heads) * cell + 1.5 + AXIS)
    height = len(sides) * cell + (0.3 if flat else 0.75 * top + 0.2) + 0.25 * len(title) + 0.3 + AXIS
    figure = new_figure(width, height)
    words: dict[str, Any] = {"family": fonts_of(grid, title, font).families, "parse_math": False}
    axes = figure.add_subplot()
    image = axes.imshow(grid.weights, cmap="Blues", vmin=0, vmax=1, aspect="equal", interpolation="nearest")
    turned: dict[str, Any] = {} if flat else {"rotation": 45, "ha": "left", "rotation_mode": "anchor"}
    axes.xaxis.tick_top()
    if not numbered:
        axes.set_xticks(range(len(heads)), heads, fontsize=size, **words, **turned)
        axes.set_yticks(range(len(sides)), sides, fontsize=size, **words)
        _finish(axes, grid)
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(grid.axes.column, color="0.35", labelpad=6)
    axes.set_ylabel(grid.axes.row, color="0.35")
    for source, target in links:
        axes.add_patch(_outline(source, target))
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=18, shrink=min(1.0, 2.6 / (len(sides) * cell)))
    bar.set_label("attention")
    bar.outline.set_visible(False)
    if title:
        lines = [cut(line, int(width / LETTER)) for line in title]
        figure.suptitle("\n".join(lines), fontsize=SIZE, linespacing=1.5, **words)
    return figure


def fonts_of(grid: AttentionMap, title: Sequence[str] = (), font: str | None = None) -> Fonts:
    """The fonts the picture takes, and which letters none of them has."""
    return fonts_for([*map(label, grid.rows), *map(label, grid.columns), *title], font)


def _finish(axes: Any, grid: AttentionMap) -> None:
    """Squares with white lines between them and, where there are few, their numbers."""
    rows, columns = grid.weights.shape
    axes.tick_params(length=0, which="both")
    axes.spines[:].set_visible(False)
    axes.set_xticks([place - 0.5 for place in range(1, columns)], minor=True)
    axes.set_yticks([place - 0.5 for place in range(1, rows)], minor=True)
    axes.grid(which="minor", color="white", linewidth=1.2 if max(rows, columns) < 40 else 0.5)
    if max(rows, columns) > NUMBERS:
        return
    for row in range(rows):
        for column in range(columns):
            weight = float(grid.weights[row, column])
            if weight >= 0.05:
                colour = "white" if weight > 0.55 else "black"
                middle = {"ha": "center", "va": "center_baseline"}
                axes.text(column, row, f"{weight:.2f}".lstrip("0"), **middle, color=colour, fontsize=8)


def _outline(source: int, target: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((source - 0.46, target - 0.46), 0.92, 0.92, fill=False, edgecolor=KNOWN, linewidth=2)


def cells_of(word: str) -> int:
    """The width of a word in letters: two for a wide one, none for a mark."""
    return sum(
        0 if unicodedata.category(letter)[0] == "M" else 1 + (unicodedata.east_asian_width(letter) in "WF")
        for letter in word
    )


def cut(line: str, width: int) -> str:
    if cells_of(line) <= width:
        return line
    ends = accumulate(map(cells_of, line))
    return line[: sum(1 for _ in takewhile(lambda end: end < width, ends))].rstrip() + "…"


# ---------------------------------------------------------------------------------------------------------------------

LEAST = 0.05  # links of less weight are not drawn
THUMBNAIL = 1.5  # inches a side, where words are few
SMALLEST_NAMED = 0.125  # inches of a square whose word is still named
LARGE_NAME, SMALL_NAME = 9.0, 6.5  # points of these names
NAMED = 20.0  # inches of all squares a side: where names would take more, thumbnails are small and without them
LONGEST_NAME = 16  # letters of a name beside a thumbnail
LINE = 0.34  # inches from word to word in a picture of links
SPAN = 3.4  # inches between its two columns


# --- all heads ------------------------------------------------------------------------------------------------------


def draw_heads(
    maps: AttentionMap,
    title: Sequence[str] = (),
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    font: str | None = None,
) -> "Figure":
    """A thumbnail for each head, layers down, heads across, all on one scale from 0 to 1. Words are named at the left
    and below, unless there are too many. `layers` and `heads`, counted from 1, choose some."""
    layers = range(1, len(maps.weights) + 1) if layers is None else layers
    heads = range(1, maps.weights.shape[1] + 1) if heads is None else heads
    sides, feet = ([cut(label(word), LONGEST_NAME) for word in words] for words in (maps.rows, maps.columns))
    cell, named = _cell(len(sides), len(feet), len(layers), len(heads))
    size = min(LARGE_NAME, max(SMALL_NAME, 72 * 0.8 * cell))
    letter = LETTER * size / SIZE
    left, below = (letter * max(map(cells_of, words)) if named else 0.0 for words in (sides, feet))
    width = max(5.0, len(heads) * (len(feet) * cell + 0.14) + left + 1.5 + AXIS)
    height = len(layers) * (len(sides) * cell + 0.14) + below + 0.9 + 0.25 * len(title) + AXIS
    figure = new_figure(width, height)
    words = {"family": fonts_for([*sides, *feet, *title], font).families, "parse_math": False}
    panels = figure.subplots(len(layers), len(heads), squeeze=False, sharex=True, sharey=True)
    for row, layer in zip(panels, layers, strict=True):
        for axes, head in zip(row, heads, strict=True):
            image = _thumbnail(axes, maps.weights[layer - 1, head - 1])
            if layer == layers[0]:
                axes.set_title(f"head {head}", fontsize=10)
        row[0].set_ylabel(f"layer {layer}", fontsize=10, labelpad=8)
    if named:
        for axes in panels[:, 0]:
            axes.set_yticks(range(len(sides)), sides, fontsize=size, **words)
        for axes in panels[-1]:
            axes.set_xticks(range(len(feet)), feet, fontsize=size, rotation=90, **words)
    unnamed = "" if named else "; too many words to name them: each map begins at the upper left"
    figure.supxlabel(f"{maps.axes.column}{unnamed}", fontsize=10, color="0.35")
    figure.supylabel(maps.axes.row, fontsize=10, color="0.35")
    bar = figure.colorbar(image, ax=panels, pad=0.02, fraction=0.03, aspect=25, shrink=min(1.0, 4 / height))
    bar.set_label("attention")
    bar.outline.set_visible(False)
    _title(figure, title, width, words)
    return figure


def _cell(rows: int, columns: int, layers: int, heads: int) -> tuple[float, bool]:
    """Inches of a square, and whether words can be named."""
    most = max(rows, columns)
    cell = min(0.22, max(SMALLEST_NAMED, THUMBNAIL / most))
    if max(heads * columns, layers * rows) * cell <= NAMED:
        return cell, True
    return min(1.2 * THUMBNAIL / most, WIDEST / (most * max(layers, heads))), False


def _thumbnail(axes: Any, weights: Array) -> Any:
    axes.tick_params(length=0)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color="0.75", linewidth=0.8)
    return axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="equal", interpolation="nearest")


# --- links ----------------------------------------------------------------------------------------------------------


def draw_links(
    grid: AttentionMap,
    title: Sequence[str] = (),
    *,
    least: float = LEAST,
    font: str | None = None,
) -> "Figure":
    """Rows of the grid at the left, columns at the right, joined by lines: the more attention, the stronger. Lines of
    less than `least` are not drawn. The titles of the grid's axes stand over the two columns."""
    heads = grid.axes
    left, right = ([cut(label(word), 2 * LONGEST_NAME) for word in words] for words in (grid.rows, grid.columns))
    margins = [
        0.3 + LETTER * max(map(cells_of, [*words, head])) for words, head in ((left, heads[0]), (right, heads[1]))
    ]
    count = max(len(left), len(right))
    line = min(LINE, LARGEST / count)
    width, height = max(5.0, sum(margins) + SPAN), line * count + 0.9 + 0.25 * len(title)
    figure = new_figure(width, height)
    words: dict[str, Any] = {"family": fonts_for([*left, *right, *title, *heads], font).families, "parse_math": False}
    axes = figure.add_subplot()
    axes.axis("off")
    size = min(SIZE, 72 * 0.75 * line)
    places = [_places(len(side), count) for side in (left, right)]
    for x, side, ys, align in ((-0.03, left, places[0], "right"), (1.03, right, places[1], "left")):
        for word, y in zip(side, ys, strict=True):
            axes.text(x, y, word, ha=align, va="center_baseline", fontsize=size, **words)
        head = heads[align == "left"]
        axes.text(x, -1.1, head, ha=align, va="center_baseline", fontsize=size, color="0.4", **words)
    axes.add_collection(_lines(grid.weights, places, least))
    span = SPAN + max(0.0, width - sum(margins) - SPAN)
    axes.set(xlim=(-margins[0] / span, 1 + margins[1] / span), ylim=(count - 0.4, -1.6))
    figure.supxlabel(f"lines of less than {least:g} are not drawn", fontsize=8, color="0.4")
    _title(figure, title, width, words)
    return figure


def _places(count: int, most: int) -> Array:
    """Where the words of a column stand: spread towards the height of the longer one, and centred."""
    step = 1.0 if count < 2 else min(5.0, (most - 1) / (count - 1))
    return (most - 1) / 2 + step * (np.arange(count) - (count - 1) / 2)


def _lines(weights: Array, places: Sequence[Array], least: float) -> Any:
    """A curve for each weight of at least `least`, the strongest on top. Those of one word have one colour."""
    from matplotlib.collections import PathCollection
    from matplotlib.colors import to_rgba
    from matplotlib.path import Path

    strong = sorted(linked(weights, least), key=lambda link: link[2])
    curve = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    paths, colours, widths = [], [], []
    for row, column, weight in strong:
        a, b = places[0][row], places[1][column]
        paths.append(Path([(0, a), (0.45, a), (0.55, b), (1, b)], curve))
        colours.append(to_rgba(MORE_COLOURS[row % len(MORE_COLOURS)], 0.15 + 0.8 * min(weight, 1.0)))
        widths.append(0.5 + 4.5 * weight)
    return PathCollection(paths, facecolors="none", edgecolors=colours, linewidths=widths, capstyle="round")


def linked(weights: Array, least: float = LEAST) -> list[tuple[int, int, float]]:
    """Row, column and weight of what is at least `least`, row by row."""
    rows, columns = np.nonzero(weights >= least)
    return [
        (row, column, float(weights[row, column])) for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
    ]


# --- both -----------------------------------------------------------------------------------------------------------


def _title(figure: "Figure", title: Iterable[str], width: float, words: dict[str, Any]) -> None:
    lines = [cut(line, int(width / LETTER)) for line in title]
    if lines:
        figure.suptitle("\n".join(lines), fontsize=SIZE, linespacing=1.5, **words)
