"""The real data sets of sentence pairs and questions: sizes and disjoint splits (needs SEQLOOM_DATA)."""

from typing import Any

import pytest

from seqloom.data import corpora
from seqloom.data.corpora import endings, flickr8k_pairs, rte, squad
from seqloom.data.files import data_folder

pytestmark = pytest.mark.skipif(
    data_folder() is None, reason="the data sets are missing: set SEQLOOM_DATA to their folder"
)


def test_rte_has_expected_sizes_and_disjoint_splits() -> None:
    corpus: Any = corpora.load(rte.Config())
    assert {split: len(pairs) for split, pairs in corpus.splits.items()} == {"train": 2_215, "dev": 246, "test": 277}
    firsts = {split: {pair.first for pair in pairs} for split, pairs in corpus.splits.items()}
    assert not firsts["train"] & (firsts["dev"] | firsts["test"])
    assert corpus.label_counts("test") == {"entailment": 146, "not_entailment": 131}


def test_flickr8k_pairs_are_balanced() -> None:
    corpus: Any = corpora.load(flickr8k_pairs.Config())
    assert {split: len(pairs) for split, pairs in corpus.splits.items()} == {
        "train": 24_000,
        "dev": 4_000,
        "test": 4_000,
    }
    assert corpus.label_counts("dev") == {"0": 2_000, "5": 2_000}


def test_squad_has_expected_sizes_and_disjoint_articles() -> None:
    corpus: Any = corpora.load(squad.Config())
    counts = {split: len(questions) for split, questions in corpus.splits.items()}
    assert counts == {"train": 7_305, "dev": 1_087, "test": 2_178} and sum(counts.values()) == 10_570
    titles = [{question.title for question in questions} for questions in corpus.splits.values()]
    assert sum(map(len, titles)) == len(set().union(*titles)) == 48
    assert corpus.notes == ()  # every answer is at its answer_start


def test_endings_of_wikitext_have_expected_sizes() -> None:
    corpus: Any = corpora.load(endings.Config(text="wikitext2"))
    counts = {split: len(choices) for split, choices in corpus.splits.items()}
    assert counts == {"train": 60_977, "dev": 6_437, "test": 7_320}
