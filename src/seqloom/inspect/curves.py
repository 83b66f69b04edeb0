"""Training curves of one or several runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from seqloom.inspect.figures import COLOURS, literal, new_figure, tidy
from seqloom.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curves(run: Run) -> dict[str, list[tuple[int, float]]]:
    """(step, loss) as logged in training, and as evaluated on dev; of a model of text, in nats per token."""
    train, dev = [], []
    for entry in run.log():
        if entry["event"] == "progress" and "loss" in entry["values"]:
            train.append((entry["step"], entry["values"]["loss"]))
        elif entry["event"] == "evaluated" and entry["split"] == "dev":
            dev.append((entry["step"], entry["metrics"]["loss"]))
    return {"train": train, "dev": dev}


def draw_curves(runs: Sequence[Run]) -> "Figure":
    """Thin lines for training, thick with dots for dev; a run that was estimated in one go is a level line."""
    figure = new_figure()
    axes = tidy(figure.add_subplot())
    last = max((step for run in runs for points in curves(run).values() for step, _ in points), default=1)
    for colour, run in zip(COLOURS * len(runs), runs, strict=False):
        found, name = curves(run), literal(run.path.name)
        if found["train"]:
            axes.plot(*zip(*found["train"], strict=True), color=colour, alpha=0.4, linewidth=1)
            axes.plot([], [], color=colour, alpha=0.4, linewidth=1, label=f"{name}: train")
            if found["dev"]:
                axes.plot(*zip(*found["dev"], strict=True), color=colour, marker="o", label=f"{name}: dev")
        elif found["dev"]:
            loss = found["dev"][-1][1]
            axes.plot([0, last], [loss, loss], color=colour, linestyle="--", label=f"{name}: dev")
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per token" if all(run.of_text for run in runs) else "loss")
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
