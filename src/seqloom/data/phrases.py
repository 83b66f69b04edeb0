"""Phrases of one language as CLDR has them: dates, lists, quantities and money, piece by piece, as babel says them."""

import difflib
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from seqloom.core.errors import ResourceError
from seqloom.core.words import unspaced
from seqloom.data.examples import Link, Span
from seqloom.data.files import read_asset

if TYPE_CHECKING:
    from babel import Locale

WELL_KNOWN = read_asset("cldr.txt")["well known"]
TAG = re.compile("[A-Za-z0-9_-]+")
MIN_COUNTRIES = 100  # countries a language must have names for; below that CLDR has hardly begun with it


def require_babel(corpus: str = "cldr") -> None:
    """Looked for, not imported: a run that is opened needs no numbers in words."""
    if not all(find_spec(package) for package in ("babel", "num2words")):
        raise ResourceError(f"The corpus {corpus} needs babel and num2words: pip install 'seqloom[corpora]'.")


@cache
def find(tag: str) -> "Locale":
    """The locale a tag such as `fr`, `pt-BR` or `zh_Hant` names, or ValueError with the nearest ones."""
    from babel import Locale, UnknownLocaleError

    try:
        if not TAG.fullmatch(tag):  # babel passes over what follows a dot or an @, and runs are named after languages
            raise ValueError(tag)
        locale = Locale.parse(tag.replace("-", "_"))
    except (UnknownLocaleError, ValueError):
        raise ValueError(f"CLDR has no language '{tag}': {_suggestion(tag)}") from None
    if not _has_enough(locale):
        raise ValueError(f"CLDR has too little of '{tag}' to make phrases of: {_suggestion(tag)}")
    return locale


def same(one: str, other: str) -> bool:
    """Whether two tags name one language as it is written in one place: en and en-US, zh and zh-Hans."""
    from babel.core import get_global

    likely, names = get_global("likely_subtags"), []
    for locale in (find(one), find(other)):
        parts = [locale.language, locale.script or "", locale.territory or ""]
        for known in (str(locale), f"{locale.language}_{locale.script}", locale.language):
            if known in likely:
                full = str(likely[known]).split("_")
                parts = [part or assumed for part, assumed in zip(parts, full, strict=False)]
                break
        names.append(parts)
    return names[0] == names[1]


def _has_enough(locale: "Locale") -> bool:
    codes = [code for code in map(str, locale.territories) if len(code) == 2]
    return len(codes) >= MIN_COUNTRIES and locale.months["format"]["wide"][1] != "M01"


def _suggestion(tag: str) -> str:
    """Return tags by what they may have been taken for: a country's (jp), a name (French), or a slip of the hand."""
    from babel import Locale
    from babel.core import get_global
    from babel.localedata import locale_identifiers

    english = Locale("en")
    languages = [name for name in locale_identifiers() if "_" not in name]
    first = tag.strip().replace("-", "_").split("_")[0]
    close = [get_global("likely_subtags").get(f"und_{first.upper()}", "").split("_")[0]]
    names = {str(english.languages[code]).lower(): code for code in languages if code in english.languages}
    names |= {str(Locale(code).get_display_name() or code).lower(): code for code in WELL_KNOWN}
    close += [names[name] for name in difflib.get_close_matches(tag.lower(), names, n=2, cutoff=0.75)]
    if len(first) <= 3:
        close += difflib.get_close_matches(first.lower(), languages, n=3, cutoff=0.6)
    usable = [code for code in dict.fromkeys(close) if code in languages and _has_enough(Locale(code))]
    suggested = " or ".join(f"{code} ({english.languages.get(code, code)})" for code in usable[:3])
    known = f"tags look like {', '.join(WELL_KNOWN)}, pt-PT or zh-Hant"
    return f"did you mean {suggested}? ({known})" if suggested else f"{known}."


# --- phrases ----------------------------------------------------------------------------------------------------------

# Some text, and the slots it says: none, one, or several ("15" says hour and period).
Piece = tuple[str, tuple[str, ...]]
Phrase = tuple[Piece, ...]

# CLDR sets thin and unbreakable spaces, and marks for the direction of writing. Nobody types them: "3:45 PM" is the
# same phrase whichever space stands in it, so both sides have plain ones. Joiners within words stay.
_PLAIN = str.maketrans(
    dict.fromkeys("\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f", " ")
    | dict.fromkeys("\u061c\u200b\u200e\u200f\u2066\u2067\u2068\u2069\u202a\u202b\u202c\u202d\u202e\ufeff")
)
_PLACE = re.compile(r"\{(\d)\}")
_NUMBER = re.compile(r"\d(?:.*\d)?")


def plain(text: str) -> str:
    """The text as a person would type it."""
    return text.translate(_PLAIN)


@lru_cache(maxsize=1 << 16)
def say(text: str, *slots: str) -> Phrase:
    """A phrase of one piece; spaces around it say nothing."""
    text = plain(text)
    inner = text.strip()
    if not slots or inner == text:
        return ((text, slots),) if text else ()
    before, _, after = text.partition(inner)
    return tuple(piece for piece in ((before, ()), (inner, slots), (after, ())) if piece[0])


