"""Plots of matrices between words: one attention map, all heads, attention as links, and confusion matrices."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.evaluate.classification import Confusion
from seqloom.inspect.plots.figures import (
    MAX_WIDTH,
    MORE_COLOURS,
    Style,
    display_width,
    draw_cell_borders,
    format_class,
    format_word,
    new_figure,
    text_style,
    truncate,
)
from seqloom.inspect.values import Array
from seqloom.inspect.views.attention import AttentionMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

LETTER = 0.095  # inches of a letter
SIZE, SMALL = 11.0, 7.0  # points
AXIS = 0.25  # inches of the title of an axis
INK = 0.55  # shade from which on letters are white
TURNED: Style = {"rotation": 45, "ha": "left", "rotation_mode": "anchor"}


def _add_title(figure: "Figure", title: Sequence[str], style: Style, size: float = SIZE) -> None:
    """Lines over a figure, each cut to what fits."""
    lines = [truncate(line, int(figure.get_figwidth() / LETTER)) for line in title]
    if lines:
        figure.suptitle("\n".join(lines), fontsize=size, linespacing=1.5, **style)


def _add_bar(figure: "Figure", image: "AxesImage", axes: Any, title: str, **options: Any) -> Any:
    bar = figure.colorbar(image, ax=axes, pad=0.02, **options)
    bar.set_label(title)
    bar.outline.set_visible(False)
    return bar


def _widest_label(words: Iterable[str], size: float = SIZE) -> float:
    """Inches of the longest word."""
    return LETTER * size / SIZE * max(map(display_width, words))


# --- one attention map ------------------------------------------------------------------------------------------------

CELL, SMALLEST = 0.46, 0.2  # inches of a square; where there are many they are drawn smaller
LARGEST = 60.0  # inches of all squares a side: of still more, words are numbered and squares as small as it takes
LONGEST = 40  # letters of a word; what is longer is cut
NUMBERS = 16  # squares a side up to which they hold their numbers
KNOWN = "#D55E00"


def draw_alignment(
    grid: AttentionMap, title: Sequence[str] = (), *, links: Iterable[tuple[int, int]] = (), font: str | None = None
) -> "Figure":
    """Draw weights from 0 to 1: keys across the top, queries, or what they produce, down the side.

    `links` (source place, target place) are outlined: known ones, say. `title` are lines, each cut
    to what fits. `font` is the family to try first.
    """
    from matplotlib.patches import Rectangle

    sides, heads = ([truncate(format_word(word), LONGEST) for word in words] for words in (grid.rows, grid.columns))
    most = max(len(sides), len(heads))
    cell, numbered = min(CELL, max(SMALLEST, MAX_WIDTH / 2 / most), LARGEST / most), most * SMALLEST > LARGEST
    size = max(SMALL, SIZE * cell / CELL)
    left, top = _widest_label(sides, size), _widest_label(heads, size)
    is_flat = top < 0.9 * cell
    height = len(sides) * cell + (0.3 if is_flat else 0.75 * top + 0.2) + 0.25 * len(title) + 0.3 + AXIS
    figure = new_figure(max(5.0, left + len(heads) * cell + 1.5 + AXIS), height)
    style = text_style([*map(format_word, grid.rows), *map(format_word, grid.columns), *title], font)
    axes = figure.add_subplot()
    image = axes.imshow(grid.weights, cmap="Blues", vmin=0, vmax=1, aspect="equal", interpolation="nearest")
    axes.xaxis.tick_top()
    if not numbered:
        axes.set_xticks(range(len(heads)), heads, fontsize=size, **style, **({} if is_flat else TURNED))
        axes.set_yticks(range(len(sides)), sides, fontsize=size, **style)
        axes.spines[:].set_visible(False)
        draw_cell_borders(axes, len(sides), len(heads), "white", 1.2 if most < 40 else 0.5)
        if most <= NUMBERS:
            for row, column, weight in find_links(grid.weights):
                middle: Style = {"ha": "center", "va": "center_baseline", "color": "white" if weight > INK else "black"}
                axes.text(column, row, f"{weight:.2f}".lstrip("0"), **middle, fontsize=8)
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(grid.axes.column, color="0.35", labelpad=6)
    axes.set_ylabel(grid.axes.row, color="0.35")
    for source, target in links:
        corner = (source - 0.46, target - 0.46)
        axes.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=KNOWN, linewidth=2))
    _add_bar(figure, image, axes, "attention", aspect=18, shrink=min(1.0, 2.6 / (len(sides) * cell)))
    _add_title(figure, title, style)
    return figure


# --- all heads --------------------------------------------------------------------------------------------------------

THUMBNAIL = 1.5  # inches a side, where words are few
SMALLEST_NAMED = 0.125  # inches of a square whose word is still named
LARGE_NAME, SMALL_NAME = 9.0, 6.5  # points of these names
NAMED = 20.0  # inches of all squares a side: where names would take more, thumbnails are small and without them
LONGEST_NAME = 16  # letters of a name beside a thumbnail


def draw_heads(
    maps: AttentionMap,
    title: Sequence[str] = (),
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    font: str | None = None,
) -> "Figure":
    """Draw a thumbnail for each head, layers down, heads across, all on one scale from 0 to 1.

    Words are named at the left and below, unless there are too many. `layers` and `heads`, from 1,
    choose some.
    """
    layers = range(1, len(maps.weights) + 1) if layers is None else layers
    heads = range(1, maps.weights.shape[1] + 1) if heads is None else heads
    sides, feet = ([truncate(format_word(word), LONGEST_NAME) for word in words] for words in (maps.rows, maps.columns))
    most = max(len(sides), len(feet))
    cell = min(0.22, max(SMALLEST_NAMED, THUMBNAIL / most))
    is_named = max(len(heads) * len(feet), len(layers) * len(sides)) * cell <= NAMED
    if not is_named:
        cell = min(1.2 * THUMBNAIL / most, MAX_WIDTH / (most * max(len(layers), len(heads))))
    size = min(LARGE_NAME, max(SMALL_NAME, 72 * 0.8 * cell))
    left, below = (_widest_label(words, size) if is_named else 0.0 for words in (sides, feet))
    width = max(5.0, len(heads) * (len(feet) * cell + 0.14) + left + 1.5 + AXIS)
    height = len(layers) * (len(sides) * cell + 0.14) + below + 0.9 + 0.25 * len(title) + AXIS
    figure = new_figure(width, height)
    style = text_style([*sides, *feet, *title], font)
    panels = figure.subplots(len(layers), len(heads), squeeze=False, sharex=True, sharey=True)
    for row, layer in zip(panels, layers, strict=True):
        for axes, head in zip(row, heads, strict=True):
            axes.tick_params(length=0)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(color="0.75", linewidth=0.8)
            weights = maps.weights[layer - 1, head - 1]
            image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="equal", interpolation="nearest")
            if layer == layers[0]:
                axes.set_title(f"head {head}", fontsize=10)
        row[0].set_ylabel(f"layer {layer}", fontsize=10, labelpad=8)
    if is_named:
        for axes in panels[:, 0]:
            axes.set_yticks(range(len(sides)), sides, fontsize=size, **style)
        for axes in panels[-1]:
            axes.set_xticks(range(len(feet)), feet, fontsize=size, rotation=90, **style)
    unnamed = "" if is_named else "; too many words to name them: each map begins at the upper left"
    figure.supxlabel(f"{maps.axes.column}{unnamed}", fontsize=10, color="0.35")
    figure.supylabel(maps.axes.row, fontsize=10, color="0.35")
    _add_bar(figure, image, panels, "attention", fraction=0.03, aspect=25, shrink=min(1.0, 4 / height))
    _add_title(figure, title, style)
    return figure


# --- links ------------------------------------------------------------------------------------------------------------

MIN_LINK_WEIGHT = 0.05  # a link of less weight is not drawn
LINE = 0.34  # inches from word to word in a picture of links
SPAN = 3.4  # inches between its two columns


def draw_links(
    grid: AttentionMap, title: Sequence[str] = (), *, min_weight: float = MIN_LINK_WEIGHT, font: str | None = None
) -> "Figure":
    """Draw rows of the grid at the left, columns at the right, joined by lines: the more attention, the stronger.

    Lines of less than `min_weight` are not drawn. The titles of the grid's axes stand over the two
    columns.
    """
    left, right = (
        [truncate(format_word(word), 2 * LONGEST_NAME) for word in words] for words in (grid.rows, grid.columns)
    )
    margins = [0.3 + _widest_label([*words, head]) for words, head in zip((left, right), grid.axes, strict=True)]
    count = max(len(left), len(right))
    line = min(LINE, LARGEST / count)
    width = max(5.0, sum(margins) + SPAN)
    figure = new_figure(width, line * count + 0.9 + 0.25 * len(title))
    style = text_style([*left, *right, *title, *grid.axes], font) | {"fontsize": min(SIZE, 72 * 0.75 * line)}
    axes = figure.add_subplot()
    axes.axis("off")
    heights = []
    for x, align, words, head in ((-0.03, "right", left, grid.axes[0]), (1.03, "left", right, grid.axes[1])):
        # Spread towards the height of the longer column, and centred.
        step = 1.0 if len(words) < 2 else min(5.0, (count - 1) / (len(words) - 1))
        heights.append((count - 1) / 2 + step * (np.arange(len(words)) - (len(words) - 1) / 2))
        for word, y in zip(words, heights[-1], strict=True):
            axes.text(x, y, word, ha=align, va="center_baseline", **style)
        axes.text(x, -1.1, head, ha=align, va="center_baseline", color="0.4", **style)
    _add_links(axes, find_links(grid.weights, min_weight), *heights)
    span = SPAN + max(0.0, width - sum(margins) - SPAN)
    axes.set(xlim=(-margins[0] / span, 1 + margins[1] / span), ylim=(count - 0.4, -1.6))
    figure.supxlabel(f"lines of less than {min_weight:g} are not drawn", fontsize=8, color="0.4")
    _add_title(figure, title, {name: style[name] for name in ("family", "parse_math")})
    return figure


def _add_links(axes: "Axes", links: list[tuple[int, int, float]], left: Array, right: Array) -> None:
    """A curve for each link, the strongest on top. Those of one word have one colour."""
    from matplotlib.collections import PathCollection
    from matplotlib.colors import to_rgba
    from matplotlib.path import Path

    curve = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    paths, colours, widths = [], [], []
    for row, column, weight in sorted(links, key=lambda link: link[2]):
        a, b = left[row], right[column]
        paths.append(Path([(0, a), (0.45, a), (0.55, b), (1, b)], curve))
        colours.append(to_rgba(MORE_COLOURS[row % len(MORE_COLOURS)], 0.15 + 0.8 * min(weight, 1.0)))
        widths.append(0.5 + 4.5 * weight)
    axes.add_collection(
        PathCollection(paths, facecolors="none", edgecolors=colours, linewidths=widths, capstyle="round")
    )


def find_links(weights: Array, min_weight: float = MIN_LINK_WEIGHT) -> list[tuple[int, int, float]]:
    """Row, column and weight of what is at least `min_weight`, row by row."""
    places = np.argwhere(weights >= min_weight).tolist()
    return [(row, column, float(weights[row, column])) for row, column in places]


# --- confusion --------------------------------------------------------------------------------------------------------

SIDE = 7.5  # inches that the squares take together, where few classes leave the choice
LARGEST_CLASS, SMALLEST_CLASS = 1.15, 0.36  # inches of a square
MOST_CLASSES = 200  # whose names are written; of more the squares are as small as it takes, and nameless
WIDEST_NAMED, WIDEST_NAMELESS = 30.0, 15.0  # inches of all squares a side
LONGEST_CLASS = 26  # letters of a name; what is longer is cut
TWO_LINES = 0.55  # inches of a square with room for share and count
SCALE = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)  # marks of the colour bar


def draw_confusion(
    confusion: Confusion,
    title: Sequence[str] = (),
    *,
    label_kind: str = "class",
    unit: str = "texts",
    font: str | None = None,
) -> "Figure":
    """Draw a row for each true class, a column for each predicted one. A square's shade is the share of its row; how
    many the row has stands at its end. The shades follow the square root, so that a mistake of one
    in fifty is seen.

    `label_kind` is what texts are sorted into, `unit` what is counted. `title` are lines, each cut to what
    fits. `font` is the family to try first.
    """
    from matplotlib.colors import PowerNorm

    names = [truncate(format_class(name), LONGEST_CLASS) for name in confusion.labels]
    count, is_named = len(names), len(names) <= MOST_CLASSES
    widest = WIDEST_NAMED if is_named else WIDEST_NAMELESS
    cell = min(LARGEST_CLASS, max(SMALLEST_CLASS, SIDE / count), widest / count)
    size = min(SIZE, max(7.0, 72 * 0.34 * cell))
    long = _widest_label(names, size)
    is_flat = long < 0.9 * cell
    height = count * cell + (0.4 if is_flat else 0.75 * long + 0.3) + 0.6 + 0.25 * len(title)
    figure = new_figure(max(5.0, count * cell + long + 2.6), height)
    style = text_style([*map(format_class, confusion.labels), *title], font)
    axes, shades = figure.add_subplot(), PowerNorm(0.5, vmin=0, vmax=1)
    image = axes.imshow(confusion.rates(), cmap="Blues", norm=shades, aspect="equal", interpolation="nearest")
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(f"{label_kind} the model says", fontsize=SIZE, labelpad=8)
    axes.set_ylabel(f"true {label_kind}", fontsize=SIZE, labelpad=8)
    axes.spines[:].set_visible(False)
    axes.set(xticks=[], yticks=[])
    axes.tick_params(length=0, which="both")
    if is_named:
        axes.set_xticks(range(count), names, fontsize=size, **style, **({} if is_flat else TURNED))
        axes.set_yticks(range(count), names, fontsize=size, **style)
        right = axes.secondary_yaxis("right")
        right.spines[["top", "right"]].set_visible(False)
        right.set_yticks(range(count), [f"{support:,}" for support in confusion.support], fontsize=size, color="0.35")
        right.set_ylabel(unit, fontsize=SIZE, color="0.35")
        right.tick_params(length=0)
        draw_cell_borders(axes, count, count, *(("0.85", 0.5) if count > 12 else ("white", 1.2)))
    if cell >= SMALLEST_CLASS:
        _write_counts(axes, confusion, cell)
    bar = _add_bar(figure, image, axes, f"share of the true {label_kind}", aspect=20, ticks=SCALE,
                   shrink=min(1.0, 4.5 / (count * cell)))  # fmt: skip
    bar.ax.set_yticklabels([f"{mark:.0%}" for mark in SCALE])
    _add_title(figure, title, style, SIZE + 1)
    return figure


def _write_counts(axes: "Axes", confusion: Confusion, cell: float) -> None:
    """Counts, and in large squares shares, as large as fits."""
    shares = confusion.rates()
    for row, column in np.argwhere(confusion.counts).tolist():
        texts, share = int(confusion.counts[row, column]), float(shares[row, column])
        shown = f"{_format_percent(share)}\n{texts:,}" if cell >= TWO_LINES else _abbreviate(texts)
        room = 72 * 0.86 * cell / (0.64 * max(map(len, shown.split("\n"))))  # points that fit the square's width
        colour = "white" if share**0.5 > INK else "black"
        middle: Style = {"ha": "center", "va": "center", "linespacing": 1.25}
        axes.text(column, row, shown, color=colour, fontsize=min(room, 10.0), **middle)


def _format_percent(share: float) -> str:
    """Neither is a little nothing, nor almost all everything."""
    if share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{share:.0%}"


def _abbreviate(count: int) -> str:
    """At most four letters: 950, 9.5k, 95k, 950k, 9M."""
    if count < 1000:
        return str(count)
    for factor, mark in ((1e3, "k"), (1e6, "M")):
        if count < 9.95 * factor:
            return f"{count / factor:.1f}{mark}"
        if count < 999.5 * factor:
            return f"{count / factor:.0f}{mark}"
    return f"{count / 1e9:.0f}G"
