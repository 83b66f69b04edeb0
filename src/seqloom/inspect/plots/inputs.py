"""Plots of model inputs: encodings of texts, positional encodings, and word vectors in the plane."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from seqloom.core.errors import UsageError
from seqloom.core.words import format_count
from seqloom.evaluate.word_space import WordSpace
from seqloom.inspect.plots.figures import (
    COLOURS,
    SIGNED_COLORMAP,
    Style,
    display_width,
    draw_cell_borders,
    draw_signed,
    format_class,
    format_word,
    new_figure,
    set_heading,
    text_style,
    tidy,
    truncate,
)
from seqloom.inspect.plots.heatmaps import LETTER, SIZE
from seqloom.inspect.values import Array
from seqloom.inspect.views.inputs import Encoded, PositionsView, dense_table, nonzero_columns
from seqloom.inspect.views.points import MIN_POINTS, pca, project_unit_vectors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import BboxBase, Transform

# --- encodings --------------------------------------------------------------------------------------------------------

MAX_TEXTS, MAX_WORDS, MAX_NUMBERS = 4, 24, 32  # maximum numbers of texts, words and columns drawn
CELL = 0.28  # side of a cell and width of a bar in inches
BARS = 1.9  # width of a bar chart in inches
EDGE, GAP, TITLE = 0.25, 0.35, 0.6  # inches: figure margin, space between panels, height of the titles
TITLE_GAP = 0.1  # inches between a title and its panel
MAX_WORD_LENGTH = 16  # maximum characters of a word
SMALL = 9.0  # font size in points


def draw_encodings(texts: Sequence[Encoded], width: int, *, font: str | None = None) -> "Figure":
    """Draw one-hot, count, tf–idf and dense vectors side by side, one row of panels for each text.

    Columns that are 0 in all texts are omitted, and long texts are truncated. Panels are positioned in inches, so that
    all cells have the same size.
    """
    texts = texts[:MAX_TEXTS]
    columns, vocabulary = nonzero_columns(texts, MAX_WORDS), texts[0].vocabulary
    heads = [truncate(format_word(vocabulary.words[column]), MAX_WORD_LENGTH) for column in columns]
    sides = [[truncate(format_word(word.text), MAX_WORD_LENGTH) for word in text.words[:MAX_WORDS]] for text in texts]
    style = {**text_style(list_drawn_words(texts), font), "fontsize": SMALL}
    table = dense_table(vocabulary, width)[:, :MAX_NUMBERS]
    longest = max(map(display_width, [*heads, *(word for side in sides for word in side)]))
    letters = LETTER * SMALL / SIZE * longest + 0.15
    widths = [len(columns) * CELL, BARS, BARS, table.shape[1] * CELL]
    name = 0.3 if len(sides) > 1 else 0.0
    lefts = [EDGE + name + (letters + GAP) * position + letters + sum(widths[:position]) for position in range(4)]
    heights = [max(len(side), len(columns)) * CELL for side in sides]
    tops = [EDGE + TITLE + letters + sum(heights[:row]) + GAP * row for row in range(len(sides))]
    figure_width, figure_height = lefts[-1] + widths[-1] + EDGE, tops[-1] + heights[-1] + EDGE
    figure = new_figure(figure_width, figure_height)
    figure.set_layout_engine("none")

    def add_panel(row: int, column: int, lines: int) -> "Axes":
        bottom = figure_height - tops[row] - lines * CELL
        left, panel_width = lefts[column] / figure_width, widths[column] / figure_width
        return figure.add_axes((left, bottom / figure_height, panel_width, lines * CELL / figure_height))

    bags: list[list[Mapping[int, float]]] = [[text.counts for text in texts], [text.tf_idf for text in texts]]
    for row, (text, side) in enumerate(zip(texts, sides, strict=True)):
        squares = add_panel(row, 0, len(side))
        _draw_squares(squares, text.one_hot(columns)[:MAX_WORDS], side, style, "Blues", (0, 1))
        squares.xaxis.tick_top()
        squares.set_xticks(range(len(heads)) if row == 0 else [], heads if row == 0 else [], rotation=90, **style)
        if len(texts) > 1:
            squares.set_ylabel(f"text {row + 1}", fontsize=SIZE)
        for position, by_text in enumerate(bags):
            values = [by_text[row].get(column, 0.0) for column in columns]
            axes = add_panel(row, position + 1, len(columns))
            bars = axes.barh(range(len(values)), values, height=0.7, color=COLOURS[2 * position])
            axes.bar_label(bars, [f"{value:.3g}" if value else "" for value in values], padding=2, fontsize=SMALL - 1)
            axes.set_yticks(range(len(heads)), heads, **style)
            axes.set_ylim(len(values) - 0.5, -0.5)
            axes.set_xlim(0, 1.25 * max(max(bag.values()) for bag in by_text))
            axes.set_xticks([])
            axes.tick_params(length=0)
            tidy(axes, grid=False).spines["bottom"].set_visible(False)
        dense = add_panel(row, 3, len(side))
        _draw_squares(dense, table[text.columns[:MAX_WORDS]], side, style, SIGNED_COLORMAP, (-3, 3))
        dense.set_xticks([])
    lengths, size = {len(text.words) for text in texts}, len(vocabulary)
    length = f"{lengths.pop():,}" if len(lengths) == 1 else "T"  # T if the texts have different lengths
    first = f", first {MAX_NUMBERS}" if width > MAX_NUMBERS else ""
    titles = [f"one-hot\n{length} × {size:,}", f"bag of words\n{size:,}", f"tf–idf\n{size:,}"]
    titles.append(f"dense, random\n{length} × {width:,}{first}")
    for position, (left, panel_width, title) in enumerate(zip(lefts, widths, titles, strict=True)):
        # The titles are above the words of the one-hot columns
        bottom = tops[0] - TITLE_GAP - (letters if position == 0 else 0)
        at = ((left + panel_width / 2) / figure_width, 1 - bottom / figure_height)
        figure.text(*at, title, ha="center", va="bottom", fontsize=SIZE)
    return figure


def list_drawn_words(texts: Sequence[Encoded]) -> list[str]:
    """Return the words that `draw_encodings` shows."""
    return [*{format_word(word.text) for text in texts[:MAX_TEXTS] for word in text.words[:MAX_WORDS]}, "…"]


def _draw_squares(
    axes: "Axes", values: Array, side: list[str], style: Style, colours: str, ends: tuple[float, float]
) -> None:
    axes.imshow(values, cmap=colours, vmin=ends[0], vmax=ends[1], aspect="equal", interpolation="nearest")
    axes.set_yticks(range(len(side)), side, **style)
    axes.spines[:].set_color("0.8")
    draw_cell_borders(axes, len(values), values.shape[1], "0.85", 0.6)


# --- positions --------------------------------------------------------------------------------------------------------

KINDS = {
    "sinusoidal": "Sinusoidal positions",
    "learned": "Learned positions",
    "rotary": "Rotary positions: sine and cosine of the rotation angles of queries and keys",
}
TABLES = {"rotary": "sines and cosines of the rotation angles at each position"}
PRODUCTS = {"rotary": "q · k of equal vectors after rotation"}


def draw_positions(view: PositionsView) -> "Figure":
    """Draw the table of vectors, curves of some dimensions, and the dot products of positions."""
    figure = new_figure(13, 8.8)
    (table, products), (curves, distances) = figure.subplots(2, 2, width_ratios=(1.45, 1), height_ratios=(1.45, 1))
    set_heading(table, TABLES.get(view.kind, "positional encodings: one column for each position"))
    table.set(xlabel="position", ylabel="dimension")
    figure.colorbar(draw_signed(table, view.table.T), ax=table, pad=0.05, aspect=25)
    for number, dimension in enumerate(view.informative_dimensions()):  # the dimensions drawn as curves below
        mark: Style = {"color": COLOURS[number], "fontsize": 13, "va": "center", "in_layout": False}
        table.text(1.005, dimension, "◀", transform=table.get_yaxis_transform(), **mark)
        name = f"dimension {dimension}"
        if view.wavelengths:
            pair = dimension // 2 if view.layout == "interleaved" else dimension
            name += f": sine, period {view.wavelengths[pair]:,.1f} positions"
        curves.plot(view.table[:, dimension], color=COLOURS[number], linewidth=1.8, label=name)
    tidy(curves).set(xlabel="position", ylabel="value", xlim=(-0.5, view.length - 0.5))
    set_heading(curves, "the dimensions marked above")
    curves.legend(ncols=2, frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, -0.42))
    set_heading(products, f"{PRODUCTS.get(view.kind, 'dot product')} for all pairs of positions")
    products.set(xlabel="position", ylabel="position")
    figure.colorbar(draw_signed(products, view.products), ax=products, pad=0.02, aspect=25)
    tidy(distances).axhline(0, color="black", linewidth=0.6)
    low, high = view.spread
    is_same = float((high - low).max()) < 1e-5  # zero within the precision of the table
    if not is_same:
        distances.fill_between(range(view.length), low, high, color=COLOURS[0], alpha=0.18, linewidth=0)
    distances.plot(view.by_distance, color=COLOURS[0], linewidth=1.8)
    distances.set_xlim(0, max(view.length - 1, 1))
    distances.set(xlabel="distance between two positions", ylabel="relative to distance 0")
    spread = "equal for all pairs" if is_same else "mean, and range over all pairs"
    set_heading(distances, f"dot product by distance: {spread}")
    layout = "" if view.layout is None else f", {view.layout}, base {view.base:g}"
    run = f"{view.name}: " if view.name else ""
    size = f"{format_count(view.length, 'position')} × {view.width}"
    figure.suptitle(f"{run}{KINDS[view.kind]} ({size}{layout})", parse_math=False)
    for axis in (table.xaxis, table.yaxis, products.xaxis, products.yaxis, curves.xaxis, distances.xaxis):
        axis.get_major_locator().set_params(integer=True, min_n_ticks=1)  # positions are integers
    return figure


# --- words ------------------------------------------------------------------------------------------------------------

Method = Literal["pca", "tsne"]
MAX_POINT_LABEL = 48  # maximum characters of a label
UNGROUPED_COLOUR = "#555555"
LABEL_DISTANCE = 4.0  # points between a dot and its label
DISTANCE_FACTORS = (1.0, 4.0, 8.0)  # tried in order; beyond the first distance, a line connects the label to its dot
# Positions of a label relative to its dot, best first
DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))


@dataclass(frozen=True)
class WordSelection:
    """The words to draw, most important first, and the group of each word, or −1 for a word without a group."""

    words: list[str]
    groups: list[int]
    names: list[str]  # names of the groups


def select_frequent_words(space: WordSpace, count: int, skip: int = 0) -> WordSelection:
    """Select the most frequent words after the first `skip`.

    Only words of three or more characters that start with a letter are selected, unless there are fewer than four such
    words, as in some scripts.
    """
    long_words = [word for word in space.words if len(word) > 2 and word[0].isalpha()]
    words = (long_words if len(long_words) >= MIN_POINTS else list(space.words))[skip : skip + count]
    return WordSelection(words, [-1] * len(words), [])


def select_neighbours(space: WordSpace, centres: Sequence[str], count: int) -> WordSelection:
    """Select words and their nearest neighbours. A neighbour of two words belongs to the group of the first word."""
    groups: dict[str, int] = {space.words[space.index(centre)]: number for number, centre in enumerate(centres)}
    names = list(groups)
    for number, centre in enumerate(names):
        for near in space.similar(centre, count):
            groups.setdefault(near.word, number)
    return WordSelection(list(groups), list(groups.values()), names)


def project(vectors: Array, method: Method, unit: str = "word") -> tuple[Array, Array | None]:
    """Project vectors (N, D) to points (N, 2); for PCA, also return the explained variance ratios."""
    if len(vectors) < MIN_POINTS:
        raise UsageError(f"A plot of {unit}s needs at least four {unit}s; got {len(vectors)}.")
    x = np.asarray(vectors, dtype=np.float64)
    if float(np.ptp(x, axis=0).max()) < 1e-9:
        raise UsageError(f"A plot of {unit}s needs different vectors, but all of these are equal.")
    if method == "tsne":
        lengths = np.linalg.norm(x, axis=1, keepdims=True)
        *_, last = project_unit_vectors(x / np.maximum(lengths, 1e-12))
        return last.points.astype(np.float64), None
    plane = pca(x)
    return plane.points, plane.explained_variance_ratio


def draw_words(
    space: WordSpace, selection: WordSelection, method: Method, title: str, font: str | None = None
) -> "Figure":
    """Draw a labelled dot for each word. Labels that do not fit are omitted, starting with the last word."""
    rows = [space.index(word) for word in selection.words]
    return draw_points(*project(space.unit[rows], method), selection, title, font)


def draw_points(
    points: Array,
    ratios: Array | None,
    selection: WordSelection,
    title: str,
    font: str | None = None,
    unit: str = "word",
) -> "Figure":
    """Draw a labelled dot for each point (N, 2) of `project`. `unit` is word or text.

    Groups whose names are not drawn as points are listed in a legend.
    """
    is_small = len(points) <= 150
    figure = new_figure(*((11.0, 8.0) if is_small else (15.0, 11.0)))
    figure.set_layout_engine("none")
    axes = figure.add_axes((0.03, 0.06, 0.94, 0.85))
    colours = [UNGROUPED_COLOUR if group < 0 else COLOURS[group % len(COLOURS)] for group in selection.groups]
    axes.scatter(points[:, 0], points[:, 1], s=9, c=colours, linewidths=0)
    axes.margins(0.06)
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # fixed, because labels are placed in pixels
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("#cccccc")
    if ratios is not None:
        axes.set_xlabel(f"first component, {ratios[0]:.0%} of the variance", fontsize=10)
        axes.set_ylabel(f"second component, {ratios[1]:.0%}" if len(ratios) > 1 else "", fontsize=10, labelpad=3)
    names = [truncate(format_class(word), MAX_POINT_LABEL) for word in selection.words]
    style = text_style([*names, *selection.names, title], font)
    bold = {selection.words.index(name) for name in selection.names if name in selection.words}
    for number, name in enumerate(selection.names):
        if name not in selection.words:
            axes.scatter([], [], s=18, color=COLOURS[number % len(COLOURS)], label=format_class(name))
    if len(bold) < len(selection.names):
        axes.legend(loc="upper right", frameon=False, fontsize=9)
    omitted = _place_labels(axes, points, names, colours, {**style, "fontsize": 9.0 if is_small else 7.5}, bold)
    summary = f"{format_count(len(names), unit)}, {'t-SNE of cosines' if ratios is None else 'PCA of unit vectors'}"
    summary += f"; {format_count(omitted, 'label')} omitted for lack of room" if omitted else ""
    figure.text(0.03, 0.955, title, fontsize=13, **style)
    figure.text(0.03, 0.925, summary, fontsize=10, color="#444444")
    return figure


def _place_labels(
    axes: "Axes", points: Array, names: Sequence[str], colours: Sequence[str], style: Style, bold: set[int]
) -> int:
    """Place each label next to its dot without overlap, and return the number of labels that do not fit."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.transforms import Affine2D

    figure = axes.get_figure(root=True)
    assert figure is not None
    renderer = FigureCanvasAgg(figure).get_renderer()
    # The transform uses layout pixels, which stay valid when the figure is drawn at another resolution.
    pixels: Transform = Affine2D().scale(1 / figure.dpi) + figure.dpi_scale_trans
    dots = axes.transData.transform(points)
    frame = axes.get_window_extent(renderer)
    boxes, lines, omitted = np.empty((0, 4)), np.empty((0, 2)), 0
    # Labels of group names are placed first
    for number in sorted(range(len(names)), key=lambda index: index not in bold):
        options = {**style, "fontsize": style["fontsize"] + (number in bold), "color": colours[number]}
        options |= {"weight": "bold" if number in bold else "normal", "ha": "center", "va": "center"}
        text = axes.text(0, 0, names[number], transform=pixels, **options)
        extent = text.get_window_extent(renderer)
        others = np.vstack([np.delete(dots, number, axis=0), lines])
        position = _find_label_position(dots[number], others, extent.width, extent.height, boxes, frame)
        if position is None:
            text.remove()
            omitted += 1
            continue
        x, y, is_far = position
        text.set_position((x, y))
        if is_far:
            leader = _leader_line(dots[number], x, y, extent.height)
            options = {"lw": 0.5, "color": colours[number], "alpha": 0.6, "scalex": False, "scaley": False}
            axes.plot(leader[:, 0], leader[:, 1], transform=pixels, **options)
            lines = np.vstack([lines, leader])
        w, h = extent.width / 2, extent.height / 2
        boxes = np.vstack([boxes, [x - w, y - h, x + w, y + h]])
    return omitted


