"""A figure of how good things are as something grows: a line for each, every measurement, the mean and its spread.

A figure of several things measured several times: every value, the mean, and how far the values spread.

A picture of what layers cost as the sequence grows.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.inspect.plots.figures import COLOURS, legend, literal, new_figure, tidy
from seqloom.inspect.views.layers import Layers
from seqloom.inspect.views.memory import Memory, WindowView

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


# ---------------------------------------------------------------------------------------------------------------------


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


# ---------------------------------------------------------------------------------------------------------------------

STYLES = ("-", "-", "-", (0, (4, 2)), (0, (1, 1)))  # lines that lie on each other are still seen
GAP = 0.075  # between two names beside a panel, as a share of its height
PANELS = {
    "time": ("A forward and a backward pass", "milliseconds", 1e3),
    "memory": ("Memory such a pass holds at most", "MiB", 1 / 2**20),
    "chain": ("Operations that must wait for each other", "operations in a row", 1),
    "path": ("From the last place back to the first", "layers (recurrent: steps)", 1),
}


def draw_layers(found: Layers) -> "Figure":
    """Four panels against the length, logarithms on both axes: a power of n is a straight line, and named beside it."""
    figure = new_figure(14, 9)
    for axes, quantity in zip(figure.subplots(2, 2).flatten(), PANELS, strict=True):
        _panel(tidy(axes), found, quantity)
    slopes = f"; slopes over {found.fit()}" if found.fit() else ""
    figure.suptitle(
        f"What a layer costs as its sequence grows\n{found.settings()}\n{found.machine()}{slopes}", fontsize=12
    )
    return figure


def _panel(axes: Any, found: Layers, quantity: str) -> None:
    title, label, unit = PANELS[quantity]
    exponents, ends = found.exponents(quantity), []
    for number, (kind, rows) in enumerate(found.measured.items()):
        known = [one for one in rows if getattr(one, quantity) is not None]
        if not known:
            continue
        lengths, values = [one.length for one in known], [getattr(one, quantity) * unit for one in known]
        colour = COLOURS[number % len(COLOURS)]
        look: dict[str, Any] = {
            "marker": MARKERS[number % len(MARKERS)],
            "linestyle": STYLES[number % len(STYLES)],
        }
        axes.plot(lengths, values, color=colour, linewidth=2.2, **look)
        if quantity == "time":
            low, high = (np.array([edge(one.seconds) for one in known]) * unit for edge in (min, max))
            axes.fill_between(lengths, low, high, color=colour, alpha=0.2, linewidth=0)
        power = "" if exponents[kind] is None else f"  $n^{{{exponents[kind]:.2f}}}$"
        ends.append((values[-1], kind + power, colour))
    if not ends:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="0.4")
    _scales(axes, found.lengths)
    axes.set_xlabel("length of the sequence n")
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=12)
    _name(axes, ends)


def _scales(axes: Any, lengths: Sequence[int]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set_yscale("log")
    axes.minorticks_off()
    low, high = axes.get_ylim()
    few = math.log10(high / low) < 2.5
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _name(axes: Any, ends: list[tuple[float, str, str]]) -> None:
    """Each line's name at its right end, as near as the others leave room."""
    low, high = (math.log(edge) for edge in axes.get_ylim())
    ends = sorted(ends, key=lambda end: end[0])
    heights = apart([(math.log(value) - low) / (high - low) for value, _, _ in ends], GAP)
    for height, (_, name, colour) in zip(heights, ends, strict=True):
        axes.text(1.02, height, name, color=colour, transform=axes.transAxes, va="center", fontsize=11)


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Rising heights, moved so that none is nearer to another than the gap: each crowd spreads around its middle."""
    crowds: list[list[float]] = []
    for height in heights:
        crowds.append([height])
        while len(crowds) > 1 and _lowest(crowds[-1], gap) < _lowest(crowds[-2], gap) + len(crowds[-2]) * gap:
            crowds[-2:] = [crowds[-2] + crowds[-1]]
    return [_lowest(crowd, gap) + place * gap for crowd in crowds for place in range(len(crowd))]


def _lowest(crowd: Sequence[float], gap: float) -> float:
    return sum(crowd) / len(crowd) - gap * (len(crowd) - 1) / 2


TITLES = {"recall": "Recall: which symbol came first?", "adding": "Adding: what is the sum of the two marked numbers?"}


MEANINGS = {
    "recall": "lag: other symbols between the one to remember and the question",
    "adding": "lag: steps the first number must be kept at least (half the sequence)",
}


def draw_memory(found: Memory) -> "Figure":
    """A line for the mean over seeds, a band from the worst seed to the best, and a level line for guessing."""
    plan = found.plan
    figure = new_figure(8, 5)
    axes = tidy(figure.add_subplot())
    order = np.argsort(plan.lags)
    lags = np.array(plan.lags)[order]
    for number, cell in enumerate(plan.cells):
        colour, rows = COLOURS[number % len(COLOURS)], found.success[number][order]  # (lags, seeds)
        axes.fill_between(lags, rows.min(axis=1), rows.max(axis=1), color=colour, alpha=0.18, linewidth=0)
        label = f"{cell}: {found.hidden[cell]} wide, {found.parameters[cell]:,} parameters"
        marker, style = MARKERS[number % len(MARKERS)], "-" if number < len(COLOURS) else "--"
        axes.plot(lags, rows.mean(axis=1), style, color=colour, marker=marker, linewidth=2, label=label)
    axes.axhline(found.blind, color="0.4", linestyle=":", label=f"blind guess: {found.blind:.1%}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(lags, [str(lag) for lag in lags])
    axes.minorticks_off()
    axes.set_xlabel(MEANINGS[plan.test])
    axes.set_ylim(-0.03, 1.05)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_ylabel("answered right")
    seeds = f"{len(plan.seeds)} seeds: mean, and band from worst to best" if len(plan.seeds) > 1 else "1 seed"
    axes.set_title(f"{TITLES[plan.test]}\n{plan.updates:,} updates of {plan.rows} sequences each, {seeds}", fontsize=11)
    legend(axes)
    return figure


def draw_window(views: list[WindowView]) -> "Figure":
    """A line for each model: what the word one, two … places back is worth."""
    figure = new_figure(8, 4.6)
    axes = tidy(figure.add_subplot())
    for number, view in enumerate(views):
        style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        label = literal(f"{view.name}: {view.loss:.2f} nats with all of its window")
        axes.plot(range(1, len(view.worth) + 1), view.worth, linewidth=2, label=label, **style)
    longest = max(len(view.worth) for view in views)
    axes.set_xticks(range(1, longest + 1))
    axes.set_xlabel("tokens back from the one that is predicted")
    if min(min(view.worth) for view in views) > 0:  # the nearest places are worth many times the farthest
        axes.set_yscale("log", subs=[])
        axes.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
        axes.yaxis.set_major_formatter(lambda nats, _: f"{nats:g}")
    else:
        axes.axhline(0, color="0.4", linestyle=":")
    axes.set_ylabel("nats per token lost\nif this place says nothing true")
    axes.set_title("What each place of the window is worth", fontsize=12)
    legend(axes, "upper right")
    return figure
