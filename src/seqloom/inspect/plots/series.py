"""Plots of series: components, forecasts, tracks, and hidden Markov states of series and texts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqloom.inspect.plots.figures import (
    COLOURS,
    Style,
    add_legend,
    escape_math,
    format_token,
    mark_isolated_points,
    new_figure,
    set_heading,
    tidy,
)
from seqloom.inspect.values import Array
from seqloom.inspect.views.labels import SeriesStates, TextStates, state_segments
from seqloom.inspect.views.series import Components, ForecastView, TrackTrace, ellipse

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.typing import ColorType

Z_95 = 1.959964  # standard deviations on each side of a 95 % interval
BLUE, ORANGE = COLOURS[0], COLOURS[1]
OBSERVED = "#777777"


# --- components and forecasts -----------------------------------------------------------------------------------------

MEANINGS = {
    "level": "level: the series without season and noise",
    "slope": "slope: change of the level per step",
    "season": "season: the seasonal pattern",
    "position": "position",
    "velocity": "velocity: change of the position per step",
}


def draw_components(components: Components, title: str = "") -> "Figure":
    """Draw each component of a series with its 95 % band in a separate panel."""
    parts = len(components.parts)
    figure = new_figure(11, 2.6 + 1.9 * (parts - 1) + 0.9)
    panels = figure.subplots(parts, 1, sharex=True, squeeze=False, height_ratios=[1.7] + [1] * (parts - 1))[:, 0]
    for number, (axes, (name, (mean, deviation))) in enumerate(zip(panels, components.parts.items(), strict=True)):
        low, high = mean - Z_95 * deviation, mean + Z_95 * deviation
        tidy(axes).fill_between(components.times, low, high, color=COLOURS[number], alpha=0.22, linewidth=0)
        axes.plot(components.times, mean, color=COLOURS[number], linewidth=1.5, label="smoothed")
        steady = slice(len(mean) // 20, None)  # without the first steps, whose uncertainty would determine the scale
        limits = np.array([low[steady].min(), high[steady].max()])
        margin = 0.08 * float(np.ptp(limits)) or 1.0
        axes.set_ylim(limits[0] - margin, limits[1] + margin)
        set_heading(axes, MEANINGS[name])
        axes.set_ylabel(name)
        if number:
            axes.axhline(0, color="black", linewidth=0.7)
    observed = components.observed
    style: Style = {"color": OBSERVED, "linewidth": 0.9, "zorder": 1, **mark_isolated_points(observed)}
    panels[0].plot(components.times, observed, label="observed", **style)
    (low, high), values = panels[0].get_ylim(), observed[~np.isnan(observed)]
    margin = 0.05 * float(np.ptp(values))
    panels[0].set_ylim(min(low, values.min() - margin), max(high, values.max() + margin))
    add_legend(panels[0])
    log = ", logarithm" if components.logarithmic else ""
    series, variable = components.series, components.variable
    name = series if series == variable else f"{series}, {variable}"
    noise = f"observation noise ±{Z_95 * components.noise:.3g}"
    figure.suptitle(escape_math(f"{title + ': ' if title else ''}{name}{log}; {noise}, 95 % bands"))
    return figure


HISTORY_HORIZONS = 5  # default length of the drawn history, as a multiple of the horizon
MAX_PANELS = 6


def draw_forecast(forecast: ForecastView, history: int | None = None, columns: Sequence[int] | None = None) -> "Figure":
    """Draw the series, the mean forecast and its intervals in one panel for each variable.

    `history` is the number of past steps to draw.
    """
    chosen = list(range(min(len(forecast.columns), MAX_PANELS))) if columns is None else list(columns)
    figure = new_figure(10, 1.4 + 2.9 * len(chosen) if len(chosen) > 1 else 5)
    panels = figure.subplots(len(chosen), 1, sharex=True, squeeze=False)[:, 0]
    past = min(len(forecast.series), HISTORY_HORIZONS * forecast.horizon if history is None else history)
    times = forecast.series.times[-past:]
    ahead = np.concatenate([times[-1:], forecast.times])
    for axes, column in zip(panels, chosen, strict=True):
        values = forecast.series.values[-past:, column]
        tidy(axes).plot(times, values, color="0.25", linewidth=1.6, label="series", **mark_isolated_points(values))
        last = values[-1:] if not np.isnan(values[-1]) else forecast.mean[:1, column]
        for level, alpha in zip(sorted(forecast.intervals, reverse=True), (0.18, 0.30), strict=False):
            low, high = (np.concatenate([last, end[:, column]]) for end in forecast.intervals[level])
            style: Style = {"color": BLUE, "alpha": alpha, "linewidth": 0}
            axes.fill_between(ahead, low, high, label=f"{level * 100:.0f} % interval", **style)
        mean = np.concatenate([last, forecast.mean[:, column]])
        axes.plot(ahead, mean, color=BLUE, linewidth=2.2, label="mean forecast")
        if forecast.truth is not None:
            dashed: Style = {"color": ORANGE, "linewidth": 1.8, "linestyle": (0, (4, 2))}
            axes.plot(forecast.times, forecast.truth[:, column], label="actual", **dashed)
        axes.axvline(times[-1], color="0.6", linewidth=1, linestyle=":")
        axes.set_ylabel(escape_math(forecast.columns[column]))
        axes.margins(x=0.01)
    panels[-1].set_xlabel("time")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    method = "exact distribution" if forecast.exact else "from sample paths"
    steps = "step" if forecast.horizon == 1 else "steps"
    title = f"{forecast.model or 'Forecast'}: {forecast.horizon} {steps} ahead, {method}"
    figure.suptitle(escape_math(title), fontsize=12)
    return figure


# --- tracks -----------------------------------------------------------------------------------------------------------

ELLIPSES = 16  # number of confidence ellipses along the smoothed track, in addition to those in gaps


def draw_track(trace: TrackTrace, title: str = "") -> "Figure":
    """Draw a track in the plane, and the error of each estimate over time."""
    figure = new_figure(13, 7)
    grid = figure.add_gridspec(2, 2, width_ratios=[1.35, 1])
    _draw_plane(tidy(figure.add_subplot(grid[:, 0])), trace)
    upper = figure.add_subplot(grid[0, 1])
    lower = figure.add_subplot(grid[1, 1], sharex=upper, sharey=upper)
    for axis, axes in enumerate((upper, lower)):
        _draw_errors(tidy(axes), trace, axis)
    add_legend(upper, "lower left", ncols=3)
    upper.tick_params(labelbottom=False)
    set_heading(upper, "error: estimate minus truth, with 95 % bands")
    lower.set_xlabel("step")
    errors = [f"{name} {trace.metrics[f'rmse_{name}']:.2f} m" for name in ("observed", "filtered", "smoothed")]
    name = f"{title}, {trace.name}" if title else trace.name
    figure.suptitle(escape_math(f"{name}: root mean square error {', '.join(errors)}"))
    return figure


def _draw_plane(axes: "Axes", trace: TrackTrace) -> None:
    axes.plot(*trace.truth.T, color="black", linewidth=1.6, label="truth", zorder=3)
    x, y = trace.observed.T
    axes.scatter(x, y, color=OBSERVED, s=13, label="observed", zorder=2, linewidths=0)
    axes.plot(*trace.filtered.T, color=ORANGE, linewidth=1.1, linestyle="--", label="filtered (past)", zorder=4)
    axes.plot(*trace.smoothed.T, color=BLUE, linewidth=1.6, label="smoothed (past and future)", zorder=5)
    even = np.linspace(0, len(trace.truth) - 1, ELLIPSES).astype(int)
    middles = [(first + last) // 2 for first, last in trace.gaps]  # the steps with the largest uncertainty
    for position, step in enumerate(np.unique(np.concatenate([even, np.array(middles, dtype=int)]))):
        border = ellipse(trace.smoothed[step], trace.smoothed_covariances[step])
        name = "95 % confidence ellipse" if position == 0 else None
        axes.fill(*border.T, facecolor=BLUE, edgecolor=BLUE, alpha=0.16, zorder=1, label=name)
    for first, last in trace.gaps:
        for colour, width in (("black", 5.0), ("white", 2.8)):
            axes.plot(*trace.truth[first : last + 1].T, color=colour, linewidth=width, zorder=3)
    start = trace.truth[0]
    axes.plot(*start, marker="o", color="black", markersize=7, zorder=6)
    axes.annotate("start", start, xytext=(7, 5), textcoords="offset points", fontsize=10, zorder=6)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel("metres east")
    axes.set_ylabel("metres north")
    set_heading(axes, f"track{' (hollow line: no observations)' if trace.gaps else ''}")
    add_legend(axes)


def _draw_errors(axes: "Axes", trace: TrackTrace, axis: int) -> None:
    steps, truth = np.arange(1, len(trace.truth) + 1), trace.truth[:, axis]
    for first, last in trace.gaps:
        axes.axvspan(first + 0.5, last + 1.5, color="black", alpha=0.06, linewidth=0)
    for name, means, covariances, colour, alpha in (
        ("filtered", trace.filtered, trace.filtered_covariances, ORANGE, 0.16),
        ("smoothed", trace.smoothed, trace.smoothed_covariances, BLUE, 0.24),
    ):
        error, half_width = means[:, axis] - truth, Z_95 * np.sqrt(covariances[:, axis, axis])
        axes.fill_between(steps, error - half_width, error + half_width, color=colour, alpha=alpha, linewidth=0)
        axes.plot(steps, error, color=colour, linewidth=1.2, label=name)
    axes.scatter(steps, trace.observed[:, axis] - truth, color=OBSERVED, s=8, linewidths=0, label="observed")
    axes.axhline(0, color="black", linewidth=1)
    deviations = np.sqrt(trace.filtered_covariances.diagonal(axis1=1, axis2=2))
    bands = np.abs(trace.filtered - trace.truth) + Z_95 * deviations  # the limits include the whole band of a gap
    limit = 1.05 * max(bands.max(), float(np.nanmax(np.abs(trace.observed - trace.truth))))
    axes.set_ylim(-limit, limit)
    axes.set_xlim(0, len(truth) + 1)
    axes.set_ylabel(f"metres {'east' if axis == 0 else 'north'}")


# --- hidden Markov models ---------------------------------------------------------------------------------------------

SPACE = "␣"
LINE_LENGTH = 92  # maximum characters of a line of text
WHITE_FRACTION = 0.62  # fraction of white in the background colour of a letter
MAX_COLUMNS = 4  # panels side by side
MAX_WRITTEN_STATES = 8  # with more states, transition probabilities are shown only by shades
SYMBOLS = 10  # symbols per state; 6 if there are more than MAX_COLUMNS states


def _state_colour(state: int, states: int) -> "ColorType":
    """Return the colour of a state. Up to six states are distinguishable with colour vision deficiencies."""
    from matplotlib import colormaps

    return COLOURS[state] if states <= len(COLOURS) else colormaps["tab20"](state % 20)


def _lighten(colour: "ColorType") -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return tuple(WHITE_FRACTION + (1 - WHITE_FRACTION) * part for part in to_rgb(colour))


def draw_states(view: TextStates | SeriesStates, title: str = "") -> "Figure":
    """Draw the states of a hidden Markov model for a text or a series."""
    figure = _draw_text_states(view) if isinstance(view, TextStates) else _draw_series_states(view)
    figure.suptitle(escape_math(title))
    return figure


def _draw_text_states(view: TextStates) -> "Figure":
    """Draw the emissions and transitions of the states, and a text whose background shows the states."""
    states, columns = view.states, min(view.states, MAX_COLUMNS)
    rows, symbols = -(-states // columns), SYMBOLS if states <= MAX_COLUMNS else 6
    is_words = any(len(token) > 1 for token in view.tokens)  # characters include spaces; words do not
    positions = wrap_words([format_token(token) for token in view.tokens], LINE_LENGTH, spaces=is_words)
    bars, text = rows * (0.9 + 0.2 * symbols), 0.75 + 0.31 * (1 + positions[-1][0])
    figure = new_figure(12.5, 0.5 + bars + text)
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[bars, text])[:, 0]
    left, right = upper.subfigures(1, 2, width_ratios=[2.1, 1])
    for state, axes in enumerate(left.subplots(rows, columns, squeeze=False).ravel()):
        if state >= states:
            axes.set_axis_off()
            continue
        emissions = view.emissions[state][:symbols]
        probabilities = [probability for _, probability in emissions]
        axes.barh(range(len(emissions)), probabilities, color=_state_colour(state, states))
        names = [escape_math(format_token(symbol)) for symbol, _ in emissions]
        axes.set_yticks(range(len(emissions)), names, family="monospace", fontsize=9)
        axes.invert_yaxis()
        tidy(axes).grid(axis="y", visible=False)
        axes.tick_params(axis="x", labelsize=8)
        fraction = f"{view.fractions[state]:.0%}{' of the text' if states <= MAX_COLUMNS else ''}"
        set_heading(axes, f"state {state + 1}: {fraction}")
    _draw_transitions(right, view.transition, [*map(str, range(1, states + 1)), "END"])
    _draw_text(lower.subplots(), view, positions)
    return figure


def _draw_transitions(figure: "SubFigure", table: Array, names: Sequence[str]) -> None:
    axes, is_written = figure.subplots(), len(names) <= MAX_WRITTEN_STATES
    axes.imshow(table, cmap="Greys", vmin=0, vmax=1)
    for set_ticks in (axes.set_xticks, axes.set_yticks):
        set_ticks(range(len(names)), names, fontsize=9 if is_written else 7)
    axes.set_xlabel("next state")
    axes.set_ylabel("state")
    set_heading(axes, "transition probabilities" + ("" if is_written else ": black is 1"))
    if not is_written:
        axes.tick_params(axis="x", rotation=90)
        return
    for (row, column), value in np.ndenumerate(table):
        style: Style = {"ha": "center", "va": "center", "fontsize": 9, "color": "white" if value > 0.55 else "black"}
        axes.text(column, row, "<.01" if 0 < value < 0.005 else f"{value:.2f}", **style)


def wrap_words(words: Sequence[str], width: int, *, spaces: bool) -> list[tuple[int, int]]:
    """Return the line and the column of each word. Without `spaces`, words are characters and lines break at spaces."""
    positions, line, column = [], 0, 0
    for position, word in enumerate(words):
        needed = len(word)
        if not spaces and (position == 0 or words[position - 1] == SPACE):
            needed = next((n for n, letter in enumerate(words[position:]) if letter == SPACE), len(words) - position)
        if column and column + min(needed, width) > width:
            line, column = line + 1, 0
        positions.append((line, column))
        column += len(word) + spaces
    return positions


def _draw_text(axes: "Axes", view: TextStates, positions: Sequence[tuple[int, int]]) -> None:
    """Draw each token of the text on the colour of its state."""
    from matplotlib.patches import Rectangle

    style: Style = {"ha": "center", "va": "center", "family": "monospace", "fontsize": 10.5}
    for token, state, (line, column) in zip(view.tokens, view.path, positions, strict=True):
        shown = format_token(token)
        shade = "white" if state >= view.states else _lighten(_state_colour(state, view.states))
        axes.add_patch(Rectangle((column - 0.08, line - 0.46), len(shown) + 0.16, 0.92, facecolor=shade, linewidth=0))
        for position, letter in enumerate(shown):
            colour = OBSERVED if letter == SPACE else "black"
            axes.text(column + position + 0.5, line, escape_math(letter), color=colour, **style)
    axes.set_xlim(-0.5, LINE_LENGTH + 0.5)
    axes.set_ylim(positions[-1][0] + 0.6, -0.6)
    axes.set_axis_off()
    set_heading(axes, "text with its Viterbi states")


def _draw_series_states(view: SeriesStates) -> "Figure":
    """Draw each variable over time on the colours of the states, and the means and transitions of the states."""
    from matplotlib.patches import Patch

    figure = new_figure(13, 1.2 + 1.9 * max(len(view.columns), 2))
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[3.3, 1])[0]
    panels = left.subplots(len(view.columns), 1, sharex=True, squeeze=False)[:, 0]
    colours = [_state_colour(state, view.states) for state in range(view.states)]
    for position, axes in enumerate(panels):
        tidy(axes).margins(x=0)
        for state, begin, end in state_segments(view.path):
            axes.axvspan(begin - 0.5, end - 0.5, color=_lighten(colours[state]), linewidth=0)
            axes.plot([begin - 0.5, end - 0.5], [view.means[state, position]] * 2, color=colours[state], linewidth=1.6)
        axes.plot(view.values[:, position], color="black", linewidth=0.7, marker="." if len(view.path) <= 150 else "")
        axes.axvline(view.train - 0.5, color="black", linestyle=":", linewidth=1)
        axes.set_ylabel(escape_math(view.columns[position]))
    offset: Style = {"xytext": (3, -9), "textcoords": "offset points", "fontsize": 8}
    panels[0].annotate("held out", (view.train, 1), xycoords=("data", "axes fraction"), **offset)
    ticks = np.unique(np.linspace(0, len(view.times) - 1, 8).astype(int))
    panels[-1].set_xticks(ticks, [view.times[tick][:10] for tick in ticks], fontsize=8)
    set_heading(panels[0], "Viterbi states; lines are the state means")
    _draw_transitions(right, view.transition, [str(state + 1) for state in range(view.states)])
    labels = [f"state {k + 1}: {view.fractions[k]:.0%}, {view.describe_duration(k)}" for k in range(view.states)]
    handles = [Patch(color=colour, label=text) for colour, text in zip(colours, labels, strict=True)]
    right.legend(handles=handles, loc="lower center", fontsize=8.5, frameon=False)
    return figure
