"""Checks for parts of a tokenizer.json that need excessive time or memory for a short text.

A pattern such as `(a+)+$` can match in exponentially many ways. Thirty rules that each double a letter make a text a
billion times longer. These checks find both problems in the file before any text is encoded.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from seqloom.core import Json
from seqloom.core.errors import CheckpointError
from seqloom.core.limits import MAX_GROWTH
from seqloom.core.words import format_value
from seqloom.text.bytepair import not_unicode

MIN_UNBOUNDED = 100  # from this number of repetitions, a repetition is treated as unlimited
_TOKEN = re.compile(
    r"""
    \\(?:[pPx]\{[^}]*\}|.)                                        # an escape, with its name
    | \[                                                          # the start of a class
    | \(\?[a-z-]+\)                                               # options for the rest of the group
    | \((?:\?(?:[:=!>|] | <[=!] | P?<\w+> | '\w+' | [a-z-]+:))?    # the start of a group
    | [)|]
    | [*+?][?+]?
    | \{\d*,?\d*\}\??
    | .
    """,
    re.DOTALL | re.VERBOSE,
)
_COUNT = re.compile(r"\{(\d*)(,?)(\d*)\}")


def check_time_and_growth(file: Mapping[str, Json]) -> None:
    """Raise ValueError if a pattern may take exponential time, or replacements lengthen a text excessively."""
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        growth = 1.0  # maximum growth of a text by all replacements
        for entry in _entries(file.get(name)):
            pattern = entry.get("Regex")
            if isinstance(pattern, str) and backtracks(pattern):
                raise ValueError(
                    f"the pattern {format_value(pattern)} of its {name} must not repeat a group with a repetition or "
                    f"a choice, "
                    "which may take exponential time"
                )
            if entry.get("type") == "Replace" and isinstance(entry.get("content"), str):
                replaced = entry.get("pattern")
                literal = replaced.get("String") if isinstance(replaced, Mapping) else None
                min_length = len(literal) if isinstance(literal, str) and literal else 1
                growth *= max(1.0, len(entry["content"]) / min_length)
        if growth > MAX_GROWTH:
            raise ValueError(f"its {name} may lengthen a text {growth:,.0f} times; the limit is {MAX_GROWTH:,}")


@contextmanager
def library_errors(texts: list[str]) -> Iterator[None]:
    """Convert errors of the library to errors with a clear message."""
    try:
        yield
    except TypeError:
        raise not_unicode(texts) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # the class of a panic in Rust is not public
            raise
        raise CheckpointError(
            f"The tokenizers library failed on a text with this tokenizer ({format_value(str(error), 100)}): a "
            "pattern in its tokenizer.json takes too many steps. Use another tokenizer."
        ) from None


def backtracks(pattern: str) -> bool:
    """Return whether an unlimited repetition contains a repetition or a choice. Matching such a pattern may take
    exponential time.

    Possessive repetitions and atomic groups do not backtrack, so their content is harmless.
    """
    groups: list[tuple[bool, bool]] = []  # for each open group: whether it may backtrack, and whether it is atomic
    # The first is for the current group; the second for the group that has just been closed
    may_backtrack, was_group = False, False
    index = 0
    while index < len(pattern):
        token = _TOKEN.match(pattern, index)
        assert token is not None, "the last alternative matches any character"
        text, index = token[0], token.end()
        if text == "[":
            index, was_group = _end_of_class(pattern, index), False
        elif text.startswith("(") and not text.endswith(")"):
            groups.append((may_backtrack, text == "(?>"))
            may_backtrack, was_group = False, False
        elif text == ")" and groups:
            outer, is_atomic = groups.pop()
            was_group = may_backtrack and not is_atomic
            may_backtrack = outer or was_group
        elif text == "|":
            may_backtrack, was_group = may_backtrack or bool(groups), False
        elif _is_unbounded(text):
            is_greedy_or_lazy = text not in ("*+", "++")
            if was_group and is_greedy_or_lazy:
                return True
            may_backtrack, was_group = may_backtrack or is_greedy_or_lazy, False
        else:
            was_group = False
    return False


def _is_unbounded(token: str) -> bool:
    if token[0] in "*+" and token[:1] != "\\":
        return True
    count = _COUNT.match(token)
    if count is None or not (count[1] or count[3]):
        return False
    maximum = count[3] if count[2] else count[1]
    return not maximum or int(maximum) >= MIN_UNBOUNDED


def _end_of_class(pattern: str, index: int) -> int:
    """Return the end of a character class, which may be nested. `index` is the position after its bracket."""
    depth = 1
    while index < len(pattern) and depth:
        if pattern[index] == "\\":
            index += 1
        depth += {"[": 1, "]": -1}.get(pattern[index : index + 1], 0)
        index += 1
    return index


def _entries(section: object) -> Iterator[Mapping[str, Json]]:
    """Yield all mappings of a section, at any depth, in order."""
    stack = [section]
    while stack:
        value = stack.pop()
        if isinstance(value, Mapping):
            yield value
            stack.extend(reversed(list(value.values())))
        elif isinstance(value, Sequence) and not isinstance(value, str):
            stack.extend(reversed(value))
