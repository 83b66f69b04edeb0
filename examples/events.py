"""Training is a generator of events; this script draws the loss curve as text.

Run it: python examples/events.py
"""

import tempfile
from pathlib import Path

from seqloom.recipes import read_recipe
from seqloom.train.events import Evaluated, Finished, Progress, Started
from seqloom.training import begin

OVERRIDES = ["train.steps=60", "train.warmup=5", "train.log_every=5", "model.hidden=64", "batch.eval_size=8"]

with tempfile.TemporaryDirectory() as folder:
    name, recipe = read_recipe("lm-char-lstm", OVERRIDES)
    training = begin(recipe, Path(folder) / name)
    for event in training.events():
        match event:
            case Started(parameters=parameters, device=device):
                print(f"{parameters:,} parameters on {device}")
            case Progress(step=step, values=values):
                print(f"{step:4}  {values['loss']:.3f}  {'█' * round(values['loss'] * 10)}")
            case Evaluated(split=split, metrics=metrics):
                print(f"{split}: {metrics['bits_per_character']:.3f} bits per character")
            case Finished(reason=reason, seconds=seconds):
                print(f"{reason}, {seconds:.1f} s")
