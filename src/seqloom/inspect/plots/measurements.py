"""Plots of measurements.

The measurements are training curves, metrics for each value of a variable and for each seed, calibration, layer costs,
memory tests and context windows.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.evaluate.classification import Bin, Calibration
from seqloom.inspect.plots.figures import COLOURS, MORE_COLOURS, Style, add_legend, escape_math, new_figure, tidy
from seqloom.inspect.values import Array
from seqloom.inspect.views.curves import (
    DEV_METRIC_TITLES,
    PAIRED_METRICS,
    Points,
    curves,
    loss_panels,
    select_dev_metric,
    training_remark,
)
from seqloom.inspect.views.layers import Layers
from seqloom.inspect.views.memory import Memory, WindowView
from seqloom.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vP*X"


def _line_style(number: int) -> Style:
    """Return the colour and the marker of a line."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


# --- metrics over a variable and over seeds ----------------------------------------------------------------

LINE_OFFSET = 0.02  # horizontal offset between lines, relative to the distance of two x values


@dataclass(frozen=True)
class MeasuredLine:
    """A line with several values at each x, one value per seed. Nonfinite values are ignored."""

    name: str
    values: Mapping[float, Sequence[float]]
    dashed: bool = False
    colour: int | None = None  # index of a colour to share between lines; None for a new colour


def draw_against(
    lines: Sequence[MeasuredLine], *, title: str, x_label: str, y_label: str, percent: bool = False
) -> "Figure":
    """Draw all values, means and standard deviations over equally spaced x values; `percent` shows percentages."""
    xs = sorted({x for line in lines for x in line.values})
    figure = new_figure(8.5, 5.2)
    axes = figure.add_subplot()
    for number, line in enumerate(lines):
        offset = LINE_OFFSET * (number - (len(lines) - 1) / 2)
        points = [(xs.index(x) + offset, _keep_finite(line.values[x])) for x in sorted(line.values)]
        points = [(x, values) for x, values in points if values]
        style = _line_style(number)
        if line.colour is not None:
            style["color"] = COLOURS[line.colour % len(COLOURS)]
        axes.errorbar(
            [x for x, _ in points],
            [statistics.fmean(values) for _, values in points],
            yerr=[statistics.stdev(values) if len(values) > 1 else 0.0 for _, values in points],
            linestyle="--" if line.dashed else "-",
            capsize=3,
            label=escape_math(line.name),
            **style,
        )
        for x, values in points:
            axes.scatter([x] * len(values), values, s=10, color=style["color"], alpha=0.35, linewidths=0)
    axes.set_xticks(range(len(xs)), [f"{100 * x:.4g} %" if percent else f"{x:.4g}" for x in xs])
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
    """A row of values, one per seed. Nonfinite values are ignored."""

    name: str
    values: Sequence[float]
    seconds: float = math.nan  # training time in seconds
    remark: str = ""  # text below the name


def draw_spread(rows: Sequence[Spread], *, title: str, metric: str, better: str = "lower") -> "Figure":
    """Draw one row of dots for each `Spread`, with a diamond for the mean and a bar for the standard deviation.

    The first row is on top. A second panel shows training times if they are known.
    """
    is_timed = any(math.isfinite(row.seconds) for row in rows)
    figure = new_figure(9.5 if is_timed else 7.5, 1.7 + 0.55 * len(rows))
    panels = figure.subplots(1, 2, sharey=True, width_ratios=(2.6, 1)) if is_timed else [figure.add_subplot()]
    axes = panels[0]
    largest = max((abs(value) for row in rows for value in _keep_finite(row.values)), default=0.0)
    for position, row in enumerate(rows):
        _draw_row(axes, position, _keep_finite(row.values), largest)
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
    for panel in panels:
        tidy(panel).grid(axis="y", visible=False)
        panel.tick_params(axis="y", length=0)
    axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), fontsize=8, borderaxespad=0.2)
    figure.suptitle(escape_math(title), fontsize=12)
    return figure


