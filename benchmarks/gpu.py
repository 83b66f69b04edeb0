"""seqloom on a GPU beside Hugging Face's models: the same work, in the same run, in turns.

training    whole steps of an encoder–decoder (BART) and of a language model (GPT-2), bf16; of tokens drawn at random
            and, where the data is there, of Multi30k
cells       every recurrent cell, forward and backward (`cells.py`)
decoding    beam search beside `generate` (`beam_speed.py`)

python benchmarks/gpu.py --data FOLDER                    all of it; FOLDER has multi30k/
python benchmarks/gpu.py training --json result.json
python benchmarks/gpu.py --smoke                          small, and on a CPU too: does everything run?
"""

import argparse
import gc
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import beam_speed
import torch
import transformers
from peers import gpu_training, recurrence
from peers.turns import written

PARTS = ("training", "cells", "decoding")


def train(options: argparse.Namespace) -> list[dict[str, Any]]:
    real = bool(os.environ.get("SEQLOOM_DATA"))
    found = []
    for work in gpu_training.works(options.smoke, real):
        if not any(word in work.name for word in options.only):
            continue

        def ways(ours: gpu_training.Ours, work: gpu_training.Work = work) -> dict[str, Any]:
            others: dict[str, Any] = {}
            if options.plain:
                others["seqloom, train.fast=false"] = gpu_training.Ours(work, options.device, fast=False)
            return others | {"Hugging Face": gpu_training.Theirs(ours, options.device)}

        one = gpu_training.measured(work, options.device, options.rounds, options.steps, ways)
        print("\n".join(gpu_training.lines(one)), flush=True)
        found.append(one)
        gc.collect()  # what one row compiled and recorded is of no use to the next
        torch._dynamo.reset()
        if options.device == "cuda":
            torch.cuda.empty_cache()
    return found


def recur(options: argparse.Namespace) -> dict[str, Any]:
    return recurrence.compared(options.device, options.rounds, small=options.smoke)


def decode(options: argparse.Namespace) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    beam_speed.arguments(parser)
    wanted = f"--device {options.device} --rounds {options.rounds} --widths 128 512 --sentences 512"
    if options.smoke:
        wanted += " --widths 32 --hidden 16 --sentences 4 --batch 2 --fixed 5"
    return beam_speed.decoding(parser.parse_args([*wanted.split(), "--peers", "Hugging Face"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="all of them unless told")
    parser.add_argument("--data", help="the folder with multi30k/")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=30, help="updates of each round of training")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="rows of training with one of these words in their names"
    )
    parser.add_argument("--plain", action="store_true", help="seqloom without the captured step, too")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    options = parser.parse_args()
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.device == "cpu" and not options.smoke:
        print("There is no GPU here: nothing is measured. --smoke tries everything on a CPU, small.")
        return
    if options.smoke:
        options.rounds, options.steps = 2, 2
    if options.data:
        os.environ["SEQLOOM_DATA"] = str(Path(options.data).resolve())
    transformers.logging.set_verbosity_error()
    machine = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", "benchmarks/gpu.py", *sys.argv[1:]]),
    }
    print(", ".join(f"{name} {value}" for name, value in machine.items()) + f"; {options.rounds} rounds\n", flush=True)
    result: dict[str, Any] = {"machine": machine}
    run = {"training": train, "cells": recur, "decoding": decode}
    for part in options.parts or PARTS:
        result[part] = run[part](options)
        written(options.json, result)
        print(flush=True)


if __name__ == "__main__":
    main()
