"""Hyperparameter search: Optuna proposes values for the hyperparameters of a recipe, and each trial is an ordinary run.

    search = tune_recipe("classify-sst2-bow", "train.lr=1e-3..1e-1:log", "model.dropout=0..0.6", trials=20)
    print(search.best.settings, search.best.value, search.recipe_file)

The folder of a search contains the runs `trial-001`, `trial-002`, … and `tune.json`, which lists the values and results
of all trials. A proposal depends only on the seed, the number of the trial and the results of earlier trials. A search
that was killed therefore resumes with the same proposals as an uninterrupted search. Only dev is evaluated.
"""

import itertools
import json
import math
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.config import differences, dump_yaml, parse_overrides, to_mapping
from seqloom.config.yaml_text import parse_yaml, plain_scalar
from seqloom.core import Json
from seqloom.core.errors import CheckpointError, DivergedError, Interrupted, ResourceError, UsageError, is_out_of_memory
from seqloom.core.files import disk_errors, hold_lock, make_directory, parse_json, read_file, to_json, write_atomic
from seqloom.core.metrics import format_metric
from seqloom.core.words import format_value
from seqloom.recipes import read_recipe
from seqloom.runs.trackers import check_trackers
from seqloom.tasks import task_info
from seqloom.tasks.base import LOWER_IS_BETTER, TaskRecipe
from seqloom.train.config import FitConfig
from seqloom.train.events import Evaluated, Event, Finished, Started, Stopped
from seqloom.train.stop import Stop
from seqloom.training import begin_or_resume

if TYPE_CHECKING:
    import optuna

STARTUP_TRIALS = 5  # number of trials with random values, and of finished trials before a trial can be pruned
DIGITS = 4  # significant digits of proposed numbers
MAX_COMBINATIONS = 10_000  # a search of a space with more combinations may repeat a combination
NO_SIGNAL = 0  # the signal number of the pruner's request to stop
FIXED_SECTIONS = {
    "seed": "all trials have the seed of the recipe; train the best recipe with several --seeds",
    "task": "metrics of different tasks are not comparable",
    "data": "metrics on different data are not comparable",
}


# --- the search space -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dimension:
    """A key to search: an interval of numbers, or a list of values."""

    key: str
    text: str  # the text that the user gave, such as 1e-4..1e-2:log
    low: float = math.nan  # start of an interval; `int` for whole numbers
    high: float = math.nan
    is_log: bool = False
    choices: tuple[Json, ...] = ()

    @property
    def ends(self) -> tuple[Json, ...]:
        """The values to validate: all choices, or the ends of the interval."""
        return self.choices or (self.low, self.high)

    @property
    def values(self) -> Sequence[Json] | None:
        """All values, or None for an interval of real numbers."""
        if self.choices:
            return self.choices
        return range(self.low, self.high + 1) if isinstance(self.low, int) and isinstance(self.high, int) else None

    def contains(self, value: Json) -> bool:
        """Return whether a value is in the interval or list."""
        if self.choices:
            return value in self.choices
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high

    def distribution(self) -> Any:
        """Return the distribution of Optuna, which stores choices as JSON."""
        from optuna import distributions

        if self.choices:
            return distributions.CategoricalDistribution([json.dumps(choice) for choice in self.choices])
        if isinstance(self.low, int) and isinstance(self.high, int):
            return distributions.IntDistribution(self.low, self.high, log=self.is_log)
        return distributions.FloatDistribution(self.low, self.high, log=self.is_log)

    def round(self, proposal: Json) -> Json:
        """Convert a proposal of Optuna to a value with few digits."""
        if self.choices:
            return json.loads(proposal)
        return proposal if isinstance(proposal, int) else min(max(float(f"{proposal:.{DIGITS}g}"), self.low), self.high)


