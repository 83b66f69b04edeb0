"""The user's own questions with answers in a text, in SQuAD's form: articles, paragraphs, questions, answers.

    {"data": [{"title": …, "paragraphs": [{"context": …, "qas": [{"id": …, "question": …,
        "answers": [{"text": …, "answer_start": …}]}]}]}]}

`answer_start` counts characters. Where the answer does not stand there but elsewhere in the
context, the nearest place is taken; where it stands nowhere, the question cannot be learnt from and
is left out, or the file is refused.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.core.words import counted, shown
from seqloom.data.corpus import Corpus, FileConfig
from seqloom.data.examples import Answer, QuestionAnsweringExample
from seqloom.data.files import expand_home, read_filled
from seqloom.data.splits import Read, load_files

SUMMARY = "one's own questions whose answers stand in a text: JSON in SQuAD's form"
FORM = "question-answering"
Missing = Literal["skip", "refuse"]
WITHOUT_ANSWER = "left out, without an answer"  # of SQuAD 2
NOT_IN_CONTEXT = "left out, the answer does not stand in its context"
MOVED = "an answer stands elsewhere in its context than the file says, and was taken from there"
MIN_ARTICLES = 5  # for each split: with fewer, one article may be most of it


@config
class Config(FileConfig):
    corpus: Literal["squad-files"] = "squad-files"
    train: str  # a .json file in SQuAD's form, which may be .gz
    missing: Missing = "skip"  # an answer that is not in its context: leave the question out and count it, or refuse


def load(config: Config) -> Corpus[QuestionAnsweringExample]:
    """Whole articles are held out where there are enough of them, else whole contexts."""
    return load_files(
        config,
        lambda split, file: read_squad(expand_home(Path(file)), config.missing, file),
        description=f"{config.train}: questions and where their answers stand",
        groups=articles_or_contexts,
        repeats=("contexts", lambda question: question.context),
    )


def articles_or_contexts(questions: Sequence[QuestionAnsweringExample], held_out: int) -> list[str]:
    articles = [question.title or question.context for question in questions]
    enough = len(set(articles)) >= MIN_ARTICLES * (held_out + 1)
    return articles if enough else [question.context for question in questions]


def read_squad(path: Path, missing: Missing = "skip", file: str = "") -> Read[QuestionAnsweringExample]:
    """Return all questions of a file in its order, and notes on the others; `file` is its name in these notes."""
    try:
        content = json.loads(read_filled(path))
    except (json.JSONDecodeError, RecursionError) as error:
        problem = error.msg if isinstance(error, json.JSONDecodeError) else "too deep"
        raise DataError(f"{path} must be JSON in SQuAD's form: {problem}.") from None
    questions: list[QuestionAnsweringExample] = []
    ids: dict[str, list[str]] = {WITHOUT_ANSWER: [], NOT_IN_CONTEXT: [], MOVED: []}
    for article in _items(path, content, "data", "the file"):
        for paragraph in _items(path, article, "paragraphs", "an article"):
            context = _text(path, paragraph, "context", "a paragraph")
            for entry in _items(path, paragraph, "qas", "a paragraph"):
                question = _text(path, entry, "question", "a question").strip()
                name = str(entry.get("id") or entry["question"])
                answers, problem = _read_answers(path, entry, name, context, missing)
                if problem:
                    ids[problem].append(name)
                if answers:
                    title = str(article.get("title", ""))
                    questions.append(QuestionAnsweringExample(context, question, tuple(answers), name, title))
    if not questions:
        raise DataError(
            f"{path} must hold questions with answers; it has none that can be used: "
            f"{len(ids[NOT_IN_CONTEXT]):,} with answers that are not in their context, "
            f"{len(ids[WITHOUT_ANSWER]):,} without any."
        )
    return questions, [
        f"{problem}: {counted(len(names), 'question')} of {file or path.name}, the first {names[0]}"
        for problem, names in ids.items()
        if names
    ]


def _read_answers(
    path: Path, entry: Mapping[str, object], name: str, context: str, missing: Missing
) -> tuple[list[Answer], str]:
    """Return the answers to a question that stand in its context, and what is wrong with it."""
    given = [] if entry.get("is_impossible") else _items(path, entry, "answers", f"the question {name}")
    answers, problem = [], ""
    for answer in given:
        text = _text(path, answer, "text", f"an answer to the question {name}")
        start = answer.get("answer_start")
        if not isinstance(start, int) or isinstance(start, bool):
            raise DataError(f"answer_start of the question {name} of {path} must be a number, got {shown(start)}.")
        if placed := place_of(text, start, context):
            answers.append(placed)
            problem = problem if context[start : start + len(text)] == text else MOVED
        elif missing == "refuse":
            raise DataError(
                f"The answer {shown(text)} of the question {name} of {path} must stand in its context, word for word; "
                "it does not. Mend it, or leave such questions out: data.missing=skip."
            )
    if not answers:
        problem = NOT_IN_CONTEXT if given else WITHOUT_ANSWER
    return answers, problem


def place_of(text: str, start: int, context: str) -> Answer | None:
    """Return the answer where it is said to stand, else at the nearest place; without white space at its ends."""
    kept = text.strip()
    start += len(text) - len(text.lstrip())
    if not kept:
        return None
    if start >= 0 and context.startswith(kept, start):
        return Answer(kept, start)
    places = [place for place in range(len(context)) if context.startswith(kept, place)]
    return Answer(kept, min(places, key=lambda place: abs(place - start))) if places else None


def _items(path: Path, holder: object, key: str, what: str) -> Sequence[dict[str, object]]:
    """Return the list of objects under a key."""
    items = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise DataError(f"{path} is not in SQuAD's form: {what} must have {key!r}, a list of objects.")
    return items


def _text(path: Path, holder: Mapping[str, object], key: str, what: str) -> str:
    text = holder.get(key)
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{path} is not in SQuAD's form: {what} must have {key!r}, a text; got {shown(text)}.")
    return text
