"""A phrase as pieces that know what they say, so that two phrases of one meaning can be aligned exactly."""

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

from seqloom.data.examples import Link, Span

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
