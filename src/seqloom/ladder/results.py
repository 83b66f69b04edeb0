"""What the runs of a ladder came to: means, spreads, the best first."""

import math
import statistics
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.words import did_you_mean
from seqloom.ladder.plan import Ladder, Rung
from seqloom.ladder.runs import Place, figures, finished, places, shared
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
    memory: int | None  # most bytes in tensors during an update
    jobs: int | None = None  # how many runs shared the machine when it ended …
    threads: int | None = None  # … and how many threads it had


@dataclass(frozen=True)
class RungResult:
    name: str
    parameters: int | None
    size_key: str | None  # which key says how large it is …
    size: int | None  # … and what it says
    runs: list[RunResult]
    mean: float
    deviation: float  # of a sample; not a number for one run alone
    tokens_per_second: float
    seconds: float
    memory: int | None

    @property
    def values(self) -> list[float]:
        return [run.value for run in self.runs]

    def spread(self, metric: str) -> tuple[float, float]:
        """Mean and deviation of any metric."""
        return _spread([_number(run.metrics.get(metric)) for run in self.runs])


@dataclass(frozen=True)
class LadderResult:
    ladder: str
    split: str
    metric: str
    higher_is_better: bool
    size: str  # the key that was chosen; `size` where rungs have keys of their own
    also: tuple[str, ...]  # other metrics to show
    rungs: list[RungResult]  # the best first

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_csv(self) -> str:
        """One line per run."""
        names = list(dict.fromkeys(name for rung in self.rungs for run in rung.runs for name in run.metrics))
        head = [
            "rung",
            "seed",
            "parameters",
            self.size,
            "tokens",
            "tokens_per_second",
            "seconds",
            "memory",
            "jobs",
            "threads",
        ]
        lines = [[*head, *(f"{self.split}_{name}" for name in names)]]
        for rung in self.rungs:
            for run in rung.runs:
                size = rung.size if rung.size is None or rung.size_key == self.size else f"{rung.size_key}={rung.size}"
                told: list[Any] = [run.seed, rung.parameters, size, run.tokens]
                told += [
                    run.tokens_per_second,
                    run.seconds,
                    run.memory,
                    run.jobs,
                    run.threads,
                    *map(run.metrics.get, names),
                ]
                lines.append([rung.name, *("" if figure is None else str(figure) for figure in told)])
        return "".join(",".join(line) + "\n" for line in lines)


def results(ladder: Ladder, out: Path, split: str = "dev") -> LadderResult:
    """What the runs came to. `test` is measured the first time it is asked for, and kept in the runs."""
    by_rung: dict[str, list[RunResult]] = {}
    for place in places(ladder, out):
        by_rung.setdefault(place.rung.name, []).append(_run_result(place, ladder, split))
    rungs = [_rung_result(rung, by_rung[rung.name]) for rung in ladder.rungs]
    sign = -1 if ladder.higher_is_better else 1
    rungs.sort(key=lambda rung: (math.isnan(rung.mean), sign * rung.mean))
    told = ladder.sizes, ladder.config.also
    return LadderResult(ladder.name, split, ladder.metric, ladder.higher_is_better, *told, rungs)


def _run_result(place: Place, ladder: Ladder, split: str) -> RunResult:
    run = Run.open(place.path)
    end = finished(run)
    result = partial(RunResult, place.seed, str(place.path))
    if end is None:  # it diverged: what it was like before does not count
        return result(math.nan, {}, None, math.nan, math.nan, None)
    metrics = figures(run, split)
    for metric in (ladder.metric, *ladder.config.also):
        if metric not in metrics:
            raise UsageError(f"There is no metric {metric!r} in {place.path}: {did_you_mean(metric, metrics)}.")
    checkpoint = run.store().load()
    if checkpoint is None:
        raise CheckpointError(f"{place.path} has no checkpoint left. Remove it, and it is trained again.")
    tokens, speed = int(checkpoint.parts["tally"]["tokens"]), float(end["tokens_per_second"] or math.nan)
    return result(
        _number(metrics[ladder.metric]), metrics, tokens, speed, tokens / speed, end.get("memory"), **shared(run)
    )


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _rung_result(rung: Rung, runs: list[RunResult]) -> RungResult:
    return RungResult(
        rung.name,
        rung.parameters,
        rung.size_key,
        rung.size,
        runs,
        *_spread([run.value for run in runs]),
        tokens_per_second=statistics.fmean(run.tokens_per_second for run in runs),
        seconds=statistics.fmean(run.seconds for run in runs),
        memory=max((run.memory for run in runs if run.memory), default=None),
    )


def _spread(values: list[float]) -> tuple[float, float]:
    """The mean, and the deviation of a sample; not numbers where there is none."""
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan
