"""The real language-modelling data sets have the published sizes (needs SEQLOOM_DATA)."""

import pytest

from seqloom.data import corpora
from seqloom.data.corpora import CORPORA
from seqloom.data.files import data_folder
from seqloom.text import WordsConfig, encode_documents, train_tokenizer

needs_data = pytest.mark.skipif(
    data_folder() is None, reason="the data sets are missing: set SEQLOOM_DATA to their folder"
)

WORDS = {  # number of documents, and number of words including one end per document
    "ptb": {"train": (42_068, 929_589), "dev": (3_370, 73_760), "test": (3_761, 82_430)},
    "wikitext2": {"train": (36_718, 2_088_628), "dev": (3_760, 217_646), "test": (4_358, 245_569)},
}
BYTES = {  # bytes of the files, including line ends
    "ptb": {"train": 5_101_618, "dev": 399_782, "test": 449_945},
    "wikitext2": {"train": 10_797_148, "dev": 1_121_681, "test": 1_256_449},
}
VOCABULARY = {"ptb": 10_000, "wikitext2": 33_278}


@needs_data
@pytest.mark.parametrize("name", WORDS)
def test_sizes_match_published_sizes(name: str) -> None:
    corpus = corpora.load(CORPORA[name].Config())
    statistics = {split: corpus.counts(split) for split in corpus.splits}
    assert {split: (counts.documents, counts.words) for split, counts in statistics.items()} == WORDS[name]
    assert {split: counts.bytes for split, counts in statistics.items()} == BYTES[name]


@needs_data
@pytest.mark.parametrize("name", WORDS)
def test_vocabulary_has_the_published_size(name: str) -> None:
    corpus = corpora.load(CORPORA[name].Config())
    tokenizer = train_tokenizer(WordsConfig(), corpus.split("train"))
    assert len(tokenizer) == VOCABULARY[name]
    assert len(encode_documents(tokenizer, corpus.split("test"))) == WORDS[name]["test"][1]
    assert not [piece for document in corpus.split("test") for piece in tokenizer.unknown_pieces(document)]


@needs_data
def test_shakespeare_has_published_size() -> None:
    corpus = corpora.load(CORPORA["shakespeare"].Config())
    (train,), (dev,) = corpus.split("train"), corpus.split("dev")
    assert (len(train), len(dev)) == (1_003_854, 111_540)
    assert len(set(train + dev)) == 65
    assert train.startswith("First Citizen:\n")
    assert "dev" in corpus.absent["test"]
