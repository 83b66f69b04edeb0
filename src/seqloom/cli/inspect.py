"""`seqloom inspect`: internals of trained models as tables, plots or JSON."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqloom.cli import _inspect_decoding as decoding
from seqloom.cli import _inspect_views as views
from seqloom.cli._attention import attention
from seqloom.cli._inspect_points import points
from seqloom.cli._inspect_source_gradients import show_source_gradients
from seqloom.cli._inspect_tokens import tokens
from seqloom.cli._inspect_views import shorten_names
from seqloom.cli._options import DataDir, JsonObject, PlotOut, RunData
from seqloom.cli._output import Json, check_plot_path, make_table, open_wide_console, show_view
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from rich.text import Text

    from seqloom.inspect.views.cells import GateTrace, LayerTrace
    from seqloom.inspect.views.gradients import GradientReport

inspect = typer.Typer(help="Inspect the internals of trained models.", no_args_is_help=True, rich_markup_mode=None)
inspect.command("attention", short_help="Show attention weights.")(attention)
inspect.command("next", short_help="Show the probabilities of the next token.")(decoding.next_)
inspect.command("beam", short_help="Show the tree of a beam search.")(decoding.beam)
inspect.command("tokens", short_help="Show the tokens of a text, and byte-pair merges.")(tokens)
inspect.command("points", short_help="Show vectors of texts as points.")(points)
inspect.command("mix", short_help="Show the weights of an ELMo layer mix.")(views.mix)
inspect.command("positions", short_help="Show positional encodings.")(views.positions)
inspect.command("states", short_help="Show the states of a hidden Markov model.")(views.states)
inspect.command("components", short_help="Show level, slope and season of a series.")(views.components)
inspect.command("track", short_help="Show a track with its filtered and smoothed positions.")(views.track)
inspect.command("window", short_help="Show how much each position of the window contributes.")(views.window)

DEV_TOKENS = 100  # number of tokens to read from the dev split if no text is given
SHOWN_DISTANCES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
BAR_WIDTH = 8  # width of a full bar in characters

AllowUnknown = Annotated[bool, typer.Option("--allow-unknown", help="Read unknown words as <unk>.")]


@inspect.command("gates", short_help="Show gates and states for each token of a text.")
def gates(
    run: Annotated[Path, typer.Argument(help="Run directory of a model with recurrent cells.")],
    text: Annotated[str, typer.Argument(help="The text to read.")],
    part: Annotated[
        str | None,
        typer.Option(help="The part of the model: encoder, encoder-backwards, decoder … [default: the first]"),
    ] = None,
    layer: Annotated[int | None, typer.Option(help="The layer, counted from 1. [default: the top layer]")] = None,
    unit: Annotated[int | None, typer.Option(help="Show this unit, counted from 0.")] = None,
    out: PlotOut = None,
    allow_unknown: AllowUnknown = False,
    as_json: JsonObject = False,
) -> None:
    """Show gates and states by token: `seqloom inspect gates runs/lm-char-lstm "The class" --out gates.png`."""
    from seqloom.inspect.plots.cells import draw_gates, draw_unit
    from seqloom.inspect.views.cells import gate_trace
    from seqloom.predict.loader import load

    check_plot_path(out)
    trace = gate_trace(load(run, "cpu"), text, part=part, allow_unknown=allow_unknown)
    shown = trace.layer(layer)
    values = None if unit is None else shown.unit(unit)  # raises an error if the unit does not exist
    title = run.name if trace.cell in run.name else f"{run.name} ({trace.cell})"

    def json() -> Json:
        """Return summaries as JSON values; the complete arrays are available only in Python."""
        return {
            "run": str(run),
            "cell": trace.cell,
            "part": trace.part,
            "layer": trace.layers.index(shown) + 1,
            "layers": len(trace.layers),
            "hidden": shown.hidden,
            "tokens": trace.tokens,
            "gates": {
                name: {"effect": effect, "mean": float(shown.values[name].mean()), **shown.saturation(name)._asdict()}
                for name, effect in shown.gates.items()
            },
            "levels": {name: shown.level(name) for name in shown.values},
            "most_varying": shown.most_varying(),
            "unit": unit,
            "values": values,
        }

    show_view(
        out,
        lambda: draw_gates(trace, layer, title) if unit is None else draw_unit(trace, unit, layer, title),
        as_json,
        json,
        lambda: print_gates(run, trace, shown, unit),
    )


def print_gates(run: Path, trace: "GateTrace", layer: "LayerTrace", unit: int | None) -> None:
    """Print a row for each token with its gates and states, and a description of each gate."""
    from rich.text import Text

    from seqloom.inspect.plots.figures import format_token

    where = trace.location(layer)
    if unit is None:
        rows = {name: layer.level(name) for name in layer.values}
        heads = [name if name in layer.gates else f"|{name}|" for name in rows]
        what = f"mean over {layer.hidden} units"
    else:
        rows, heads, what = layer.unit(unit), list(layer.values), f"unit {unit}"
    console, table = open_wide_console(), make_table(["token", *heads])
    console.print(Text(f"{run} ({trace.cell}{where and f', {where}'}): {what}", style="italic"))
    for position, token in enumerate(trace.tokens):
        cells = [
            format_gate(float(values[position]), name in layer.gates, unit is not None) for name, values in rows.items()
        ]
        table.add_row(Text(format_token(token)), *cells)
    console.print(table)
    console.print()
    for name in layer.values:
        line = layer.describe(name)
        if name in layer.gates:
            saturation, of = layer.saturation(name, unit), "units and tokens" if unit is None else "tokens"
            line += f"   (above 0.9: {saturation.open:.0%}, below 0.1: {saturation.closed:.0%} of {of})"
        console.print(line, markup=False)
    varying = ", ".join(map(str, layer.most_varying(8)))
    console.print(f"The hidden states of these units vary most: {varying}. Show one: --unit {layer.most_varying(1)[0]}")


def format_gate(value: float, is_gate: bool, is_signed: bool) -> "Text":
    """Format a value; on a terminal, draw a bar for gates and colour signs."""
    from rich.text import Text

    from seqloom.inspect.plots.figures import gate_colour

    if not sys.stdout.isatty():
        return Text(f"{value:.3f}")
    if is_gate:
        length = round(BAR_WIDTH * min(max(value, 0), 1))
        return Text.assemble(f"{value:.2f} ", ("█" * length, gate_colour(value)), ("·" * (BAR_WIDTH - length), "dim"))
    return Text(f"{value:.3f}", style="" if not is_signed else "blue" if value < 0 else "red")


@inspect.command("gradients", short_help="Show how gradients flow back through time.")
def gradients(
    runs: Annotated[
        list[Path], typer.Argument(help="One or more run directories of recurrent language models, or of translators.")
    ],
    text: Annotated[
        str | None,
        typer.Option(
            help=f"The text to read. [default: the first {DEV_TOKENS} tokens of each run's dev split; translators "
            "need a text]"
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Translators: use this translation. [default: the model's translation]")
    ] = None,
    of: Annotated[
        Literal["last", "total"], typer.Option(help="Use the loss of the last token, or the sum over all tokens.")
    ] = "last",
    out: PlotOut = None,
    allow_unknown: AllowUnknown = False,
    data: RunData = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
) -> None:
    """Show how gradients flow back through time: `seqloom inspect gradients runs/elman runs/lstm --out flow.png`.

    For translators, the command shows the gradient norm of each source position:
    `seqloom inspect gradients runs/quickstart-en-fr --text "Sunday, November 15, 2026" --of total`.
    """
    from seqloom.data.files import use_data_folder
    from seqloom.inspect.plots.cells import draw_gradients
    from seqloom.inspect.views.gradients import gradient_report
    from seqloom.inspect.views.texts import recurrent_lm
    from seqloom.predict.loader import load
    from seqloom.predict.translate import TranslatorPredictor

    check_plot_path(out)
    models = [load(run, "cpu") for run in runs]
    if isinstance(models[0], TranslatorPredictor):
        show_source_gradients(runs, models, text, target, of, out, as_json)
        return
    if target is not None:
        raise UsageError(f"--target requires translators; {models[0].name} is {models[0].description}.")
    reports = []
    with use_data_folder(data_dir, data):
        for model, name in zip(models, shorten_names(runs), strict=True):
            recurrent_lm(model)  # raises an error for other models before data is read
            tokens = model.task().stream("dev")[:DEV_TOKENS].tolist() if text is None else text
            reports.append(gradient_report(model, tokens, of=of, allow_unknown=allow_unknown, name=name))
    rows = [{"run": str(run), **gradients_to_json(report)} for run, report in zip(runs, reports, strict=True)]
    show_view(
        out,
        lambda: draw_gradients(reports),
        as_json,
        lambda: {"of": of, "runs": rows},
        lambda: print_gradients(reports, of),
    )


def gradients_to_json(report: "GradientReport") -> Json:
    """Return the gradients of a model as JSON values."""
    trace, clip = report.trace, report.clipping
    return {
        "cell": report.cell,
        "tokens": trace.tokens,
        "target": trace.target,
        "loss": trace.loss,
        "distances": trace.distances,
        "layers": [
            {"norms": states, "steps_per_tenth": {name: trace.steps_per_tenth(depth, name) for name in states}}
            for depth, states in enumerate(trace.layers)
        ],
        "matrices": [{**vars(matrix), "layer": matrix.layer + 1} for matrix in report.matrices],
        "flows": [{**vars(flow), "layer": flow.layer + 1, "bound": flow.bound} for flow in report.flows],
        "clipping": {**vars(clip), "factor": clip.factor, "clipped": clip.clipped},
        "training": report.training,
        "clipped_fraction": report.clipped_fraction,
    }


def print_gradients(reports: Sequence["GradientReport"], of: str) -> None:
    """Print gradient norms by distance, singular values, and notes on bounds and clipping."""
    from rich.text import Text

    console = open_wide_console()
    shown = [
        (report, depth, name)
        for report in reports
        for depth, states in enumerate(report.trace.layers)
        for name in states
    ]
    loss = "the last token's loss" if of == "last" else "the sum of all tokens' losses"
    console.print(Text(f"norm of the gradient of {loss} with respect to each state", style="italic"))
    heads = [f"{r.name}{f' layer {depth + 1}' if len(r.trace.layers) > 1 else ''}: {name}" for r, depth, name in shown]
    table = make_table(["tokens back", *heads])
    longest = max(len(report.trace.tokens) for report in reports)
    norms = [report.trace.layers[depth][name] for report, depth, name in shown]
    for distance in [*(d for d in SHOWN_DISTANCES if d < longest - 1), longest - 1]:
        cells = (f"{values[-1 - distance]:.2e}" if distance < len(values) else "" for values in norms)
        table.add_row(str(distance), *cells)
    tenths = [report.trace.steps_per_tenth(depth, name) for report, depth, name in shown]
    if of == "last":
        table.add_row("a tenth every", *("does not fall" if n is None else f"{n:.1f} tokens" for n in tenths))
    console.print(table)
    console.print(Text("\nsingular values of the recurrent matrices", style="italic"))
    table = make_table(["\nrun", "\nmatrix", "\nlargest", "\nmedian", "\nsmallest", "spectral\nradius"], left=2)
    for report in reports:
        for matrix in report.matrices:
            values = matrix.singular_values
            layer = f" layer {matrix.layer + 1}" if len(report.trace.layers) > 1 else ""
            numbers = (values[0], values[len(values) // 2], values[-1], matrix.spectral_radius)
            table.add_row(Text(report.name), f"W_h {matrix.name}{layer}", *(f"{number:.3f}" for number in numbers))
    console.print(table)
    console.print()
    for line in (line for report in reports for line in describe_gradients(report)):
        console.print(line, markup=False)


def describe_gradients(report: "GradientReport") -> Iterator[str]:
    """Yield notes on the measured gradient and its bound after at most ten steps, and on clipping."""
    for flow in report.flows:
        steps = min(10, len(flow.measured) - 1)
        layer = f", layer {flow.layer + 1}" if len(report.flows) > 1 else ""
        gammas, later = f"({flow.gamma_w:.3f} · {flow.gamma_g:g})", f"{steps} step{'s' * (steps != 1)} later"
        yield (
            f"{report.name}{layer}: a change in h is scaled by {flow.measured[steps]:.2e} {later}; the "
            f"bound (γ_W γ_g)^{steps} = {gammas}^{steps} is {flow.bound[steps]:.2e}"
        )
    clip, clipped_fraction = report.clipping, report.clipped_fraction
    norm = f"{report.name}: ‖g‖ on this text is {clip.norm:.3g}"
    if clip.clip is None:
        yield f"{norm}; the recipe does not clip"
        return
    does = f"would be clipped to {clip.clipped:.3g}" if clip.factor < 1 else "is not clipped"
    trained = (
        "" if clipped_fraction is None else f"; in training {clipped_fraction:.0%} of the logged steps were clipped"
    )
    yield f"{norm}; with clip_norm = {clip.clip:g} it {does}{trained}"
