"""Say how a series goes on, with a trained forecaster."""

import csv
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._options import Device, JsonObject, PictureOut, Run
from seqloom.cli._output import check_out, print_json, write_picture
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean

if TYPE_CHECKING:
    from seqloom.inspect.views.series import Forecasted


NOTHING = 1e-9  # beside the mean: a deviation this small is none


def forecast(
    run: Run,
    horizon: Annotated[int | None, typer.Option(min=1, help="Steps ahead. [default: as the recipe says]")] = None,
    file: Annotated[
        Path | None, typer.Option("--input", help="A series to go on with: CSV, TSV, JSON Lines. [default: its own]")
    ] = None,
    time: Annotated[str | None, typer.Option(help="Column of the times in --input. [default: as in training]")] = None,
    time_format: Annotated[str | None, typer.Option(help="How times are written there: '%d.%m.%Y'.")] = None,
    back: Annotated[
        int, typer.Option(min=0, help="Take away the last steps first, and show beside the forecast what came.")
    ] = 0,
    out: PictureOut = None,
    columns: Annotated[str | None, typer.Option(help="Variables to show: names with commas between.")] = None,
    history: Annotated[int | None, typer.Option(min=2, help="Steps of the past to draw. [default: 5 horizons]")] = None,
    paths: Annotated[
        int | None, typer.Option(min=2, help="Futures to draw, where the model has no exact answer.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides the futures that are drawn.")] = 0,
    as_json: JsonObject = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="A CSV table: one row for each time and variable.")] = False,
    device: Device = "auto",
) -> None:
    """Say how a series goes on: `seqloom forecast runs/X --horizon 24 --input series.csv --out forecast.png`."""
    if as_json and as_csv:
        raise UsageError("--json and --csv are two formats; choose one.")
    if file is None and (time is not None or time_format is not None):
        raise UsageError("--time and --time-format are about a file: name it with --input.")
    check_out(out)
    from seqloom.predict.forecast import ForecasterPredictor
    from seqloom.predict.loader import load

    model: ForecasterPredictor = load(run, device, ForecasterPredictor)
    column: int | str | None = int(time) if time is not None and time.isdecimal() else time
    found = model.forecast(file, horizon, back=back, paths=paths, seed=seed, time=column, time_format=time_format)
    chosen = _chosen(columns, found.columns)
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
    if as_json:
        print_json(_object(found, chosen))
    elif as_csv:
        _print_csv(found, chosen)
    else:
        _print_table(found, chosen)
    if out is not None:
        from seqloom.inspect.plots.series import draw_forecast

        write_picture(out, draw_forecast(found, history, chosen if columns else None))


def _chosen(words: str | None, columns: tuple[str, ...]) -> list[int]:
    if words is None:
        return list(range(len(columns)))
    names = [word.strip() for word in words.split(",")]
    for name in names:
        if name not in columns:
            raise UsageError(f"There is no variable {name!r}: {did_you_mean(name, columns)}.")
    return [columns.index(name) for name in names]


def _print_table(found: "Forecasted", chosen: list[int]) -> None:
    """A block for each variable."""
    after = found.series.time_labels()[-1]
    how = "exact" if found.exact else "from drawn paths"
    print(f"{found.model}, {found.horizon} steps after {after}, {how}")
    for column in chosen:
        rows = found.rows(column)
        digits = _digits([row["mean"] for row in rows], [row["deviation"] for row in rows])
        width = max(len(row["time"]) for row in rows)
        names = [name for name in rows[0] if name not in ("time", "median", "deviation")]
        print(f"\n{found.columns[column]}\n{'time':{width}}" + "".join(f"{_title(name):>12}" for name in names))
        for row in rows:
            cells = "".join(f"{_shown(row[name], digits):>12}" for name in names)
            print(f"{row['time']:{width}}{cells}")
    if found.truth is not None:
        shares = [f"{found.inside(share):.0%} in the {share:.0%} interval" for share in found.intervals]
        print(f"\nof what came lie {', '.join(shares)}")


def _title(name: str) -> str:
    return {"mean": "mean", "truth": "what came"}.get(name) or name.replace("_", " ") + " %"


def _digits(means: list[float], deviations: list[float]) -> int:
    """So many that a tenth of the deviation is seen; of what hardly deviates, a tenth of the mean."""
    usual, size = sorted(map(abs, deviations))[len(deviations) // 2], max(map(abs, means))
    if usual <= NOTHING * size:
        usual = size or 1.0
    return min(max(0, 1 - math.floor(math.log10(usual))), 9) if math.isfinite(usual) else 2


def _shown(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:,.{digits}f}"


def _print_csv(found: "Forecasted", chosen: list[int]) -> None:
    """A row for each time and variable."""
    names = list(found.rows(chosen[0])[0])
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["time", "variable", *names[1:]])
    for column in chosen:
        for row in found.rows(column):
            cells = ["" if math.isnan(row[name]) else repr(row[name]) for name in names[1:]]
            writer.writerow([row["time"], found.columns[column], *cells])


def _object(found: "Forecasted", chosen: list[int]) -> dict[str, Any]:
    return {
        "model": found.model,
        "after": found.series.time_labels()[-1],
        "horizon": found.horizon,
        "exact": found.exact,
        "forecast": {found.columns[column]: found.rows(column) for column in chosen},
        "coverage": {f"{share:.0%}": found.inside(share) for share in found.intervals}
        if found.truth is not None
        else None,
        "notes": list(found.notes),
    }
