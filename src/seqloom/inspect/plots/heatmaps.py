"""Plots of matrices with words as labels: attention maps, attention heads, attention links, confusion matrices."""

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

LETTER = 0.095  # average width of a character in inches
SIZE, SMALL = 11.0, 7.0  # font sizes in points
AXIS = 0.25  # height of an axis title in inches
WHITE_TEXT_SHADE = 0.55  # text is white on darker shades
ROTATED: Style = {"rotation": 45, "ha": "left", "rotation_mode": "anchor"}


def _add_title(figure: "Figure", title: Sequence[str], style: Style, size: float = SIZE) -> None:
    """Add title lines above a figure. Each line is truncated to the figure's width."""
    lines = [truncate(line, int(figure.get_figwidth() / LETTER)) for line in title]
    if lines:
        figure.suptitle("\n".join(lines), fontsize=size, linespacing=1.5, **style)


def _add_bar(figure: "Figure", image: "AxesImage", axes: Any, title: str, **options: Any) -> Any:
    bar = figure.colorbar(image, ax=axes, pad=0.02, **options)
    bar.set_label(title)
    bar.outline.set_visible(False)
    return bar


def _widest_label(words: Iterable[str], size: float = SIZE) -> float:
    """Return the width of the longest word in inches."""
    return LETTER * size / SIZE * max(map(display_width, words))


# --- one attention map ------------------------------------------------------------------------------------------------

CELL, MIN_CELL = 0.46, 0.2  # inches per cell, and the minimum in large maps
MAX_SIDE = 60.0  # maximum inches of all cells; longer texts get smaller cells, and numbers instead of words
MAX_WORD = 40  # maximum characters of a word; longer words are truncated
MAX_WRITTEN_CELLS = 16  # maximum per side; in larger maps, weights are not written into the cells
LINK_COLOUR = "#D55E00"


def draw_alignment(
    grid: AttentionMap, title: Sequence[str] = (), *, links: Iterable[tuple[int, int]] = (), font: str | None = None
) -> "Figure":
    """Draw weights from 0 to 1 with keys as columns and with queries, or the tokens they produce, as rows.

    `links` are pairs (source position, target position), such as reference alignments, whose cells are outlined. Each
    line of `title` is truncated to the width. `font` is the preferred font family.
    """
    from matplotlib.patches import Rectangle

    sides, heads = ([truncate(format_word(word), MAX_WORD) for word in words] for words in (grid.rows, grid.columns))
    longest = max(len(sides), len(heads))
    cell = min(CELL, max(MIN_CELL, MAX_WIDTH / 2 / longest), MAX_SIDE / longest)
    is_numbered = longest * MIN_CELL > MAX_SIDE
    size = max(SMALL, SIZE * cell / CELL)
    left, top = _widest_label(sides, size), _widest_label(heads, size)
    is_flat = top < 0.9 * cell
    height = len(sides) * cell + (0.3 if is_flat else 0.75 * top + 0.2) + 0.25 * len(title) + 0.3 + AXIS
    figure = new_figure(max(5.0, left + len(heads) * cell + 1.5 + AXIS), height)
    style = text_style([*map(format_word, grid.rows), *map(format_word, grid.columns), *title], font)
    axes = figure.add_subplot()
    image = axes.imshow(grid.weights, cmap="Blues", vmin=0, vmax=1, aspect="equal", interpolation="nearest")
    axes.xaxis.tick_top()
    if not is_numbered:
        axes.set_xticks(range(len(heads)), heads, fontsize=size, **style, **({} if is_flat else ROTATED))
        axes.set_yticks(range(len(sides)), sides, fontsize=size, **style)
        axes.spines[:].set_visible(False)
        draw_cell_borders(axes, len(sides), len(heads), "white", 1.2 if longest < 40 else 0.5)
        if longest <= MAX_WRITTEN_CELLS:
            for row, column, weight in find_links(grid.weights):
                colour = "white" if weight > WHITE_TEXT_SHADE else "black"
                middle: Style = {"ha": "center", "va": "center_baseline", "color": colour}
                axes.text(column, row, f"{weight:.2f}".lstrip("0"), **middle, fontsize=8)
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(grid.axes.column, color="0.35", labelpad=6)
    axes.set_ylabel(grid.axes.row, color="0.35")
    for source, target in links:
        corner = (source - 0.46, target - 0.46)
        axes.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=LINK_COLOUR, linewidth=2))
    _add_bar(figure, image, axes, "attention", aspect=18, shrink=min(1.0, 2.6 / (len(sides) * cell)))
    _add_title(figure, title, style)
    return figure


# --- all heads --------------------------------------------------------------------------------------------------------

THUMBNAIL = 1.5  # inches of a thumbnail's side for short texts
MIN_LABELLED_CELL = 0.125  # minimum inches of a cell with a label
MAX_LABEL_SIZE, MIN_LABEL_SIZE = 9.0, 6.5  # font sizes in points
MAX_LABELLED_SIDE = 20.0  # maximum inches of all cells; larger grids have small thumbnails without labels
MAX_LABEL = 16  # maximum characters of a label beside a thumbnail


