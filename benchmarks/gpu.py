"""seqloom on a GPU compared with the models of Hugging Face, by alternating measurements of the same work.

training    complete steps of an encoder–decoder (BART) and of a language model (GPT-2), bf16, on random tokens
            and, if available, on Multi30k
cells       every recurrent cell, forward and backward (`cells.py`)
decoding    beam search compared with `generate` (`beam_speed.py`)

python benchmarks/gpu.py --data FOLDER            all parts; FOLDER contains multi30k/
python benchmarks/gpu.py training --json result.json
python benchmarks/gpu.py --smoke                  a small version, also on a CPU, to test the benchmark
"""

import argparse
import gc
import platform
import sys
import time
from typing import Any

import beam_speed
import torch
import transformers
from peers import gpu_training, recurrence
from peers.options import PARTS, Parser, common, print_load, real_data, run_main
from peers.turns import write_result


def train(options: argparse.Namespace) -> list[dict[str, Any]]:
    results = []
    for work in gpu_training.works(options.smoke, real_data(options.data)):
        if not any(word in work.name for word in options.only):
            continue

        def make_programs(ours: gpu_training.Ours, work: gpu_training.Work = work) -> dict[str, Any]:
            others: dict[str, Any] = {}
            if options.plain:
                others["seqloom, train.cuda_graphs=false"] = gpu_training.Ours(work, options.device, cuda_graphs=False)
            return others | {"Hugging Face": gpu_training.Theirs(ours, options.device)}

        result = gpu_training.measure(work, options.device, options.rounds, options.steps, make_programs)
        print("\n".join(gpu_training.lines(result)), flush=True)
        results.append(result)
        gc.collect()  # compiled code and CUDA graphs are not reused by other rows
        torch._dynamo.reset()
        if options.device == "cuda":
            torch.cuda.empty_cache()
    return results


def measure_cells(options: argparse.Namespace) -> dict[str, Any]:
    return recurrence.compared(options.device, options.rounds, small=options.smoke)


def decode(options: argparse.Namespace) -> dict[str, Any]:
    parser = Parser()
    beam_speed.arguments(parser)
    selected = f"--device {options.device} --rounds {options.rounds} --widths 128 512 --sentences 512".split()
    selected += beam_speed.SMALL if options.smoke else []
    return beam_speed.decoding(parser.parse_args([*selected, "--peers", "Hugging Face"]))


def parse_options() -> argparse.Namespace:
    parser = Parser(__doc__)
    common(parser, steps=30)
    words = "training: rows with one of these words in their names; default: all"
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help=words)
    parser.add_argument("--plain", action="store_true", help="training: also seqloom without CUDA graphs")
    options = parser.parse_args()
    options.parts = options.parts or PARTS
    if options.smoke:
        options.rounds, options.steps = 2, 2
    if "training" in options.parts:
        names = [work.name for work in gpu_training.works(options.smoke, real_data(options.data))]
        for word in options.only:
            if not any(word in name for name in names):
                parser.error(f"argument --only: no row has {word!r} in its name; there are {'; '.join(names)}")
    return options


def main() -> None:
    options = parse_options()
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.device == "cpu" and not options.smoke:
        print("There is no GPU. --smoke runs a small version of everything on a CPU.")
        return
    transformers.logging.set_verbosity_error()
    machine = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", "benchmarks/gpu.py", *sys.argv[1:]]),
    }
    print(", ".join(f"{name} {value}" for name, value in machine.items()) + f"; {options.rounds} rounds", flush=True)
    machine["load"] = print_load(1)
    print(flush=True)
    result: dict[str, Any] = {"machine": machine}
    run = {"training": train, "cells": measure_cells, "decoding": decode}
    for part in options.parts:
        result[part] = run[part](options)
        write_result(options.json, result)
        print(flush=True)


if __name__ == "__main__":
    run_main(main)