def parse_dimension(word: str) -> Dimension | None:
    """Parse KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=A,B,C; return None for an override with a single value."""
    key, _, text = (part.strip() for part in word.partition("="))
    interval = re.fullmatch(r"([^/\\]*?)\.\.([^/\\]*?)(:log)?", text)
    if interval is None:
        is_yaml = text[:1] in ("[", "{", '"', "'")
        pieces = parse_yaml(f"[{text}]", f"'{word}'") if is_yaml else text.split(",")
        if len(pieces) < 2:
            return None
        if not is_yaml and not all(piece.strip() for piece in pieces):
            raise UsageError(f"{key} must be values separated by commas, such as 64,128,256; got {text}.")
        choices = tuple(pieces if is_yaml else (plain_scalar(piece.strip()) for piece in pieces))
        if len({json.dumps(choice) for choice in choices}) < len(choices):
            raise UsageError(f"The values of {key} must be distinct; got {text}.")
        return Dimension(key, text, choices=choices)
    low, high = plain_scalar(interval[1]), plain_scalar(interval[2])
    is_number = all(type(end) in (int, float) and math.isfinite(end) for end in (low, high))
    if not is_number or "..." in text:
        raise UsageError(f"{key} must be an interval of two numbers, such as 1e-4..1e-2:log or 0..0.5; got {text}.")
    if low >= high:
        raise UsageError(f"The interval of {key} must begin below its end; got {text}.")
    if interval[3] and low <= 0:
        raise UsageError(f"A logarithmic interval must begin above 0, for example at 1e-5; got {key}={text}.")
    return Dimension(key, text, low, high, bool(interval[3]))


def default_space(recipe: TaskRecipe) -> list[str]:
    """Return the default search space: the learning rate within a factor of ten, and the dropout."""
    if not isinstance(recipe.train, FitConfig):
        kind = recipe.model.kind
        raise UsageError(f"Name the keys to search, such as model.order=3..6: model.kind {kind} has no default keys.")
    words = [f"train.lr={recipe.train.lr / 10:g}..{recipe.train.lr * 10:g}:log"]
    return words + ["model.dropout=0..0.5"] * isinstance(to_mapping(recipe.model).get("dropout"), float)


def to_override(key: str, value: Json) -> str:
    return f"{key}={json.dumps(value)}"


# --- the search -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A trial: its values and, if it has ended, its result."""

    number: int  # counted from 1
    settings: dict[str, Json]  # values of the searched keys
    state: str = "running"  # running, finished, pruned, diverged, invalid (the recipe) or failed (out of memory)
    value: float = math.nan  # the best value of the metric on dev
    step: int | None = None  # the step at which the best value was measured
    evaluations: dict[int, float] = field(default_factory=dict)  # step → value of the metric
    seconds: float = 0.0
    reason: str = ""  # why a trial was invalid or failed

    def describe_settings(self) -> str:
        """Return the values in the format of overrides: `train.lr=0.01 model.cell=gru`."""
        return " ".join(f"{key}={format_setting(value)}" for key, value in self.settings.items())


