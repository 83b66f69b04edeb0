"""The sensitivity of a language model to word order, measured by how many dev sentences are more probable than a
shuffle.

    python benchmarks/shuffles.py runs/lm-ptb-lstm --sentences 500 --seed 1

Sentences of fewer than four words, and shuffles that equal their sentences, are omitted.
"""

import argparse
import random

from seqloom.data import corpora
from seqloom.predict.loader import load
from seqloom.recipes import read_recipe


def pairs(documents: list[str], count: int, seed: int) -> list[tuple[str, str]]:
    """Return (sentence, shuffle) for `count` sentences drawn without replacement."""
    draw = random.Random(seed)
    results = []
    for document in draw.sample(documents, len(documents)):
        words = document.split()
        shuffled = draw.sample(words, len(words))
        if len(words) >= 4 and shuffled != words:
            results.append((" ".join(words), " ".join(shuffled)))
        if len(results) == count:
            break
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    model = load(arguments.run)
    corpus = corpora.load(read_recipe(f"{arguments.run}/recipe.yaml")[1].data)
    chosen = pairs(list(corpus.split("dev")), arguments.sentences, arguments.seed)
    real = model.score([sentence for sentence, _ in chosen])
    shuffled = model.score([shuffle for _, shuffle in chosen])
    above = sum(entry.log_prob > other.log_prob for entry, other in zip(real, shuffled, strict=True))
    print(f"{above} of {len(chosen)} sentences ({above / len(chosen):.1%}) are likelier than their shuffle")


if __name__ == "__main__":
    main()
