"""A picture of what a series is made of: a panel for each part, with bands.

A picture of a forecast: the series, what is expected of it, and bands of how sure that is.

A picture of a track: on the plane, and how far off each estimate is while time goes by.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.inspect.plots.figures import COLOURS, legend, literal, lone_dots, new_figure, tidy
from seqloom.inspect.views.series import Array, Components, Forecasted, TrackTrace, ellipse

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEVIATIONS = 1.959964  # that hold 95 %
SAID = {
    "level": "level: where it would be without season and noise",
    "slope": "slope: what a step adds to the level",
    "season": "season: what comes again every season",
    "place": "place",
    "velocity": "velocity: what a step adds to the place",
}


def draw_components(found: Components, title: str = "") -> "Figure":
    names = list(found.parts)
    figure = new_figure(11, 2.6 + 1.9 * (len(names) - 1) + 0.9)
    panels = figure.subplots(len(names), 1, sharex=True, squeeze=False, height_ratios=[1.7] + [1] * (len(names) - 1))
    for number, (axes, name) in enumerate(zip(panels[:, 0].tolist(), names, strict=True)):
        tidy(axes)
        _band(axes, found.times, *found.parts[name], COLOURS[number])
        axes.set_title(SAID[name], loc="left", fontsize=10)
        axes.set_ylabel(name)
        if number:
            axes.axhline(0, color="black", linewidth=0.7)
        else:
            _observed(axes, found)
    log = ", logarithms" if found.logarithmic else ""
    which = found.series if found.series == found.variable else f"{found.series}, {found.variable}"
    noise = f"noise of an observation ±{DEVIATIONS * found.noise:.3g}"
    figure.suptitle(literal(f"{title + ': ' if title else ''}{which}{log}; {noise}, bands hold 95 %"))
    return figure


def _observed(axes: Any, found: Components) -> None:
    dots = lone_dots(found.observed)
    axes.plot(found.times, found.observed, color="#777777", linewidth=0.9, label="observed", zorder=1, **dots)
    (low, high), values = axes.get_ylim(), found.observed[~np.isnan(found.observed)]
    around = 0.05 * float(np.ptp(values))
    axes.set_ylim(min(low, values.min() - around), max(high, values.max() + around))
    legend(axes)


def _band(axes: Any, times: Any, mean: Array, deviation: Array, colour: str) -> None:
    low, high = mean - DEVIATIONS * deviation, mean + DEVIATIONS * deviation
    axes.fill_between(times, low, high, color=colour, alpha=0.22, linewidth=0)
    axes.plot(times, mean, color=colour, linewidth=1.5, label="smoothed")
    steady = slice(len(mean) // 20, None)  # the first steps are anybody's guess: they must not set the scale
    reach = np.array([low[steady].min(), high[steady].max()])
    around = 0.08 * float(np.ptp(reach)) or 1.0
    axes.set_ylim(reach[0] - around, reach[1] + around)


# ---------------------------------------------------------------------------------------------------------------------

SHOWN = 5  # horizons of the past that are drawn, unless told
MOST_PANELS = 6


def draw_forecast(found: Forecasted, history: int | None = None, columns: Sequence[int] | None = None) -> "Figure":
    """A panel for each variable; `history` is how many steps of the past are drawn."""
    chosen = list(range(min(len(found.columns), MOST_PANELS))) if columns is None else list(columns)
    figure = new_figure(10, 1.4 + 2.9 * len(chosen) if len(chosen) > 1 else 5)
    panels = figure.subplots(len(chosen), 1, sharex=True, squeeze=False)[:, 0]
    for axes, column in zip(panels, chosen, strict=True):
        _panel(tidy(axes), found, column, history)
    panels[-1].set_xlabel("time")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    how = "exact" if found.exact else "from drawn paths"
    steps = "step" if found.horizon == 1 else "steps"
    figure.suptitle(literal(f"{found.model or 'Forecast'}: {found.horizon} {steps} ahead, {how}"), fontsize=12)
    return figure


def _panel(axes: Any, found: Forecasted, column: int, history: int | None) -> None:
    past = min(len(found.series), SHOWN * found.horizon if history is None else history)
    times, values = found.series.times[-past:], found.series.values[-past:, column]
    axes.plot(times, values, color="0.25", linewidth=1.6, label="series", **lone_dots(values))
    ahead = np.concatenate([times[-1:], found.times])
    last = values[-1:] if not np.isnan(values[-1]) else found.mean[:1, column]
    for share, alpha in zip(sorted(found.intervals, reverse=True), (0.18, 0.30), strict=False):
        low, high = (np.concatenate([last, end[:, column]]) for end in found.intervals[share])
        axes.fill_between(
            ahead, low, high, color=COLOURS[0], alpha=alpha, linewidth=0, label=f"{share * 100:.0f} % interval"
        )
    mean = np.concatenate([last, found.mean[:, column]])
    axes.plot(ahead, mean, color=COLOURS[0], linewidth=2.2, label="mean forecast")
    if found.truth is not None:
        came = found.truth[:, column]
        axes.plot(found.times, came, color=COLOURS[1], linewidth=1.8, linestyle=(0, (4, 2)), label="what came")
    axes.axvline(times[-1], color="0.6", linewidth=1, linestyle=":")
    axes.set_ylabel(literal(found.columns[column]))
    axes.margins(x=0.01)


# ---------------------------------------------------------------------------------------------------------------------

BLUE, ORANGE = COLOURS[0], COLOURS[1]
TRUTH, SEEN = "black", "#777777"
ELLIPSES = 16  # of the smoothed track, about


def draw_track(trace: TrackTrace, title: str = "") -> "Figure":
    figure = new_figure(13, 7)
    plane, *errors = _panels(figure)
    _draw_plane(plane, trace)
    for axis, axes in enumerate(errors):
        _draw_errors(axes, trace, axis)
    errors[0].tick_params(labelbottom=False)
    errors[0].set_title("how far off: the estimate minus the truth, and 95 % bands", loc="left", fontsize=10)
    errors[1].set_xlabel("step")
    figures = trace.figures
    said = [f"{name} {figures[f'rmse_{name}']:.2f} m" for name in ("observed", "filtered", "smoothed")]
    figure.suptitle(literal(f"{title + ', ' if title else ''}{trace.name}: root mean square error {', '.join(said)}"))
    return figure


def _panels(figure: "Figure") -> list[Any]:
    grid = figure.add_gridspec(2, 2, width_ratios=[1.35, 1])
    plane, upper = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[0, 1])
    return [tidy(plane), tidy(upper), tidy(figure.add_subplot(grid[1, 1], sharex=upper, sharey=upper))]


def _draw_plane(axes: Any, trace: TrackTrace) -> None:
    axes.plot(*trace.truth.T, color=TRUTH, linewidth=1.6, label="truth", zorder=3)
    axes.scatter(*trace.observed.T, color=SEEN, s=13, label="observed", zorder=2, linewidths=0)
    axes.plot(*trace.filtered.T, color=ORANGE, linewidth=1.1, linestyle="--", label="filtered: from the past", zorder=4)
    axes.plot(*trace.smoothed.T, color=BLUE, linewidth=1.6, label="smoothed: from past and future", zorder=5)
    for place, step in enumerate(_shown_steps(trace)):
        border = ellipse(trace.smoothed[step], trace.smoothed_covariances[step])
        label = "holds the truth with 95 %" if place == 0 else None
        axes.fill(*border.T, facecolor=BLUE, edgecolor=BLUE, alpha=0.16, zorder=1, label=label)
    for first, last in trace.gaps:
        axes.plot(*trace.truth[first : last + 1].T, color="white", linewidth=0.7, zorder=3.5)
    axes.plot(*trace.truth[0], marker="o", color=TRUTH, markersize=7, zorder=6)
    axes.annotate("start", trace.truth[0], xytext=(7, 5), textcoords="offset points", fontsize=10, zorder=6)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel("metres east")
    axes.set_ylabel("metres north")
    gap = " (hollow line: nothing observed)" if trace.gaps else ""
    axes.set_title(f"on the plane{gap}", loc="left", fontsize=10)
    legend(axes)


def _shown_steps(trace: TrackTrace) -> Array:
    """Evenly, and the middle of every gap, where it is least sure."""
    even = np.linspace(0, len(trace.truth) - 1, ELLIPSES).astype(int)
    middles = [(first + last) // 2 for first, last in trace.gaps]
    found: Array = np.unique(np.concatenate([even, np.array(middles, dtype=int)]))
    return found


def _draw_errors(axes: Any, trace: TrackTrace, axis: int) -> None:
    steps = np.arange(1, len(trace.truth) + 1)
    truth = trace.truth[:, axis]
    for first, last in trace.gaps:
        axes.axvspan(first + 0.5, last + 1.5, color="black", alpha=0.06, linewidth=0)
    lines = (
        ("filtered", trace.filtered, trace.filtered_covariances, ORANGE, 0.16),
        ("smoothed", trace.smoothed, trace.smoothed_covariances, BLUE, 0.24),
    )
    for name, means, covariances, colour, alpha in lines:
        error, reach = means[:, axis] - truth, DEVIATIONS * np.sqrt(covariances[:, axis, axis])
        axes.fill_between(steps, error - reach, error + reach, color=colour, alpha=alpha, linewidth=0)
        axes.plot(steps, error, color=colour, linewidth=1.2, label=name)
    axes.scatter(steps, trace.observed[:, axis] - truth, color=SEEN, s=8, linewidths=0, label="observed")
    axes.axhline(0, color=TRUTH, linewidth=1)
    shown = np.nanquantile(np.abs(np.concatenate([trace.observed - trace.truth, trace.filtered - trace.truth])), 0.995)
    axes.set_ylim(-1.35 * shown, 1.35 * shown)
    axes.set_xlim(0, len(truth) + 1)
    axes.set_ylabel(f"metres {'east' if axis == 0 else 'north'}")
    if axis == 0:
        axes.legend(loc="lower left", ncols=3, framealpha=0.85, edgecolor="none", fontsize=9)
