"""`seqloom ladder`: train and compare models of equal size and budget."""

import math
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._options import DataDir, json_option
from seqloom.cli._output import Json, check_plot_path, make_table, open_wide_console, print_json, to_plain
from seqloom.core.errors import Interrupted, ResourceError, UsageError
from seqloom.core.metrics import PERCENT_METRICS

if TYPE_CHECKING:
    from seqloom.ladder import Ladder, LadderResult, LadderRun
    from seqloom.ladder.runs import RunEvent

Show = Callable[["LadderRun", "RunEvent"], None]


def ladder(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="LADDER [KEY=VALUE]...", help="The name of a ladder or a YAML file, then overrides."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the runs. [default: runs/LADDER]")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds of each variant, for example 1,2,3.")] = None,
    parameters: Annotated[int | None, typer.Option(min=1, help="Number of parameters of every variant.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of runs to train in parallel processes.")] = 1,
    test: Annotated[bool, typer.Option("--test", help="Also evaluate on test.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write the plot to this .png or .svg file.")] = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, json_option("One JSON object per run, then one with all results.")] = False,
) -> None:
    """Train and compare variants of a recipe at equal size and budget: `seqloom ladder ladder-lm --seeds 1,2`."""
    from seqloom.cli.train import parse_seeds, split_arguments

    name, overrides = split_arguments(arguments or [])
    if name is None:
        raise UsageError("Name a ladder (`seqloom list ladders`) or a YAML file.")
    chosen = parse_seeds(seeds) if seeds is not None else None
    from seqloom.data.files import use_data_folder
    from seqloom.ladder import read_ladder, solve, train_ladder
    from seqloom.train.events import Stopped
    from seqloom.train.stop import Stop

    check_plot_path(plot)
    read = read_ladder(name, overrides, seeds=chosen, parameters=parameters)
    out = Path("runs") / read.name if out is None else out
    stop = Stop()
    try:
        with use_data_folder(data_dir), stop.on_signals():
            with stop.interruptible():
                solved = solve(read)
            if not as_json:
                print_plan(solved)
            with follow_runs(solved.metric, as_json) as show:
                splits = ("dev", "test") if test else ("dev",)
                for run, event in train_ladder(solved, out, stop, jobs=jobs, splits=splits):
                    show(run, event)
                    if isinstance(event, Stopped):
                        raise Interrupted
            with stop.interruptible():
                conclude(solved, out, plot, test, as_json)
    except Interrupted:
        given = {"--out": out, "--seeds": seeds, "--parameters": parameters, "--jobs": None if jobs == 1 else jobs}
        given |= {"--test": test or None, "--plot": plot, "--data-dir": data_dir}
        words = [[name] if value is True else [name, str(value)] for name, value in given.items() if value is not None]
        command = shlex.join(["seqloom", "ladder", *(arguments or []), *(word for pair in words for word in pair)])
        raise Interrupted(
            "Stopped; all progress is saved, and finished runs are not trained again.\n"
            f"To resume, run the same command: {command}"
        ) from None


def print_plan(solved: "Ladder") -> None:
    """Print the size and the budget of each variant."""
    seeds = ", ".join(map(str, solved.config.seeds))
    print(f"{solved.name}: {len(solved.variants)} variants, seeds {seeds}, ranked by {solved.metric} on dev")
    widest = max(len(variant.name) for variant in solved.variants)
    for variant in solved.variants:
        chosen = f"  {variant.size_key}={variant.size}" if variant.size is not None else ""
        # The number is approximate because the last batch of an epoch may be shorter.
        tokens = f"  about {variant.tokens:,} tokens" if variant.tokens else ""
        print(f"  {variant.name:{widest}}{variant.parameters or 0:>12,} parameters{chosen}{tokens}")


# --- during training ------------------------------------------------------------------------------------------------


@contextmanager
def follow_runs(metric: str, as_json: bool) -> Iterator[Show]:
    """Yield a function that displays events: JSON or a line for each finished run, and a progress bar on a terminal."""
    from seqloom.train.events import Finished, Progress

    if as_json or not sys.stdout.isatty():
        yield print_event if as_json else lambda run, event: write_line(run, event, metric, print)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=Console(highlight=False), transient=True) as bar:
        task = bar.add_task("starting", total=1)
        steps: dict[int, tuple[str, int, int]] = {}  # name, current step and number of steps of each run in progress

        def show(run: "LadderRun", event: "RunEvent") -> None:
            if isinstance(event, Progress):
                steps[run.number] = f"{run.variant.name} seed {run.seed}", event.step, event.total
                done, total, description = describe_steps(steps, run.total)
                bar.update(task, completed=done, total=total, description=description)
            elif event is None or isinstance(event, Finished | str):
                steps.pop(run.number, None)
                write_line(run, event, metric, lambda line: bar.console.print(line, markup=False))

        yield show


def describe_steps(steps: dict[int, tuple[str, int, int]], runs: int) -> tuple[int, int, str]:
    """Return the finished steps, all steps and the text of the progress bar for all runs that train in parallel."""
    first, *more = steps.values()
    done, total = sum(run[1] for run in steps.values()), sum(run[2] for run in steps.values())
    which = f"[{min(steps)}/{runs}] {first[0]}" if not more else f"{len(steps)} of {runs} runs: {first[0]} …"
    return done, total, f"{done:,}/{total:,}  {which}"


