"""Training curves of one or several runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from seqloom.inspect.figures import COLOURS, literal, new_figure, tidy
from seqloom.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curves(run: Run, scale: float = 1.0) -> dict[str, list[tuple[int, float]]]:
    """(step, loss · scale) as logged in training, and as evaluated on dev; of a model of text, in nats per token."""
    train, dev = [], []
    for entry in run.log():
        if entry["event"] == "progress" and entry["values"].get("loss") is not None:
            train.append((entry["step"], entry["values"]["loss"] * scale))
        elif entry["event"] == "evaluated" and entry["split"] == "dev" and entry["metrics"].get("loss") is not None:
            dev.append((entry["step"], entry["metrics"]["loss"] * scale))
    return {"train": train, "dev": dev}


def common_unit(runs: Sequence[Run]) -> tuple[str, list[float]]:
    """A unit all runs can be drawn in, and what to multiply the loss of each by.

    Tokens of different kinds have none in common but the characters they spell; how many bits per character a nat per
    token is was measured on dev.
    """
    if not all(run.of_text for run in runs):
        return "loss", [1.0] * len(runs)
    measured = [run.metrics("dev") for run in runs]
    if len({run.tokenizer.fingerprint() for run in runs}) == 1 or not all(measured):
        return "loss, nats per token", [1.0] * len(runs)
    return "bits per character", [found["bits_per_character"] / found["loss"] for found in measured if found]


def draw_curves(runs: Sequence[Run]) -> "Figure":
    """Thin lines for training, thick with dots for dev; a run that was estimated in one go is a level line."""
    figure = new_figure()
    axes = tidy(figure.add_subplot())
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
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.set_title(" · ".join(_headline(run) for run in runs) if len(runs) < 3 else f"{len(runs)} runs")
    axes.legend(frameon=False)
    return figure


def _headline(run: Run) -> str:
    metrics, name = run.metrics("dev"), literal(run.path.name)
    if metrics is None:
        return name
    if "bits_per_character" in metrics:
        return f"{name}: {metrics['bits_per_character']:.3f} bits per character"
    return f"{name}: loss {metrics['loss']:.4f}"
