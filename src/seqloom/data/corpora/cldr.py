"""Phrases in any two of many languages, made from Unicode CLDR: real words, real word order, known alignment."""

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
from seqloom.data.phrases import Language, Phrase, find, links, require_babel, same, slots_of, text_of

SUMMARY = "dates, times, lists, numbers, money in any two languages, from Unicode CLDR; no download"
FORM = "parallel"
DRAWING = "1"  # of what is drawn here; a change of it is a new version
MAX_TRIES = 100  # a kind that gives nothing new in so many draws is used up
LICENCE = "Unicode License v3 (CLDR), LGPL-2.1 (num2words, the program; not what it writes)"


# --- kinds of phrases -------------------------------------------------------------------------------------------------

Meaning = tuple[object, ...]  # what both languages say
FIRST_DAY = datetime(1950, 1, 1)
DAYS = 36_525  # a hundred years, to 2049: two digits of a year are enough to tell which
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
FIVE = Decimal(5)  # several, in every language


class Shared:
    """What both languages have names for, each name meaning one thing alone."""

    def __init__(self, source: Language, target: Language) -> None:
        self.both = (source, target)

    @cached_property
    def countries(self) -> list[str]:
        one, other = (language.locale.territories for language in self.both)
        codes = sorted(code for code in map(str, one) if len(code) == 2 and code in other)
        groups = _CODES["not countries"]  # groups of countries, and many small islands that belong to one
        return self._named([code for code in codes if code not in groups], Language.country)

    @cached_property
    def languages(self) -> list[str]:
        one, other = (language.locale.languages for language in self.both)
        return self._named([code for code in LANGUAGES if code in one and code in other], Language.language)

    @cached_property
    def units(self) -> list[str]:
        return self._named(UNITS, lambda language, unit: language.quantity(FIVE, unit))

    @cached_property
    def signs(self) -> list[str]:
        """Currencies that have a sign, not the code alone, in one of the two."""
        codes = [code for code in CURRENCIES if any(language.sign(code) != code for language in self.both)]
        return self._named(codes, lambda language, code: language.money(FIVE, code, "standard"))

    @cached_property
    def currencies(self) -> list[str]:
        return self._named(CURRENCIES, lambda language, code: language.money(FIVE, code, "name"))

    def _named(self, codes: Sequence[str], name: Callable[[Language, str], Phrase]) -> list[str]:
        kept = list(codes)
        for language in self.both:
            names = {code: text_of(name(language, code)).lower() for code in kept}
            often = Counter(names.values())
            kept = [code for code in kept if often[names[code]] == 1 and names[code] != code.lower()]
        return kept


@dataclass(frozen=True)
class Kind:
    """A kind of phrases: what is drawn for it, and how a language says it."""

    name: str
    share: int  # of all pairs, against the shares of the others
    draw: Callable[[Dice, Shared], Meaning]
    say: Callable[..., Phrase]  # (language, *meaning)
    rivals: tuple["Kind", ...] = ()  # the same meaning in a form that may look alike and then goes first


def draw_moment(dice: Dice) -> datetime:
    return FIRST_DAY + timedelta(days=dice.below(DAYS), seconds=dice.below(86_400))


def draw_number(dice: Dice) -> int | Decimal:
    """Draw 45, 45.3 or 45,300: few different runs of digits, so that a small vocabulary holds them."""
    large, form = dice.between(1, 99), dice.uniform()
    if form < 0.5:
        return large
    return Decimal(large) + Decimal(dice.between(1, 9)) / 10 if form < 0.8 else large * 1000 + dice.below(10) * 100


def draw_date(dice: Dice, shared: Shared) -> Meaning:
    return (draw_moment(dice),)


def draw_range(dice: Dice, shared: Shared) -> Meaning:
    start = draw_moment(dice)
    return start, start + timedelta(days=dice.between(1, 60))


