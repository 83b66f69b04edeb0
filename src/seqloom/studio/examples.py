"""A text to begin with, for a run whose data we know; what the user types takes its place."""

import datetime
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

DAY = datetime.date(2026, 11, 15)
# By the name of the corpus; else by task.
TEXTS = {
    "pydocs": "The class statement defines a new type of object.",
    "people": "Maria Keller moved from Lisbon to Oslo last year.",
    "names": "Kowalczyk",
    "sst2": "a gripping, funny and surprisingly warm film",
    "multi30k": "A man in a blue shirt is standing on a ladder.",
    "tatoeba": "I would like a cup of tea.",
    "ptb": "the company said it expects to report a profit",
    "wikitext-2": "The river rises in the mountains",
    "tinyshakespeare": "What light through yonder window breaks?",
    "ud_english_ewt": "The old man saw the boats in the harbour.",
    "ewt": "The old man saw the boats in the harbour.",
    "wnut17": "Just landed in Chicago with Anna",
    "imported": "The old man saw the boats in the harbour.",
}
TASKS = {
    "translate": "Two children are playing in the park.",
    "classify": "a funny and moving story",
    "tag": "The old man saw the boats in the harbour.",
    "hmm-tag": "The old man saw the boats in the harbour.",
}


def example_of(recipe: Mapping[str, Any]) -> str:
    data = recipe.get("data") or {}
    corpus = str(data.get("corpus"))
    if recipe.get("task") == "denoise":
        return "The class statement defines a new [MASK] of object."
    if corpus in ("cldr", "languages"):
        return _date(str(data.get("source", "en")))
    if corpus in TEXTS:
        return TEXTS[corpus]
    return TASKS.get(str(recipe.get("task")), "The class statement defines a new type of object.")


def _date(language: str) -> str:
    """A date written out, as the phrases of CLDR are."""
    with suppress(Exception):  # babel may be missing, or not know the language
        from babel.dates import format_date

        return str(format_date(DAY, "full", locale=language.replace("-", "_")))
    return "Sunday, November 15, 2026"
