"""What the page may ask: the types of its questions, with the limits that keep an answer small.

A question is a pydantic model with these fields. What does not fit is refused before any model is touched.
"""

from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from seqloom.studio.shelf import Shelf

LINE = 2_000  # letters of a sentence, a prompt, a source
DOCUMENT = 200_000  # letters of a text of many lines
TOKENS = 512  # of a text whose every token looks at every other
BEAM = 16
NEW_TOKENS = 400
POINTS = 20_000


def _spellable(text: str) -> str:
    """JSON can carry halves of letters, which no tokenizer can read."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("must be UTF-8, without halves of letters")
    return text


RunId = Annotated[str, Field(min_length=1, max_length=500)]  # a name on the shelf, never a path: see `Shelf.find`
Line = Annotated[str, Field(max_length=LINE), AfterValidator(_spellable)]
Document = Annotated[str, Field(max_length=DOCUMENT), AfterValidator(_spellable)]


class Question(BaseModel):
    """The base of all questions: nothing that is not asked for may come along, and no number may be infinite."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class RunQuestion(Question):
    run: RunId


class TextQuestion(RunQuestion):
    """A text that a model reads, and the translation that a translator is made to say; None is its own."""

    text: Line
    target: Line | None = None

    @property
    def forced_target(self) -> str | None:
        return (self.target or "").strip() or None


def the_shelf(request: Request) -> Shelf:
    """The runs of this studio."""
    shelf: Any = request.app.state.shelf
    assert isinstance(shelf, Shelf)
    return shelf


StudioShelf = Annotated[Shelf, Depends(the_shelf)]
