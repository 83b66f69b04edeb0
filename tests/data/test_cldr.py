"""CLDR phrases equal those of babel, and are aligned and unambiguous. Held-out phrases contain only training words."""

import os
import random
import re
import subprocess
import sys
import unicodedata
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from itertools import chain, combinations, pairwise
from typing import Any

import pytest

pytest.importorskip("babel", reason="the extra `corpora` is not installed")
pytest.importorskip("num2words", reason="the extra `corpora` is not installed")

from babel import dates, lists, numbers, units

from seqloom.config import build
from seqloom.core.errors import DataError, ResourceError, UsageError
from seqloom.data import corpora, phrases
from seqloom.data.corpora import cldr
from seqloom.data.corpus import Corpus
from seqloom.data.examples import ParallelExample
from seqloom.data.phrases import Language

# Latin, Cyrillic, Greek, Hangul, Japanese, Han, Devanagari, Arabic, Hebrew, Thai
TAGS = "en fr de es it pt ru uk el hu tr vi ko ja zh hi ar he th fa zh-Hant".split()  # noqa: SIM905
PAIRS = [("en", tag) for tag in TAGS[1:]] + [("hu", "en"), ("ja", "fr"), ("ar", "ko"), ("he", "de"), ("th", "zh")]
SMALL: dict[str, Any] = {"train": 1500, "dev": 40, "test": 100}
UNSPACED = {"ja", "zh", "th", "zh-Hant"}


@cache
def small(source: str, target: str, **settings: Any) -> Corpus[ParallelExample]:
    return corpora.load(cldr.Config(source=source, target=target, **{**SMALL, **settings}))


@pytest.fixture(scope="module")
def french() -> Corpus[ParallelExample]:
    return corpora.load(cldr.Config())


@pytest.fixture(params=PAIRS, ids=lambda pair: "-".join(pair))
def corpus(request: pytest.FixtureRequest) -> Corpus[ParallelExample]:
    return small(*request.param)


def all_pairs(corpus: Corpus[ParallelExample]) -> list[ParallelExample]:
    return list(chain.from_iterable(corpus.splits.values()))


# --- splits -----------------------------------------------------------------------------------------------------------


def test_default_corpus_has_many_pairs_of_all_kinds(french: Corpus[ParallelExample]) -> None:
    sizes = {name: len(pairs) for name, pairs in french.splits.items()}
    assert sizes["train"] >= 30_000 and sizes["dev"] >= 1_000 and sizes["test"] >= 2_000
    assert french.version.startswith("1 CLDR ") and "babel" in french.version and "num2words" in french.version
    for pairs in french.splits.values():
        counts = Counter(pair.kind for pair in pairs)
        assert len(counts) == len(cldr.KINDS) >= 8
        assert max(counts.values()) < len(pairs) / 4


def test_every_language_pair_has_eight_kinds(corpus: Corpus[ParallelExample]) -> None:
    counts = Counter(pair.kind for pair in corpus.split("train"))
    assert len(counts) >= 8
    assert max(counts.values()) < SMALL["train"] / 4
    assert ("number" in counts) == (not corpus.notes)
    assert len({pair.kind for pair in corpus.split("test")}) >= 8


def test_number_kinds_need_num2words_support() -> None:
    assert small("en", "hi").notes == ("kinds left out because hi has no words for them: number, numbers",)
    assert small("th", "zh").notes == ("kinds left out because zh has no words for them: number, numbers",)
    assert not small("en", "hu").notes


def test_language_neutral_symbols_are_not_words() -> None:
    """If a language has no unit names, CLDR returns symbols such as `5 km` and `3 h`."""
    corpus = small("en", "sn", train=300, dev=10, test=20)
    assert corpus.notes == ("kinds left out because sn has no words for them: number, numbers, duration, quantity",)
    assert len({pair.kind for pair in corpus.split("train")}) >= 8


