"""Parsing as text: sentences of the English Web Treebank and their dependency trees in brackets."""

from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.data.corpora.conllu_trees import Leaves, read_trees
from seqloom.data.corpora.ewt import SOURCE
from seqloom.data.corpus import SPLITS, Corpus
from seqloom.data.examples import ParallelExample

SUMMARY = "UD English EWT: short sentences and their dependency trees in brackets (needs SEQLOOM_DATA)"
FORM = "parallel"


@config
class Config:
    corpus: Literal["ewt-trees"] = "ewt-trees"
    max_words: PositiveInt = 12  # sentences with more words are omitted
    leaves: Leaves = "numbers"  # what the trees contain: the words, their universal tags, or their numbers from 1


def load(config: Config) -> Corpus[ParallelExample]:
    """Load the sentences of each split; training sentences that occur in dev or test are left out."""
    splits, notes = {}, list[str]()
    for split in SPLITS:
        path = SOURCE.file(f"ud_english_ewt/en_ewt-ud-{split}.conllu.gz")
        splits[split], left_out = read_trees(path, config.max_words, config.leaves)
        notes += left_out
    held_out = {pair.source for split in ("dev", "test") for pair in splits[split]}
    train = [pair for pair in splits["train"] if pair.source not in held_out]
    if repeats := len(splits["train"]) - len(train):
        notes.append(f"{repeats:,} training sentences were left out, because they also occur in dev or test")
    return Corpus(
        name="ewt-trees",
        licence="CC BY-SA 4.0",
        description=f"sentences of at most {config.max_words} words of UD English EWT and their dependency trees",
        splits={**splits, "train": train},
        notes=tuple(notes),
    )
