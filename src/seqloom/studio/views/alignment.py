"""Alignment: which words of the source a translator looks at while it says each word of the translation."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response
from pydantic import Field

from seqloom.inspect.views.attention import AlignmentView, AttentionMap
from seqloom.studio.arrays import half, packed
from seqloom.studio.asking import TOKENS, StudioShelf, TextQuestion
from seqloom.studio.attention import Looks, alignment_of, described_sentence
from seqloom.studio.endpoints import queued
from seqloom.tasks import has_view

router = APIRouter(prefix="/api/alignment")


def suits(recipe: Mapping[str, Any]) -> bool:
    """What reads one text and says another, and attends while it does."""
    model = recipe.get("model") or {}
    if not has_view(recipe, "alignment"):
        return False
    if model.get("kind") == "recurrent-seq2seq":
        return model.get("attention", {}) is not None  # null is none; unsaid, there is one
    return model.get("kind") == "transformer"


class AlignmentQuestion(TextQuestion):
    layer: int | None = Field(None, ge=1, le=1000)  # of a Transformer; None is the one that aligns best
    head: int | None = Field(None, ge=1, le=1000)  # None is the mean over the layer's
    tokens: bool = False  # the model's own pieces in the place of words
    end: bool = True  # whether the ends of both sentences are shown, too


@router.post("")
@queued
def alignment(ask: AlignmentQuestion, shelf: StudioShelf) -> Response:
    text, target = ask.text.strip(), ask.forced_target
    with shelf.using(ask.run) as trained:
        # The same key as in heads: who looks at both views waits once.
        found = shelf.remember(
            ask.run, ("looks", text, target), lambda: alignment_of(trained, text, target, most=TOKENS)
        )
    grid, which = _choose_map(found, ask)
    said = {**described_sentence(found), "rows": grid.rows, "columns": grid.columns, "sides": grid.axes, **which}
    return packed(said, map=half(grid.weights))


def _choose_map(found: AlignmentView | Looks, ask: AlignmentQuestion) -> tuple[AttentionMap, dict[str, Any]]:
    """The map asked for, and which of the model's it is."""
    if isinstance(found, AlignmentView):
        alone = {"layers": 0, "heads": 0, "layer": None, "head": None, "title": "attention"}
        return found.grid(tokens=ask.tokens, end=ask.end), alone
    part = found.view.cross
    which = {
        "layers": part.layers,
        "heads": part.heads,
        "layer": part.layer(ask.layer),
        "head": ask.head,
        "title": part.title(ask.layer, ask.head),
    }
    return part.grid(ask.layer, ask.head, tokens=ask.tokens, end=ask.end), which
