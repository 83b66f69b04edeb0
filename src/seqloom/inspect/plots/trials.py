"""The plot of a hyperparameter search."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from seqloom.inspect.plots.figures import COLOURS, Style, escape_math, new_figure, set_heading, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_COLUMNS = 3  # panels side by side


@dataclass(frozen=True)
class TrialColumn:
    """A searched key and its value in each trial."""

    key: str
    values: Sequence[float | str]  # texts if the key has a list of values
    choices: Sequence[str] = ()  # all possible texts, in order
    is_log: bool = False


def draw_trials(
    results: Sequence[float],
    is_finished: Sequence[bool],
    columns: Sequence[TrialColumn],
    *,
    title: str,
    metric: str,
    higher_is_better: bool,
) -> "Figure":
    """Draw the result of each trial, the best result so far, and the results by the value of each searched key.

    A pruned trial is drawn with its best evaluation. Trials without a finite result are omitted.
    """
    count = len(columns) + 1
    width = 2 if count == 4 else min(count, MAX_COLUMNS)
    rows = -(-count // width)
    figure = new_figure(4.4 * width, 3.6 * rows)
    grid = figure.subplots(rows, width, squeeze=False, sharey=True).ravel()
    for axes in grid[count:]:
        axes.remove()
    choose = max if higher_is_better else min
    finished = [result if done else math.nan for result, done in zip(results, is_finished, strict=True)]
    others = [math.nan if done else result for result, done in zip(results, is_finished, strict=True)]
    winner = choose(range(len(results)), key=lambda n: _or_worst(finished[n], higher_is_better))
    whole_ticks: Style = {"integer": True}
    numbers = list(range(1, len(results) + 1))
    for axes, column in zip(grid, [TrialColumn("trial", numbers), *columns], strict=False):
        tidy(axes)
        x = [column.choices.index(value) if isinstance(value, str) else value for value in column.values]
        if any(map(math.isfinite, others)):
            axes.scatter(x, others, color="0.55", marker="x", s=26, label="pruned")
        axes.scatter(x, finished, color=COLOURS[0], s=34, label="finished")
        axes.scatter(x[winner], finished[winner], s=130, facecolors="none", edgecolors=COLOURS[1], linewidths=2)
        if column.choices:
            axes.set_xticks(range(len(column.choices)), list(map(escape_math, column.choices)))
            axes.set_xlim(-0.5, len(column.choices) - 0.5)
        elif column.is_log:
            axes.set_xscale("log")
        elif all(isinstance(value, int) for value in column.values):
            axes.xaxis.get_major_locator().set_params(**whole_ticks)
        set_heading(axes, escape_math(column.key))
    history = [_or_nan(value) for value in accumulate((_or_worst(r, higher_is_better) for r in finished), choose)]
    grid[0].step(numbers, history, where="post", color=COLOURS[1], linewidth=1.2, zorder=1, label="best so far")
    grid[0].set_xlim(0.5, len(results) + 0.5)
    for axes in grid[:count:width]:
        axes.set_ylabel(f"{escape_math(metric)} on dev ({'higher' if higher_is_better else 'lower'} is better)")
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(escape_math(title), fontsize=12)
    return figure


def _or_worst(value: float, higher_is_better: bool) -> float:
    return value if math.isfinite(value) else -math.inf if higher_is_better else math.inf


def _or_nan(value: float) -> float:
    return value if math.isfinite(value) else math.nan
