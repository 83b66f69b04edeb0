"""Held-out examples of embedded corpora have no near duplicates in train that a model could look up."""

from collections.abc import Iterator
from typing import Any

import pytest

from seqloom.data.corpora import CORPORA
from seqloom.data.splits import normal_form, split_of_group

# Maximum fraction of dev or test examples whose normal form (only words, in lowercase) occurs in train. `cldr` repeats
# phrases with other digits, which must also be translated; `seqloom quickstart` prints the copy baseline next to BLEU.
MAX_DUPLICATE_FRACTION = {
    "captioned-shapes": 0.0,
    "cldr": 0.70,
    "dialogue-shapes": 0.0,
    "digits": 0.0,
    "endings": 0.0,
    "facts": 0.0,
    "glyph-digits": 0.0,
    "known-facts": 0.0,
    "languages": 0.0,
    "names": 0.0,
    "pen-letters": 0.0,
    "people": 0.0,
    "pydocs": 0.005,
    "scene-choices": 0.0,
    "scene-claims": 0.0,
    "scene-likeness": 0.0,
    "scene-questions": 0.0,
    "shapes": 0.0,
    "spoken-numbers": 0.0,
    "spoken-phonemes": 0.0,
    "toys": 0.0,
    "track": 0.0,
    "video-digits": 0.0,
}
SPLIT_IN_TIME = {"series"}  # one long series, in which dev follows train, and test follows dev
NEEDS_FILES = {name for name, module in CORPORA.items() if "no text" in module.SUMMARY or "no pairs" in module.SUMMARY}
NEEDS_FILES |= {name for name, module in CORPORA.items() if "your own" in module.SUMMARY}
NEEDS_FILES |= {name for name, module in CORPORA.items() if "(needs SEQLOOM_DATA)" in module.SUMMARY} - {"endings"}
SMALL_SIZES = {  # smaller sizes of slow corpora; the slow test uses their full size
    "captioned-shapes": {"train": 1000, "dev": 100, "test": 100},
    "cldr": {"train": 4000, "dev": 400, "test": 400},
    "dialogue-shapes": {"train": 300, "dev": 60, "test": 60},
    "languages": {"train": 3400, "dev": 340, "test": 340},
    "pen-letters": {"train": 500, "dev": 60, "test": 60},
    "people": {"train": 3000, "dev": 300, "test": 300},
    "scene-choices": {"train": 2000, "dev": 200, "test": 200},
    "scene-claims": {"train": 3000, "dev": 300, "test": 300},
    "scene-likeness": {"train": 3000, "dev": 300, "test": 300},
    "scene-questions": {"train": 3000, "dev": 300, "test": 300},
    "spoken-numbers": {"train": 600, "dev": 60, "test": 60},
    "spoken-phonemes": {"train": 30, "dev": 6, "test": 6},
    "video-digits": {"train": 1000, "dev": 100, "test": 100},
}


def inputs_of(form: str, example: Any) -> Iterator[Any]:
    """Yield the input of an example in normal form, without the answer."""
    match form:
        case "text":
            paragraphs = example.split("\n\n")  # a document of pydocs has many paragraphs and headings
            yield from (
                normal_form(paragraph) for paragraph in paragraphs if len(paragraphs) == 1 or len(paragraph.split()) > 5
            )
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
        case "image-classification" | "image-captioning" | "visual-question-answering":
            yield example.image.sha256
        case "video":
            yield example.clip.sha256
        case "transcription" | "sound-labels":
            yield example.text
        case "tracks":
            yield example.observed.tobytes()


def duplicate_fractions(name: str, sizes: dict[str, int]) -> dict[str, float]:
    module = CORPORA[name]
    corpus = module.load(module.Config(**sizes))
    inputs = {
        split: [item for example in corpus.splits[split] for item in inputs_of(module.FORM, example)]
        for split in ("train", "dev", "test")
    }
    train_inputs = set(inputs.pop("train"))
    assert train_inputs and all(inputs.values())
    return {
        split: sum(item in train_inputs for item in split_inputs) / len(split_inputs)
        for split, split_inputs in inputs.items()
    }


def test_every_listed_corpus_exists() -> None:
    assert set(CORPORA) >= MAX_DUPLICATE_FRACTION.keys() | SPLIT_IN_TIME | NEEDS_FILES


@pytest.mark.parametrize("name", MAX_DUPLICATE_FRACTION)
def test_held_out_items_have_no_near_duplicates_in_train(name: str) -> None:
    fractions = duplicate_fractions(name, SMALL_SIZES.get(name, {}))
    assert max(fractions.values()) <= MAX_DUPLICATE_FRACTION[name], fractions


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_SIZES)
def test_held_out_items_have_no_near_duplicates_in_train_at_full_size(name: str) -> None:
    fractions = duplicate_fractions(name, {})
    assert max(fractions.values()) <= MAX_DUPLICATE_FRACTION[name], fractions


def test_normal_form_keeps_only_words() -> None:
    assert normal_form("7:05 PM, Monday") == normal_form("11:59 pm   MONDAY!") == "pm monday"
    assert normal_form("12. März 2021") == "märz"
    assert normal_form("हिन्दी") == "हिन्दी"  # vowel signs are part of a word
    assert normal_form("2 + 2 = 4") == ""


def test_groups_are_not_separated_and_splits_have_their_fractions() -> None:
    groups = [str(number).encode() for number in range(2000)]
    splits = [split_of_group(group, {"dev": 0.1, "test": 0.2}) for group in groups]
    assert splits == [split_of_group(group, {"dev": 0.1, "test": 0.2}) for group in groups]
    assert abs(splits.count("dev") / 2000 - 0.1) < 0.03
    assert abs(splits.count("test") / 2000 - 0.2) < 0.03
    assert splits.count("train") == 2000 - splits.count("dev") - splits.count("test")
