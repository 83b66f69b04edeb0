"""The real data sets with labels and tags have the published sizes (needs SEQLOOM_DATA)."""

from typing import Any

import pytest

from seqloom.data import corpora
from seqloom.data.corpora import CORPORA
from seqloom.data.files import data_folder

pytestmark = pytest.mark.skipif(
    data_folder() is None, reason="the data sets are missing: set SEQLOOM_DATA to their folder"
)

EXAMPLES = {
    "sst2": {"train": 67_334, "dev": 872, "test": 1_821},
    "cola": {"train": 7_681, "dev": 854, "test": 1_043},
    "names-18": {"train": 14_409, "dev": 1_800, "test": 1_803},
    "ewt": {"train": 12_544, "dev": 2_001, "test": 2_077},
    "wnut17": {"train": 3_394, "dev": 1_009, "test": 1_287},
}
WORDS = {
    "ewt": {"train": 204_577, "dev": 25_147, "test": 25_094},
    "wnut17": {"train": 62_730, "dev": 15_733, "test": 23_394},
}


def load(name: str, **settings: Any) -> Any:
    config = CORPORA[name].Config(**settings)
    return corpora.load(config)


@pytest.mark.parametrize("name", EXAMPLES)
def test_sizes_match_published_sizes(name: str) -> None:
    corpus = load(name)
    assert {split: len(examples) for split, examples in corpus.splits.items()} == EXAMPLES[name]
    if name in WORDS:
        assert {split: corpus.sizes(split)["words"] for split in corpus.splits} == WORDS[name]


def test_sst2_phrases_exclude_held_out_sentences() -> None:
    phrases, sentences = load("sst2"), load("sst2", form="sentence")
    assert {split: len(examples) for split, examples in sentences.splits.items()} == {
        "train": 6_920,
        "dev": 872,
        "test": 1_821,
    }
    assert phrases.notes == ("15 of 67,349 phrases of GLUE are sentences of dev or test and were left out",)
    for split in ("dev", "test"):  # equal sentences in another order and with another spelling
        assert phrases.label_counts(split) == sentences.label_counts(split)
    assert sentences.label_counts("train")["positive"] == 3_610
    assert ("one long string of cliches .", "negative") in {(e.text, e.label) for e in phrases.split("dev")}
    held = {e.text for split in ("dev", "test") for e in phrases.split(split)}
    assert not held & {e.text for e in phrases.split("train")}


def test_unlabelled_sst2_excludes_held_out_sentences() -> None:
    """Nearly all of the 6,920 sentences exist in the spelling of GLUE, and none of them occurs in dev or test."""
    reviews = corpora.load(CORPORA["sst2-text"].Config(wikitext2=False))
    assert {split: len(texts) for split, texts in reviews.splits.items()} == {"train": 6894, "dev": 872, "test": 1821}
    held = {text for split in ("dev", "test") for text in reviews.split(split)}
    assert not held & set(reviews.split("train"))
    with_wikitext = corpora.load(CORPORA["sst2-text"].Config())
    assert with_wikitext.counts("train").words == 2_214_762


def test_fraction_keeps_label_proportions() -> None:
    reduced, complete = load("sst2", fraction=0.1), load("sst2")
    counts = [corpus.label_counts("train") for corpus in (reduced, complete)]
    assert counts[0] == {label: round(count / 10) for label, count in counts[1].items()}


def test_wnut17_spans_match_published_counts() -> None:
    corpus = load("wnut17")
    assert {split: corpus.sizes(split)["spans"] for split in corpus.splits} == {"train": 1975, "dev": 836, "test": 1079}
    assert len(corpus.labels) == 13 and corpus.notes == ()


def test_ewt_words_match_text() -> None:
    corpus = load("ewt")
    assert len(corpus.labels) == 17 and corpus.notes == ()
    matching = 0
    for sentence in (s for sentences in corpus.splits.values() for s in sentences):
        assert len(sentence.spans) == len(sentence.words)
        matching += all(sentence.text[a:b] == word for word, (a, b) in zip(sentence.words, sentence.spans, strict=True))
    assert matching / 16_622 > 0.99  # words in the other sentences are spelled differently in the text
    assert len(load("ewt", field="xpos").labels) == 49


def test_notes_of_names_18_report_repeated_and_ambiguous_names() -> None:
    corpus = load("names-18")
    assert len(corpus.labels) == 18
    assert corpus.notes == (
        "2,038 of 20,050 lines repeat a name of the same language and were left out",
        "469 of 17,450 names occur in several languages, which limits accuracy on test to 97.0%",
    )
    counts = corpus.label_counts("test")
    assert set(counts) == set(corpus.labels) and 900 < counts["Russian"] < 960
