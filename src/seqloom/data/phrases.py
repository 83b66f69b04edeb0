"""Phrases of one language as CLDR has them: dates, lists, quantities and money, piece by piece."""

import difflib
import re
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from seqloom.core.errors import ResourceError
from seqloom.data.files import read_asset

if TYPE_CHECKING:
    from babel import Locale
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from seqloom.core.words import unspaced
from seqloom.data.examples import Link, Span

WELL_KNOWN = read_asset("cldr.txt")["well known"]
TAG = re.compile("[A-Za-z0-9_-]+")
ENOUGH = 100  # countries a language must have names for; below that CLDR has hardly begun with it


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
    if not _enough(locale):
        raise ValueError(f"CLDR has too little of '{tag}' to make phrases of: {_suggestion(tag)}")
    return locale


def same(one: str, other: str) -> bool:
    """Whether two tags name one language as it is written in one place: en and en-US, zh and zh-Hans."""
    return _in_full(find(one)) == _in_full(find(other))


def _in_full(locale: "Locale") -> str:
    from babel.core import get_global

    likely = get_global("likely_subtags")
    parts = [locale.language, locale.script or "", locale.territory or ""]
    for known in (locale, f"{locale.language}_{locale.script}", locale.language):
        if str(known) in likely:
            full = str(likely[str(known)]).split("_")
            return "_".join(part or assumed for part, assumed in zip(parts, full, strict=False))
    return "_".join(parts)


def _enough(locale: "Locale") -> bool:
    named = [code for code in map(str, locale.territories) if len(code) == 2]
    return len(named) >= ENOUGH and locale.months["format"]["wide"][1] != "M01"


def _suggestion(tag: str) -> str:
    close = _nearest(tag)
    known = f"tags look like {', '.join(WELL_KNOWN)}, pt-PT or zh-Hant"
    return f"did you mean {' or '.join(close)}? ({known})" if close else f"{known}."


def _nearest(tag: str) -> list[str]:
    """Tags by what they may have been taken for: a country's (jp), a name (French), or a slip of the hand."""
    from babel import Locale
    from babel.core import get_global
    from babel.localedata import locale_identifiers

    english = Locale("en")
    languages = [name for name in locale_identifiers() if "_" not in name]
    first = tag.strip().replace("-", "_").split("_")[0]
    found = [get_global("likely_subtags").get(f"und_{first.upper()}", "").split("_")[0]]
    names = {str(english.languages[code]).lower(): code for code in languages if code in english.languages}
    names |= {str(Locale(code).get_display_name() or code).lower(): code for code in WELL_KNOWN}
    found += [names[name] for name in difflib.get_close_matches(tag.lower(), names, n=2, cutoff=0.75)]
    if len(first) <= 3:
        found += difflib.get_close_matches(first.lower(), languages, n=3, cutoff=0.6)
    usable = [code for code in dict.fromkeys(found) if code in languages and _enough(Locale(code))]
    return [f"{code} ({english.languages.get(code, code)})" for code in usable[:3]]


# --- language --------------------------------------------------------------------------------


Piece = tuple[
    str, tuple[str, ...]
]  # some text, and the slots it says: none, one, or several ("15" says hour and period)
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


def under(name: str, phrase: Phrase) -> Phrase:
    """The same phrase with its slots renamed, so that it may stand beside others: `number` → `1.number`."""
    return tuple((text, tuple(f"{name}.{slot}" for slot in slots)) for text, slots in phrase)


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
_DECIDES: dict[tuple[str, ...], Callable[[datetime], Any]] = {
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
    def __init__(self, tag: str) -> None:
        self.locale = find(tag)
        self.tag = str(self.locale).replace("_", "-")
        self.spaced = not unspaced(self.locale.language)
        self.number_words = _number_words(self.locale)  # what num2words calls it; empty where it lacks it
        self._fields: dict[tuple[str, Any], Phrase] = {}
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
        patterns = self.locale.interval_formats["yMMMd"]
        differ = next(field for field, name in fields.items() if getattr(start, name) != getattr(end, name))
        own = {name for name in fields.values() if getattr(start, name) != getattr(end, name)}
        first, last = patterns[differ]
        return self._end("start", own, first, start) + self._end("end", own, last, end)

    def _end(self, which: str, own: set[str], pattern: str, moment: datetime) -> Phrase:
        def named(slots: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(f"{which}.{slot}" if slot in own else slot for slot in slots)

        return tuple((text, named(slots)) for text, slots in self._moment(pattern, moment))

    def _moment(self, pattern: str, moment: datetime) -> Phrase:
        if pattern not in self._patterns:
            self._patterns[pattern] = _tokens(pattern)
        phrase: list[Any] = []
        for token in self._patterns[pattern]:
            phrase += say(token) if isinstance(token, str) else self._field(token[0], moment)
        return tuple(phrase)

    def _field(self, name: str, moment: datetime) -> Phrase:
        if name == "a" and self.locale.language in LONG_PERIOD:
            name = "aaaa"
        slots = FIELDS.get(name[0], ())
        key = (name, _DECIDES[slots](moment) if slots else moment)
        if key not in self._fields:
            from babel.dates import DateTimeFormat

            self._fields[key] = say(DateTimeFormat(moment, self.locale)[name], *slots)
        return self._fields[key]

    # Lists

    def list_of(self, style: str, items: Sequence[Phrase]) -> Phrase:
        """`A, B and C`: the slots of item i are called `i.`."""
        numbered = [under(str(place), item) for place, item in enumerate(items)]
        if len(numbered) == 2:
            return fill(self._list_pattern(style, "2"), *numbered)
        phrase = fill(self._list_pattern(style, "start"), *numbered[:2])
        for item in numbered[2:-1]:
            phrase = fill(self._list_pattern(style, "middle"), phrase, item)
        return fill(self._list_pattern(style, "end"), phrase, numbered[-1])

    def _list_pattern(self, style: str, place: str) -> str:
        """CLDR writes down only where a style differs from the standard one."""
        patterns = self.locale.list_patterns
        return str(next(patterns[name][place] for name in (style, "standard") if place in patterns.get(name, ())))

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
        from babel.units import format_unit

        return around_number(plain(format_unit(value, unit, self._length(unit), locale=self.locale)), "unit")

    def _length(self, unit: str) -> Length:
        """Some languages have no longer form than the short one; what CLDR lacks altogether babel gives by its code."""
        if unit not in self._lengths:
            from babel.units import format_unit

            lengths: tuple[Length, ...] = ("long", "short")
            known = [length for length in lengths if unit not in format_unit(5, unit, length, locale=self.locale)]
            if not known:
                raise LookupError(f"CLDR has no word for {unit} in {self.tag}")
            self._lengths[unit] = known[0]
        return self._lengths[unit]

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


def _tokens(pattern: str) -> list[str | tuple[str]]:
    """Literal text as it is, fields as (`MMMM`,)."""
    from babel.dates import tokenize_pattern

    return [value if isinstance(value, str) else (value[0] * value[1],) for _, value in tokenize_pattern(pattern)]


def _number_words(locale: "Locale") -> str:
    from num2words import CONVERTER_CLASSES

    for name in (f"{locale.language}_{locale.territory}", f"{locale.language}_{locale.script}", locale.language):
        known = _NUM2WORDS.get(name, name)
        if known in CONVERTER_CLASSES or not known:
            return known
    return ""