def write_line(run: "LadderRun", event: "RunEvent", metric: str, write: Callable[[str], None]) -> None:
    """Write one line for a finished run."""
    from seqloom.train.events import Finished

    head = f"[{run.number:>{len(str(run.total))}}/{run.total}] {run.variant.name} seed {run.seed}: "
    if event is None:
        write(f"{head}finished before")
    elif isinstance(event, str):
        write(f"{head}{event}")
    elif isinstance(event, Finished):
        value = format_result(event.best.get(metric, math.nan), metric)
        write(f"{head}{metric} {value}, {event.tokens_per_second:,.0f} tokens/s, {event.seconds:,.0f} s")


def print_event(run: "LadderRun", event: "RunEvent") -> None:
    """Print a finished run as JSON."""
    from seqloom.train.events import Finished, event_to_json

    facts = {"variant": run.variant.name, "seed": run.seed, "run": str(run.path)}
    if event is None:
        print_json({"event": "finished before", **facts})
    elif isinstance(event, str):
        print_json({"event": "diverged", **facts, "reason": event})
    elif isinstance(event, Finished):
        print_json({**event_to_json(event), **facts})


# --- results --------------------------------------------------------------------------------------------------------


def conclude(solved: "Ladder", out: Path, plot: Path | None, test: bool, as_json: bool) -> None:
    """Write the results into the folder of the runs, plot and print them."""
    from seqloom.core.files import to_json, write_atomic
    from seqloom.ladder import collect_results

    result = collect_results(solved, out)
    tested = collect_results(solved, out, "test") if test else None
    content: Json = {"event": "ladder", **result.to_json()}
    if tested is not None:
        content["test"] = {row.name: {"mean": row.mean, "deviation": row.deviation} for row in tested.variants}
    write_atomic(out / "ladder.json", to_json(to_plain(content)))
    write_atomic(out / "ladder.csv", result.to_csv())
    drawn = draw(solved, result, [out / "ladder.png", *([] if plot is None else [plot])])
    if as_json:
        print_json(content)
        return
    print_results(result, tested)
    print(f"The runs, ladder.json and ladder.csv are in {out}. {drawn}")


def draw(solved: "Ladder", result: "LadderResult", paths: list[Path]) -> str:
    """Plot the results; return a sentence with the file name, or the reason why there is no plot."""
    from seqloom.core.files import write_atomic
    from seqloom.inspect.plots.figures import to_bytes
    from seqloom.inspect.plots.measurements import Spread, draw_spread

    rows = [Spread(row.name, row.values, row.seconds, f"{row.parameters or 0:,} parameters") for row in result.variants]
    called = {"bleu": "BLEU", "chrf": "chrF"}.get(result.metric, result.metric.replace("_", " "))
    seeds = len(solved.config.seeds)
    tokens = {run.tokens for row in result.variants for run in row.runs if run.tokens}
    budget = f", {format_tokens(tokens)} tokens each" if tokens and max(tokens) <= 1.01 * min(tokens) else ""
    title = f"{result.ladder}: {seeds} seed{'s' * (seeds > 1)}{budget}"
    better = "higher" if result.higher_is_better else "lower"
    try:
        figure = draw_spread(rows, title=title, metric=f"{called} on {result.split}", better=better)
    except ResourceError as error:
        return str(error)
    for path in paths:
        write_atomic(path, to_bytes(figure, path.suffix))
    return f"The plot is {paths[-1]}."


def format_tokens(tokens: set[int]) -> str:
    """Format the number of tokens; if it differs between seeds, format the rounded mean."""
    return f"{min(tokens):,}" if len(tokens) == 1 else f"about {float(f'{statistics.fmean(tokens):.3g}'):,.0f}"


def print_results(result: "LadderResult", tested: "LadderResult | None") -> None:
    """Print a table of variants, best first."""
    from rich.text import Text

    order = "highest" if result.higher_is_better else "lowest"
    print(f"\n{result.ladder}: {result.metric} on dev, {order} first; mean ± standard deviation")
    measured = [f"dev {name}" for name in (result.metric, *result.also)]
    measured += [f"test {result.metric}"] if tested else []
    table = make_table(["variant", "parameters", result.size, *measured, "tokens/s", "memory", "seconds"], fold=1)
    on_test = {variant.name: variant for variant in tested.variants} if tested else {}
    for variant in result.variants:
        spreads = [(name, *variant.spread(name)) for name in (result.metric, *result.also)]
        spreads += [(result.metric, *on_test[variant.name].spread(result.metric))] if tested else []
        cells = [f"{variant.parameters or 0:,}", variant.format_size(result.size) or "-"]
        for name, mean, deviation in spreads:
            spread = "" if math.isnan(deviation) else f" ± {format_result(deviation, name)}"
            cells.append("diverged" if math.isnan(mean) else format_result(mean, name) + spread)
        size = (variant.memory or 0) / 2**20
        memory = "-" if variant.memory is None else f"{size:,.0f} MiB" if size >= 10 else f"{size:.1f} MiB"
        cells += [format_count(variant.tokens_per_second), memory, format_count(variant.seconds)]
        table.add_row(*map(Text, (variant.name, *cells)))
    open_wide_console().print(table)
    jobs = max(run.jobs or 1 for variant in result.variants for run in variant.runs)
    if jobs > 1:
        print(f"Up to {jobs} runs shared the machine, so tokens/s and seconds are worse than for a single run.")


def format_result(value: float, metric: str) -> str:
    """Format a metric with two decimals if it ranges from 0 to 100, otherwise with four."""
    return f"{value:.{2 if metric in PERCENT_METRICS else 4}f}"


def format_count(value: float) -> str:
    """Format a number without decimals, or with two decimals if it is below 10."""
    return "-" if math.isnan(value) else f"{value:,.0f}" if value >= 10 else f"{value:.2f}"
