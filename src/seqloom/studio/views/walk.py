"""How it works: one sentence on its way through a model, stage by stage, with the real numbers."""

from pydantic import Field

from seqloom.core.tokens import MASK_TEXT
from seqloom.inspect.tours.readers import lacks_output
from seqloom.inspect.tours.tour import KINDS, NUMBERS, Follow, walk_through
from seqloom.inspect.views.texts import say
from seqloom.models import MODELS
from seqloom.studio.endpoints import TOKENS, Line, RunQuestion, View
from seqloom.studio.shelf import Json, OpenRun
from seqloom.studio.views.runs import examples_of

view = View("walk", lambda model: MODELS.base(model.get("kind")) in KINDS)
SHORT = 12  # letters of a text to begin with that is read letter by letter


class WalkQuestion(RunQuestion):
    """What is followed through the model."""

    text: Line | None = None  # None is a text to begin with
    target: Line | None = None  # the translation to walk with; None is the one the model finds
    word: int | None = Field(None, ge=1, le=TOKENS)  # the token of the text that is followed
    step: int | None = Field(None, ge=1, le=TOKENS)  # the token of the answer that is being written
    layer: int = Field(1, ge=1, le=1000)
    head: int = Field(1, ge=1, le=1000)
    numbers: int = Field(NUMBERS, ge=1, le=64)  # of a vector that are shown


@view.post()
def walk(ask: WalkQuestion, run: OpenRun) -> object:
    """Every stage of the way."""
    follow = Follow(ask.word, ask.step, ask.layer, ask.head, ask.numbers)
    recipe, said = run.trained.run.recipe, None
    text = first_text(recipe, fills=not lacks_output(run.trained)) if ask.text is None else ask.text
    if recipe.get("task") == "translate":  # the search is what takes time: once for all steps
        target = (ask.target or "").strip() or None
        said = run.remember(("walk", text, target), lambda: say(run.trained, text, target))
    return {**vars(walk_through(run.trained, text, follow, said)), "name": run.name}


def first_text(recipe: Json, fills: bool = True) -> str:
    """A text to begin with: short, so that every token has room; for a model that `fills` gaps, with one."""
    words = examples_of(recipe)[0].split(" ")
    if recipe.get("task") == "masked-lm" and not fills:
        return " ".join(words[:7])
    if recipe.get("task") == "masked-lm":
        return " ".join([*words[:2], MASK_TEXT, *words[3:7]])
    if recipe.get("task") in ("language-model", "instruct"):
        return " ".join(words[: max(1, sum(len(" ".join(words[:n])) <= SHORT for n in range(1, len(words) + 1)))])
    return " ".join(words)
