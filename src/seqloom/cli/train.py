"""`seqloom train`: train a recipe, or resume a run."""

import math
import shlex
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._options import DataDir, RecipeWords, RunData, Track, json_option, parse_numbers, run_out_option
from seqloom.cli._output import print_json
from seqloom.core.errors import Interrupted, NotStarted, UsageError
from seqloom.core.words import format_count

if TYPE_CHECKING:
    from seqloom.train.stop import Stop
    from seqloom.training import Training


def train(
    arguments: RecipeWords = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Resume this run.")] = None,
    resume_or_start: Annotated[
        bool,
        typer.Option(
            "--resume-or-start",
            help="Resume the run if it exists, otherwise start it (useful for restarted cluster jobs).",
        ),
    ] = False,
    out: Annotated[Path | None, run_out_option("runs/RECIPE")] = None,
    seeds: Annotated[str | None, typer.Option(help="Train one run per seed, for example 1,2,3.")] = None,
    track: Track = None,
    data: RunData = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, json_option("One JSON object per event, for programs.")] = False,
) -> None:
    """Train a recipe, or resume a run: `seqloom train lm-char-lstm model.cell=gru`, `… --resume RUN`."""
    recipe, overrides = split_arguments(arguments or [])
    if resume is None and recipe is None:
        raise UsageError("Name a recipe (`seqloom list recipes`), a YAML file, or a run to --resume.")
    if resume is not None and (seeds or out):
        raise UsageError("--resume continues one run in its directory; leave out --seeds and --out.")
    if data is not None and resume is None:
        raise UsageError("--data names the data of a run to --resume; for a recipe, set data.train=FILE.")
    if resume_or_start and (seeds or resume is not None):
        raise UsageError("--resume-or-start trains one run; leave out --seeds and --resume.")
    from seqloom.data.files import use_data_folder
    from seqloom.recipes import read_recipe
    from seqloom.runs.trackers import check_trackers
    from seqloom.train.stop import Stop
    from seqloom.training import resume as resume_run

    check_trackers(track or [])
    stop = Stop()
    with use_data_folder(data_dir, data), stop.on_signals():
        if resume is None:
            assert recipe is not None
            begin_runs(recipe, overrides, out, parse_seeds(seeds), stop, as_json, resume_or_start, track or [])
            return
        checked = read_recipe(recipe)[1] if recipe else None
        try:
            training = replace(prepare(lambda: resume_run(resume, overrides, checked), stop), track=track or [])
        except NotStarted as stopped:
            raise Interrupted(str(stopped)) from None  # the run itself is unchanged
        follow(training, stop, as_json)


def split_arguments(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Return the recipe, if any, and the overrides KEY=VALUE. The name of a YAML file may contain =."""
    recipes = [
        word for word in arguments if "=" not in word or (word.endswith((".yaml", ".yml")) and Path(word).is_file())
    ]
    overrides = [word for word in arguments if word not in recipes]
    if len(recipes) > 1:
        raise UsageError(f"Name one recipe; got {', '.join(recipes)}. Overrides have the form train.lr=2e-3.")
    return (recipes[0] if recipes else None), overrides


def parse_seeds(text: str | None) -> list[int]:
    """Return the seeds of `--seeds`, which must be distinct."""
    if text is None:
        return []
    seeds = list(parse_numbers("--seeds", text, "1,2,3"))
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"--seeds must be distinct; got {text!r}.")
    return seeds


def begin_runs(
    recipe: str,
    overrides: list[str],
    out: Path | None,
    seeds: list[int],
    stop: "Stop",
    as_json: bool,
    may_resume: bool = False,
    track: Sequence[str] = (),
) -> None:
    """Train a recipe once, or with each of several seeds."""
    from seqloom.recipes import read_recipe
    from seqloom.training import begin, begin_or_resume

    name, checked = read_recipe(recipe, overrides)
    out = Path("runs") / name if out is None else out
    if not out.name:
        raise UsageError(f"--out must be the name of a new directory; got {str(out)!r}.")
    if not seeds:
        start = begin_or_resume if may_resume else begin
        follow(replace(prepare(lambda: start(checked, out), stop), track=track), stop, as_json)
        return
    paths = [out.with_name(f"{out.name}-seed{seed}") for seed in seeds]
    for path in paths:  # check all paths before training
        if path.exists():
            raise UsageError(f"{path} exists. Resume it with --resume {path}, or choose another name with --out NAME.")
    results: list[dict[str, float]] = []
    for seed, path in zip(seeds, paths, strict=True):
        seeded = replace(checked, seed=seed)
        try:
            training = prepare(lambda: begin(seeded, path), stop)  # noqa: B023 (called within the iteration)
            results.append(follow(replace(training, track=track), stop, as_json, hint=False))
        except Interrupted as stopped:
            has_begun = not isinstance(stopped, NotStarted)
            if not (has_begun or results):
                raise
            left = ",".join(map(str, seeds[len(results) + has_begun :]))
            raise Interrupted(f"{stopped}\nNot started: --seeds {left}" if left else str(stopped)) from None
    print_spread(seeds, results, as_json)


def prepare(make: "Callable[[], Training]", stop: "Stop") -> "Training":
    """Prepare the data, and warn about problems in it.

    Ctrl-C stops the preparation immediately, because there is no progress to save.
    """
    from seqloom.inspect.doctor import check_data
    from seqloom.train.display import show_preparation

    try:
        with stop.interruptible(), show_preparation():
            training = make()
            warnings = training.warnings() + ([] if training.resumed else check_data(training.task))
    except Interrupted:
        message = "Stopped while preparing the data, before the first step. Run the command again."
        raise NotStarted(message, stop.signal) from None
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    return training


def follow(training: "Training", stop: "Stop", as_json: bool, hint: bool = True) -> dict[str, float]:
    """Show the events of a training run and return its best evaluation."""
    from seqloom.cli._output import print_json
    from seqloom.tasks import task_info
    from seqloom.train.display import display_events
    from seqloom.train.events import Finished, Stopped

    run, best, is_stopped = training.run, dict[str, float](), False
    with display_events(print_json if as_json else None) as show:
        for event in training.events(stop):
            show(event)
            if isinstance(event, Finished):
                best = dict(event.best)
            is_stopped = isinstance(event, Stopped)
    path = shlex.quote(str(run.path))
    if is_stopped:
        raise Interrupted(f"To resume: seqloom train --resume {path}")
    if hint and not as_json:
        command = task_info(run.recipe["task"]).command
        use = f"seqloom {command.format(run=path)} · " if command else ""
        split = "test" if "test" in run.data["counts"] else "dev"
        print(f"The run is in {path}. Try: {use}seqloom evaluate {path} --split {split}")
    return best


def print_spread(seeds: list[int], results: list[dict[str, float]], as_json: bool) -> None:
    """Print the mean and the standard deviation over seeds, if there are at least two finite values."""
    summary = {}
    for name in results[0]:
        values = [result[name] for result in results]
        is_measurable = len(values) > 1 and all(map(math.isfinite, values))
        deviation = statistics.stdev(values) if is_measurable else math.nan
        summary[name] = {"mean": statistics.fmean(values), "stdev": deviation, "values": values}
    if as_json:
        print_json({"event": "seeds", "seeds": seeds, "metrics": summary})
        return
    count = format_count(len(seeds), "seed")
    print(f"{count} ({', '.join(map(str, seeds))}), best evaluation on dev (mean ± standard deviation):")
    for name, value in summary.items():
        print(f"  {name:20} {value['mean']:.4f} ± {value['stdev']:.4f}")
