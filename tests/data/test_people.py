"""Embedded names and people: what is new in dev and test, and how many sorts of sentences there are."""

import re
from collections import Counter
from itertools import combinations
from typing import Any

import pytest

from seqloom.config import build
from seqloom.core.errors import DataError, UsageError
from seqloom.core.iob import extract_spans
from seqloom.data import corpora
from seqloom.data.corpora import names, people
from seqloom.data.corpora.names import fold, split_of
from seqloom.data.corpora.people import (
    count_templates,
    entities_of,
)
from seqloom.data.corpus import SPLITS, Corpus
from seqloom.data.examples import TextClassificationExample, TokenClassificationExample, tag_counts
from seqloom.data.files import read_asset
from seqloom.text.word_spans import word_spans

pytest.importorskip("faker")
ASSET = read_asset("people.txt")
CLAUSES = {split: ASSET[f"clause {split}"] for split in SPLITS}
WHOLES = {split: ASSET[f"whole {split}"] for split in SPLITS}
FILLERS = [title.removeprefix("filler ") for title in ASSET if title.startswith("filler ")]
PARTICLES, PLACE_LIKE = ASSET["words of many names"], ASSET["names that are places"]
WHO, WHERE, LEADS, ADDITIONS = (ASSET[title] for title in ("who", "where", "lead", "addition"))
SLOTS = {"per", "first", "full", "last", "loc", "who", "where", *FILLERS}


@pytest.fixture(scope="module")
def corpus() -> Corpus[TokenClassificationExample]:
    return corpora.load(people.Config(train=4000, dev=500, test=500))


def entity_words(corpus: Corpus[TokenClassificationExample], split: str) -> set[str]:
    texts = (text for _, text in entities_of(corpus.split(split)))
    return {word for text in texts for word in fold(text).split() if len(word) >= 4}.difference(PARTICLES)


def test_templates() -> None:
    assert count_templates("train") >= 300 and count_templates("dev") >= 20 and count_templates("test") >= 30
    own = [{*CLAUSES[split], *WHOLES[split]} for split in ("train", "dev", "test")]
    assert [len(templates) for templates in own] == [count_templates(split) for split in ("train", "dev", "test")]
    assert all(not one & other for one, other in combinations(own, 2))
    for template in [*set.union(*own), *WHO, *WHERE, *LEADS, *ADDITIONS]:
        assert set(re.findall(r"\{(.*?)\}", template)) <= SLOTS, template
        assert template.count("{") == len(re.findall(r"\{\w+\}", template))
    shapes = {re.sub(r"\{(?!per|first|full|last|loc|who|where)\w+\}", "_", template) for template in set.union(*own)}
    assert len(shapes) > 300


def test_held_out_templates_use_train_words() -> None:
    def words(template: str) -> set[str]:
        return set(re.findall(r"[a-z']+", re.sub(r"\{\w+\}", " ", template).lower()))

    known = Counter(word for own in (CLAUSES, WHOLES) for template in own["train"] for word in words(template))
    held_out = [template for own in (CLAUSES, WHOLES) for split in ("dev", "test") for template in own[split]]
    assert [(template, word) for template in held_out for word in words(template) if known[word] < 2] == []


def test_names_and_places_of_dev_and_test_are_new(corpus: Corpus[TokenClassificationExample]) -> None:
    for one, other in (("train", "dev"), ("train", "test")):
        texts = [{text for _, text in entities_of(corpus.split(split))} for split in (one, other)]
        assert not texts[0] & texts[1]
        assert not entity_words(corpus, one) & entity_words(corpus, other)
    assert len(entity_words(corpus, "test")) > 300


def check_new(corpus: Corpus[TokenClassificationExample]) -> None:
    for split in corpus.splits:
        words = {word for sentence in corpus.split(split) for word in sentence.words}
        assert not words & {"Pankaj", "Munich"}
    assert "Pankaj lives in Munich" not in {sentence.text.rstrip(".") for sentence in corpus.split("train")}


def test_documentation_example_is_new(corpus: Corpus[TokenClassificationExample]) -> None:
    check_new(corpus)


@pytest.mark.slow
def test_in_complete_data() -> None:
    whole: Any = corpora.load(people.Config())
    check_new(whole)
    assert {name: len(sentences) for name, sentences in whole.splits.items()} == {
        "train": 15_000,
        "dev": 1_000,
        "test": 2_000,
    }


