"""Pictures of what a hidden Markov model found."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.inspect.plots.figures import COLOURS, literal, new_figure, tidy, visible
from seqloom.inspect.views.states import Array, SeriesStates, TextStates, runs_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPACE = "␣"
LINE = 92  # letters of a line of text
PALE = 0.62  # how much white is mixed into a colour that a letter stands on
BESIDE = 4  # states side by side
NUMBERED = 8  # states whose transitions are written out
SYMBOLS = 10  # of a state; fewer where there are many states


def colour(state: int, states: int) -> Any:
    """Few states have colours that colour-blind eyes tell apart, too."""
    if states <= len(COLOURS):
        return COLOURS[state]
    from matplotlib import colormaps

    return colormaps["tab20"](state % 20)


def pale(shade: Any) -> Any:
    from matplotlib.colors import to_rgb

    return tuple(PALE + (1 - PALE) * part for part in to_rgb(shade))


def draw_states(view: TextStates | SeriesStates, title: str = "") -> "Figure":
    return _draw_text(view, title) if isinstance(view, TextStates) else _draw_series(view, title)


# --- text -----------------------------------------------------------------------------------------------------------


def _draw_text(view: TextStates, title: str) -> "Figure":
    """What each state says; which follows which; a text on the colours of its states."""
    states, columns = view.states, min(view.states, BESIDE)
    rows, most = -(-states // columns), SYMBOLS if states <= BESIDE else 6
    lines = wrapped([visible(token) for token in view.tokens], LINE, spaces=_words(view))
    bars = rows * (0.9 + 0.2 * most)
    text = 0.75 + 0.31 * (1 + max(line for line, _ in lines))
    figure = new_figure(12.5, 0.5 + bars + text)
    upper, lower = _parts(figure.subfigures(2, 1, height_ratios=[bars, text]))
    left, right = _parts(upper.subfigures(1, 2, width_ratios=[2.1, 1]))
    panels = left.subplots(rows, columns, squeeze=False).ravel()
    for state, axes in enumerate(panels):
        if state < states:
            _bars(axes, view, state, most)
        else:
            axes.set_axis_off()
    _matrix(right.subplots(), view.transition, [*_numbers(states), "END"])
    _coloured(lower.subplots(), view, lines)
    figure.suptitle(literal(title))
    return figure


def _parts(figures: Any) -> list[Any]:
    return list(figures)


def _words(view: TextStates) -> bool:
    """Whether a space belongs between tokens: letters have their own."""
    return any(len(token) > 1 for token in view.tokens)


def _bars(axes: Any, view: TextStates, state: int, most: int) -> None:
    said = view.said[state][:most]
    places = np.arange(len(said))
    axes.barh(places, [chance for _, chance in said], color=colour(state, view.states))
    axes.set_yticks(places, [literal(visible(symbol)) for symbol, _ in said], family="monospace", fontsize=9)
    axes.invert_yaxis()
    tidy(axes).grid(axis="y", visible=False)
    axes.tick_params(axis="x", labelsize=8)
    share = f"{view.share[state]:.0%} of the text" if view.states <= BESIDE else f"{view.share[state]:.0%}"
    axes.set_title(f"state {state + 1}: {share}", fontsize=10, loc="left")


def _matrix(axes: Any, table: Array, names: Sequence[str]) -> None:
    few = len(names) <= NUMBERED
    axes.imshow(table, cmap="Greys", vmin=0, vmax=1)
    for ticks in (axes.set_xticks, axes.set_yticks):
        ticks(range(len(names)), names, fontsize=9 if few else 7)
    axes.set_xlabel("state after it")
    axes.set_ylabel("state")
    axes.set_title("which state follows which" + ("" if few else ": black is always"), fontsize=10, loc="left")
    if few:
        for (row, column), value in np.ndenumerate(table):
            shade = "white" if value > 0.55 else "black"
            axes.text(column, row, _short(float(value)), ha="center", va="center", fontsize=9, color=shade)
    else:
        axes.tick_params(axis="x", rotation=90)


def _short(value: float) -> str:
    return "<.01" if 0 < value < 0.005 else f"{value:.2f}"


def _numbers(states: int) -> list[str]:
    return [str(state + 1) for state in range(states)]


def wrapped(words: Sequence[str], width: int, *, spaces: bool) -> list[tuple[int, int]]:
    """The line and the column of each word. Without `spaces` they are letters, and lines break where they have one."""
    found, line, column = [], 0, 0
    for place, word in enumerate(words):
        needed = len(word)
        if not spaces and (place == 0 or words[place - 1] == SPACE):
            needed = next((n for n, letter in enumerate(words[place:]) if letter == SPACE), len(words) - place)
        if column and column + min(needed, width) > width:
            line, column = line + 1, 0
        found.append((line, column))
        column += len(word) + spaces
    return found


def _coloured(axes: Any, view: TextStates, places: Sequence[tuple[int, int]]) -> None:
    """The text itself, each token on the colour of its likeliest state."""
    from matplotlib.patches import Rectangle

    for token, state, (line, column) in zip(view.tokens, view.path, places, strict=True):
        shown = visible(token)
        shade = "white" if state >= view.states else pale(colour(state, view.states))
        axes.add_patch(Rectangle((column - 0.08, line - 0.46), len(shown) + 0.16, 0.92, facecolor=shade, linewidth=0))
        for place, letter in enumerate(shown):
            look = {"color": "#777777"} if letter == SPACE else {}
            axes.text(column + place + 0.5, line, literal(letter), ha="center", va="center", family="monospace",
                      fontsize=10.5, **look)  # fmt: skip
    axes.set_xlim(-0.5, LINE + 0.5)
    axes.set_ylim(max(line for line, _ in places) + 0.6, -0.6)
    axes.set_axis_off()
    axes.set_title("a text on the colours of its likeliest states", fontsize=10, loc="left")


# --- series ---------------------------------------------------------------------------------------------------------


def _draw_series(view: SeriesStates, title: str) -> "Figure":
    """Each variable over time, on the colours of the states, with their means; and which state follows which."""
    count = len(view.columns)
    figure = new_figure(13, 1.2 + 1.9 * max(count, 2))
    left, right = _parts(figure.subfigures(1, 2, width_ratios=[3.3, 1]))
    panels = left.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
    for place, axes in enumerate(panels):
        _panel(axes, view, place)
    ticks = np.unique(np.linspace(0, len(view.times) - 1, 8).astype(int))
    panels[-1].set_xticks(ticks, [view.times[tick][:10] for tick in ticks], fontsize=8)
    panels[0].set_title("on the colours of the likeliest states; lines are their means", fontsize=10, loc="left")
    _matrix(right.subplots(), view.transition, _numbers(view.states))
    _states_legend(right, view)
    figure.suptitle(literal(title))
    return figure


def _panel(axes: Any, view: SeriesStates, place: int) -> None:
    tidy(axes).margins(x=0)
    for state, begin, end in runs_of(view.path):
        shade = colour(state, view.states)
        axes.axvspan(begin - 0.5, end - 0.5, color=pale(shade), linewidth=0)
        axes.plot([begin - 0.5, end - 0.5], [view.means[state, place]] * 2, color=shade, linewidth=1.6)
    axes.plot(view.values[:, place], color="black", linewidth=0.7, marker="." if len(view.path) <= 150 else "")
    axes.axvline(view.train - 0.5, color="black", linestyle=":", linewidth=1)
    axes.set_ylabel(literal(view.columns[place]))
    if place == 0:
        axes.annotate("unseen in training", (view.train, 1), xycoords=("data", "axes fraction"), fontsize=8,
                      xytext=(3, -9), textcoords="offset points")  # fmt: skip


def _states_legend(figure: Any, view: SeriesStates) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(
            color=colour(k, view.states),
            label=f"state {k + 1}: {view.share[k]:.0%}, {view.lasts(k)}",
        )
        for k in range(view.states)
    ]
    figure.legend(handles=handles, loc="lower center", fontsize=8.5, frameon=False)
