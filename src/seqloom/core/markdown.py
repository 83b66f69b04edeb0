"""Markdown as text: escaped names, blocks of code, and tables."""

import re
from collections.abc import Iterable, Sequence

from seqloom.core.words import escape_controls, one_line


def escape(text: str) -> str:
    """Escape a text, such as a label, so that Markdown displays it unchanged on one line or in a table cell."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", escape_controls(one_line(text)))


def fence(language: str, code: str) -> str:
    """Return a block of code, with a fence that is longer than the backticks in it."""
    longest = max(map(len, re.findall("`+", code)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}{language}\n{code}\n{ticks}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """Return a Markdown table of escaped cells; `numbers` lists the columns to align to the right."""
    right = set(numbers)
    rules = ("---:" if column in right else "---" for column in range(len(header)))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, list(rules), *rows))
