"""Comparison of forecasts of real series: the seasonal naive forecast, linear models and networks.

Every kind of model of the task `forecast` is trained on the first 70 % of a series. CRPS on dev, with the first random
seed, selects values or differences, or the structure of the Kalman filter. The results are measured on test with
rolling origins; they are the mean and standard deviation over the random seeds. Linear models are not random and need
one run.

    python benchmarks/series.py --series co2 sunspots sea --seeds 1 2 3
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from seqloom.recipes import read_recipe
from seqloom.training import begin

DIFFERENCES = [("model.difference=none",), ("model.difference=step",), ("model.difference=season",)]
STRUCTURES = [
    ("model.structure=level",),
    ("model.structure=trend",),
    ("model.structure=free", "model.hidden=3"),
    ("model.structure=seasonal",),
    ("model.structure=seasonal", "model.damped=true"),
]
KINDS = {
    "ar": DIFFERENCES,
    "kalman": STRUCTURES,
    "ffn": DIFFERENCES,
    "lstm": DIFFERENCES,
    "transformer": DIFFERENCES,
}
LINEAR = ("ar", "kalman")
SEASONLESS = ("nile", "macro", "weather", "stocks")
FIGURES = ("mase", "crps", "coverage_80", "coverage_95")


def train(series: str, kind: str, seed: int, overrides: tuple[str, ...], more: list[str]) -> dict[str, Any]:
    """Return the dev and test metrics of one training run, and its duration in seconds."""
    inputs = [f"data.series={series}", f"model.kind={kind}", f"seed={seed}", "forecast.horizon=null", *overrides, *more]
    _, recipe = read_recipe("series-forecast", inputs)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        training = begin(recipe, Path(folder) / "run")
        for _ in training.events():
            pass
        seconds = time.perf_counter() - start
        model = training.run.model("cpu")
        results = {split: training.task.evaluate(model, split) for split in ("dev", "test")}
        return {**results, "seconds": seconds, "horizon": training.task.horizon, "season": training.task.corpus.season}


def candidates(kind: str, series: str) -> list[tuple[str, ...]]:
    """Return the settings to compare. Seasonal settings are returned only for series with a season."""
    return [
        setting
        for setting in KINDS[kind]
        if series not in SEASONLESS or not setting[0].endswith(("=season", "=seasonal"))
    ]


def measure(series: str, kind: str, seeds: list[int], more: list[str]) -> tuple[str, list[dict[str, Any]]]:
    """Return the setting selected on dev, and all runs with this setting."""
    tried = {setting: train(series, kind, seeds[0], setting, more) for setting in candidates(kind, series)}
    best = min(tried, key=lambda setting: tried[setting]["dev"]["crps"])
    rest = [] if kind in LINEAR else [train(series, kind, seed, best, more) for seed in seeds[1:]]
    message = ["damped" if setting == "model.damped=true" else setting.partition("=")[2] for setting in best]
    return " ".join(message), [tried[best], *rest]


def row(name: str, chosen: str, runs: list[dict[str, Any]], prefix: str = "") -> str:
    cells = []
    for figure in FIGURES:
        values = [run["test"][prefix + figure] for run in runs]
        spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        cells.append(f"{statistics.fmean(values):.3f}{spread}")
    seconds = "" if prefix else f"{statistics.fmean(run['seconds'] for run in runs):.0f}"
    return f"| {name} | {chosen} | {' | '.join(cells)} | {seconds} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", nargs="+", default=["co2", "sunspots", "sea"])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="more overrides of the recipe")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for series in arguments.series:
        for number, kind in enumerate(arguments.kinds):
            chosen, runs = measure(series, kind, arguments.seeds, arguments.set)
            if number == 0:
                print(f"\n{series}: {runs[0]['horizon']} steps ahead, season {runs[0]['season']}, test", flush=True)
                print(
                    "| model | difference | MASE | CRPS | in 80 % | in 95 % | seconds |\n|---|---|---|---|---|---|---|"
                )
                print(row("seasonal naive", "", runs[:1], "naive_"))
            print(row(kind, chosen, runs), flush=True)


if __name__ == "__main__":
    main()
