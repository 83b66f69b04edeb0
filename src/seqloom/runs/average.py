"""The mean of several sets of weights, w = 1/N Σ_i w_i, as a run of its own.

Either of the newest checkpoints of one run, or of the best weights of several. The new run has what
its source had (recipe, tokenizer, data) and instead of checkpoints `average.json`: of what it is
the mean, and how good on dev.
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
from seqloom.core import VERSION, Json
from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.files import to_json
from seqloom.core.words import counted, shown
from seqloom.runs.layout import FROZEN_FILE
from seqloom.runs.record import data_section, machine, number, vocabularies
from seqloom.runs.run import Run
from seqloom.train.checkpoints import CheckpointStore
from seqloom.train.events import Evaluated, Finished, event_to_json

MOST_SHOWN = 12  # steps named one by one


@dataclass(frozen=True)
class AveragedWeights:
    """Averaged weights, and where they come from."""

    runs: list[Run]
    weights: dict[str, Tensor]
    steps: list[int]  # of the checkpoints, oldest first; none for several runs
    damaged: tuple[tuple[str, str], ...] = ()  # checkpoints that were passed over: (name, cause)

    @property
    def what(self) -> str:
        """In words: 10 checkpoints of runs/X, steps 100, 200 …; of many the first three and the last."""
        if not self.steps:
            return " and ".join(str(run.path) for run in self.runs)
        listed = [f"{step:,}" for step in self.steps]
        steps = ", ".join(listed if len(listed) <= MOST_SHOWN else [*listed[:3], "…", listed[-1]])
        return f"{counted(len(listed), 'checkpoint')} of {self.runs[0].path}, step{'s' * (len(listed) > 1)} {steps}"


@dataclass(frozen=True)
class DevMetrics:
    """How good weights are on dev."""

    name: str  # whose they are
    metrics: Mapping[str, float]


def mean(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """1/N Σ_i w_i of tensors of the same names and shapes, added up in float64.

    What is no number with a fraction, such as how often tokens were counted, is that of the first.
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
            raise CheckpointError("Only weights of the same names and shapes have a mean; these are of other models.")
        for name, total in sums.items():
            total += part[name]
        count += 1
    return {name: (sums[name] / count).to(tensor.dtype) if name in sums else tensor for name, tensor in first.items()}


def mean_of_checkpoints(run: Run, last: int) -> AveragedWeights:
    """The mean of the newest `last` checkpoints of a run; refused if it has fewer."""
    if run.average is not None:
        raise UsageError(f"{run.path} is a mean itself and has no checkpoints. Average the run it was made from.")
    steps: list[int] = []

    def weights(store: CheckpointStore) -> Iterator[Mapping[str, Tensor]]:
        for step, tensors in store.newest_weights(last, run.check_weights):
            steps.append(step)
            yield tensors

    # No checkpoint must go while it is read. Where nothing can be written, nobody trains.
    with run.locked() if os.access(run.path, os.W_OK) else nullcontext():
        store = run.store()
        averaged = mean(weights(store))
    if len(steps) < last:
        refuse_too_few(run, len(steps), last, store.damaged)
    return AveragedWeights([run], averaged, steps[::-1], tuple(store.damaged))


