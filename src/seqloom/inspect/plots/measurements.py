"""Plots of measurements: training curves, values against a variable, spreads over seeds, calibration, costs of layers,
memory tests and windows."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.evaluate.classification import Bin, Calibration
from seqloom.inspect.plots.figures import COLOURS, MORE_COLOURS, Style, add_legend, escape_math, new_figure, tidy
from seqloom.inspect.values import Array
from seqloom.inspect.views.curves import ALONG, BESIDE, Points, curves, figure_beside, loss_panels, training_remark
from seqloom.inspect.views.layers import Layers
from seqloom.inspect.views.memory import Memory, WindowView
from seqloom.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vP*X"


def _line_style(number: int) -> Style:
    """A colour and a marker for each line."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


# --- values against a variable, and spreads over seeds ----------------------------------------------------------------

APART = 0.02  # how far lines stand from each other at one place, as a share of the way to the next


@dataclass(frozen=True)
class MeasuredLine:
    """A line: at each place several values, one per seed; what is no number is left out."""

    name: str
    values: Mapping[float, Sequence[float]]
    dashed: bool = False
    colour: int | None = None  # lines of one number have one colour; None: its own


def draw_against(
    lines: Sequence[MeasuredLine], *, title: str, x_label: str, y_label: str, percent: bool = False
) -> "Figure":
    """Draw every measurement, means and standard deviations. Places are drawn at equal distances, whatever lies between
    them; `percent` writes them so."""
    places = sorted({place for line in lines for place in line.values})
    figure = new_figure(8.5, 5.2)
    axes = figure.add_subplot()
    for number, line in enumerate(lines):
        aside = APART * (number - (len(lines) - 1) / 2)
        known = [(places.index(place) + aside, _keep_finite(line.values[place])) for place in sorted(line.values)]
        known = [(x, values) for x, values in known if values]
        look = _line_style(number)
        if line.colour is not None:
            look["color"] = COLOURS[line.colour % len(COLOURS)]
        axes.errorbar(
            [x for x, _ in known],
            [statistics.fmean(values) for _, values in known],
            yerr=[statistics.stdev(values) if len(values) > 1 else 0.0 for _, values in known],
            linestyle="--" if line.dashed else "-",
            capsize=3,
            label=escape_math(line.name),
            **look,
        )
        for x, values in known:
            axes.scatter([x] * len(values), values, s=10, color=look["color"], alpha=0.35, linewidths=0)
    axes.set_xticks(range(len(places)), [f"{100 * place:.4g} %" if percent else f"{place:.4g}" for place in places])
    axes.set_xlabel(escape_math(x_label))
    axes.set_ylabel(escape_math(y_label))
    tidy(axes).grid(axis="x", visible=False)
    add_legend(axes, "lower right")
    axes.set_title(escape_math(title), fontsize=12)
    return figure


def _keep_finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


@dataclass(frozen=True)
class Spread:
    """A row of values, one per seed; what is not a number is left out."""

    name: str
    values: Sequence[float]
    seconds: float = math.nan  # what it took
    remark: str = ""  # beneath the name


def draw_spread(rows: Sequence[Spread], *, title: str, metric: str, better: str = "lower") -> "Figure":
    """Draw the first row on top. Dots are single values, the diamond their mean, the bar one standard deviation.

    Beside it, where they are known, the seconds each took.
    """
    is_timed = any(math.isfinite(row.seconds) for row in rows)
    figure = new_figure(9.5 if is_timed else 7.5, 1.7 + 0.55 * len(rows))
    panels = figure.subplots(1, 2, sharey=True, width_ratios=(2.6, 1)) if is_timed else [figure.add_subplot()]
    axes = panels[0]
    largest = max((abs(value) for row in rows for value in _keep_finite(row.values)), default=0.0)
    for place, row in enumerate(rows):
        _draw_row(axes, place, _keep_finite(row.values), largest)
    axes.scatter([], [], s=60, marker="D", color=COLOURS[0], label="mean")
    axes.plot([], [], color=COLOURS[0], linewidth=2.5, label="± standard deviation")
    axes.scatter([], [], s=34, color=COLOURS[1], alpha=0.65, linewidths=0, label="one seed")
    names = [escape_math(row.name) + (f"\n{escape_math(row.remark)}" if row.remark else "") for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(f"{escape_math(metric)} ({better} is better)")
    axes.margins(x=0.08)
    if is_timed:
        seconds = [row.seconds if math.isfinite(row.seconds) else 0.0 for row in rows]
        labels = ["" if not value else f"{value:,.0f}" if value >= 10 else f"{value:.2g}" for value in seconds]
        bars = panels[1].barh(range(len(rows)), seconds, height=0.5, color="0.75")
        panels[1].bar_label(bars, labels, padding=3, fontsize=8)
        panels[1].margins(x=0.18)
        panels[1].set_xlabel("seconds of training")
    for one in panels:
        tidy(one).grid(axis="y", visible=False)
        one.tick_params(axis="y", length=0)
    axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), fontsize=8, borderaxespad=0.2)
    figure.suptitle(escape_math(title), fontsize=12)
    return figure