def test_all_sorts_of_sentences(corpus: Corpus[TokenClassificationExample]) -> None:
    for split in corpus.splits:
        sentences = corpus.split(split)
        assert set(tag_counts(corpus, split)) == {"PER", "LOC"}
        alone = [sentence for sentence in sentences if not extract_spans(sentence.tags)]
        assert 0.03 < len(alone) / len(sentences) < 0.25
        forms = Counter(kind for sentence in sentences for kind in form_of(sentence.text))
        assert all(forms[kind] for kind in ("lower", "possessive", "initial", "title", "list", "no stop")), forms
        lengths = Counter(min(3, len(text.split())) for kind, text in entities_of(sentences) if kind == "LOC")
        assert set(lengths) == {1, 2, 3}


def form_of(text: str) -> set[str]:
    found = {
        "lower": text[0].islower(),
        "possessive": "'s " in text,
        "initial": re.search(r"\b[A-Z]\. ", text),
        "title": re.search(r"\b(Mr|Mrs|Dr|Prof)\. ", text),
        "list": re.search(r"\w+, .*\w+ and \w+", text),
        "no stop": text[-1] not in ".?!",
    }
    return {kind for kind, there in found.items() if there}


def test_persons_may_have_names_of_places(corpus: Corpus[TokenClassificationExample]) -> None:
    for split in ("train", "test"):
        kinds: dict[str, set[str]] = {name: set() for name in PLACE_LIKE}
        for kind, text in entities_of(corpus.split(split)):
            if text in kinds:
                kinds[text].add(kind)
        assert sum(found == {"PER", "LOC"} for found in kinds.values()) >= 3


def test_words_equal_those_of_commands(corpus: Corpus[TokenClassificationExample]) -> None:
    assert all(list(sentence.spans) == word_spans(sentence.text) for sentence in corpus.split("test"))


def test_description_states_fraction_of_new_words(corpus: Corpus[TokenClassificationExample]) -> None:
    said = re.search(r"(\d+)% of the words of test do not occur in train", corpus.description)
    assert said and 20 <= int(said[1]) <= 40


def test_sentences_differ(corpus: Corpus[TokenClassificationExample]) -> None:
    texts = [sentence.text for sentences in corpus.splits.values() for sentence in sentences]
    assert len(set(texts)) == len(texts)


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def persons() -> Corpus[TextClassificationExample]:
    return corpora.load(names.Config(train=2400, dev=480, test=480))


def test_origins_are_balanced(persons: Corpus[TextClassificationExample]) -> None:
    assert len(persons.labels) == len(names.LOCALES) >= 12
    assert all(set(persons.label_counts(split).values()) == {n} for split, n in (("train", 100), ("test", 20)))
    texts = [example.text for examples in persons.splits.values() for example in examples]
    assert len(set(texts)) == len(texts)


def test_names_of_test_are_new(persons: Corpus[TextClassificationExample]) -> None:
    for split in persons.splits:
        for example in persons.split(split):
            assert split_of(0, example.text) == split, example
    assert persons.new_words("test") > 0.9


def test_spellings_of_a_name_share_a_split() -> None:
    assert split_of(0, "José") == split_of(0, "JOSE") and split_of(3, "O'Hara") == split_of(3, "Ohara")
    found = Counter(split_of(0, f"name{n}") for n in range(4000))
    assert 0.12 < found["test"] / 4000 < 0.18 and 0.08 < found["dev"] / 4000 < 0.12
    assert {split_of(seed, "Anna") for seed in range(40)} == {"train", "dev", "test"}


@pytest.mark.parametrize("corpus_name", ["names", "people", "languages"])
def test_too_few(corpus_name: str) -> None:
    config = (
        corpora.CorpusConfig[TokenClassificationExample]
        if corpus_name == "people"
        else corpora.CorpusConfig[TextClassificationExample]
    )
    with pytest.raises(UsageError, match="at least"):
        build(config, {"corpus": corpus_name, "dev": 0})


def test_too_many() -> None:
    with pytest.raises(DataError, match=r"data.dev exceeds the number of \w+ names"):
        corpora.load(names.Config(train=24, dev=60_000, test=24))
