"""A figure of how good things are as something grows: a line for each, every measurement, the mean and its spread."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seqloom.inspect.plots.figures import COLOURS, legend, literal, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vP*X"
APART = 0.02  # how far lines stand from each other at one place, as a share of the way to the next


@dataclass(frozen=True)
class Line:
    name: str
    values: Mapping[float, Sequence[float]]  # at each place several, one per seed; what is no number is left out
    dashed: bool = False
    colour: int | None = None  # lines of one number have one colour; None: its own


def draw_against(lines: Sequence[Line], *, title: str, along: str, measure: str, percent: bool = False) -> "Figure":
    """Places are drawn at equal distances, whatever lies between them; `percent` writes them so."""
    places = sorted({place for line in lines for place in line.values})
    figure = new_figure(8.5, 5.2)
    axes = figure.add_subplot()
    for number, line in enumerate(lines):
        aside = APART * (number - (len(lines) - 1) / 2)
        _line(axes, line, [(places.index(place) + aside, line.values[place]) for place in sorted(line.values)], number)
    axes.set_xticks(range(len(places)), [f"{place:.4g}" if not percent else f"{100 * place:.4g} %" for place in places])
    axes.set_xlabel(literal(along))
    axes.set_ylabel(literal(measure))
    tidy(axes).grid(axis="x", visible=False)
    legend(axes, "lower right")
    axes.set_title(literal(title), fontsize=12)
    return figure


def _line(axes: Any, line: Line, points: Sequence[tuple[float, Sequence[float]]], number: int) -> None:
    colour = COLOURS[(number if line.colour is None else line.colour) % len(COLOURS)]
    marker = MARKERS[number % len(MARKERS)]
    found = [(x, [value for value in values if math.isfinite(value)]) for x, values in points]
    known = [(x, values) for x, values in found if values]
    xs, means = [x for x, _ in known], [statistics.fmean(values) for _, values in known]
    spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for _, values in known]
    axes.errorbar(
        xs,
        means,
        yerr=spreads,
        color=colour,
        marker=marker,
        linestyle="--" if line.dashed else "-",
        capsize=3,
        label=literal(line.name),
    )
    for x, values in known:
        axes.scatter([x] * len(values), values, s=10, color=colour, alpha=0.35, linewidths=0)
