"""Training runs: started from a recipe, or resumed from a run directory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from seqloom import accel
from seqloom.config import ABSENT, apply_overrides, differences, parse_overrides, to_mapping
from seqloom.core.errors import Interrupted, UsageError
from seqloom.core.words import format_value
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

# Resuming may change only keys that do not affect earlier steps.
LENGTH_KEYS = {"train.steps", "train.epochs"}  # may change unless the schedule depends on the length
LENGTH_DEPENDENT_SCHEDULES = ("cosine", "linear")
RESUMABLE_KEYS = LENGTH_KEYS | {"train.patience", "train.keep_checkpoints", "train.log_every", "train.device"}


@dataclass(frozen=True)
class Training:
    """A training run that is ready to start or to resume."""

    run: Run
    task: Any
    recipe: Any
    resumed: bool = False

    def events(self, stop: Stop | None = None) -> Iterator[Event]:
        """Train, write the run and yield events."""
        accel.install()
        method: Any = partial(fit, wrap=wrap) if isinstance(self.recipe.train, FitConfig) else estimate
        store = self.run.store(self.recipe.train.keep_checkpoints)
        events = method(self.task, self.recipe.train, store, seed=self.recipe.seed, stop=stop, resume=self.resumed)
        return record(events, self.run)

    def warnings(self) -> list[str]:
        """Return warnings about the recipe; usually none."""
        warnings: list[str] = self.task.warnings()
        if isinstance(self.recipe.train, FitConfig):
            warnings += self.recipe.train.warnings(self.recipe.train.total_steps(self.task.steps_per_epoch()))
        return warnings


def begin(recipe: Any, out: Path) -> Training:
    """Read the data and create the run directory, with a lock on its path."""
    with claim(out):
        if isinstance(recipe.train, FitConfig):
            device_for(recipe.train)  # fail early if this machine cannot train the recipe
        task = task_info(recipe.task).task.prepare(recipe)
        if isinstance(recipe.train, FitConfig):
            task.steps_per_epoch()  # fail before the directory is created if there are no batches
        run = Run.create(out, to_mapping(recipe), task.documents(), task.files(), claimed=True)
    return Training(run, task, recipe)


def resume(path: str | Path, overrides: Sequence[str] = (), recipe: Any = None) -> Training:
    """Resume a run. `recipe` and `overrides` may change only keys that do not affect the steps so far."""
    run = Run.open(path)
    if run.average is not None:
        sources = " and ".join(run.average["runs"])
        raise UsageError(
            f"{path} cannot be resumed: it is the average of {sources}, which has no optimizer state. "
            f"Resume a source (--resume {run.average['runs'][0]}) and average again."
        )
    mapping = to_mapping(recipe if recipe is not None else recipe_of(run))
    checked = whole_recipe(apply_overrides(mapping, parse_overrides(overrides)), f"recipe of {path}")
    has_changed = check_resumable(run, checked)
    task = task_info(checked.task).task.reopen(checked, run)
    if has_changed:
        with run.locked():
            run.update_recipe(to_mapping(checked))
    return Training(run, task, checked, resumed=True)


def check_resumable(run: Run, recipe: Any) -> bool:
    """Return whether a recipe differs from the recipe of a run; raise `UsageError` if it would change earlier steps."""
    original = to_mapping(recipe_of(run))
    changes = differences(original, to_mapping(recipe))
    schedule = original["train"].get("schedule")
    fixed = LENGTH_KEYS if schedule in LENGTH_DEPENDENT_SCHEDULES else set()

    def show(value: Any) -> str:
        return "absent" if value is ABSENT else format_value(value)

    rejected = [
        f"{key} is {show(old)} in the run and {show(new)} now"
        for key, old, new in changes
        if key not in RESUMABLE_KEYS - fixed
    ]
    if rejected and all(key in RESUMABLE_KEYS for key, _, _ in changes):
        others = ", inverse-sqrt or plateau" if schedule == "cosine" else ""
        raise UsageError(
            f"The length of {run.path} cannot change: its {schedule} schedule depends on the number of steps, so "
            f"every step so far would have been different ({'; '.join(rejected)}). Train a new run with --out; to "
            f"extend it later, use train.schedule=constant{others}."
        )
    if rejected:
        raise UsageError(
            f"{run.path} cannot be resumed with a different recipe: {'; '.join(rejected)}. "
            "Resume it without these changes, or train a new run with --out."
        )
    return bool(changes)


def begin_or_resume(recipe: Any, path: Path) -> Training:
    """Resume the run at a path, or begin one if it does not exist."""
    return resume(path, recipe=recipe) if path.exists() else begin(recipe, path)


def train_recipe(
    recipe: str | Path | Mapping[str, Any],
    *overrides: str,
    out: str | Path | None = None,
    on_event: Callable[[Event], object] | None = None,
    resume: bool = False,
) -> Any:
    """Train a recipe and return the trained model.

    `recipe` is the name of a shipped recipe, the path of a YAML file, or a dictionary with the same
    keys; each override is "key.path=value". The run is written to `out`, or to runs/<name of the
    recipe>. `on_event` is called with each training event. With `resume`, an existing run
    continues from its last checkpoint.
    """
    name, checked = read_recipe(recipe, overrides)
    path = Path(out) if out is not None else Path("runs") / name
    training = begin_or_resume(checked, path) if resume else begin(checked, path)
    for event in training.events():
        if on_event is not None:
            on_event(event)
        if isinstance(event, Stopped):
            raise Interrupted(f"Stopped at step {event.step}.")
    return load(training.run.path)
