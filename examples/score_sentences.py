"""Compare the probabilities of sentences with a word LSTM and a 5-gram model on the same tokens.

Run it: python examples/score_sentences.py
"""

import tempfile
from pathlib import Path

import seqloom

SHORT = ["train.steps=120", "train.lr=1e-2", "train.warmup=10", "model.hidden=128", "batch.eval_size=8"]
PAIRS = [
    ("The value of the expression is an object.", "object the value is expression The an of."),
    ("Virat Kohli plays cricket for India.", "plays Kohli cricket for India Virat."),
]

with tempfile.TemporaryDirectory() as folder:
    models = {
        "LSTM": seqloom.train_recipe("lm-word-lstm", *SHORT, out=Path(folder) / "lstm"),
        "5-gram": seqloom.train_recipe("ngram-kn5", out=Path(folder) / "ngram"),
    }
    for pair in PAIRS:
        for name, model in models.items():
            print(f"{name}, log-probability of the text, END included:")
            for scored in model.score(pair):
                print(f"  {scored.log_prob:9.3f}  {scored.text}")
        if scored.unknown:
            print(f"  Not in the vocabulary: {', '.join(scored.unknown)}. Each is read as <unk>, so the scores")
            print("  compare mostly the positions of unknown words. A model of newspaper text would know them.")
        print()
