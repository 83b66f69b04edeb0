"""Parts of a tokenizer.json that would take the library far too long, or far too much memory, on a short text.

A pattern such as `(a+)+$` tries exponentially many ways to match, and thirty replacements of a
letter by two make a thousand million of one. Both are found by looking at the file, before any text
is read.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from seqloom.core.errors import CheckpointError
from seqloom.core.limits import MAX_GROWTH
from seqloom.core.words import shown
from seqloom.text.bytepair import not_unicode

UNBOUNDED = 100  # repetitions from which on a count counts as unlimited
_TOKEN = re.compile(
    r"""
    \\(?:[pPx]\{[^}]*\}|.)                                        # an escape, with its name
    | \[                                                          # the beginning of a class
    | \(\?[a-z-]+\)                                               # options for the rest of the group
    | \((?:\?(?:[:=!>|] | <[=!] | P?<\w+> | '\w+' | [a-z-]+:))?    # the beginning of a group
    | [)|]
    | [*+?][?+]?
    | \{\d*,?\d*\}\??
    | .
    """,
    re.DOTALL | re.VERBOSE,
)
_COUNT = re.compile(r"\{(\d*)(,?)(\d*)\}")


def check_time_and_growth(file: Mapping[str, Any]) -> None:
    """Raise ValueError if a pattern may take exponential time, or the replacements lengthen a text without measure."""
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        growth = 1.0  # how many times as long a text can become by the replacements, one after the other
        for entry in _entries(file.get(name)):
            pattern = entry.get("Regex")
            if isinstance(pattern, str) and backtracks(pattern):
                raise ValueError(
                    f"the pattern {shown(pattern)} of its {name} repeats a repetition or a choice, which may "
                    "take exponential time; write it without a repetition within a repetition"
                )
            if entry.get("type") == "Replace" and isinstance(entry.get("content"), str):
                replaced = entry.get("pattern")
                literal = replaced.get("String") if isinstance(replaced, Mapping) else None
                shortest = len(literal) if isinstance(literal, str) and literal else 1
                growth *= max(1.0, len(entry["content"]) / shortest)
        if growth > MAX_GROWTH:
            raise ValueError(f"its {name} may make a text {growth:,.0f} times as long; at most {MAX_GROWTH:,} is read")


@contextmanager
def library_errors(texts: list[str]) -> Iterator[None]:
    """Turn what the library raises on texts into one clear line."""
    try:
        yield
    except TypeError:
        raise not_unicode(texts) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of the library's own language; it has no public name
            raise
        raise CheckpointError(
            f"The tokenizers library failed on a text with this tokenizer ({shown(str(error), 100)}): one of the "
            "patterns in its tokenizer.json takes too many steps on it. Use another tokenizer."
        ) from None


def backtracks(pattern: str) -> bool:
    """Whether an unlimited repetition holds another one, or a choice: such a pattern may take exponential time.

    Possessive repetitions and atomic groups never go back, so what they hold is harmless.
    """
    groups: list[tuple[bool, bool]] = []  # of each open group: whether it holds what may go back, whether it is atomic
    holds, was_group = False, False  # of the group we are in; of the group that has just been closed
    place = 0
    while place < len(pattern):
        token = _TOKEN.match(pattern, place)
        assert token is not None, "the last alternative takes any character"
        text, place = token[0], token.end()
        if text == "[":
            place, was_group = _after_class(pattern, place), False
        elif text.startswith("(") and not text.endswith(")"):
            groups.append((holds, text == "(?>"))
            holds, was_group = False, False
        elif text == ")" and groups:
            before, atomic = groups.pop()
            was_group = holds and not atomic
            holds = before or was_group
        elif text == "|":
            holds, was_group = holds or bool(groups), False
        elif _is_unbounded(text):
            goes_back = text not in ("*+", "++")
            if was_group and goes_back:
                return True
            holds, was_group = holds or goes_back, False
        else:
            was_group = False
    return False


def _is_unbounded(token: str) -> bool:
    if token[0] in "*+" and token[:1] != "\\":
        return True
    count = _COUNT.match(token)
    if count is None or not (count[1] or count[3]):
        return False
    most = count[3] if count[2] else count[1]
    return not most or int(most) >= UNBOUNDED


def _after_class(pattern: str, place: int) -> int:
    """Where a character class ends that begins before `place`; classes may lie within each other."""
    depth = 1
    while place < len(pattern) and depth:
        if pattern[place] == "\\":
            place += 1
        depth += {"[": 1, "]": -1}.get(pattern[place : place + 1], 0)
        place += 1
    return place


def _entries(section: object) -> Iterator[Mapping[str, Any]]:
    """The mappings of a section, however deep, in their order."""
    waiting = [section]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            yield value
            waiting.extend(reversed(list(value.values())))
        elif isinstance(value, Sequence) and not isinstance(value, str):
            waiting.extend(reversed(value))
