"""Say how a series goes on, with a trained forecaster."""

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._options import Device, JsonObject, PictureOut, Run
from seqloom.cli._output import check_out, print_json, print_notes, write_picture
from seqloom.cli._output import columns as cells
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean

if TYPE_CHECKING:
    from seqloom.inspect.views.series import ForecastView


LEAST_DEVIATION = 1e-9  # of the mean: a deviation this small is none
TITLES = {"mean": "mean", "truth": "what came"}


def forecast(
    run: Run,
    horizon: Annotated[int | None, typer.Option(min=1, help="Steps to forecast. [default: the recipe's]")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--input", help="The series to continue: CSV, TSV or JSON Lines. [default: the training series]"),
    ] = None,
    time: Annotated[str | None, typer.Option(help="The time column of --input. [default: as in training]")] = None,
    time_format: Annotated[str | None, typer.Option(help="The time format of --input, such as '%d.%m.%Y'.")] = None,
    back: Annotated[int, typer.Option(min=0, help="Hold out the last steps and compare the forecast with them.")] = 0,
    out: PictureOut = None,
    columns: Annotated[str | None, typer.Option(help="Variables to show, separated by commas.")] = None,
    history: Annotated[int | None, typer.Option(min=2, help="Past steps to plot. [default: 5 horizons]")] = None,
    paths: Annotated[
        int | None, typer.Option(min=2, help="Sample paths, for models without an exact forecast.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample paths.")] = 0,
    as_json: JsonObject = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with one row per time and variable.")] = False,
    device: Device = "auto",
) -> None:
    """Forecast a time series: `seqloom forecast runs/X --horizon 24 --input series.csv --out forecast.png`."""
    if as_json and as_csv:
        raise UsageError("--json and --csv are two formats; choose one.")
    if file is None and (time is not None or time_format is not None):
        raise UsageError("--time and --time-format are about a file: name it with --input.")
    check_out(out)
    from seqloom.predict.forecast import ForecasterPredictor
    from seqloom.predict.loader import load

    model: ForecasterPredictor = load(run, device, ForecasterPredictor)
    column: int | str | None = int(time) if time is not None and time.isdecimal() else time
    result = model.forecast(file, horizon, back=back, paths=paths, seed=seed, time=column, time_format=time_format)
    names = result.columns if columns is None else [word.strip() for word in columns.split(",")]
    for name in names:
        if name not in result.columns:
            raise UsageError(f"There is no variable {name!r}: {did_you_mean(name, result.columns)}.")
    chosen = [result.columns.index(name) for name in names]
    rows = {result.columns[number]: result.rows(number) for number in chosen}
    print_notes(result.notes)
    if as_json:
        shares = {f"{share:.0%}": result.coverage(share) for share in result.intervals}
        head = {"model": result.model, "after": result.series.time_labels()[-1], "horizon": result.horizon}
        coverage = None if result.truth is None else shares
        print_json({**head, "exact": result.exact, "forecast": rows, "coverage": coverage, "notes": list(result.notes)})
    elif as_csv:
        keys = [key for key in next(iter(rows.values()))[0] if key != "time"]
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["time", "variable", *keys])
        for name, row in [(name, row) for name, forecast in rows.items() for row in forecast]:
            values = ("" if math.isnan(row[key]) else repr(row[key]) for key in keys)
            writer.writerow([row["time"], name, *values])
    else:
        print_forecast(result, rows)
    if out is not None:
        from seqloom.inspect.plots.series import draw_forecast

        write_picture(out, draw_forecast(result, history, chosen if columns else None))


def print_forecast(result: "ForecastView", variables: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Print a block for each variable."""
    how = "exact" if result.exact else "from drawn paths"
    print(f"{result.model}, {result.horizon} steps after {result.series.time_labels()[-1]}, {how}")
    for name, rows in variables.items():
        # So many digits that a tenth of the deviation is seen; of what hardly deviates, a tenth of the mean.
        usual = sorted(abs(row["deviation"]) for row in rows)[len(rows) // 2]
        size = max(abs(row["mean"]) for row in rows)
        usual = (size or 1.0) if usual <= LEAST_DEVIATION * size else usual
        digits = min(max(0, 1 - math.floor(math.log10(usual))), 9) if math.isfinite(usual) else 2
        width = max(len(row["time"]) for row in rows)
        keys = [key for key in rows[0] if key not in ("time", "median", "deviation")]
        titles = (TITLES.get(key) or key.replace("_", " ") + " %" for key in keys)
        print(f"\n{name}\n{'time':{width}}" + cells(titles, 12))
        for row in rows:
            values = ("" if math.isnan(row[key]) else f"{row[key]:,.{digits}f}" for key in keys)
            print(f"{row['time']:{width}}" + cells(values, 12))
    if result.truth is not None:
        shares = [f"{result.coverage(share):.0%} in the {share:.0%} interval" for share in result.intervals]
        print(f"\nof what came lie {', '.join(shares)}")
