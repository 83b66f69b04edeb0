"""Language tags: which CLDR has, and which one a person meant."""

import difflib
import re
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from seqloom.core.errors import ResourceError
from seqloom.data.files import read_asset

if TYPE_CHECKING:
    from babel import Locale

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
