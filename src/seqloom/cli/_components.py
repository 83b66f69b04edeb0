"""`seqloom inspect components`: the level, slope and season of a series."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqloom.cli._options import JsonObject, PictureOut
from seqloom.cli._output import check_out, print_json, write_picture

if TYPE_CHECKING:
    from seqloom.inspect.views.series import Components

SHOWN = 12  # steps at the end that are listed


def components(
    run: Annotated[Path, typer.Argument(help="A run of series-forecast with model.kind=kalman.")],
    split: Annotated[Literal["train", "dev", "test"], typer.Option(help="Up to the end of which split.")] = "test",
    column: Annotated[str | None, typer.Option(help="Which variable. [default: the first]")] = None,
    out: PictureOut = None,
    as_json: JsonObject = False,
) -> None:
    """The level, slope and season of a series: `seqloom inspect components runs/kalman --out components.png`."""
    from seqloom.inspect.plots.series import draw_components
    from seqloom.inspect.views.series import components as of
    from seqloom.predict.loader import load

    check_out(out)
    found = of(load(run, "cpu"), split, column)
    if out is not None:
        write_picture(out, draw_components(found, run.name))
    if as_json:
        parts = {name: {"mean": mean.tolist(), "deviation": dev.tolist()} for name, (mean, dev) in found.parts.items()}
        head = {"run": str(run), "series": found.series, "variable": found.variable, "logarithmic": found.logarithmic}
        observed = [None if value != value else value for value in found.observed.tolist()]
        print_json({**head, "noise": found.noise, "times": _times(found), "observed": observed, "parts": parts})
    else:
        _print(run, found)


def _times(found: "Components") -> list[str]:
    from seqloom.data.times import labels_of

    return labels_of(found.times)


def _print(run: Path, found: "Components") -> None:
    log = " (logarithms)" if found.logarithmic else ""
    shown = min(SHOWN, len(found.observed))
    print(f"{run}: {found.variable} of {found.series}{log}, the last {shown} steps, ± 2 deviations")
    print(f"{'time':16}{'observed':>12}" + "".join(f"{name:>22}" for name in found.parts))
    for step in range(max(0, len(found.observed) - SHOWN), len(found.observed)):
        value = found.observed[step]
        cells = "".join(f"{f'{mean[step]:.5g} ± {2 * dev[step]:.2g}':>22}" for mean, dev in found.parts.values())
        print(f"{_times(found)[step]:16}{'missing' if value != value else f'{value:.6g}':>12}{cells}")
