"""SST-2, CoLA and names of eighteen languages on small files: splits and exclusions."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.example_files import write

from seqloom.core.errors import DataError
from seqloom.data import corpora
from seqloom.data.corpora import cola, names_18, sst2, sst2_text
from seqloom.data.corpus import Corpus
from seqloom.data.examples import TextClassificationExample, sample_fraction
from seqloom.data.files import use_data_folder
from seqloom.data.splits import hold_out_evenly


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path)


def load(folder: Path, config: Any) -> Corpus[TextClassificationExample]:
    with use_data_folder(folder):
        return corpora.load(config)


def test_phrases_of_dev_and_test_are_excluded(folder: Path) -> None:
    corpus = load(folder, sst2.Config())
    expected = ["great fun", "no fun at all .", "fine film", "long bore"]
    assert [example.text for example in corpus.split("train")] == expected
    assert corpus.notes == ("2 of 6 phrases of GLUE are sentences of dev or test and were left out",)


def test_labels_of_test_come_from_original_sst2(folder: Path) -> None:
    corpus = load(folder, sst2.Config())
    assert [(example.text, example.label) for example in corpus.split("test")] == [
        ("-lrb- not bad -rrb-", "positive"),
        ("re-imagining of humor .", "negative"),
        ("dull and long .", "positive"),
        ("a fine film .", "negative"),
    ]
    (folder / "sst2/sentence/test.tsv.gz").unlink()
    (folder / "sst2/sentence/test.tsv").write_text("quite another\t1\n")
    with pytest.raises(DataError, match="must contain all test sentences of GLUE, but lacks"):
        load(folder, sst2.Config())


def test_sentence_form_uses_complete_sentences(folder: Path) -> None:
    corpus = load(folder, sst2.Config(form="sentence"))
    assert corpus.split("train")[0] == TextClassificationExample("great fun", "positive")
    assert {name: len(examples) for name, examples in corpus.splits.items()} == {"train": 3, "dev": 2, "test": 4}


@pytest.mark.parametrize(
    ("phrase", "is_kept"),
    [("a fine film", False), ("A fine film .", False), ("fine", True), ("a fine film indeed", True)],
)
def test_phrases_equal_to_held_out_sentences_are_excluded(phrase: str, is_kept: bool) -> None:
    kept = sst2.exclude_sentences([TextClassificationExample(phrase, "x")], ["dull and long .", "a fine film ."])
    assert bool(kept) is is_kept


def test_fraction_reduces_only_training_texts(folder: Path) -> None:
    """dev and test are unchanged, and at least one text of every label is kept."""
    complete, reduced = (load(folder, sst2.Config(fraction=fraction)) for fraction in (1.0, 0.5))
    assert sorted(example.label for example in reduced.split("train")) == ["negative", "positive"]
    assert reduced.notes[-1] == "2 of 4 training texts are used (data.fraction)"
    assert (reduced.split("dev"), reduced.split("test")) == (complete.split("dev"), complete.split("test"))
    assert reduced.fingerprint()["train"] != complete.fingerprint()["train"]
    assert complete.notes[-1].startswith("2 of 6 phrases of GLUE")
    for fraction, message in ((0.0, "fraction must be greater than 0"), (1.5, "fraction must be at most 1")):
        with pytest.raises(ValueError, match=message):
            sst2.Config(fraction=fraction)


@given(
    st.lists(st.tuples(st.text("abcd", max_size=3), st.sampled_from("xyz")), min_size=1, max_size=40),
    st.floats(0.01, 1),
    st.floats(0.01, 1),
)
def test_fractions_are_stratified_and_nested(
    rows: list[tuple[str, str]], first_fraction: float, second_fraction: float
) -> None:
    examples = [TextClassificationExample(*row) for row in rows]
    small, large = (
        sample_fraction(examples, fraction, seed=3) for fraction in sorted((first_fraction, second_fraction))
    )
    for label in {example.label for example in examples}:
        sizes = [sum(example.label == label for example in some) for some in (examples, large, small)]
        assert sizes[1:] == [
            max(1, round(fraction * sizes[0])) for fraction in sorted((first_fraction, second_fraction), reverse=True)
        ]
    remaining = list(large)
    for example in small:
        remaining.remove(example)
    assert sample_fraction(examples, 1.0, seed=3) == examples


def test_seed_selects_subset() -> None:
    examples = [TextClassificationExample(f"text {n}", "x") for n in range(50)]
    assert sample_fraction(examples, 0.2, 0) == sample_fraction(examples, 0.2, 0) != sample_fraction(examples, 0.2, 1)


def test_unlabelled_reviews_exclude_held_out_sentences(folder: Path) -> None:
    """Sentences have the spelling of GLUE. Sentences that are missing in GLUE or occur in dev are excluded."""
    train = folder / "sst2/sentence/train.tsv.gz"
    with gzip.open(train, "at") as file:
        file.write("one long bore\t0\n")
    with use_data_folder(folder):
        reviews = sst2_text.load(sst2_text.Config(wikitext2=False))
        with_wikitext = sst2_text.load(sst2_text.Config())
    assert reviews.split("train") == ["great fun", "no fun at all ."]
    assert reviews.split("dev") == ["one long bore .", "lovely"] == with_wikitext.split("dev")
    assert len(reviews.split("test")) == 4
    assert (
        with_wikitext.split("train")[-2:] == reviews.split("train") and with_wikitext.split("train")[0] == "= town 0 ="
    )
    assert all(document == document.lower().strip() and document for document in with_wikitext.split("train"))


def test_cola_uses_the_public_dev_set_as_test_split(folder: Path) -> None:
    corpus = load(folder, cola.Config())
    assert [example.text for example in corpus.split("test")] == ["Sentence 3.", "Asked this."]
    assert corpus.notes == ("1 of 30 training sentences also occur in test and were left out",)
    assert len(corpus.split("dev")) == 3
    assert len(corpus.split("train")) == 26
    assert corpus.labels == ("acceptable", "unacceptable")


def test_names_of_several_languages_are_in_one_split(folder: Path) -> None:
    for language in ("German", "English", "Dutch"):
        path = folder / f"names/{language}.txt"
        path.write_text(path.read_text() + "Abel\nAbel\n Ber  gen\n")
    corpus = load(folder, names_18.Config())
    splits = {split for split, examples in corpus.splits.items() for e in examples if e.text == "Abel"}
    assert len(splits) == 1
    labels = [e.label for examples in corpus.splits.values() for e in examples if e.text == "Abel"]
    assert sorted(labels) == ["Dutch", "English", "German"]
    assert any(e.text == "Ber gen" for examples in corpus.splits.values() for e in examples)
    assert corpus.notes[0].startswith("3 of 423 lines repeat a name of the same language")
    assert "2 of 416 names occur in several languages" in corpus.notes[1]
    without = load(folder, names_18.Config(ambiguous="drop"))
    assert not [e for examples in without.splits.values() for e in examples if e.text == "Abel"]
    assert without.notes[1] == "2 names that occur in several languages were left out"


def test_no_name_occurs_in_two_splits(folder: Path) -> None:
    shared = [f"Both{letter}{ending}" for letter in "abcde" for ending in "abcdefgh"]
    for language in ("Korean", "Polish"):
        path = folder / f"names/{language}.txt"
        path.write_text(path.read_text() + "\n".join(shared))
    corpus = load(folder, names_18.Config(dev_fraction=0.3, test_fraction=0.3))
    texts = [{example.text for example in examples} for examples in corpus.splits.values()]
    assert sum(map(len, texts)) == len(set.union(*texts))


def test_seed_determines_split_of_names(folder: Path) -> None:
    first, second = (load(folder, names_18.Config(seed=seed)) for seed in (0, 1))
    assert first.fingerprint() != second.fingerprint()
    assert all(set(first.label_counts(split)) == set(first.labels) for split in first.splits)


@given(st.lists(st.tuples(st.sampled_from("abcdefghij"), st.sampled_from("xy")), min_size=1, max_size=60))
def test_stratified_split_keeps_groups_together(pairs: list[tuple[str, str]]) -> None:
    groups, labels = [group for group, _ in pairs], [label for _, label in pairs]
    chosen = hold_out_evenly(groups, labels, {"dev": 0.2, "test": 0.2})
    assert len(chosen) == len(pairs)
    assert len(set(zip(groups, chosen, strict=True))) == len(set(groups))  # a group is never divided
    repeated = hold_out_evenly(groups, labels, {"dev": 0.2, "test": 0.2})
    assert repeated == chosen


def test_rare_labels_remain_in_train() -> None:
    labels = ["often"] * 100 + ["rare"] * 2
    chosen = hold_out_evenly([str(n) for n in range(102)], labels, {"dev": 0.1, "test": 0.1})
    counts = {(label, split): 0 for label in ("often", "rare") for split in ("train", "dev", "test")}
    for pair in zip(labels, chosen, strict=True):
        counts[pair] += 1
    assert counts["often", "dev"] == counts["often", "test"] == 10
    assert counts["rare", "train"] == 2
    assert sorted(hold_out_evenly(["a", "b", "c"], ["x", "y", "z"], {"dev": 0.1})) == ["dev", "train", "train"]
