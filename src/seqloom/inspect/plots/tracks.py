"""A picture of a track: on the plane, and how far off each estimate is while time goes by."""

from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.inspect.plots.figures import COLOURS, legend, literal, new_figure, tidy
from seqloom.inspect.views.tracks import Array, TrackTrace, ellipse

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE = COLOURS[0], COLOURS[1]
TRUTH, SEEN = "black", "#777777"
ELLIPSES = 16  # of the smoothed track, about
DEVIATIONS = 1.959964  # that hold 95 % of one coordinate


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
