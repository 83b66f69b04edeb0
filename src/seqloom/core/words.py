"""The wording of messages: suggestions for unknown names, formatted values and counts, and safe characters."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any
from unicodedata import category

WHOLE_NUMBERS = range(-(2**63), 2**63)  # 64-bit integers, which torch, numpy and JSON readers support
CONTROL = ("Cc", "Cs", "Zl", "Zp")  # categories: control characters, surrogates, line and paragraph separators
DIRECTION_MARKS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # these change the writing direction


def find_nearest(word: str, options: Iterable[str]) -> str | None:
    """Return the option most similar to `word`, or None if none is similar."""
    candidates = {option.lower(): option for option in options}
    matches = difflib.get_close_matches(word.lower(), candidates, n=1, cutoff=0.6)
    return candidates[matches[0]] if matches else None


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return advice on an unknown word: the most similar option and the list of all options."""
    known = list(options)
    close = find_nearest(word, known)
    choices = f"choose from {', '.join(map(shorten, known))}" if known else "no options are available"
    return f"did you mean {close}? ({choices})" if close else choices


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """Format a count with its noun: `1 text`, `2,000 texts`."""
    return f"1 {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"


def format_sizes(counts: Mapping[str, int]) -> str:
    """Format counts, given the plural nouns of the units: `1 sentence, 12 words`."""
    return ", ".join(
        f"1 {unit.removesuffix('s')}" if count == 1 else f"{count:,} {unit}" for unit, count in counts.items()
    )


def is_unicode(text: str) -> bool:
    """Return whether UTF-8 can encode a text.

    Python decodes invalid bytes of command-line arguments to lone surrogates, which UTF-8 cannot encode.
    """
    return not any("\ud800" <= character <= "\udfff" for character in text)


def format_value(value: Any, limit: int = 60) -> str:
    """Format a value as in YAML, shortened to fit a line."""
    return shorten(_yaml_like(value), limit)


def shorten(text: str, limit: int = 60) -> str:
    """Replace the end of a text by … if it has more than `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _yaml_like(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml_like(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_yaml_like, value)) + "]"
    return repr(value)


LINE_BREAKS = {ord("\n"): " ", ord("\r"): " "}  # for str.translate: line breaks become spaces


def one_line(text: str) -> str:
    """Replace line breaks and tabs by spaces."""
    return text.translate({**LINE_BREAKS, ord("\t"): " "})


def escape_controls(text: str) -> str:
    """Escape the characters that control a terminal or the writing direction."""
    return "".join(
        letter.encode("unicode_escape").decode("ascii")
        if letter != "\t" and (letter in DIRECTION_MARKS or category(letter) in CONTROL)
        else letter
        for letter in text
    )


UNSPACED_LANGUAGES = frozenset({"bo", "dz", "ja", "km", "lo", "my", "th", "yue", "zh"})  # written without spaces


# Letters of scripts without spaces between words: kana and Han, Thai, Lao, Myanmar, Khmer.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"


def is_unspaced(tag: str) -> bool:
    """Return whether the language of a tag, such as zh-TW, is written without spaces between words."""
    return re.split("[-_]", tag)[0].lower() in UNSPACED_LANGUAGES


def is_word_letter(letter: str) -> bool:
    """Return whether a character belongs to a word of a script with spaces: a letter, digit, mark, joiner or _."""
    if letter.isalnum() or letter == "_":
        return UNSPACED.match(letter) is None
    return letter in JOINERS or category(letter)[0] == "M"
