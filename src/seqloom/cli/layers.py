"""What each kind of layer costs as the sequence grows."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._input import parse_numbers, parse_words
from seqloom.cli._options import Device, JsonObject, PictureOut
from seqloom.cli._output import check_out, print_json, write_picture

if TYPE_CHECKING:
    from seqloom.inspect.views.layers import Layers, LayersPlan, Measured

KINDS = "self-attention,windowed,recurrent,convolution,dilated"


def layers(
    lengths: Annotated[str, typer.Option(help="Lengths of sequences, with commas.")] = "64,256,1024,4096",
    width: Annotated[int, typer.Option(help="How wide every layer is.")] = 512,
    kinds: Annotated[str, typer.Option(help="Layers to compare, with commas.")] = KINDS,
    heads: Annotated[int, typer.Option(help="Of the layers that attend.")] = 8,
    kernel: Annotated[int, typer.Option(help="Places a convolution sees at once; odd.")] = 3,
    window: Annotated[int, typer.Option(help="Places windowed attention sees on either side.")] = 32,
    cell: Annotated[str, typer.Option(help="Of the recurrent layer: `seqloom list cells`.")] = "lstm",
    batch: Annotated[int, typer.Option(help="Sequences in a pass.")] = 1,
    repeats: Annotated[int, typer.Option(help="Passes that are timed, after the warm-up.")] = 5,
    weights: Annotated[
        bool, typer.Option("--weights", help="Self-attention in the open: its weights are written down.")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="Threads on a CPU. [default: as many as PyTorch takes]")] = None,
    seed: Annotated[int, typer.Option(help="Of weights and inputs.")] = 1,
    out: PictureOut = None,
    as_json: JsonObject = False,
    device: Device = "auto",
) -> None:
    """Time, memory, sequential steps and path length of each kind of layer: `seqloom layers --out layers.png`."""
    given: dict[str, Any] = {
        "lengths": parse_numbers("--lengths", lengths, "64,256,1024"),
        "kinds": parse_words("--kinds", kinds, "self-attention,recurrent"),
    }
    from seqloom.inspect.views.layers import LayersPlan

    plan = LayersPlan(
        width=width,
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
        **given,
    )
    check_out(out)
    found = _measure(plan)
    print_json(_object(found)) if as_json else print("\n".join(_lines(found)))
    if out is not None:
        from seqloom.inspect.plots.measurements import draw_layers

        write_picture(out, draw_layers(found))


def _measure(plan: "LayersPlan") -> "Layers":
    """A line on standard error for every layer and length as soon as it is measured."""
    from seqloom.inspect.views.layers import collect, measure

    measured = []
    for one in measure(plan):
        measured.append(one)
        memory = "" if one.memory is None else f", {_mebibytes(one.memory)} MiB"
        shown = f"{_milliseconds(one.time)} ms{memory}" if one.time is not None else one.failure
        typer.echo(f"{one.kind}, n = {one.length:,}: {shown}", err=True)
    return collect(plan, measured)


def _object(found: "Layers") -> dict[str, Any]:
    from seqloom.inspect.views.layers import QUANTITIES
    from seqloom.nn.mixers import MIXERS

    plan = found.plan
    names = ("width", "heads", "kernel", "window", "cell", "batch", "repeats", "weights", "seed")
    exponents = {quantity: found.exponents(quantity) for quantity in QUANTITIES}
    kinds = {}
    for kind, rows in found.measured.items():
        kinds[kind] = {
            "complexity": f"O({MIXERS[kind].complexity})",
            "sequential": f"O({MIXERS[kind].sequential})",
            "longest_path": f"O({MIXERS[kind].path})",
            "seconds": [list(one.seconds) for one in rows],
            **{quantity: found.values(quantity, kind) for quantity in QUANTITIES},
            "exponents": {quantity: exponents[quantity][kind] for quantity in QUANTITIES},
            "fitted": list(found.fitted(kind)),
            "failures": [one.failure for one in rows],
        }
    head = {"lengths": list(found.lengths), **{name: getattr(plan, name) for name in names}}
    return {**head, "device": found.device, "threads": found.threads, "layers": kinds, "remarks": found.remarks()}


def _lines(found: "Layers") -> list[str]:
    plan = found.plan
    return [
        f"{found.settings()}; {found.machine()}",
        *_block(found, f"forward and backward, ms: median of {plan.repeats} (fastest–slowest)", _time),
        *_block(found, "memory such a pass holds at most, MiB", lambda one: _mebibytes(one.memory)),
        *_block(found, "operations that must wait for each other", lambda one: _whole(one.chain)),
        *_block(found, "from y_n back to x_1: layers, recurrent: steps", lambda one: _whole(one.path)),
        *_table(found),
        *(["", *(f"note: {remark}" for remark in remarks)] if (remarks := found.remarks()) else []),
    ]


def _block(found: "Layers", title: str, show: Any) -> list[str]:
    rows = {kind: [show(one) for one in rows] for kind, rows in found.measured.items()}
    heads = [f"n = {length:,}" for length in found.lengths]
    wide = 2 + max(len(text) for texts in (heads, *rows.values()) for text in texts)
    lines = [f"{kind:16}" + "".join(f"{text:>{wide}}" for text in texts) for kind, texts in rows.items()]
    return ["", title, " " * 16 + "".join(f"{head:>{wide}}" for head in heads), *lines]


def _table(found: "Layers") -> list[str]:
    """The comparison table, what was measured beside what is said."""
    from seqloom.inspect.views.layers import QUANTITIES
    from seqloom.nn.mixers import MIXERS

    powers = {quantity: found.exponents(quantity) for quantity in QUANTITIES}
    rows = [["layer", "complexity", "counted", "time", "memory", "sequential", "measured", "longest path", "measured"]]
    for kind, measured in found.measured.items():
        said = MIXERS[kind]
        shown = {quantity: _power(powers[quantity][kind]) for quantity in QUANTITIES}
        for name in ("chain", "path"):
            shown[name] += _from_to([getattr(one, name) for one in measured])
        row = [kind, f"O({said.complexity})", shown["count"], shown["time"], shown["memory"]]
        rows.append([*row, f"O({said.sequential})", shown["chain"], f"O({said.path})", shown["path"]])
    wide = [2 + max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "",
        *("".join(f"{text:{room}}" for text, room in zip(row, wide, strict=True)).rstrip() for row in rows),
        _fit(found),
    ]


def _fit(found: "Layers") -> str:
    told = found.fit()
    if not told:
        return "An exponent takes two lengths at least."
    return f"n^…: slope of log against log over {told}. Counted: multiplications of a forward pass."


def _time(one: "Measured") -> str:
    if one.time is None:
        return "–"
    spread = f" ({_milliseconds(min(one.seconds))}–{_milliseconds(max(one.seconds))})" if len(one.seconds) > 1 else ""
    return _milliseconds(one.time) + spread


def _milliseconds(seconds: float) -> str:
    return _digits(1000 * seconds)


def _mebibytes(count: int | None) -> str:
    return "–" if count is None else _digits(count / 2**20)


def _digits(value: float) -> str:
    """Three of them, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _whole(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _power(exponent: float | None) -> str:
    return "–" if exponent is None else f"n^{exponent:.2f}"


def _from_to(values: list[int | None]) -> str:
    """What was found at the shortest and at the longest length."""
    known = [value for value in values if value is not None]
    return f", {known[0]:,} → {known[-1]:,}" if known else ""