def check_no_overlap(corpus: Corpus[ParallelExample]) -> None:
    for first, second in combinations(corpus.splits.values(), 2):
        assert not {pair.source for pair in first} & {pair.source for pair in second}
        assert not {pair.target for pair in first} & {pair.target for pair in second}


def check_unambiguous(corpus: Corpus[ParallelExample]) -> None:
    targets = defaultdict(set)
    for pair in all_pairs(corpus):
        targets[pair.source].add(pair.target)
    assert all(len(translations) == 1 for translations in targets.values())


def words_of(text: str, language: str, spans: set[tuple[int, int]]) -> set[str]:
    """Return runs of letters, runs of digits and other symbols. Unspaced languages have characters and linked spans."""
    if language in UNSPACED:
        return {*text, *(text[begin:end] for begin, end in spans)}
    runs: list[str] = []
    last = ""
    for character in text:
        kind = {"L": "L", "M": "L", "N": "N"}.get(unicodedata.category(character)[0], "")
        if kind and kind == last:
            runs[-1] += character
        else:
            runs.append(character)
        last = kind
    return {run for run in runs if run.strip()}


def vocabulary(corpus: Corpus[ParallelExample], pairs: Any) -> tuple[set[str], set[str]]:
    source: set[str] = set()
    target: set[str] = set()
    for pair in pairs:
        source |= words_of(pair.source, corpus.languages[0], {link[0] for link in pair.links})
        target |= words_of(pair.target, corpus.languages[1], {link[1] for link in pair.links})
    return source, target


def check_only_train_words(corpus: Corpus[ParallelExample]) -> None:
    train_vocabulary = vocabulary(corpus, corpus.split("train"))
    for name in ("dev", "test"):
        for side, train_side in zip(vocabulary(corpus, corpus.split(name)), train_vocabulary, strict=True):
            assert side <= train_side, sorted(side - train_side)[:10]


CHECKS = [check_no_overlap, check_unambiguous, check_only_train_words]


@pytest.mark.parametrize("check", CHECKS)
def test_default_splits_are_valid(french: Corpus[ParallelExample], check: Any) -> None:
    check(french)


@pytest.mark.parametrize("check", CHECKS)
def test_splits_of_every_language_pair_are_valid(corpus: Corpus[ParallelExample], check: Any) -> None:
    check(corpus)


