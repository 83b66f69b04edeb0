"""Training steps on a GPU with and without CUDA graphs: differences between the losses, and speed.

Each recipe is trained for a few steps in both ways, from the same random seed, in float32. The report has the largest
relative difference between the losses of the first twelve steps, and the speed of the next forty steps. Nothing is
compiled, because the training runs are short.

    python benchmarks/graphed_steps.py lm-char-lstm gpt-pydocs translate-cldr
    python benchmarks/graphed_steps.py                                            all recipes without a download
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from peers.options import print_load

from seqloom import accel
from seqloom.accel.training.graphed_step import MIN_COMPILED_STEPS
from seqloom.core.errors import SeqloomError
from seqloom.recipes import read_recipe
from seqloom.train.events import Prepared
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState
from seqloom.train.wrappers import wrap
from seqloom.training import begin

RECIPES = [
    "translate-cldr",
    "translate-cldr-transformer",
    "lm-char-lstm",
    "lm-bpe-gru",
    "lm-word-lstm",
    "lm-word-adaptive",
    "gpt-pydocs",
    "bert-pydocs",
    "denoise-pydocs",
    "elmo-pydocs",
    "ffnn-pydocs",
    "tag-people",
    "names",
    "toys-adding",
    "toys-copy",
    "toys-recall",
    "similarity-scenes",
    "answer-scenes",
    "series-forecast",
    "series-classify",
]
LOSSES, TIMED = 12, 40


def train(name: str, fast: bool, device: str) -> tuple[list[float], float, TrainState]:
    """Return the first losses, the tokens per second of the following steps, and the training state."""
    settings = [f"train.steps={MIN_COMPILED_STEPS - 1}", "train.epochs=null", "train.precision=fp32"]
    _, recipe = read_recipe(name, [*settings, f"train.device={device}"])
    with tempfile.TemporaryDirectory() as folder:
        task = begin(recipe, Path(folder) / "run").task
    accel.install()
    state = TrainState(task, replace(recipe.train, cuda_graphs=fast), recipe.seed)
    step = wrap(state)
    first = [make_step(state, step) for _ in range(LOSSES)]
    state.settle()
    before, start = state.tally.tokens, time.perf_counter()
    for _ in range(TIMED):
        make_step(state, step)
    state.settle()
    return [result.loss for result in first], (state.tally.tokens - before) / (time.perf_counter() - start), state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("There is no GPU, so nothing is measured.")
        return
    print_load(1)
    print(f"{'recipe':28} {'difference':>10} {'tokens/s':>12} {'CUDA graphs':>12} {'×':>5}")
    for name in options.recipes:
        try:
            plain, slow, _ = train(name, False, options.device)
            graphed, fast, state = train(name, True, options.device)
        except SeqloomError as error:
            print(f"{name:28} {error}")
            continue
        difference = max(abs(a - b) / abs(a) for a, b in zip(plain, graphed, strict=True))
        notes = "; ".join(note for event in state.events if isinstance(event, Prepared) for note in event.notes)
        print(f"{name:28} {difference:10.1e} {slow:12,.0f} {fast:12,.0f} {fast / slow:5.1f}  {notes}", flush=True)


if __name__ == "__main__":
    main()
