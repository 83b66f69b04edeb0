"""How it works: one sentence on its way through a model, stage by stage, with the real numbers."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from pydantic import Field

from seqloom.core.tokens import MASK_TEXT
from seqloom.inspect.tours.language_models import lacks_output
from seqloom.inspect.tours.tour import NUMBERS, Follow, walk_through
from seqloom.inspect.tours.tour import suits as can_walk
from seqloom.inspect.views.texts import Said, say
from seqloom.studio.asking import TOKENS, Line, RunQuestion, StudioShelf
from seqloom.studio.endpoints import queued
from seqloom.studio.examples import example_of

router = APIRouter(prefix="/api/walk")
SHORT = 12  # letters of a text to begin with that is read letter by letter
MOST_NUMBERS = 64  # of a vector that are shown


def suits(recipe: Mapping[str, Any]) -> bool:
    return can_walk(recipe)


class WalkQuestion(RunQuestion):
    text: Line | None = None  # None is a text to begin with
    target: Line | None = None  # the translation to walk with; None is the one the model finds
    word: int | None = Field(None, ge=1, le=TOKENS)  # the token of the text that is followed
    step: int | None = Field(None, ge=1, le=TOKENS)  # the token of the answer that is being written
    layer: int = Field(1, ge=1, le=1000)
    head: int = Field(1, ge=1, le=1000)
    numbers: int = Field(NUMBERS, ge=1, le=MOST_NUMBERS)


@router.post("")
@queued
def walk(ask: WalkQuestion, shelf: StudioShelf) -> dict[str, Any]:
    follow = Follow(ask.word, ask.step, ask.layer, ask.head, ask.numbers)
    with shelf.using(ask.run) as trained:
        recipe = trained.run.recipe
        text = first_text(recipe, fills=not lacks_output(trained)) if ask.text is None else ask.text
        said: Said | None = None
        if recipe.get("task") == "translate":  # the search is what takes time: once for all steps
            target = (ask.target or "").strip() or None
            said = shelf.remember(ask.run, ("walk", text, target), lambda: say(trained, text, target))
        found = walk_through(trained, text, follow, said)
    return {**found.to_json(), "name": ask.run}


def first_text(recipe: Mapping[str, Any], fills: bool = True) -> str:
    """A text to begin with: short, so that every token has room; for a model that `fills` gaps, with one."""
    words = example_of(recipe).split(" ")
    if recipe.get("task") == "masked-lm" and not fills:
        return " ".join(words[:7])
    if recipe.get("task") == "masked-lm":
        return " ".join([*words[:2], MASK_TEXT, *words[3:7]])
    if recipe.get("task") in ("language-model", "instruct"):
        return " ".join(words[: max(1, sum(len(" ".join(words[:n])) <= SHORT for n in range(1, len(words) + 1)))])
    return " ".join(words)
