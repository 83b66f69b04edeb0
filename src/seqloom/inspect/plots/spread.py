"""A figure of several things measured several times: every value, the mean, and how far the values spread."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seqloom.inspect.plots.figures import COLOURS, literal, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Spread:
    """One line of the figure."""

    name: str
    values: Sequence[float]  # one per seed; what is not a number is left out
    seconds: float = math.nan  # what it took
    remark: str = ""  # beneath the name


def draw_spread(rows: Sequence[Spread], *, title: str, measure: str, better: str = "lower") -> "Figure":
    """The first row on top. Dots are single values, the diamond their mean, the bar one standard deviation each way.

    Beside it, where they are known, the seconds each took.
    """
    timed = any(math.isfinite(row.seconds) for row in rows)
    figure = new_figure(9.5 if timed else 7.5, 1.7 + 0.55 * len(rows))
    axes = figure.subplots(1, 2, sharey=True, width_ratios=(2.6, 1)) if timed else [figure.add_subplot()]
    largest = max((abs(value) for row in rows for value in row.values if math.isfinite(value)), default=0.0)
    for place, row in enumerate(rows):
        _row(axes[0], place, row, largest)
    names = [literal(row.name) + (f"\n{literal(row.remark)}" if row.remark else "") for row in rows]
    axes[0].set_yticks(range(len(rows)), names)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    axes[0].set_xlabel(f"{literal(measure)} ({better} is better)")
    axes[0].margins(x=0.08)
    if timed:
        _seconds(axes[1], rows)
    for one in axes:
        tidy(one).grid(axis="y", visible=False)
        one.tick_params(axis="y", length=0)
    _legend(axes[0])
    figure.suptitle(literal(title), fontsize=12)
    return figure


def _row(axes: Any, place: int, row: Spread, largest: float) -> None:
    values = [value for value in row.values if math.isfinite(value)]
    if not values:
        axes.text(0.5, place, "diverged", transform=axes.get_yaxis_transform(), ha="center", va="center", color="0.4")
        return
    colour, mean = COLOURS[0], statistics.fmean(values)
    if len(values) > 1:
        deviation = statistics.stdev(values)
        axes.errorbar(mean, place, xerr=deviation, color=colour, linewidth=2.5, capsize=5, capthick=1.5, zorder=2)
    axes.scatter(values, [place + 0.2] * len(values), s=34, color=COLOURS[1], alpha=0.65, linewidths=0, zorder=3)
    axes.scatter([mean], [place], s=60, marker="D", color=colour, edgecolors="white", zorder=4)
    axes.annotate(
        figure(mean, largest), (mean, place), (0, 9), textcoords="offset points", ha="center", fontsize=8, zorder=5
    )


def figure(value: float, largest: float = 0.0) -> str:
    """Four digits, zeros at the end among them: 2.330 beside 2.335. Beside larger values no more after the point than
    these have, or two: 0.01 beside 92.79."""
    decimals = _decimals(value)
    return f"{value:.{min(decimals, max(2, _decimals(largest))) if largest else decimals}f}"


def _decimals(value: float) -> int:
    """How many digits after the point make four in all."""
    return max(0, 3 - math.floor(math.log10(abs(value)))) if value else 3


def _seconds(axes: Any, rows: Sequence[Spread]) -> None:
    seconds = [row.seconds if math.isfinite(row.seconds) else 0.0 for row in rows]
    bars = axes.barh(range(len(rows)), seconds, height=0.5, color="0.75")
    axes.bar_label(bars, [_seconds_label(value) for value in seconds], padding=3, fontsize=8)
    axes.margins(x=0.18)
    axes.set_xlabel("seconds of training")


def _seconds_label(value: float) -> str:
    return "" if not value else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _legend(axes: Any) -> None:
    axes.scatter([], [], s=60, marker="D", color=COLOURS[0], label="mean")
    axes.plot([], [], color=COLOURS[0], linewidth=2.5, label="± standard deviation")
    axes.scatter([], [], s=34, color=COLOURS[1], alpha=0.65, linewidths=0, label="one seed")
    axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), fontsize=8, borderaxespad=0.2)
