"""Averaging: the mean of the newest checkpoints of a run, or of several runs, measured and kept as a run of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqloom.core.errors import UsageError
from seqloom.core.files import check_writable
from seqloom.predict.base import Predictor
from seqloom.predict.loader import load
from seqloom.runs import average as averages
from seqloom.runs.average import Figures, Mean
from seqloom.runs.creation import refuse_existing
from seqloom.runs.run import Run
from seqloom.train.config import FitConfig

LAST = 10  # checkpoints, where nothing is said


@dataclass(frozen=True)
class Averaged:
    """A mean that was made: its run, what it is the mean of, and how good it is on dev beside its parts."""

    run: Run
    made: Mean
    metrics: Mapping[str, float]
    alone: list[Figures]  # the best checkpoint of the run, or each of several runs
    goal: str  # the metric by which the best checkpoint was chosen

    def notes(self) -> list[str]:
        """What a person should know."""
        found = [f"{name} was passed over: {cause}" for name, cause in self.made.damaged]
        seeds = {run.recipe.get("seed") for run in self.made.runs}
        if len(seeds) > 1:
            said = (
                "these runs began from different weights (their seeds differ), and the mean of such weights is seldom"
            )
            instead = "; models that should work together are an ensemble: seqloom translate RUN RUN"
            found.append(f"{said} any good{instead if self.run.recipe.get('task') == 'translate' else ''}")
        return found


def average(
    runs: str | Path | Sequence[str | Path],
    last: int | None = None,
    out: str | Path | None = None,
    device: str = "auto",
) -> Any:
    """The mean of the weights of the newest `last` (10) checkpoints of a run, as a trained model with a run of its own.

    The run is written to `out`, or beside its source as NAME-averaged. Of several runs the best weights are averaged;
    they must be of one model, and `out` must be named.
    """
    given = [runs] if isinstance(runs, str | Path) else list(runs)
    if not given:
        raise UsageError("There is nothing to average: name a run, or several.")
    made = make_average([Path(run) for run in given], last, None if out is None else Path(out), device)
    return load(made.run.path, device)


def make_average(paths: Sequence[Path], last: int | None, out: Path | None, device: str = "auto") -> Averaged:
    """Average, measure on dev, and write the run: in this order, so that a run that is there is complete.

    Each of the runs is measured as its own recipe says, and the metrics are kept in it, as `evaluate` does.
    """
    parts: list[Predictor[Any]] = [load(path, device) for path in paths]
    runs = [part.run for part in parts]
    if last is not None and (last < 1 or len(runs) > 1):
        raise UsageError(
            f"last must be at least 1, got {last}."
            if last < 1
            else "How many checkpoints to average is asked of one run; of several, the best weights are averaged."
        )
    place = _place(runs, out)
    for part in parts:
        if not isinstance(part.recipe.train, FitConfig):
            raise UsageError(
                f"{part.name} was not trained by gradient, but estimated by counting: it has no checkpoints to average."
                " Several such models are one with `seqloom evaluate RUN RUN --interpolate`."
            )
    made = averages.mean_of_runs(runs) if len(runs) > 1 else averages.mean_of_checkpoints(runs[0], last or LAST)
    alone = [Figures(_name(part.run, runs), _numbers(part.report("dev").kept())) for part in parts]
    task, model = parts[0].own_task, runs[0].model_of(made.weights, device, f"The mean of {made.what}")
    kept = task.report(model, "dev").kept()
    in_training = task.validate(model) if task.validates_part else _numbers(kept)
    made_run = averages.create(place, made, kept, alone, in_training)
    return Averaged(made_run, made, _numbers(kept), alone, task.monitor.metric)


def _place(runs: Sequence[Run], out: Path | None) -> Path:
    """Where the run goes; refused before any work if it cannot."""
    if out is None:
        if len(runs) > 1:
            raise UsageError("Say where the mean of several runs should go: --out runs/NAME.")
        source = runs[0].path if runs[0].path.name not in ("", "..") else runs[0].path.resolve()
        out = source.with_name(f"{source.name}-averaged")
    if not out.name:
        raise UsageError(f"--out must name a directory to make; got {str(out)!r}.")
    refuse_existing(out)
    check_writable(next(folder for folder in out.absolute().parents if folder.exists()) / out.name)
    return out


def _name(run: Run, runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        return str(run.path)
    steps = [entry["step"] for entry in run.log() if entry["event"] == "evaluated" and entry.get("best")]
    return f"best checkpoint, step {steps[-1]:,}" if steps else "best checkpoint"


def _numbers(kept: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in kept.items() if isinstance(value, float)}
