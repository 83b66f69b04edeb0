"""Average the weights of checkpoints, or of runs."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._options import DataDir, Device, JsonObject, run_out_option
from seqloom.cli._output import format_metric, print_json
from seqloom.cli.compare import METRICS
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from seqloom.predict.ensembles import Averaged


def average(
    runs: Annotated[list[Path], typer.Argument(help="A run directory; of several, the best weights are averaged.")],
    last: Annotated[int | None, typer.Option(min=1, help="How many of its newest checkpoints. [default: 10]")] = None,
    out: Annotated[Path | None, run_out_option("RUN-averaged")] = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
    device: Device = "auto",
) -> None:
    """The mean of a run's newest checkpoints as a new run, measured on dev: `seqloom average runs/X --last 10`."""
    if last is not None and len(runs) > 1:
        raise UsageError("--last is about the checkpoints of one run; of several runs, the best weights are averaged.")
    from seqloom.data.files import use_data_folder
    from seqloom.predict.ensembles import make_average

    with use_data_folder(data_dir):
        found = make_average(runs, last, out, device)
    for note in found.notes():
        typer.echo(f"note: {note}", err=True)
    print_json(_object(found)) if as_json else _print(found)


def _object(found: "Averaged") -> dict[str, Any]:
    return {
        "run": str(found.run.path),
        "from": [str(run.path) for run in found.made.runs],
        "steps": found.made.steps or None,
        "metrics": found.metrics,
        "alone": [{"name": one.name, "metrics": one.metrics} for one in found.alone],
    }


def _print(found: "Averaged") -> None:
    shown = [name for name in METRICS if name in found.metrics]
    first = "bleu" if "bleu" in shown else found.goal
    best = [f"{one.name.partition(', ')[0]} {format_metric(first, one.metrics[first])}" for one in found.alone]
    value = f"{METRICS.get(first, first)} {format_metric(first, found.metrics[first])}"
    print(f"averaged {found.made.what}: dev {value}, {', '.join(best)}")
    heads = ["averaged", *(one.name for one in found.alone)]
    print(f"  {'':12}" + "".join(f"  {head:>10}" for head in heads))
    every = [found.metrics, *(one.metrics for one in found.alone)]
    for name in shown:
        values = [(format_metric(name, metrics[name]), head) for metrics, head in zip(every, heads, strict=True)]
        print(f"  {METRICS[name]:12}" + "".join(f"  {value:>{max(10, len(head))}}" for value, head in values))
    path = shlex.quote(str(found.run.path))
    split = "test" if "test" in found.run.data["counts"] else "dev"
    print(f"The run is in {path}. Try: seqloom evaluate {path} --split {split}")
