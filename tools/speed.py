"""Compare the speed of two checkouts on this machine. Rounds alternate, and a ratio is computed for each round.

    python tools/speed.py OLD NEW --rounds 15 --data FOLDER --json result.json
    python tools/speed.py OLD NEW --rounds 15 --device cuda

On a CPU, each round starts `benchmarks/cpu.py` of one checkout without peers, and then that of the other checkout. On a
GPU, compilation takes longer than the measurement. Therefore, one process of each checkout (`benchmarks/gpu_rows.py`)
prepares all rows and measures them on request. The order changes with every round. A ratio above 1 means that NEW is
faster. No other programs should run on the machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PARTS = {"cells": ["--rounds", "3"], "training": ["--rounds", "2"], "decoding": ["--rounds", "1"]}


def measure(checkout: Path, part: str, data: Path | None) -> dict[str, float]:
    """Run one part of a checkout's benchmarks and return the rate of each row. A higher rate is faster."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "benchmarks/cpu.py", part, "--peers", "--json", str(result), *PARTS[part]]
        environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
        if data is not None:
            command += ["--data", str(data)]
        subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=subprocess.DEVNULL)
        return dict(rates(part, json.loads(result.read_text())[part]))


def rates(part: str, result: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield each row of seqloom in a result with its rate."""
    if part == "cells":
        for size, cells in result.items():
            for cell, ways in cells.items():
                yield f"{cell}, {size}", 1000 / ways["seqloom"]["milliseconds"]
    elif part == "training":
        yield "training, Transformer 128", statistics.median(result["found"]["seqloom"]["tokens_per_second"])
    else:
        for row in result["results"]:
            yield f"decoding, {row['name']}", row["speeds"]["seqloom"]["median"]


def compare_cpu(
    checkouts: list[Path], parts: list[str], rounds: int, data: Path | None
) -> Iterator[tuple[str, list[float]]]:
    """Yield the rows of all parts with the ratios of their rounds."""
    for part in parts:
        ratios: dict[str, list[float]] = {}
        for number in range(rounds):
            measured = {checkout: measure(checkout, part, data) for checkout in checkouts[:: 1 - 2 * (number % 2)]}
            old, new = (measured[checkout] for checkout in checkouts)
            for row in old:
                ratios.setdefault(row, []).append(new[row] / old[row])
        yield from ratios.items()


def compare_gpu(checkouts: list[Path], parts: list[str], rounds: int) -> Iterator[tuple[str, list[float]]]:
    """Yield the rows of both checkouts with the ratios of their rounds."""
    processes = [
        subprocess.Popen(
            [sys.executable, "gpu_rows.py", *parts],
            cwd=checkout / "benchmarks",
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(checkout / "src"), os.environ.get("PYTHONPATH", "")])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for checkout in checkouts
    ]

    def ask(process: subprocess.Popen[str], row: str) -> float:
        assert process.stdin is not None and process.stdout is not None
        print(row, file=process.stdin, flush=True)
        return float(json.loads(process.stdout.readline()))

    old, new = processes
    for process in processes:
        assert process.stdout is not None
        rows = json.loads(process.stdout.readline())
    for row in rows:
        ratios = []
        for number in range(rounds + 1):
            rate = {process: ask(process, row) for process in processes[:: 1 - 2 * (number % 2)]}
            ratios.append(rate[new] / rate[old])
        yield row, ratios[1:]  # the first round is a warm-up
    for process in processes:
        process.communicate()


def interval(values: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of a median, computed from the ranks of the sorted values (sign test)."""
    ordered, count = sorted(values), len(values)
    below = max(0, round(count / 2 - 0.98 * count**0.5) - 1)
    return ordered[below], ordered[-1 - below]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--data", type=Path, help="folder with multi30k/; without it the embedded corpus is used")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    checkouts = [options.old.resolve(), options.new.resolve()]
    if options.device == "cuda":
        comparison = compare_gpu(checkouts, options.parts, options.rounds)
    else:
        comparison = compare_cpu(
            checkouts, options.parts, options.rounds, options.data.resolve() if options.data else None
        )
    print(f"{'':44} new / old   95 % of the median   rounds")
    found = {}
    for row, found[row] in comparison:
        low, high = interval(found[row])
        print(
            f"{row:44} {statistics.median(found[row]):9.3f}   {low:.3f} to {high:.3f}       {options.rounds}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
