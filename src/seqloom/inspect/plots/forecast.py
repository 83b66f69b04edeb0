"""A picture of a forecast: the series, what is expected of it, and bands of how sure that is."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.inspect.plots.figures import COLOURS, literal, lone_dots, new_figure, tidy
from seqloom.inspect.views.forecasts import Forecasted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