def draw_money(dice: Dice, codes: Sequence[str]) -> Meaning:
    from babel.numbers import get_currency_precision

    code = dice.one_of(codes)
    whole, part = draw_number(dice), dice.below(100)
    value = Decimal(int(whole))
    if isinstance(whole, Decimal) and get_currency_precision(code) == 2:
        value += Decimal(part) / 100
    return value, code


FULL = Kind("full date", 7, draw_date, lambda language, moment: language.date("full", moment))
LONG = Kind("long date", 6, draw_date, lambda language, moment: language.date("long", moment), (FULL,))
MEDIUM = Kind("medium date", 5, draw_date, lambda language, moment: language.date("medium", moment), (FULL, LONG))
PRICE = Kind(
    "price",
    6,
    lambda dice, shared: draw_money(dice, shared.signs),
    lambda language, value, code: language.money(value, code, "standard"),
)
KINDS = (
    FULL,
    LONG,
    MEDIUM,
    Kind("short date", 5, draw_date, lambda language, moment: language.date("short", moment), (FULL, LONG, MEDIUM)),
    Kind("date range", 7, draw_range, Language.date_range),
    Kind(
        "date and time",
        8,
        lambda dice, shared: (dice.one_of(("full", "medium")), draw_moment(dice)),
        Language.date_time,
    ),
    Kind("weekday and time", 4, draw_date, Language.weekday_time),
    Kind("time", 4, draw_date, lambda language, moment: language.time("medium", moment)),
    Kind(
        "duration",
        7,
        lambda dice, shared: ([(dice.between(1, LIMITS[unit]), unit) for unit in dice.one_of(CHAINS)],),
        Language.duration,
    ),
    Kind(
        "number",
        6,
        lambda dice, shared: (dice.below(1000) if dice.uniform() < 0.3 else dice.below(10_000),),
        Language.spoken,
    ),
    Kind(
        "numbers",
        7,
        lambda dice, shared: (dice.some_of(range(100 if dice.uniform() < 0.5 else 1000), dice.between(2, 3)),),
        Language.choice,
    ),
    Kind(
        "countries",
        14,
        lambda dice, shared: (dice.some_of(shared.countries, dice.between(2, 4)),),
        Language.countries,
    ),
    Kind(
        "languages",
        10,
        lambda dice, shared: (dice.some_of(shared.languages, dice.between(2, 4)),),
        Language.languages,
    ),
    Kind("quantity", 10, lambda dice, shared: (draw_number(dice), dice.one_of(shared.units)), Language.quantity),
    PRICE,
    Kind(
        "amount",
        8,
        lambda dice, shared: draw_money(dice, shared.currencies),
        lambda language, value, code: language.money(value, code, "name"),
        (PRICE,),
    ),
)


def missing_kinds(language: Language) -> list[str]:
    """Return the kinds a language has no words for: num2words lacks it, or CLDR has only signs for all languages."""
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
    source: str = "en"  # a language tag, such as en, pt-BR, zh-Hant
    target: str = "fr"
    train: PositiveInt = 30_000  # pairs
    dev: PositiveInt = 1_000
    test: PositiveInt = 2_000
    kinds: tuple[str, ...] | None = None  # only these kinds of phrases, such as full date; null for all

    def problems(self) -> Iterator[str]:
        names = [kind.name for kind in KINDS]
        for name in self.kinds or ():
            if name not in names:
                yield f"kinds holds {name!r}, which is none; {did_you_mean(name, names)}"
        if self.kinds is not None and not self.kinds:
            yield "kinds must name at least one kind of phrases; null for all"
        try:
            require_babel()
        except ResourceError:
            return  # it can be read without; `load` says what is missing
        for tag in (self.source, self.target):
            find(tag)
        if same(self.source, self.target):
            yield f"source and target must be two languages, got {self.source} and {self.target}"


def load(config: Config) -> Corpus[ParallelExample]:
    """Pairs of which no side stands twice, in any split; dev and test hold nothing but words that train has."""
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
        notes=tuple(f"left out for want of words in {tag}: {names}" for tag, names in missing.items()),
    )


