"""Facts that always hold; the text of an example does not contain its answer."""

import pytest

from seqloom.config import build
from seqloom.core.errors import DataError, UsageError
from seqloom.data import corpora
from seqloom.data.corpora import facts
from seqloom.data.corpora.known_facts import Config, load


def test_facts_are_constant_and_answers_do_not_occur_in_the_text() -> None:
    corpus = load(Config())
    colour_of: dict[str, str] = {}
    texts = [example for split in corpus.splits.values() for example in split]
    for example in texts:
        *lines, question = example.text.split("\n")
        assert colour_of.setdefault(question, example.label) == example.label
        for line in lines:
            name, colour = line.split(": ")
            assert name != question and colour_of.setdefault(name, colour) == colour
        assert len(lines) <= 4
    assert len(colour_of) == len(set(colour_of.values())) == 6
    assert len({example.text for example in texts}) == len(texts) == 2600
    assert load(Config()).fingerprint() == corpus.fingerprint()
    assert load(Config(seed=1)).fingerprint() != corpus.fingerprint()


def test_words_match_those_of_the_facts_corpus() -> None:
    vocabulary = {word for document in facts.load(facts.Config(train=500)).split("train") for word in document.split()}
    for example in load(Config()).split("train"):
        assert set(f"{example.text}: {example.label}".split()) <= vocabulary


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(UsageError) as caught:
        build(corpora.find("known-facts").Config, {"known_names": 1, "colours": 99, "max_lines": -1, "dev": 0})
    for message in (
        "known_names must be from 2 to names",
        "colours must be from 2 to 32",
        "max_lines: must be at least 0; got -1",
        "dev: must be at least 1; got 0",
    ):
        assert message in str(caught.value)
    with pytest.raises(UsageError, match="known_names must be at most colours"):
        build(corpora.find("known-facts").Config, {"known_names": 8, "colours": 4})
    with pytest.raises(DataError, match="got 2,600"):
        load(Config(max_lines=2))