def _draw_row(axes: "Axes", position: int, values: list[float], largest: float) -> None:
    """Draw the dots, the mean and the deviation of a row; `largest` is the largest value of all rows."""
    if not values:
        middle: Style = {"ha": "center", "va": "center", "transform": axes.get_yaxis_transform()}
        axes.text(0.5, position, "diverged", **middle, color="0.4")
        return
    mean = statistics.fmean(values)
    if len(values) > 1:
        bar: Style = {"color": COLOURS[0], "linewidth": 2.5, "capsize": 5, "capthick": 1.5, "zorder": 2}
        axes.errorbar(mean, position, xerr=statistics.stdev(values), **bar)
    axes.scatter(values, [position + 0.2] * len(values), s=34, color=COLOURS[1], alpha=0.65, linewidths=0, zorder=3)
    axes.scatter([mean], [position], s=60, marker="D", color=COLOURS[0], edgecolors="white", zorder=4)
    above: Style = {"textcoords": "offset points", "ha": "center", "fontsize": 8, "zorder": 5}
    axes.annotate(format_four_digits(mean, largest), (mean, position), (0, 9), **above)


def format_four_digits(value: float, largest: float = 0.0) -> str:
    """Format a number with four significant digits, including trailing zeros, such as 2.330.

    If `largest` is given, the number has as many decimals as `largest` would have, but at least two: 0.01 next to
    92.79.
    """

    def decimals(number: float) -> int:
        return max(0, 3 - math.floor(math.log10(abs(number)))) if number else 3

    digits = min(decimals(value), max(2, decimals(largest))) if largest else decimals(value)
    return f"{value:.{digits}f}"


# --- calibration ------------------------------------------------------------------------------------------------------