def version() -> str:
    import importlib.metadata

    import babel
    from babel.core import get_cldr_version

    spoken = importlib.metadata.version("num2words")
    return f"{DRAWING} CLDR {get_cldr_version()} babel {babel.__version__} num2words {spoken}"


class PairDrawing:
    """Draws pairs of two languages, none of whose sides was drawn before."""

    def __init__(self, config: Config) -> None:
        self.languages = Language(config.source), Language(config.target)
        self.shared = Shared(*self.languages)
        self.dice = Dice(f"cldr/{DRAWING}/{config.seed}")
        self.seen: tuple[set[str], set[str]] = set(), set()
        self.known: tuple[set[str], set[str]] = set(), set()  # words of train on both sides
        wanted = [kind for kind in KINDS if config.kinds is None or kind.name in config.kinds]
        self.missing = {
            language.tag: [name for name in missing_kinds(language) if name in {kind.name for kind in wanted}]
            for language in self.languages
        }
        self.kinds = [kind for kind in wanted if all(kind.name not in names for names in self.missing.values())]

    def take(self, split: str, count: int) -> list[ParallelExample]:
        """Draw the pairs of a split; those of dev and test have no word that train lacks."""
        pairs: list[ParallelExample] = []
        kinds = list(self.kinds)
        while len(pairs) < count:
            if not kinds:
                more = "" if split == "train" else ", or raise data.train: they may have no word that it lacks"
                raise DataError(
                    f"data.{split} must be no more than the {len(pairs):,} pairs that could be drawn, got {count:,}. "
                    f"Ask for fewer{more}."
                )
            sums = list(accumulate(kind.share for kind in kinds))
            place = self.dice.below(sums[-1])
            kind = next(kind for kind, upper in zip(kinds, sums, strict=True) if place < upper)
            for _ in range(MAX_TRIES):
                pair = self._draw(kind)
                if pair is not None and (split == "train" or self.is_familiar(pair)):
                    break
            else:
                kinds.remove(kind)
                continue
            pairs.append(pair)
            for seen, text in zip(self.seen, (pair.source, pair.target), strict=True):
                seen.add(text)
        if split == "train":
            for pair in pairs:
                for known, words in zip(self.known, self._words(pair), strict=True):
                    known |= words
        return pairs

    def _draw(self, kind: Kind) -> ParallelExample | None:
        """Draw a pair; None if it was drawn before or its source does not say what its target should."""
        meaning = kind.draw(self.dice, self.shared)
        source, target = (kind.say(language, *meaning) for language in self.languages)
        texts = text_of(source), text_of(target)
        if texts[0] in self.seen[0] or texts[1] in self.seen[1] or slots_of(target) - slots_of(source):
            return None
        for rival in kind.rivals:
            if text_of(rival.say(self.languages[0], *meaning)) == texts[0]:
                return None
        return ParallelExample(*texts, kind=kind.name, links=links(source, target))

    def is_familiar(self, pair: ParallelExample) -> bool:
        return all(words <= known for words, known in zip(self._words(pair), self.known, strict=True))

    def _words(self, pair: ParallelExample) -> Iterator[set[str]]:
        """Yield the words of both sides; where no spaces part them, every character, and what fills each slot."""
        for side, (language, text) in enumerate(zip(self.languages, (pair.source, pair.target), strict=True)):
            spans = [link[side] for link in pair.links]
            yield (
                set(word_pattern().findall(text))
                if language.spaced
                else {*text, *(text[start:end] for start, end in spans)}
            )


@cache
def word_pattern() -> re.Pattern[str]:
    """Runs of digits, runs of letters, other signs. Python's \\w lacks the marks that words of Arabic or Hindi have."""
    marks = "".join(chr(code) for code in range(0x300, 0x11000) if unicodedata.category(chr(code))[0] == "M")
    return re.compile(rf"\d+|(?:[^\W\d]|[{marks}])+|\S")
