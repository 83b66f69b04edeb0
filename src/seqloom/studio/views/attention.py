"""Alignment and self-attention: which words a model attends to, one map large, thumbnails of all heads."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from fastapi import Response
from pydantic import Field

from seqloom.core.errors import UsageError
from seqloom.inspect.values import Array
from seqloom.inspect.views.attention import NAMES, AlignmentView, Habit, HeadsView, Part
from seqloom.models import MODELS
from seqloom.models.transformer import Transformer
from seqloom.predict.gaps import DenoiserPredictor
from seqloom.predict.translate import TranslatorPredictor
from seqloom.studio.endpoints import TOKENS, TextQuestion, View, half, pack_arrays, reader_kind, thumbnail
from seqloom.studio.shelf import Json, OpenRun, Trained

THUMBNAIL = 64  # cells a side, at most


@dataclass(frozen=True, eq=False)
class AllHeads:
    """The attention weights of all heads, in the model's own single precision, and what each of them does."""

    view: HeadsView
    habits: dict[str, list[Habit]]  # by part

    @property
    def nbytes(self) -> int:
        """What it takes to keep it."""
        parts = self.view.parts.values()
        return sum(part.tokens.weights.nbytes + part.words.weights.nbytes for part in parts)


def read_heads(trained: Trained, text: str, target: str | None = None, *, most: int = TOKENS) -> AllHeads:
    """Let a model read a text, or say the given translation of it. No side may have more than `most` tokens."""
    check_length(trained, text, most)
    if target is None:
        view = trained.heads(text)
    elif isinstance(trained, TranslatorPredictor):
        check_length(trained, target, most)
        view = trained.heads(text, target)
    else:
        raise UsageError(f"{trained.name} is {trained.what}: only a translator can be given a translation.")
    habits = {name: part.habits() for name, part in view.parts.items()}
    return AllHeads(replace(view, parts={name: _to_single(part) for name, part in view.parts.items()}), habits)


def _to_single(part: Part) -> Part:
    tokens, words = (maps._replace(weights=maps.weights.astype(np.float32)) for maps in (part.tokens, part.words))
    return replace(part, tokens=tokens, words=words)


def read_alignment(
    trained: Trained, text: str, target: str | None = None, *, most: int = TOKENS
) -> AlignmentView | AllHeads:
    """The source × target maps of a model: of every head where it has heads, a denoiser's too, or else of the one
    attention of a recurrent translator."""
    if not isinstance(trained, TranslatorPredictor | DenoiserPredictor):
        raise UsageError(f"{trained.name} is {trained.what}: it has no source and target to align.")
    if isinstance(trained, DenoiserPredictor) or isinstance(trained.model, Transformer):
        return read_heads(trained, text, target, most=most)
    for side in (text, target):
        check_length(trained, side or "", most)
    return trained.attention(text, target)


def check_length(trained: Trained, text: str, most: int = TOKENS) -> None:
    """Every token attends to every other: refuse what would be too large to draw, before it is computed."""
    if (count := len(trained.tokenizer.encode(text)) + 1) > most:
        raise UsageError(f"The text has {count:,} tokens, its end included, and {most} can be shown: shorten it.")


def describe_sentence(view: AlignmentView | HeadsView) -> dict[str, object]:
    """What was read, what was said of it, and how sure the model was."""
    names = ("source", "text", "given", "finished", "notes")
    return {**{name: getattr(view, name) for name in names}, "logProb": view.log_prob}


# --- alignment --------------------------------------------------------------------------------------------------------


def _aligns(model: Json) -> bool:
    """What reads one text and says another, and attends while it does."""
    if model.get("kind") == "recurrent-seq2seq":
        return model.get("attention", {}) is not None  # null is none; unsaid, there is one
    return MODELS.base(model.get("kind")) == "transformer"


alignment_view = View("alignment", _aligns)


class MapQuestion(TextQuestion):
    """Which attention map, and how it is labelled."""

    tokens: bool = False  # the model's own pieces in the place of words
    end: bool = True  # whether the ends of sentences are shown, too


class AlignmentQuestion(MapQuestion):
    """A source × target map."""

    layer: int | None = Field(None, ge=1, le=1000)  # of a Transformer; None is the one that aligns best
    head: int | None = Field(None, ge=1, le=1000)  # None is the mean over the layer's


