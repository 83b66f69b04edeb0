"""Words as points of a plane: by PCA, or by t-SNE, which keeps who is near whom and little else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from seqloom.core.errors import UsageError
from seqloom.core.words import counted
from seqloom.evaluate.word_space import WordSpace
from seqloom.inspect.plots.figures import COLOURS, fonts_for, label, new_figure
from seqloom.inspect.views.points import LEAST, pca, plane_by_tsne

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Method = Literal["pca", "tsne"]
Array = np.ndarray[Any, np.dtype[np.float64]]
PLAIN = "#555555"
AWAY = 4.0  # points between a dot and its label
FARTHER = (1.0, 4.0, 8.0)  # times as far where there is no room; then a line leads to the dot
PLACES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))  # where a label may stand, best first


@dataclass(frozen=True)
class Chosen:
    """Words to draw, the most important first, and the group each belongs to: −1 for none."""

    words: list[str]
    groups: list[int]
    names: list[str]  # of the groups


def most_frequent(space: WordSpace, count: int, skip: int = 0) -> Chosen:
    """The most frequent words, the first `skip` left out: those that begin with a letter and have three or more, if
    there are four (in some scripts few have)."""
    long = [word for word in space.words if len(word) > 2 and word[0].isalpha()]
    words = (long if len(long) >= LEAST else list(space.words))[skip : skip + count]
    return Chosen(words, [-1] * len(words), [])


def around(space: WordSpace, centres: Sequence[str], count: int) -> Chosen:
    """Each of these words and those nearest to it; a word that is near two belongs to the first."""
    groups: dict[str, int] = {space.words[space.place(centre)]: number for number, centre in enumerate(centres)}
    names = list(groups)
    for number, centre in enumerate(names):
        for near in space.similar(centre, count):
            groups.setdefault(near.word, number)
    return Chosen(list(groups), list(groups.values()), names)


def projected(vectors: Any, method: Method) -> tuple[Array, Array | None]:
    """Vectors (N, D) to points (N, 2), and of PCA the share of the variance along each axis."""
    if len(vectors) < LEAST:
        raise UsageError(f"A picture needs four words or more, got {len(vectors)}.")
    x = np.asarray(vectors, dtype=np.float64)
    if float(np.ptp(x, axis=0).max()) < 1e-9:
        raise UsageError("These words have all the same vector: there is nothing to draw.")
    if method == "tsne":
        lengths = np.linalg.norm(x, axis=1, keepdims=True)
        *_, last = plane_by_tsne(x / np.maximum(lengths, 1e-12))
        return last.points.astype(np.float64), None
    plane = pca(x)
    return plane.points, plane.shares


def draw_words(space: WordSpace, chosen: Chosen, method: Method, title: str, font: str | None = None) -> "Figure":
    """A dot and a name for each word. Names never cover each other: those for which there is no room are left out, the
    least important first."""
    vectors = space.unit[[space.place(word) for word in chosen.words]]
    points, shares = projected(vectors, method)
    size = 9.0 if len(points) <= 150 else 7.5
    figure = new_figure(*((11.0, 8.0) if len(points) <= 150 else (15.0, 11.0)))
    figure.set_layout_engine("none")
    axes = figure.add_axes((0.03, 0.06, 0.94, 0.85))
    colours = [PLAIN if group < 0 else COLOURS[group % len(COLOURS)] for group in chosen.groups]
    axes.scatter(points[:, 0], points[:, 1], s=9, c=colours, linewidths=0)
    axes.margins(0.06)
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # fixed from here on: labels are placed by it
    _frame(axes, method, shares)
    names = [label(word) for word in chosen.words]
    family = fonts_for([*names, title], font).families
    bold = {name: chosen.words.index(name) for name in chosen.names}
    left_out = _place_labels(figure, axes, points, names, colours, size, family, set(bold.values()))
    said = f"{counted(len(names), 'word')}, {'t-SNE of cosines' if method == 'tsne' else 'PCA of unit vectors'}"
    said += f"; {counted(left_out, 'name')} left out for want of room" if left_out else ""
    figure.text(0.03, 0.955, title, fontsize=13, family=family, parse_math=False)
    figure.text(0.03, 0.925, said, fontsize=10, color="#444444")
    return figure


def _frame(axes: Any, method: Method, shares: Array | None) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_color("#cccccc")
    if method == "pca" and shares is not None:
        axes.set_xlabel(f"first component, {shares[0]:.0%} of the variance", fontsize=10)
        axes.set_ylabel(f"second, {shares[1]:.0%}" if len(shares) > 1 else "", fontsize=10, labelpad=3)


def _place_labels(
    figure: "Figure",
    axes: Any,
    points: Array,
    names: Sequence[str],
    colours: Sequence[str],
    size: float,
    family: Sequence[str],
    bold: set[int],
) -> int:
    """Each name beside its dot, where it covers no other name, no dot and not the frame; how many found no place."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    dots = axes.transData.transform(points)  # pixels
    frame = axes.get_window_extent(renderer)
    taken, lines, left_out = np.empty((0, 4)), np.empty((0, 2)), 0
    for number in sorted(range(len(names)), key=lambda one: one not in bold):  # what the picture is about comes first
        weight = "bold" if number in bold else "normal"
        text = axes.text(0, 0, names[number], fontsize=size + (number in bold), color=colours[number], weight=weight)
        text.set(family=family, parse_math=False, ha="center", va="center", transform=_pixels(figure))
        extent = text.get_window_extent(renderer)
        others = np.vstack([np.delete(dots, number, axis=0), lines])
        place = _free(dots[number], others, extent.width, extent.height, taken, frame)
        if place is None:
            text.remove()
            left_out += 1
            continue
        x, y, far = place
        text.set_position((x, y))
        if far:
            way = _line(dots[number], x, y, extent.height)
            look = {"lw": 0.5, "color": colours[number], "alpha": 0.6}
            axes.plot(way[:, 0], way[:, 1], transform=_pixels(figure), scalex=False, scaley=False, **look)
            lines = np.vstack([lines, way])
        w, h = extent.width / 2, extent.height / 2
        taken = np.vstack([taken, [x - w, y - h, x + w, y + h]])
    return left_out


