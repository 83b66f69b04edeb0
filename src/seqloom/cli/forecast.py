"""`seqloom forecast`: continue a time series."""

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._options import Device, JsonObject, PlotOut, Run, RunData
from seqloom.cli._output import align_cells, check_plot_path, print_json, print_notes, write_plot
from seqloom.core import Json
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean

if TYPE_CHECKING:
    from seqloom.inspect.views.series import ForecastView


MIN_DEVIATION = 1e-9  # a smaller deviation relative to the mean is treated as 0
TITLES = {"mean": "mean", "truth": "observed"}


def forecast(
    run: Run,
    horizon: Annotated[
        int | None, typer.Option(min=1, help="Number of steps to forecast. [default: the recipe's]")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--input", help="The series to continue: CSV, TSV or JSON Lines. [default: the training series]"),
    ] = None,
    time: Annotated[str | None, typer.Option(help="The time column of --input. [default: as in training]")] = None,
    time_format: Annotated[str | None, typer.Option(help="The time format of --input, such as '%d.%m.%Y'.")] = None,
    back: Annotated[
        int, typer.Option(min=0, help="Hold out this many steps at the end and compare the forecast with them.")
    ] = 0,
    out: PlotOut = None,
    columns: Annotated[str | None, typer.Option(help="Variables to show, separated by commas.")] = None,
    history: Annotated[
        int | None, typer.Option(min=2, help="Number of past steps to plot. [default: 5 times the horizon]")
    ] = None,
    paths: Annotated[
        int | None, typer.Option(min=2, help="Number of sample paths, for models without an exact forecast.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample paths.")] = 0,
    as_json: JsonObject = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with one row per time and variable.")] = False,
    data: RunData = None,
    device: Device = "auto",
) -> None:
    """Forecast a time series: `seqloom forecast runs/X --horizon 24 --input series.csv --out forecast.png`."""
    if as_json and as_csv:
        raise UsageError("--json and --csv cannot be used together; choose one.")
    if file is None and (time is not None or time_format is not None):
        raise UsageError("--time and --time-format require a file: add --input FILE.")
    check_plot_path(out)
    from seqloom.data.files import use_data_folder
    from seqloom.predict.forecast import ForecasterPredictor
    from seqloom.predict.loader import load

    model: ForecasterPredictor = load(run, device, ForecasterPredictor)
    column: int | str | None = int(time) if time is not None and time.isdecimal() else time
    with use_data_folder(None, data):
        result = model.forecast(file, horizon, back=back, paths=paths, seed=seed, time=column, time_format=time_format)
    names = result.columns if columns is None else [word.strip() for word in columns.split(",")]
    for name in names:
        if name not in result.columns:
            raise UsageError(f"There is no variable {name!r}: {did_you_mean(name, result.columns)}.")
    chosen = [result.columns.index(name) for name in names]
    rows = {result.columns[number]: result.rows(number) for number in chosen}
    print_notes([*model.data_notes, *result.notes])
    if as_json:
        coverages = {f"{level:.0%}": result.coverage(level) for level in result.intervals}
        head = {"model": result.model, "after": result.series.time_labels()[-1], "horizon": result.horizon}
        coverage = None if result.truth is None else coverages
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

        write_plot(out, draw_forecast(result, history, chosen if columns else None))


def print_forecast(result: "ForecastView", variables: Mapping[str, Sequence[dict[str, Json]]]) -> None:
    """Print a table for each variable."""
    how = "exact distribution" if result.exact else "from sample paths"
    print(f"{result.model}, {result.horizon} steps after {result.series.time_labels()[-1]}, {how}")
    for name, rows in variables.items():
        # Show enough digits for a tenth of the deviation, or for a tenth of the mean if the deviation is almost zero.
        typical = sorted(abs(row["deviation"]) for row in rows)[len(rows) // 2]
        size = max(abs(row["mean"]) for row in rows)
        typical = (size or 1.0) if typical <= MIN_DEVIATION * size else typical
        digits = min(max(0, 1 - math.floor(math.log10(typical))), 9) if math.isfinite(typical) else 2
        width = max(len(row["time"]) for row in rows)
        keys = [key for key in rows[0] if key not in ("time", "median", "deviation")]
        titles = (TITLES.get(key) or key.replace("_", " ") + " %" for key in keys)
        print(f"\n{name}\n{'time':{width}}" + align_cells(titles, 12))
        for row in rows:
            values = ("" if math.isnan(row[key]) else f"{row[key]:,.{digits}f}" for key in keys)
            print(f"{row['time']:{width}}" + align_cells(values, 12))
    if result.truth is not None:
        coverages = [f"{result.coverage(level):.0%} in the {level:.0%} interval" for level in result.intervals]
        print(f"\nobserved values: {', '.join(coverages)}")
