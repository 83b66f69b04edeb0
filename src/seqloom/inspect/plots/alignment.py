"""Pictures of one attention map: keys across the top, queries, or what they produce, down the side."""

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any

from seqloom.inspect.plots.figures import WIDEST, label, new_figure
from seqloom.inspect.plots.fonts import Fonts, fonts_for
from seqloom.inspect.views.alignment import Grid

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
    grid: Grid, title: Sequence[str] = (), *, links: Iterable[tuple[int, int]] = (), font: str | None = None
) -> "Figure":
    """A heat map of weights from 0 to 1. `links` (source place, target place) are outlined: known ones, say.

    `title` are lines, each cut to what fits. `font` is the family to try first.
    """
    sides, heads = ([cut(label(word), LONGEST) for word in words] for words in (grid.target, grid.source))
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


def fonts_of(grid: Grid, title: Sequence[str] = (), font: str | None = None) -> Fonts:
    """The fonts the picture takes, and which letters none of them has."""
    return fonts_for([*map(label, grid.target), *map(label, grid.source), *title], font)


def _finish(axes: Any, grid: Grid) -> None:
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