def _draw_row(axes: "Axes", place: int, values: list[float], largest: float) -> None:
    if not values:
        axes.text(0.5, place, "diverged", transform=axes.get_yaxis_transform(), ha="center", va="center", color="0.4")
        return
    mean = statistics.fmean(values)
    if len(values) > 1:
        bar: Style = {"color": COLOURS[0], "linewidth": 2.5, "capsize": 5, "capthick": 1.5, "zorder": 2}
        axes.errorbar(mean, place, xerr=statistics.stdev(values), **bar)
    axes.scatter(values, [place + 0.2] * len(values), s=34, color=COLOURS[1], alpha=0.65, linewidths=0, zorder=3)
    axes.scatter([mean], [place], s=60, marker="D", color=COLOURS[0], edgecolors="white", zorder=4)
    above: Style = {"textcoords": "offset points", "ha": "center", "fontsize": 8, "zorder": 5}
    axes.annotate(format_four_digits(mean, largest), (mean, place), (0, 9), **above)


def format_four_digits(value: float, largest: float = 0.0) -> str:
    """Four digits, zeros at the end among them: 2.330 beside 2.335. Beside larger values no more after the point than
    these have, or two: 0.01 beside 92.79."""

    def decimals(number: float) -> int:
        return max(0, 3 - math.floor(math.log10(abs(number)))) if number else 3

    places = min(decimals(value), max(2, decimals(largest))) if largest else decimals(value)
    return f"{value:.{places}f}"


# --- calibration ------------------------------------------------------------------------------------------------------


