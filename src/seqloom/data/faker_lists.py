"""Names and places out of faker's lists, by locale: what the lists hold, in a fixed order; nothing is drawn here.

A name belongs to one split, wherever it stands: `split_of` goes by the seed and the name alone, whatever its accents
and capitals, so that the same name of two locales, or a name that is given and family name, is never in two splits.
"""

import hashlib
import re
import unicodedata
from functools import cache
from importlib import import_module
from typing import Any

from seqloom.core.errors import ResourceError

GIVEN = ("first_names", "first_names_male", "first_names_female", "first_names_nonbinary")
FAMILY = ("last_names", "last_names_male", "last_names_female", "unisex_last_names", "male_last_names")
LONGEST = 3  # words of a name
HELD_OUT = {"test": 0.15, "dev": 0.10}  # shares of the names
_NAME = re.compile(r"[^\W\d_]+(?:[-' ][^\W\d_]+)*")


def require_faker(corpus: str) -> None:
    try:
        import faker  # noqa: F401
    except ModuleNotFoundError as error:
        raise ResourceError(f"The corpus {corpus} needs faker: pip install 'seqloom[corpora]'.") from error


def version() -> str:
    import faker

    return f"faker {faker.VERSION}"


@cache
def given_names(locale: str) -> tuple[str, ...]:
    return _listed("person", locale, GIVEN)


@cache
def family_names(locale: str) -> tuple[str, ...]:
    return _listed("person", locale, FAMILY)


@cache
def places(locale: str, kind: str) -> tuple[str, ...]:
    """`kind`: cities, countries, states, as faker calls its lists."""
    return _listed("address", locale, (kind,))


@cache
def split_of(seed: int, name: str) -> str:
    """The split whose names this one is among. It goes by its longest word: New York with York, O'Hara with Ohara."""
    word = max(folded(name).split(), key=len)
    place = int.from_bytes(hashlib.sha256(f"{seed}/{word}".encode()).digest()[:8], "big") / 2**64
    for split, share in HELD_OUT.items():
        if place < share:
            return split
        place -= share
    return "train"


@cache
def folded(name: str) -> str:
    """Without accents, apostrophes, hyphens and capitals."""
    letters = (letter for letter in unicodedata.normalize("NFD", name) if unicodedata.category(letter) != "Mn")
    return "".join(letters).replace("'", "").replace("-", " ").casefold()


def _listed(provider: str, locale: str, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """The lists themselves, not what faker draws from them: that differs from one version to the next."""
    lists = import_module(f"faker.providers.{provider}.{locale}").Provider
    found = (_text(entry) for kind in kinds for entry in getattr(lists, kind, ()))
    return tuple(sorted({name for name in found if _usable(name)}))


def _text(entry: Any) -> str:
    """Some lists have (code, name)."""
    name = entry[-1] if isinstance(entry, tuple) else entry
    return " ".join(unicodedata.normalize("NFC", str(name)).replace("\u2019", "'").split())


def _usable(name: str) -> bool:
    """A few words in Latin letters that begins with a capital, or a particle before one: van Dijk."""
    latin = all(unicodedata.name(letter, "").startswith("LATIN") for letter in name if letter.isalpha())
    words = name.split()
    return latin and len(words) <= LONGEST and _NAME.fullmatch(name) is not None and words[-1][0].isupper()
