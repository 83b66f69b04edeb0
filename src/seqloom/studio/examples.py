"""Texts to begin with, for a run whose data we know, and what it knows; what the user types takes their place."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from seqloom.tasks import names, task_info

DAY = datetime(2026, 11, 15, 9, 30)
DATE = "Sunday, November 15, 2026"  # where babel has none
OFFERED = 3
# By the name of the corpus; else by task. The first is the one to begin with.
TEXTS = {
    "pydocs": (
        "The class statement defines a new type of object.",
        "If the file does not exist, an error is raised.",
        "This function returns a list of strings.",
    ),
    "people": (
        "Maria Keller moved from Lisbon to Oslo last year.",
        "Does Dr. Tanaka still work for Nordlicht GmbH in Berlin?",
    ),
    "names": ("Kowalczyk", "Takahashi", "O'Sullivan"),
    "sst2": ("a gripping, funny and surprisingly warm film", "the plot is thin and the jokes are old"),
    "multi30k": ("A man in a blue shirt is standing on a ladder.", "Two dogs are running through the snow."),
    "tatoeba": ("I would like a cup of tea.", "Where did you learn to swim?"),
    "ptb": ("the company said it expects to report a profit",),
    "wikitext-2": ("The river rises in the mountains",),
    "tinyshakespeare": ("What light through yonder window breaks?",),
    "ud_english_ewt": ("The old man saw the boats in the harbour.",),
    "ewt": ("The old man saw the boats in the harbour.",),
    "wnut17": ("Just landed in Chicago with Anna",),
    "imported": ("The old man saw the boats in the harbour.",),
}
KNOWN = {
    "pydocs": "the English of Python's documentation",
    "people": "sentences about people, places and organisations",
    "multi30k": "captions of photographs",
    "languages": "phrases such as dates, countries and amounts, in many languages",
}
# What the kinds of phrases in the corpus `cldr` are called, and a meaning of each for an example.
PHRASES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "full date": ("dates", (DAY,)),
    "countries": ("lists of countries", (("IT", "ES", "JP"),)),
    "amount": ("amounts of money", (Decimal(250), "EUR")),
    "languages": ("lists of languages", (("fr", "de", "ja"),)),
    "duration": ("durations", ([(3, "hour"), (20, "minute")],)),
    "long date": ("dates", (DAY,)),
    "medium date": ("dates", (DAY,)),
    "short date": ("dates", (DAY,)),
    "date range": ("ranges of dates", (DAY, datetime(2026, 11, 20))),
    "date and time": ("dates with the time", ("full", DAY)),
    "weekday and time": ("weekdays with the time", (DAY,)),
    "time": ("times", (DAY,)),
    "number": ("numbers in words", (842,)),
    "numbers": ("choices of numbers in words", ((7, 42),)),
    "quantity": ("quantities", (5, "length-kilometer")),
    "price": ("prices", (Decimal("19.90"), "EUR")),
}


def example_of(recipe: Mapping[str, Any]) -> str:
    return examples_of(recipe)[0]


def examples_of(recipe: Mapping[str, Any]) -> list[str]:
    """A few texts such as the run has learned from."""
    data = recipe.get("data") or {}
    corpus = str(data.get("corpus"))
    if "[MASK]" in (example := _task_example(recipe)):
        return [example]
    if corpus == "languages":  # which of them it is has to be told
        return [phrase for tag in ("en", "fr", "ru") for phrase in _phrases(tag, ("full date",))] or [DATE]
    if corpus == "cldr":
        return list(_phrases(str(data.get("source", "en")), _kinds(data))) or [DATE]
    return list(TEXTS.get(corpus) or [example])


def _task_example(recipe: Mapping[str, Any]) -> str:
    name = recipe.get("task")
    return task_info(name if name in names() else "language-model").example


def known_of(recipe: Mapping[str, Any]) -> str | None:
    """What a run has learned from, in a few words, where we can say it."""
    data = recipe.get("data") or {}
    corpus = str(data.get("corpus"))
    if corpus != "cldr":
        return KNOWN.get(corpus)
    words = list(dict.fromkeys(PHRASES[kind][0] for kind in _kinds(data)))
    return ", ".join(words[:6]) + (" and more" if len(words) > 6 else "")


def _kinds(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Those that the data has, in our order."""
    wanted = data.get("kinds") or PHRASES
    return tuple(kind for kind in PHRASES if kind in wanted) or tuple(PHRASES)


@lru_cache(maxsize=64)
def _phrases(language: str, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """One phrase of each kind, as the corpus says it; none where babel is missing or has no words for it."""
    found: list[str] = []
    with suppress(Exception):
        from seqloom.data.corpora.cldr import KINDS
        from seqloom.data.phrases import Language, text_of

        speaker, say = Language(language), {kind.name: kind.say for kind in KINDS}
        for kind in kinds[:OFFERED]:
            with suppress(Exception):
                found.append(text_of(say[kind](speaker, *PHRASES[kind][1])))
    return tuple(dict.fromkeys(found))
