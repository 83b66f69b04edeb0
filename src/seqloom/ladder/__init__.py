"""Ladders: variants of a recipe, compared at equal size and equal budget with several seeds.

A ladder is a YAML file with a base recipe and variants; each variant is a list of overrides. Every variant is trained
with every seed as an ordinary run. Therefore, a stopped ladder can resume, and finished runs are not trained again.

    ladder = solve(read_ladder("ladder-lm", ["train.steps=200"]))
    for run, event in train_ladder(ladder, Path("runs/ladder-lm")):
        ...
    for variant in collect_results(ladder, Path("runs/ladder-lm")).variants:
        print(variant.name, variant.mean, variant.deviation)
"""

from seqloom.ladder.plan import Ladder, LadderConfig, Variant, ladder_names, read_ladder, solve
from seqloom.ladder.runs import (
    LadderResult,
    LadderRun,
    RunResult,
    VariantResult,
    collect_results,
    list_runs,
    train_ladder,
)

__all__ = [
    "Ladder",
    "LadderConfig",
    "LadderResult",
    "LadderRun",
    "RunResult",
    "Variant",
    "VariantResult",
    "collect_results",
    "ladder_names",
    "list_runs",
    "read_ladder",
    "solve",
    "train_ladder",
]