def around_number(text: str, other: str) -> Phrase:
    """What stands in digits says the number, the rest says the other; without digits (a dual) all of it says both."""
    found = _NUMBER.search(text)
    if not found:
        return say(text, "number", other)
    return say(text[: found.start()], other) + say(found[0], "number") + say(text[found.end() :], other)


def fill(pattern: str, *phrases: Phrase) -> Phrase:
    """`{0}, {1}` with a phrase in each place."""
    parts = _PLACE.split(pattern)
    found: list[Piece] = list(say(parts[0]))
    for place, literal in zip(parts[1::2], parts[2::2], strict=True):
        found += phrases[int(place)]
        found += say(literal)
    return tuple(found)


def text_of(phrase: Phrase) -> str:
    return "".join([text for text, _ in phrase])


def slots_of(phrase: Phrase) -> set[str]:
    return {slot for _, slots in phrase for slot in slots}


def links(source: Phrase, target: Phrase) -> tuple[Link, ...]:
    """Every part of the source with every part of the target that says the same, in the order of the source."""
    there = _spans(target)
    found = {(one, other) for slot, spans in _spans(source).items() for one in spans for other in there.get(slot, ())}
    return tuple(sorted(found))


def _spans(phrase: Iterable[Piece]) -> dict[str, list[Span]]:
    found: defaultdict[str, list[Span]] = defaultdict(list)
    end = 0
    for text, slots in phrase:
        begin, end = end, end + len(text)
        for slot in slots:
            found[slot].append((begin, end))
    return found


# --- a language -------------------------------------------------------------------------------------------------------


# What the letters of a CLDR date pattern say. On a 24-hour clock the hour says the half of the day too.
FIELDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys("yu", ("year",)),
    **dict.fromkeys("ML", ("month",)),
    "d": ("day",),
    **dict.fromkeys("Eec", ("weekday",)),
    **dict.fromkeys("hK", ("hour",)),
    **dict.fromkeys("Hk", ("hour", "period")),
    **dict.fromkeys("abB", ("period",)),
    "m": ("minute",),
    "s": ("second",),
}
# What of a moment decides how a field is written; other letters are remembered by the whole moment.
_DECIDES: dict[tuple[str, ...], Callable[[datetime], Hashable]] = {
    ("year",): lambda moment: moment.year,
    ("month",): lambda moment: moment.month,
    ("day",): lambda moment: moment.day,
    ("weekday",): lambda moment: moment.weekday(),
    ("hour",): lambda moment: moment.hour,
    ("hour", "period"): lambda moment: moment.hour,
    ("period",): lambda moment: (moment.hour, moment.minute),
    ("minute",): lambda moment: moment.minute,
    ("second",): lambda moment: moment.second,
}
Length = Literal["long", "short"]
Money = Literal["standard", "name"]
# `a` in a pattern is the short form, which for Korean is CLDR's "AM"; what Koreans read and write is the long one.
LONG_PERIOD = {"ko"}
# num2words goes by other names for some: CLDR's plain Portuguese is Brazil's, Kazakh is kz, Norwegian no. Its Serbian
# is in Latin letters where CLDR's is in Cyrillic ones, and its Amharic fails from 1,100 on.
_NUM2WORDS = {"pt": "pt_BR", "pt_PT": "pt", "kk": "kz", "nb": "no", "nn": "", "sr": "", "sr_Latn": "sr", "am": ""}


