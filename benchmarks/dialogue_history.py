"""Bits per character of the targets of text-to-text runs, which are comparable between tokenizers.

The perplexity per token depends on the tokenizer, and the tokenizer of a dialogue depends on the length of the history.
Without a split, the dev split is measured:

    python benchmarks/dialogue_history.py runs/dialogue-shakespeare runs/history --split test
"""

import math

from peers.options import Parser, run_main

from seqloom.core.errors import UsageError
from seqloom.predict.loader import load
from seqloom.predict.translate import TranslatorPredictor


def bits_per_character(translator: TranslatorPredictor, split: str) -> tuple[int, float]:
    """Return the number of pairs, and −Σ log₂ p of all targets divided by their characters, each with an end."""
    task = translator.training_task
    targets = task.texts(split, "target")
    nats = task.losses(translator.model, split)["loss"] * len(task.side_tokens(split, "target").ids)
    return len(targets), nats / math.log(2) / sum(len(target) + 1 for target in targets)


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("runs", nargs="+", help="run directories of the task translate")
    parser.add_argument("--split", default="dev", help="the measured split (dev)")
    arguments = parser.parse_args()
    for path in arguments.runs:
        translator = load(path)
        if not isinstance(translator, TranslatorPredictor):
            raise UsageError(f"Every run must be {TranslatorPredictor.description}, but {translator.name} is not.")
        pairs, bits = bits_per_character(translator, arguments.split)
        print(f"{path}: {arguments.split}, {pairs:,} pairs, {bits:.3f} bits per character")


if __name__ == "__main__":
    run_main(main)