def _pixels(figure: "Figure") -> Any:
    """Places in inches · dpi of the layout, which stay right where the picture is drawn at another resolution."""
    from matplotlib.transforms import Affine2D

    return Affine2D().scale(1 / figure.dpi) + figure.dpi_scale_trans


def _line(dot: Array, x: float, y: float, height: float) -> Array:
    """Points on the line from a dot to the nearer edge of a name in (x, y)."""
    edge = np.array([x, y - np.sign(y - dot[1]) * height / 2])
    return dot + np.linspace(0, 1, 16)[:, None] * (edge - dot)


def _crossed(way: Array, taken: Array) -> bool:
    """Whether a line runs through a name."""
    across = (way[:, None, 0] > taken[:, 0]) & (way[:, None, 0] < taken[:, 2])
    return bool((across & (way[:, None, 1] > taken[:, 1]) & (way[:, None, 1] < taken[:, 3])).any())


def _free(
    dot: Array, others: Array, width: float, height: float, taken: Array, frame: Any
) -> tuple[float, float, bool] | None:
    """The middle of the first place for a name that is free, and whether it is away from its dot."""
    for farther in FARTHER:
        away = AWAY * 120 / 72 * farther
        for across, up in PLACES:
            if farther > 1 and not up:
                continue  # a line into the side of a word would look like a part of it
            x = dot[0] + across * (width / 2 + away)
            y = dot[1] + up * (height / 2 + away * (0.4 if across and farther == 1 else 0.8))
            left, low, right, high = x - width / 2, y - height / 2, x + width / 2, y + height / 2
            if left < frame.x0 or right > frame.x1 or low < frame.y0 or high > frame.y1:
                continue
            over_names = (taken[:, 0] < right) & (taken[:, 2] > left) & (taken[:, 1] < high) & (taken[:, 3] > low)
            over_dots = (others[:, 0] > left - 2) & (others[:, 0] < right + 2)
            over_dots &= (others[:, 1] > low - 2) & (others[:, 1] < high + 2)
            if over_names.any() or over_dots.any():
                continue
            if farther == 1 or not _crossed(_line(dot, x, y, height), taken):
                return float(x), float(y), farther > 1
    return None
