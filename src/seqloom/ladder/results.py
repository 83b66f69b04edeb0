"""What the runs of a ladder came to: means, spreads, the best first."""

import math
import statistics
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from seqloom import api
from seqloom.core.errors import CheckpointError, DataError, UsageError
from seqloom.core.words import did_you_mean
from seqloom.ladder.plan import Ladder, Rung
from seqloom.ladder.runs import Place, finished, places
from seqloom.runs.run import Run


@dataclass(frozen=True)
class RunResult:
    seed: int
    path: str
    value: float  # of the ladder's metric; not a number where training diverged
    metrics: dict[str, float]
    tokens: int | None
    tokens_per_second: float
    seconds: float  # spent in updates


@dataclass(frozen=True)
class RungResult:
    name: str
    parameters: int | None
    size: int | None
    runs: list[RunResult]
    mean: float
    deviation: float  # of a sample; not a number for one run alone
    tokens_per_second: float
    seconds: float

    @property
    def values(self) -> list[float]:
        return [run.value for run in self.runs]


@dataclass(frozen=True)
class LadderResult:
    ladder: str
    split: str
    metric: str
    higher_is_better: bool
    size: str  # the key that was chosen
    rungs: list[RungResult]  # the best first

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_csv(self) -> str:
        """One line per run."""
        names = list(dict.fromkeys(name for rung in self.rungs for run in rung.runs for name in run.metrics))
        head = ["rung", "seed", "parameters", self.size, "tokens", "tokens_per_second", "seconds"]
        lines = [[*head, *(f"{self.split}_{name}" for name in names)]]
        for rung in self.rungs:
            for run in rung.runs:
                figures = [run.seed, rung.parameters, rung.size, run.tokens, run.tokens_per_second, run.seconds]
                figures += [run.metrics.get(name) for name in names]
                lines.append([rung.name, *("" if figure is None else str(figure) for figure in figures)])
        return "".join(",".join(line) + "\n" for line in lines)


def results(ladder: Ladder, out: Path, split: str = "dev") -> LadderResult:
    """What the runs came to. `test` is measured the first time it is asked for, and kept in the runs."""
    by_rung: dict[str, list[RunResult]] = {}
    for place in places(ladder, out):
        by_rung.setdefault(place.rung.name, []).append(_run_result(place, ladder.metric, split))
    rungs = [_rung_result(rung, by_rung[rung.name]) for rung in ladder.rungs]
    sign = -1 if ladder.higher_is_better else 1
    rungs.sort(key=lambda rung: (math.isnan(rung.mean), sign * rung.mean))
    return LadderResult(ladder.name, split, ladder.metric, ladder.higher_is_better, ladder.config.size, rungs)


def _run_result(place: Place, metric: str, split: str) -> RunResult:
    run = Run.open(place.path)
    end = finished(run)
    result = partial(RunResult, place.seed, str(place.path))
    if end is None:  # it diverged: what it was like before does not count
        return result(math.nan, {}, None, math.nan, math.nan)
    metrics = {name: value for name, value in _metrics(run, split).items() if name != "step"}
    if metric not in metrics:
        raise UsageError(f"There is no metric {metric!r} in {place.path}: {did_you_mean(metric, metrics)}.")
    checkpoint = run.store().load()
    if checkpoint is None:
        raise CheckpointError(f"{place.path} has no checkpoint left. Remove it, and it is trained again.")
    tokens, speed = int(checkpoint.parts["tally"]["tokens"]), float(end["tokens_per_second"] or math.nan)
    return result(_number(metrics[metric]), metrics, tokens, speed, tokens / speed)


def _metrics(run: Run, split: str) -> dict[str, Any]:
    """Of the best weights: as they were measured, if the weights are not younger than that."""
    kept = run.path / "metrics" / f"{split}.json"
    fresh = kept.exists() and kept.stat().st_mtime >= (run.path / "model.safetensors").stat().st_mtime
    if split not in run.data["counts"]:
        raise DataError(f"The data of {run.path} has no {split} split.")
    found = run.metrics(split) if fresh or split == "dev" else api.load(run.path).evaluate(split)
    return found or {}


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _rung_result(rung: Rung, runs: list[RunResult]) -> RungResult:
    values = [run.value for run in runs]
    finite = all(map(math.isfinite, values))
    return RungResult(
        rung.name,
        rung.parameters,
        rung.size,
        runs,
        mean=statistics.fmean(values) if finite else math.nan,
        deviation=statistics.stdev(values) if finite and len(values) > 1 else math.nan,
        tokens_per_second=statistics.fmean(run.tokens_per_second for run in runs),
        seconds=statistics.fmean(run.seconds for run in runs),
    )
