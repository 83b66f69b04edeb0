"""Understand: what a text is and which words say so, what each word is and the paths that led there, and how two texts
go together."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from seqloom.core.errors import UsageError
from seqloom.inspect.views.labels import TagPaths, state_paths
from seqloom.inspect.views.texts import one_line
from seqloom.predict.classify import ClassifierPredictor
from seqloom.predict.matching import AnswerPredictor, ChoicePredictor, PairPredictor
from seqloom.predict.tag import TaggerPredictor
from seqloom.studio.endpoints import Document, Line, RunQuestion, View
from seqloom.studio.shelf import OpenRun
from seqloom.studio.views.attention import check_length

view = View("understand")
MIN_STEP_PROBABILITY = 0.002  # of a step between two tags that is drawn as a line
WORDS = 200  # that are left out one after the other


class LabelQuestion(RunQuestion):
    """A text to classify."""

    text: Line
    label: Line | None = None  # the label to be explained; None is the most probable
    kind: Literal["attention", "influence", "left out"] | None = None


@view.post("/classify")
def classify(ask: LabelQuestion, run: OpenRun) -> object:
    """How probable each label is, and how much each word weighs for one of them."""
    text, trained = one_line(ask.text, "text"), run.expect(ClassifierPredictor, "tells what texts are")
    (prediction,) = trained.classify(text)
    chosen = ask.label or prediction.label
    plain = trained.why(text, chosen)
    if ask.kind == "left out" and len(plain.words) > WORDS:
        raise UsageError(f"Words are left out one by one of texts with {WORDS} words at most.")
    why = plain if ask.kind in (None, plain.kind) else trained.why(text, chosen, ask.kind)
    return {
        "labels": prediction.candidates,
        "chosen": chosen,
        "kinds": ["attention", "influence", "left out"] if plain.kind == "attention" else ["influence", "left out"],
        "why": {"kind": why.kind, "words": why.words, "end": why.end},
        "unknown": prediction.unknown,
        "cut": prediction.cut,
    }


class TagQuestion(RunQuestion):
    """A text to tag."""

    text: Line
    spaces: bool = False  # words are what stands between white space


@view.post("/tag")
def tag(ask: TagQuestion, run: OpenRun) -> object:
    """How probable every tag of every word is, and every step from one to the next; and the best path."""
    text = one_line(ask.text, "text")

    def read_paths() -> TagPaths:
        if run.trained.run.recipe.get("task") == "hmm":
            check_length(run.trained, text)
            return state_paths(run.trained, text)
        return run.expect(TaggerPredictor, "tells what words are").paths(text, spaces=ask.spaces)

    paths = run.remember(("paths", text, ask.spaces), read_paths)
    names = ("words", "tags", "posterior", "best", "log_prob", "judged", "unknown")
    # [word, tag, tag of the next word, p] of each step that is worth a line
    places = np.argwhere(paths.pairs >= MIN_STEP_PROBABILITY).tolist()
    steps = [[*place, float(paths.pairs[tuple(place)])] for place in places]
    return {**{name: getattr(paths, name) for name in names}, "steps": steps}


class PairQuestion(RunQuestion):
    """Two texts to compare."""

    first: Line
    second: Line


@view.post("/match")
def match(ask: PairQuestion, run: OpenRun) -> object:
    """How two texts go together: how probable each label is, or a score."""
    pair = one_line(ask.first, "first text"), one_line(ask.second, "second text")
    (prediction,) = run.expect(PairPredictor, "reads pairs of texts").match([pair])
    names = ("score", "unknown", "cut")
    return {"labels": prediction.candidates, **{name: getattr(prediction, name) for name in names}}


class ChoiceQuestion(RunQuestion):
    """Options to choose from."""

    text: Line
    options: Annotated[list[Line], Field(min_length=2, max_length=20)]


@view.post("/choose")
def choose(ask: ChoiceQuestion, run: OpenRun) -> object:
    """Which of several options goes with a text best."""
    options = [one_line(option, "option") for option in ask.options]
    trained = run.expect(ChoicePredictor, "chooses between texts")
    (prediction,) = trained.choose([(one_line(ask.text, "text"), options)])
    labels = [{"label": one.text, "probability": one.probability} for one in prediction.options]
    return {"labels": labels, "unknown": prediction.unknown, "cut": prediction.cut}


class AnswerQuestion(RunQuestion):
    """A question about a text."""

    question: Line
    context: Annotated[Document, Field(max_length=20_000)]
    top: int = Field(5, ge=1, le=20)


@view.post("/answer")
def answer(ask: AnswerQuestion, run: OpenRun) -> object:
    """The words of a text that answer a question, best first, and where they stand."""
    question = one_line(ask.question, "question")
    one_line(ask.context, "text")
    (prediction,) = run.expect(AnswerPredictor, "answers questions").answer(question, ask.context, top=ask.top)
    return {name: getattr(prediction, name) for name in ("answers", "absent", "windows", "unknown")}