@alignment_view.post()
def alignment(ask: AlignmentQuestion, run: OpenRun) -> Response:
    """Which words of the source a translator attends to while it says each word of the translation."""
    text, target = ask.text.strip(), ask.forced_target
    # The same key as in heads: who looks at both views waits once.
    read = run.remember(("attention", text, target), lambda: read_alignment(run.trained, text, target))
    if isinstance(read, AlignmentView):
        view: AlignmentView | HeadsView = read
        grid = read.grid(tokens=ask.tokens, end=ask.end)
        which: dict[str, object] = {"layers": 0, "heads": 0, "layer": None, "head": None, "title": "attention"}
    else:
        view, part = read.view, read.view.cross
        grid = part.grid(ask.layer, ask.head, tokens=ask.tokens, end=ask.end)
        which = {"layers": part.layers, "heads": part.heads, **_describe_head(part, ask.layer, ask.head)}
    meta = {"rows": grid.rows, "columns": grid.columns, "sides": grid.axes, **which}
    return pack_arrays({**describe_sentence(view), **meta}, map=half(grid.weights))


def _describe_head(part: Part, layer: int | None, head: int | None) -> dict[str, object]:
    return {"layer": part.layer(layer), "head": head, "title": part.title(layer, head)}


# --- self-attention ---------------------------------------------------------------------------------------------------

WITH_HEADS = ("transformer", "gpt", "bert", "electra")
heads_view = View("heads", lambda model: reader_kind(model) in WITH_HEADS)


class HeadsQuestion(MapQuestion):
    """All heads of a part."""

    part: Literal["encoder", "decoder", "cross"] | None = None


class HeadQuestion(HeadsQuestion):
    """One head of a part."""

    layer: int | None = Field(None, ge=1, le=1000)
    head: int | None = Field(None, ge=1, le=1000)  # None is the mean over the layer's


@heads_view.post()
def heads(ask: HeadsQuestion, run: OpenRun) -> Response:
    """What was read and said, the parts that have heads, and of one of them a thumbnail of each head; after those of a
    layer comes the mean over them."""
    read, part = _read_part(ask, run)
    maps = part.maps(tokens=ask.tokens, end=ask.end)
    meta = {
        **describe_sentence(read.view),
        "says": read.view.says,
        "parts": [
            {"name": one.name, "title": NAMES[one.name], "layers": one.layers, "heads": one.heads, "usual": one.usual}
            for one in read.view.parts.values()
        ],
        "part": part.name,
        "sides": maps.axes,
        "rows": maps.rows,
        "columns": maps.columns,
        "endName": part.tokens.columns[0 if part.name == "decoder" else -1],
        "habits": read.habits[part.name],
    }
    small = thumbnails(np.concatenate([maps.weights, maps.weights.mean(axis=1, keepdims=True)], axis=1))
    return pack_arrays(meta, grid=thumbnail(small, low=0.0, high=float(small.max())))


@heads_view.post("/map")
def one_map(ask: HeadQuestion, run: OpenRun) -> Response:
    """One head, or the mean over a layer's."""
    _, part = _read_part(ask, run)
    grid = part.grid(ask.layer, ask.head, tokens=ask.tokens, end=ask.end)
    return pack_arrays(_describe_head(part, ask.layer, ask.head), map=half(grid.weights))


def _read_part(ask: HeadsQuestion, run: OpenRun) -> tuple[AllHeads, Part]:
    """Computed once for a text, then kept for a while; and the part asked for, the first if none is named."""
    text, target = ask.text.strip(), ask.forced_target
    read: AllHeads | AlignmentView = run.remember(
        ("attention", text, target), lambda: read_heads(run.trained, text, target)
    )
    if isinstance(read, AlignmentView):  # the view of alignment found attention without heads, and kept it
        raise UsageError(f"{run.name} has attention, but no heads.")
    return read, read.view.part(ask.part or next(iter(read.view.parts)))


def thumbnails(weights: Array, most: int = THUMBNAIL) -> Array:
    """Maps (…, rows, columns) with at most so many cells a side. Of cells that fall together the largest is seen, so
    that a thin line stays a line."""
    for axis in (-2, -1):
        size = weights.shape[axis]
        if size > most:
            weights = np.maximum.reduceat(weights, np.arange(most) * size // most, axis=axis)
    return weights
