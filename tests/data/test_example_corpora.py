"""Requirements for every corpus with labels or tags; corpora that need downloads read small files."""

import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from tests.data.example_files import settings, write

from seqloom.config import build, to_mapping
from seqloom.core.errors import DataError, ResourceError, UsageError
from seqloom.data import corpora
from seqloom.data.corpora import CORPORA, CorpusConfig, corpora_of_form
from seqloom.data.corpora.names import LOCALES, faker_names, fold
from seqloom.data.corpus import Corpus
from seqloom.data.examples import (
    MultiLabelExample,
    TextClassificationExample,
    TokenClassificationExample,
    check_labels,
    has_spans,
    tag_counts,
)
from seqloom.data.files import use_data_folder

ANSWERS = corpora_of_form("question-answering")
CHOICES = corpora_of_form("multiple-choice")
INSTRUCTIONS = corpora_of_form("instructions")
IMAGES = corpora_of_form("image-classification")
IMAGE_TEXTS = corpora_of_form("image-captioning", "visual-question-answering")
LABELLED = corpora_of_form("text-classification")
LABELLED_SERIES = corpora_of_form("series-labelled")
MATCHED = corpora_of_form("sentence-pair")
MULTI_LABEL = corpora_of_form("multi-label")
PARALLEL = corpora_of_form("parallel")
PLAIN = corpora_of_form("text")
SERIES = corpora_of_form("series")
SIGNALS = corpora_of_form("transcription", "sound-labels")
TAGGED = corpora_of_form("token-classification")
TRACKS = corpora_of_form("tracks")
VIDEOS = corpora_of_form("video")


pytest.importorskip("babel")
pytest.importorskip("faker")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module", params=LABELLED)
def labelled(request: pytest.FixtureRequest, folder: Path) -> Corpus[TextClassificationExample]:
    with use_data_folder(folder):
        return corpora.load(build(CorpusConfig[TextClassificationExample], settings(request.param, folder)))


@pytest.fixture(scope="module", params=TAGGED)
def tagged(request: pytest.FixtureRequest, folder: Path) -> Corpus[TokenClassificationExample]:
    with use_data_folder(folder):
        return corpora.load(build(CorpusConfig[TokenClassificationExample], settings(request.param, folder)))


def test_each_corpus_has_one_form() -> None:
    forms = (PLAIN, PARALLEL, LABELLED, MULTI_LABEL, TAGGED, MATCHED, CHOICES, ANSWERS, INSTRUCTIONS)
    numbers = (SERIES, LABELLED_SERIES, TRACKS, IMAGES, IMAGE_TEXTS, VIDEOS, SIGNALS)
    assert sum(map(len, (*forms, *numbers))) == len(CORPORA)
    assert set(LABELLED) >= {"table", "known-facts", "names", "names-18", "languages", "sst2", "cola"}
    assert set(TAGGED) >= {"conll", "people", "ewt", "wnut17"}


@pytest.mark.parametrize("name", [*LABELLED, *TAGGED])
def test_config_round_trips(name: str, folder: Path) -> None:
    union = CorpusConfig[TextClassificationExample] if name in LABELLED else CorpusConfig[TokenClassificationExample]
    built = build(union, settings(name, folder))
    assert type(built) is CORPORA[name].Config
    assert build(union, to_mapping(built)) == built


def test_corpus_of_other_form_is_rejected() -> None:
    with pytest.raises(UsageError, match=r"corpus.*names"):
        build(CorpusConfig[TextClassificationExample], {"corpus": "people"})


# --- labels -----------------------------------------------------------------------------------------------------------


def test_labelled_corpus_is_complete(labelled: Corpus[TextClassificationExample]) -> None:
    assert all((labelled.version, labelled.licence, labelled.description))
    assert set(labelled.splits) == {"train", "dev", "test"}
    assert list(labelled.labels) == sorted({example.label for example in labelled.split("train")})
    for split in labelled.splits:
        examples = labelled.split(split)
        assert all(example.text.strip() == example.text != "" and example.label for example in examples)
        assert sum(labelled.label_counts(split).values()) == labelled.sizes(split)["examples"] == len(examples)
        assert not labelled.unseen_labels(split)


