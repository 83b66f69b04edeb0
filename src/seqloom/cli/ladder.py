"""Several models at equal size and budget, side by side."""

import math
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._options import DataDir, json_option
from seqloom.cli._output import check_out, plain_table, print_json, to_plain, wide_console
from seqloom.core.errors import Interrupted, ResourceError, UsageError
from seqloom.core.words import OF_HUNDRED

if TYPE_CHECKING:
    from seqloom.ladder import Ladder, LadderResult, Place
    from seqloom.train.stop import Stop

Show = Callable[["Place", Any], None]


def ladder(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="LADDER [KEY=VALUE]...", help="A shipped ladder's name or a YAML file, then overrides."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the runs. [default: runs/LADDER]")] = None,
    seeds: Annotated[str | None, typer.Option(help="One run of each rung for each of these: 1,2,3.")] = None,
    parameters: Annotated[int | None, typer.Option(min=1, help="How many parameters every rung shall have.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Train so many runs at once, each in a process of its own.")] = 1,
    test: Annotated[bool, typer.Option("--test", help="Also measure test, once all is decided on dev.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Also draw the figure here (.png or .svg).")] = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, json_option("One JSON object per run, then one with all.")] = False,
) -> None:
    """Train all rungs of a ladder, alike in size and budget, and compare: `seqloom ladder ladder-lm --seeds 1,2`."""
    from seqloom.cli.train import parse_seeds, split_arguments

    name, overrides = split_arguments(arguments or [])
    if name is None:
        raise UsageError("Name a ladder (`seqloom list ladders`) or a YAML file.")
    chosen = parse_seeds(seeds) if seeds is not None else None
    from seqloom.data.files import use_data_folder
    from seqloom.ladder import read_ladder, solve
    from seqloom.train.stop import Stop

    check_out(plot)
    read = read_ladder(name, overrides, seeds=chosen, parameters=parameters)
    out = Path("runs") / read.name if out is None else out
    stop = Stop()
    try:
        with use_data_folder(data_dir), stop.on_signals():
            with stop.interruptible():
                solved = solve(read)
            _describe(solved, as_json)
            _climb(solved, out, stop, jobs, test, as_json)
            with stop.interruptible():
                _conclude(solved, out, plot, test, as_json)
    except Interrupted:
        options = (seeds, parameters, None if jobs == 1 else jobs, test, plot, data_dir)
        raise Interrupted(
            "Stopped; what is done is saved, and nothing of it is trained again.\n"
            f"Go on with the same command: {_command(arguments or [], out, *options)}"
        ) from None


def _command(words: list[str], out: Path, *options: Any) -> str:
    names = ("--seeds", "--parameters", "--jobs", "--test", "--plot", "--data-dir")
    told = [("--out", out), *zip(names, options, strict=True)]
    more = [[name] if value is True else [name, str(value)] for name, value in told if value not in (None, False)]
    return shlex.join(["seqloom", "ladder", *words, *(word for pair in more for word in pair)])


def _describe(solved: "Ladder", as_json: bool) -> None:
    if as_json:
        return
    seeds = ", ".join(map(str, solved.config.seeds))
    print(f"{solved.name}: {len(solved.rungs)} rungs, seeds {seeds}, ranked by {solved.metric} on dev")
    widest = max(len(rung.name) for rung in solved.rungs)
    for rung in solved.rungs:
        chosen = f"  {rung.size_key}={rung.size}" if rung.size is not None else ""
        tokens = f"  about {rung.tokens:,} tokens" if rung.tokens else ""  # the last batch of an epoch may be shorter
        print(f"  {rung.name:{widest}}{rung.parameters or 0:>12,} parameters{chosen}{tokens}")


# --- while it trains ------------------------------------------------------------------------------------------------


def _climb(solved: "Ladder", out: Path, stop: "Stop", jobs: int, test: bool, as_json: bool) -> None:
    from seqloom.ladder import climb
    from seqloom.train.events import Stopped

    splits = ("dev", "test") if test else ("dev",)
    with _display(solved.metric, as_json) as show:
        for place, event in climb(solved, out, stop, jobs=jobs, splits=splits):
            show(place, event)
            if isinstance(event, Stopped):
                raise Interrupted


@contextmanager
def _display(metric: str, as_json: bool) -> Iterator[Show]:
    from seqloom.train.events import Finished, Progress

    if as_json or not sys.stdout.isatty():
        yield _as_json if as_json else lambda place, event: _line(place, event, metric, print)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=Console(highlight=False), transient=True) as bar:
        task = bar.add_task("starting", total=1)
        steps: dict[int, tuple[str, int, int]] = {}  # of the runs that train: what, how far, of how many

        def show(place: "Place", event: Any) -> None:
            if isinstance(event, Progress):
                steps[place.number] = f"{place.rung.name} seed {place.seed}", event.step, event.total
                bar.update(task, **_doing(steps, place.total))
            elif event is None or isinstance(event, Finished | str):
                steps.pop(place.number, None)
                _line(place, event, metric, lambda line: bar.console.print(line, markup=False))

        yield show


def _doing(steps: dict[int, tuple[str, int, int]], runs: int) -> dict[str, Any]:
    """What the bar shows: one run's steps, or all steps of those that train at once."""
    first, *more = steps.values()
    done, total = sum(one[1] for one in steps.values()), sum(one[2] for one in steps.values())
    which = f"[{min(steps)}/{runs}] {first[0]}" if not more else f"{len(steps)} of {runs} runs: {first[0]} …"
    return {"completed": done, "total": total, "description": f"{done:,}/{total:,}  {which}"}


