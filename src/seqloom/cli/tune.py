"""`seqloom tune`: search for the best hyperparameters of a recipe."""

import math
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._options import DataDir, Track, json_option
from seqloom.cli._output import make_table, open_wide_console, print_json
from seqloom.core.errors import Interrupted, ResourceError, UsageError
from seqloom.core.metrics import format_metric
from seqloom.core.words import format_count

if TYPE_CHECKING:
    from seqloom.train.events import Event
    from seqloom.tuning import Search, Trial


def tune(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE [KEY=SPACE]...",
            help="The name of a recipe or a YAML file, then intervals (train.lr=1e-4..1e-2:log), lists of values "
            "(model.hidden=64,128,256) and overrides. [default: train.lr within a factor of ten, and model.dropout]",
        ),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Number of trials, including those of an earlier call.")] = 20,
    out: Annotated[Path | None, typer.Option(help="The folder of the trials. [default: runs/RECIPE-tune]")] = None,
    prune: Annotated[
        bool, typer.Option(help="Stop a trial whose evaluation is worse than the median of earlier trials.")
    ] = True,
    track: Track = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, json_option("One JSON object per trial, then one with the best trial.")] = False,
) -> None:
    """Search for the best hyperparameters: `seqloom tune lm-char-lstm train.lr=1e-4..1e-2:log --trials 30`."""
    from seqloom.cli.train import split_arguments
    from seqloom.data.files import use_data_folder
    from seqloom.runs.trackers import check_trackers
    from seqloom.train.events import Stopped
    from seqloom.train.stop import Stop
    from seqloom.tuning import Search

    recipe, words = split_arguments(arguments or [])
    if recipe is None:
        raise UsageError("Name a recipe (`seqloom list recipes`) or a YAML file.")
    check_trackers(track or [])
    stop = Stop()
    try:
        with use_data_folder(data_dir), stop.on_signals():
            with stop.interruptible():
                search = Search.open(recipe, words, trials=trials, out=out)
            if not as_json:
                print_plan(search, trials)
            with display_trials(search, as_json) as show:
                for trial, event in search.run(stop, prune=prune, track=track or []):
                    show(trial, event)
                    if isinstance(event, Stopped):
                        raise Interrupted
    except Interrupted:
        given = {"--trials": trials, "--out": out, "--data-dir": data_dir}
        options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
        options += [word for name in track or [] for word in ("--track", name)] + ["--no-prune"] * (not prune)
        command = shlex.join(["seqloom", "tune", *(arguments or []), *options])
        raise Interrupted(f"Stopped; all progress is saved. To continue, run the same command: {command}") from None
    conclude(search, as_json)


def print_plan(search: "Search", trials: int) -> None:
    """Print the searched keys and the number of trials."""
    best = "highest" if search.higher_is_better else "lowest"
    print(f"{search.name}: {format_count(search.total, 'trial')}, ranked by {search.metric} on dev ({best} is best)")
    for dimension in search.dimensions:
        print(f"  {dimension.key}={dimension.text}")
    if search.total < trials:
        print(f"All {format_count(search.total, 'combination')} of these values have been tried.")
    if ended := sum(trial.state != "running" for trial in search.trials):
        follow = "no trials remain" if ended >= search.total else "the remaining trials follow"
        print(f"{format_count(ended, 'trial')} ended in an earlier call; {follow}.")


@contextmanager
def display_trials(search: "Search", as_json: bool) -> "Iterator[Callable[[Trial, Event | None], None]]":
    """Yield a function that prints each trial that has ended, and updates a progress bar on a terminal."""

    def print_trial(trial: "Trial", event: "Event | None") -> None:
        if event is None and as_json:
            print_json({"event": "trial", **vars(trial), "run": str(search.path_of(trial))})
        elif event is None:
            print(describe(search, trial), flush=True)

    if as_json or not sys.stdout.isatty():
        yield print_trial
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from seqloom.train import events

    columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(highlight=False), transient=True) as bar:
        task = bar.add_task("starting", total=1)

        def show(trial: "Trial", event: "Event | None") -> None:
            if isinstance(event, events.Progress):
                description = f"trial {trial.number}: step {event.step:,}/{event.total:,}  {trial.describe_settings()}"
                bar.update(task, completed=event.step, total=event.total, description=description)
            elif event is None:
                bar.console.print(describe(search, trial), markup=False)

        yield show


def describe(search: "Search", trial: "Trial") -> str:
    """Describe the result of a trial in one line."""
    value = "" if math.isnan(trial.value) else f": {search.metric} {format_metric(search.metric, trial.value)}"
    state = f"{trial.state} {trial.reason}".strip() if trial.state != "finished" else ""
    result = f"{value}{', ' if value and state else ': ' if state else ''}{state}, {trial.seconds:.0f} s"
    return f"[{trial.number:>{len(str(search.total))}}/{search.total}] {trial.describe_settings()}{result}"


def conclude(search: "Search", as_json: bool) -> None:
    """Plot and print the results."""
    from seqloom.train.config import FitConfig
    from seqloom.tuning import format_setting

    drawn = draw(search)
    best, path = search.best, shlex.quote(str(search.recipe_file))
    if as_json:
        counts = {state: sum(trial.state == state for trial in search.trials) for state in ("finished", "pruned")}
        facts = {"metric": search.metric, "trials": len(search.trials), **counts, "recipe": str(search.recipe_file)}
        print_json({"event": "tune", **facts, "best": {**vars(best), "run": str(search.path_of(best))}})
        return
    from rich.text import Text

    keys = [dimension.key for dimension in search.dimensions]
    table = make_table(["trial", *keys, f"dev {search.metric}", "step", "seconds", "state"], left=0)
    for trial in search.table:
        value = "-" if math.isnan(trial.value) else format_metric(search.metric, trial.value)
        cells = [*(format_setting(trial.settings[key]) for key in keys), value]
        cells += ["-" if trial.step is None else f"{trial.step:,}", f"{trial.seconds:,.1f}", trial.state]
        table.add_row(str(trial.number), *map(Text, cells))
    print()
    open_wide_console().print(table)
    print(f"\nThe best is trial {best.number}. Its recipe is {path}, and the runs and trials.csv are in {search.out}.")
    print(drawn)
    if isinstance(search.recipe.train, FitConfig):  # other training, such as counting, does not depend on the seed
        print(f"The dev result of a selected trial is optimistic. Confirm it: seqloom train {path} --seeds 2,3,4")


def draw(search: "Search") -> str:
    """Write the plot; return a sentence with its path, or the reason why there is no plot."""
    from seqloom.core.files import write_atomic
    from seqloom.inspect.plots.figures import to_bytes
    from seqloom.inspect.plots.trials import TrialColumn, draw_trials
    from seqloom.tuning import format_setting

    columns = []
    for dimension in search.dimensions:
        values = [trial.settings[dimension.key] for trial in search.trials]
        choices = list(map(format_setting, dimension.choices))
        shown = list(map(format_setting, values)) if choices else values
        columns.append(TrialColumn(dimension.key, shown, choices, dimension.is_log))
    results, finished = [t.value for t in search.trials], [t.state == "finished" for t in search.trials]
    title = f"{search.name}: {format_count(len(results), 'trial')}"
    try:
        figure = draw_trials(
            results, finished, columns, title=title, metric=search.metric, higher_is_better=search.higher_is_better
        )
        write_atomic(search.out / "trials.png", to_bytes(figure))
    except ResourceError as error:
        return str(error)
    return f"The plot is {search.out / 'trials.png'}."
