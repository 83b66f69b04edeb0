"""Training runs, which start from a recipe or resume from a run directory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from seqloom import accel
from seqloom.config import ABSENT, apply_overrides, differences, parse_overrides, to_mapping
from seqloom.core import Json
from seqloom.core.errors import Interrupted, SeqloomError, UsageError
from seqloom.core.inputs import check_texts
from seqloom.core.words import format_value
from seqloom.data.corpus import Corpus
from seqloom.predict.card import write_card
from seqloom.predict.loader import load
from seqloom.recipes import read_recipe, recipe_of, whole_recipe
from seqloom.runs.layout import RECIPE_FILE, claim
from seqloom.runs.record import record
from seqloom.runs.run import Run
from seqloom.runs.trackers import check_trackers
from seqloom.tasks import task_info
from seqloom.tasks.base import TaskRecipe
from seqloom.train.config import FitConfig
from seqloom.train.display import display_events, is_live, show_preparation
from seqloom.train.estimate import estimate
from seqloom.train.events import Event, Finished, Stopped
from seqloom.train.loop import fit
from seqloom.train.state import STALE, device_for
from seqloom.train.stop import Stop
from seqloom.train.wrappers import wrap

# A resume may change only keys that do not affect earlier steps.
LENGTH_KEYS = {"train.steps", "train.epochs"}
LENGTH_DEPENDENT_SCHEDULES = ("cosine", "linear")  # after a change, the remaining steps follow the new length
MAX_DIFFERENCES = 4  # maximum number of rejected keys that an error message lists
FILE_KEYS = {"data.train", "data.dev", "data.test", "data.file"}  # these keys may name copies of the same data
RESUMABLE_KEYS = LENGTH_KEYS | {"train.patience", "train.keep_checkpoints", "train.log_every", "train.device"}


@dataclass(frozen=True)
class Training:
    """A training run that is ready to start or to resume."""

    run: Run
    task: Any
    recipe: TaskRecipe
    resumed: bool = False
    changes: Sequence[str] = ()  # notes about the recipe keys that changed when the run was resumed
    track: Sequence[str] = ()  # names of trackers: see `seqloom.runs.trackers`

    def events(self, stop: Stop | None = None) -> Iterator[Event]:
        """Train, write the run and yield events. A new run that fails before its first step is removed."""
        accel.install()
        method: Any = partial(fit, wrap=wrap) if isinstance(self.recipe.train, FitConfig) else estimate
        store = self.run.store(self.recipe.train.keep_checkpoints)
        events = method(self.task, self.recipe.train, store, seed=self.recipe.seed, stop=stop, resume=self.resumed)
        is_finished = False
        try:
            for event in record(events, self.run, self.track):
                is_finished = isinstance(event, Finished)
                yield event
        except Exception:
            if not self.resumed:
                with suppress(SeqloomError, OSError):
                    self.run.discard_unstarted()
            raise
        if is_finished:
            model = load(self.run.path, self.recipe.train.device if isinstance(self.recipe.train, FitConfig) else "cpu")
            model.training_task = self.task
            model.finish_training()
            with self.run.locked():
                write_card(self.run, locked=True)

    def warnings(self) -> list[str]:
        """Return warnings about the recipe."""
        warnings: list[str] = [*self.changes, *self.task.warnings()]
        if isinstance(self.recipe.train, FitConfig):
            warnings += self.recipe.train.warnings(self.recipe.train.total_steps(self.task.steps_per_epoch()))
        return warnings


def begin(recipe: TaskRecipe, out: Path) -> Training:
    """Read the data and create the run directory, with a lock on its path."""
    with claim(out):
        if isinstance(recipe.train, FitConfig):
            device_for(recipe.train)  # fail before data is read if this machine cannot train the recipe
        task = task_info(recipe.task).task.prepare(recipe)
        if isinstance(recipe.train, FitConfig):
            task.steps_per_epoch()  # fail before the directory is created if there are no batches
        run = Run.create(out, to_mapping(recipe), task.documents(), task.files(), claimed=True)
    return Training(run, task, recipe)


def resume(path: str | Path, overrides: Sequence[str] = (), recipe: TaskRecipe | None = None) -> Training:
    """Resume a run. `recipe` and `overrides` may change only keys that do not affect the steps so far."""
    run = Run.open(path)
    with run.locked():  # fail before the data is read if another process trains the run
        pass
    if run.average is not None:
        sources = " and ".join(run.average["runs"])
        raise UsageError(
            f"{path} cannot be resumed: it is the average of {sources}, and an average has no optimizer state. "
            f"Resume a source (--resume {run.average['runs'][0]}) and average again."
        )
    mapping = to_mapping(recipe if recipe is not None else recipe_of(run))
    checked = whole_recipe(apply_overrides(mapping, parse_overrides(overrides)), f"recipe of {path}")
    changes = check_resumable(run, checked)
    task = task_info(checked.task).task.reopen(checked, run)
    for split in ("train", "dev") if isinstance(task.corpus, Corpus) else ():
        task.corpus.split(split)  # raises an error if the data of the split has changed
    if changes.keys() - FILE_KEYS:  # the identity of the run depends on the files of its recipe
        with run.locked():
            run.update_recipe(
                {**to_mapping(checked), **({"data": run.recipe["data"]} if FILE_KEYS & changes.keys() else {})}
            )
    data_notes = task.corpus.changes if isinstance(task.corpus, Corpus) else ()
    notes = [*data_notes, *notes_on_length(run, checked, changes)]
    return Training(run, task, checked, resumed=True, changes=notes)


def notes_on_length(run: Run, recipe: TaskRecipe, changes: Mapping[str, str]) -> Iterator[str]:
    """Yield notes about a changed training length of a run."""
    lengths = [change for key, change in changes.items() if key in LENGTH_KEYS]
    schedule = to_mapping(recipe)["train"].get("schedule")
    last = next((entry for entry in reversed(list(run.log())) if entry["event"] in ("finished", "stopped")), {})
    if lengths and str(last.get("reason")).startswith(STALE) and "train.patience" not in changes:
        yield (
            f"{' and '.join(lengths)}, but the run ended early ({last['reason']}) and will not continue. Also raise "
            "train.patience, or set it to null."
        )
    elif lengths and schedule in LENGTH_DEPENDENT_SCHEDULES:
        yield (
            f"{' and '.join(lengths)}: the remaining steps, if any, follow the {schedule} schedule of the new length, "
            "so the result differs from that of a new run of this length."
        )


def check_resumable(run: Run, recipe: TaskRecipe) -> dict[str, str]:
    """Return a description of each changed recipe key; raise `UsageError` if a change would affect earlier steps."""

    def show(value: object) -> str:
        return "absent" if value is ABSENT else format_value(value)

    changes = {
        key: f"{key} is {show(old)} in the run and {show(new)} now"
        for key, old, new in differences(to_mapping(recipe_of(run)), to_mapping(recipe))
    }
    if rejected := [change for key, change in changes.items() if key not in RESUMABLE_KEYS | FILE_KEYS]:
        if len(rejected) > MAX_DIFFERENCES:
            rejected[MAX_DIFFERENCES:] = [f"and {len(rejected) - MAX_DIFFERENCES} other differences"]
        raise UsageError(
            f"{run.path} cannot be resumed with a different recipe: {'; '.join(rejected)}. "
            "Resume it without these changes, or train a new run with --out."
        )
    return changes


def begin_or_resume(recipe: TaskRecipe, path: Path) -> Training:
    """Resume the run at a path, or begin a new run if the path has none."""
    return resume(path, recipe=recipe) if (path / RECIPE_FILE).exists() else begin(recipe, path)


def train_recipe(
    recipe: str | Path | Mapping[str, Json],
    *overrides: str,
    out: str | Path | None = None,
    on_event: Callable[[Event], object] | None = None,
    resume: bool = False,
    track: Sequence[str] = (),
    progress: bool | None = None,
) -> Any:
    """Train a recipe and return the trained model.

    `recipe` is the name of a shipped recipe, the path of a YAML file, or a dictionary with the same keys; each override
    is "key.path=value". The run is written to `out`, or to runs/<name of the recipe>. `on_event` is called with each
    training event. With `resume`, an existing run continues from its last checkpoint. `track` names trackers: "mlflow",
    "wandb" or "tensorboard". `progress` displays the progress of training, by default in a notebook or a terminal.
    """
    if not isinstance(recipe, str | Path | Mapping):
        raise TypeError(f"recipe must be a name, the path of a YAML file or a dictionary; got {type(recipe).__name__}")
    if on_event is not None and not callable(on_event):
        raise TypeError(f"on_event must be a function of an event; got {type(on_event).__name__}")
    check_trackers(check_texts(track, "track", "names"))
    name, checked = read_recipe(recipe, check_texts(overrides, "overrides"))
    path = Path(out) if out is not None else Path("runs") / name
    progress = is_live() if progress is None else progress
    with show_preparation() if progress else nullcontext():
        training = begin_or_resume(checked, path) if resume else begin(checked, path)
    with display_events() if progress else nullcontext(lambda event: None) as show:
        for event in replace(training, track=track).events():
            show(event)
            if on_event is not None:
                on_event(event)
            if isinstance(event, Stopped):
                raise Interrupted(f"Stopped at step {event.step}.")
    return load(training.run.path)
