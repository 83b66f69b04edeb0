"""Understand: what a text is and which words say so, what each word is and the paths that led there, and how two texts
go together."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import Field

from seqloom.core.errors import UsageError
from seqloom.inspect.views.labels import TagPaths, state_paths
from seqloom.inspect.views.texts import one_line
from seqloom.studio.asking import TOKENS, Document, Line, RunQuestion, StudioShelf
from seqloom.studio.attention import check_length
from seqloom.studio.endpoints import queued
from seqloom.tasks import has_view

router = APIRouter(prefix="/api/understand")
LEAST = 0.002  # probability of a step between two tags that is worth a line
WORDS = 200  # that are left out one after the other


def suits(recipe: Mapping[str, Any]) -> bool:
    return has_view(recipe, "understand")


# --- what a text is ---------------------------------------------------------------------------------------------------


class AskLabel(RunQuestion):
    text: Line
    label: Line | None = None  # the label to be explained; None is the most probable
    kind: Literal["attention", "influence", "left out"] | None = None


@router.post("/classify")
@queued
def classify(ask: AskLabel, shelf: StudioShelf) -> dict[str, Any]:
    """How probable each label is, and how much each word weighs for one of them."""
    text = one_line(ask.text, "text")
    with shelf.using(ask.run) as trained:
        check(ask.run, trained, "classify", "tells what texts are")
        (said,) = trained.classify(text)
        chosen = ask.label or said.label
        plain = trained.why(text, chosen)
        if ask.kind == "left out" and len(plain.words) > WORDS:
            raise UsageError(f"Words are left out one by one of texts with {WORDS} words at most.")
        why = plain if ask.kind in (None, plain.kind) else trained.why(text, chosen, ask.kind)
    return {
        "labels": said.candidates,
        "chosen": chosen,
        "kinds": ["attention", "influence", "left out"] if plain.kind == "attention" else ["influence", "left out"],
        "why": {"kind": why.kind, "words": why.words, "end": why.end},
        "unknown": said.unknown,
        "cut": said.cut,
    }


# --- what each word is ------------------------------------------------------------------------------------------------


class AskTags(RunQuestion):
    text: Line
    spaces: bool = False  # words are what stands between white space


@router.post("/tag")
@queued
def tag(ask: AskTags, shelf: StudioShelf) -> dict[str, Any]:
    """How probable every tag of every word is, and every step from one to the next; and the best path."""
    text = one_line(ask.text, "text")
    with shelf.using(ask.run) as trained:
        found = shelf.remember(ask.run, ("paths", text, ask.spaces), lambda: paths_of(ask, trained, text))
    names = ("words", "tags", "posterior", "best", "log_prob", "judged", "unknown")
    return {**{name: getattr(found, name) for name in names}, "steps": steps(found)}


def paths_of(ask: AskTags, trained: Any, text: str) -> TagPaths:
    if trained.run.recipe.get("task") == "hmm":
        check_length(trained, text, TOKENS)
        return state_paths(trained, text)
    check(ask.run, trained, "paths", "tells what words are")
    paths: TagPaths = trained.paths(text, spaces=ask.spaces)
    return paths


def steps(found: TagPaths) -> list[list[float]]:
    """[word, tag, tag of the next word, p] of each step that is worth a line."""
    places = np.argwhere(found.pairs >= LEAST)
    return [[*place, float(found.pairs[tuple(place)])] for place in places.tolist()]


# --- texts that go together -------------------------------------------------------------------------------------------


class AskPair(RunQuestion):
    first: Line
    second: Line


@router.post("/match")
@queued
def match(ask: AskPair, shelf: StudioShelf) -> dict[str, Any]:
    """How two texts go together: how probable each label is, or a score."""
    pair = one_line(ask.first, "first text"), one_line(ask.second, "second text")
    with shelf.using(ask.run) as trained:
        check(ask.run, trained, "match", "reads pairs of texts")
        (said,) = trained.match([pair])
    return {"labels": said.candidates, "score": said.score, "unknown": said.unknown, "cut": said.cut}


class AskChoice(RunQuestion):
    text: Line
    options: Annotated[list[Line], Field(min_length=2, max_length=20)]


@router.post("/choose")
@queued
def choose(ask: AskChoice, shelf: StudioShelf) -> dict[str, Any]:
    """Which of several options goes with a text best."""
    options = [one_line(option, "option") for option in ask.options]
    with shelf.using(ask.run) as trained:
        check(ask.run, trained, "choose", "chooses between texts")
        (said,) = trained.choose([(one_line(ask.text, "text"), options)])
    labels = [{"label": one.text, "probability": one.probability} for one in said.options]
    return {"labels": labels, "unknown": said.unknown, "cut": said.cut}


class AskQuestion(RunQuestion):
    question: Line
    context: Annotated[Document, Field(max_length=20_000)]
    top: int = Field(5, ge=1, le=20)


@router.post("/answer")
@queued
def answer(ask: AskQuestion, shelf: StudioShelf) -> dict[str, Any]:
    """The words of a text that answer a question, best first, and where they stand."""
    question, context = one_line(ask.question, "question"), ask.context
    one_line(context, "text")
    with shelf.using(ask.run) as trained:
        check(ask.run, trained, "answer", "answers questions")
        (said,) = trained.answer(question, context, top=ask.top)
    return {"answers": said.answers, "absent": said.absent, "windows": said.windows, "unknown": said.unknown}


def check(run: str, trained: Any, method: str, wanted: str) -> None:
    if not hasattr(trained, method):
        raise UsageError(f"{run} is {trained.what}. Choose a run that {wanted}.")
