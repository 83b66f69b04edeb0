"""The runs of a ladder, one for each variant and seed, and their results."""

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from seqloom.core import Json
from seqloom.core.errors import CheckpointError, DataError, DivergedError, UsageError
from seqloom.core.files import read_file, to_json, write_atomic
from seqloom.core.words import did_you_mean
from seqloom.ladder.plan import Ladder, Variant, prefix_errors
from seqloom.predict.loader import load
from seqloom.runs.run import Run
from seqloom.tasks import task_info
from seqloom.tasks.base import TaskRecipe
from seqloom.train.events import Event, Finished
from seqloom.train.stop import Stop
from seqloom.training import begin, check_resumable, resume

RunEvent = Event | str | None  # an event, the reason for divergence, or None if the run was already finished
SHARED = "shared.json"  # file in a run directory that contains the numbers of parallel jobs and threads
NOT_METRICS = ("step", "signatures", "decoding")  # entries of a run's metrics that are not metrics of its model
CSV_KEYS = ("tokens", "tokens_per_second", "seconds", "memory", "jobs", "threads")


@dataclass(frozen=True)
class LadderRun:
    """A run of a variant with one seed."""

    variant: Variant
    seed: int
    path: Path
    number: int  # number of this run, counted from 1
    total: int  # number of runs

    @property
    def recipe(self) -> TaskRecipe:
        """The recipe of the variant with the seed of this run."""
        return replace(self.variant.recipe, seed=self.seed)

    def is_trained(self) -> bool:
        """Whether training has reached the last step of the variant's recipe, which may differ from that of the run."""
        if not self.path.exists():
            return False
        run = Run.open(self.path)
        return not check_resumable(run, self.recipe) and find_end(run) is not None

    def is_over(self, splits: Sequence[str]) -> bool:
        """Whether the run is trained and evaluated."""
        if not self.is_trained():
            return False
        run = Run.open(self.path)
        return all(stored_metrics(run, split) is not None for split in {"dev", *splits})


def list_runs(ladder: Ladder, out: Path) -> list[LadderRun]:
    """Return all runs, ordered by seed, then by variant."""
    pairs = [(variant, seed) for seed in ladder.config.seeds for variant in ladder.variants]
    paths = [out / f"{variant.name}-seed{seed}" for variant, seed in pairs]
    numbers = range(1, len(pairs) + 1)
    return [
        LadderRun(*pair, path, number, len(pairs)) for pair, path, number in zip(pairs, paths, numbers, strict=True)
    ]


def train_ladder(
    ladder: Ladder, out: Path, stop: Stop | None = None, *, jobs: int = 1, splits: Sequence[str] = ("dev",)
) -> Iterator[tuple[LadderRun, RunEvent]]:
    """Train all unfinished runs and evaluate each on `splits`.

    Each run is yielded with its training events, with None if it was already finished, or with the reason if it
    diverged. After a divergence, the other runs continue. `Stopped` is the last event.

    With `jobs` > 1, runs are trained in parallel processes, which share the threads. The weights equal those of
    sequential training with the same number of threads; only the order of the events and the speed differ. The numbers
    of jobs and threads are stored with the run.
    """
    stop = stop or Stop()
    if (out / "recipe.yaml").exists():
        raise UsageError(f"{out} is a run, not a ladder. Choose another folder with --out.")
    runs = list_runs(ladder, out)
    for run in runs:  # check all existing runs before any training
        with prefix_errors(run.variant.name):
            if run.path.exists():
                check_resumable(Run.open(run.path), run.recipe)
    if jobs > 1:
        from seqloom.ladder.workers import train_in_parallel

        yield from train_in_parallel(runs, splits, stop, jobs)
        return
    for run in runs:
        with prefix_errors(run.variant.name):
            yield from ((run, event) for event in train_run(run, splits, stop))
        if stop.requested:
            return


def train_run(run: LadderRun, splits: Sequence[str], stop: Stop, jobs: int = 1) -> Iterator[RunEvent]:
    """Train or resume a run, then evaluate it; the `Finished` event contains the dev metrics."""

    def evaluate() -> dict[str, float]:
        return {split: get_metrics(Run.open(run.path), split) for split in dict.fromkeys(("dev", *splits))}["dev"]

    with stop.interruptible():
        if not run.path.exists():
            training = begin(run.recipe, run.path)
        elif run.is_trained():
            evaluate()
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
                    event = replace(event, best=evaluate())
            yield event
    except DivergedError as error:
        yield str(error)


def find_end(run: Run) -> dict[str, Json] | None:
    """Return the last event of a run if it is `finished`, otherwise None."""
    last = [*run.log()][-1:]
    return last[0] if last and last[0]["event"] == "finished" else None


def get_metrics(run: Run, split: str) -> dict[str, float]:
    """Return the metrics of the best weights on a full split. Metrics that are not stored are computed."""
    if split not in run.data["counts"]:
        raise DataError(f"The data of {run.path} has no {split} split.")
    metrics = stored_metrics(run, split)
    if metrics is None:
        metrics = load(run.path, run.recipe["train"]["device"]).evaluate(split)
    return {name: value for name, value in metrics.items() if name not in NOT_METRICS}