def refuse_too_few(run: Run, count: int, last: int, damaged: Sequence[tuple[str, str]]) -> NoReturn:
    """Say how a training like this one comes to so many checkpoints: it must write them, and keep them."""
    if not (count or damaged):
        raise UsageError(
            f"{run.path} has no checkpoints to average: its training has not come to one, or they are gone."
        )
    log = list(run.log())
    written = {entry["step"] for entry in log if entry["event"] == "saved"}
    often = max(1, max((entry["step"] for entry in log), default=0) // last)
    keys = [f"train.keep_checkpoints={last}"] * (run.recipe["train"]["keep_checkpoints"] < last)
    keys += [f"train.save_every={often}"] * (len(written) < last)
    enough = f"with {' and '.join(keys)}, so that there are enough of them" if keys else "once more"
    there = "1 checkpoint" if count == 1 else f"{count} checkpoints"
    causes = "; ".join(f"{name}: {cause}" for name, cause in damaged)
    readable = f" that can be read ({causes})" if damaged else ""
    less = f"Average what there is, --last {count}, or train" if count else "Train"
    kind = CheckpointError if damaged else UsageError
    raise kind(f"{run.path} has {there}{readable}, and {last} were to be averaged. {less} {enough}.")


def mean_of_runs(runs: Sequence[Run]) -> AveragedWeights:
    """The mean of the best weights of several runs of one model, with one tokenizer, on one data set."""
    first, *others = runs
    places = [run.path.resolve() for run in runs]
    if twice := [run for run, place in zip(runs, places, strict=True) if places.count(place) > 1]:
        raise UsageError(f"{twice[0].path} is named twice, and its mean with itself is itself. Name it once.")
    for other in others:
        if reason := difference_of(first, other):
            raise UsageError(f"{first.path} and {other.path} cannot be averaged: {reason}.")
    return AveragedWeights(list(runs), mean(run.weights() for run in runs), [])


def difference_of(a: Run, b: Run) -> str | None:
    """Why the weights of two runs do not mean the same, number by number."""
    if a.recipe.get("task") != b.recipe.get("task"):
        return f"their tasks differ, {a.recipe.get('task')} and {b.recipe.get('task')}"
    changed = differences({"model": a.recipe.get("model")}, {"model": b.recipe.get("model")})
    kind = [change for change in changed if change[0] == "model.kind"]
    if changed := kind or changed:  # of two kinds of models nothing else is worth a word
        values = [(key, *("absent" if x is ABSENT else shown(x) for x in pair)) for key, *pair in changed]
        listed = [f"{key} is {old} and {new}" for key, old, new in values]
        more = f" and {len(listed) - 3} more keys" if len(listed) > 3 else ""
        return f"their models differ, {', '.join(listed[:3])}{more}"
    if a.of_text and a.tokenizer.fingerprint() != b.tokenizer.fingerprint():
        return f"their tokens differ, {vocabularies(a, b)}"
    sums = a.data["sha256"], b.data["sha256"]
    apart = sorted(split for split in sums[0].keys() | sums[1].keys() if sums[0].get(split) != sums[1].get(split))
    return f"they were not trained on the same data, {', '.join(apart)} differ" if apart else None


# --- the run ----------------------------------------------------------------------------------------------------------


def create(
    out: Path,
    made: AveragedWeights,
    kept: Mapping[str, Json],
    alone: Sequence[DevMetrics],
    in_training: Mapping[str, float],
) -> Run:
    """The run directory of a mean, whole or not at all.

    `kept` is what is remembered of its evaluation on dev, `alone` what its parts reach,
    `in_training` its metrics as training would have measured them.
    """
    source = made.runs[0]
    documents = source.documents()
    documents["average.json"] = {
        "runs": [str(run.path) for run in made.runs],
        "steps": made.steps or None,
        "alone": [{"name": one.name, **one.metrics} for one in alone],
    }
    files = {FROZEN_FILE: source.file(FROZEN_FILE)} if FROZEN_FILE in source.manifest.files else {}
    records = {
        "metrics/dev.json": to_json(dict(kept)).encode(),
        "log.jsonl": _log(made, in_training).encode(),
        "card.md": card(out.name, made, kept, alone).encode(),
    }
    return Run.create(out, source.recipe, documents, files, weights=made.weights, records=records)


def _log(made: AveragedWeights, metrics: Mapping[str, float]) -> str:
    """As a training would have ended, after a line that says what was averaged."""
    last = made.steps[-1] if made.steps else max((entry["step"] for entry in made.runs[0].log()), default=0)
    parameters = next((entry["parameters"] for entry in made.runs[0].log() if "parameters" in entry), 0)
    finished = Finished(last, f"the mean of {made.what}", last, metrics, parameters, 0.0, 0.0)
    entries: list[dict[str, Json]] = [
        {"event": "averaged", "step": last, "runs": [str(run.path) for run in made.runs], "steps": made.steps},
        event_to_json(Evaluated(last, "dev", metrics, best=True)),
        event_to_json(finished),
    ]
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
    return "".join(json.dumps({"time": stamp, **entry}) + "\n" for entry in entries)


def card(name: str, made: AveragedWeights, kept: Mapping[str, Json], alone: Sequence[DevMetrics]) -> str:
    """The mean for a reader: of what, of which data, how good beside its parts."""
    source = made.runs[0]
    heads = " | ".join(["averaged", *(one.name for one in alone)])
    figures = {
        name: [value, *(one.metrics[name] for one in alone)] for name, value in kept.items() if isinstance(value, float)
    }
    rows = "\n".join(f"| {name} | {' | '.join(map(number, values))} |" for name, values in figures.items())
    return f"""# {name}

A `{source.recipe["model"]["kind"]}` model for the task `{source.recipe["task"]}`: the mean of the weights of
{made.what}, made by seqloom {VERSION}. `recipe.yaml` is the recipe they were trained with.

{data_section(source.data)}
## Evaluation on dev

| metric | {heads} |
|---|{"---:|" * (1 + len(alone))}
{rows}

{machine()}
"""
