"""Training curves of one or several runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from seqloom.inspect.figures import COLOURS, literal, new_figure, tidy
from seqloom.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Points = list[tuple[int, float]]


def curves(run: Run, scale: float = 1.0) -> dict[str, Points]:
    """(step, loss · scale) as logged in training, and as evaluated on dev; of a model of text, in nats per token.

    Of a translator also (step, BLEU) on dev.
    """
    found: dict[str, Points] = {"train": [], "dev": []}
    for entry in run.log():
        step = entry["step"]
        if entry["event"] == "progress" and entry["values"].get("loss") is not None:
            found["train"].append((step, entry["values"]["loss"] * scale))
        elif entry["event"] == "evaluated" and entry["split"] == "dev":
            if (loss := entry["metrics"].get("loss")) is not None:
                found["dev"].append((step, loss * scale))
            if (bleu := entry["metrics"].get("bleu")) is not None:
                found.setdefault("bleu", []).append((step, bleu))
    return found


def common_unit(runs: Sequence[Run]) -> tuple[str, list[float]]:
    """A unit all runs can be drawn in, and what to multiply the loss of each by.

    Tokens of different kinds have none in common but the characters they spell; how many bits per character a nat per
    token is was measured on dev.
    """
    if not all(run.of_text for run in runs):
        return "loss", [1.0] * len(runs)
    measured = [run.metrics("dev") or {} for run in runs]
    if len({run.tokenizer.fingerprint() for run in runs}) == 1:
        return "loss, nats per token", [1.0] * len(runs)
    if not all("bits_per_character" in found for found in measured):
        return "loss, nats per token of each run's own", [1.0] * len(runs)
    return "bits per character", [found["bits_per_character"] / found["loss"] for found in measured]


def draw_curves(runs: Sequence[Run]) -> "Figure":
    """Thin lines for training, thick with dots for dev; a run that was estimated in one go is a level line.

    Where there are translators, their BLEU on dev has a panel of its own.
    """
    bleu = [curves(run).get("bleu", []) for run in runs]
    figure = new_figure(width=12 if any(bleu) else 8)
    axes, *beside = (tidy(one) for one in figure.subplots(1, 2 if any(bleu) else 1, squeeze=False)[0])
    unit, scales = common_unit(runs)
    last = max((step for run in runs for points in curves(run).values() for step, _ in points), default=1)
    for colour, run, scale in zip(COLOURS * len(runs), runs, scales, strict=False):
        found, name = curves(run, scale), literal(run.path.name)
        if found["train"]:
            axes.plot(*zip(*found["train"], strict=True), color=colour, alpha=0.4, linewidth=1)
            axes.plot([], [], color=colour, alpha=0.4, linewidth=1, label=f"{name}: train")
            if found["dev"]:
                axes.plot(*zip(*found["dev"], strict=True), color=colour, marker="o", label=f"{name}: dev")
        elif found["dev"]:
            loss = found["dev"][-1][1]
            axes.plot([0, last], [loss, loss], color=colour, linestyle="--", label=f"{name}: dev")
    for panel in beside:
        for colour, run, points in zip(COLOURS * len(runs), runs, bleu, strict=False):
            panel.plot(*zip(*points, strict=True), color=colour, marker="o", label=literal(run.path.name))
        panel.set_ylabel("BLEU on dev, of greedy translations")
    axes.set_ylabel(unit)
    title = " · ".join(_headline(run) for run in runs) if len(runs) < 3 else f"{len(runs)} runs"
    (figure.suptitle if beside else axes.set_title)(title)
    for panel in (axes, *beside):
        panel.set_xlabel("step")
        panel.legend(frameon=False)
    return figure


def _headline(run: Run) -> str:
    metrics, name = run.metrics("dev"), literal(run.path.name)
    if metrics is None:
        return name
    if "bits_per_character" in metrics:
        return f"{name}: {metrics['bits_per_character']:.3f} bits per character"
    if "bleu" in metrics:
        return f"{name}: BLEU {metrics['bleu']:.1f}"
    return f"{name}: loss {metrics['loss']:.4f}"
