"""No embedded corpus has test items that a model could answer by looking up a near duplicate in train."""

from collections.abc import Iterator
from typing import Any

import pytest

from seqloom.data.corpora import CORPORA
from seqloom.data.splits import normal_form, split_of_group

# The largest share of dev or test items whose normal form (words alone, in lower case) may occur in train.
# `cldr` repeats its phrases with other digits, and the digits have to be translated too; `seqloom quickstart` prints
# the copy baseline beside its BLEU.
LARGEST_SHARE = {
    "cldr": 0.70,
    "digits": 0.0,
    "endings": 0.0,
    "facts": 0.0,
    "known-facts": 0.0,
    "languages": 0.0,
    "names": 0.0,
    "people": 0.0,
    "pydocs": 0.005,
    "scene-choices": 0.0,
    "scene-claims": 0.0,
    "scene-likeness": 0.0,
    "scene-questions": 0.0,
    "toys": 0.0,
    "track": 0.0,
}
SPLIT_IN_TIME = {"series"}  # one long series: train, dev and test follow each other
NEEDS_FILES = {name for name, module in CORPORA.items() if "no text" in module.SUMMARY or "no pairs" in module.SUMMARY}
NEEDS_FILES |= {name for name, module in CORPORA.items() if "your own" in module.SUMMARY}
NEEDS_FILES |= {name for name, module in CORPORA.items() if "(needs SEQLOOM_DATA)" in module.SUMMARY} - {"endings"}
FEWER = {  # of the corpora that take seconds; at their full size they are measured by the slow test
    "cldr": {"train": 4000, "dev": 400, "test": 400},
    "languages": {"train": 3400, "dev": 340, "test": 340},
    "people": {"train": 3000, "dev": 300, "test": 300},
    "scene-choices": {"train": 2000, "dev": 200, "test": 200},
    "scene-claims": {"train": 3000, "dev": 300, "test": 300},
    "scene-likeness": {"train": 3000, "dev": 300, "test": 300},
    "scene-questions": {"train": 3000, "dev": 300, "test": 300},
}


def questions(form: str, example: Any) -> Iterator[Any]:
    """What a model is given of an example, without the answer, in its normal form."""
    match form:
        case "text":
            parts = example.split("\n\n")  # a document of the reference has many paragraphs, and headings
            yield from (normal_form(part) for part in parts if len(parts) == 1 or len(part.split()) > 5)
        case "parallel":
            yield normal_form(example.source)
        case "text-classification" | "token-classification":
            yield normal_form(example.text)
        case "sentence-pair":
            yield normal_form(example.first), normal_form(example.second)
        case "multiple-choice":
            yield normal_form(example.text)
        case "question-answering":
            yield normal_form(example.context), normal_form(example.question)
        case "series-labelled":
            yield example.values.tobytes()
        case "tracks":
            yield example.observed.tobytes()


def shares_in_train(name: str, sizes: dict[str, int]) -> dict[str, float]:
    module = CORPORA[name]
    corpus = module.load(module.Config(**sizes))
    found = {
        split: [question for example in corpus.splits[split] for question in questions(module.FORM, example)]
        for split in ("train", "dev", "test")
    }
    known = set(found.pop("train"))
    assert known and all(found.values())
    return {split: sum(question in known for question in asked) / len(asked) for split, asked in found.items()}


def test_every_listed_corpus_exists() -> None:
    assert set(CORPORA) >= LARGEST_SHARE.keys() | SPLIT_IN_TIME | NEEDS_FILES


@pytest.mark.parametrize("name", LARGEST_SHARE)
def test_held_out_items_have_no_near_duplicates_in_train(name: str) -> None:
    shares = shares_in_train(name, FEWER.get(name, {}))
    assert max(shares.values()) <= LARGEST_SHARE[name], shares


@pytest.mark.slow
@pytest.mark.parametrize("name", FEWER)
def test_held_out_items_have_no_near_duplicates_in_train_at_full_size(name: str) -> None:
    shares = shares_in_train(name, {})
    assert max(shares.values()) <= LARGEST_SHARE[name], shares


def test_normal_form_keeps_only_words() -> None:
    assert normal_form("7:05 PM, Monday") == normal_form("11:59 pm   MONDAY!") == "pm monday"
    assert normal_form("12. März 2021") == "märz"
    assert normal_form("हिन्दी") == "हिन्दी"  # vowel signs are part of a word
    assert normal_form("2 + 2 = 4") == ""


def test_groups_stay_together_and_splits_have_their_fractions() -> None:
    groups = [str(number).encode() for number in range(2000)]
    splits = [split_of_group(group, {"dev": 0.1, "test": 0.2}) for group in groups]
    assert splits == [split_of_group(group, {"dev": 0.1, "test": 0.2}) for group in groups]
    assert abs(splits.count("dev") / 2000 - 0.1) < 0.03
    assert abs(splits.count("test") / 2000 - 0.2) < 0.03
    assert splits.count("train") == 2000 - splits.count("dev") - splits.count("test")
