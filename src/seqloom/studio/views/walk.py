"""The view "How it works": the computation of a model for one text, stage by stage, with all values."""

from pydantic import Field

from seqloom.core import JsonObject
from seqloom.core.tokens import MASK_TEXT
from seqloom.inspect.tours.readers import lacks_output
from seqloom.inspect.tours.tour import DEFAULT_NUMBERS, KINDS, Follow, walk_through
from seqloom.inspect.views.texts import translate_pair
from seqloom.models import MODELS
from seqloom.studio.endpoints import MAX_TOKENS, Line, RunRequest, View
from seqloom.studio.run_folder import OpenRun
from seqloom.studio.views.runs import example_texts

view = View("walk", "How it works", lambda model: MODELS.base(model.get("kind")) in KINDS)
SHORT_PROMPT = 12  # number of characters of a language model's default text


class WalkRequest(RunRequest):
    """The text, and the token, step, layer and head to follow."""

    text: Line | None = None  # None means a default text
    target: Line | None = None  # the translation to force; None means the translation of the model
    word: int | None = Field(None, ge=1, le=MAX_TOKENS)  # the input token to follow
    step: int | None = Field(None, ge=1, le=MAX_TOKENS)  # the output token to follow
    layer: int = Field(1, ge=1, le=1000)
    head: int = Field(1, ge=1, le=1000)
    numbers: int = Field(DEFAULT_NUMBERS, ge=1, le=64)  # number of values of each vector to show


@view.post()
def walk(body: WalkRequest, run: OpenRun) -> object:
    """Return all stages."""
    follow = Follow(body.word, body.step, body.layer, body.head, body.numbers)
    recipe, output = run.trained.run.recipe, None
    text = default_text(recipe, fills_masks=not lacks_output(run.trained)) if body.text is None else body.text
    if recipe.get("task") == "translate":  # beam search is slow, so its result is cached for all steps
        target = (body.target or "").strip() or None
        output = run.get_or_compute(("walk", text, target), lambda: translate_pair(run.trained, text, target))
    return {**vars(walk_through(run.trained, text, follow, output)), "name": run.name}


def default_text(recipe: JsonObject, fills_masks: bool = True) -> str:
    """Return a short default text.

    The text contains a mask if the model is a masked language model that `fills_masks`.
    """
    words = example_texts(recipe)[0].split(" ")
    if recipe.get("task") == "masked-lm" and not fills_masks:
        return " ".join(words[:7])
    if recipe.get("task") == "masked-lm":
        return " ".join([*words[:2], MASK_TEXT, *words[3:7]])
    if recipe.get("task") in ("language-model", "instruct"):
        return " ".join(
            words[: max(1, sum(len(" ".join(words[:n])) <= SHORT_PROMPT for n in range(1, len(words) + 1)))]
        )
    return " ".join(words)