def stored_metrics(run: Run, split: str) -> dict[str, Json] | None:
    """Return the stored metrics of the current weights on the full split, or None."""
    metrics, file = run.metrics(split), run.path / "metrics" / f"{split}.json"
    if metrics is None:
        return None
    if "step" in metrics:
        return None if task_info(run.recipe["task"]).task.validates_part else metrics
    return metrics if file.stat().st_mtime >= (run.path / "model.safetensors").stat().st_mtime else None


# --- results --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunResult:
    """The result of a run."""

    seed: int
    path: str
    value: float  # value of the ladder's metric; NaN if training diverged
    metrics: dict[str, float]
    tokens: int | None
    tokens_per_second: float
    seconds: float  # duration of all updates
    memory: int | None  # peak bytes of tensors during an update
    jobs: int | None = None  # number of runs trained in parallel
    threads: int | None = None


@dataclass(frozen=True)
class VariantResult:
    """The results of all runs of a variant."""

    name: str
    parameters: int | None
    size_key: str | None  # the adjusted key
    size: int | None  # value of the adjusted key
    runs: list[RunResult]
    mean: float
    deviation: float  # sample standard deviation; NaN for a single run
    tokens_per_second: float
    seconds: float
    memory: int | None

    @property
    def values(self) -> list[float]:
        """The ladder's metric for each run."""
        return [run.value for run in self.runs]

    def spread(self, metric: str) -> tuple[float, float]:
        """Return the mean and standard deviation of a metric."""
        values = [run.metrics.get(metric) for run in self.runs]
        return spread_of([math.nan if value is None else float(value) for value in values])

    def format_size(self, key: str) -> str | None:
        """Format the size. The key is included unless it is `key`."""
        if self.size is None:
            return None
        return str(self.size) if self.size_key == key else f"{self.size_key}={self.size}"


@dataclass(frozen=True)
class LadderResult:
    """The results of all variants."""

    ladder: str
    split: str
    metric: str
    higher_is_better: bool
    size: str  # the adjusted key, or `size` if variants have different keys
    also: tuple[str, ...]  # other metrics to show
    variants: list[VariantResult]  # the best first

    def to_json(self) -> dict[str, object]:
        """Return all results as JSON values."""
        return asdict(self)

    def to_csv(self) -> str:
        """Return a table with one line per run."""
        names = list(dict.fromkeys(name for variant in self.variants for run in variant.runs for name in run.metrics))
        lines = [["variant", "seed", "parameters", self.size, *CSV_KEYS, *(f"{self.split}_{name}" for name in names)]]
        for variant in self.variants:
            for run in variant.runs:
                cells: list[object] = [run.seed, variant.parameters, variant.format_size(self.size)]
                cells += [*(getattr(run, key) for key in CSV_KEYS), *map(run.metrics.get, names)]
                lines.append([variant.name, *("" if cell is None else str(cell) for cell in cells)])
        return "".join(",".join(line) + "\n" for line in lines)


def collect_results(ladder: Ladder, out: Path, split: str = "dev") -> LadderResult:
    """Return the results on a split. Metrics that are not stored are computed and then stored in the runs."""
    runs = [(run.variant.name, read_result(run, ladder, split)) for run in list_runs(ladder, out)]
    variants = []
    for variant in ladder.variants:
        of_variant = [result for name, result in runs if name == variant.name]
        mean, deviation = spread_of([run.value for run in of_variant])
        speed = statistics.fmean(run.tokens_per_second for run in of_variant)
        seconds = statistics.fmean(run.seconds for run in of_variant)
        memory = max((run.memory for run in of_variant if run.memory), default=None)
        head = (variant.name, variant.parameters, variant.size_key, variant.size)
        variants.append(VariantResult(*head, of_variant, mean, deviation, speed, seconds, memory))
    sign = -1 if ladder.higher_is_better else 1
    variants.sort(key=lambda variant: (math.isnan(variant.mean), sign * variant.mean))
    columns = ladder.sizes, ladder.config.also
    return LadderResult(ladder.name, split, ladder.metric, ladder.higher_is_better, *columns, variants)


def read_result(source: LadderRun, ladder: Ladder, split: str) -> RunResult:
    """Return the result of a run. If the run diverged, all values are NaN."""
    run = Run.open(source.path)
    end = find_end(run)
    if end is None:
        return RunResult(source.seed, str(source.path), math.nan, {}, None, math.nan, math.nan, None)
    metrics = get_metrics(run, split)
    for metric in (ladder.metric, *ladder.config.also):
        if metric not in metrics:
            raise UsageError(f"There is no metric {metric!r} in {source.path}: {did_you_mean(metric, metrics)}.")
    checkpoint = run.store().load()
    if checkpoint is None:
        raise CheckpointError(f"{source.path} has no checkpoint. Delete this run and train it again.")
    tokens, speed = int(checkpoint.parts["tally"]["tokens"]), float(end["tokens_per_second"] or math.nan)
    value = math.nan if metrics[ladder.metric] is None else float(metrics[ladder.metric])
    file = source.path / SHARED  # missing if the run was not part of a ladder
    shared: dict[str, int] = json.loads(read_file(file)) if file.exists() else {}
    return RunResult(
        source.seed, str(source.path), value, metrics, tokens, speed, tokens / speed, end.get("memory"), **shared
    )


def spread_of(values: list[float]) -> tuple[float, float]:
    """Return the mean and sample standard deviation, or NaN if undefined."""
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan
