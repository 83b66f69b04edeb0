"""Training curves of one or several runs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from seqloom.inspect.plots.figures import MORE_COLOURS, literal, new_figure, tidy
from seqloom.inspect.views.loss_units import loss_scale
from seqloom.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FEW = 20  # points of a line that have dots
MOST_COLUMNS = 2  # panels side by side
NARROW = 44  # letters of a legend's entry that leave room for another beside it
Points = list[tuple[int, float]]
# Figures on dev that are drawn beside the loss: of a translator, a tagger of spans or of words, a classifier, a masked
# language model.
BESIDE = {
    "bleu": "BLEU on dev, of greedy translations",
    "span_f1": "span F1 on dev",
    "token_accuracy": "share of the words of dev that is right",
    "accuracy": "share of dev that is right",
    "pearson": "Pearson correlation on dev",
    "answer_f1": "F1 of answers on dev",
    "replaced_f1": "F1 of replaced tokens on dev, and share of gaps filled right",
    "masked_accuracy": "share of dev that is told right",
    "hidden_accuracy": "share of the hidden tokens of dev that is told right",
    "crps": "CRPS on dev",
}
# What is drawn in the same panel, dashed, and what the two are then called.
ALONG = {
    "masked_accuracy": ("next_accuracy", "hidden tokens", "next sentences"),
    "replaced_f1": ("masked_accuracy", "replaced tokens", "the generator's gaps"),
}


def curves(run: Run, scale: float = 1.0) -> dict[str, Points]:
    """(step, loss · scale) as logged in training, and as evaluated on dev; of a model of text, in nats per token.

    Of what is measured otherwise also (step, figure) on dev: the first of `BESIDE` that there is, and what goes along.
    """
    found: dict[str, Points] = {"train": [], "dev": []}
    for entry in run.log():
        step = entry["step"]
        if entry["event"] == "progress" and entry["values"].get("loss") is not None:
            found["train"].append((step, entry["values"]["loss"] * scale))
        elif entry["event"] == "evaluated" and entry["split"] == "dev":
            if (loss := entry["metrics"].get("loss")) is not None:
                found["dev"].append((step, loss * scale))
            for name in _beside(entry["metrics"]):
                if entry["metrics"].get(name) is not None:
                    found.setdefault(name, []).append((step, entry["metrics"][name]))
    return found


def figure_beside(metrics: Mapping[str, Any]) -> str | None:
    return next((name for name in BESIDE if name in metrics), None)


def _beside(metrics: Mapping[str, Any]) -> list[str]:
    name = figure_beside(metrics)
    return [] if name is None else [name, *ALONG.get(name, ())[:1]]


def training_remark(run: Run) -> str:
    """Why the loss in training cannot be compared with that of dev, or of other runs, where it is another sum."""
    units = [entry.get("unit", "nats") for entry in run.log() if entry["event"] == "progress"]
    remark = units[-1].partition(", ")[2] if units else ""
    return f", {remark}: not comparable" if remark else ""


class LossPanel(NamedTuple):
    """Runs whose losses share an axis."""

    title: str  # of the axis
    runs: list[tuple[Run, float]]  # each with the factor that brings its loss into the unit


def loss_panels(runs: Sequence[Run]) -> list[LossPanel]:
    """One panel for each unit of loss. Language models over different tokens share one in bits per character, if all
    have them: how many bits per character a nat per token is was measured on dev."""
    scales = [loss_scale(run) for run in runs]
    measured = [run.metrics("dev") or {} for run in runs]
    if len({scale.key for scale in scales}) > 1 and all("bits_per_character" in metrics for metrics in measured):
        factors = [metrics["bits_per_character"] / metrics["loss"] for metrics in measured]
        return [LossPanel("bits per character", list(zip(runs, factors, strict=True)))]
    panels: dict[str, LossPanel] = {}
    for run, scale in zip(runs, scales, strict=True):
        panels.setdefault(scale.key, LossPanel(f"loss, {scale.unit}", [])).runs.append((run, 1.0))
    return list(panels.values())


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
