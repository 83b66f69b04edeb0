"""Small helpers for messages: the nearest valid word, values, numbers and choices as a person would write them."""

import difflib
from collections.abc import Iterable
from typing import Any

WHOLE_NUMBERS = range(-(2**63), 2**63)  # those that torch, numpy and JSON readers can hold


def nearest(word: str, options: Iterable[str]) -> str | None:
    """The option a person most likely meant by `word`, or None if nothing comes close."""
    candidates = {option.lower(): option for option in options}
    found = difflib.get_close_matches(word.lower(), candidates, n=1, cutoff=0.6)
    return candidates[found[0]] if found else None


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """What to add after an unknown word: the nearest option first, then all of them."""
    known = list(options)
    close = nearest(word, known)
    choices = f"choose from {', '.join(map(shorten, known))}" if known else "there is nothing to choose from"
    return f"did you mean {close}? ({choices})" if close else choices


def counted(count: int, what: str, several: str | None = None) -> str:
    """`1 text`, `2,000 texts`"""
    return f"1 {what}" if count == 1 else f"{count:,} {several or what + 's'}"


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can encode this text. Bytes of a command line or file name that are not UTF-8 become surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def shown(value: Any, limit: int = 60) -> str:
    """A value as it would stand in YAML, shortened to fit a line."""
    return shorten(_yaml_like(value), limit)


def shorten(text: str, limit: int = 60) -> str:
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


_ONE_LINE = {ord("\n"): " ", ord("\r"): " ", ord("\t"): " "}


def one_line(text: str) -> str:
    """Return a text that neither ends a line nor begins a new field."""
    return text.translate(_ONE_LINE)
