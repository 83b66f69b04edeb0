"""The runs of a ladder: an ordinary one for each rung and seed, begun or resumed, measured and summarised."""

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from seqloom.core.errors import CheckpointError, DataError, DivergedError, UsageError
from seqloom.core.files import read_file, to_json, write_atomic
from seqloom.core.words import did_you_mean
from seqloom.ladder.plan import Ladder, Rung, naming_rung
from seqloom.predict.loader import load
from seqloom.runs.run import Run
from seqloom.tasks import task_info
from seqloom.train.events import Event, Finished
from seqloom.train.stop import Stop
from seqloom.training import begin, check_resumable, resume

Happening = Event | str | None  # an event; why a run diverged; None for one that was finished before
SHARED = "shared.json"  # of a run: how many trained at once when it ended, and the threads it had
NOT_METRICS = ("step", "signatures", "decoding")  # what else lies among the metrics of a run
CSV_KEYS = ("tokens", "tokens_per_second", "seconds", "memory", "jobs", "threads")


@dataclass(frozen=True)
class LadderRun:
    """A rung trained with a seed."""

    rung: Rung
    seed: int
    path: Path
    number: int  # of this run, from 1 …
    total: int  # … to this

    @property
    def recipe(self) -> Any:
        """The recipe of the rung with the seed."""
        return replace(self.rung.recipe, seed=self.seed)

    def is_trained(self) -> bool:
        """Whether it has come to the end that its recipe wants, which may have more steps than the run made."""
        if not self.path.exists():
            return False
        run = Run.open(self.path)
        return not check_resumable(run, self.recipe) and find_end(run) is not None

    def is_over(self, splits: Sequence[str]) -> bool:
        """Whether nothing is left to do: it is trained, and its metrics are there."""
        if not self.is_trained():
            return False
        run = Run.open(self.path)
        return all(find_kept_metrics(run, split) is not None for split in {"dev", *splits})


def ladder_runs(ladder: Ladder, out: Path) -> list[LadderRun]:
    """Every run, all rungs with the first seed first."""
    pairs = [(rung, seed) for seed in ladder.config.seeds for rung in ladder.rungs]
    paths = [out / f"{rung.name}-seed{seed}" for rung, seed in pairs]
    numbers = range(1, len(pairs) + 1)
    return [
        LadderRun(*pair, path, number, len(pairs)) for pair, path, number in zip(pairs, paths, numbers, strict=True)
    ]


def climb(
    ladder: Ladder, out: Path, stop: Stop | None = None, *, jobs: int = 1, splits: Sequence[str] = ("dev",)
) -> Iterator[tuple[LadderRun, Happening]]:
    """Train every run that is not finished, and measure `splits` of each, yielding where and what happens: the events
    of its training, None for a run that was finished before, and the reason for one that diverged,
    with which the ladder goes on without it. After `Stopped` nothing follows.

    With more `jobs` as many runs are trained at once, each in a process of its own, with its share
    of the threads. The weights are those of one at a time with as many threads; the order of what
    is yielded and the speed of each run are not. How a run shared the machine is kept beside it.
    """
    stop = stop or Stop()
    if (out / "recipe.yaml").exists():
        raise UsageError(f"{out} is a run, not a ladder. Choose another place with --out.")
    runs = ladder_runs(ladder, out)
    for one in runs:  # what lies where a run belongs must be that run, before any of them is trained
        with naming_rung(one.rung.name):
            if one.path.exists():
                check_resumable(Run.open(one.path), one.recipe)
    if jobs > 1:
        from seqloom.ladder.workers import climb_together

        yield from climb_together(runs, splits, stop, jobs)
        return
    for one in runs:
        with naming_rung(one.rung.name):
            yield from ((one, event) for event in work(one, splits, stop))
        if stop.requested:
            return


def work(run: LadderRun, splits: Sequence[str], stop: Stop, jobs: int = 1) -> Iterator[Happening]:
    """Train a run from where it is to its end, and measure it; the metrics of dev stand in its `Finished`."""

    def measure() -> dict[str, float]:
        every = dict.fromkeys(("dev", *splits))
        return {split: get_metrics(Run.open(run.path), split) for split in every}["dev"]

    with stop.interruptible():
        if not run.path.exists():
            training = begin(run.recipe, run.path)
        elif run.is_trained():
            measure()
            training = None
        else:
            training = resume(run.path, recipe=run.recipe)
    if training is None:
        yield None
        return
    try:
        for event in training.events(stop):
            if isinstance(event, Finished):
                write_atomic(run.path / SHARED, to_json({"jobs": jobs, "threads": torch.get_num_threads()}))
                with stop.interruptible():
                    event = replace(event, best=measure())
            yield event
    except DivergedError as error:
        yield str(error)


def find_end(run: Run) -> dict[str, Any] | None:
    """How a run ended; None if it has not, or was taken up again since."""
    last = [*run.log()][-1:]
    return last[0] if last and last[0]["event"] == "finished" else None


