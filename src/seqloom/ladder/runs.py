"""The runs of a ladder: an ordinary one for each rung and seed, begun or gone on with, then measured."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from seqloom.core.errors import DataError, DivergedError, SeqloomError, UsageError
from seqloom.core.files import read_file, to_json, write_atomic
from seqloom.ladder.plan import Ladder, Rung
from seqloom.predict.loader import load
from seqloom.runs.run import Run
from seqloom.tasks import task_info
from seqloom.train.events import Event, Finished
from seqloom.train.stop import Stop
from seqloom.training import Training, begin, refuse_other_recipe, resume

Happening = Event | str | None  # an event; why a run diverged; None for one that was finished before
SHARED = "shared.json"  # of a run: how many trained at once when it ended, and the threads it had
NOT_FIGURES = ("step", "signatures", "decoding")  # what else lies among the metrics of a run


@dataclass(frozen=True)
class Place:
    """Where on the ladder something happens."""

    rung: Rung
    seed: int
    path: Path
    number: int  # of this run, from 1 …
    total: int  # … to this

    @property
    def recipe(self) -> Any:
        return replace(self.rung.recipe, seed=self.seed)


def places(ladder: Ladder, out: Path) -> list[Place]:
    """Every run, all rungs with the first seed first."""
    pairs = [(rung, seed) for seed in ladder.config.seeds for rung in ladder.rungs]
    made = [(rung, seed, out / f"{rung.name}-seed{seed}") for rung, seed in pairs]
    return [Place(*one, number, len(made)) for number, one in enumerate(made, start=1)]


def climb(
    ladder: Ladder, out: Path, stop: Stop | None = None, *, jobs: int = 1, splits: Sequence[str] = ("dev",)
) -> Iterator[tuple[Place, Happening]]:
    """Train every run that is not finished, and measure `splits` of each, yielding where and what happens: the events
    of its training, None for a run that was finished before, and the reason for one that diverged, with which the
    ladder goes on without it. After `Stopped` nothing follows.

    With more `jobs` as many runs are trained at once, each in a process of its own, with its share of the threads. The
    weights are those of one at a time with as many threads; the order of what is yielded and the speed of each run are
    not. How a run shared the machine is kept beside it.
    """
    stop = stop or Stop()
    if (out / "recipe.yaml").exists():
        raise UsageError(f"{out} is a run, not a ladder. Choose another place with --out.")
    for place in places(ladder, out):
        _refuse_other(place)  # before any of them is trained
    if jobs > 1:
        from seqloom.ladder.workers import climb_together

        yield from climb_together(places(ladder, out), splits, stop, jobs)
        return
    for place in places(ladder, out):
        try:
            yield from ((place, event) for event in work(place.recipe, place.path, splits, stop))
        except SeqloomError as error:
            raise place.rung.named(error) from error
        if stop.requested:
            return


def work(recipe: Any, path: Path, splits: Sequence[str], stop: Stop, jobs: int = 1) -> Iterator[Happening]:
    """One run, from where it is to its end and its figures; those of dev stand in its `Finished`."""
    with stop.interruptible():
        training = _training(recipe, path)
        if training is None:
            _measure(path, splits)
    if training is None:
        yield None
        return
    try:
        for event in training.events(stop):
            if isinstance(event, Finished):
                write_atomic(path / SHARED, to_json({"jobs": jobs, "threads": torch.get_num_threads()}))
                with stop.interruptible():
                    event = replace(event, best=_measure(path, splits)["dev"])
            yield event
    except DivergedError as error:
        yield str(error)


def over(place: Place, splits: Sequence[str]) -> bool:
    """Whether nothing is left to do for a run: it is trained, and its figures are there."""
    if not _trained(place.recipe, place.path):
        return False
    run = Run.open(place.path)
    return all(_kept(run, split) is not None for split in _all(splits))


def _refuse_other(place: Place) -> None:
    """What lies where a run belongs must be that run."""
    try:
        if place.path.exists():
            refuse_other_recipe(Run.open(place.path), place.recipe)
    except SeqloomError as error:
        raise place.rung.named(error) from error


def _training(recipe: Any, path: Path) -> Training | None:
    """The training of a run from where it is; None if it is over."""
    if not path.exists():
        return begin(recipe, path)
    return None if _trained(recipe, path) else resume(path, recipe=recipe)


def _trained(recipe: Any, path: Path) -> bool:
    """Whether a run has come to the end that this recipe wants, which may have more steps than the run made."""
    if not path.exists():
        return False
    run = Run.open(path)
    return not refuse_other_recipe(run, recipe) and finished(run) is not None


def shared(run: Run) -> dict[str, int]:
    """`jobs` and `threads` of its training; nothing of a run that was not trained by a ladder."""
    file = run.path / SHARED
    return dict(json.loads(read_file(file))) if file.exists() else {}


def finished(run: Run) -> dict[str, Any] | None:
    """How a run ended; None if it has not, or was taken up again since."""
    last = [*run.log()][-1:]
    return last[0] if last and last[0]["event"] == "finished" else None


def _all(splits: Sequence[str]) -> list[str]:
    return [*dict.fromkeys(["dev", *splits])]


def _measure(path: Path, splits: Sequence[str]) -> dict[str, dict[str, float]]:
    return {split: figures(Run.open(path), split) for split in _all(splits)}


def figures(run: Run, split: str) -> dict[str, float]:
    """Every metric of the best weights, of all of a split: as they were measured, if that is so, else measured now."""
    if split not in run.data["counts"]:
        raise DataError(f"The data of {run.path} has no {split} split.")
    found = _kept(run, split)
    if found is None:
        found = load(run.path, run.recipe["train"]["device"]).evaluate(split)
    return {name: value for name, value in found.items() if name not in NOT_FIGURES}


def _kept(run: Run, split: str) -> dict[str, Any] | None:
    """Figures that are of these weights, and no mere glance at the split such as some tasks take in training."""
    found, file = run.metrics(split), run.path / "metrics" / f"{split}.json"
    if found is None:
        return None
    if "step" in found:
        return None if task_info(run.recipe["task"]).task.validates_part else found
    return found if file.stat().st_mtime >= (run.path / "model.safetensors").stat().st_mtime else None
