"""`seqloom inspect` positions, states, components, track, window and mix."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seqloom.cli._options import DataDir, JsonObject, PictureOut
from seqloom.cli._output import check_out, print_json, write_picture
from seqloom.core.errors import UsageError
from seqloom.core.words import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from seqloom.inspect.views.inputs import PositionsView, Side
    from seqloom.inspect.views.labels import SeriesStates, TextStates
    from seqloom.inspect.views.series import Components, TrackTrace

BAR = 40  # letters of the longest
DISTANCES = (0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
SHOWN_STEPS = 12  # at the end of a series
TRACK_ROWS = (("observed", "rmse_observed"), ("filtered", "rmse_filtered"), ("smoothed", "rmse_smoothed"))


def show_view(
    out: Path | None,
    draw: "Callable[[], Figure]",
    json: Callable[[], dict[str, Any]] | None,
    print_view: Callable[[], None],
) -> None:
    """Draw a view if there is a file for it, first, so that `… | head` has it too; then print it, or its JSON."""
    if out is not None:
        write_picture(out, draw())
    print_view() if json is None else print_json(json())


def short_names(runs: Sequence[Path]) -> list[str]:
    """Return the names of runs; their paths where names are not unique."""
    return [run.name if len({other.name for other in runs}) == len(runs) else str(run) for run in runs]


def _plain(values: Iterable[float]) -> list[float | None]:
    """Return numbers for JSON, which has none that are missing."""
    return [None if value != value else value for value in values]


# --- positions ------------------------------------------------------------------------------------------------------


def positions(
    run: Annotated[Path | None, typer.Argument(help="A run of a Transformer: its own. [default: sinusoids]")] = None,
    width: Annotated[int | None, typer.Option(help="Dimensions, an even number. [default: 128]")] = None,
    length: Annotated[int | None, typer.Option(help="So many places. [default: 100]")] = None,
    layout: Annotated[
        Literal["interleaved", "halves"] | None,
        typer.Option(help="Sines and cosines in turns, or all sines first. [default: interleaved]"),
    ] = None,
    base: Annotated[float | None, typer.Option(help="The slowest wave takes 2π·base places. [default: 10000]")] = None,
    kind: Annotated[
        Literal["sinusoidal", "rotary"] | None,
        typer.Option(help="Added to the embeddings, or turning queries and keys. [default: sinusoidal]"),
    ] = None,
    side: Annotated[
        Literal["source", "target"] | None,
        typer.Option(help="Of a run that learned two tables: which. [default: source]"),
    ] = None,
    out: PictureOut = None,
    as_json: JsonObject = False,
) -> None:
    """What a Transformer is told of places: `seqloom inspect positions --width 128 --out positions.png`."""
    check_out(out)
    given = {"width": width, "layout": layout, "base": base, "kind": kind}
    options = {name: value for name, value in given.items() if value is not None}
    view = _positions_view(run, length, side, options)
    from seqloom.inspect.plots.inputs import draw_positions

    head = {"run": None if run is None else str(run)}
    json = (lambda: {**head, **view.to_json()}) if as_json else None
    show_view(out, lambda: draw_positions(view), json, lambda: _print_positions(view))


def _positions_view(
    run: Path | None, length: int | None, side: "Side | None", options: dict[str, Any]
) -> "PositionsView":
    from seqloom.inspect.views.inputs import LENGTH, run_positions, sinusoids_view

    if run is None:
        if side is not None:
            raise UsageError("--side is about the tables of a run: name one, or leave it out.")
        return sinusoids_view(length=LENGTH if length is None else length, **options)
    if options:
        raise UsageError(f"--{next(iter(options))} is for sinusoids without a run; {run} has positions of its own.")
    from seqloom.predict.loader import load

    return run_positions(load(run, "cpu"), length, side)


def _print_positions(view: "PositionsView") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    laid = "" if view.layout is None else f", {view.layout}, base {view.base:g}"
    of = f"{view.name}: " if view.name else ""
    size = f"{counted(view.length, 'place')} × {view.width} dimensions"
    console.print(f"{of}{view.kind} positions, {size}{laid}\n", markup=False, soft_wrap=True)
    if view.wavelengths:
        table = Table("dimensions", box=None, header_style="bold")
        table.add_column("begins again after", justify="right")
        last = len(view.wavelengths) - 1
        for pair in dict.fromkeys(round(last * share / 4) for share in range(5)):
            sine = view.sines(pair)
            cosine = sine + (1 if view.layout == "interleaved" else view.width // 2)
            table.add_row(f"{sine} (sine), {cosine} (cosine)", f"{view.wavelengths[pair]:,.1f} places")
        console.print(table, "")
    table = Table("distance", box=None, header_style="bold")
    table.add_column("dot product", justify="right")
    for distance in (distance for distance in DISTANCES if distance < view.length):
        table.add_row(str(distance), f"{view.by_distance[distance]:.3f}")
    console.print(table)
    console.print("\nThe mean dot product of places so far apart; 1 is that of a place with itself.")


# --- states of hidden Markov models ---------------------------------------------------------------------------------


def states(
    run: Annotated[Path, typer.Argument(help="A run of a hidden Markov model.")],
    text: Annotated[
        str | None, typer.Argument(help="A text to let it read. [default: the beginning of its dev split]")
    ] = None,
    out: PictureOut = None,
    top: Annotated[int, typer.Option(min=1, help="How many symbols of each state.")] = 12,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
) -> None:
    """What each state says, and which follows which: `seqloom inspect states runs/hmm-letters --out states.png`."""
    from numpy import ndarray

    from seqloom.data.files import use_data_folder
    from seqloom.inspect.plots.series import draw_states
    from seqloom.inspect.views.labels import TextStates, states_view
    from seqloom.predict.loader import load

    check_out(out)
    with use_data_folder(data_dir):
        view = states_view(load(run, "cpu"), text, top=top)

    def json() -> dict[str, Any]:
        values = {key: value.tolist() if isinstance(value, ndarray) else value for key, value in asdict(view).items()}
        return {"run": str(run), **values}

    show_view(
        out,
        lambda: draw_states(view, f"{run.name}: what its {view.states} states found"),
        json if as_json else None,
        lambda: _print_text_states(run, view) if isinstance(view, TextStates) else _print_series_states(run, view),
    )


def _print_text_states(run: Path, view: "TextStates") -> None:
    from seqloom.inspect.plots.figures import visible

    print(f"{run}: {view.states} states; shares of {view.measured}")
    for number, (emitted, share) in enumerate(zip(view.said, view.share, strict=True), start=1):
        symbols = "  ".join(f"{visible(symbol)} {chance:.3f}" for symbol, chance in emitted)
        print(f"  state {number}, {share:.1%}: {symbols}")
    _print_transition(view.transition, [*map(str, range(1, view.states + 1)), "END"])
    if view.kinds is not None:
        print("\nwhat share of each kind of letter a state said")
        for kind, shares in view.kinds.items():
            print(f"  {kind:12}" + "".join(f"{share:9.1%}" for share in shares))
    print("\n" + mark_states(view))


def mark_states(view: "TextStates") -> str:
    """Return the beginning of the text, and below each token the number of its state, its digits one below another."""
    from seqloom.inspect.plots.figures import visible
    from seqloom.inspect.plots.series import wrap_words

    words = [visible(token) for token in view.tokens]
    places = wrap_words(words, 92, spaces=any(len(token) > 1 for token in view.tokens))
    digits = len(str(view.states))
    lines = [[" " * 100] * (1 + digits) for _ in range(1 + max(line for line, _ in places))]
    for word, state, (line, column) in zip(words, view.path, places, strict=True):
        mark = "·" if state >= view.states else str(state + 1)
        for row, piece in enumerate((word, *mark.rjust(digits))):
            held = lines[line][row]
            lines[line][row] = held[:column] + piece + held[column + len(piece) :]
    return "\n".join(row.rstrip() for pair in lines[:3] for row in pair)


def _print_series_states(run: Path, view: "SeriesStates") -> None:
    print(f"{run}: {view.states} states; mean ± standard deviation of each variable")
    for number in range(view.states):
        variables = zip(view.columns, view.means[number], view.deviations[number], strict=True)
        values = "  ".join(f"{name} {mean:.4g} ± {spread:.3g}" for name, mean, spread in variables)
        print(f"  state {number + 1}, {view.share[number]:.1%}, {view.lasts(number)}: {values}")
    _print_transition(view.transition, [str(number) for number in range(1, view.states + 1)])


def _print_transition(table: Iterable[Iterable[float]], names: list[str]) -> None:
    print("\nwhich state (column) follows which (row)")
    print("      " + "".join(f"{name:>7}" for name in names))
    for name, row in zip(names, table, strict=True):
        print(f"  {name:>4}" + "".join(f"{value:7.3f}" for value in row))


# --- series and tracks ----------------------------------------------------------------------------------------------


def components(
    run: Annotated[Path, typer.Argument(help="A run of series-forecast with model.kind=kalman.")],
    split: Annotated[Literal["train", "dev", "test"], typer.Option(help="Up to the end of which split.")] = "test",
    column: Annotated[str | None, typer.Option(help="Which variable. [default: the first]")] = None,
    out: PictureOut = None,
    as_json: JsonObject = False,
) -> None:
    """The level, slope and season of a series: `seqloom inspect components runs/kalman --out components.png`."""
    from seqloom.data.series import labels_of
    from seqloom.inspect.plots.series import draw_components
    from seqloom.inspect.views.series import components as find_components
    from seqloom.predict.loader import load

    check_out(out)
    found = find_components(load(run, "cpu"), split, column)
    times = labels_of(found.times)

    def json() -> dict[str, Any]:
        parts = {name: {"mean": mean.tolist(), "deviation": dev.tolist()} for name, (mean, dev) in found.parts.items()}
        head = {"run": str(run), "series": found.series, "variable": found.variable, "logarithmic": found.logarithmic}
        observed = _plain(found.observed.tolist())
        return {**head, "noise": found.noise, "times": times, "observed": observed, "parts": parts}

    show_view(
        out,
        lambda: draw_components(found, run.name),
        json if as_json else None,
        lambda: _print_components(run, found, times),
    )


def _print_components(run: Path, found: "Components", times: list[str]) -> None:
    log = " (logarithms)" if found.logarithmic else ""
    shown = min(SHOWN_STEPS, len(found.observed))
    print(f"{run}: {found.variable} of {found.series}{log}, the last {shown} steps, ± 2 deviations")
    print(f"{'time':16}{'observed':>12}" + "".join(f"{name:>22}" for name in found.parts))
    for step in range(len(found.observed) - shown, len(found.observed)):
        value = found.observed[step]
        cells = "".join(f"{f'{mean[step]:.5g} ± {2 * dev[step]:.2g}':>22}" for mean, dev in found.parts.values())
        print(f"{times[step]:16}{'missing' if value != value else f'{value:.6g}':>12}{cells}")


def track(
    run: Annotated[Path, typer.Argument(help="A run that follows tracks: kalman-track.")],
    split: Annotated[Literal["train", "dev", "test"], typer.Option(help="Whose tracks.")] = "test",
    number: Annotated[int, typer.Option(help="Which of them, counted from 1.")] = 1,
    out: PictureOut = None,
    as_json: JsonObject = False,
) -> None:
    """A track as a Kalman filter and smoother see it: `seqloom inspect track runs/kalman-track --out track.png`."""
    from seqloom.inspect.plots.series import draw_track
    from seqloom.inspect.views.series import track_trace
    from seqloom.predict.loader import load

    check_out(out)
    trace = track_trace(load(run, "cpu"), split, number)

    def json() -> dict[str, Any]:
        names = ("truth", "filtered", "filtered_covariances", "smoothed", "smoothed_covariances")
        observed = [_plain(row) for row in trace.observed.tolist()]
        head = {"run": str(run), "track": trace.name, "figures": trace.figures, "gaps": trace.gaps}
        return {**head, "observed": observed, **{name: getattr(trace, name).tolist() for name in names}}

    show_view(out, lambda: draw_track(trace, run.name), json if as_json else None, lambda: _print_track(run, trace))


def _print_track(run: Path, trace: "TrackTrace") -> None:
    found = trace.figures
    gaps = counted(len(trace.gaps), "gap")
    print(f"{run}: track {trace.name}, {len(trace.truth)} steps, {gaps}; root mean square distance from the truth")
    print(f"{'':12}{'observed steps':>16}{'gaps':>10}{'within 95 %':>14}")
    for name, key in TRACK_ROWS:
        gap, inside = found.get(f"gap_{name}"), found.get(f"within_{name}")
        cells = ["" if gap is None else f"{gap:.2f}", "" if inside is None else f"{inside:.1%}"]
        print(f"{name:12}{found[key]:16.2f}{cells[0]:>10}{cells[1]:>14}")


# --- windows and mixes ----------------------------------------------------------------------------------------------


def window(
    runs: Annotated[list[Path], typer.Argument(help="Runs of feed-forward language models, compared if several.")],
    split: Annotated[str, typer.Option(help="The text to predict: train, dev or test.")] = "dev",
    most: Annotated[int | None, typer.Option("--tokens", help="Its first so many tokens alone. [default: all]")] = None,
    out: PictureOut = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
) -> None:
    """What each place of the window is worth: `seqloom inspect window runs/ffnn-pydocs --out window.png`."""
    from seqloom.data.files import use_data_folder
    from seqloom.inspect.plots.measurements import draw_window
    from seqloom.inspect.views.memory import window_lm, window_view
    from seqloom.predict.loader import load

    check_out(out)
    if most is not None and most < 2:
        raise UsageError(f"--tokens must be at least 2, so that there is something to deal out anew; got {most}.")
    models = [load(run, "cpu") for run in runs]
    for model in models:
        window_lm(model)  # what has no window is refused before any data is read
    with use_data_folder(data_dir):
        pairs = zip(models, short_names(runs), strict=True)
        views = [window_view(model, model.recipe, split, most, name) for model, name in pairs]

    def json() -> dict[str, Any]:
        found = [{"run": str(run), **vars(view), "worth": view.worth} for run, view in zip(runs, views, strict=True)]
        return {"split": split, "runs": found}

    def print_views() -> None:
        for view in views:
            print(f"{view.name}: {view.loss:.4f} nats per token on {split} ({view.tokens:,} tokens)")
            largest = max(*view.worth, 1e-12)
            for place, (loss, worth) in enumerate(zip(view.shuffled, view.worth, strict=True), start=1):
                bar = "█" * round(BAR * max(worth, 0) / largest)
                print(f"  {place:3} back says nothing true  {loss:8.4f}  {worth:+8.4f}  {bar}".rstrip())

    show_view(out, lambda: draw_window(views), json if as_json else None, print_views)


def mix(
    run: Annotated[Path, typer.Argument(help="A run that began with a bidirectional language model.")],
    as_json: JsonObject = False,
) -> None:
    """How much of each layer a task reads: `seqloom inspect mix runs/tag-people-finetune`."""
    from seqloom.inspect.views.inputs import mix_view
    from seqloom.predict.loader import load

    view = mix_view(load(run, "cpu"))
    if as_json:
        layers = [{"layer": name, "share": share} for name, share in zip(view.layers, view.shares, strict=True)]
        print_json({"run": str(run), "scale": view.scale, "layers": layers})
        return
    print(f"{run}: h = γ Σ_j s_j h_j, γ = {view.scale:.3f}")
    widest = max(map(len, view.layers))
    for name, share in zip(view.layers, view.shares, strict=True):
        print(f"  {name:{widest}}  {share:6.1%}  {'█' * round(BAR * share)}".rstrip())
