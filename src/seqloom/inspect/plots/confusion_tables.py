"""What is taken for what, in the terminal: the confusion matrix, the classes one by one, the most frequent mistakes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from seqloom.evaluate.classification import Confusion
from seqloom.evaluate.hits import Average, Hits, macro, micro, weighted
from seqloom.inspect.plots.figures import label
from seqloom.inspect.plots.terminal import beside, heat_map

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

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
