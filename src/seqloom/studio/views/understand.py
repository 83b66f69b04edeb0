"""The view "Understand".

The view shows classification with word attributions, tagging lattices, sentence pairs, multiple choice and question
answering.
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from seqloom.core.errors import UsageError
from seqloom.inspect.views.labels import TagPaths, state_paths
from seqloom.inspect.views.texts import one_line
from seqloom.predict.classify import ClassifierPredictor
from seqloom.predict.matching import AnswerPredictor, ChoicePredictor, PairPredictor
from seqloom.predict.tag import TaggerPredictor
from seqloom.studio.endpoints import Document, Line, RunRequest, View
from seqloom.studio.run_folder import OpenRun
from seqloom.studio.views.attention import check_length

view = View("understand", "Understand")
MIN_TRANSITION_PROBABILITY = 0.002  # minimum probability of transitions that are sent to the page
MAX_OCCLUDED_WORDS = 200


class ClassifyRequest(RunRequest):
    """A text to classify."""

    text: Line
    label: Line | None = None  # the label to explain; None means the most probable label
    kind: Literal["attention", "influence", "occlusion"] | None = None


@view.post("/classify")
def classify(body: ClassifyRequest, run: OpenRun) -> object:
    """Return the probabilities of all labels, and the word weights for one of them."""
    text, trained = one_line(body.text, "text"), run.require(ClassifierPredictor, "a text classifier")
    (prediction,) = trained.classify(text)
    label = body.label or prediction.candidates[0].label
    default = trained.why(text, label)
    if body.kind == "occlusion" and len(default.words) > MAX_OCCLUDED_WORDS:
        raise UsageError(f"Occlusion supports texts of at most {MAX_OCCLUDED_WORDS} words. Shorten the text.")
    why = default if body.kind in (None, default.kind) else trained.why(text, label, body.kind)
    return {
        "labels": prediction.candidates,
        "label": label,
        # Labels predicted by a multi-label classifier, otherwise None
        "predicted": getattr(prediction, "labels", None),
        "kinds": ["attention", "influence", "occlusion"] if default.kind == "attention" else ["influence", "occlusion"],
        "why": {"kind": why.kind, "words": why.words, "end": why.end},
        "unknown": prediction.unknown,
        "cut": prediction.cut,
    }


class TagRequest(RunRequest):
    """A text to tag."""

    text: Line
    spaces: bool = False  # whether to split words only at white space


@view.post("/tag")
def tag(body: TagRequest, run: OpenRun) -> object:
    """Return tag posteriors, transition probabilities and the best path."""
    text = one_line(body.text, "text")

    def read_paths() -> TagPaths:
        if run.trained.run.recipe.get("task") == "hmm":
            check_length(run.trained, text)
            return state_paths(run.trained, text)
        return run.require(TaggerPredictor, "a tagger").paths(text, spaces=body.spaces)

    paths = run.get_or_compute(("paths", text, body.spaces), read_paths)
    names = ("words", "tags", "posterior", "best", "log_prob", "scoring", "unknown")
    # Each item is [word, tag, tag of the next word, p].
    transitions = [
        [*index, float(paths.pairs[tuple(index)])]
        for index in np.argwhere(paths.pairs >= MIN_TRANSITION_PROBABILITY).tolist()
    ]
    return {**{name: getattr(paths, name) for name in names}, "transitions": transitions}


class PairRequest(RunRequest):
    """Two texts to compare."""

    first: Line
    second: Line


@view.post("/match")
def match(body: PairRequest, run: OpenRun) -> object:
    """Return the label probabilities of a sentence pair, or its score."""
    pair = one_line(body.first, "first text"), one_line(body.second, "second text")
    (prediction,) = run.require(PairPredictor, "a sentence-pair model").match([pair])
    names = ("score", "unknown", "cut")
    return {"labels": prediction.candidates, **{name: getattr(prediction, name) for name in names}}


class ChoiceRequest(RunRequest):
    """A text and the options to choose from."""

    text: Line
    options: Annotated[list[Line], Field(min_length=2, max_length=20)]


@view.post("/choose")
def choose(body: ChoiceRequest, run: OpenRun) -> object:
    """Return the probability of each option."""
    options = [one_line(option, "option") for option in body.options]
    trained = run.require(ChoicePredictor, "a multiple-choice model")
    (prediction,) = trained.choose([(one_line(body.text, "text"), options)])
    labels = [{"label": option.text, "probability": option.probability} for option in prediction.options]
    return {"labels": labels, "unknown": prediction.unknown, "cut": prediction.cut}


class AnswerRequest(RunRequest):
    """A question about a text."""

    question: Line
    context: Annotated[Document, Field(max_length=20_000)]
    top: int = Field(5, ge=1, le=20)


@view.post("/answer")
def answer(body: AnswerRequest, run: OpenRun) -> object:
    """Return the spans of a text that answer a question, best first."""
    question = one_line(body.question, "question")
    one_line(body.context, "text")
    (prediction,) = run.require(AnswerPredictor, "a question-answering model").answer(
        question, body.context, top=body.top
    )
    return {name: getattr(prediction, name) for name in ("answers", "no_answer_probability", "windows", "unknown")}
