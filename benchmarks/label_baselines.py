"""Baselines of classification on embedded corpora: the largest class, a lookup in train, and naive Bayes.

    python benchmarks/label_baselines.py languages names

- majority: the most frequent label of train;
- copy: the label of the training text that shares most character trigrams, weighted by their rarity
  (`seqloom.data.copy_baseline`);
- naive Bayes: argmax over labels y of log p(y) + Σ_g log p(g | y), where g are the character n-grams of the text and
  p(g | y) = (count of g in texts of y + α) / (all counts of y + α · number of different g). n and α are chosen on dev.

"form in train" is the fraction of texts whose normal form (`seqloom.data.splits`) occurs in train. No result is random.
"""

import argparse
from collections import Counter
from collections.abc import Sequence

import numpy as np

from seqloom.data.copy_baseline import copy_baseline
from seqloom.data.corpora import corpora_of_form, find, load
from seqloom.data.examples import ParallelExample, TextClassificationExample
from seqloom.data.splits import normal_form

LONGEST = (1, 2, 3, 4, 5)  # values of n, the maximum characters of an n-gram
SMOOTHING = (0.01, 0.1, 1.0)  # values of α


def character_ngrams(text: str, longest: int) -> Counter[str]:
    """Count the character n-grams of a text with up to `longest` characters.

    Marks are added at its beginning and end.
    """
    marked = f"\n{text}\n"
    return Counter(
        marked[start : start + size] for size in range(1, longest + 1) for start in range(len(marked) - size + 1)
    )


class NaiveBayes:
    """Multinomial naive Bayes over character n-grams."""

    def __init__(self, train: Sequence[TextClassificationExample], longest: int) -> None:
        self.longest = longest
        self.labels = sorted({example.label for example in train})
        rows = {label: row for row, label in enumerate(self.labels)}
        runs = [character_ngrams(example.text, longest) for example in train]
        self.indices = {
            ngram: index for index, ngram in enumerate(dict.fromkeys(ngram for counts in runs for ngram in counts))
        }
        self.counts = np.zeros((len(self.labels), len(self.indices)), np.float32)
        for example, counts in zip(train, runs, strict=True):
            self.counts[rows[example.label], [self.indices[run] for run in counts]] += list(counts.values())
        texts = Counter(example.label for example in train)
        self.log_prior = np.log([texts[label] / len(train) for label in self.labels])

    def predict(self, texts: Sequence[str], alpha: float) -> list[str]:
        """Return the most probable label of each text. Unknown n-grams are ignored."""
        totals = self.counts.sum(axis=1, keepdims=True) + alpha * self.counts.shape[1]
        log_probs = np.log((self.counts + alpha) / totals)
        answers = []
        for text in texts:
            known = [
                (self.indices[run], n) for run, n in character_ngrams(text, self.longest).items() if run in self.indices
            ]
            indices, counts = zip(*known, strict=True) if known else ((), ())
            scores = self.log_prior + log_probs[:, list(indices)] @ np.array(counts, np.float32)
            answers.append(self.labels[int(scores.argmax())])
        return answers


def accuracy(answers: Sequence[str], examples: Sequence[TextClassificationExample]) -> float:
    return sum(answer == example.label for answer, example in zip(answers, examples, strict=True)) / len(examples)


def measure(name: str) -> dict[str, dict[str, float]]:
    """Print the settings chosen on dev. Return the columns of the table for dev and test as fractions."""
    corpus = load(find(name).Config())
    train, dev = corpus.split("train"), corpus.split("dev")
    majority = Counter(example.label for example in train).most_common(1)[0][0]
    pairs, known = (
        [ParallelExample(example.text, example.label) for example in train],
        {normal_form(example.text) for example in train},
    )
    models = {longest: NaiveBayes(train, longest) for longest in LONGEST}
    texts = [example.text for example in dev]
    longest, alpha = max(
        ((longest, alpha) for longest in LONGEST for alpha in SMOOTHING),
        key=lambda chosen: accuracy(models[chosen[0]].predict(texts, chosen[1]), dev),
    )
    print(f"{name} ({corpus.version}): {len(train):,} texts to train on, naive Bayes with n = {longest}, α = {alpha}")
    results = {}
    for split in ("dev", "test"):
        examples = corpus.split(split)
        texts = [example.text for example in examples]
        results[split] = {
            "majority": accuracy([majority] * len(examples), examples),
            "copy": accuracy(copy_baseline(pairs, texts), examples),
            "naive Bayes": accuracy(models[longest].predict(texts, alpha), examples),
            "form in train": sum(normal_form(text) in known for text in texts) / len(texts),
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "corpora",
        nargs="*",
        default=["languages"],
        choices=corpora_of_form("text-classification"),
        help="corpora",
    )
    for name in parser.parse_args().corpora:
        for split, fractions in measure(name).items():
            print(
                f"  {split:6}",
                *(f"{column} {100 * fraction:.2f} %" for column, fraction in fractions.items()),
                sep="  ",
            )


if __name__ == "__main__":
    main()