def _line(place: "Place", event: Any, metric: str, write: Callable[[str], None]) -> None:
    """One line for a run that is over."""
    from seqloom.train.events import Finished

    head = f"[{place.number:>{len(str(place.total))}}/{place.total}] {place.rung.name} seed {place.seed}: "
    if event is None:
        write(f"{head}finished before")
    elif isinstance(event, str):
        write(f"{head}{event}")
    elif isinstance(event, Finished):
        value = event.best.get(metric, math.nan)
        write(
            f"{head}{metric} {_figure(value, metric)}, {event.tokens_per_second:,.0f} tokens/s, {event.seconds:,.0f} s"
        )


def _as_json(place: "Place", event: Any) -> None:
    from seqloom.train.events import Finished, event_to_json

    run = {"rung": place.rung.name, "seed": place.seed, "run": str(place.path)}
    if event is None:
        print_json({"event": "finished before", **run})
    elif isinstance(event, str):
        print_json({"event": "diverged", **run, "reason": event})
    elif isinstance(event, Finished):
        print_json({**event_to_json(event), **run})


# --- when it is over ------------------------------------------------------------------------------------------------


def _conclude(solved: "Ladder", out: Path, plot: Path | None, test: bool, as_json: bool) -> None:
    from seqloom.core.files import to_json, write_atomic
    from seqloom.ladder import results

    found = results(solved, out)
    tested = results(solved, out, "test") if test else None
    content: dict[str, Any] = {"event": "ladder", **found.to_json()}
    if tested is not None:
        content["test"] = {rung.name: {"mean": rung.mean, "deviation": rung.deviation} for rung in tested.rungs}
    write_atomic(out / "ladder.json", to_json(to_plain(content)))
    write_atomic(out / "ladder.csv", found.to_csv())
    drawn = _draw(solved, found, out, plot)
    if as_json:
        print_json(content)
        return
    _table(found, tested)
    print(f"The runs, ladder.json and ladder.csv are in {out}. {drawn}")


def _draw(solved: "Ladder", found: "LadderResult", out: Path, plot: Path | None) -> str:
    """The figure beside the runs, and where it was asked for; a word where it cannot be drawn."""
    from seqloom.core.files import write_atomic
    from seqloom.inspect.plots.figures import to_bytes
    from seqloom.inspect.plots.measurements import Spread, draw_spread

    rows = [Spread(rung.name, rung.values, rung.seconds, f"{rung.parameters or 0:,}") for rung in found.rungs]
    called = {"bleu": "BLEU", "chrf": "chrF"}.get(found.metric, found.metric.replace("_", " "))
    seeds, tokens = len(solved.config.seeds), {run.tokens for rung in found.rungs for run in rung.runs if run.tokens}
    budget = f", {_budget(tokens)} tokens each" if tokens and max(tokens) <= 1.01 * min(tokens) else ""
    title = f"{found.ladder}: {seeds} seed{'s' * (seeds > 1)}{budget}; parameters beneath the names"
    better = "higher" if found.higher_is_better else "lower"
    try:
        figure = draw_spread(rows, title=title, measure=f"{called} on {found.split}", better=better)
    except ResourceError as error:
        return str(error)
    places = [out / "ladder.png", *([plot] if plot is not None else [])]
    for place in places:
        write_atomic(place, to_bytes(figure, place.suffix))
    return f"The figure: {places[-1]}"


def _budget(tokens: set[int]) -> str:
    """Batches differ in size, and their order from seed to seed."""
    return f"{min(tokens):,}" if len(tokens) == 1 else f"about {float(f'{statistics.fmean(tokens):.3g}'):,.0f}"


def _table(found: "LadderResult", tested: "LadderResult | None") -> None:
    from rich.text import Text

    order = "highest" if found.higher_is_better else "lowest"
    print(f"\n{found.ladder}: {found.metric} on dev, {order} first; mean ± standard deviation")
    measured = [f"dev {found.metric}", *(f"dev {name}" for name in found.also)]
    measured += [f"test {found.metric}"] if tested else []
    table = plain_table(["rung", "parameters", found.size, *measured, "tokens/s", "memory", "seconds"], fold=1)
    on_test = {rung.name: rung for rung in tested.rungs} if tested else {}
    for rung in found.rungs:
        cells = [f"{rung.parameters or 0:,}", _size(rung, found.size)]
        cells += [_mean(*rung.spread(name), name) for name in (found.metric, *found.also)]
        cells += [_mean(*on_test[rung.name].spread(found.metric), found.metric)] if tested else []
        cells += [_count(rung.tokens_per_second), _memory(rung.memory), _count(rung.seconds)]
        table.add_row(*map(Text, (rung.name, *cells)))
    wide_console().print(table)
    most = max(run.jobs or 1 for rung in found.rungs for run in rung.runs)
    if most > 1:
        print(f"tokens/s and seconds are of runs that shared the machine, up to {most} at once: lower than alone.")


def _size(rung: Any, heading: str) -> str:
    if rung.size is None:
        return "-"
    return str(rung.size) if rung.size_key == heading else f"{rung.size_key}={rung.size}"


def _mean(mean: float, deviation: float, metric: str) -> str:
    if math.isnan(mean):
        return "diverged"
    return _figure(mean, metric) + ("" if math.isnan(deviation) else f" ± {_figure(deviation, metric)}")


def _figure(value: float, metric: str) -> str:
    """What goes from 0 to 100 has two digits after the point."""
    return f"{value:.{2 if metric in OF_HUNDRED else 4}f}"


def _memory(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:,.0f} MiB" if count >= 10 * 2**20 else f"{count / 2**20:.1f} MiB"


def _count(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}" if value >= 10 else f"{value:.2f}"
