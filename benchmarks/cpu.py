"""seqloom on a CPU beside every peer that can be installed: the same work, in the same run, in turns.

    training    a tiny Transformer learns to translate: seqloom, a Hugging Face Trainer, Joey NMT; real target tokens/s
    cells       every recurrent cell, forward and backward: seqloom, torch's layers, the plain loop (`cells.py`)
    decoding    beam search: seqloom, CTranslate2, Hugging Face's generate (`beam_speed.py`)

Each peer lives in an environment of its own under .venv-peers/, which is made when it is first wanted (gigabytes, some
minutes). What cannot be installed is said and left out. Rounds alternate in order; ratios are taken round by round and
shown as median (lowest–highest).

    python benchmarks/cpu.py --data FOLDER            Multi30k from the data folder (or the environment's SEQLOOM_DATA)
    python benchmarks/cpu.py                          without one: the embedded corpus
    python benchmarks/cpu.py training --rounds 9 --json result.json
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import beam_speed
import torch
from peers import recurrence, training
from peers.turns import written

MULTI30K, EMBEDDED = "translate-multi30k", "translate-cldr-transformer"
PARTS = ("training", "cells", "decoding")


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def train(options: argparse.Namespace) -> dict[str, Any]:
    recipe = MULTI30K if os.environ.get("SEQLOOM_DATA") else EMBEDDED
    with tempfile.TemporaryDirectory() as folder:
        plan = training.lay_out(Path(folder), recipe, options.overrides, options.steps, options.rounds, options.threads)
        result = training.compare(Path(folder), plan, options.peers, options.rounds)
    print(training.shown(result), flush=True)
    return result


def recur(options: argparse.Namespace) -> dict[str, Any]:
    return recurrence.compared("cpu", options.rounds, options.threads)


def decode(options: argparse.Namespace) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    beam_speed.arguments(parser)
    return beam_speed.decoding(parser.parse_args([f"--threads={options.threads}", f"--rounds={options.rounds}"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="all of them unless told")
    parser.add_argument("--data", help="the folder with multi30k/")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6, help="updates of each round of training")
    parser.add_argument("--peers", nargs="*", default=list(training.RIVALS), choices=list(training.RIVALS))
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="of the recipe: batch.tokens=2048")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    options = parser.parse_args()
    if options.data:
        os.environ["SEQLOOM_DATA"] = str(Path(options.data).resolve())
    torch.set_num_threads(options.threads)
    machine = {
        "processor": processor(),
        "threads": options.threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", "benchmarks/cpu.py", *sys.argv[1:]]),
    }
    print(f"{processor()}, {options.threads} threads, torch {torch.__version__}; {options.rounds} rounds\n", flush=True)
    result: dict[str, Any] = {"machine": machine}
    run = {"training": train, "cells": recur, "decoding": decode}
    for part in options.parts or PARTS:
        result[part] = run[part](options)
        print(flush=True)
        written(options.json, result)


if __name__ == "__main__":
    main()
