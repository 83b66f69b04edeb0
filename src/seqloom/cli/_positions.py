"""`seqloom inspect positions`: what a Transformer is told of places."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seqloom.cli._options import JsonObject, PictureOut
from seqloom.cli._output import check_out, print_json, write_picture
from seqloom.core.errors import UsageError
from seqloom.core.words import counted

if TYPE_CHECKING:
    from seqloom.inspect.views.positions import PositionsView, Side

DISTANCES = (0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)


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
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    view = _of_options(length, side, options) if run is None else _of_run(run, length, side, options)
    if out is not None:
        from seqloom.inspect.plots.inputs import draw_positions

        write_picture(out, draw_positions(view))
    if as_json:
        print_json({"run": None if run is None else str(run), **view.to_json()})
    else:
        _print(view)


def _of_run(run: Path, length: int | None, side: "Side | None", options: dict[str, Any]) -> "PositionsView":
    if options:
        raise UsageError(f"--{next(iter(options))} is for sinusoids without a run; {run} has positions of its own.")
    from seqloom.inspect.views.positions import run_positions
    from seqloom.predict.loader import load

    return run_positions(load(run, "cpu"), length, side)


def _of_options(length: int | None, side: "Side | None", options: dict[str, Any]) -> "PositionsView":
    if side is not None:
        raise UsageError("--side is about the tables of a run: name one, or leave it out.")
    from seqloom.inspect.views.positions import LENGTH, sinusoids_view

    return sinusoids_view(length=LENGTH if length is None else length, **options)


def _print(view: "PositionsView") -> None:
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
