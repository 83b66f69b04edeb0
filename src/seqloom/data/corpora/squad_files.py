"""The user's own questions with answers in a text, in SQuAD's form: articles, paragraphs, questions, answers.

    {"data": [{"title": …, "paragraphs": [{"context": …, "qas": [{"id": …, "question": …,
        "answers": [{"text": …, "answer_start": …}]}]}]}]}

`answer_start` counts characters. Where the answer does not stand there but elsewhere in the context, the nearest place
is taken; where it stands nowhere, the question cannot be learnt from and is left out, or the file is refused.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.corpus import Corpus, FileConfig
from seqloom.data.examples import Answer, QuestionAnsweringExample
from seqloom.data.files import expand_home, read_filled
from seqloom.data.splits import Read, load_files

SUMMARY = "one's own questions whose answers stand in a text: JSON in SQuAD's form"
FORM = "question-answering"
Missing = Literal["skip", "refuse"]
MIN_ARTICLES = 5  # for each split: with fewer, one article may be most of it


@config
class Config(FileConfig):
    corpus: Literal["squad-files"] = "squad-files"
    train: str  # a .json file in SQuAD's form, which may be .gz
    missing: Missing = "skip"  # an answer that is not in its context: leave the question out and count it, or refuse


def load(config: Config) -> Corpus[QuestionAnsweringExample]:
    """Whole articles are held out where there are enough of them, else whole contexts."""

    def read(split: str, file: str) -> Read[QuestionAnsweringExample]:
        found = read_squad(expand_home(Path(file)), config.missing)
        return found.questions, found.notes(file)

    return load_files(
        config,
        read,
        description=f"{config.train}: questions and where their answers stand",
        groups=articles_or_contexts,
        repeats=("contexts", lambda question: question.context),
    )


def articles_or_contexts(questions: Sequence[QuestionAnsweringExample], held_out: int) -> list[str]:
    articles = [question.title or question.context for question in questions]
    enough = len(set(articles)) >= MIN_ARTICLES * (held_out + 1)
    return articles if enough else [question.context for question in questions]


# --- the files --------------------------------------------------------------------------------------------------------


@dataclass
class Found:
    """The questions of a file, and what was wrong with others."""

    questions: list[QuestionAnsweringExample] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)  # questions without an answer (SQuAD 2's), by their id
    absent: list[str] = field(default_factory=list)  # whose answers do not stand in their context
    moved: list[str] = field(default_factory=list)  # with an answer that stands elsewhere than it is said to

    def notes(self, file: str) -> list[str]:
        said = {
            "left out, without an answer: {}": self.unanswered,
            "left out, the answer does not stand in its context: {}": self.absent,
            "an answer stands elsewhere in its context than the file says, and was taken from there: {}": self.moved,
        }
        return [
            what.format(f"{len(ids):,} question{'s' if len(ids) > 1 else ''} of {file}, the first {ids[0]}")
            for what, ids in said.items()
            if ids
        ]


def read_squad(path: Path, missing: Missing = "skip") -> Found:
    """All questions of a file, in its order."""
    try:
        content = json.loads(read_filled(path))
    except (json.JSONDecodeError, RecursionError) as error:
        said = error.msg if isinstance(error, json.JSONDecodeError) else "too deep"
        raise DataError(f"{path} must be JSON in SQuAD's form: {said}.") from None
    found = Found()
    for article in _items(path, content, "data", "the file"):
        for paragraph in _items(path, article, "paragraphs", "an article"):
            context = _text(path, paragraph, "context", "a paragraph")
            for entry in _items(path, paragraph, "qas", "a paragraph"):
                _add(found, path, entry, context, str(article.get("title", "")), missing)
    if not found.questions:
        raise DataError(
            f"{path} must hold questions with answers; it has none that can be used: "
            f"{len(found.absent):,} with answers that are not in their context, {len(found.unanswered):,} without any."
        )
    return found


def _add(found: Found, path: Path, entry: dict[str, Any], context: str, title: str, missing: Missing) -> None:
    question = _text(path, entry, "question", "a question")
    name = str(entry.get("id") or question)
    given = [] if entry.get("is_impossible") else list(_items(path, entry, "answers", f"the question {name}"))
    if not given:
        found.unanswered.append(name)
        return
    answers, moved = [], False
    for answer in given:
        text = _text(path, answer, "text", f"an answer to the question {name}")
        start = answer.get("answer_start")
        if not isinstance(start, int) or isinstance(start, bool):
            raise DataError(f"answer_start of the question {name} of {path} must be a number, got {shown(start)}.")
        if placed := place_of(text, start, context):
            answers.append(placed)
            moved |= context[start : start + len(text)] != text
        elif missing == "refuse":
            raise DataError(
                f"The answer {shown(text)} of the question {name} of {path} must stand in its context, word for word; "
                "it does not. Mend it, or leave such questions out: data.missing=skip."
            )
    if not answers:
        found.absent.append(name)
        return
    if moved:
        found.moved.append(name)
    found.questions.append(QuestionAnsweringExample(context, question.strip(), tuple(answers), name, title))


def place_of(text: str, start: int, context: str) -> Answer | None:
    """The answer where it is said to stand, else the nearest place where it does; without white space at its ends."""
    kept = text.strip()
    start += len(text) - len(text.lstrip())
    if not kept:
        return None
    places = [start] if start >= 0 and context.startswith(kept, start) else list(_places(kept, context))
    return Answer(kept, min(places, key=lambda place: abs(place - start))) if places else None


def _places(text: str, context: str) -> Iterator[int]:
    place = context.find(text)
    while place >= 0:
        yield place
        place = context.find(text, place + 1)


def _items(path: Path, holder: Any, key: str, what: str) -> Sequence[Any]:
    """A list of objects under a key."""
    found = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise DataError(f"{path} is not in SQuAD's form: {what} must have {key!r}, a list of objects.")
    return found


def _text(path: Path, holder: dict[str, Any], key: str, what: str) -> str:
    found = holder.get(key)
    if not isinstance(found, str) or not found.strip():
        raise DataError(f"{path} is not in SQuAD's form: {what} must have {key!r}, a text; got {shown(found)}.")
    return found
