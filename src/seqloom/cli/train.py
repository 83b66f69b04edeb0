"""Train a recipe, or go on with a run."""

import math
import shlex
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._options import DataDir, RecipeWords, json_option, parse_numbers, run_out_option
from seqloom.cli._output import print_json
from seqloom.core.errors import Interrupted, NotBegun, SeqloomError, UsageError

if TYPE_CHECKING:
    from seqloom.runs.run import Run
    from seqloom.train.stop import Stop
    from seqloom.training import Training


def train(
    arguments: RecipeWords = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Go on with this run.")] = None,
    out: Annotated[Path | None, run_out_option("runs/RECIPE")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds, one run each: 1,2,3.")] = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, json_option("One JSON object per event, for programs.")] = False,
) -> None:
    """Train a recipe, or go on with a run: `seqloom train lm-char-lstm model.cell=gru`, `… --resume RUN`."""
    recipe, overrides = split_arguments(arguments or [])
    if resume is None and recipe is None:
        raise UsageError("Name a recipe (`seqloom list recipes`), a YAML file, or a run to --resume.")
    if resume is not None and (seeds or out):
        raise UsageError("--resume goes on with one run as it is; leave out --seeds and --out.")
    from seqloom.data.files import use_data_folder
    from seqloom.train.stop import Stop

    stop = Stop()
    with use_data_folder(data_dir), stop.on_signals():
        if resume is not None:
            _resume(resume, recipe, overrides, stop, as_json)
        else:
            assert recipe is not None
            _begin(recipe, overrides, out, parse_seeds(seeds), stop, as_json)


def split_arguments(arguments: list[str]) -> tuple[str | None, list[str]]:
    """What is KEY=VALUE is an override; of anything else there may be one, the recipe."""
    recipes = [word for word in arguments if "=" not in word or _is_recipe_file(word)]
    overrides = [word for word in arguments if word not in recipes]
    if len(recipes) > 1:
        raise UsageError(f"Name one recipe, got {', '.join(recipes)}. Overrides look like train.lr=2e-3.")
    return (recipes[0] if recipes else None), overrides


def _is_recipe_file(word: str) -> bool:
    """A file may well have = in its name."""
    return word.endswith((".yaml", ".yml")) and Path(word).is_file()


def parse_seeds(text: str | None) -> list[int]:
    if text is None:
        return []
    seeds = list(parse_numbers("--seeds", text, "1,2,3"))
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"--seeds must differ from each other; got {text!r}.")
    return seeds


def _begin(recipe: str, overrides: list[str], out: Path | None, seeds: list[int], stop: "Stop", as_json: bool) -> None:
    from seqloom.recipes import read_recipe
    from seqloom.training import begin

    name, checked = read_recipe(recipe, overrides)
    out = Path("runs") / name if out is None else out
    if not out.name:
        raise UsageError(f"--out must name a directory to make; got {str(out)!r}.")
    if not seeds:
        follow(_prepare(lambda: begin(checked, out), stop), stop, as_json)
        return
    places = [out.with_name(f"{out.name}-seed{seed}") for seed in seeds]
    for place in places:  # all of them before any work
        if place.exists():
            raise UsageError(f"{place} exists. Go on with it: --resume {place}; or name all runs anew: --out NAME.")
    results = []
    for seed, place in zip(seeds, places, strict=True):
        seeded = replace(checked, seed=seed)
        try:
            training = _prepare(lambda: begin(seeded, place), stop)  # noqa: B023 (called before the loop goes on)
            results.append(follow(training, stop, as_json, hint=False))
        except Interrupted as stopped:
            begun = not isinstance(stopped, NotBegun)
            if not (begun or results):
                raise
            left = ",".join(map(str, seeds[len(results) + begun :]))
            raise Interrupted(f"{stopped}\nNot begun: --seeds {left}" if left else str(stopped)) from None
    _spread(seeds, results, as_json)


def _resume(path: Path, recipe: str | None, overrides: list[str], stop: "Stop", as_json: bool) -> None:
    from seqloom.recipes import read_recipe
    from seqloom.training import resume

    checked = read_recipe(recipe)[1] if recipe else None
    try:
        training = _prepare(lambda: resume(path, overrides, checked), stop)
    except NotBegun as stopped:
        raise Interrupted(str(stopped)) from None  # the run is there as before
    follow(training, stop, as_json)


def _prepare(make: "Callable[[], Training]", stop: "Stop") -> "Training":
    """Reading data can be broken off at once: there is nothing to save yet."""
    from seqloom.cli.progress import preparation

    try:
        with stop.interruptible(), preparation():
            training = make()
    except Interrupted:
        words = "Stopped while preparing the data; no step was made and nothing is lost."
        raise NotBegun(words, stop.signal) from None
    for warning in training.warnings():
        typer.echo(f"warning: {warning}", err=True)
    return training


def follow(training: "Training", stop: "Stop", as_json: bool, hint: bool = True) -> dict[str, float]:
    """Show a training as it goes; the best evaluation when it is over."""
    from seqloom.cli.progress import display
    from seqloom.train.events import Finished, Stopped

    best: dict[str, float] = {}
    with display(as_json) as show, _nothing_left_behind(training):
        for event in training.events(stop):
            show(event)
            if isinstance(event, Finished):
                best = dict(event.best)
            stopped = isinstance(event, Stopped)
    path = shlex.quote(str(training.run.path))
    if stopped:
        raise Interrupted(f"Go on with: seqloom train --resume {path}")
    if hint and not as_json:
        split = "test" if "test" in training.run.data["counts"] else "dev"
        print(f"The run is in {path}. Try: {_use(training.run)}seqloom evaluate {path} --split {split}")
    return best


def _use(run: "Run") -> str:
    """What one would do first with such a model."""
    from seqloom.tasks import task_info

    command = task_info(run.recipe["task"]).command
    return f"seqloom {command.format(run=shlex.quote(str(run.path)))} · " if command else ""


@contextmanager
def _nothing_left_behind(training: "Training") -> Iterator[None]:
    """A new run that failed before its first step (too large for the memory, say) would only be in the way."""
    try:
        yield
    except Exception:
        if not training.resumed:
            with suppress(SeqloomError, OSError):
                training.run.discard_unstarted()
        raise


def _spread(seeds: list[int], results: list[dict[str, float]], as_json: bool) -> None:
    """The mean over seeds and the standard deviation."""
    summary: dict[str, Any] = {}
    for name in results[0]:
        values = [result[name] for result in results]
        summary[name] = {"mean": statistics.fmean(values), "stdev": _deviation(values), "values": values}
    if as_json:
        print_json({"event": "seeds", "seeds": seeds, "metrics": summary})
        return
    count = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    print(f"{count} ({', '.join(map(str, seeds))}), best evaluation on dev, mean ± standard deviation:")
    for name, value in summary.items():
        print(f"  {name:20} {value['mean']:.4f} ± {value['stdev']:.4f}")


def _deviation(values: list[float]) -> float:
    """Of a sample. It is not a number for one value alone, or where a value is infinite."""
    finite = len(values) > 1 and all(map(math.isfinite, values))
    return statistics.stdev(values) if finite else math.nan