def test_no_text_is_in_two_splits(labelled: Corpus[TextClassificationExample]) -> None:
    for first, second in combinations(labelled.splits.values(), 2):
        assert not {example.text for example in first} & {example.text for example in second}


def test_given_names_have_all_their_origins() -> None:
    """The origins of a name are those whose lists contain it with any accents. No name in test occurs in train."""
    corpus = corpora.load(build(CorpusConfig[MultiLabelExample], {"corpus": "given-names"}))
    lists = {origin: {fold(name) for name in faker_names(locale, "given")} for origin, locale in LOCALES.items()}
    for split in ("dev", "test"):
        for example in corpus.split(split):
            assert example.label_set == tuple(o for o in sorted(lists) if fold(example.text) in lists[o])
    names = {split: {fold(example.text) for example in corpus.split(split)} for split in corpus.splits}
    assert not names["train"] & (names["dev"] | names["test"]) and not names["dev"] & names["test"]
    assert set(MULTI_LABEL) == {"given-names"} and len(corpus.labels) == len(LOCALES)
    assert max(len(example.label_set) for example in corpus.split("train")) > 10


def test_fingerprint_depends_on_texts_and_labels() -> None:
    def of(*pairs: tuple[str, str]) -> str:
        splits = {"train": [TextClassificationExample(*pair) for pair in pairs]}
        return Corpus("x", "", splits, "", "1").fingerprint()["train"]

    different = [(("a", "b"),), (("a", "c"),), (("ab", ""),), (("a", "b"), ("c", "d")), (("c", "d"), ("a", "b"))]
    assert len({of(*pairs) for pairs in different}) == len(different)


def test_numeric_labels_are_sorted_by_value() -> None:
    assert TextClassificationExample.sort_labels(["10", "9", "-1", "9"]) == ("-1", "9", "10")
    assert TextClassificationExample.sort_labels(["10", "9", "b"]) == ("10", "9", "b")


def corpus_of(**splits: list[tuple[str, str]]) -> Corpus[TextClassificationExample]:
    return Corpus(
        "mine",
        "",
        {name: [TextClassificationExample(*pair) for pair in pairs] for name, pairs in splits.items()},
    )


def test_single_label_is_rejected() -> None:
    with pytest.raises(DataError, match=r"at least two labels.*all its training examples have .* 'good'.*column"):
        check_labels(corpus_of(train=[("a", "good"), ("b", "good")], dev=[("c", "bad")]))


def test_labels_missing_in_train_are_noted() -> None:
    corpus = check_labels(corpus_of(train=[("a", "x"), ("b", "y")], dev=[("c", "z"), ("d", "z")], test=[("e", "w")]))
    assert corpus.unseen_labels("dev") == {"z": 2}
    assert corpus.notes == (
        "2 dev examples have labels not in train (z): they count as wrong",
        "1 test example has a label not in train (w): it counts as wrong",
    )


def test_unique_labels_are_noted() -> None:
    corpus = check_labels(corpus_of(train=[(f"a{n}", f"label {n}") for n in range(5)]))
    assert corpus.notes == ("5 of the 5 labels have only one training example; check data.label",)


def test_new_words_are_counted_as_a_fraction() -> None:
    corpus = corpus_of(train=[("a b", "x"), ("c", "y")], dev=[("a d d, c", "x")])
    assert corpus.new_words("dev") == 3 / 5
    assert corpus.new_words("train") == 0


# --- tags -------------------------------------------------------------------------------------------------------------


def test_tagged_corpus_is_complete(tagged: Corpus[TokenClassificationExample]) -> None:
    assert all((tagged.version, tagged.licence, tagged.description))
    assert set(tagged.splits) == {"train", "dev", "test"}
    assert list(tagged.labels) == sorted({tag for sentence in tagged.split("train") for tag in sentence.tags})
    assert has_spans(tagged) == (tagged.name != "ewt")
    for split in tagged.splits:
        for sentence in tagged.split(split):
            assert len(sentence.words) == len(sentence.tags) == len(sentence.spans) > 0
            assert all(sentence.text[start:end] == word for word, (start, end) in zip_words(sentence))
            assert all(left[1] <= right[0] for left, right in zip(sentence.spans, sentence.spans[1:], strict=False))
        assert sum(len(sentence.words) for sentence in tagged.split(split)) == tagged.sizes(split)["words"]