def test_unrestricted_held_out_phrases_have_new_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control for the rule that held-out phrases contain only words of train."""
    monkeypatch.setattr(cldr.PairDrawing, "has_only_train_words", lambda self, pair: True)
    loose = corpora.load(cldr.Config(source="en", target="de", **SMALL))
    with pytest.raises(AssertionError):
        check_only_train_words(loose)


def test_vocabulary_is_small(french: Corpus[ParallelExample]) -> None:
    assert 1_000 < len(set.union(*vocabulary(french, french.split("train")))) < 3_000


def test_equal_sources_have_equal_meanings() -> None:
    """`May 5, 2026` is a long and a medium date in English, but has two forms in German.

    One of the kinds is dropped.
    """
    pairs = all_pairs(small("en", "de"))
    assert any(pair.source.startswith("May ") for pair in pairs if pair.kind == "long date")
    assert not any(pair.source.startswith("May ") for pair in pairs if pair.kind == "medium date")


def test_pairs_depend_only_on_the_seed() -> None:
    same = corpora.load(cldr.Config(source="en", target="hu", **SMALL))
    assert same.fingerprint() == small("en", "hu").fingerprint()
    other = small("en", "hu", seed=1)
    assert other.fingerprint() != same.fingerprint()
    assert other.version != same.version


SCRIPT = """
import sys
sys.path[:0] = sys.argv[1:]
from seqloom.data import corpora
assert not {"babel", "num2words", "numpy"} & set(sys.modules)
from seqloom.data.corpora import cldr
print(corpora.load(cldr.Config(target="ko", train=300, dev=20, test=20)).fingerprint())
"""


def test_fingerprint_is_equal_in_every_process_and_import_is_cheap() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT, *sys.path],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


# --- comparison with babel --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=TAGS)
def language(request: pytest.FixtureRequest) -> Language:
    return Language(request.param)


def moments() -> list[datetime]:
    draw = random.Random(4)
    return [datetime(1950, 1, 1) + timedelta(seconds=draw.randrange(3_000_000_000)) for _ in range(25)]


def said(phrase: phrases.Phrase) -> str:
    return phrases.text_of(phrase)


def use_long_day_periods(language: Language, pattern: str) -> str:
    return pattern.replace("a", "aaaa") if language.tag == "ko" else pattern


@pytest.mark.parametrize("style", ["full", "long", "medium", "short"])
def test_dates_match_babel(language: Language, style: Any) -> None:
    for moment in moments():
        assert said(language.date(style, moment)) == phrases.plain(dates.format_date(moment, style, language.locale))


def test_times_match_babel(language: Language) -> None:
    locale = language.locale
    for moment in moments():
        for style in ("medium", "short"):
            pattern = use_long_day_periods(language, locale.time_formats[style].pattern)
            time = phrases.plain(dates.format_time(moment, pattern, locale=locale))
            assert said(language.time(style, moment)) == time
        for style in ("full", "medium"):
            pattern = str(locale.datetime_formats[style]).replace("'", "")
            expected = pattern.replace("{0}", time).replace("{1}", dates.format_date(moment, style, locale))
            assert said(language.date_time(style, moment)) == phrases.plain(expected)


def test_weekday_and_time_match_babel(language: Language) -> None:
    locale = language.locale
    skeleton = "Ehm" if "h" in locale.time_formats["short"].pattern else "EHm"
    for moment in moments():
        pattern = use_long_day_periods(language, locale.datetime_skeletons[skeleton].pattern)
        expected = phrases.plain(dates.format_datetime(moment, pattern, locale=locale))
        assert said(language.weekday_time(moment)) == expected


def test_date_ranges_match_babel(language: Language) -> None:
    for moment in moments():
        for days in (1, 12, 40, 400):
            end = moment + timedelta(days=days)
            expected = dates.format_interval(moment.date(), end.date(), "yMMMd", locale=language.locale)
            assert said(language.date_range(moment, end)) == phrases.plain(expected)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_lists_match_babel(language: Language, count: int) -> None:
    codes = ["FR", "JP", "BR", "HU", "KE"][:count]
    names = [language.locale.territories[code] for code in codes]
    assert said(language.countries(codes)) == phrases.plain(lists.format_list(names, locale=language.locale))
    if language.number_words:
        spoken = [said(language.spoken(number)) for number in (21, 305, 7, 60, 99)[:count]]
        expected = lists.format_list(spoken, style="or", locale=language.locale)
        assert said(language.choice((21, 305, 7, 60, 99)[:count])) == phrases.plain(expected)


def test_quantities_and_money_match_babel(language: Language) -> None:
    for value in (1, 2, 3, 21, Decimal("4.5"), 45_300):
        for unit in cldr.UNITS:
            expected = units.format_unit(value, unit, "long", locale=language.locale)
            if unit not in expected:  # babel returns the code if CLDR has no long form
                assert said(language.quantity(value, unit)) == phrases.plain(expected)
        for code in ("EUR", "JPY", "USD", "KES"):
            for form in ("standard", "name"):
                expected = numbers.format_currency(value, code, locale=language.locale, format_type=form)
                assert said(language.money(Decimal(value), code, form)) == phrases.plain(expected)


def test_languages_order_date_fields_differently() -> None:
    moment = datetime(2026, 11, 15, 15, 45)
    expected = {
        "en": "Sunday, November 15, 2026",
        "hu": "2026. november 15., vasárnap",
        "ja": "2026年11月15日日曜日",
        "fr": "dimanche 15 novembre 2026",
        "ru": "воскресенье, 15 ноября 2026 г.",
    }
    assert {tag: said(Language(tag).date("full", moment)) for tag in expected} == expected
    assert said(Language("ko").time("short", moment)) == "오후 3:45"
    assert said(Language("pt").spoken(16)) == "dezesseis"
    assert said(Language("pt-PT").spoken(16)) == "dezasseis"


def test_phrases_have_plain_spaces_and_no_invisible_characters(corpus: Corpus[ParallelExample]) -> None:
    for pair in all_pairs(corpus):
        for text in (pair.source, pair.target):
            assert text and text == " ".join(text.split())
            odd = {character for character in text if unicodedata.category(character) in ("Zs", "Cf", "Cc")}
            assert odd <= set(" \u200c\u200d"), text
            assert "{" not in text and "duration-" not in text


# --- links ------------------------------------------------------------------------------------------------------------


def linked_texts(pair: ParallelExample) -> list[tuple[str, str]]:
    return [(pair.source[a:b], pair.target[c:d]) for (a, b), (c, d) in pair.links]


def align(source: phrases.Phrase, target: phrases.Phrase) -> list[tuple[str, str]]:
    return linked_texts(ParallelExample(said(source), said(target), links=phrases.align_phrases(source, target)))


def test_date_fields_are_linked() -> None:
    moment = datetime(2026, 11, 15)
    assert align(Language("en").date("full", moment), Language("hu").date("full", moment)) == [
        ("Sunday", "vasárnap"),
        ("November", "november"),
        ("15", "15"),
        ("2026", "2026"),
    ]


def test_links_distinguish_equal_fields() -> None:
    moment = datetime(2011, 11, 11, 11, 11, 11)
    english, japanese = Language("en"), Language("ja")
    source, target = english.date("short", moment), japanese.date("long", moment)
    assert said(source) == "11/11/11" and said(target) == "2011年11月11日"
    assert phrases.align_phrases(source, target) == (((0, 2), (5, 7)), ((3, 5), (8, 10)), ((6, 8), (0, 4)))
    source, target = english.time("medium", moment), Language("fr").time("medium", moment)
    assert said(source) == "11:11:11 AM" and said(target) == "11:11:11"
    assert phrases.align_phrases(source, target) == (
        ((0, 2), (0, 2)),
        ((3, 5), (3, 5)),
        ((6, 8), (6, 8)),
        ((9, 11), (0, 2)),  # on a 24-hour clock, the hour also expresses AM
    )


def test_links_of_date_range_share_common_fields() -> None:
    start, end = datetime(2026, 11, 15), datetime(2026, 11, 20)
    english, french = Language("en").date_range(start, end), Language("fr").date_range(start, end)
    assert (said(english), said(french)) == ("Nov 15 – 20, 2026", "15–20 nov. 2026")
    assert align(english, french) == [("Nov", "nov."), ("15", "15"), ("20", "20"), ("2026", "2026")]
    later = datetime(2026, 12, 3)
    pairs = align(Language("en").date_range(start, later), Language("hu").date_range(start, later))
    assert ("Nov", "nov.") in pairs and ("Dec", "dec.") in pairs and ("Nov", "dec.") not in pairs


def test_words_of_lists_quantities_and_duals_are_linked() -> None:
    english, hebrew = Language("en"), Language("he")
    assert align(english.countries(["FR", "JP", "HU"]), Language("fr").countries(["FR", "JP", "HU"])) == [
        ("France", "France"),
        ("Japan", "Japon"),
        ("Hungary", "Hongrie"),
    ]
    use_long_day_periods = Language("ko")
    assert align(
        english.quantity(88, "temperature-fahrenheit"), use_long_day_periods.quantity(88, "temperature-fahrenheit")
    ) == [
        ("88", "88"),
        ("degrees Fahrenheit", "화씨"),
        ("degrees Fahrenheit", "도"),
    ]
    two_hours = align(english.quantity(2, "duration-hour"), hebrew.quantity(2, "duration-hour"))
    assert two_hours == [("2", "שעתיים"), ("hours", "שעתיים")]
    price = align(english.money(Decimal("45.20"), "EUR", "standard"), hebrew.money(Decimal("45.20"), "EUR", "standard"))
    assert price == [("€", "€"), ("45.20", "45.20")]


def test_links_are_consistent(corpus: Corpus[ParallelExample]) -> None:
    for pair in all_pairs(corpus):
        assert pair.links == tuple(sorted(set(pair.links)))
        assert bool(pair.links) == (pair.kind != "number")
        for source, target in linked_texts(pair):
            assert source and source == source.strip() and target and target == target.strip()
            if pair.kind.endswith("date") and source.isdecimal() and target.isdecimal():
                assert int(source) % 100 == int(target) % 100
        if pair.kind in ("full date", "long date", "medium date"):
            assert len(pair.links) == (4 if pair.kind == "full date" else 3)
        for side in (0, 1):  # spans on the same side are equal or do not overlap
            spans = sorted({link[side] for link in pair.links})
            assert all(left[1] <= right[0] for left, right in pairwise(spans))


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": "jp"}, r"no language 'jp': did you mean ja \(Japanese\)"),
        ({"target": "French"}, r"did you mean fr \(French\)"),
        ({"source": "gr"}, r"did you mean el \(Greek\)"),
        ({"target": "xx"}, r"no language 'xx': tags look like en, fr"),
        ({"target": ""}, "no language ''"),
        ({"target": "fr./../x"}, "no language"),
        ({"target": "fr_FR_x_y_z"}, "did you mean fr"),
        ({"target": "en"}, "must be different languages; got en and en"),
        ({"target": "en-US"}, "must be different languages"),
        ({"source": "zh-Hans", "target": "zh"}, "must be different languages"),
        ({"test": 0}, "at least 1"),
    ],
)
def test_impossible_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        cldr.Config(**settings)
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match=message):
        build(corpora.CorpusConfig[ParallelExample], {"corpus": "cldr", **settings})


@pytest.mark.parametrize(("source", "target"), [("zh", "zh-Hant"), ("en", "pt_BR"), ("pt", "pt-PT"), ("en", "zh_TW")])
def test_tags_may_have_script_or_territory(source: str, target: str) -> None:
    assert len(small(source, target, train=300, dev=10, test=10).split("train")) == 300


def test_too_many_pairs_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cldr, "KINDS", [kind for kind in cldr.KINDS if kind.name == "weekday and time"])
    with pytest.raises(DataError, match=r"data.train must be at most [\d,]+, the number .* got 20,000"):
        corpora.load(cldr.Config(train=20_000))
    with pytest.raises(DataError, match=r"data.dev .* raise data.train"):
        corpora.load(cldr.Config(train=1))


@pytest.mark.parametrize("package", ["babel", "num2words"])
def test_missing_package_is_reported(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    config = cldr.Config(target="hu")
    with pytest.raises(ResourceError, match=re.escape("pip install 'seqloom[corpora]'")):
        corpora.load(config)


def test_generated_phrases_are_unchanged(french: Corpus[ParallelExample]) -> None:
    """After a change of these phrases, increase cldr.DRAWING_VERSION, so that runs notice that their data changed."""
    if cldr.version() != "1 CLDR 47 babel 2.18.0 num2words 0.5.14":
        pytest.skip("other versions of CLDR, babel or num2words draw other pairs")
    first = [(pair.source, pair.target) for pair in french.split("test")[:2]]
    assert first == [
        ("60.00 US dollars", "60,00 dollars des États-Unis"),
        (
            "three hundred and ninety-three or one hundred and forty-one",
            "trois cent quatre-vingt-treize ou cent quarante et un",
        ),
    ]
    assert french.fingerprint()["train"].startswith("38a87f0894f3")