def get_metrics(run: Run, split: str) -> dict[str, float]:
    """Every metric of the best weights, of all of a split: as they were measured, if that is so, else measured now."""
    if split not in run.data["counts"]:
        raise DataError(f"The data of {run.path} has no {split} split.")
    metrics = find_kept_metrics(run, split)
    if metrics is None:
        metrics = load(run.path, run.recipe["train"]["device"]).evaluate(split)
    return {name: value for name, value in metrics.items() if name not in NOT_METRICS}


def find_kept_metrics(run: Run, split: str) -> dict[str, Any] | None:
    """Metrics that are of these weights, and of all of the split, which some tasks do not measure in training."""
    metrics, file = run.metrics(split), run.path / "metrics" / f"{split}.json"
    if metrics is None:
        return None
    if "step" in metrics:
        return None if task_info(run.recipe["task"]).task.validates_part else metrics
    return metrics if file.stat().st_mtime >= (run.path / "model.safetensors").stat().st_mtime else None


# --- results --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunResult:
    """What a run came to."""

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
    """What the runs of a rung came to."""

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
        """The ladder's metric of each run."""
        return [run.value for run in self.runs]

    def spread(self, metric: str) -> tuple[float, float]:
        """Mean and deviation of any metric."""
        values = [run.metrics.get(metric) for run in self.runs]
        return spread_of([math.nan if value is None else float(value) for value in values])

    def shown_size(self, key: str) -> str | None:
        """The size; with its key, where that is another one than `key`."""
        if self.size is None:
            return None
        return str(self.size) if self.size_key == key else f"{self.size_key}={self.size}"


@dataclass(frozen=True)
class LadderResult:
    """What all rungs came to."""

    ladder: str
    split: str
    metric: str
    higher_is_better: bool
    size: str  # the key that was chosen; `size` where rungs have keys of their own
    also: tuple[str, ...]  # other metrics to show
    rungs: list[RungResult]  # the best first

    def to_json(self) -> dict[str, object]:
        """All results as values that JSON has."""
        return asdict(self)

    def to_csv(self) -> str:
        """One line per run."""
        names = list(dict.fromkeys(name for rung in self.rungs for run in rung.runs for name in run.metrics))
        lines = [["rung", "seed", "parameters", self.size, *CSV_KEYS, *(f"{self.split}_{name}" for name in names)]]
        for rung in self.rungs:
            for run in rung.runs:
                cells: list[object] = [run.seed, rung.parameters, rung.shown_size(self.size)]
                cells += [*(getattr(run, key) for key in CSV_KEYS), *map(run.metrics.get, names)]
                lines.append([rung.name, *("" if cell is None else str(cell) for cell in cells)])
        return "".join(",".join(line) + "\n" for line in lines)


def results(ladder: Ladder, out: Path, split: str = "dev") -> LadderResult:
    """What the runs came to. `test` is measured the first time it is asked for, and kept in the runs."""
    runs = [(one.rung.name, run_result(one, ladder, split)) for one in ladder_runs(ladder, out)]
    rungs = []
    for rung in ladder.rungs:
        of_rung = [result for name, result in runs if name == rung.name]
        mean, deviation = spread_of([run.value for run in of_rung])
        speed = statistics.fmean(run.tokens_per_second for run in of_rung)
        seconds = statistics.fmean(run.seconds for run in of_rung)
        memory = max((run.memory for run in of_rung if run.memory), default=None)
        head = (rung.name, rung.parameters, rung.size_key, rung.size)
        rungs.append(RungResult(*head, of_rung, mean, deviation, speed, seconds, memory))
    sign = -1 if ladder.higher_is_better else 1
    rungs.sort(key=lambda rung: (math.isnan(rung.mean), sign * rung.mean))
    shown = ladder.sizes, ladder.config.also
    return LadderResult(ladder.name, split, ladder.metric, ladder.higher_is_better, *shown, rungs)


def run_result(one: LadderRun, ladder: Ladder, split: str) -> RunResult:
    """What a run came to; of one that diverged nothing counts."""
    run = Run.open(one.path)
    end = find_end(run)
    if end is None:
        return RunResult(one.seed, str(one.path), math.nan, {}, None, math.nan, math.nan, None)
    metrics = get_metrics(run, split)
    for metric in (ladder.metric, *ladder.config.also):
        if metric not in metrics:
            raise UsageError(f"There is no metric {metric!r} in {one.path}: {did_you_mean(metric, metrics)}.")
    checkpoint = run.store().load()
    if checkpoint is None:
        raise CheckpointError(f"{one.path} has no checkpoint left. Remove it, and it is trained again.")
    tokens, speed = int(checkpoint.parts["tally"]["tokens"]), float(end["tokens_per_second"] or math.nan)
    value = math.nan if metrics[ladder.metric] is None else float(metrics[ladder.metric])
    file = one.path / SHARED  # not there where a run was not trained by a ladder
    shared: dict[str, int] = json.loads(read_file(file)) if file.exists() else {}
    return RunResult(
        one.seed, str(one.path), value, metrics, tokens, speed, tokens / speed, end.get("memory"), **shared
    )


def spread_of(values: list[float]) -> tuple[float, float]:
    """The mean, and the deviation of a sample; not numbers where there is none."""
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan
