"""Averaged weights, w = 1/N Σ_i w_i, as a new run.

The sources are the newest checkpoints of one run, or the best weights of several runs. The new run has the recipe,
tokenizer and data of its source. Instead of checkpoints, the new run has `average.json`, which contains the sources and
their metrics on dev.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from seqloom.config import ABSENT, differences
from seqloom.core import Json
from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.files import to_json
from seqloom.core.words import format_count, format_value
from seqloom.nn.lora import merge_lora
from seqloom.runs.layout import FROZEN_FILE
from seqloom.runs.record import vocabularies
from seqloom.runs.run import Run
from seqloom.train.checkpoints import CheckpointStore
from seqloom.train.events import Evaluated, Finished, event_to_json

MAX_LISTED_STEPS = 12


@dataclass(frozen=True)
class AveragedWeights:
    """Averaged weights and their sources."""

    runs: list[Run]
    weights: dict[str, Tensor]
    steps: list[int]  # steps of the checkpoints, oldest first; empty for several runs
    damaged: tuple[tuple[str, str], ...] = ()  # skipped checkpoints with name and cause

    @property
    def description(self) -> str:
        """A description such as "10 checkpoints of runs/X, steps 100, 200 …"; long lists are shortened."""
        if not self.steps:
            return " and ".join(str(run.path) for run in self.runs)
        listed = [f"{step:,}" for step in self.steps]
        steps = ", ".join(listed if len(listed) <= MAX_LISTED_STEPS else [*listed[:3], "…", listed[-1]])
        return (
            f"{format_count(len(listed), 'checkpoint')} of {self.runs[0].path}, step{'s' * (len(listed) > 1)} {steps}"
        )


@dataclass(frozen=True)
class DevMetrics:
    """The metrics of weights on dev."""

    name: str
    metrics: Mapping[str, float]


def mean(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of tensors with the same names and shapes, summed in float64.

    Integer tensors, such as token counts, are taken from the first part.
    """
    first: Mapping[str, Tensor] = {}
    sums: dict[str, Tensor] = {}
    count = 0
    for part in parts:
        if not first:
            first = part
            sums = {name: torch.zeros_like(w, dtype=torch.float64) for name, w in part.items() if w.is_floating_point()}
        shapes = {name: tuple(weight.shape) for name, weight in part.items()}
        if shapes != {name: tuple(weight.shape) for name, weight in first.items()}:
            raise CheckpointError("Weights to average must have the same names and shapes; these models differ.")
        for name, total in sums.items():
            total += part[name]
        count += 1
    return {name: (sums[name] / count).to(tensor.dtype) if name in sums else tensor for name, tensor in first.items()}


def mean_of_checkpoints(run: Run, last: int) -> AveragedWeights:
    """Average the newest `last` checkpoints of a run. Raise an error if the run has fewer checkpoints."""
    if run.average is not None:
        raise UsageError(f"{run.path} is an average and has no checkpoints. Average its source instead.")
    steps: list[int] = []
    lora = (run.recipe.get("init") or {}).get("lora")

    def merge(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return tensors if lora is None else merge_lora(tensors, lora["alpha"] / lora["rank"])

    def weights(store: CheckpointStore) -> Iterator[Mapping[str, Tensor]]:
        for step, tensors in store.newest_weights(last, lambda tensors: run.check_weights(merge(tensors))):
            steps.append(step)
            yield merge(tensors)

    # The lock prevents training from deleting checkpoints. A read-only run cannot be trained.
    with run.locked() if os.access(run.path, os.W_OK) else nullcontext():
        store = run.store()
        averaged = mean(weights(store))
    if len(steps) < last:
        raise_too_few(run, len(steps), last, store.damaged)
    return AveragedWeights([run], averaged, steps[::-1], tuple(store.damaged))


def raise_too_few(run: Run, count: int, last: int, damaged: Sequence[tuple[str, str]]) -> NoReturn:
    """Raise an error that explains how to train with enough checkpoints."""
    if not (count or damaged):
        raise UsageError(f"{run.path} has no checkpoints to average: none was saved yet, or they were deleted.")
    log = list(run.log())
    written = {entry["step"] for entry in log if entry["event"] == "saved"}
    interval = max(1, max((entry["step"] for entry in log), default=0) // last)
    keys = [f"train.keep_checkpoints={last}"] * (run.recipe["train"]["keep_checkpoints"] < last)
    keys += [f"train.save_every={interval}"] * (len(written) < last)
    enough = f"with {' and '.join(keys)} to have enough checkpoints" if keys else "again"
    available = "1 checkpoint" if count == 1 else f"{count} checkpoints"
    causes = "; ".join(f"{name}: {cause}" for name, cause in damaged)
    readable = f" that can be read ({causes})" if damaged else ""
    advice = f"Average these with --last {count}, or train" if count else "Train"
    kind = CheckpointError if damaged else UsageError
    raise kind(f"{run.path} has {available}{readable}, but {last} are needed. {advice} {enough}.")


def mean_of_runs(runs: Sequence[Run]) -> AveragedWeights:
    """Average the best weights of several runs with equal models, tokenizers and data."""
    first, *others = runs
    paths = [run.path.resolve() for run in runs]
    if repeated := [run for run, path in zip(runs, paths, strict=True) if paths.count(path) > 1]:
        raise UsageError(f"{repeated[0].path} is given twice. Give each run once.")
    for other in others:
        if reason := difference_of(first, other):
            raise UsageError(f"{first.path} and {other.path} cannot be averaged: {reason}.")
    return AveragedWeights(list(runs), mean(run.weights() for run in runs), [])


def difference_of(a: Run, b: Run) -> str | None:
    """Return the reason why the weights of two runs cannot be averaged, or None."""
    if a.recipe.get("task") != b.recipe.get("task"):
        return f"their tasks differ ({a.recipe.get('task')} and {b.recipe.get('task')})"
    changed = differences({"model": a.recipe.get("model")}, {"model": b.recipe.get("model")})
    kind = [change for change in changed if change[0] == "model.kind"]
    if changed := kind or changed:  # if the kinds differ, report no other difference
        values = [(key, *("absent" if x is ABSENT else format_value(x) for x in pair)) for key, *pair in changed]
        listed = [f"{key} is {old} and {new}" for key, old, new in values]
        more = f" and {len(listed) - 3} more keys" if len(listed) > 3 else ""
        return f"their models differ ({', '.join(listed[:3])}{more})"
    if a.of_text and a.tokenizer.fingerprint() != b.tokenizer.fingerprint():
        return f"their tokens differ ({vocabularies(a, b)})"
    sums = a.data["sha256"], b.data["sha256"]
    different = sorted(split for split in sums[0].keys() | sums[1].keys() if sums[0].get(split) != sums[1].get(split))
    return f"they were not trained on the same data ({', '.join(different)} differ)" if different else None


# --- the run ----------------------------------------------------------------------------------------------------------


def create(
    out: Path,
    average: AveragedWeights,
    metrics: Mapping[str, Json],
    source_metrics: Sequence[DevMetrics],
    training_metrics: Mapping[str, float],
) -> Run:
    """Create the run directory of an average atomically.

    `metrics` contains the metrics of the average on dev, `source_metrics` those of its sources, and `training_metrics`
    the metrics that training computes.
    """
    source = average.runs[0]
    documents = source.documents()
    documents["average.json"] = {
        "runs": [str(run.path) for run in average.runs],
        "steps": average.steps or None,
        "alone": [{"name": entry.name, **entry.metrics} for entry in source_metrics],
    }
    files = {FROZEN_FILE: source.file(FROZEN_FILE)} if FROZEN_FILE in source.manifest.files else {}
    records = {
        "metrics/dev.json": to_json(dict(metrics)).encode(),
        "log.jsonl": _log(average, training_metrics).encode(),
    }
    return Run.create(out, source.recipe, documents, files, weights=average.weights, records=records)


def _log(average: AveragedWeights, metrics: Mapping[str, float]) -> str:
    """Return a log that contains the sources of the average and the last events of a training run."""
    last = average.steps[-1] if average.steps else max((entry["step"] for entry in average.runs[0].log()), default=0)
    parameters = next((entry["parameters"] for entry in average.runs[0].log() if "parameters" in entry), 0)
    finished = Finished(last, f"the mean of {average.description}", last, metrics, parameters, 0.0, 0.0)
    entries: list[dict[str, Json]] = [
        {"event": "averaged", "step": last, "runs": [str(run.path) for run in average.runs], "steps": average.steps},
        event_to_json(Evaluated(last, "dev", metrics, best=True)),
        event_to_json(finished),
    ]
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
    return "".join(json.dumps({"time": stamp, **entry}) + "\n" for entry in entries)