@dataclass
class Search:
    """A hyperparameter search; `run` runs the missing trials."""

    name: str
    source: str | Path | Mapping[str, Json]  # the recipe
    overrides: list[str]  # overrides that apply to all trials
    dimensions: list[Dimension]
    recipe: TaskRecipe  # with the overrides
    metric: str
    higher_is_better: bool
    out: Path
    total: int  # number of trials
    trials: list[Trial] = field(default_factory=list)

    @classmethod
    def open(
        cls,
        source: str | Path | Mapping[str, Json],
        words: Sequence[str] = (),
        *,
        trials: int = 20,
        out: str | Path | None = None,
    ) -> "Search":
        """Validate a search and read the trials of an earlier call with the same folder. Nothing is written."""
        if trials < 1:
            raise UsageError(f"trials must be at least 1; got {trials}.")
        try:
            import optuna  # noqa: F401 (fail before any work if it is missing)
        except ModuleNotFoundError as error:
            raise ResourceError("A search needs Optuna: pip install 'seqloom[tune]'.") from error
        parsed = parse_overrides(words)  # raises UsageError for words without a key
        for number, (path, _) in enumerate(parsed):
            if path in [other for other, _ in parsed[:number]]:
                raise UsageError(f"{'.'.join(path)} is given twice. Give its interval, its values or a single value.")
        overrides = [word for word in words if parse_dimension(word) is None]
        dimensions = [dimension for word in words if (dimension := parse_dimension(word)) is not None]
        name, recipe = read_recipe(source, overrides)
        if not dimensions:
            dimensions = [dimension for word in default_space(recipe) if (dimension := parse_dimension(word))]
        dimensions = [check_dimension(dimension, source, overrides) for dimension in dimensions]
        kind = task_info(recipe.task).task
        metric = kind.metric_of(recipe) or kind.prepare(recipe).monitor.metric
        sizes = [len(values) for dimension in dimensions if (values := dimension.values) is not None]
        total = min(trials, math.prod(sizes)) if len(sizes) == len(dimensions) else trials
        folder = Path("runs") / f"{name}-tune" if out is None else Path(out)
        is_higher = metric not in LOWER_IS_BETTER
        search = cls(name, source, overrides, dimensions, recipe, metric, is_higher, folder, total)
        search.read()
        return search

    @property
    def file(self) -> Path:
        return self.out / "tune.json"

    @property
    def recipe_file(self) -> Path:
        """The recipe of the best trial."""
        return self.out / "best.yaml"

    @property
    def finished(self) -> list[Trial]:
        """The finished trials, the best first."""
        sign = -1 if self.higher_is_better else 1
        return sorted((t for t in self.trials if t.state == "finished"), key=lambda trial: sign * trial.value)

    @property
    def best(self) -> Trial:
        """The best finished trial."""
        if not self.finished:
            raise UsageError(f"No trial of {self.out} has finished. Run more trials, or search smaller intervals.")
        return self.finished[0]

    @property
    def table(self) -> list[Trial]:
        """All trials: finished trials, best first, then all other trials."""
        return [*self.finished, *(trial for trial in self.trials if trial.state != "finished")]

    def path_of(self, trial: Trial) -> Path:
        """Return the run directory of a trial."""
        return self.out / f"trial-{trial.number:03}"

    def recipe_of(self, trial: Trial) -> TaskRecipe:
        """Return the recipe of a trial."""
        words = [to_override(key, value) for key, value in trial.settings.items()]
        return read_recipe(self.source, [*self.overrides, *words])[1]

    # --- storage ------------------------------------------------------------------------------------------------------

    def identity(self) -> dict[str, Json]:
        """Return the part of tune.json that a later call must not change."""
        space = {dimension.key: dimension.text for dimension in self.dimensions}
        return {"recipe": to_mapping(self.recipe), "space": space, "metric": self.metric}

    def read(self) -> None:
        """Read the trials of an earlier call; raise UsageError if that call had another recipe or search space."""
        if (self.out / "recipe.yaml").exists():
            raise UsageError(f"{self.out} is a run, not a search. Choose another folder with --out.")
        if not self.file.exists():
            return
        try:
            stored = parse_json(read_file(self.file))
            trials = [Trial(**entry) for entry in stored["trials"]]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self.file} is damaged. Remove {self.out} and search again.") from error
        changed = [key for key, _, _ in differences({**stored, "trials": None}, {**self.identity(), "trials": None})]
        if changed:
            raise UsageError(
                f"{self.out} contains a search that differs in {', '.join(changed[:4])}{', …' * (len(changed) > 4)}. "
                "Continue it with the same recipe and space (--trials may grow), or choose another folder with --out."
            )
        for trial in trials:
            evaluations = {int(step): to_float(value) for step, value in trial.evaluations.items()}
            self.trials.append(replace(trial, value=to_float(trial.value), evaluations=evaluations))

    def write(self) -> None:
        """Write tune.json, a table of all trials, and the recipe of the best trial."""
        stored = {**self.identity(), "trials": [asdict(trial) for trial in self.trials]}
        write_atomic(self.file, to_json(to_plain(stored)))
        keys = [dimension.key for dimension in self.dimensions]
        rows = [["trial", *keys, f"dev_{self.metric}", "step", "state", "seconds"]]
        for trial in self.table:
            result = ["" if math.isnan(trial.value) else repr(trial.value), str(trial.step or ""), trial.state]
            settings = [format_setting(trial.settings[key]) for key in keys]
            rows.append([str(trial.number), *map(quote_cell, settings), *result, f"{trial.seconds:.1f}"])
        write_atomic(self.out / "trials.csv", "".join(",".join(row) + "\n" for row in rows))
        if self.finished:
            value = format_metric(self.metric, self.best.value)
            heading = f"# The best of {len(self.trials)} trials of {self.name}: {self.metric} {value} on dev.\n"
            write_atomic(self.recipe_file, heading + dump_yaml(to_mapping(self.recipe_of(self.best))))

    # --- trials -------------------------------------------------------------------------------------------------------

    def run(
        self, stop: Stop | None = None, *, prune: bool = True, track: Sequence[str] = ()
    ) -> Iterator[tuple[Trial, Event | None]]:
        """Run the missing trials; yield each trial with its training events, and with None when it has ended.

        If `stop` is requested, the last event is `Stopped`.
        """
        stop = stop or Stop()
        with disk_errors(self.out):
            self.out.parent.mkdir(parents=True, exist_ok=True)
        make_directory(self.out)
        with hold_lock(self.out / ".lock", f"Another process runs the search in {self.out}. Wait for it, or stop it."):
            self.trials = []
            self.read()  # adds trials that have ended since `open`
            for number in range(1, self.total + 1):
                if number > len(self.trials):
                    self.trials.append(Trial(number, self.propose(number)))
                    self.write()
                if self.trials[number - 1].state != "running":
                    continue
                yield from self.run_trial(self.trials[number - 1], stop, prune, track)
                if stop.requested:
                    return
                self.write()
                yield self.trials[number - 1], None

    def run_trial(
        self, trial: Trial, stop: Stop, prune: bool = True, track: Sequence[str] = ()
    ) -> Iterator[tuple[Trial, Event]]:
        """Train or resume the run of a trial, and store the result in `trials` unless `stop` was requested."""
        start, handle = time.perf_counter(), self.start_trial(trial.number, trial.settings)

        def report(step: int, value: float) -> None:
            if step not in trial.evaluations:
                handle.report(value, len(trial.evaluations))  # trials may evaluate at different steps
                trial.evaluations[step] = value

        def end(state: str, reason: str = "", value: float = math.nan, step: int | None = None) -> None:
            seconds = time.perf_counter() - start
            ended = replace(trial, state=state, reason=reason, value=value, step=step, seconds=seconds)
            self.trials[trial.number - 1] = ended

        try:
            recipe = self.recipe_of(trial)
        except UsageError as error:
            return end("invalid", " ".join(str(error).split()))
        last_step = 0
        try:
            with stop.interruptible():
                training = begin_or_resume(recipe, self.path_of(trial))
            for event in replace(training, track=track).events(stop):
                if isinstance(event, Started):
                    last_step = event.total
                    for entry in training.run.log():
                        if entry["event"] == "evaluated" and entry["step"] <= event.step:
                            report(entry["step"], to_float(entry["metrics"][self.metric]))
                if isinstance(event, Evaluated):
                    report(event.step, event.metrics[self.metric])
                    if prune and event.step < last_step and handle.should_prune() and not stop.requested:
                        stop.request(NO_SIGNAL)
                if isinstance(event, Stopped) and stop.withdraw(NO_SIGNAL):
                    choose = max if self.higher_is_better else min
                    finite = {step: value for step, value in trial.evaluations.items() if math.isfinite(value)}
                    step = choose(finite, key=finite.__getitem__) if finite else None
                    return end("pruned", f"at step {event.step}", finite.get(step or 0, math.nan), step)
                if isinstance(event, Finished):
                    best = event.best[self.metric]
                    end("finished" if math.isfinite(best) else "diverged", "", best, event.best_step)
                yield trial, event
        except DivergedError as error:
            end("diverged", str(error))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            end("failed", "out of memory")
        stop.withdraw(NO_SIGNAL)  # the trial ended before the pruner's request was read

    def propose(self, number: int) -> dict[str, Json]:
        """Return the values of the next trial; trial 1 has the values of the recipe, if they are in the space."""
        settings: dict[str, Json] = {}
        if number == 1:
            mapping = to_mapping(self.recipe)
            for dimension in self.dimensions:
                value = reduce(lambda part, key: (part or {}).get(key), dimension.key.split("."), mapping)
                if dimension.contains(value):
                    settings[dimension.key] = value
        proposal = self.start_trial(number, settings).params
        settings = {dimension.key: dimension.round(proposal[dimension.key]) for dimension in self.dimensions}
        tried = [trial.settings for trial in self.trials]
        values = [values for dimension in self.dimensions if (values := dimension.values) is not None]
        if settings in tried and len(values) == len(self.dimensions) and math.prod(map(len, values)) < MAX_COMBINATIONS:
            combinations = [dict(zip(settings, combination, strict=True)) for combination in itertools.product(*values)]
            unused = [combination for combination in combinations if combination not in tried]
            return random.Random(number).choice(unused)
        return settings

    def start_trial(self, number: int, settings: Mapping[str, Json]) -> "optuna.Trial":
        """Return Optuna's trial `number`, given all earlier trials.

        `settings` contains the values of the trial. Optuna proposes values for other keys.
        """
        import optuna
        from optuna.trial import TrialState, create_trial

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        distributions = {dimension.key: dimension.distribution() for dimension in self.dimensions}
        listed = {dimension.key for dimension in self.dimensions if dimension.choices}

        def to_params(values: Mapping[str, Json]) -> dict[str, Json]:
            return {key: json.dumps(value) if key in listed else value for key, value in values.items()}

        seed = int(np.random.SeedSequence((self.recipe.seed, number)).generate_state(1)[0])
        study = optuna.create_study(
            direction="maximize" if self.higher_is_better else "minimize",
            sampler=optuna.samplers.TPESampler(n_startup_trials=STARTUP_TRIALS, seed=seed),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=1),
        )
        for trial in self.trials[: number - 1]:
            is_finished = trial.state == "finished"
            study.add_trial(
                create_trial(
                    state=TrialState.COMPLETE if is_finished else TrialState.PRUNED,  # the sampler avoids its settings
                    value=trial.value if is_finished else None,
                    params=to_params(trial.settings),
                    distributions=distributions,
                    intermediate_values=dict(enumerate(trial.evaluations.values())),
                )
            )
        if settings:
            study.enqueue_trial(to_params(settings))
        return study.ask(distributions)