def _leader_line(dot: Array, x: float, y: float, height: float) -> Array:
    """Return points on the line from a dot to the nearer edge of a label at (x, y)."""
    edge = np.array([x, y - np.sign(y - dot[1]) * height / 2])
    return dot + np.linspace(0, 1, 16)[:, None] * (edge - dot)


def _find_label_position(
    dot: Array, others: Array, width: float, height: float, boxes: Array, frame: "BboxBase"
) -> tuple[float, float, bool] | None:
    """Return the centre of the first free position for a label, and whether a line must connect it to its dot."""
    for factor in DISTANCE_FACTORS:
        distance = LABEL_DISTANCE * 120 / 72 * factor
        for across, up in DIRECTIONS:
            if factor > 1 and not up:
                continue  # such a line would look like part of the word
            x = dot[0] + across * (width / 2 + distance)
            y = dot[1] + up * (height / 2 + distance * (0.4 if across and factor == 1 else 0.8))
            left, low, right, high = x - width / 2, y - height / 2, x + width / 2, y + height / 2
            if left < frame.x0 or right > frame.x1 or low < frame.y0 or high > frame.y1:
                continue
            over_names = (boxes[:, 0] < right) & (boxes[:, 2] > left) & (boxes[:, 1] < high) & (boxes[:, 3] > low)
            if over_names.any() or _any_inside(others, np.array([[left - 2, low - 2, right + 2, high + 2]])):
                continue
            if factor == 1 or not _any_inside(_leader_line(dot, x, y, height), boxes):
                return float(x), float(y), factor > 1
    return None


def _any_inside(points: Array, boxes: Array) -> bool:
    """Return whether any point (N, 2) is inside any box (M, 4); a box is left, low, right, high."""
    x, y = points[:, None, 0], points[:, None, 1]
    return bool(((x > boxes[:, 0]) & (x < boxes[:, 2]) & (y > boxes[:, 1]) & (y < boxes[:, 3])).any())
