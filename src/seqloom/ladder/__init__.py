"""Ladders: one recipe varied in a few named ways, at equal size and equal budget, several seeds each.

A ladder is a YAML file: a base recipe and rungs, each a list of overrides. Every rung and seed is
an ordinary run, so a ladder that was stopped, or killed, goes on where it was, and what is finished
is not trained again.

    ladder = solve(read_ladder("ladder-lm", ["train.steps=200"]))
    for run, event in climb(ladder, Path("runs/ladder-lm")):
        ...
    for rung in results(ladder, Path("runs/ladder-lm")).rungs:
        print(rung.name, rung.mean, rung.deviation)
"""

from seqloom.ladder.plan import Ladder, LadderConfig, Rung, ladder_names, read_ladder, solve
from seqloom.ladder.runs import (
    LadderResult,
    LadderRun,
    RungResult,
    RunResult,
    climb,
    ladder_runs,
    results,
)

__all__ = [
    "Ladder",
    "LadderConfig",
    "LadderResult",
    "LadderRun",
    "RunResult",
    "Rung",
    "RungResult",
    "climb",
    "ladder_names",
    "ladder_runs",
    "read_ladder",
    "results",
    "solve",
]
