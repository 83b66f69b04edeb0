"""A picture of what a series is made of: a panel for each part, with bands."""

from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.inspect.plots.figures import COLOURS, legend, literal, lone_dots, new_figure, tidy
from seqloom.inspect.views.components import Array, Components

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
