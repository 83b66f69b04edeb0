"""Facts that hold only within a document."""

from collections import Counter

import pytest

from seqloom.config import build
from seqloom.core.errors import DataError, UsageError
from seqloom.data import corpora
from seqloom.data.corpora.facts import COLOURS, Config, load, probe_colours

SMALL = Config(train=400, dev=20, test=30)


def test_colours_are_constant_only_within_documents() -> None:
    corpus = load(SMALL)
    colours_of: dict[str, set[str]] = {}
    for document in corpus.split("train"):
        facts: dict[str, str] = {}
        lines = document.split("\n")
        for line in lines:
            name, colour = line.split(": ")
            assert colour in COLOURS[:16]
            assert facts.setdefault(name, colour) == colour
            colours_of.setdefault(name, set()).add(colour)
        assert len(lines) == 16 and len(facts) <= 6
    assert len(colours_of) == 16
    assert min(map(len, colours_of.values())) > 8  # colours cannot be memorized


def test_colours_are_uniform() -> None:
    first = Counter(document.split("\n")[0].split(": ")[1] for document in load(Config(train=4000)).split("train"))
    assert len(first) == 16
    assert all(abs(count / 4000 - 1 / 16) < 0.015 for count in first.values())


def test_documents_are_unique_and_depend_on_the_seed() -> None:
    corpus = load(SMALL)
    documents = [document for split in corpus.splits.values() for document in split]
    assert len(set(documents)) == len(documents) == 450
    assert load(SMALL).fingerprint() == corpus.fingerprint()
    assert load(Config(train=400, dev=20, test=30, seed=1)).fingerprint() != corpus.fingerprint()


def test_probed_spans_cover_all_colours_and_are_grouped_by_mentions() -> None:
    document = "mosi: green\nkela: red\n" + "\n".join(["mosi: green"] * 5)
    spans = probe_colours(document)
    assert [document[span.start : span.end] for span in spans] == ["green", "red", *["green"] * 5]
    groups = ["zero_shot", "zero_shot", "one_shot", "few_shot", "few_shot", "many_shot", "many_shot"]
    assert [span.group for span in spans] == groups


def test_all_problems_are_reported_together() -> None:
    wrong = {"corpus": "facts", "min_names": 1, "names": 4, "colours": 99, "lines": 0, "dev": 0}
    with pytest.raises(UsageError) as caught:
        build(corpora.find("facts").Config, wrong)
    for message in (
        "min_names must be from 2",
        "names must be from max_names",
        "colours must be from 2 to 32",
        "lines: must be at least 1; got 0",
        "dev: must be at least 1; got 0",
    ):
        assert message in str(caught.value)


def test_too_many_documents_are_rejected() -> None:
    with pytest.raises(DataError, match=r"more than a quarter.*got 20,160.*Raise data\.lines"):
        load(Config(lines=2, colours=2, min_names=2, max_names=2))
