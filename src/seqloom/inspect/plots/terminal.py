"""Heat maps and tables for the terminal, in colour or in plain characters.

Columns are as wide as their headings. If they do not fit on the screen, numbers replace the headings, and a legend
explains the numbers. If the numbers do not fit either, the columns are split into blocks.
"""

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from seqloom.evaluate.classification import Average, Hits, macro, micro, weighted
from seqloom.inspect.plots.figures import format_class, format_word, interpolate_colour
from seqloom.inspect.values import Array

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from seqloom.evaluate.classification import Confusion

SHADES = "·░▒▓█"  # one shade per quarter; the first is for weights below MIN_SHOWN_WEIGHT
MIN_SHOWN_WEIGHT = 0.05
# Background colours, so that the map looks the same on dark and light screens.
COLOURS = ((32, 36, 48), (35, 62, 100), (38, 100, 150), (66, 150, 190), (140, 205, 200), (255, 246, 190))
MAX_LABEL_WIDTH = 20  # terminal cells of a label; longer labels are truncated
NUMBERED_WIDTH = 3  # minimum terminal cells of a numbered column
ISOLATE, POP = "\N{FIRST STRONG ISOLATE}", "\N{POP DIRECTIONAL ISOLATE}"


def render_heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    weights: Array,
    *,
    width: int,
    colour: bool,
    numbers: Sequence[Sequence[str]] | None = None,
    format_label: Callable[[str], str] = format_word,
) -> "Text":
    """Render weights (rows, columns) from 0 to 1 in at most `width` terminal cells.

    With `numbers`, cells contain numbers instead of shades. `format_label` converts a word to a heading.
    """
    from rich.text import Text

    heads, sides = ([_format_label(word, format_label) for word in words] for words in (columns, rows))
    side = max(map(_cell_width, sides), default=0) + 2
    longest = [max((len(row[column]) for row in numbers or ()), default=0) for column in range(len(heads))]
    widths = [max(_cell_width(head), size) + 2 for head, size in zip(heads, longest, strict=True)]
    text = Text(no_wrap=True, overflow="ignore")
    if side + sum(widths) > width:
        entries = [f"{number} {_isolate(head)}  " for number, head in enumerate(heads, start=1)]
        for block in _split_columns(list(map(_cell_width, entries)), width):
            text.append("".join(entries[column] for column in block).rstrip() + "\n", style="dim")
        heads = [str(number) for number in range(1, len(heads) + 1)]
        widths = [max(NUMBERED_WIDTH, len(head) + 1, size + 1) for head, size in zip(heads, longest, strict=True)]
    for block in _split_columns(widths, width - side):
        if block.start > 0:
            text.append("\n")
        text.append(" " * side)
        for column in block:
            text.append((_centre if numbers is None else _align_right)(heads[column], widths[column]), style="bold")
        text.append("\n")
        for row, word in enumerate(sides):
            text.append(" " * (side - 1 - _cell_width(word)) + _isolate(word) + " ")
            for column in block:
                weight, cell = float(weights[row, column]), widths[column]
                background = "on rgb({},{},{})".format(*interpolate_colour(COLOURS, weight)) if colour else ""
                if numbers is not None:
                    ink = "#000000" if weight > 0.5 else "#ffffff"
                    text.append(_align_right(numbers[row][column], cell), style=f"{ink} {background}" if colour else "")
                elif colour:
                    text.append(" " * cell, style=background)
                else:
                    step = min(int(weight * 4), 3) + 1 if weight >= MIN_SHOWN_WEIGHT else 0
                    text.append(_centre(SHADES[step] * (cell - 2 if step else 1), cell))
            text.append("\n")
    return text


def render_links(
    rows: Sequence[str], columns: Sequence[str], weights: Array, min_weight: float = MIN_SHOWN_WEIGHT
) -> "Text":
    """List the links of each row on one line, the strongest link first. Weights below `min_weight` are omitted.

    Words that occur in several columns are followed by their position, counted from 1.
    """
    from rich.text import Text

    sides, heads = [_format_label(word) for word in rows], [_format_label(word) for word in columns]
    names = [_isolate(head) + f" [{n}]" * (heads.count(head) > 1) for n, head in enumerate(heads, start=1)]
    side, text = max(map(_cell_width, sides), default=0), Text(no_wrap=True, overflow="ignore")
    for word, row in zip(sides, weights, strict=True):
        order = [column for column in (-row).argsort(kind="stable") if row[column] >= min_weight]
        text.append(" " * (side - _cell_width(word)) + _isolate(word), style="bold").append(" → ", style="dim")
        text.append("   ".join(f"{names[column]} {row[column]:.2f}" for column in order) + "\n")
    return text