def draw_heads(
    maps: AttentionMap,
    title: Sequence[str] = (),
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    font: str | None = None,
) -> "Figure":
    """Draw a thumbnail for each head, with layers as rows and heads as columns. All thumbnails use one scale from 0 to
    1.

    Labels are drawn at the left and below unless there are too many words. `layers` and `heads` select maps, counted
    from 1.
    """
    layers = range(1, len(maps.weights) + 1) if layers is None else layers
    heads = range(1, maps.weights.shape[1] + 1) if heads is None else heads
    sides, feet = ([truncate(format_word(word), MAX_LABEL) for word in words] for words in (maps.rows, maps.columns))
    longest = max(len(sides), len(feet))
    cell = min(0.22, max(MIN_LABELLED_CELL, THUMBNAIL / longest))
    is_labelled = max(len(heads) * len(feet), len(layers) * len(sides)) * cell <= MAX_LABELLED_SIDE
    if not is_labelled:
        cell = min(1.2 * THUMBNAIL / longest, MAX_WIDTH / (longest * max(len(layers), len(heads))))
    size = min(MAX_LABEL_SIZE, max(MIN_LABEL_SIZE, 72 * 0.8 * cell))
    left, below = (_widest_label(words, size) if is_labelled else 0.0 for words in (sides, feet))
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
    if is_labelled:
        for axes in panels[:, 0]:
            axes.set_yticks(range(len(sides)), sides, fontsize=size, **style)
        for axes in panels[-1]:
            axes.set_xticks(range(len(feet)), feet, fontsize=size, rotation=90, **style)
    note = "" if is_labelled else "; not labelled because there are too many words; each map starts at the upper left"
    figure.supxlabel(f"{maps.axes.column}{note}", fontsize=10, color="0.35")
    figure.supylabel(maps.axes.row, fontsize=10, color="0.35")
    _add_bar(figure, image, panels, "attention", fraction=0.03, aspect=25, shrink=min(1.0, 4 / height))
    _add_title(figure, title, style)
    return figure


# --- links ------------------------------------------------------------------------------------------------------------

MIN_LINK_WEIGHT = 0.05  # weaker links are not drawn
LINE_HEIGHT = 0.34  # inches per line
SPAN = 3.4  # inches between the two columns of words


def draw_links(
    grid: AttentionMap, title: Sequence[str] = (), *, min_weight: float = MIN_LINK_WEIGHT, font: str | None = None
) -> "Figure":
    """Draw the rows of the map at the left, its columns at the right, and a line for each link, shaded by weight.

    Links below `min_weight` are not drawn. The axis titles of the map become the headings of the two columns.
    """
    left, right = (
        [truncate(format_word(word), 2 * MAX_LABEL) for word in words] for words in (grid.rows, grid.columns)
    )
    margins = [0.3 + _widest_label([*words, head]) for words, head in zip((left, right), grid.axes, strict=True)]
    count = max(len(left), len(right))
    line = min(LINE_HEIGHT, MAX_SIDE / count)
    width = max(5.0, sum(margins) + SPAN)
    figure = new_figure(width, line * count + 0.9 + 0.25 * len(title))
    style = text_style([*left, *right, *title, *grid.axes], font) | {"fontsize": min(SIZE, 72 * 0.75 * line)}
    axes = figure.add_subplot()
    axes.axis("off")
    heights = []
    for x, align, words, head in ((-0.03, "right", left, grid.axes[0]), (1.03, "left", right, grid.axes[1])):
        # Spread the shorter column towards the height of the longer column, and centre it.
        step = 1.0 if len(words) < 2 else min(5.0, (count - 1) / (len(words) - 1))
        heights.append((count - 1) / 2 + step * (np.arange(len(words)) - (len(words) - 1) / 2))
        for word, y in zip(words, heights[-1], strict=True):
            axes.text(x, y, word, ha=align, va="center_baseline", **style)
        axes.text(x, -1.1, head, ha=align, va="center_baseline", color="0.4", **style)
    _add_links(axes, find_links(grid.weights, min_weight), *heights)
    span = SPAN + max(0.0, width - sum(margins) - SPAN)
    axes.set(xlim=(-margins[0] / span, 1 + margins[1] / span), ylim=(count - 0.4, -1.6))
    figure.supxlabel(f"weights below {min_weight:g} are not drawn", fontsize=8, color="0.4")
    _add_title(figure, title, {name: style[name] for name in ("family", "parse_math")})
    return figure


def _add_links(axes: "Axes", links: list[tuple[int, int, float]], left: Array, right: Array) -> None:
    """Draw a curve for each link, the strongest links on top. All links of a row have the same colour."""
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
    """Return row, column and weight of each weight of at least `min_weight`, row by row."""
    links = np.argwhere(weights >= min_weight).tolist()
    return [(row, column, float(weights[row, column])) for row, column in links]


# --- confusion --------------------------------------------------------------------------------------------------------

