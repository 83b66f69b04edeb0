"""The commands positions, states, components, track, window and mix of `seqloom inspect`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqloom.cli._options import DataDir, JsonObject, PlotOut, RunData, drop_unset
from seqloom.cli._output import Json, align_cells, check_plot_path, make_table, print_json, show_view
from seqloom.core.errors import UsageError
from seqloom.core.words import format_count

if TYPE_CHECKING:
    from seqloom.inspect.views.inputs import PositionsView
    from seqloom.inspect.views.labels import SeriesStates, TextStates
    from seqloom.inspect.views.series import Components, TrackTrace

BAR_WIDTH = 40  # width of a full bar in characters
DISTANCES = (0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
SHOWN_STEPS = 12  # number of last steps of a series that are printed
TRACE_KEYS = ("truth", "filtered", "filtered_covariances", "smoothed", "smoothed_covariances")
Split = Literal["train", "dev", "test"]


def shorten_names(runs: Sequence[Path]) -> list[str]:
    """Return the names of runs, or their paths if the names are not unique."""
    return [run.name if len({other.name for other in runs}) == len(runs) else str(run) for run in runs]


def positions(
    run: Annotated[
        Path | None, typer.Argument(help="Run directory of a Transformer; without it, fixed encodings are shown.")
    ] = None,
    width: Annotated[int | None, typer.Option(help="Number of dimensions, which must be even. [default: 128]")] = None,
    length: Annotated[int | None, typer.Option(help="Number of positions. [default: 100]")] = None,
    layout: Annotated[
        Literal["interleaved", "halves"] | None,
        typer.Option(help="Order of sines and cosines. [default: interleaved]"),
    ] = None,
    base: Annotated[
        float | None,
        typer.Option(help="Base of the wavelengths, which range up to 2π·base positions. [default: 10000]"),
    ] = None,
    kind: Annotated[
        Literal["sinusoidal", "rotary"] | None,
        typer.Option(help="Kind of position encoding. [default: sinusoidal]"),
    ] = None,
    side: Annotated[
        Literal["source", "target"] | None,
        typer.Option(help="The learned table to show, if the model has two. [default: source]"),
    ] = None,
    out: PlotOut = None,
    as_json: JsonObject = False,
) -> None:
    """Show positional encodings: `seqloom inspect positions --width 128 --out positions.png`."""
    check_plot_path(out)
    options = drop_unset(width=width, layout=layout, base=base, kind=kind)
    if run is None and side is not None:
        raise UsageError("--side selects a table of a run: name a run, or leave out --side.")
    if run is not None and options:
        raise UsageError(f"--{next(iter(options))} applies only to sinusoids: leave out the option or the run {run}.")
    from seqloom.inspect.plots.inputs import draw_positions
    from seqloom.inspect.views.inputs import run_positions, sinusoids_view
    from seqloom.predict.loader import load

    if run is None:
        view = sinusoids_view(**drop_unset(length=length), **options)
    else:
        view = run_positions(load(run, "cpu"), length, side)
    head = {"run": None if run is None else str(run)}
    show_view(
        out, lambda: draw_positions(view), as_json, lambda: {**head, **view.to_json()}, lambda: print_positions(view)
    )


def print_positions(view: "PositionsView") -> None:
    """Print the wavelengths and the mean dot product by distance."""
    from rich.console import Console

    console = Console(highlight=False)
    layout = "" if view.layout is None else f", {view.layout}, base {view.base:g}"
    of = f"{view.name}: " if view.name else ""
    size = f"{format_count(view.length, 'position')} × {view.width} dimensions"
    console.print(f"{of}{view.kind} positions, {size}{layout}\n", markup=False, soft_wrap=True)
    if view.wavelengths:
        table = make_table(["dimensions", "wavelength"])
        last = len(view.wavelengths) - 1
        for pair in dict.fromkeys(round(last * quarter / 4) for quarter in range(5)):
            sine = view.sines(pair)
            cosine = sine + (1 if view.layout == "interleaved" else view.width // 2)
            table.add_row(f"{sine} (sine), {cosine} (cosine)", f"{view.wavelengths[pair]:,.1f} positions")
        console.print(table, "")
    table = make_table(["distance", "dot product"])
    for distance in (distance for distance in DISTANCES if distance < view.length):
        table.add_row(str(distance), f"{view.by_distance[distance]:.3f}")
    console.print(table)
    console.print(
        "\nMean dot product of two positions, by their distance. The dot product of a position with itself is 1."
    )


def states(
    run: Annotated[Path, typer.Argument(help="Run directory of a hidden Markov model.")],
    text: Annotated[
        str | None, typer.Argument(help="The text to read. [default: the beginning of the dev split]")
    ] = None,
    out: PlotOut = None,
    top: Annotated[int, typer.Option(min=1, help="Number of symbols per state.")] = 12,
    data: RunData = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
) -> None:
    """Show the states of a hidden Markov model: `seqloom inspect states runs/hmm-letters --out states.png`."""
    from seqloom.data.files import use_data_folder
    from seqloom.inspect.plots.series import draw_states
    from seqloom.inspect.views.labels import states_view
    from seqloom.predict.loader import load

    check_plot_path(out)
    with use_data_folder(data_dir, data):
        view = states_view(load(run, "cpu"), text, top=top)
    title = f"{run.name}: {view.states} hidden states"
    json = {"run": str(run), **vars(view)}
    show_view(out, lambda: draw_states(view, title), as_json, lambda: json, lambda: print_states(run, view))


def print_states(run: Path, view: "TextStates | SeriesStates") -> None:
    """Print emissions, transitions and, for a text, the states of its first tokens."""
    from seqloom.inspect.plots.figures import format_token
    from seqloom.inspect.views.labels import TextStates

    names = [str(number) for number in range(1, view.states + 1)]
    if isinstance(view, TextStates):
        print(f"{run}: {view.states} states, with their frequencies in {view.measured_on}")
        for name, emitted, fraction in zip(names, view.emissions, view.fractions, strict=True):
            symbols = "  ".join(f"{format_token(symbol)} {chance:.3f}" for symbol, chance in emitted)
            print(f"  state {name}, {fraction:.1%}: {symbols}")
        names.append("END")
    else:
        print(f"{run}: {view.states} states; mean ± standard deviation of each variable")
        for number, (means, deviations) in enumerate(zip(view.means, view.deviations, strict=True)):
            variables = zip(view.columns, means, deviations, strict=True)
            values = "  ".join(f"{name} {mean:.4g} ± {spread:.3g}" for name, mean, spread in variables)
            print(f"  state {number + 1}, {view.fractions[number]:.1%}, {view.describe_duration(number)}: {values}")
    print("\ntransition probabilities from state (row) to state (column)")
    print("      " + align_cells(names, 7))
    for name, row in zip(names, view.transition, strict=True):
        print(f"  {name:>4}" + "".join(f"{value:7.3f}" for value in row))
    if isinstance(view, TextStates):
        if view.letter_kinds is not None:
            print("\nfraction of each kind of character emitted by each state")
            for kind, fractions in view.letter_kinds.items():
                print(f"  {kind:12}" + "".join(f"{fraction:9.1%}" for fraction in fractions))
        print("\n" + mark_states(view))


def mark_states(view: "TextStates") -> str:
    """Return the first lines of the text with the state number of each token written vertically below it."""
    from seqloom.inspect.plots.figures import format_token
    from seqloom.inspect.plots.series import wrap_words

    words = [format_token(token) for token in view.tokens]
    positions = wrap_words(words, 92, spaces=any(len(token) > 1 for token in view.tokens))
    digits = len(str(view.states))
    lines = [[" " * 100] * (1 + digits) for _ in range(1 + max(line for line, _ in positions))]
    for word, state, (line, column) in zip(words, view.path, positions, strict=True):
        mark = "·" if state >= view.states else str(state + 1)
        for row, piece in enumerate((word, *mark.rjust(digits))):
            text = lines[line][row]
            lines[line][row] = text[:column] + piece + text[column + len(piece) :]
    return "\n".join(row.rstrip() for pair in lines[:3] for row in pair)


def components(
    run: Annotated[Path, typer.Argument(help="Run directory of a series-forecast model with model.kind=kalman.")],
    split: Annotated[Split, typer.Option(help="Show the series up to the end of this split.")] = "test",
    column: Annotated[str | None, typer.Option(help="The variable to show. [default: the first]")] = None,
    out: PlotOut = None,
    as_json: JsonObject = False,
) -> None:
    """Show level, slope and season of a series: `seqloom inspect components runs/kalman --out components.png`."""
    from seqloom.data.series import labels_of
    from seqloom.inspect.plots.series import draw_components
    from seqloom.inspect.views.series import components as series_components
    from seqloom.predict.loader import load

    check_plot_path(out)
    view = series_components(load(run, "cpu"), split, column)
    times = labels_of(view.times)

    def json() -> Json:
        parts = {name: {"mean": mean, "deviation": deviation} for name, (mean, deviation) in view.parts.items()}
        head = {"run": str(run), "series": view.series, "variable": view.variable, "logarithmic": view.logarithmic}
        return {**head, "noise": view.noise, "times": times, "observed": view.observed, "parts": parts}

    show_view(out, lambda: draw_components(view, run.name), as_json, json, lambda: print_components(run, view, times))


def print_components(run: Path, view: "Components", times: Sequence[str]) -> None:
    """Print the components of the last steps of a series."""
    logarithms = " (logarithms)" if view.logarithmic else ""
    count = min(SHOWN_STEPS, len(view.observed))
    print(f"{run}: {view.variable} of {view.series}{logarithms}, the last {count} steps, ± 2 standard deviations")
    print(f"{'time':16}{'observed':>12}" + align_cells(view.parts, 22))
    for step in range(len(view.observed) - count, len(view.observed)):
        value = view.observed[step]
        cells = (f"{mean[step]:.5g} ± {2 * deviation[step]:.2g}" for mean, deviation in view.parts.values())
        print(f"{times[step]:16}{'missing' if value != value else f'{value:.6g}':>12}" + align_cells(cells, 22))


def track(
    run: Annotated[Path, typer.Argument(help="Run directory of the task `track`, such as kalman-track.")],
    split: Annotated[Split, typer.Option(help="The split of the track.")] = "test",
    number: Annotated[int, typer.Option(help="The number of the track, counted from 1.")] = 1,
    out: PlotOut = None,
    as_json: JsonObject = False,
) -> None:
    """Show a track with filtered and smoothed positions: `seqloom inspect track runs/kalman-track --out track.png`."""
    from seqloom.inspect.plots.series import draw_track
    from seqloom.inspect.views.series import track_trace
    from seqloom.predict.loader import load

    check_plot_path(out)
    trace = track_trace(load(run, "cpu"), split, number)
    head = {"run": str(run), "track": trace.name, "metrics": trace.metrics, "gaps": trace.gaps}
    json = {**head, "observed": trace.observed, **{key: getattr(trace, key) for key in TRACE_KEYS}}
    show_view(out, lambda: draw_track(trace, run.name), as_json, lambda: json, lambda: print_track(run, trace))


def print_track(run: Path, trace: "TrackTrace") -> None:
    """Print the errors of observed, filtered and smoothed positions."""
    size = f"{len(trace.truth)} steps, {format_count(len(trace.gaps), 'gap')}"
    print(f"{run}: track {trace.name}, {size}; root mean square distance from the true positions")
    print(f"{'':12}{'observed steps':>16}{'gaps':>10}{'within 95 %':>14}")
    for name in ("observed", "filtered", "smoothed"):
        gap, within = trace.metrics.get(f"gap_{name}"), trace.metrics.get(f"within_{name}")
        cells = ["" if gap is None else f"{gap:.2f}", "" if within is None else f"{within:.1%}"]
        print(f"{name:12}{trace.metrics[f'rmse_{name}']:16.2f}{cells[0]:>10}{cells[1]:>14}")


def window(
    runs: Annotated[list[Path], typer.Argument(help="One or more run directories of feed-forward language models.")],
    split: Annotated[str, typer.Option(help="The split to predict: train, dev or test.")] = "dev",
    max_tokens: Annotated[
        int | None,
        typer.Option("--tokens", help="Use only this many tokens from the start of the split. [default: all]"),
    ] = None,
    out: PlotOut = None,
    data: RunData = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
) -> None:
    """Show how much each window position contributes: `seqloom inspect window runs/ffnn-pydocs --out window.png`."""
    from seqloom.data.files import use_data_folder
    from seqloom.inspect.plots.measurements import draw_window
    from seqloom.inspect.views.memory import window_lm, window_view
    from seqloom.predict.loader import load

    check_plot_path(out)
    if max_tokens is not None and max_tokens < 2:
        raise UsageError(f"--tokens must be at least 2, since the tokens are shuffled; got {max_tokens}.")
    models = [load(run, "cpu") for run in runs]
    for model in models:
        window_lm(model)  # raises an error for a model without a window before data is read
    with use_data_folder(data_dir, data):
        pairs = zip(models, shorten_names(runs), strict=True)
        views = [window_view(model, model.recipe, split, max_tokens, name) for model, name in pairs]

    def print_views() -> None:
        for view in views:
            print(f"{view.name}: {view.loss:.4f} nats per token on {split} ({view.tokens:,} tokens)")
            largest = max(*view.importance, 1e-12)
            for back, (loss, importance) in enumerate(zip(view.shuffled, view.importance, strict=True), start=1):
                line = f"  {back:3} back, shuffled  {loss:8.4f}  {importance:+8.4f}"
                print_bar(line, max(importance, 0) / largest)

    rows = [
        {"run": str(run), **vars(view), "importance": view.importance} for run, view in zip(runs, views, strict=True)
    ]
    show_view(out, lambda: draw_window(views), as_json, lambda: {"split": split, "runs": rows}, print_views)


def mix(
    run: Annotated[
        Path, typer.Argument(help="Run directory of a model fine-tuned from a bidirectional language model.")
    ],
    as_json: JsonObject = False,
) -> None:
    """Show the weights of an ELMo layer mix: `seqloom inspect mix runs/tag-people-finetune`."""
    from seqloom.inspect.views.inputs import mix_view
    from seqloom.predict.loader import load

    view = mix_view(load(run, "cpu"))
    layers = list(zip(view.layers, view.weights, strict=True))
    if as_json:
        weights = [{"layer": name, "weight": weight} for name, weight in layers]
        print_json({"run": str(run), "scale": view.scale, "layers": weights})
        return
    print(f"{run}: h = γ Σ_j s_j h_j, γ = {view.scale:.3f}")
    for name, weight in layers:
        print_bar(f"  {name:{max(map(len, view.layers))}}  {weight:6.1%}", weight)


def print_bar(line: str, length: float) -> None:
    """Print a line with a bar; `length` from 0 to 1 is the relative length of the bar."""
    print(f"{line}  {'█' * round(BAR_WIDTH * length)}".rstrip())
