"""Output for notebooks. All texts are escaped, so that data never becomes HTML."""

import json
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape

from seqloom.core.words import escape_controls, shorten

MAX_ROWS = 20
MAX_CELL_LETTERS = 200


def is_notebook() -> bool:
    """Return whether the code runs in a Jupyter notebook, which can display HTML and update it."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


def text_html(text: str) -> str:
    """Return a text as HTML, with markup and control characters escaped."""
    return "<br>".join(escape(escape_controls(line)) for line in text.split("\n"))


def picture_html(png: bytes, description: str) -> str:
    """Return a picture as HTML."""
    data = b64encode(png).decode("ascii")
    return f'<img alt="{escape(description)}" style="max-width:100%" src="data:image/png;base64,{data}">'


def description_html(value: object, png: bytes | None) -> str:
    """Return the `repr` of a value and, if available, its picture as HTML."""
    description = repr(value)
    return f"<p>{text_html(description)}</p>{'' if png is None else picture_html(png, description)}"


def table_html(rows: Sequence[Mapping[str, object]], limit: int = MAX_ROWS) -> str:
    """Return the first rows as an HTML table with a column for each key, and the number of rows if there are more."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{text_html(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(_cell(row.get(name)) for name in names)}</tr>" for row in rows[:limit])
    more = f"<p>{limit:,} of {len(rows):,} rows</p>" if len(rows) > limit else "<p>no rows</p>" if not rows else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f'<td style="text-align: right">{value:.4g}</td>'
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td style="text-align: right">{value:,}</td>'
    if isinstance(value, list | tuple | dict):
        value = json.dumps(value, ensure_ascii=False, default=str)
    text = "" if value is None else str(value)
    return f'<td style="text-align: left">{text_html(shorten(text, MAX_CELL_LETTERS))}</td>'