SIDE = 7.5  # inches of all cells, if the cell limits allow it
MAX_CLASS_CELL, MIN_CLASS_CELL = 1.15, 0.36  # inches
MAX_LABELLED_CLASSES = 200  # with more classes, cells are smaller and unlabelled
MAX_LABELLED_MATRIX, MAX_UNLABELLED_MATRIX = 30.0, 15.0  # inches of all cells per side
MAX_CLASS_NAME = 26  # characters; longer names are truncated
MIN_TWO_LINE_CELL = 0.55  # minimum inches of a cell that contains both a percentage and a count
SCALE = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)  # ticks of the colour bar


def draw_confusion(
    confusion: Confusion,
    title: Sequence[str] = (),
    *,
    label_kind: str = "class",
    unit: str = "texts",
    font: str | None = None,
) -> "Figure":
    """Draw a confusion matrix: true classes as rows, predicted classes as columns.

    The shade of a cell is its proportion of the row, on a square-root scale that makes rare mistakes visible. The last
    column shows the row total. `label_kind` is the name for a class, and `unit` the name for the counted examples. Each
    line of `title` is truncated to the width. `font` is the preferred font family.
    """
    from matplotlib.colors import PowerNorm

    names = [truncate(format_class(name), MAX_CLASS_NAME) for name in confusion.labels]
    count, is_labelled = len(names), len(names) <= MAX_LABELLED_CLASSES
    max_side = MAX_LABELLED_MATRIX if is_labelled else MAX_UNLABELLED_MATRIX
    cell = min(MAX_CLASS_CELL, max(MIN_CLASS_CELL, SIDE / count), max_side / count)
    size = min(SIZE, max(7.0, 72 * 0.34 * cell))
    label_width = _widest_label(names, size)
    is_flat = label_width < 0.9 * cell
    height = count * cell + (0.4 if is_flat else 0.75 * label_width + 0.3) + 0.6 + 0.25 * len(title)
    figure = new_figure(max(5.0, count * cell + label_width + 2.6), height)
    style = text_style([*map(format_class, confusion.labels), *title], font)
    axes, shades = figure.add_subplot(), PowerNorm(0.5, vmin=0, vmax=1)
    image = axes.imshow(confusion.rates(), cmap="Blues", norm=shades, aspect="equal", interpolation="nearest")
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(f"predicted {label_kind}", fontsize=SIZE, labelpad=8)
    axes.set_ylabel(f"true {label_kind}", fontsize=SIZE, labelpad=8)
    axes.spines[:].set_visible(False)
    axes.set(xticks=[], yticks=[])
    axes.tick_params(length=0, which="both")
    if is_labelled:
        axes.set_xticks(range(count), names, fontsize=size, **style, **({} if is_flat else ROTATED))
        axes.set_yticks(range(count), names, fontsize=size, **style)
        right = axes.secondary_yaxis("right")
        right.spines[["top", "right"]].set_visible(False)
        right.set_yticks(range(count), [f"{support:,}" for support in confusion.support], fontsize=size, color="0.35")
        right.set_ylabel(unit, fontsize=SIZE, color="0.35")
        right.tick_params(length=0)
        draw_cell_borders(axes, count, count, *(("0.85", 0.5) if count > 12 else ("white", 1.2)))
    if cell >= MIN_CLASS_CELL:
        _write_counts(axes, confusion, cell)
    bar = _add_bar(figure, image, axes, "fraction of the row", aspect=20, ticks=SCALE,
                   shrink=min(1.0, 4.5 / (count * cell)))  # fmt: skip
    bar.ax.set_yticklabels([f"{mark:.0%}" for mark in SCALE])
    _add_title(figure, title, style, SIZE + 1)
    return figure


def _write_counts(axes: "Axes", confusion: Confusion, cell: float) -> None:
    """Write counts, and in large cells also percentages, at the largest font size that fits."""
    rates = confusion.rates()
    for row, column in np.argwhere(confusion.counts).tolist():
        texts, rate = int(confusion.counts[row, column]), float(rates[row, column])
        percent = "<1%" if rate < 0.005 else ">99%" if 0.995 <= rate < 1 else f"{rate:.0%}"
        shown = f"{percent}\n{texts:,}" if cell >= MIN_TWO_LINE_CELL else _abbreviate(texts)
        room = 72 * 0.86 * cell / (0.64 * max(map(len, shown.split("\n"))))  # font size that fits the width
        colour = "white" if rate**0.5 > WHITE_TEXT_SHADE else "black"
        middle: Style = {"ha": "center", "va": "center", "linespacing": 1.25}
        axes.text(column, row, shown, color=colour, fontsize=min(room, 10.0), **middle)


def _abbreviate(count: int) -> str:
    """Abbreviate a count to at most four characters: 950, 9.5k, 95k, 950k, 9M."""
    if count < 1000:
        return str(count)
    for factor, mark in ((1e3, "k"), (1e6, "M")):
        if count < 9.95 * factor:
            return f"{count / factor:.1f}{mark}"
        if count < 999.5 * factor:
            return f"{count / factor:.0f}{mark}"
    return f"{count / 1e9:.0f}G"