def draw_reliability(calibration: Calibration, title: str = "") -> "Figure":
    """Draw how often answers are right by how sure the model was, and below, how often it was that sure.

    On the dashed line a model is as right as it is sure.
    """
    figure = new_figure(6.2, 6.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    bins = calibration.filled
    total = sum(one.count for one in bins)
    pale: Style = {"facecolor": "white", "linewidth": 1}
    _draw_bins(
        upper, [(one, min(one.accuracy, one.confidence)) for one in bins], color=COLOURS[0], label="right, as expected"
    )
    for sign, colour, hatch, name in (
        (1, COLOURS[1], "///", "expected, but wrong"),
        (-1, COLOURS[2], "...", "right, but not expected"),
    ):
        apart = [one for one in bins if sign * one.gap > 0]
        if apart:  # or no word about it in the legend
            ends = [min(one.accuracy, one.confidence) for one in apart]
            look = {**pale, "edgecolor": colour, "hatch": hatch, "label": name}
            _draw_bins(upper, [(one, abs(one.gap)) for one in apart], bottom=ends, **look)
    _draw_bins(lower, [(one, one.count / total) for one in bins], color="0.6")
    upper.plot([0, 1], [0, 1], linestyle="--", color="0.35", linewidth=1.2, label="as right as sure")
    upper.set_ylim(0, 1.02)
    upper.set_ylabel("share of answers that are right")
    add_legend(upper, "upper left")
    lower.set_ylabel("share of answers")
    lower.set_xlabel("how sure the model was of its answer")
    lower.set_xlim(0, 1)
    for axes in (upper, lower):
        tidy(axes)
    verdict = "surer than it should be" if calibration.gap > 0 else "less sure than it could be"
    summary = f"expected calibration error {calibration.error:.3f}: on the whole {verdict}"
    figure.suptitle("\n".join([escape_math(title)] * bool(title) + [summary]), fontsize=11)
    return figure


def _draw_bins(axes: "Axes", bars: Sequence[tuple[Bin, float]], **look: Any) -> None:
    """A bar of some height over each bin."""
    middles, widths = [(one.low + one.high) / 2 for one, _ in bars], [0.94 * (one.high - one.low) for one, _ in bars]
    axes.bar(middles, [height for _, height in bars], width=widths, **look)


# --- what layers cost, how long they remember -------------------------------------------------------------------------

STYLES = ("-", "-", "-", (0, (4, 2)), (0, (1, 1)))  # lines that lie on each other are still seen
GAP = 0.075  # between two names beside a panel, as a share of its height
PANELS = {
    "time": ("A forward and a backward pass", "milliseconds", 1e3),
    "memory": ("Memory such a pass holds at most", "MiB", 1 / 2**20),
    "chain": ("Operations that must wait for each other", "operations in a row", 1),
    "path": ("From the last place back to the first", "layers (recurrent: steps)", 1),
}


def draw_layers(layers: Layers) -> "Figure":
    """Draw four panels against the length, with logarithmic axes: a power of n is a straight line, named beside it."""
    figure = new_figure(14, 9)
    for axes, quantity in zip(figure.subplots(2, 2).flatten(), PANELS, strict=True):
        _draw_costs(tidy(axes), layers, quantity)
    slopes = f"; slopes over {layers.fit()}" if layers.fit() else ""
    title = f"What a layer costs as its sequence grows\n{layers.settings()}\n{layers.machine()}{slopes}"
    figure.suptitle(title, fontsize=12)
    return figure


def _draw_costs(axes: "Axes", layers: Layers, quantity: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    title, unit_name, unit = PANELS[quantity]
    exponents, ends = layers.exponents(quantity), []
    for number, (kind, rows) in enumerate(layers.measured.items()):
        known = [(one, value * unit) for one in rows if (value := getattr(one, quantity)) is not None]
        if not known:
            continue
        lengths, values = [one.length for one, _ in known], [value for _, value in known]
        look = _line_style(number)
        axes.plot(lengths, values, linestyle=STYLES[number % len(STYLES)], linewidth=2.2, **look)
        if quantity == "time":
            low, high = (np.array([edge(one.seconds) for one, _ in known]) * unit for edge in (min, max))
            axes.fill_between(lengths, low, high, color=look["color"], alpha=0.2, linewidth=0)
        power = "" if exponents[kind] is None else f"  $n^{{{exponents[kind]:.2f}}}$"
        ends.append((values[-1], kind + power, look["color"]))
    if not ends:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="0.4")
    _set_lengths(axes, layers.lengths, [f"{length:,}" for length in layers.lengths])
    axes.set_yscale("log")
    axes.minorticks_off()
    decades = math.log10(axes.get_ylim()[1] / axes.get_ylim()[0])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.5 else (1,)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("length of the sequence n")
    axes.set_ylabel(unit_name)
    axes.set_title(title, fontsize=12)
    bottom, top = (math.log(edge) for edge in axes.get_ylim())
    ends.sort(key=lambda end: end[0])
    heights = spread_labels([(math.log(value) - bottom) / (top - bottom) for value, _, _ in ends], GAP)
    for height, (_, name, colour) in zip(heights, ends, strict=True):
        axes.text(1.02, height, name, color=colour, transform=axes.transAxes, va="center", fontsize=11)


def _set_lengths(axes: "Axes", lengths: Array | Sequence[int], names: Sequence[str]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, names)
    axes.minorticks_off()


def spread_labels(heights: Sequence[float], gap: float) -> list[float]:
    """Rising heights, moved so that none is nearer to another than the gap: each crowd spreads around its middle."""

    def lowest(crowd: Sequence[float]) -> float:
        return sum(crowd) / len(crowd) - gap * (len(crowd) - 1) / 2

    crowds: list[list[float]] = []
    for height in heights:
        crowds.append([height])
        while len(crowds) > 1 and lowest(crowds[-1]) < lowest(crowds[-2]) + len(crowds[-2]) * gap:
            crowds[-2:] = [crowds[-2] + crowds[-1]]
    return [lowest(crowd) + place * gap for crowd in crowds for place in range(len(crowd))]


MEMORY_TESTS = {  # title, and what a lag is
    "recall": (
        "Recall: which symbol came first?",
        "lag: other symbols between the one to remember and the question",
    ),
    "adding": (
        "Adding: what is the sum of the two marked numbers?",
        "lag: steps the first number must be kept at least (half the sequence)",
    ),
}


def draw_memory(memory: Memory) -> "Figure":
    """Draw a line for the mean over seeds, a band from the worst seed to the best, a level line for guessing."""
    plan = memory.plan
    title, meaning = MEMORY_TESTS[plan.test]
    figure = new_figure(8, 5)
    axes = tidy(figure.add_subplot())
    order = np.argsort(plan.lags)
    lags = np.array(plan.lags)[order]
    for number, cell in enumerate(plan.cells):
        look, rows = _line_style(number), memory.success[number][order]  # (lags, seeds)
        axes.fill_between(lags, rows.min(axis=1), rows.max(axis=1), color=look["color"], alpha=0.18, linewidth=0)
        name = f"{cell}: {memory.hidden[cell]} wide, {memory.parameters[cell]:,} parameters"
        dashes = "-" if number < len(COLOURS) else "--"
        axes.plot(lags, rows.mean(axis=1), linestyle=dashes, linewidth=2, label=name, **look)
    axes.axhline(memory.blind, color="0.4", linestyle=":", label=f"blind guess: {memory.blind:.1%}")
    _set_lengths(axes, lags, [str(lag) for lag in lags])
    axes.set_xlabel(meaning)
    axes.set_ylim(-0.03, 1.05)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_ylabel("answered right")
    seeds = f"{len(plan.seeds)} seeds: mean, and band from worst to best" if len(plan.seeds) > 1 else "1 seed"
    axes.set_title(f"{title}\n{plan.updates:,} updates of {plan.rows} sequences each, {seeds}", fontsize=11)
    add_legend(axes)
    return figure


def draw_window(views: list[WindowView]) -> "Figure":
    """Draw a line for each model: what the word one, two … places back is worth."""
    figure = new_figure(8, 4.6)
    axes = tidy(figure.add_subplot())
    for number, view in enumerate(views):
        name = escape_math(f"{view.name}: {view.loss:.2f} nats with all of its window")
        axes.plot(range(1, len(view.worth) + 1), view.worth, linewidth=2, label=name, **_line_style(number))
    axes.set_xticks(range(1, max(len(view.worth) for view in views) + 1))
    axes.set_xlabel("tokens back from the one that is predicted")
    if min(min(view.worth) for view in views) > 0:  # the nearest places are worth many times the farthest
        axes.set_yscale("log", subs=[])
        ticks: Style = {"subs": (1, 2, 5)}
        axes.yaxis.get_major_locator().set_params(**ticks)
        axes.yaxis.set_major_formatter(lambda nats, _: f"{nats:g}")
    else:
        axes.axhline(0, color="0.4", linestyle=":")
    axes.set_ylabel("nats per token lost\nif this place says nothing true")
    axes.set_title("What each place of the window is worth", fontsize=12)
    add_legend(axes, "upper right")
    return figure


# --- training curves --------------------------------------------------------------------------------------------------

FEW_POINTS = 20  # of a line that have dots
MOST_COLUMNS = 2  # panels side by side
NARROW = 44  # letters of a legend's entry that leave room for another beside it


def draw_curves(runs: Sequence[Run]) -> "Figure":
    """Draw thin lines for training, thick ones for dev, with dots where they are few; a level line for a run that was
    estimated in one go. Losses in different units have a panel each.

    A thin line is dotted where training lowers another sum than dev measures: that of a few
    samples, or a smoothed one. Translators, taggers and classifiers also have a panel with their
    BLEU, F1 or accuracy on dev, if they have it in common.
    """
    beside = {name for run in runs for name in BESIDE if curves(run).get(name)}
    name = beside.pop() if len(beside) == 1 else None
    losses = loss_panels(runs)
    count = len(losses) + bool(name)
    columns = min(count, MOST_COLUMNS)
    rows = -(-count // columns)
    figure = new_figure(width=8 if columns == 1 else 6 * columns, height=4.5 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    panels = [tidy(axes) for axes in grid[:count]]
    for axes in grid[count:]:
        axes.remove()
    colours = dict(zip((run.path for run in runs), MORE_COLOURS * len(runs), strict=False))
    last = max((step for run in runs for points in curves(run).values() for step, _ in points), default=1)
    for axes, panel in zip(panels, losses, strict=False):
        for run, factor in panel.runs:
            _draw_loss(axes, run, factor, colours[run.path], last)
        axes.set_ylabel(panel.title)
    if name is not None:
        for run in runs:
            _draw_metric(panels[-1], run, name, colours[run.path])
        panels[-1].set_ylabel(BESIDE[name])
        largest = max(value for run in runs for _, value in curves(run).get(name, []))
        panels[-1].set_ylim(0, max(1.0, 1.05 * largest))
    lines = max(_legend_below(axes) for axes in panels)
    figure.set_figheight(figure.get_figheight() + 0.21 * lines * rows)
    title = " · ".join(_format_headline(run) for run in runs) if len(runs) < 3 else f"{len(runs)} runs"
    (figure.suptitle if count > 1 else panels[0].set_title)(title)
    for axes in panels:
        axes.set_xlabel("step")
    return figure


def _draw_loss(axes: "Axes", run: Run, factor: float, colour: str, last: int) -> None:
    points, name = curves(run, factor), escape_math(run.path.name)
    if points["train"]:
        remark = training_remark(run)
        thin: Style = {"color": colour, "alpha": 0.4, "linewidth": 1, "linestyle": ":" if remark else "-"}
        axes.plot(*zip(*points["train"], strict=True), **thin, label=f"{name}: train{', ' * bool(remark)}{remark}")
        if points["dev"]:
            axes.plot(
                *zip(*points["dev"], strict=True), color=colour, **_marker_style(points["dev"]), label=f"{name}: dev"
            )
    elif points["dev"]:
        loss = points["dev"][-1][1]
        axes.plot([0, last], [loss, loss], color=colour, linestyle="--", label=f"{name}: dev")


def _draw_metric(axes: "Axes", run: Run, metric: str, colour: str) -> None:
    """A metric on dev over the steps, and what is drawn along with it, where the run has it."""
    along, first, second = ALONG.get(metric, ("", "", ""))
    points, others, name = curves(run).get(metric, []), curves(run).get(along, []), escape_math(run.path.name)
    axes.plot(
        *zip(*points, strict=True), color=colour, **_marker_style(points), label=f"{name}: {first}" if first else name
    )
    if others:
        look: Style = {"color": colour, "linestyle": "--", **_marker_style(others, "s")}
        axes.plot(*zip(*others, strict=True), label=f"{name}: {second}", **look)


def _marker_style(points: Points, form: str = "o") -> Style:
    """Dots where they are few enough to leave the line to be seen."""
    return {"marker": form, "markersize": 4.5} if len(points) <= FEW_POINTS else {"linewidth": 2}


def _legend_below(axes: "Axes") -> int:
    """Where no curve runs, in as many rows as are returned."""
    labels = axes.get_legend_handles_labels()[1]
    columns = 2 if max(map(len, labels), default=0) <= NARROW else 1
    axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=columns)
    return -(-len(labels) // columns)


def _format_headline(run: Run) -> str:
    metrics, name = run.metrics("dev"), escape_math(run.path.name)
    if metrics is None:
        return name
    if "bits_per_character" in metrics:
        return f"{name}: {metrics['bits_per_character']:.3f} bits per character"
    if "bleu" in metrics:
        return f"{name}: BLEU {metrics['bleu']:.1f}"
    if (metric := figure_beside(metrics)) is not None:
        return f"{name}: {metric.replace('_', ' ')} {metrics[metric]:.4f}"
    return f"{name}: loss {metrics['loss']:.4f}"
