"""Training curves of one or several runs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seqloom.inspect.figures import MORE_COLOURS, literal, new_figure, tidy
from seqloom.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FEW = 20  # points of a line that have dots
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
PER = {
    "classify": "text",
    "series-classify": "series",
    "forecast": "value",
    "tag": "word",
    "pair": "pair",
    "choice": "example",
    "answer": "window",
    "masked-lm": "hidden token (+ per pair)",
    "denoise": "token that is said",
}  # what a loss is the mean of, where that is no token


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


def common_unit(runs: Sequence[Run]) -> tuple[str, list[float]]:
    """A unit all runs can be drawn in, and what to multiply the loss of each by.

    Tokens of different kinds have none in common but the characters they spell; how many bits per character a nat per
    token is was measured on dev.
    """
    if not all(run.of_text for run in runs):
        return "loss", [1.0] * len(runs)
    tasks = {str(run.recipe.get("task")) for run in runs}
    if any(run.recipe.get("target") == "score" for run in runs):
        return "loss, squared error / variance" if len(tasks) == 1 else "loss", [1.0] * len(runs)
    if tasks & PER.keys():
        return f"loss, nats per {PER[tasks.pop()]}" if len(tasks) == 1 else "loss, nats", [1.0] * len(runs)
    measured = [run.metrics("dev") or {} for run in runs]
    if len({run.tokenizer.fingerprint() for run in runs}) == 1:
        return "loss, nats per token", [1.0] * len(runs)
    if not all("bits_per_character" in found for found in measured):
        return "loss, nats per token of each run's own", [1.0] * len(runs)
    return "bits per character", [found["bits_per_character"] / found["loss"] for found in measured]


def draw_curves(runs: Sequence[Run]) -> "Figure":
    """Thin lines for training, thick ones for dev, with dots where they are few; a level line for a run that was
    estimated in one go.

    A thin line is dotted where training lowers another sum than dev measures: that of a few samples, or a smoothed one.
    Translators, taggers and classifiers also have a panel with their BLEU, F1 or accuracy on dev, if they have it in
    common.
    """
    name = _in_common(runs)
    figures = [curves(run).get(name or "", []) for run in runs]
    figure = new_figure(width=12 if name else 8)
    axes, *beside = (tidy(one) for one in figure.subplots(1, 2 if name else 1, squeeze=False)[0])
    unit, scales = common_unit(runs)
    last = max((step for run in runs for points in curves(run).values() for step, _ in points), default=1)
    for colour, run, scale in zip(MORE_COLOURS * len(runs), runs, scales, strict=False):
        found, said = curves(run, scale), literal(run.path.name)
        if found["train"]:
            remark = training_remark(run)
            thin: dict[str, Any] = {"color": colour, "alpha": 0.4, "linewidth": 1, "linestyle": ":" if remark else "-"}
            axes.plot(*zip(*found["train"], strict=True), **thin, label=f"{said}: train{remark}")
            if found["dev"]:
                axes.plot(*zip(*found["dev"], strict=True), color=colour, **_dots(found["dev"]), label=f"{said}: dev")
        elif found["dev"]:
            loss = found["dev"][-1][1]
            axes.plot([0, last], [loss, loss], color=colour, linestyle="--", label=f"{said}: dev")
    for panel in beside:
        for colour, run, points in zip(MORE_COLOURS * len(runs), runs, figures, strict=False):
            _draw_figure(panel, run, points, name or "", colour)
        panel.set_ylabel(BESIDE[name or ""])
        panel.set_ylim(0, max(1.0, 1.05 * max(value for points in figures for _, value in points)))
    axes.set_ylabel(unit)
    rows = max(_legend_below(panel) for panel in (axes, *beside))
    figure.set_figheight(figure.get_figheight() + 0.21 * rows)
    title = " · ".join(_headline(run) for run in runs) if len(runs) < 3 else f"{len(runs)} runs"
    (figure.suptitle if beside else axes.set_title)(title)
    for panel in (axes, *beside):
        panel.set_xlabel("step")
    return figure


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
