"""`seqloom inspect track`: where a filter and a smoother think that something was."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqloom.cli._options import JsonObject, PictureOut
from seqloom.cli._output import check_out, print_json, write_picture

if TYPE_CHECKING:
    from seqloom.inspect.views.series import TrackTrace

ROWS = (("observed", "rmse_observed"), ("filtered", "rmse_filtered"), ("smoothed", "rmse_smoothed"))


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
    if out is not None:
        write_picture(out, draw_track(trace, run.name))
    if as_json:
        print_json({"run": str(run), **_object(trace)})
    else:
        _print(run, trace)


def _object(trace: "TrackTrace") -> dict[str, object]:
    arrays = {
        name: getattr(trace, name).tolist()
        for name in ("truth", "filtered", "filtered_covariances", "smoothed", "smoothed_covariances")
    }
    observed = [[None if value != value else value for value in row] for row in trace.observed.tolist()]
    return {"track": trace.name, "figures": trace.figures, "gaps": trace.gaps, "observed": observed, **arrays}


def _print(run: Path, trace: "TrackTrace") -> None:
    found = trace.figures
    gaps = f"{len(trace.gaps)} gap{'s' * (len(trace.gaps) != 1)}"
    print(f"{run}: track {trace.name}, {len(trace.truth)} steps, {gaps}; root mean square distance from the truth")
    print(f"{'':12}{'observed steps':>16}{'gaps':>10}{'within 95 %':>14}")
    for name, key in ROWS:
        gap, inside = found.get(f"gap_{name}"), found.get(f"within_{name}")
        cells = ["" if gap is None else f"{gap:.2f}", "" if inside is None else f"{inside:.1%}"]
        print(f"{name:12}{found[key]:16.2f}{cells[0]:>10}{cells[1]:>14}")
