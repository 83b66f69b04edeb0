"""Train a language model on your own text: any UTF-8 file or folder of .txt files.

Run it: python examples/own_text.py
"""

import tempfile
from pathlib import Path

import seqloom

RECIPE = """
task: language-model
data: {{corpus: text, train: {text}, documents: line, dev_fraction: 0.1, test_fraction: 0}}
tokenizer: {{kind: characters}}
batch: {{size: 8, length: 32}}
model: {{cell: gru, hidden: 64}}
train: {{steps: 300, lr: 1.0e-2, schedule: cosine}}
"""

with tempfile.TemporaryDirectory() as folder:
    text, recipe = Path(folder) / "rounds.txt", Path(folder) / "rounds.yaml"
    colours, things = ("green", "brown", "blue"), ("bottles", "birds", "bells")
    lines = [f"{n} {c} {t} sitting on the wall" for n in range(2, 60) for c, t in zip(colours, things, strict=True)]
    text.write_text("\n".join(lines), encoding="utf-8")
    recipe.write_text(RECIPE.format(text=text), encoding="utf-8")  # `seqloom init` writes one with comments

    model = seqloom.train_recipe(recipe, out=Path(folder) / "run")
    print(f"perplexity per character on held-out lines: {model.evaluate('dev')['perplexity']:.2f}")
    for prompt in ("7 green", "12 brown", "3 blue"):
        print(prompt + model.generate(prompt, temperature=0.5, max_tokens=60))
