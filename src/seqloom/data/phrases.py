"""Phrases in one language from CLDR, formatted by babel: dates, lists, quantities and money, as annotated pieces."""

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
from seqloom.core.words import is_unspaced
from seqloom.data.examples import Link, Span
from seqloom.data.files import read_asset

if TYPE_CHECKING:
    from babel import Locale

WELL_KNOWN = read_asset("cldr.txt")["well known"]
TAG = re.compile("[A-Za-z0-9_-]+")
MIN_COUNTRIES = 100  # if a language has fewer country names, its CLDR data is too incomplete


def require_babel(corpus: str = "cldr") -> None:
    """Raise ResourceError unless babel and num2words are installed; they are not imported."""
    if not all(find_spec(package) for package in ("babel", "num2words")):
        raise ResourceError(f"The corpus {corpus} needs babel and num2words: pip install 'seqloom[corpora]'.")


@cache
def find(tag: str) -> "Locale":
    """Return the locale of a tag such as `fr`, `pt-BR` or `zh_Hant`; raise ValueError with suggestions."""
    from babel import Locale, UnknownLocaleError

    try:
        if not TAG.fullmatch(tag):  # babel ignores what follows a dot or an @, and runs are named after languages
            raise ValueError(tag)
        locale = Locale.parse(tag.replace("-", "_"))
    except (UnknownLocaleError, ValueError):
        raise ValueError(f"CLDR has no language '{tag}': {_suggestion(tag)}") from None
    if not _has_enough(locale):
        raise ValueError(f"CLDR has too little data for '{tag}': {_suggestion(tag)}")
    return locale


def is_same_language(first: str, second: str) -> bool:
    """Return whether two tags name the same language, script and region: en and en-US, zh and zh-Hans."""
    from babel.core import get_global

    likely, names = get_global("likely_subtags"), []
    for locale in (find(first), find(second)):
        parts = [locale.language, locale.script or "", locale.territory or ""]
        for name in (str(locale), f"{locale.language}_{locale.script}", locale.language):
            if name in likely:
                defaults = str(likely[name]).split("_")
                parts = [part or default for part, default in zip(parts, defaults, strict=False)]
                break
        names.append(parts)
    return names[0] == names[1]


def _has_enough(locale: "Locale") -> bool:
    codes = [code for code in map(str, locale.territories) if len(code) == 2]
    return len(codes) >= MIN_COUNTRIES and locale.months["format"]["wide"][1] != "M01"


def _suggestion(tag: str) -> str:
    """Suggest tags for a country code (jp), a language name (French) or a typing error."""
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
    examples = f"tags look like {', '.join(WELL_KNOWN)}, pt-PT or zh-Hant"
    return f"did you mean {suggested}? ({examples})" if suggested else f"{examples}."


# --- phrases ----------------------------------------------------------------------------------------------------------

# A text and the slots that it expresses: none, one, or several ("15" expresses hour and period).
Piece = tuple[str, tuple[str, ...]]
Phrase = tuple[Piece, ...]

# CLDR uses thin and no-break spaces and direction marks, which people do not type. They are replaced by plain spaces
# or removed. Joiners within words are kept.
_PLAIN = str.maketrans(
    dict.fromkeys("\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f", " ")
    | dict.fromkeys("\u061c\u200b\u200e\u200f\u2066\u2067\u2068\u2069\u202a\u202b\u202c\u202d\u202e\ufeff")
)
_PLACEHOLDER = re.compile(r"\{(\d)\}")
_NUMBER = re.compile(r"\d(?:.*\d)?")


def plain(text: str) -> str:
    """Replace special spaces and remove direction marks."""
    return text.translate(_PLAIN)


@lru_cache(maxsize=1 << 16)
def say(text: str, *slots: str) -> Phrase:
    """Return a phrase that expresses these slots, without leading and trailing spaces."""
    text = plain(text)
    inner = text.strip()
    if not slots or inner == text:
        return ((text, slots),) if text else ()
    before, _, after = text.partition(inner)
    return tuple(piece for piece in ((before, ()), (inner, slots), (after, ())) if piece[0])


def around_number(text: str, other: str) -> Phrase:
    """Return a phrase whose digits express the number and whose other parts express `other`.

    A text without digits, such as a dual form, expresses both.
    """
    match = _NUMBER.search(text)
    if not match:
        return say(text, "number", other)
    return say(text[: match.start()], other) + say(match[0], "number") + say(text[match.end() :], other)


def fill(pattern: str, *phrases: Phrase) -> Phrase:
    """Insert phrases into a pattern such as `{0}, {1}`."""
    parts = _PLACEHOLDER.split(pattern)
    pieces: list[Piece] = list(say(parts[0]))
    for index, literal in zip(parts[1::2], parts[2::2], strict=True):
        pieces += phrases[int(index)]
        pieces += say(literal)
    return tuple(pieces)


def text_of(phrase: Phrase) -> str:
    return "".join([text for text, _ in phrase])


def slots_of(phrase: Phrase) -> set[str]:
    return {slot for _, slots in phrase for slot in slots}


def align_phrases(source: Phrase, target: Phrase) -> tuple[Link, ...]:
    """Return the pairs of spans that express the same slot, in the order of the source."""
    targets = _spans(target)
    links = {(s, t) for slot, spans in _spans(source).items() for s in spans for t in targets.get(slot, ())}
    return tuple(sorted(links))


def _spans(phrase: Iterable[Piece]) -> dict[str, list[Span]]:
    spans: defaultdict[str, list[Span]] = defaultdict(list)
    end = 0
    for text, slots in phrase:
        start, end = end, end + len(text)
        for slot in slots:
            spans[slot].append((start, end))
    return spans


