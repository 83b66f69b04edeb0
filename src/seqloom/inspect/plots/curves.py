"""Training curves of one or several runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from seqloom.inspect.plots.figures import MORE_COLOURS, literal, new_figure, tidy
from seqloom.inspect.views.curves import ALONG, BESIDE, Points, curves, figure_beside, loss_panels, training_remark
from seqloom.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FEW = 20  # points of a line that have dots
MOST_COLUMNS = 2  # panels side by side
NARROW = 44  # letters of a legend's entry that leave room for another beside it


def draw_curves(runs: Sequence[Run]) -> "Figure":
    """Thin lines for training, thick ones for dev, with dots where they are few; a level line for a run that was
    estimated in one go. Losses in different units have a panel each.

    A thin line is dotted where training lowers another sum than dev measures: that of a few samples, or a smoothed one.
    Translators, taggers and classifiers also have a panel with their BLEU, F1 or accuracy on dev, if they have it in
    common.
    """
    name = _in_common(runs)
    figures = [curves(run).get(name or "", []) for run in runs]
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
    for axes in panels[len(losses) :]:
        for run, points in zip(runs, figures, strict=True):
            _draw_figure(axes, run, points, name or "", colours[run.path])
        axes.set_ylabel(BESIDE[name or ""])
        axes.set_ylim(0, max(1.0, 1.05 * max(value for points in figures for _, value in points)))
    lines = max(_legend_below(axes) for axes in panels)
    figure.set_figheight(figure.get_figheight() + 0.21 * lines * rows)
    title = " · ".join(_headline(run) for run in runs) if len(runs) < 3 else f"{len(runs)} runs"
    (figure.suptitle if count > 1 else panels[0].set_title)(title)
    for axes in panels:
        axes.set_xlabel("step")
    return figure


def _draw_loss(axes: Any, run: Run, factor: float, colour: str, last: int) -> None:
    found, said = curves(run, factor), literal(run.path.name)
    if found["train"]:
        remark = training_remark(run)
        thin: dict[str, Any] = {"color": colour, "alpha": 0.4, "linewidth": 1, "linestyle": ":" if remark else "-"}
        axes.plot(*zip(*found["train"], strict=True), **thin, label=f"{said}: train{remark}")
        if found["dev"]:
            axes.plot(*zip(*found["dev"], strict=True), color=colour, **_dots(found["dev"]), label=f"{said}: dev")
    elif found["dev"]:
        loss = found["dev"][-1][1]
        axes.plot([0, last], [loss, loss], color=colour, linestyle="--", label=f"{said}: dev")


def _dots(points: Points, form: str = "o") -> dict[str, Any]:
    """Dots where they are few enough to leave the line to be seen."""
    return {"marker": form, "markersize": 4.5} if len(points) <= FEW else {"linewidth": 2}


def _legend_below(panel: Any) -> int:
    """Where no curve runs, in as many rows as are returned."""
    labels = panel.get_legend_handles_labels()[1]
    columns = 2 if max(map(len, labels), default=0) <= NARROW else 1
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": columns}
    panel.legend(frameon=False, fontsize=9, **below)
    return -(-len(labels) // columns)


def _draw_figure(panel: Any, run: Run, points: Points, name: str, colour: str) -> None:
    """A figure on dev over the steps, and what is drawn along with it, where the run has it."""
    along, first, second = ALONG.get(name, ("", "", ""))
    others, said = curves(run).get(along, []), literal(run.path.name)
    panel.plot(*zip(*points, strict=True), color=colour, **_dots(points), label=f"{said}: {first}" if first else said)
    if others:
        panel.plot(
            *zip(*others, strict=True), color=colour, **_dots(others, "s"), linestyle="--", label=f"{said}: {second}"
        )


def _in_common(runs: Sequence[Run]) -> str | None:
    """The figure beside the loss; None if runs have none, or not the same."""
    found = [name for run in runs for name in BESIDE if curves(run).get(name)]
    return found[0] if len(set(found)) == 1 else None


def _headline(run: Run) -> str:
    metrics, name = run.metrics("dev"), literal(run.path.name)
    if metrics is None:
        return name
    if "bits_per_character" in metrics:
        return f"{name}: {metrics['bits_per_character']:.3f} bits per character"
    if "bleu" in metrics:
        return f"{name}: BLEU {metrics['bleu']:.1f}"
    if (figure := figure_beside(metrics)) is not None:
        return f"{name}: {figure.replace('_', ' ')} {metrics[figure]:.4f}"
    return f"{name}: loss {metrics['loss']:.4f}"
