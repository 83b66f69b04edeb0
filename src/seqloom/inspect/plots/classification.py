"""Pictures of classifiers: what is taken for what, and whether they are as sure as they should be.

What is taken for what, in the terminal: the confusion matrix, the classes one by one, the most frequent mistakes.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.evaluate.classification import Average, Bin, Calibration, Confusion, Hits, macro, micro, weighted
from seqloom.inspect.plots.attention import LETTER, SIZE, cells_of, cut
from seqloom.inspect.plots.figures import COLOURS, Fonts, fonts_for, label, legend, literal, new_figure, tidy
from seqloom.inspect.plots.terminal import beside, heat_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table
    from rich.text import Text

SIDE = 7.5  # inches that the squares take together, where few classes leave the choice
LARGEST, SMALLEST = 1.15, 0.36  # inches of a square
MOST = 200  # classes whose names are written; of more the squares are as small as it takes, and nameless
WIDEST, NAMELESS = 30.0, 15.0  # inches of all squares a side, and of those without names
LONGEST = 26  # letters of a name; what is longer is cut
TWO_LINES = 0.55  # inches of a square with room for share and count
INK = 0.55  # shade from which on letters are white
SCALE = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)  # marks of the colour bar


def draw_confusion(
    confusion: Confusion,
    title: Sequence[str] = (),
    *,
    of: str = "class",
    unit: str = "texts",
    font: str | None = None,
) -> "Figure":
    """Rows are what texts are, columns what they were called. A square's shade is the share of its row; how many the
    row has stands at its end. The shades follow the square root, so that a mistake of one in fifty can be seen.

    `of` is what texts are sorted into, `unit` what is counted. `title` are lines, each cut to what fits. `font` is the
    family to try first.
    """
    from matplotlib.colors import PowerNorm

    names = [cut(class_name(name), LONGEST) for name in confusion.labels]
    cell = min(LARGEST, max(SMALLEST, SIDE / len(names)), (WIDEST if len(names) <= MOST else NAMELESS) / len(names))
    size = min(SIZE, max(7.0, 72 * 0.34 * cell))
    long = LETTER * size / SIZE * max(map(cells_of, names))
    flat = long < 0.9 * cell
    width = max(5.0, len(names) * cell + long + 2.6)
    figure = new_figure(width, len(names) * cell + (0.4 if flat else 0.75 * long + 0.3) + 0.6 + 0.25 * len(title))
    words: dict[str, Any] = {"family": fonts_of(confusion, title, font).families, "parse_math": False}
    axes, shades = figure.add_subplot(), PowerNorm(0.5, vmin=0, vmax=1)
    image = axes.imshow(confusion.shares(), cmap="Blues", norm=shades, aspect="equal", interpolation="nearest")
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(f"{of} the model says", fontsize=SIZE, labelpad=8)
    axes.set_ylabel(f"true {of}", fontsize=SIZE, labelpad=8)
    _name(axes, names if len(names) <= MOST else [], confusion.support, unit, {"fontsize": size, **words}, flat)
    _finish(axes, confusion, cell)
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=20, shrink=min(1.0, 4.5 / (len(names) * cell)), ticks=SCALE)
    bar.set_label(f"share of the true {of}")
    bar.ax.set_yticklabels([f"{mark:.0%}" for mark in SCALE])
    bar.outline.set_visible(False)
    if title:
        lines = [cut(line, int(width / LETTER)) for line in title]
        figure.suptitle("\n".join(lines), fontsize=SIZE + 1, linespacing=1.5, **words)
    return figure


def _name(axes: Any, names: list[str], support: list[int], unit: str, words: dict[str, Any], flat: bool) -> None:
    """Classes at the left and on top, upended where they are long, and how many there are of each at the right."""
    turned: dict[str, Any] = {} if flat else {"rotation": 45, "ha": "left", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(names)), names, **words, **turned)
    axes.set_yticks(range(len(names)), names, **words)
    if names:
        right = tidy(axes.secondary_yaxis("right"), grid=False)
        counts = [f"{count:,}" for count in support]
        right.set_yticks(range(len(names)), counts, fontsize=words["fontsize"], color="0.35")
        right.set_ylabel(unit, fontsize=SIZE, color="0.35")
        right.tick_params(length=0)


def fonts_of(confusion: Confusion, title: Sequence[str] = (), font: str | None = None) -> Fonts:
    """The fonts the picture takes, and which letters none of them has."""
    return fonts_for([*map(class_name, confusion.labels), *title], font)


def _finish(axes: Any, confusion: Confusion, cell: float) -> None:
    """Squares with lines between them and the numbers in them."""
    count = len(confusion.labels)
    axes.tick_params(length=0, which="both")
    axes.spines[:].set_visible(False)
    if count <= MOST:
        axes.set_xticks([place - 0.5 for place in range(1, count)], minor=True)
        axes.set_yticks([place - 0.5 for place in range(1, count)], minor=True)
        axes.grid(which="minor", color="0.85" if count > 12 else "white", linewidth=0.5 if count > 12 else 1.2)
    if cell < SMALLEST:
        return
    shares = confusion.shares()
    for row, column in zip(*map(np.ndarray.tolist, np.nonzero(confusion.counts)), strict=True):
        texts, share = int(confusion.counts[row, column]), float(shares[row, column])
        shown = f"{_percent(share)}\n{texts:,}" if cell >= TWO_LINES else _short(texts)
        room = 72 * 0.86 * cell / (0.64 * max(map(len, shown.split("\n"))))  # points that fit the square's width
        colour = "white" if share**0.5 > INK else "black"
        axes.text(
            column, row, shown, ha="center", va="center", color=colour, fontsize=min(room, 10.0), linespacing=1.25
        )


def _percent(share: float) -> str:
    """Neither is a little nothing, nor almost all everything."""
    if share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{share:.0%}"


def _short(count: int) -> str:
    """At most four letters: 950, 9.5k, 95k, 950k, 9M."""
    if count < 1000:
        return str(count)
    for factor, mark in ((1e3, "k"), (1e6, "M")):
        if count < 9.95 * factor:
            return f"{count / factor:.1f}{mark}"
        if count < 999.5 * factor:
            return f"{count / factor:.0f}{mark}"
    return f"{count / 1e9:.0f}G"


# --- reliability ----------------------------------------------------------------------------------------------------


def draw_reliability(calibration: Calibration, title: str = "") -> "Figure":
    """Above, how often answers are right by how sure the model was; below, how often it was that sure.

    On the dashed line a model is as right as it is sure.
    """
    figure = new_figure(6.2, 6.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    bins = calibration.filled
    _bars(
        upper, bins, [min(one.accuracy, one.confidence) for one in bins], color=COLOURS[0], label="right, as expected"
    )
    for sign, colour, hatch, said in (
        (1, COLOURS[1], "///", "expected, but wrong"),
        (-1, COLOURS[2], "...", "right, but not expected"),
    ):
        apart = [one for one in bins if sign * one.gap > 0]
        if not apart:  # nor a word about it in the legend
            continue
        pale: dict[str, Any] = {"facecolor": "white", "edgecolor": colour, "hatch": hatch, "linewidth": 1}
        lower_ends = [min(one.accuracy, one.confidence) for one in apart]
        _bars(upper, apart, [abs(one.gap) for one in apart], bottom=lower_ends, label=said, **pale)
    upper.plot([0, 1], [0, 1], linestyle="--", color="0.35", linewidth=1.2, label="as right as sure")
    upper.set_ylim(0, 1.02)
    upper.set_ylabel("share of answers that are right")
    legend(upper, "upper left")
    total = sum(one.count for one in bins)
    _bars(lower, bins, [one.count / total for one in bins], color="0.6")
    lower.set_ylabel("share of answers")
    lower.set_xlabel("how sure the model was of its answer")
    lower.set_xlim(0, 1)
    for axes in (upper, lower):
        tidy(axes)
    verdict = "surer than it should be" if calibration.gap > 0 else "less sure than it could be"
    said = f"expected calibration error {calibration.error:.3f}: on the whole {verdict}"
    figure.suptitle("\n".join([literal(title)] * bool(title) + [said]), fontsize=11)
    return figure


def _bars(axes: Any, bins: Sequence[Bin], heights: Sequence[float], **look: Any) -> None:
    middles, widths = [(one.low + one.high) / 2 for one in bins], [0.94 * (one.high - one.low) for one in bins]
    axes.bar(middles, heights, width=widths, **look)


# ---------------------------------------------------------------------------------------------------------------------

COUNTED = 25  # classes up to which the matrix is one of numbers; of more it is shaded
ABSENT = "·"  # none: easier to overlook than 0
AVERAGES = {"micro": micro, "macro": macro, "weighted": weighted}


def class_name(name: str) -> str:
    """A class as a label. Unlike a token it may have spaces, and these are seen as such within it."""
    if not name or name != name.strip():
        return f'"{label(name)}"'
    return " ".join(map(label, name.split(" ")))


def confusion_map(confusion: Confusion, *, width: int, colour: bool) -> "Text":
    """A row is what a text is, a column what it was called; shades are shares of the row."""
    shares, counts = confusion.shares(), confusion.counts
    numbers = [[f"{count:,}" if count else ABSENT for count in row] for row in counts.tolist()]
    shown = numbers if len(confusion.labels) <= COUNTED else None
    return heat_map(
        confusion.labels, confusion.labels, shares, width=width, colour=colour, numbers=shown, spell=class_name
    )


def class_table(by_class: Mapping[str, Hits], of: str = "class", unit: str = "texts") -> "Table":
    """Precision, recall and F1 of each class, or type of span, and their averages."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for head in (of, "precision", "recall", "F1", unit):
        table.add_column(head, justify="left" if head == of else "right", no_wrap=True)
    for name, hits in by_class.items():
        own = Average(hits.precision, hits.recall, hits.f1)
        table.add_row(Text(beside(name, class_name)), *_figures(own), f"{hits.expected:,}")
    total = sum(hits.expected for hits in by_class.values())
    for name, average in AVERAGES.items():
        table.add_row(Text(f"{name} average", style="dim"), *_figures(average(by_class.values())), f"{total:,}")
    return table


def _figures(average: Average) -> list[str]:
    return [f"{value:.4f}" for value in average]


def mistake_lines(confusion: Confusion, most: int = 10) -> list[str]:
    """The most frequent mistakes in words."""
    mistakes = confusion.mistakes(most)
    wide = max((len(f"{one.count:,}") for one in mistakes), default=0)
    return [
        f"{one.count:{wide},} ×  {beside(one.expected, class_name)} taken for {beside(one.predicted, class_name)}"
        f"  ({one.share:.1%} of its {round(one.count / one.share):,})"
        for one in mistakes
    ]