class Language:
    """How a language says things."""

    def __init__(self, tag: str) -> None:
        from num2words import CONVERTER_CLASSES

        self.locale = find(tag)
        self.tag = str(self.locale).replace("_", "-")
        language, territory, script = self.locale.language, self.locale.territory, self.locale.script
        self.spaced = not unspaced(language)
        names = [_NUM2WORDS.get(name, name) for name in (f"{language}_{territory}", f"{language}_{script}", language)]
        # what num2words calls it; empty where it lacks it
        self.number_words = next((name for name in names if name in CONVERTER_CLASSES or not name), "")
        self._fields: dict[tuple[str, Hashable], Phrase] = {}
        self._patterns: dict[str, list[str | tuple[str]]] = {}
        self._lengths: dict[str, Length] = {}
        self._spoken: dict[int, str] = {}

    # Dates and times

    def date(self, style: str, moment: datetime) -> Phrase:
        return self._moment(self.locale.date_formats[style].pattern, moment)

    def time(self, style: str, moment: datetime) -> Phrase:
        return self._moment(self.locale.time_formats[style].pattern, moment)

    def date_time(self, style: str, moment: datetime) -> Phrase:
        """The date in a style with the hour and minute."""
        pattern = str(self.locale.datetime_formats[style]).replace("'", "")
        return fill(pattern, self.time("short", moment), self.date(style, moment))

    def weekday_time(self, moment: datetime) -> Phrase:
        short = self.locale.time_formats["short"].pattern
        skeleton = "EHm" if set("Hk") & set(short) else "Ehm"
        return self._moment(self.locale.datetime_skeletons[skeleton].pattern, moment)

    def date_range(self, start: datetime, end: datetime) -> Phrase:
        """`Nov 15 – 20, 2026`: what both ends have in common keeps its name, the rest is told apart by its end."""
        fields = {"y": "year", "M": "month", "d": "day"}
        differ = {field: name for field, name in fields.items() if getattr(start, name) != getattr(end, name)}
        patterns = self.locale.interval_formats["yMMMd"][next(iter(differ))]
        phrase: list[Piece] = []
        for which, pattern, moment in zip(("start", "end"), patterns, (start, end), strict=True):
            for text, slots in self._moment(pattern, moment):
                phrase.append((text, tuple(f"{which}.{slot}" if slot in differ.values() else slot for slot in slots)))
        return tuple(phrase)

    def _moment(self, pattern: str, moment: datetime) -> Phrase:
        """Say a moment by a pattern: literal text as it is, and fields, which are (`MMMM`,) here."""
        if pattern not in self._patterns:
            from babel.dates import tokenize_pattern

            tokens = [value for _, value in tokenize_pattern(pattern)]
            self._patterns[pattern] = [value if isinstance(value, str) else (value[0] * value[1],) for value in tokens]
        phrase: list[Piece] = []
        for token in self._patterns[pattern]:
            if isinstance(token, str):
                phrase += say(token)
                continue
            name = "aaaa" if token[0] == "a" and self.locale.language in LONG_PERIOD else token[0]
            slots = FIELDS.get(name[0], ())
            key = (name, _DECIDES[slots](moment) if slots else moment)
            if key not in self._fields:
                from babel.dates import DateTimeFormat

                self._fields[key] = say(DateTimeFormat(moment, self.locale)[name], *slots)
            phrase += self._fields[key]
        return tuple(phrase)

    # Lists

    def list_of(self, style: str, items: Sequence[Phrase]) -> Phrase:
        """`A, B and C`: the slots of item i are called `i.`."""
        patterns = self.locale.list_patterns

        def join(place: str, *phrases: Phrase) -> Phrase:  # CLDR writes down only where a style differs
            named = (name for name in (style, "standard") if place in patterns.get(name, ()))
            return fill(str(patterns[next(named)][place]), *phrases)

        numbered = [
            tuple((text, tuple(f"{place}.{slot}" for slot in slots)) for text, slots in item)
            for place, item in enumerate(items)
        ]
        if len(numbered) == 2:
            return join("2", *numbered)
        phrase = join("start", *numbered[:2])
        for item in numbered[2:-1]:
            phrase = join("middle", phrase, item)
        return join("end", phrase, numbered[-1])

    def country(self, code: str) -> Phrase:
        return say(self.locale.territories[code], "name")

    def countries(self, codes: Sequence[str]) -> Phrase:
        return self.list_of("standard", [self.country(code) for code in codes])

    def language(self, code: str) -> Phrase:
        return say(self.locale.languages[code], "name")

    def languages(self, codes: Sequence[str]) -> Phrase:
        return self.list_of("standard", [self.language(code) for code in codes])

    # Numbers

    def quantity(self, value: int | Decimal, unit: str) -> Phrase:
        """Say a number of units. Some languages have no longer form than the short one."""
        from babel.units import format_unit

        if unit not in self._lengths:
            lengths: tuple[Length, ...] = ("long", "short")
            known = [length for length in lengths if unit not in format_unit(5, unit, length, locale=self.locale)]
            if not known:  # what CLDR lacks altogether babel gives by its code
                raise LookupError(f"CLDR has no word for {unit} in {self.tag}")
            self._lengths[unit] = known[0]
        return around_number(plain(format_unit(value, unit, self._lengths[unit], locale=self.locale)), "unit")

    def duration(self, parts: Sequence[tuple[int, str]]) -> Phrase:
        return self.list_of("unit", [self.quantity(count, f"duration-{unit}") for count, unit in parts])

    def money(self, value: Decimal, code: str, form: Money) -> Phrase:
        """`form`: `standard` for the sign, `name` for the name in words."""
        from babel.numbers import format_currency

        text = format_currency(value, code, locale=self.locale, format_type=form)
        return around_number(plain(text), "currency")

    def sign(self, code: str) -> str:
        """What stands for a currency in prices; the code itself where it has no sign."""
        from babel.numbers import get_currency_symbol

        return get_currency_symbol(code, self.locale)

    def spoken(self, number: int, *slots: str) -> Phrase:
        """A number in words."""
        if number not in self._spoken:
            from num2words import num2words

            self._spoken[number] = " ".join(num2words(number, lang=self.number_words).split())
        return say(self._spoken[number], *slots)

    def choice(self, numbers: Sequence[int]) -> Phrase:
        """Numbers in words with an or: an and could be part of a number."""
        return self.list_of("or", [self.spoken(number, "number") for number in numbers])
