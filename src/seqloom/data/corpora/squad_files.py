"""Questions with answers in a text, from your own files in SQuAD format.

    {"data": [{"title": …, "paragraphs": [{"context": …, "qas": [{"id": …, "question": …,
        "answers": [{"text": …, "answer_start": …}]}]}]}]}

`answer_start` counts characters. If the answer is not at this position, the nearest occurrence in the
context is used. If the context does not contain the answer, the question is left out, or an error is raised.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.core.words import format_count, format_value
from seqloom.data.corpus import Corpus, FileConfig
from seqloom.data.examples import Answer, QuestionAnsweringExample
from seqloom.data.files import expand_home, read_nonblank
from seqloom.data.splits import Read, load_files

SUMMARY = "your own questions with answers in a text: JSON in SQuAD format"
FORM = "question-answering"
Missing = Literal["skip", "refuse"]
WITHOUT_ANSWER = "left out because they have no answer"  # as in SQuAD 2
NOT_IN_CONTEXT = "left out because the answer is not in the context"
MOVED = "answers found at a position other than their answer_start"
MIN_ARTICLES = 5  # minimum number of articles per split, because one of few articles may dominate the split


@config
class Config(FileConfig):
    corpus: Literal["squad-files"] = "squad-files"
    train: str  # a .json file in SQuAD format, optionally compressed (.gz or .zst)
    missing: Missing = "skip"  # if an answer does not occur in its context: skip the question, or report an error


def load(config: Config) -> Corpus[QuestionAnsweringExample]:
    """Load the questions; dev and test are complete articles if there are enough articles, else complete contexts."""
    return load_files(
        config,
        lambda split, file: read_squad(expand_home(Path(file)), config.missing, file),
        description=f"{config.train}: questions and the spans of their answers",
        groups=articles_or_contexts,
        repeats=("contexts", lambda question: question.context),
    )


def articles_or_contexts(questions: Sequence[QuestionAnsweringExample], held_out: int) -> list[str]:
    articles = [question.title or question.context for question in questions]
    has_enough = len(set(articles)) >= MIN_ARTICLES * (held_out + 1)
    return articles if has_enough else [question.context for question in questions]


def read_squad(path: Path, missing: Missing = "skip", file: str = "") -> Read[QuestionAnsweringExample]:
    """Return the usable questions of a file, and notes on the omitted questions; `file` is the file's name in notes."""
    try:
        content = json.loads(read_nonblank(path))
    except (json.JSONDecodeError, RecursionError) as error:
        problem = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        raise DataError(f"{path} must be JSON in SQuAD format: {problem}.") from None
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
            f"{path} must contain questions with answers, but none is usable: {len(ids[NOT_IN_CONTEXT]):,} have "
            f"answers that are not in the context, and {len(ids[WITHOUT_ANSWER]):,} have no answer."
        )
    return questions, [
        f"{problem}: {format_count(len(names), 'question')} of {file or path.name}; the first is {names[0]}"
        for problem, names in ids.items()
        if names
    ]


def _read_answers(
    path: Path, entry: Mapping[str, object], name: str, context: str, missing: Missing
) -> tuple[list[Answer], str]:
    """Return the answers to a question that occur in its context, and a problem, or "" if there is no problem."""
    entries = [] if entry.get("is_impossible") else _items(path, entry, "answers", f"the question {name}")
    answers, problem = [], ""
    for answer in entries:
        text = _text(path, answer, "text", f"an answer to the question {name}")
        start = answer.get("answer_start")
        if not isinstance(start, int) or isinstance(start, bool):
            raise DataError(
                f"answer_start of the question {name} of {path} must be a number; got {format_value(start)}."
            )
        if located := locate_answer(text, start, context):
            answers.append(located)
            problem = problem if context[start : start + len(text)] == text else MOVED
        elif missing == "refuse":
            raise DataError(
                f"The answer {format_value(text)} to the question {name} of {path} must occur in its context, but does "
                "not. "
                "Correct it, or set data.missing=skip to leave out such questions."
            )
    if not answers:
        problem = NOT_IN_CONTEXT if entries else WITHOUT_ANSWER
    return answers, problem


def locate_answer(text: str, start: int, context: str) -> Answer | None:
    """Find a stripped answer at `start` or at the nearest occurrence in the context."""
    stripped = text.strip()
    start += len(text) - len(text.lstrip())
    if not stripped:
        return None
    if start >= 0 and context.startswith(stripped, start):
        return Answer(stripped, start)
    occurrences = [index for index in range(len(context)) if context.startswith(stripped, index)]
    return Answer(stripped, min(occurrences, key=lambda index: abs(index - start))) if occurrences else None


def _items(path: Path, holder: object, key: str, what: str) -> Sequence[dict[str, object]]:
    """Return the list of objects under a key."""
    items = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise DataError(f"{path} is not in SQuAD format: {what} must have a list of objects {key!r}.")
    return items


def _text(path: Path, holder: Mapping[str, object], key: str, what: str) -> str:
    text = holder.get(key)
    if not isinstance(text, str) or not text.strip():
        raise DataError(
            f"{path} is not in SQuAD format: {what} must have a non-empty string {key!r}; got {format_value(text)}."
        )
    return text
