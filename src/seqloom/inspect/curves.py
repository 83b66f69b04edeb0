"""Training curves of one or several runs."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from seqloom.core.errors import ResourceError
from seqloom.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # told apart by colour-blind eyes too


def curves(run: Run) -> dict[str, list[tuple[int, float]]]:
    """(step, loss) as logged in training, and as evaluated on dev, in nats per token."""
    train, dev = [], []
    for entry in run.log():
        if entry["event"] == "progress" and "loss" in entry["values"]:
            train.append((entry["step"], entry["values"]["loss"]))
        elif entry["event"] == "evaluated" and entry["split"] == "dev":
            dev.append((entry["step"], entry["metrics"]["loss"]))
    return {"train": train, "dev": dev}


def draw_curves(runs: Sequence[Run]) -> "Figure":
    """Thin lines for training, thick with dots for dev; a run that was estimated in one go is a level line."""
    figure, axes = _figure()
    last = max((step for run in runs for points in curves(run).values() for step, _ in points), default=1)
    for colour, run in zip(COLOURS * len(runs), runs, strict=False):
        found = curves(run)
        if found["train"]:
            axes.plot(*zip(*found["train"], strict=True), color=colour, alpha=0.4, linewidth=1)
            axes.plot([], [], color=colour, alpha=0.4, linewidth=1, label=f"{run.path.name}: train")
            if found["dev"]:
                axes.plot(*zip(*found["dev"], strict=True), color=colour, marker="o", label=f"{run.path.name}: dev")
        elif found["dev"]:
            loss = found["dev"][-1][1]
            axes.plot([0, last], [loss, loss], color=colour, linestyle="--", label=f"{run.path.name}: dev")
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per token")
    axes.set_title(" · ".join(_headline(run) for run in runs) if len(runs) < 3 else f"{len(runs)} runs")
    axes.legend(frameon=False)
    return figure


def _headline(run: Run) -> str:
    metrics = run.metrics("dev")
    if metrics is None:
        return run.path.name
    return f"{run.path.name}: {metrics['bits_per_character']:.3f} bits per character"


def _figure() -> tuple["Figure", Any]:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ResourceError("Pictures need matplotlib: pip install 'seqloom[plot]'.") from error
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure, axes


def to_png(figure: "Figure") -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