def draw_reliability(calibration: Calibration, title: str = "") -> "Figure":
    """Draw a reliability diagram: accuracy by confidence, and below it the distribution of confidence.

    The bars of a perfectly calibrated model end on the dashed diagonal.
    """
    figure = new_figure(6.2, 6.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    bins = calibration.filled
    total = sum(bin_.count for bin_ in bins)
    pale: Style = {"facecolor": "white", "linewidth": 1}
    agreement = [(bin_, min(bin_.accuracy, bin_.confidence)) for bin_ in bins]
    _draw_bins(upper, agreement, color=COLOURS[0], label="accuracy up to the confidence")
    for sign, colour, hatch, name in (
        (1, COLOURS[1], "///", "confidence above accuracy"),
        (-1, COLOURS[2], "...", "accuracy above confidence"),
    ):
        gaps = [bin_ for bin_ in bins if sign * bin_.gap > 0]
        if gaps:  # without gaps, the legend has no entry for them
            ends = [min(bin_.accuracy, bin_.confidence) for bin_ in gaps]
            style = {**pale, "edgecolor": colour, "hatch": hatch, "label": name}
            _draw_bins(upper, [(bin_, abs(bin_.gap)) for bin_ in gaps], bottom=ends, **style)
    _draw_bins(lower, [(bin_, bin_.count / total) for bin_ in bins], color="0.6")
    upper.plot([0, 1], [0, 1], linestyle="--", color="0.35", linewidth=1.2, label="perfect calibration")
    upper.set_ylim(0, 1.02)
    upper.set_ylabel("accuracy")
    add_legend(upper, "upper left")
    lower.set_ylabel("fraction of predictions")
    lower.set_xlabel("confidence")
    lower.set_xlim(0, 1)
    for axes in (upper, lower):
        tidy(axes)
    verdict = "overconfident" if calibration.gap > 0 else "underconfident"
    summary = f"expected calibration error {calibration.error:.3f}, {verdict} overall"
    figure.suptitle("\n".join([escape_math(title)] * bool(title) + [summary]), fontsize=11)
    return figure


def _draw_bins(axes: "Axes", bars: Sequence[tuple[Bin, float]], **style: Any) -> None:
    """Draw a bar of the given height over each bin."""
    middles = [(bin_.low + bin_.high) / 2 for bin_, _ in bars]
    widths = [0.94 * (bin_.high - bin_.low) for bin_, _ in bars]
    axes.bar(middles, [height for _, height in bars], width=widths, **style)


# --- costs of layers, memory tests and context windows ----------------------------------------------------------------

LINE_STYLES = ("-", "-", "-", (0, (4, 2)), (0, (1, 1)))  # different styles keep overlapping lines visible
LABEL_GAP = 0.075  # distance between two labels beside a panel, relative to its height
COST_PANELS = {  # title, unit, and number of units per second, byte or operation
    "time": ("Forward and backward pass", "milliseconds", 1e3),
    "memory": ("Peak memory of the two passes", "MiB", 1 / 2**20),
    "chain": ("Sequential operations", "operations", 1),
    "path": ("Path from the last position to the first", "layers (recurrent: steps)", 1),
}


def draw_layers(layers: Layers) -> "Figure":
    """Draw four costs over the sequence length on logarithmic axes. Label each line with its fitted power of n."""
    figure = new_figure(14, 9)
    for axes, quantity in zip(figure.subplots(2, 2).flatten(), COST_PANELS, strict=True):
        _draw_costs(tidy(axes), layers, quantity)
    slopes = f"; slopes over {layers.fit()}" if layers.fit() else ""
    title = f"Cost of a layer by sequence length\n{layers.settings()}\n{layers.machine()}{slopes}"
    figure.suptitle(title, fontsize=12)
    return figure


def _draw_costs(axes: "Axes", layers: Layers, quantity: str) -> None:
    """Draw one cost of all layers. Beside the panel, write the name and the fitted power of n of each line."""
    from matplotlib.ticker import LogLocator, NullFormatter

    title, unit, factor = COST_PANELS[quantity]
    exponents, ends = layers.exponents(quantity), []
    for number, (kind, rows) in enumerate(layers.measured.items()):
        points = [(row, value * factor) for row in rows if (value := getattr(row, quantity)) is not None]
        if not points:
            continue
        lengths, values = [row.length for row, _ in points], [value for _, value in points]
        style = _line_style(number)
        axes.plot(lengths, values, linestyle=LINE_STYLES[number % len(LINE_STYLES)], linewidth=2.2, **style)
        if quantity == "time":
            low, high = (np.array([edge(row.seconds) for row, _ in points]) * factor for edge in (min, max))
            axes.fill_between(lengths, low, high, color=style["color"], alpha=0.2, linewidth=0)
        power = "" if exponents[kind] is None else f"  $n^{{{exponents[kind]:.2f}}}$"
        ends.append((values[-1], kind + power, style["color"]))
    if not ends:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="0.4")
    _set_lengths(axes, layers.lengths, [f"{length:,}" for length in layers.lengths])
    axes.set_yscale("log")
    axes.minorticks_off()
    decades = math.log10(axes.get_ylim()[1] / axes.get_ylim()[0])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.5 else (1,)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("sequence length n")
    axes.set_ylabel(unit)
    axes.set_title(title, fontsize=12)
    bottom, top = (math.log(edge) for edge in axes.get_ylim())
    ends.sort(key=lambda end: end[0])
    heights = spread_labels([(math.log(value) - bottom) / (top - bottom) for value, _, _ in ends], LABEL_GAP)
    for height, (_, name, colour) in zip(heights, ends, strict=True):
        axes.text(1.02, height, name, color=colour, transform=axes.transAxes, va="center", fontsize=11)


def _set_lengths(axes: "Axes", lengths: Array | Sequence[int], names: Sequence[str]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, names)
    axes.minorticks_off()


def spread_labels(heights: Sequence[float], gap: float) -> list[float]:
    """Move ascending heights so that they are at least `gap` apart. Each cluster is centred on its mean."""

    def lowest(cluster: Sequence[float]) -> float:
        return sum(cluster) / len(cluster) - gap * (len(cluster) - 1) / 2

    clusters: list[list[float]] = []
    for height in heights:
        clusters.append([height])
        while len(clusters) > 1 and lowest(clusters[-1]) < lowest(clusters[-2]) + len(clusters[-2]) * gap:
            clusters[-2:] = [clusters[-2] + clusters[-1]]
    return [lowest(cluster) + position * gap for cluster in clusters for position in range(len(cluster))]


MEMORY_TESTS = {  # title, and meaning of the lag
    "recall": (
        "Recall: which symbol came first?",
        "lag: symbols between the first symbol and the question",
    ),
    "adding": (
        "Adding: what is the sum of the two marked numbers?",
        "lag: minimum number of steps to remember the first number (half the sequence)",
    ),
}


