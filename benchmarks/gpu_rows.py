"""Measure rows of the GPU tables on request. `tools/speed.py --device cuda` starts this process in a checkout.

It prepares the rows of the parts that its arguments name (training, decoding, cells) and prints their names as a JSON
list. Then it reads the name of a row from each line of standard input and prints the rate of this row in tokens,
sentences or sequences per second.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import beam_speed
import cells
import torch
from peers import gpu_training

from seqloom import accel

Row = Callable[[], float]
STEPS = 20
SENTENCES, TOKENS = 512, 24


def training_rows() -> dict[str, Row]:
    def prepare(work: gpu_training.Work) -> Row:
        ours = gpu_training.Ours(work, "cuda")
        ours.run(3 * STEPS)

        def rate() -> float:
            start = time.perf_counter()
            return ours.run(STEPS) / (time.perf_counter() - start)

        return rate

    return {f"training, {work.name}": prepare(work) for work in gpu_training.works(small=False, real=False)}


def decoding_rows() -> dict[str, Row]:
    options = SimpleNamespace(beam=5, batch=128, device="cuda")
    models = {f"Transformer {width}": beam_speed.random_transformer(width) for width in (128, 512)}
    models["LSTM 512"] = beam_speed.random_recurrent(512)
    sources = beam_speed.sentences(SENTENCES, TOKENS)

    def prepare(model: torch.nn.Module) -> Row:
        search = beam_speed.ours(model.to("cuda"), sources, options, TOKENS)
        search()
        return lambda: SENTENCES / search()[1]

    return {f"decoding, {name}": prepare(model) for name, model in models.items()}


def cell_rows() -> dict[str, Row]:
    size, rows = cells.SIZES["cuda"], {}
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(0)
        x = torch.randn(size["rows"], size["steps"], size["hidden"], device="cuda", requires_grad=True)
        for name in cells.VARIANTS:
            with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bfloat16"), torch.device("cuda"):
                program = cells.build_programs(name, x, size["hidden"], None)["seqloom"]
                replay = cells.capture_graph(program)
            rows[f"cell {name}, {precision}"] = CellRow(program, replay, size["rows"])
    return rows


@dataclass
class CellRow:
    """A function that replays the graph of a program. It owns the weights that the graph reads."""

    program: cells.Program
    replay: Callable[[], None]
    sequences: int

    def __call__(self) -> float:
        return self.sequences / gpu_seconds(self.replay)


def gpu_seconds(call: Callable[[], None]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000


def main() -> None:
    parts = {"training": training_rows, "decoding": decoding_rows, "cells": cell_rows}
    accel.install()
    rows: dict[str, Row] = {}
    for part in sys.argv[1:]:
        rows |= parts[part]()
    print(json.dumps(list(rows)), flush=True)
    for line in sys.stdin:
        print(json.dumps(rows[line.strip()]()), flush=True)


if __name__ == "__main__":
    main()
