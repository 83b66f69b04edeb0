"""Experiments without a run: the memory of recurrent cells, and the cost of layers."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._options import Device, JsonObject, PlotOut, parse_numbers, parse_words
from seqloom.cli._output import Json, align_cells, check_plot_path, print_json, write_plot

if TYPE_CHECKING:
    from seqloom.inspect.views.layers import Layers, Measurement
    from seqloom.inspect.views.memory import Memory

KINDS = "self-attention,windowed,recurrent,convolution,dilated"
PLAN_KEYS = (
    "d_model",
    "heads",
    "kernel",
    "window",
    "cell",
    "batch",
    "repeats",
    "weights",
    "seed",
)  # keys of --json


def memory_test(
    test: Annotated[str, typer.Option(help="The test: recall or adding.")] = "recall",
    cells: Annotated[
        str, typer.Option(help="Cells, separated by commas; see `seqloom list cells`.")
    ] = "elman,lstm,gru",
    lags: Annotated[str, typer.Option(help="Lags, separated by commas.")] = "5,10,20,40",
    steps: Annotated[
        int | None, typer.Option(help="Training steps. [default: 500 for recall, 1000 for adding]")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "1,2,3",
    hidden: Annotated[
        int, typer.Option(help="Hidden size of the LSTM; other cells get the same number of parameters.")
    ] = 32,
    forget_bias: Annotated[float | None, typer.Option(help="Initial bias of the LSTM's forget gate.")] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="For recall: train only at the tested lag instead of at every lag up to it.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the plot to this .png or .svg file.")] = None,
    as_json: JsonObject = False,
    device: Device = "auto",
) -> None:
    """Measure how long each cell remembers: `seqloom memory-test --test adding --out memory.png`."""
    options: dict[str, Any] = {
        "cells": parse_words("--cells", cells, "elman,lstm"),
        "lags": parse_numbers("--lags", lags, "5,10,20"),
        "seeds": parse_numbers("--seeds", seeds, "1,2,3"),
    }
    from seqloom.core.files import write_atomic
    from seqloom.inspect.plots.figures import to_bytes
    from seqloom.inspect.plots.measurements import draw_memory
    from seqloom.inspect.views.memory import MemoryPlan, collect, measure

    plan = MemoryPlan(
        test=test, steps=steps, hidden=hidden, forget_bias=forget_bias, exact=exact, device=device, **options
    )
    check_plot_path(out)
    outcomes = []
    for outcome in measure(plan):
        outcomes.append(outcome)
        if outcome.seed == plan.seeds[-1]:  # print each lag when it is complete, because the test may take minutes
            successes = "  ".join(f"{other.success:.3f}" for other in outcomes[-len(plan.seeds) :])
            typer.echo(f"{outcome.cell}, lag {outcome.lag}: {successes}", err=True)
    result = collect(plan, outcomes)
    print_json(memory_to_json(result)) if as_json else print_memory(result)
    if out is not None:
        write_atomic(out, to_bytes(draw_memory(result), out.suffix))
        typer.echo(f"Wrote {out}.", err=as_json)


def memory_to_json(result: "Memory") -> Json:
    """Return the results of a memory test as JSON values."""
    plan = result.plan
    cells = {
        cell: {
            "hidden": result.hidden[cell],
            "parameters": result.parameters[cell],
            "reach": result.reach(cell),
            "success": result.success[number],
        }
        for number, cell in enumerate(plan.cells)
    }
    head = {"test": plan.test, "lags": plan.lags, "seeds": plan.seeds, "steps": plan.updates, "exact": plan.exact}
    return {**head, "forget_bias": plan.forget_bias, "blind": result.blind, "cells": cells}


def print_memory(result: "Memory") -> None:
    """Print the mean over seeds, with the range if there are several."""
    plan = result.plan
    has_seeds = len(plan.seeds) > 1
    spread = ", mean over seeds (worst–best)" if has_seeds else ""
    print(f"{plan.test}, accuracy after {plan.updates:,} steps{spread}; without memory: {result.blind:.3f}")
    width = 22 if has_seeds else 10
    heads = align_cells((f"lag {lag}" for lag in plan.lags), width)
    print(f"{'cell':10}{'hidden':>7}{'parameters':>12}{heads}{'reach':>10}")
    for number, cell in enumerate(plan.cells):
        rows = result.success[number]
        spreads = [f" ({row.min():.3f}–{row.max():.3f})" if has_seeds else "" for row in rows]
        accuracies = align_cells(
            (f"{row.mean():.3f}{spread}" for row, spread in zip(rows, spreads, strict=True)), width
        )
        reach = "-" if (reach := result.reach(cell)) is None else str(reach)
        print(f"{cell:10}{result.hidden[cell]:7}{result.parameters[cell]:12,}{accuracies}{reach:>10}")


def layers(
    lengths: Annotated[str, typer.Option(help="Sequence lengths, separated by commas.")] = "64,256,1024,4096",
    d_model: Annotated[int, typer.Option(help="The size of the vectors, d_model.")] = 512,
    kinds: Annotated[str, typer.Option(help="Kinds of layers, separated by commas.")] = KINDS,
    heads: Annotated[int, typer.Option(help="Number of attention heads.")] = 8,
    kernel: Annotated[int, typer.Option(help="Kernel size of the convolutions, an odd number.")] = 3,
    window: Annotated[int, typer.Option(help="Window of windowed attention, in positions per side.")] = 32,
    cell: Annotated[str, typer.Option(help="Cell of the recurrent layer; see `seqloom list cells`.")] = "lstm",
    batch: Annotated[int, typer.Option(help="Batch size.")] = 1,
    repeats: Annotated[int, typer.Option(help="Number of timed passes.")] = 5,
    weights: Annotated[
        bool,
        typer.Option("--weights", help="Compute the attention weights explicitly instead of using the fused kernel."),
    ] = False,
    threads: Annotated[int | None, typer.Option(help="Number of CPU threads. [default: PyTorch's]")] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 1,
    out: PlotOut = None,
    as_json: JsonObject = False,
    device: Device = "auto",
) -> None:
    """Measure time, memory, sequential steps and path length of layers: `seqloom layers --out layers.png`."""
    options: dict[str, Any] = {
        "lengths": parse_numbers("--lengths", lengths, "64,256,1024"),
        "kinds": parse_words("--kinds", kinds, "self-attention,recurrent"),
    }
    from seqloom.inspect.plots.measurements import draw_layers
    from seqloom.inspect.views.layers import LayersPlan, collect, measure

    plan = LayersPlan(
        d_model=d_model,
        heads=heads,
        kernel=kernel,
        window=window,
        cell=cell,
        batch=batch,
        repeats=repeats,
        weights=weights,
        threads=threads,
        seed=seed,
        device=device,
        **options,
    )
    check_plot_path(out)
    measured = []
    for layer in measure(plan):
        measured.append(layer)
        memory = "" if layer.memory is None else f", {format_mebibytes(layer.memory)} MiB"
        shown = layer.failure if layer.time is None else f"{format_milliseconds(layer.time)} ms{memory}"
        typer.echo(f"{layer.kind}, n = {layer.length:,}: {shown}", err=True)
    result = collect(plan, measured)
    print_json(layers_to_json(result)) if as_json else print_layers(result)
    if out is not None:
        write_plot(out, draw_layers(result))


def layers_to_json(result: "Layers") -> Json:
    """Return measurements of layers as JSON values."""
    from seqloom.inspect.views.layers import QUANTITIES
    from seqloom.nn.mixers import MIXERS

    exponents = {quantity: result.exponents(quantity) for quantity in QUANTITIES}
    kinds = {
        kind: {
            "complexity": f"O({MIXERS[kind].complexity})",
            "sequential": f"O({MIXERS[kind].sequential})",
            "longest_path": f"O({MIXERS[kind].path})",
            "seconds": [layer.seconds for layer in rows],
            **{quantity: result.values(quantity, kind) for quantity in QUANTITIES},
            "exponents": {quantity: exponents[quantity][kind] for quantity in QUANTITIES},
            "fitted": result.fitted(kind),
            "failures": [layer.failure for layer in rows],
        }
        for kind, rows in result.measured.items()
    }
    head = {"lengths": result.lengths, **{key: getattr(result.plan, key) for key in PLAN_KEYS}}
    return {**head, "device": result.device, "threads": result.threads, "layers": kinds, "remarks": result.remarks()}


def print_layers(result: "Layers") -> None:
    """Print a table for each quantity, then a comparison of measured and theoretical complexity."""
    from seqloom.inspect.views.layers import QUANTITIES
    from seqloom.nn.mixers import MIXERS

    repeats = result.plan.repeats
    blocks: dict[str, Callable[[Measurement], str]] = {
        f"forward and backward, ms: median of {repeats} (fastest–slowest)": format_time,
        "peak memory of a pass, MiB": lambda layer: format_mebibytes(layer.memory),
        "sequential operations": lambda layer: "–" if layer.chain is None else f"{layer.chain:,}",
        "path length from y_n to x_1, in layers (recurrent: in steps)": lambda layer: (
            "–" if layer.path is None else f"{layer.path:,}"
        ),
    }
    print(f"{result.settings()}; {result.machine()}")
    heads = [f"n = {length:,}" for length in result.lengths]
    for title, show in blocks.items():
        rows = {kind: [show(layer) for layer in measured] for kind, measured in result.measured.items()}
        width = 2 + max(len(text) for texts in (heads, *rows.values()) for text in texts)
        print(f"\n{title}\n{'':16}{align_cells(heads, width)}")
        for kind, texts in rows.items():
            print(f"{kind:16}{align_cells(texts, width)}")
    powers = {quantity: result.exponents(quantity) for quantity in QUANTITIES}
    table = [["layer", "complexity", "counted", "time", "memory", "sequential", "measured", "longest path", "measured"]]
    for kind, measured in result.measured.items():
        shown = {name: "–" if (power := powers[name][kind]) is None else f"n^{power:.2f}" for name in QUANTITIES}
        for name, values in (
            ("chain", [layer.chain for layer in measured]),
            ("path", [layer.path for layer in measured]),
        ):
            known = [value for value in values if value is not None]
            shown[name] += f", {known[0]:,} → {known[-1]:,}" if known else ""  # at the smallest and the largest length
        mixer = MIXERS[kind]
        row = [kind, f"O({mixer.complexity})", shown["count"], shown["time"], shown["memory"]]
        table.append([*row, f"O({mixer.sequential})", shown["chain"], f"O({mixer.path})", shown["path"]])
    widths = [2 + max(map(len, column)) for column in zip(*table, strict=True)]
    print()
    for row in table:
        print("".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    if fit := result.fit():
        print(
            f"n^… is the slope of the log-log fit over {fit}; counted: the exponent of the number of "
            f"multiplications in a forward pass."
        )
    else:
        print("The exponent can be computed only from two or more lengths.")
    if remarks := result.remarks():
        print("", *(f"note: {remark}" for remark in remarks), sep="\n")


def format_time(layer: "Measurement") -> str:
    """Format the median time in milliseconds and the range over all passes."""
    if layer.time is None:
        return "–"
    if len(layer.seconds) < 2:
        return format_milliseconds(layer.time)
    fastest, slowest = map(format_milliseconds, (min(layer.seconds), max(layer.seconds)))
    return f"{format_milliseconds(layer.time)} ({fastest}–{slowest})"


def format_milliseconds(seconds: float) -> str:
    """Format seconds as milliseconds with three digits."""
    return format_digits(1000 * seconds)


def format_mebibytes(count: int | None) -> str:
    """Format bytes as mebibytes with three digits."""
    return "–" if count is None else format_digits(count / 2**20)


def format_digits(value: float) -> str:
    """Format a number with three digits, or as a whole number if it is 100 or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