def draw_memory(memory: Memory) -> "Figure":
    """Draw the mean over seeds as a line, the range from the worst to the best seed as a band, and the chance level."""
    plan = memory.plan
    title, meaning = MEMORY_TESTS[plan.test]
    figure = new_figure(8, 5)
    axes = tidy(figure.add_subplot())
    order = np.argsort(plan.lags)
    lags = np.array(plan.lags)[order]
    for number, cell in enumerate(plan.cells):
        style, rows = _line_style(number), memory.success[number][order]  # (lags, seeds)
        axes.fill_between(lags, rows.min(axis=1), rows.max(axis=1), color=style["color"], alpha=0.18, linewidth=0)
        name = f"{cell}: hidden size {memory.hidden[cell]}, {memory.parameters[cell]:,} parameters"
        dashes = "-" if number < len(COLOURS) else "--"
        axes.plot(lags, rows.mean(axis=1), linestyle=dashes, linewidth=2, label=name, **style)
    axes.axhline(memory.blind, color="0.4", linestyle=":", label=f"guessing: {memory.blind:.1%}")
    _set_lengths(axes, lags, [str(lag) for lag in lags])
    axes.set_xlabel(meaning)
    axes.set_ylim(-0.03, 1.05)
    axes.yaxis.set_major_formatter(lambda rate, _: f"{rate:.0%}")
    axes.set_ylabel("correct answers")
    seeds = f"{len(plan.seeds)} seeds: mean and range" if len(plan.seeds) > 1 else "1 seed"
    axes.set_title(f"{title}\n{plan.updates:,} updates of {plan.batch_size} sequences, {seeds}", fontsize=11)
    add_legend(axes)
    return figure


def draw_window(views: list[WindowView]) -> "Figure":
    """Draw, for each model, the increase in loss when the tokens at a position of its window are shuffled."""
    figure = new_figure(8, 4.6)
    axes = tidy(figure.add_subplot())
    for number, view in enumerate(views):
        name = escape_math(f"{view.name}: {view.loss:.2f} nats with the full window")
        axes.plot(range(1, len(view.importance) + 1), view.importance, linewidth=2, label=name, **_line_style(number))
    axes.set_xticks(range(1, max(len(view.importance) for view in views) + 1))
    axes.set_xlabel("distance from the predicted token")
    # Logarithmic, because near positions matter many times as much as distant positions
    if min(min(view.importance) for view in views) > 0:
        axes.set_yscale("log", subs=[])
        ticks: Style = {"subs": (1, 2, 5)}
        axes.yaxis.get_major_locator().set_params(**ticks)
        axes.yaxis.set_major_formatter(lambda nats, _: f"{nats:g}")
    else:
        axes.axhline(0, color="0.4", linestyle=":")
    axes.set_ylabel("increase in loss (nats per token)\nif this position is shuffled")
    axes.set_title("Permutation importance of the window positions", fontsize=12)
    add_legend(axes, "upper right")
    return figure


# --- training curves --------------------------------------------------------------------------------------------------

MAX_MARKED_POINTS = 20  # lines with more points have no markers
MAX_COLUMNS = 2  # panels side by side
SPIKE_WIDTH = 2  # maximum consecutive points of a spike
MAX_SPIKE = 1.0  # height, relative to that of the other points, up to which a spike is displayed completely
MAX_HALF_ENTRY = 44  # maximum characters of an entry in a legend with two columns


def draw_curves(runs: Sequence[Run]) -> "Figure":
    """Draw the losses of runs, with thin lines for training and thick lines for dev.

    The loss of a run that was estimated in one step is a horizontal line. Losses in different units have separate
    panels. The training line is dotted if the training loss is sampled or smoothed, and is therefore not comparable
    with the dev loss. If all runs have BLEU, F1 or accuracy on dev, a separate panel shows this metric.
    """
    dev_metrics = {name for run in runs for name in DEV_METRIC_TITLES if curves(run).get(name)}
    metric = dev_metrics.pop() if len(dev_metrics) == 1 else None
    losses = loss_panels(runs)
    count = len(losses) + bool(metric)
    columns = min(count, MAX_COLUMNS)
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
        _clip_spikes(axes)
        axes.set_ylabel(panel.title)
    if metric is not None:
        for run in runs:
            _draw_metric(panels[-1], run, metric, colours[run.path])
        panels[-1].set_ylabel(DEV_METRIC_TITLES[metric])
        largest = max(value for run in runs for _, value in curves(run).get(metric, []))
        panels[-1].set_ylim(0, max(1.0, 1.05 * largest))
    for axes in panels:
        axes.set_xlabel("step")
    legend_rows = max(map(_place_legend, panels))
    figure.set_figheight(figure.get_figheight() + 0.21 * legend_rows * rows)
    title = " · ".join(_format_headline(run) for run in runs) if len(runs) < 3 else f"{len(runs)} runs"
    (figure.suptitle if count > 1 else panels[0].set_title)(title)
    return figure


