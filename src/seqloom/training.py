"""Trainings: begun from a recipe, or gone on with from a run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from seqloom import accel
from seqloom.config import ABSENT, apply_overrides, differences, parse_overrides, to_mapping
from seqloom.core.errors import Interrupted, UsageError
from seqloom.core.words import shown
from seqloom.predict.loader import load
from seqloom.recipes import read_recipe, recipe_of, whole_recipe
from seqloom.runs.layout import claim
from seqloom.runs.record import record
from seqloom.runs.run import Run
from seqloom.tasks import task_info
from seqloom.train.config import FitConfig
from seqloom.train.estimate import estimate
from seqloom.train.events import Event, Stopped
from seqloom.train.loop import fit
from seqloom.train.state import device_for
from seqloom.train.stop import Stop
from seqloom.train.wrappers import wrap

# What may change when a run goes on: nothing that decides what the steps made so far would have been.
LENGTH = {"train.steps", "train.epochs"}  # except where the schedule depends on them
LAID_OUT = ("cosine", "linear")  # as these do
OR_ELSE = ", inverse-sqrt or plateau"  # what else `fit` has
RESUMABLE = LENGTH | {"train.patience", "train.keep_checkpoints", "train.log_every", "train.device"}


@dataclass(frozen=True)
class Training:
    """A training about to begin or to go on."""

    run: Run
    task: Any
    recipe: Any
    resumed: bool = False

    def events(self, stop: Stop | None = None) -> Iterator[Event]:
        """Train, yielding what happens; everything is written into the run on the way."""
        accel.install()
        method: Any = partial(fit, wrap=wrap) if isinstance(self.recipe.train, FitConfig) else estimate
        store = self.run.store(self.recipe.train.keep_checkpoints)
        events = method(self.task, self.recipe.train, store, seed=self.recipe.seed, stop=stop, resume=self.resumed)
        return record(events, self.run)

    def warnings(self) -> list[str]:
        """What a person should know before it begins, in plain sentences; usually nothing."""
        found: list[str] = self.task.warnings()
        if isinstance(self.recipe.train, FitConfig):
            found += self.recipe.train.warnings(self.recipe.train.total_steps(self.task.steps_per_epoch()))
        return found


def begin(recipe: Any, out: Path) -> Training:
    """Read the data and make the run directory, whose path no other process can take meanwhile."""
    with claim(out):
        if isinstance(recipe.train, FitConfig):
            device_for(recipe.train)  # what this machine cannot do is refused before anything is made
        task = task_info(recipe.task).task.prepare(recipe)
        if isinstance(recipe.train, FitConfig):
            task.steps_per_epoch()  # what cannot be cut into batches is refused before the directory is made
        run = Run.create(out, to_mapping(recipe), task.documents(), task.files(), claimed=True)
    return Training(run, task, recipe)


def resume(path: str | Path, overrides: Sequence[str] = (), recipe: Any = None) -> Training:
    """Go on with a run. `recipe` and `overrides` may only change what leaves the steps made so far as they were."""
    run = Run.open(path)
    if run.average is not None:
        sources = " and ".join(run.average["runs"])
        raise UsageError(
            f"{path} cannot go on: it is the mean of {sources}, and a mean has no optimizer and no place in the data. "
            f"Go on with what it was made from, --resume {run.average['runs'][0]}, and average again."
        )
    wanted = to_mapping(recipe if recipe is not None else recipe_of(run))
    built = whole_recipe(apply_overrides(wanted, parse_overrides(overrides)), f"recipe of {path}")
    changed = refuse_other_recipe(run, built)
    task = task_info(built.task).task.reopen(built, run)
    if changed:
        with run.locked():
            run.update_recipe(to_mapping(built))
    return Training(run, task, built, resumed=True)


def refuse_other_recipe(run: Run, recipe: Any) -> bool:
    """Whether a run would go on with another recipe than it has; refused if that would change the steps made so far."""
    then = to_mapping(recipe_of(run))
    changed = differences(then, to_mapping(recipe))
    schedule = then["train"].get("schedule")
    fixed = LENGTH if schedule in LAID_OUT else set()
    refused = [
        f"{key} is {_value(old)} in the run and {_value(new)} now"
        for key, old, new in changed
        if key not in RESUMABLE - fixed
    ]
    if refused and all(key in RESUMABLE for key, _, _ in changed):
        raise UsageError(
            f"{run.path} cannot be made longer or shorter: its {schedule} schedule was laid out for its length, so "
            f"another would have changed every step so far ({'; '.join(refused)}). Train a new run with --out; one "
            f"that is to grow later needs train.schedule=constant{OR_ELSE if schedule == 'cosine' else ''}."
        )
    if refused:
        raise UsageError(
            f"{run.path} cannot go on with another recipe: {'; '.join(refused)}. "
            "Resume it without these changes, or train a new run with --out."
        )
    return bool(changed)


def _value(value: Any) -> str:
    return "absent" if value is ABSENT else shown(value)


def train_recipe(recipe: str | Path, *overrides: str, out: str | Path | None = None) -> Any:
    """Train a recipe to its end and return the trained model.

    `recipe` is the name of a shipped recipe or the path of a YAML file; each override is
    "key.path=value". The run is written to `out`, or to runs/<name of the recipe>.
    """
    name, checked = read_recipe(recipe, overrides)
    training = begin(checked, Path(out) if out is not None else Path("runs") / name)
    for event in training.events():
        if isinstance(event, Stopped):
            raise Interrupted(f"Stopped at step {event.step}.")
    return load(training.run.path)
