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
    python benchmarks/cpu.py --smoke                  small, and without peers: does everything run?
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
from peers.asked import PARTS, Parser, common, count, real_data, say_load, told
from peers.turns import written

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
PEERS = list(dict.fromkeys([*training.RIVALS, *DECODERS]))


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def recipe_of(options: argparse.Namespace) -> tuple[str, list[str]]:
    """The recipe of training, and what is changed of it."""
    name = MULTI30K if real_data(options.data) else EMBEDDED
    return name, [*(SMALL if options.smoke else []), *options.overrides]


def train(options: argparse.Namespace) -> dict[str, Any]:
    rivals = [name for name in training.RIVALS if name in options.peers]
    with tempfile.TemporaryDirectory() as folder:
        plan = training.lay_out(Path(folder), *recipe_of(options), options.steps, options.rounds, options.threads)
        result = training.compare(Path(folder), plan, rivals, options.rounds)
    print(training.shown(result), flush=True)
    return result


def recur(options: argparse.Namespace) -> dict[str, Any]:
    return recurrence.compared("cpu", options.rounds, options.threads, small=options.smoke)


def decode(options: argparse.Namespace) -> dict[str, Any]:
    parser = Parser()
    beam_speed.arguments(parser)
    wanted = [
        f"--threads={options.threads}",
        f"--rounds={options.rounds}",
        *(beam_speed.SMALL if options.smoke else ()),
    ]
    rivals = [title for name, title in DECODERS.items() if name in options.peers]
    return beam_speed.decoding(parser.parse_args([*wanted, "--peers", *rivals]))


def options_given() -> argparse.Namespace:
    parser = Parser(__doc__)
    common(parser, steps=6)
    parser.add_argument("--threads", type=count, default=2, help="all parts: of the CPU (2)")
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=PEERS,
        metavar="PEER",
        help=f"training: {', '.join(training.RIVALS)}; decoding: {', '.join(DECODERS)}. All unless told, with --smoke "
        "none; --peers alone is none, too",
    )
    changed = "training: a change of the recipe, batch.tokens=2048; may be given again"
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help=changed)
    options = parser.parse_args()
    options.parts = options.parts or PARTS
    if options.peers is None:
        options.peers = [] if options.smoke else PEERS
    if options.smoke:
        options.rounds, options.steps = 2, 2
    if "training" in options.parts:  # what is wrong with the recipe is said before anything is measured
        name, overrides = recipe_of(options)
        read_recipe(name, [*training.TINY, *overrides])
    return options


def main() -> None:
    options = options_given()
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
    machine["load"] = say_load(options.threads)
    print(flush=True)
    result: dict[str, Any] = {"machine": machine}
    run = {"training": train, "cells": recur, "decoding": decode}
    for part in options.parts:
        result[part] = run[part](options)
        print(flush=True)
        written(options.json, result)


if __name__ == "__main__":
    told(main)