def _place_legend(axes: "Axes") -> int:
    """Place the legend of a panel below it and return its number of rows."""
    labels = axes.get_legend_handles_labels()[1]
    columns = 2 if max(map(len, labels), default=0) <= MAX_HALF_ENTRY else 1
    axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=columns)
    return -(-len(labels) // columns)


def _draw_loss(axes: "Axes", run: Run, factor: float, colour: str, last: int) -> None:
    """Draw the training and dev losses of a run, or a line up to step `last` if the run was estimated in one step.

    `factor` converts the losses to the unit of the panel.
    """
    points, name = curves(run, factor), escape_math(run.path.name)
    if points["train"]:
        remark = training_remark(run)
        thin: Style = {"color": colour, "alpha": 0.4, "linewidth": 1, "linestyle": ":" if remark else "-"}
        axes.plot(*zip(*points["train"], strict=True), **thin, label=f"{name}: train{', ' * bool(remark)}{remark}")
        if points["dev"]:
            thick: Style = {"color": colour, **_marker_style(points["dev"])}
            axes.plot(*zip(*points["dev"], strict=True), **thick, label=f"{name}: dev")
    elif points["dev"]:
        loss = points["dev"][-1][1]
        axes.plot([0, last], [loss, loss], color=colour, linestyle="--", label=f"{name}: dev")


def _clip_spikes(axes: "Axes") -> None:
    """Limit the axis to the running medians and the first points of its curves if a spike far exceeds them."""
    lines = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines]
    lines = [finite for line in lines if len(finite := line[np.isfinite(line)])]
    if not lines:
        return
    padded = [np.pad(line, SPIKE_WIDTH, mode="edge") for line in lines]
    windows = [np.lib.stride_tricks.sliding_window_view(line, 2 * SPIKE_WIDTH + 1) for line in padded]
    top, bottom = max(np.median(window, axis=1).max() for window in windows), min(map(np.min, lines))
    peak, margin = max(map(np.max, lines)), 0.05 * (top - bottom)
    if peak - top > MAX_SPIKE * (top - bottom) > 0:
        axes.set_ylim(bottom - margin, top + margin)
        axes.text(0.99, 0.98, f"beyond the axis: up to {peak:.4g}", transform=axes.transAxes, ha="right", va="top")


def _draw_metric(axes: "Axes", run: Run, metric: str, colour: str) -> None:
    """Draw a metric on dev over the steps, and its companion metric if available."""
    paired, first, second = PAIRED_METRICS.get(metric, ("", "", ""))
    points, others, name = curves(run).get(metric, []), curves(run).get(paired, []), escape_math(run.path.name)
    label = f"{name}: {first}" if first else name
    axes.plot(*zip(*points, strict=True), color=colour, **_marker_style(points), label=label)
    if others:
        style: Style = {"color": colour, "linestyle": "--", **_marker_style(others, "s")}
        axes.plot(*zip(*others, strict=True), label=f"{name}: {second}", **style)


def _marker_style(points: Points, marker: str = "o") -> Style:
    """Return a style that adds markers to a line with few points."""
    return {"marker": marker, "markersize": 4.5} if len(points) <= MAX_MARKED_POINTS else {"linewidth": 2}


def _format_headline(run: Run) -> str:
    metrics, name = run.metrics("dev"), escape_math(run.path.name)
    if metrics is None:
        return name
    if "bits_per_character" in metrics:
        return f"{name}: {metrics['bits_per_character']:.3f} bits per character"
    if "bleu" in metrics:
        return f"{name}: BLEU {metrics['bleu']:.1f}"
    if (metric := select_dev_metric(metrics)) is not None:
        return f"{name}: {metric.replace('_', ' ')} {metrics[metric]:.4f}"
    return f"{name}: loss {metrics['loss']:.4f}"