def render_scale(colour: bool) -> "Text":
    """Render the scale of the shades on one line."""
    from rich.text import Text

    text = Text("0 ", no_wrap=True)
    for step in range(11 if colour else 0):
        text.append("  ", style="on rgb({},{},{})".format(*interpolate_colour(COLOURS, step / 10)))
    return text.append(f"{'' if colour else SHADES} 1")


def _split_columns(widths: Sequence[int], width: int) -> list[range]:
    """Split columns into blocks of at most `width` terminal cells, each with at least one column."""
    blocks, start, used = [], 0, 0
    for column, size in enumerate(widths):
        if column > start and used + size > width:
            blocks.append(range(start, column))
            start, used = column, 0
        used += size
    return [*blocks, range(start, len(widths))]


# --- words in any script --------------------------------------------------------------------------------------------


def _cell_width(text: str) -> int:
    """Return the terminal cells of a text: 2 for a wide character, 0 for a combining mark."""
    from rich.cells import cell_len

    return cell_len(text)


def format_inline(word: str, format_label: Callable[[str], str] = format_word) -> str:
    """Format a word for use within a line."""
    return _isolate(format_label(word))


def _format_label(word: str, format_label: Callable[[str], str] = format_word) -> str:
    """Format a label of at most MAX_LABEL_WIDTH terminal cells."""
    from rich.cells import set_cell_size

    shown = format_label(word)
    return shown if _cell_width(shown) <= MAX_LABEL_WIDTH else set_cell_size(shown, MAX_LABEL_WIDTH - 1).rstrip() + "…"


def _isolate(word: str) -> str:
    """Isolate a right-to-left word, which would otherwise reorder its neighbours."""
    runs_left = any(unicodedata.bidirectional(letter) in ("R", "AL", "AN") for letter in word)
    return ISOLATE + word + POP if runs_left else word


def _centre(word: str, width: int) -> str:
    free = width - _cell_width(word)
    return " " * (free // 2) + _isolate(word) + " " * (free - free // 2)


def _align_right(word: str, width: int) -> str:
    return " " * (width - 1 - _cell_width(word)) + _isolate(word) + " "


# --- confusion --------------------------------------------------------------------------------------------------------

MAX_COUNTED_CLASSES = 25  # a matrix with more classes has shades instead of counts
ZERO_COUNT = "·"  # less prominent than the digit 0
AVERAGES = {"micro": micro, "macro": macro, "weighted": weighted}


def render_confusion(confusion: "Confusion", *, width: int, colour: bool) -> "Text":
    """Render a confusion matrix: true classes as rows, predicted classes as columns, and row proportions as shades."""
    labels = confusion.labels
    numbers = [[f"{count:,}" if count else ZERO_COUNT for count in row] for row in confusion.counts.tolist()]
    shown = numbers if len(labels) <= MAX_COUNTED_CLASSES else None
    return render_heat_map(
        labels, labels, confusion.rates(), width=width, colour=colour, numbers=shown, format_label=format_class
    )


def build_class_table(
    by_class: Mapping[str, Hits],
    label_kind: str = "class",
    unit: str = "texts",
    columns: Mapping[str, Mapping[str, float]] | None = None,
) -> "Table":
    """Build a table of precision, recall and F1 of each class or span type, with averages.

    `columns` adds further columns: for each heading, a value for each class.
    """
    from rich.table import Table
    from rich.text import Text

    total = sum(hits.expected for hits in by_class.values())
    rows = [
        (Text(format_inline(name, format_class)), Average(hits.precision, hits.recall, hits.f1), hits.expected)
        for name, hits in by_class.items()
    ]
    rows += [
        (Text(f"{name} average", style="dim"), average(by_class.values()), total) for name, average in AVERAGES.items()
    ]
    table = Table(box=None, header_style="bold")
    for head in (label_kind, "precision", "recall", "F1", *(columns or {}), unit):
        table.add_column(head, justify="left" if head == label_kind else "right", no_wrap=True)
    for label, (name, average, count) in zip_longest(by_class, rows):  # the last rows are averages without a label
        more = [column.get(label, math.nan) for column in (columns or {}).values()]
        cells = [f"{value:.4f}" if math.isfinite(value) else "-" for value in (*average, *more)]
        table.add_row(name, *cells, f"{count:,}")
    return table


def list_mistakes(confusion: "Confusion", limit: int = 10) -> list[str]:
    """Return one line of text for each of the most frequent confusions."""
    mistakes = confusion.mistakes(limit)
    width = max((len(f"{mistake.count:,}") for mistake in mistakes), default=0)
    lines = []
    for mistake in mistakes:
        expected, predicted = (format_inline(name, format_class) for name in (mistake.expected, mistake.predicted))
        fraction = f"{mistake.rate:.1%} of {round(mistake.count / mistake.rate):,}"
        lines.append(f"{mistake.count:{width},} ×  {expected} predicted as {predicted}  ({fraction})")
    return lines