# --- a language -------------------------------------------------------------------------------------------------------


# The slots that the letters of a CLDR date pattern express. On a 24-hour clock, the hour includes the half of the day.
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
# The cache keys of fields. Fields with other letters are cached by the complete moment.
_CACHE_KEYS: dict[tuple[str, ...], Callable[[datetime], Hashable]] = {
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
# `a` in a pattern is the short form, which is "AM" in the CLDR data of Korean, but Koreans use the long form.
LONG_PERIOD = {"ko"}
# Names that differ in num2words: plain Portuguese is Brazilian in CLDR, Kazakh is kz, Norwegian no. Serbian has Latin
# letters in num2words, but Cyrillic letters in CLDR; num2words fails for Amharic numbers of 1,100 or more.
_NUM2WORDS = {"pt": "pt_BR", "pt_PT": "pt", "kk": "kz", "nb": "no", "nn": "", "sr": "", "sr_Latn": "sr", "am": ""}


class Language:
    """The formats of dates, lists, quantities and numbers in a language."""

    def __init__(self, tag: str) -> None:
        from num2words import CONVERTER_CLASSES

        self.locale = find(tag)
        self.tag = str(self.locale).replace("_", "-")
        language, territory, script = self.locale.language, self.locale.territory, self.locale.script
        self.spaced = not is_unspaced(language)
        names = [_NUM2WORDS.get(name, name) for name in (f"{language}_{territory}", f"{language}_{script}", language)]
        # The name of the language in num2words; empty if num2words lacks the language.
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
        """Format a date in a style, with hour and minute."""
        pattern = str(self.locale.datetime_formats[style]).replace("'", "")
        return fill(pattern, self.time("short", moment), self.date(style, moment))

    def weekday_time(self, moment: datetime) -> Phrase:
        short = self.locale.time_formats["short"].pattern
        skeleton = "EHm" if set("Hk") & set(short) else "Ehm"
        return self._moment(self.locale.datetime_skeletons[skeleton].pattern, moment)

    def date_range(self, start: datetime, end: datetime) -> Phrase:
        """Format a range such as `Nov 15 – 20, 2026`; slots that differ have the prefix start or end."""
        fields = {"y": "year", "M": "month", "d": "day"}
        differ = {field: name for field, name in fields.items() if getattr(start, name) != getattr(end, name)}
        patterns = self.locale.interval_formats["yMMMd"][next(iter(differ))]
        phrase: list[Piece] = []
        for which, pattern, moment in zip(("start", "end"), patterns, (start, end), strict=True):
            for text, slots in self._moment(pattern, moment):
                phrase.append((text, tuple(f"{which}.{slot}" if slot in differ.values() else slot for slot in slots)))
        return tuple(phrase)

    def _moment(self, pattern: str, moment: datetime) -> Phrase:
        """Format a moment by a pattern of literal texts and fields; fields are tuples such as (`MMMM`,)."""
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
            key = (name, _CACHE_KEYS[slots](moment) if slots else moment)
            if key not in self._fields:
                from babel.dates import DateTimeFormat

                self._fields[key] = say(DateTimeFormat(moment, self.locale)[name], *slots)
            phrase += self._fields[key]
        return tuple(phrase)

    # Lists

    def list_of(self, style: str, items: Sequence[Phrase]) -> Phrase:
        """Format a list such as `A, B and C`; the slots of item i have the prefix `i.`."""
        patterns = self.locale.list_patterns

        def join(part: str, *phrases: Phrase) -> Phrase:  # CLDR contains only patterns that differ from the standard
            styles = (name for name in (style, "standard") if part in patterns.get(name, ()))
            return fill(str(patterns[next(styles)][part]), *phrases)

        numbered = [
            tuple((text, tuple(f"{index}.{slot}" for slot in slots)) for text, slots in item)
            for index, item in enumerate(items)
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
        """Format a number of units in the long form, or in the short form if the language has no long form."""
        from babel.units import format_unit

        if unit not in self._lengths:
            lengths: tuple[Length, ...] = ("long", "short")
            available = [length for length in lengths if unit not in format_unit(5, unit, length, locale=self.locale)]
            if not available:  # babel would use the code of the unit
                raise LookupError(f"CLDR has no word for {unit} in {self.tag}")
            self._lengths[unit] = available[0]
        return around_number(plain(format_unit(value, unit, self._lengths[unit], locale=self.locale)), "unit")

    def duration(self, parts: Sequence[tuple[int, str]]) -> Phrase:
        return self.list_of("unit", [self.quantity(count, f"duration-{unit}") for count, unit in parts])

    def money(self, value: Decimal, code: str, form: Money) -> Phrase:
        """Format an amount of money with the sign (`standard`) or the name of the currency (`name`)."""
        from babel.numbers import format_currency

        text = format_currency(value, code, locale=self.locale, format_type=form)
        return around_number(plain(text), "currency")

    def sign(self, code: str) -> str:
        """Return the sign of a currency, or its code if it has no sign."""
        from babel.numbers import get_currency_symbol

        return get_currency_symbol(code, self.locale)

    def spoken(self, number: int, *slots: str) -> Phrase:
        """Write a number in words."""
        if number not in self._spoken:
            from num2words import num2words

            self._spoken[number] = " ".join(num2words(number, lang=self.number_words).split())
        return say(self._spoken[number], *slots)

    def choice(self, numbers: Sequence[int]) -> Phrase:
        """List numbers in words with "or", because "and" could be part of a number."""
        return self.list_of("or", [self.spoken(number, "number") for number in numbers])
