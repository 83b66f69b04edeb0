"""Parallel phrases in any two languages of Unicode CLDR, with real words, real word order and known alignment."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache, cached_property
from itertools import accumulate
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError, ResourceError
from seqloom.core.words import did_you_mean
from seqloom.data.corpus import Corpus, GeneratedConfig
from seqloom.data.examples import ParallelExample
from seqloom.data.files import read_asset
from seqloom.data.generated import Dice
from seqloom.data.phrases import (
    Language,
    Phrase,
    align_phrases,
    find,
    is_same_language,
    require_babel,
    slots_of,
    text_of,
)

SUMMARY = "dates, times, lists, numbers, prices in any two languages, from Unicode CLDR; no download"
FORM = "parallel"
DRAWING_VERSION = "1"  # increase this number when a change of this module alters the phrases
MAX_TRIES = 100  # a kind is exhausted after this many draws without a new phrase
LICENCE = "Unicode License v3 (CLDR), LGPL-2.1 (num2words; not its output)"


# --- kinds of phrases -------------------------------------------------------------------------------------------------

Meaning = tuple[object, ...]  # the arguments of `PhraseKind.say`, the same for both languages
FIRST_DAY = datetime(1950, 1, 1)
DAYS = 36_525  # a hundred years that end in 2049, so that two digits identify a year
_CODES = read_asset("cldr.txt")
LANGUAGES, CURRENCIES, UNITS = _CODES["languages"], _CODES["currencies"], _CODES["units"]
CHAINS = (
    ("day", "hour"),
    ("hour", "minute"),
    ("minute", "second"),
    ("day", "hour", "minute"),
    ("hour", "minute", "second"),
)
LIMITS = {"day": 30, "hour": 23, "minute": 59, "second": 59}
FIVE = Decimal(5)  # this number takes a plural in every language


class SharedNames:
    """The codes of countries, languages, units and currencies that have a unique name in both languages."""

    def __init__(self, source: Language, target: Language) -> None:
        self.both = (source, target)

    @cached_property
    def countries(self) -> list[str]:
        source, target = (language.locale.territories for language in self.both)
        codes = sorted(code for code in map(str, source) if len(code) == 2 and code in target)
        excluded = _CODES["not countries"]  # excludes groups of countries and dependent islands
        return self._with_unique_names([code for code in codes if code not in excluded], Language.country)

    @cached_property
    def languages(self) -> list[str]:
        source, target = (language.locale.languages for language in self.both)
        codes = [code for code in LANGUAGES if code in source and code in target]
        return self._with_unique_names(codes, Language.language)

    @cached_property
    def units(self) -> list[str]:
        return self._with_unique_names(UNITS, lambda language, unit: language.quantity(FIVE, unit))

    @cached_property
    def signs(self) -> list[str]:
        """The currencies that have a sign, and not only a code, in at least one of the languages."""
        codes = [code for code in CURRENCIES if any(language.sign(code) != code for language in self.both)]
        return self._with_unique_names(codes, lambda language, code: language.money(FIVE, code, "standard"))

    @cached_property
    def currencies(self) -> list[str]:
        return self._with_unique_names(CURRENCIES, lambda language, code: language.money(FIVE, code, "name"))

    def _with_unique_names(self, codes: Sequence[str], name: Callable[[Language, str], Phrase]) -> list[str]:
        codes = list(codes)
        for language in self.both:
            names = {code: text_of(name(language, code)).lower() for code in codes}
            counts = Counter(names.values())
            codes = [code for code in codes if counts[names[code]] == 1 and names[code] != code.lower()]
        return codes


@dataclass(frozen=True)
class PhraseKind:
    """A kind of phrase: a function that draws a meaning, and a function that expresses it in a language."""

    name: str
    weight: int  # the relative frequency of this kind
    draw: Callable[[Dice, SharedNames], Meaning]
    say: Callable[..., Phrase]  # called with (language, *meaning)
    rivals: tuple[
        "PhraseKind", ...
    ] = ()  # a phrase is dropped if one of these kinds writes its meaning in the same way


def draw_moment(dice: Dice) -> datetime:
    return FIRST_DAY + timedelta(days=dice.below(DAYS), seconds=dice.below(86_400))


def draw_number(dice: Dice) -> int | Decimal:
    """Draw a number with few digit groups, such as 45, 45.3 or 45,300, so that a small vocabulary suffices."""
    large, form = dice.between(1, 99), dice.uniform()
    if form < 0.5:
        return large
    return Decimal(large) + Decimal(dice.between(1, 9)) / 10 if form < 0.8 else large * 1000 + dice.below(10) * 100


def draw_date(dice: Dice, shared: SharedNames) -> Meaning:
    return (draw_moment(dice),)


def draw_range(dice: Dice, shared: SharedNames) -> Meaning:
    start = draw_moment(dice)
    return start, start + timedelta(days=dice.between(1, 60))


def draw_money(dice: Dice, codes: Sequence[str]) -> Meaning:
    from babel.numbers import get_currency_precision

    code = dice.one_of(codes)
    amount, cents = draw_number(dice), dice.below(100)
    value = Decimal(int(amount))
    if isinstance(amount, Decimal) and get_currency_precision(code) == 2:
        value += Decimal(cents) / 100
    return value, code


FULL = PhraseKind("full date", 7, draw_date, lambda language, moment: language.date("full", moment))
LONG = PhraseKind("long date", 6, draw_date, lambda language, moment: language.date("long", moment), (FULL,))
MEDIUM = PhraseKind("medium date", 5, draw_date, lambda language, moment: language.date("medium", moment), (FULL, LONG))
PRICE = PhraseKind(
    "price",
    6,
    lambda dice, shared: draw_money(dice, shared.signs),
    lambda language, value, code: language.money(value, code, "standard"),
)
KINDS = (
    FULL,
    LONG,
    MEDIUM,
    PhraseKind(
        "short date", 5, draw_date, lambda language, moment: language.date("short", moment), (FULL, LONG, MEDIUM)
    ),
    PhraseKind("date range", 7, draw_range, Language.date_range),
    PhraseKind(
        "date and time",
        8,
        lambda dice, shared: (dice.one_of(("full", "medium")), draw_moment(dice)),
        Language.date_time,
    ),
    PhraseKind("weekday and time", 4, draw_date, Language.weekday_time),
    PhraseKind("time", 4, draw_date, lambda language, moment: language.time("medium", moment)),
    PhraseKind(
        "duration",
        7,
        lambda dice, shared: ([(dice.between(1, LIMITS[unit]), unit) for unit in dice.one_of(CHAINS)],),
        Language.duration,
    ),
    PhraseKind(
        "number",
        6,
        lambda dice, shared: (dice.below(1000) if dice.uniform() < 0.3 else dice.below(10_000),),
        Language.spoken,
    ),
    PhraseKind(
        "numbers",
        7,
        lambda dice, shared: (dice.some_of(range(100 if dice.uniform() < 0.5 else 1000), dice.between(2, 3)),),
        Language.choice,
    ),
    PhraseKind(
        "countries",
        14,
        lambda dice, shared: (dice.some_of(shared.countries, dice.between(2, 4)),),
        Language.countries,
    ),
    PhraseKind(
        "languages",
        10,
        lambda dice, shared: (dice.some_of(shared.languages, dice.between(2, 4)),),
        Language.languages,
    ),
    PhraseKind("quantity", 10, lambda dice, shared: (draw_number(dice), dice.one_of(shared.units)), Language.quantity),
    PRICE,
    PhraseKind(
        "amount",
        8,
        lambda dice, shared: draw_money(dice, shared.currencies),
        lambda language, value, code: language.money(value, code, "name"),
        (PRICE,),
    ),
)


def missing_kinds(language: Language) -> list[str]:
    """Return the kinds that cannot be written in a language, because num2words lacks it or CLDR has only symbols."""
    signs = {
        "duration": (language.quantity(3, "duration-hour"), "3 h"),
        "quantity": (language.quantity(5, "length-kilometer"), "5 km"),
    }
    numbers = [] if language.number_words else ["number", "numbers"]
    return numbers + [kind for kind, (phrase, sign) in signs.items() if text_of(phrase) == sign]


# --- the corpus -------------------------------------------------------------------------------------------------------


@config
class Config(GeneratedConfig):
    corpus: Literal["cldr"] = "cldr"
    source: str = "en"  # source language: a tag such as en, pt-BR or zh-Hant
    target: str = "fr"
    train: PositiveInt = 30_000  # number of training pairs
    dev: PositiveInt = 1_000
    test: PositiveInt = 2_000
    kinds: tuple[str, ...] | None = None  # kinds of phrases to include, such as full date; null: all

    def problems(self) -> Iterator[str]:
        names = [kind.name for kind in KINDS]
        for name in self.kinds or ():
            if name not in names:
                yield f"kinds contains {name!r}, which is unknown; {did_you_mean(name, names)}"
        if self.kinds is not None and not self.kinds:
            yield "kinds must name at least one kind of phrase; for all kinds, set it to null"
        try:
            require_babel()
        except ResourceError:
            return  # a recipe can be read without babel; `load` reports that it is missing
        for tag in (self.source, self.target):
            find(tag)
        if is_same_language(self.source, self.target):
            yield f"source and target must be different languages; got {self.source} and {self.target}"


def load(config: Config) -> Corpus[ParallelExample]:
    """Generate pairs; no source or target is repeated in any split, and all words of dev and test occur in train."""
    require_babel()
    drawing = PairDrawing(config)
    splits = config.draw(drawing.take)
    missing = {tag: ", ".join(names) for tag, names in drawing.missing.items() if names}
    return Corpus(
        name="cldr",
        version=f"{version()} seed {config.seed}",
        licence=LICENCE,
        description=f"phrases of {len(drawing.kinds)} kinds from Unicode CLDR, {config.source} to {config.target}",
        languages=(drawing.languages[0].tag, drawing.languages[1].tag),
        splits=splits,
        notes=tuple(f"kinds left out because {tag} has no words for them: {names}" for tag, names in missing.items()),
    )


def version() -> str:
    import importlib.metadata

    import babel
    from babel.core import get_cldr_version

    num2words_version = importlib.metadata.version("num2words")
    return f"{DRAWING_VERSION} CLDR {get_cldr_version()} babel {babel.__version__} num2words {num2words_version}"


class PairDrawing:
    """A generator of pairs in two languages; no source or target is repeated."""

    def __init__(self, config: Config) -> None:
        self.languages = Language(config.source), Language(config.target)
        self.shared = SharedNames(*self.languages)
        self.dice = Dice(f"cldr/{DRAWING_VERSION}/{config.seed}")
        self.seen: tuple[set[str], set[str]] = set(), set()
        self.train_words: tuple[set[str], set[str]] = set(), set()  # words of the sources and of the targets
        kinds = [kind for kind in KINDS if config.kinds is None or kind.name in config.kinds]
        self.missing = {
            language.tag: [name for name in missing_kinds(language) if name in {kind.name for kind in kinds}]
            for language in self.languages
        }
        self.kinds = [kind for kind in kinds if all(kind.name not in names for names in self.missing.values())]

    def take(self, split: str, count: int) -> list[ParallelExample]:
        """Draw the pairs of a split; pairs of dev and test contain only words of train."""
        pairs: list[ParallelExample] = []
        kinds = list(self.kinds)
        while len(pairs) < count:
            if not kinds:
                hint = "" if split == "train" else " or raise data.train: its words limit the pairs of the other splits"
                raise DataError(
                    f"data.{split} must be at most {len(pairs):,}, the number of different pairs that could be drawn; "
                    f"got {count:,}. Lower it{hint}."
                )
            sums = list(accumulate(kind.weight for kind in kinds))
            number = self.dice.below(sums[-1])
            kind = next(kind for kind, upper in zip(kinds, sums, strict=True) if number < upper)
            for _ in range(MAX_TRIES):
                pair = self._draw(kind)
                if pair is not None and (split == "train" or self.has_only_train_words(pair)):
                    break
            else:
                kinds.remove(kind)
                continue
            pairs.append(pair)
            for seen, text in zip(self.seen, (pair.source, pair.target), strict=True):
                seen.add(text)
        if split == "train":
            for pair in pairs:
                for train_words, words in zip(self.train_words, self._words(pair), strict=True):
                    train_words |= words
        return pairs

    def _draw(self, kind: PhraseKind) -> ParallelExample | None:
        """Draw a pair; return None if a side repeats an earlier pair, or the source is ambiguous or incomplete."""
        meaning = kind.draw(self.dice, self.shared)
        source, target = (kind.say(language, *meaning) for language in self.languages)
        texts = text_of(source), text_of(target)
        if texts[0] in self.seen[0] or texts[1] in self.seen[1] or slots_of(target) - slots_of(source):
            return None
        for rival in kind.rivals:
            if text_of(rival.say(self.languages[0], *meaning)) == texts[0]:
                return None
        return ParallelExample(*texts, kind=kind.name, links=align_phrases(source, target))

    def has_only_train_words(self, pair: ParallelExample) -> bool:
        return all(words <= known for words, known in zip(self._words(pair), self.train_words, strict=True))

    def _words(self, pair: ParallelExample) -> Iterator[set[str]]:
        """Yield the words of each side; for a language without spaces, yield its characters and the slots' fillers."""
        for side, (language, text) in enumerate(zip(self.languages, (pair.source, pair.target), strict=True)):
            spans = [link[side] for link in pair.links]
            yield (
                set(word_pattern().findall(text))
                if language.spaced
                else {*text, *(text[start:end] for start, end in spans)}
            )


@cache
def word_pattern() -> re.Pattern[str]:
    """Return the pattern that finds words: digits, letters, or any other symbol.

    Python's \\w does not match the combining marks of Arabic or Hindi.
    """
    marks = "".join(chr(code) for code in range(0x300, 0x11000) if unicodedata.category(chr(code))[0] == "M")
    return re.compile(rf"\d+|(?:[^\W\d]|[{marks}])+|\S")
