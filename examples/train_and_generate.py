"""Train a small character model for a few seconds and let it write.

Run it: python examples/train_and_generate.py

So short a training gets as far as spaces, letters and the odd word; `seqloom train lm-char-lstm` is the whole recipe.
"""

import tempfile
from pathlib import Path

import seqloom

with tempfile.TemporaryDirectory() as folder:
    place = Path(folder) / "run"
    seqloom.train_recipe(
        "lm-char-lstm", "train.steps=200", "train.warmup=10", "model.hidden=96", "batch.eval_size=8", out=place
    )

    model = seqloom.load(place)  # a run is all it takes, today or in a year
    print(model)
    print("\nThe class", end="")
    for piece in model.generate("The class", max_tokens=120, temperature=0.7, seed=7):
        print(piece, end="", flush=True)

    metrics = model.evaluate("test")
    print(f"\n\ntest: perplexity {metrics['perplexity']:.2f}, {metrics['bits_per_character']:.3f} bits per character")
