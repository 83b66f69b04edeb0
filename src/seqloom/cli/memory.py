"""How far back each cell remembers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._input import parse_numbers, parse_words
from seqloom.cli._options import Device, JsonObject
from seqloom.cli._output import check_out, print_json

if TYPE_CHECKING:
    from seqloom.inspect.views.memory import Memory, MemoryPlan


def memory(
    test: Annotated[str, typer.Option(help="recall (which symbol came first?) or adding (which sum?).")] = "recall",
    cells: Annotated[str, typer.Option(help="Cells to compare, with commas: `seqloom list cells`.")] = "elman,lstm,gru",
    lags: Annotated[str, typer.Option(help="Lags to measure, with commas.")] = "5,10,20,40",
    steps: Annotated[
        int | None, typer.Option(help="Updates of each training. [default: recall 500, adding 1000]")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Trainings of each cell and lag, with commas.")] = "1,2,3",
    hidden: Annotated[int, typer.Option(help="Width of an LSTM; every cell gets as many parameters as it has.")] = 32,
    forget_bias: Annotated[float | None, typer.Option(help="How far the LSTM's forget gate starts open.")] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="recall: train at the tested lag alone, not at all up to it.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Also draw it here: .png or .svg.")] = None,
    as_json: JsonObject = False,
    device: Device = "auto",
) -> None:
    """Success at a memory test against the lag, for each cell: `seqloom memory --test adding --out memory.png`."""
    options: dict[str, Any] = {
        "cells": parse_words("--cells", cells, "elman,lstm"),
        "lags": parse_numbers("--lags", lags, "5,10,20"),
        "seeds": parse_numbers("--seeds", seeds, "1,2,3"),
    }
    from seqloom.inspect.plots.figures import to_bytes
    from seqloom.inspect.plots.measurements import draw_memory
    from seqloom.inspect.views.memory import MemoryPlan

    plan = MemoryPlan(
        test=test, steps=steps, hidden=hidden, forget_bias=forget_bias, exact=exact, device=device, **options
    )
    check_out(out)
    found = _measure(plan)
    print_json(_object(found)) if as_json else _print(found)
    if out is not None:
        from seqloom.core.files import write_atomic

        write_atomic(out, to_bytes(draw_memory(found), out.suffix))
        typer.echo(f"The picture is in {out}.", err=as_json)


def _measure(plan: "MemoryPlan") -> "Memory":
    """A line on standard error for every cell and lag as soon as it is measured: all of it may take minutes."""
    from seqloom.inspect.views.memory import collect, measure

    outcomes = []
    for one in measure(plan):
        outcomes.append(one)
        if one.seed == plan.seeds[-1]:
            found = "  ".join(f"{other.success:.3f}" for other in outcomes[-len(plan.seeds) :])
            typer.echo(f"{one.cell}, lag {one.lag}: {found}", err=True)
    return collect(plan, outcomes)


def _object(found: "Memory") -> dict[str, Any]:
    plan = found.plan
    cells = {
        cell: {
            "hidden": found.hidden[cell],
            "parameters": found.parameters[cell],
            "reach": found.reach(cell),
            "success": found.success[number].tolist(),
        }
        for number, cell in enumerate(plan.cells)
    }
    head = {"test": plan.test, "lags": plan.lags, "seeds": plan.seeds, "steps": plan.updates, "exact": plan.exact}
    return {**head, "forget_bias": plan.forget_bias, "blind": found.blind, "cells": cells}


def _print(found: "Memory") -> None:
    """Mean over seeds, and from the worst to the best where there are several."""
    plan = found.plan
    many = len(plan.seeds) > 1
    spread = ", mean over seeds (worst–best)" if many else ""
    print(f"{plan.test}, share answered right after {plan.updates:,} updates{spread}; a blind guess: {found.blind:.3f}")
    width = 22 if many else 10
    heads = "".join(f"{f'lag {lag}':>{width}}" for lag in plan.lags)
    print(f"{'cell':10}{'hidden':>7}{'parameters':>12}{heads}{'holds to':>10}")
    for number, cell in enumerate(plan.cells):
        columns = ""
        for row in found.success[number]:
            share = f"{row.mean():.3f}" + (f" ({row.min():.3f}–{row.max():.3f})" if many else "")
            columns += f"{share:>{width}}"
        reach = found.reach(cell)
        shown = "-" if reach is None else str(reach)
        print(f"{cell:10}{found.hidden[cell]:7}{found.parameters[cell]:12,}{columns}{shown:>10}")
