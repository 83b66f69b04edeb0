"""Train a small character model for a few seconds and generate text.

Run it: python examples/train_and_generate.py

A run of a few seconds learns spaces, letters and some words; `seqloom train lm-char-lstm` runs the full recipe.
"""

import tempfile
from pathlib import Path

import seqloom

with tempfile.TemporaryDirectory() as folder:
    place = Path(folder) / "run"
    seqloom.train_recipe(
        "lm-char-lstm", "train.steps=200", "train.warmup=10", "model.hidden=96", "batch.eval_size=8", out=place
    )

    model = seqloom.load(place)  # a run directory is self-contained
    print(model)
    print("\nThe class", end="")
    for piece in model.generate("The class", max_tokens=120, temperature=0.7, seed=7, stream=True):
        print(piece, end="", flush=True)

    metrics = model.evaluate("test")
    print(f"\n\ntest: perplexity {metrics['perplexity']:.2f}, {metrics['bits_per_character']:.3f} bits per character")
