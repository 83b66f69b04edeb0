"""The kinds of phrases: what is drawn for each, how a language says it, and how large a share it has."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, TypeVar

from seqloom.data.cldr.language import Language, Money, Phrase, text_of
from seqloom.data.files import read_asset

T = TypeVar("T")
Meaning = tuple[Any, ...]  # what both languages say

FIRST = datetime(1950, 1, 1)
DAYS = 36_525  # a hundred years, to 2049: two digits of a year are enough to tell which
_CODES = read_asset("cldr.txt")
NOT_COUNTRIES = _CODES["not countries"]  # groups of countries, and many small islands that belong to one
LANGUAGES, CURRENCIES, UNITS = _CODES["languages"], _CODES["currencies"], _CODES["units"]
CHAINS = (
    ("day", "hour"),
    ("hour", "minute"),
    ("minute", "second"),
    ("day", "hour", "minute"),
    ("hour", "minute", "second"),
)
FIVE = Decimal(5)  # several, in every language
LIMITS = {"day": 30, "hour": 23, "minute": 59, "second": 59}


class Dice:
    """Draws from `random()` alone: no other method is promised to stay the same from one Python to the next."""

    def __init__(self, uniform: Callable[[], float]) -> None:
        self.uniform = uniform

    def below(self, limit: int) -> int:
        return int(self.uniform() * limit)

    def between(self, first: int, last: int) -> int:
        return first + self.below(last - first + 1)

    def one_of(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def some_of(self, options: Sequence[T], count: int) -> list[T]:
        """Different ones."""
        chosen: list[T] = []
        while len(chosen) < count:
            option = self.one_of(options)
            if option not in chosen:
                chosen.append(option)
        return chosen

    def moment(self) -> datetime:
        return FIRST + timedelta(days=self.below(DAYS), seconds=self.below(86_400))

    def number(self) -> int | Decimal:
        """Few different runs of digits, so that a small vocabulary holds them: 45, 45.3 or 45,300."""
        large, form = self.between(1, 99), self.uniform()
        if form < 0.5:
            return large
        return Decimal(large) + Decimal(self.between(1, 9)) / 10 if form < 0.8 else large * 1000 + self.below(10) * 100


class Shared:
    """What both languages have names for, each name meaning one thing alone."""

    def __init__(self, source: Language, target: Language) -> None:
        self.both = (source, target)

    @cached_property
    def countries(self) -> list[str]:
        one, other = (language.locale.territories for language in self.both)
        codes = sorted(code for code in map(str, one) if len(code) == 2 and code in other)
        return self._named([code for code in codes if code not in NOT_COUNTRIES], Language.country)

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
        own = [code for code in CURRENCIES if any(language.sign(code) != code for language in self.both)]
        return self._named(own, lambda language, code: language.money(FIVE, code, "standard"))

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
    name: str
    share: int  # of all pairs, against the shares of the others
    draw: Callable[[Dice, Shared], Meaning]
    say: Callable[..., Phrase]  # (language, *meaning)
    rivals: tuple["Kind", ...] = ()  # the same meaning in a form that may look alike and then goes first


def _date(dice: Dice, shared: Shared) -> Meaning:
    return (dice.moment(),)


def _range(dice: Dice, shared: Shared) -> Meaning:
    start = dice.moment()
    return start, start + timedelta(days=dice.between(1, 60))


def _date_time(dice: Dice, shared: Shared) -> Meaning:
    return dice.one_of(("full", "medium")), dice.moment()


def _duration(dice: Dice, shared: Shared) -> Meaning:
    return ([(dice.between(1, LIMITS[unit]), unit) for unit in dice.one_of(CHAINS)],)


def _number(dice: Dice, shared: Shared) -> Meaning:
    return (dice.below(1000) if dice.uniform() < 0.3 else dice.below(10_000),)


def _numbers(dice: Dice, shared: Shared) -> Meaning:
    limit = 100 if dice.uniform() < 0.5 else 1000
    return (dice.some_of(range(limit), dice.between(2, 3)),)


def _countries(dice: Dice, shared: Shared) -> Meaning:
    return (dice.some_of(shared.countries, dice.between(2, 4)),)


def _languages(dice: Dice, shared: Shared) -> Meaning:
    return (dice.some_of(shared.languages, dice.between(2, 4)),)


def _quantity(dice: Dice, shared: Shared) -> Meaning:
    return dice.number(), dice.one_of(shared.units)


def _money(form: Money) -> Callable[[Dice, Shared], Meaning]:
    def draw(dice: Dice, shared: Shared) -> Meaning:
        from babel.numbers import get_currency_precision

        code = dice.one_of(shared.signs if form == "standard" else shared.currencies)
        whole, part = dice.number(), dice.below(100)
        value = Decimal(int(whole))
        if isinstance(whole, Decimal) and get_currency_precision(code) == 2:
            value += Decimal(part) / 100
        return value, code

    return draw


def _dates(style: str) -> Callable[[Language, datetime], Phrase]:
    return lambda language, moment: language.date(style, moment)


def _amounts(form: Money) -> Callable[[Language, Decimal, str], Phrase]:
    return lambda language, value, code: language.money(value, code, form)


FULL = Kind("full date", 7, _date, _dates("full"))
LONG = Kind("long date", 6, _date, _dates("long"), (FULL,))
MEDIUM = Kind("medium date", 5, _date, _dates("medium"), (FULL, LONG))
SHORT = Kind("short date", 5, _date, _dates("short"), (FULL, LONG, MEDIUM))
PRICE = Kind("price", 6, _money("standard"), _amounts("standard"))

KINDS = (
    FULL,
    LONG,
    MEDIUM,
    SHORT,
    Kind("date range", 7, _range, Language.date_range),
    Kind("date and time", 8, _date_time, Language.date_time),
    Kind("weekday and time", 4, _date, Language.weekday_time),
    Kind("time", 4, _date, lambda language, moment: language.time("medium", moment)),
    Kind("duration", 7, _duration, Language.duration),
    Kind("number", 6, _number, Language.spoken),
    Kind("numbers", 7, _numbers, Language.choice),
    Kind("countries", 14, _countries, Language.countries),
    Kind("languages", 10, _languages, Language.languages),
    Kind("quantity", 10, _quantity, Language.quantity),
    PRICE,
    Kind("amount", 8, _money("name"), _amounts("name"), (PRICE,)),
)


def missing(language: Language) -> list[str]:
    """The kinds this language has no words for: num2words lacks it, or CLDR has only signs for all languages."""
    found = [] if language.number_words else ["number", "numbers"]
    signs = {
        "duration": (language.quantity(3, "duration-hour"), "3 h"),
        "quantity": (language.quantity(5, "length-kilometer"), "5 km"),
    }
    return found + [kind for kind, (phrase, sign) in signs.items() if text_of(phrase) == sign]
