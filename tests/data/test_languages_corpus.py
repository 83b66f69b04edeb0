"""Language identification: there are many languages and scripts, and each held-out phrase has one possible label."""

import re
import unicodedata
from collections import Counter

import pytest

from seqloom.config import build
from seqloom.core.errors import DataError, UsageError
from seqloom.data import corpora
from seqloom.data.corpora import languages
from seqloom.data.corpora.cldr import KINDS
from seqloom.data.corpus import Corpus
from seqloom.data.examples import TextClassificationExample
from seqloom.data.phrases import text_of
from seqloom.data.splits import normal_form

pytest.importorskip("babel")


@pytest.fixture(scope="module")
def corpus() -> Corpus[TextClassificationExample]:
    return corpora.load(languages.Config(train=3400, dev=340, test=340))


def test_corpus_has_many_languages_and_scripts(corpus: Corpus[TextClassificationExample]) -> None:
    assert len(corpus.labels) == len(languages.LANGUAGES) == 34
    assert set(corpus.label_counts("train").values()) == {100}
    letters = "".join(example.text for example in corpus.split("train"))
    scripts = Counter(unicodedata.name(letter).split()[0] for letter in letters if letter.isalpha())
    expected = "LATIN CYRILLIC GREEK ARABIC HEBREW DEVANAGARI BENGALI THAI HANGUL CJK KATAKANA GEORGIAN ARMENIAN"
    assert all(scripts[script] > 100 for script in expected.split())


def test_phrases_are_unique_and_have_letters() -> None:
    close = corpora.load(languages.Config(languages=("ja", "zh"), train=3000, dev=300, test=300))
    texts = [example.text for examples in close.splits.values() for example in examples]
    assert len(set(texts)) == len(texts)
    assert all(sum(letter.isalpha() for letter in text) >= languages.MIN_LETTERS for text in texts)


def test_normal_form_determines_split(corpus: Corpus[TextClassificationExample]) -> None:
    forms = {name: [normal_form(example.text) for example in corpus.split(name)] for name in ("train", "dev", "test")}
    assert not set(forms["train"]) & set(forms["dev"])
    assert not set(forms["train"]) & set(forms["test"])
    assert not set(forms["dev"]) & set(forms["test"])
    assert all(len(set(forms[name])) == len(forms[name]) for name in ("dev", "test"))
    assert len(set(forms["train"])) < len(forms["train"])  # train contains equal words with different digits


def test_every_split_has_dates_and_lists(corpus: Corpus[TextClassificationExample]) -> None:
    """train must not use all examples of kinds with few normal forms, such as dates."""
    for name in ("train", "dev", "test"):
        english = [example.text for example in corpus.split(name) if example.label in ("en", "de", "fr")]
        dated = sum(bool(re.search(r"\d{4}", text)) for text in english)
        assert 0.1 < dated / len(english) < 0.6
        assert any(not re.search(r"\d", text) for text in english)


def test_held_out_phrases_are_unambiguous() -> None:
    """Some dates are equal in Chinese and Japanese, and many phrases in Danish and Norwegian."""
    drawing = languages.PhraseDrawing(
        languages.Config(languages=("ja", "zh", "da", "nb"), train=4, dev=4, test=4, seed=1)
    )
    kind = next(kind for kind in drawing.kinds["ja"] if kind.name == "long date")
    meaning = kind.draw(drawing.dice, drawing.shared["ja"])
    assert drawing.is_ambiguous("ja", kind, meaning, text_of(kind.say(drawing.languages["ja"], *meaning)))
    held_out = drawing.take("test", 200)
    date = re.compile(r"\d+年\d+月\d+日")
    assert not [example for example in held_out if date.fullmatch(example.text)]
    assert [example for example in drawing.take("train", 400) if date.fullmatch(example.text)]


def test_tags_are_the_labels() -> None:
    chosen = corpora.load(languages.Config(languages=("pt-BR", "zh-Hant"), train=20, dev=2, test=2))
    assert chosen.labels == ("pt-BR", "zh-Hant")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"languages": ["en"]}, "at least two different"),
        ({"languages": ["en", "en"]}, "at least two different"),
        ({"languages": ["en", "frx"]}, "CLDR has no language 'frx'"),
        ({"dev": 33}, "at least 34"),
    ],
)
def test_invalid_settings_are_rejected(setting: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(corpora.CorpusConfig[TextClassificationExample], {"corpus": "languages", **setting})


def test_too_many_phrases_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(languages, "KINDS", [kind for kind in KINDS if kind.name == "weekday and time"])
    with pytest.raises(DataError, match=r"too few different phrases in (en|fr)"):
        corpora.load(languages.Config(languages=("en", "fr"), train=60_000, dev=2, test=2))
