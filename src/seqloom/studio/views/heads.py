"""Self-attention: every head of a Transformer as a thumbnail, one of them large, and what each of them does."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Response
from pydantic import Field

from seqloom.core.errors import UsageError
from seqloom.inspect.views.attention import NAMES, Part
from seqloom.studio.arrays import half, packed, thumbnail
from seqloom.studio.asking import TOKENS, StudioShelf, TextQuestion
from seqloom.studio.attention import Looks, described_sentence, thumbnails
from seqloom.studio.endpoints import queued
from seqloom.studio.shelf import Shelf
from seqloom.tasks import has_view

router = APIRouter(prefix="/api/heads")
WITH_HEADS = ("transformer", "gpt", "bert", "electra")


def suits(recipe: Mapping[str, Any]) -> bool:
    """Whatever has heads and reads one text: `trained.heads`."""
    model = recipe.get("model") or {}
    reader = model.get("body") or model.get("encoder") or model
    return has_view(recipe, "heads") and reader.get("kind") in WITH_HEADS


class HeadsQuestion(TextQuestion):
    part: Literal["encoder", "decoder", "cross"] | None = None
    tokens: bool = False  # the model's own pieces in the place of words
    end: bool = True  # whether the sentence's end is shown, too


class HeadQuestion(HeadsQuestion):
    layer: int | None = Field(None, ge=1, le=1000)
    head: int | None = Field(None, ge=1, le=1000)  # None is the mean over the layer's


@router.post("")
@queued
def heads(ask: HeadsQuestion, shelf: StudioShelf) -> Response:
    """What was read and said, the parts that have heads, and of one of them a thumbnail of each head; after those of a
    layer comes the mean over them."""
    found, part = _read(shelf, ask)
    maps = part.maps(tokens=ask.tokens, end=ask.end)
    said = {
        **described_sentence(found),
        "says": found.view.says,
        "parts": [
            {"name": one.name, "title": NAMES[one.name], "layers": one.layers, "heads": one.heads, "usual": one.usual}
            for one in found.view.parts.values()
        ],
        "part": part.name,
        "sides": maps.axes,
        "rows": maps.rows,
        "columns": maps.columns,
        "endName": part.tokens.columns[0 if part.name == "decoder" else -1],
        "habits": found.habits[part.name],
    }
    small = thumbnails(np.concatenate([maps.weights, maps.weights.mean(axis=1, keepdims=True)], axis=1))
    return packed(said, grid=thumbnail(small, low=0.0, high=float(small.max())))


@router.post("/map")
@queued
def one_map(ask: HeadQuestion, shelf: StudioShelf) -> Response:
    """One head, or the mean over a layer's."""
    _, part = _read(shelf, ask)
    grid = part.grid(ask.layer, ask.head, tokens=ask.tokens, end=ask.end)
    return packed(
        {"layer": part.layer(ask.layer), "head": ask.head, "title": part.title(ask.layer, ask.head)},
        map=half(grid.weights),
    )


def _read(shelf: Shelf, ask: HeadsQuestion) -> tuple[Looks, Part]:
    """Computed once for a text, then kept for a while; and the part asked for, the first if none is named."""
    text, target = ask.text.strip(), ask.forced_target
    with shelf.using(ask.run) as trained:
        found = shelf.remember(ask.run, ("looks", text, target), lambda: Looks.of(trained, text, target, most=TOKENS))
    if not isinstance(found, Looks):  # the view of alignment found attention without heads, and kept it
        raise UsageError(f"{ask.run} has attention, but no heads.")
    return found, found.view.part(ask.part or next(iter(found.view.parts)))
