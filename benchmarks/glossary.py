"""Data for an experiment with a glossary: a small corpus, terms that it lacks, and test sentences with these terms.

    python benchmarks/glossary.py DATA            # writes DATA/train.tsv, terms.tsv, test.tsv and recipe.yaml
    seqloom train DATA/recipe.yaml --out RUN
    seqloom evaluate RUN DATA/test.tsv --glossary DATA/terms.tsv

The pairs are sentences of Tatoeba, English to German (SEQLOOM_DATA). train.tsv is a part of the training split. The
glossary translates words that occur at most twice in train.tsv. The translations come from co-occurrences in the other
pairs of the training split. The glossary therefore contains errors, but does not depend on the test split.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from seqloom.core.files import write_atomic
from seqloom.data.corpora import load, tatoeba
from seqloom.data.examples import ParallelExample
from seqloom.data.glossary import Glossary

WORD = re.compile(r"[^\W\d_]+(?:[-’'][^\W\d_]+)*")
MAX_KNOWN = 2  # maximum occurrences of a term in train.tsv
MIN_PAIRS = 3  # minimum number of pairs in which a word and its translation occur
# Minimum of 2 n_ab / (n_a + n_b) for the best translation, and for its alternatives
MIN_DICE, MIN_OTHER_DICE = 0.5, 0.3
MAX_FORMS = 3
RECIPE = """task: translate
seed: {seed}
data: {{corpus: parallel, train: {folder}/train.tsv, source: en, target: de, dev_fraction: 0.02, test_fraction: 0}}
tokenizer: {{kind: byte-pair, size: 4000}}
batch: {{tokens: 1024}}
model: {{kind: transformer, d_model: 128, heads: 4, encoder_layers: 2, decoder_layers: 2, d_ff: 256, tied: all}}
loss: {{label_smoothing: 0.1}}
decode: {{beam: 5}}
train: {{epochs: {epochs}, optimizer: adamw, lr: 2.0e-3, schedule: cosine, warmup: 200, clip_norm: 1.0}}
"""


def words(text: str) -> set[str]:
    return set(WORD.findall(text))


def extract_terms(known: Sequence[ParallelExample], other: Sequence[ParallelExample]) -> dict[str, list[str]]:
    """Return translations, best first, of words that are rare in the known pairs. The other pairs supply them."""
    occurrences = Counter(word.lower() for pair in known for word in words(pair.source))
    sources, targets, both = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for pair in other:
        left, right = {word.lower() for word in words(pair.source)}, words(pair.target)
        sources.update(left)
        targets.update(right)
        both.update((a, b) for a in left if occurrences[a] <= MAX_KNOWN for b in right)
    found: dict[str, list[tuple[float, str]]] = {}
    for (a, b), count in both.items():
        dice = 2 * count / (sources[a] + targets[b])
        if count >= MIN_PAIRS and dice >= MIN_OTHER_DICE:
            found.setdefault(a, []).append((-dice, b))
    best = {source: sorted(forms)[:MAX_FORMS] for source, forms in sorted(found.items())}
    return {source: [form for _, form in forms] for source, forms in best.items() if -forms[0][0] >= MIN_DICE}


def write_pairs(path: Path, pairs: Iterable[ParallelExample]) -> None:
    write_atomic(path, "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=40_000, help="training pairs")
    parser.add_argument("--test", type=int, default=30_000, help="test pairs, of which those with terms are kept")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    corpus = load(tatoeba.Config(target="de", max_words=8, dev=1, test=arguments.test))
    train = list(corpus.split("train"))
    random.Random(arguments.seed).shuffle(train)
    known, other = train[: arguments.pairs], train[arguments.pairs :]
    terms = extract_terms(known, other)
    glossary = Glossary(terms)
    chosen = [pair for pair in corpus.split("test") if glossary.find(pair.source)]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    write_pairs(arguments.folder / "train.tsv", known)
    write_pairs(arguments.folder / "test.tsv", chosen)
    rows = (f"{source}\t{'|'.join(forms)}\n" for source, forms in terms.items())
    write_atomic(arguments.folder / "terms.tsv", "".join(rows))
    folder = arguments.folder.absolute()
    write_atomic(
        arguments.folder / "recipe.yaml",
        RECIPE.format(folder=folder, seed=arguments.seed, epochs=arguments.epochs),
    )
    print(f"{len(known):,} training pairs, {len(terms):,} terms, {len(chosen):,} test pairs with terms")


if __name__ == "__main__":
    main()
