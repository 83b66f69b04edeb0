"""The corpora `people` and `names`: dev and test contain new words, and sentences vary."""

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
SENTENCES = {split: ASSET[f"whole {split}"] for split in SPLITS}
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


def test_templates_are_valid_and_differ_between_splits() -> None:
    assert count_templates("train") >= 300 and count_templates("dev") >= 20 and count_templates("test") >= 30
    split_templates = [{*CLAUSES[split], *SENTENCES[split]} for split in ("train", "dev", "test")]
    assert [len(templates) for templates in split_templates] == [
        count_templates(split) for split in ("train", "dev", "test")
    ]
    assert all(not first & second for first, second in combinations(split_templates, 2))
    for template in [*set.union(*split_templates), *WHO, *WHERE, *LEADS, *ADDITIONS]:
        assert set(re.findall(r"\{(.*?)\}", template)) <= SLOTS, template
        assert template.count("{") == len(re.findall(r"\{\w+\}", template))
    shapes = {
        re.sub(r"\{(?!per|first|full|last|loc|who|where)\w+\}", "_", template)
        for template in set.union(*split_templates)
    }
    assert len(shapes) > 300


def test_held_out_templates_use_train_words() -> None:
    def words_of(template: str) -> set[str]:
        return set(re.findall(r"[a-z']+", re.sub(r"\{\w+\}", " ", template).lower()))

    train_words = Counter(
        word for templates in (CLAUSES, SENTENCES) for template in templates["train"] for word in words_of(template)
    )
    held_out = [
        template for templates in (CLAUSES, SENTENCES) for split in ("dev", "test") for template in templates[split]
    ]
    assert [(template, word) for template in held_out for word in words_of(template) if train_words[word] < 2] == []


def test_names_and_places_of_dev_and_test_are_new(corpus: Corpus[TokenClassificationExample]) -> None:
    for train, held_out in (("train", "dev"), ("train", "test")):
        texts = [{text for _, text in entities_of(corpus.split(split))} for split in (train, held_out)]
        assert not texts[0] & texts[1]
        assert not entity_words(corpus, train) & entity_words(corpus, held_out)
    assert len(entity_words(corpus, "test")) > 300


def check_example_is_new(corpus: Corpus[TokenClassificationExample]) -> None:
    for split in corpus.splits:
        vocabulary = {word for sentence in corpus.split(split) for word in sentence.words}
        assert not vocabulary & {"Pankaj", "Munich"}
    assert "Pankaj lives in Munich" not in {sentence.text.rstrip(".") for sentence in corpus.split("train")}


def test_documentation_example_is_new(corpus: Corpus[TokenClassificationExample]) -> None:
    check_example_is_new(corpus)


@pytest.mark.slow
def test_documentation_example_is_new_at_full_size() -> None:
    complete: Any = corpora.load(people.Config())
    check_example_is_new(complete)
    assert {name: len(sentences) for name, sentences in complete.splits.items()} == {
        "train": 15_000,
        "dev": 1_000,
        "test": 2_000,
    }


def test_every_split_has_all_sentence_forms(corpus: Corpus[TokenClassificationExample]) -> None:
    for split in corpus.splits:
        sentences = corpus.split(split)
        assert set(tag_counts(corpus, split)) == {"PER", "LOC"}
        without_entities = [sentence for sentence in sentences if not extract_spans(sentence.tags)]
        assert 0.03 < len(without_entities) / len(sentences) < 0.25
        forms = Counter(kind for sentence in sentences for kind in forms_of(sentence.text))
        assert all(forms[kind] for kind in ("lower", "possessive", "initial", "title", "list", "no stop")), forms
        lengths = Counter(min(3, len(text.split())) for kind, text in entities_of(sentences) if kind == "LOC")
        assert set(lengths) == {1, 2, 3}


def forms_of(text: str) -> set[str]:
    is_present = {
        "lower": text[0].islower(),
        "possessive": "'s " in text,
        "initial": re.search(r"\b[A-Z]\. ", text),
        "title": re.search(r"\b(Mr|Mrs|Dr|Prof)\. ", text),
        "list": re.search(r"\w+, .*\w+ and \w+", text),
        "no stop": text[-1] not in ".?!",
    }
    return {kind for kind, present in is_present.items() if present}


def test_some_names_are_persons_and_places(corpus: Corpus[TokenClassificationExample]) -> None:
    for split in ("train", "test"):
        kinds: dict[str, set[str]] = {name: set() for name in PLACE_LIKE}
        for kind, text in entities_of(corpus.split(split)):
            if text in kinds:
                kinds[text].add(kind)
        assert sum(tags == {"PER", "LOC"} for tags in kinds.values()) >= 3


def test_words_match_those_of_word_splitting(corpus: Corpus[TokenClassificationExample]) -> None:
    assert all(list(sentence.spans) == word_spans(sentence.text) for sentence in corpus.split("test"))


def test_description_states_fraction_of_new_words(corpus: Corpus[TokenClassificationExample]) -> None:
    match = re.search(r"(\d+)% of the words of test do not occur in train", corpus.description)
    assert match and 20 <= int(match[1]) <= 40


def test_sentences_are_unique(corpus: Corpus[TokenClassificationExample]) -> None:
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


def test_names_are_in_the_split_of_their_hash(persons: Corpus[TextClassificationExample]) -> None:
    for split in persons.splits:
        for example in persons.split(split):
            assert split_of(0, example.text) == split, example
    assert persons.new_words("test") > 0.9


def test_spellings_of_a_name_share_a_split() -> None:
    assert split_of(0, "José") == split_of(0, "JOSE") and split_of(3, "O'Hara") == split_of(3, "Ohara")
    counts = Counter(split_of(0, f"name{n}") for n in range(4000))
    assert 0.12 < counts["test"] / 4000 < 0.18 and 0.08 < counts["dev"] / 4000 < 0.12
    assert {split_of(seed, "Anna") for seed in range(40)} == {"train", "dev", "test"}


@pytest.mark.parametrize("corpus_name", ["names", "people", "languages"])
def test_empty_dev_split_is_rejected(corpus_name: str) -> None:
    config = (
        corpora.CorpusConfig[TokenClassificationExample]
        if corpus_name == "people"
        else corpora.CorpusConfig[TextClassificationExample]
    )
    with pytest.raises(UsageError, match="at least"):
        build(config, {"corpus": corpus_name, "dev": 0})


def test_too_many_names_are_rejected() -> None:
    with pytest.raises(DataError, match=r"data.dev exceeds the number of \w+ names"):
        corpora.load(names.Config(train=24, dev=60_000, test=24))
