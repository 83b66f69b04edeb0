"""seqloom on a CPU compared with every peer that can be installed, by alternating measurements of the same work.

    training    a small translation Transformer: seqloom, Hugging Face Trainer, Joey NMT; real target tokens per second
    cells       every recurrent cell, forward and backward: seqloom, the layers of torch, the plain loop (`cells.py`)
    decoding    beam search: seqloom, CTranslate2, `generate` of Hugging Face (`beam_speed.py`)

Each peer has a separate environment under .venv-peers/, which is created on first use (gigabytes, some minutes). Peers
that cannot be installed are reported and omitted. The order alternates between rounds. Ratios are computed for each
round and shown as median (minimum–maximum).

    python benchmarks/cpu.py --data FOLDER            Multi30k from the data folder (or SEQLOOM_DATA)
    python benchmarks/cpu.py                          without the data folder: the embedded corpus
    python benchmarks/cpu.py training --rounds 9 --json result.json
    python benchmarks/cpu.py --smoke                  a small version without peers, to test the benchmark
"""

import argparse
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import beam_speed
import torch
from peers import recurrence, training
from peers.options import PARTS, Parser, common, count, print_load, real_data, run_main
from peers.turns import write_result

from seqloom.recipes import read_recipe

MULTI30K, EMBEDDED = "translate-multi30k", "translate-cldr-transformer"
SMALL = [
    "tokenizer.size=300",
    "batch.tokens=256",
    "model.d_model=32",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
]
DECODERS = {"ctranslate2": "CTranslate2", "huggingface": "Hugging Face"}
PEERS = list(dict.fromkeys([*training.PEERS, *DECODERS]))


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def recipe_of(options: argparse.Namespace) -> tuple[str, list[str]]:
    """Return the recipe of the training part and its overrides."""
    name = MULTI30K if real_data(options.data) else EMBEDDED
    return name, [*(SMALL if options.smoke else []), *options.overrides]


def train(options: argparse.Namespace) -> dict[str, Any]:
    rivals = [name for name in training.PEERS if name in options.peers]
    with tempfile.TemporaryDirectory() as folder:
        plan = training.write_work(Path(folder), *recipe_of(options), options.steps, options.rounds, options.threads)
        result = training.compare(Path(folder), plan, rivals, options.rounds)
    print(training.format_result(result), flush=True)
    return result


def measure_cells(options: argparse.Namespace) -> dict[str, Any]:
    return recurrence.compared("cpu", options.rounds, options.threads, small=options.smoke)


def decode(options: argparse.Namespace) -> dict[str, Any]:
    parser = Parser()
    beam_speed.arguments(parser)
    selected = [
        f"--threads={options.threads}",
        f"--rounds={options.rounds}",
        *(beam_speed.SMALL if options.smoke else ()),
    ]
    rivals = [title for name, title in DECODERS.items() if name in options.peers]
    return beam_speed.decoding(parser.parse_args([*selected, "--peers", *rivals]))


def parse_options() -> argparse.Namespace:
    parser = Parser(__doc__)
    common(parser, steps=6)
    parser.add_argument("--threads", type=count, default=2, help="all parts: CPU threads (2)")
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=PEERS,
        metavar="PEER",
        help=f"training: {', '.join(training.PEERS)}; decoding: {', '.join(DECODERS)}. Default: all, none with "
        "--smoke; --peers without names: none",
    )
    changed = "training: a recipe override such as batch.tokens=2048; repeatable"
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help=changed)
    options = parser.parse_args()
    options.parts = options.parts or PARTS
    if options.peers is None:
        options.peers = [] if options.smoke else PEERS
    if options.smoke:
        options.rounds, options.steps = 2, 2
    if "training" in options.parts:  # reports problems of the recipe before measuring
        name, overrides = recipe_of(options)
        read_recipe(name, [*training.TINY, *overrides])
    return options


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    machine = {
        "processor": processor(),
        "threads": options.threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", "benchmarks/cpu.py", *sys.argv[1:]]),
    }
    print(f"{processor()}, {options.threads} threads, torch {torch.__version__}; {options.rounds} rounds", flush=True)
    machine["load"] = print_load(options.threads)
    print(flush=True)
    result: dict[str, Any] = {"machine": machine}
    run = {"training": train, "cells": measure_cells, "decoding": decode}
    for part in options.parts:
        result[part] = run[part](options)
        print(flush=True)
        write_result(options.json, result)


if __name__ == "__main__":
    run_main(main)