def check_dimension(
    dimension: Dimension, source: str | Path | Mapping[str, Json], overrides: Sequence[str]
) -> Dimension:
    """Return a dimension whose values the recipe allows; its numbers are real unless the key takes whole numbers."""
    key = dimension.key
    if (section := key.partition(".")[0]) in FIXED_SECTIONS:
        raise UsageError(f"{key} cannot be searched: {FIXED_SECTIONS[section]}.")
    for value in dimension.ends:
        read_recipe(source, [*overrides, to_override(key, value)])
    if not isinstance(dimension.values, range):
        return dimension
    try:
        read_recipe(source, [*overrides, to_override(key, dimension.low + 0.5)])
    except UsageError:
        return dimension
    return replace(dimension, low=float(dimension.low), high=float(dimension.high))


def to_float(value: float | None) -> float:
    return math.nan if value is None else float(value)


def to_plain(value: Json) -> Json:
    """Return a value as JSON restores it: with text keys, lists, and null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def format_setting(value: Json) -> str:
    """Format a value as in a recipe, with text unquoted."""
    return value if isinstance(value, str) else format_value(value)


def quote_cell(text: str) -> str:
    """Return a cell of a CSV file, in quotes if necessary."""
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n') else text


def tune_recipe(
    recipe: str | Path | Mapping[str, Json],
    *words: str,
    trials: int = 20,
    out: str | Path | None = None,
    prune: bool = True,
    track: Sequence[str] = (),
    on_event: Callable[[Trial, Event | None], object] | None = None,
) -> Search:
    """Search for the best hyperparameters of a recipe and return the search with all its trials.

    `recipe` is the name of a shipped recipe, the path of a YAML file, or a dictionary. Each word is an interval
    ("train.lr=1e-4..1e-2:log"), a list of values ("model.hidden=64,128") or an override ("train.epochs=2"). The
    runs are written to `out`, or to runs/<name of the recipe>-tune; if this folder contains the same search, only the
    missing trials run. With `prune`, a trial stops when an evaluation is worse than the median of the
    finished trials. `track` names trackers of the runs. `on_event` is called with each trial and training event, and
    with None at the end of the trial.
    """
    check_trackers(track)
    search = Search.open(recipe, words, trials=trials, out=out)
    for trial, event in search.run(prune=prune, track=track):
        if on_event is not None:
            on_event(trial, event)
        if isinstance(event, Stopped):
            raise Interrupted(f"Stopped in trial {trial.number}.")
    return search