def zip_words(sentence: TokenClassificationExample) -> Any:
    return zip(sentence.words, sentence.spans, strict=True)


def test_no_sentence_is_in_two_splits(tagged: Corpus[TokenClassificationExample]) -> None:
    for first, second in combinations(tagged.splits.values(), 2):
        assert not {sentence.words for sentence in first} & {sentence.words for sentence in second}


def test_tags_missing_in_train_are_noted() -> None:
    def corpus(**splits: list[tuple[str, str]]) -> Corpus[TokenClassificationExample]:
        sentences = {
            name: [TokenClassificationExample.of(words.split(), tags.split()) for words, tags in pairs]
            for name, pairs in splits.items()
        }
        return Corpus("mine", "", sentences, "", "1")

    with pytest.raises(DataError, match=r"at least two tags.*every word of train has the tag 'O'"):
        TokenClassificationExample.check(corpus(train=[("a b", "O O")]))
    noted = TokenClassificationExample.check(
        corpus(train=[("a b", "O B-X")], dev=[("c d", "B-Y I-Y")], test=[("e", "I-X")])
    )
    assert noted.notes == (
        "2 dev words have tags not in train (B-Y, I-Y): they count as wrong",
        "1 test word has a tag not in train (I-X): it counts as wrong",
    )
    assert tag_counts(noted, "dev") == {"Y": 1}
    assert noted.sizes("dev") == {"sentences": 1, "words": 2, "tags": 2, "spans": 1}


def test_fingerprint_depends_on_words_tags_and_sentence_boundaries() -> None:
    different = [[("a b", "X Y")], [("a b", "X X")], [("a", "X"), ("b", "Y")], [("a b", "Y X")], [("b a", "X Y")]]
    prints = {
        Corpus(
            "x", "", {"train": [TokenClassificationExample.of(w.split(), t.split()) for w, t in sentences]}
        ).fingerprint()["train"]
        for sentences in different
    }
    assert len(prints) == len(different)


# --- both -------------------------------------------------------------------------------------------------------------

FINGERPRINTS = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
from seqloom.config import build
from seqloom.data import corpora
for settings in json.loads(sys.argv[2]):
    module = corpora.find(settings["corpus"])
    corpus = corpora.load(build(module.Config, settings))
    print(corpus.name, corpus.version, corpus.fingerprint())
"""


def test_fingerprints_are_equal_in_every_process(folder: Path) -> None:
    names = [*LABELLED, *TAGGED]
    arguments = [json.dumps(sys.path), json.dumps([settings(name, folder) for name in names])]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", FINGERPRINTS, *arguments],
            env={**os.environ, "PYTHONHASHSEED": seed, "SEQLOOM_DATA": str(folder)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) == len(names)


@pytest.mark.parametrize("name", ["names", "people", "languages"])
def test_examples_depend_only_on_the_seed(name: str, folder: Path) -> None:
    first, second = (
        corpora.load(build(CORPORA[name].Config, {**settings(name, folder), "seed": seed})) for seed in (0, 1)
    )
    assert first.version != second.version
    assert all(first.fingerprint()[split] != second.fingerprint()[split] for split in first.splits)


@pytest.mark.parametrize(("name", "package"), [("names", "faker"), ("people", "faker"), ("languages", "babel")])
def test_missing_package_is_reported(name: str, package: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    built = build(CORPORA[name].Config, settings(name, folder))  # the recipe can be read even if the package is missing
    with pytest.raises(ResourceError, match=rf"The corpus {name} needs {package}.*seqloom\[corpora\]"):
        CORPORA[name].load(built)


@pytest.mark.parametrize("name", ["sst2", "cola", "names-18", "ewt", "wnut17"])
def test_error_for_missing_data_gives_instructions(name: str, tmp_path: Path) -> None:
    with use_data_folder(tmp_path), pytest.raises(DataError, match="which does not exist") as lacking:
        CORPORA[name].load(CORPORA[name].Config())
    assert str(tmp_path) in str(lacking.value) and "https://" in str(lacking.value)
