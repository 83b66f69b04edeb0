"""The views "Alignment" and "Self-attention": attention weights of one head, and thumbnails of all heads."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from fastapi import Response
from pydantic import Field

from seqloom.core import JsonObject
from seqloom.core.errors import UsageError
from seqloom.inspect.values import Array
from seqloom.inspect.views.attention import NAMES, AlignmentView, HeadStatistics, HeadsView, Part
from seqloom.models import MODELS
from seqloom.models.transformer import Transformer
from seqloom.predict.gaps import DenoiserPredictor
from seqloom.predict.translate import TranslatorPredictor
from seqloom.studio.endpoints import MAX_TOKENS, TextRequest, View, encoder_kind, pack_arrays, pack_float16, pack_uint8
from seqloom.studio.run_folder import OpenRun, Trained

THUMBNAIL_SIZE = 64  # maximum number of cells on each side


@dataclass(frozen=True, eq=False)
class AllHeads:
    """The attention weights of all heads in float32, and the statistics of each head."""

    view: HeadsView
    statistics: dict[str, list[HeadStatistics]]  # statistics by part

    @property
    def nbytes(self) -> int:
        """The size of the weights."""
        parts = self.view.parts.values()
        return sum(part.tokens.weights.nbytes + part.words.weights.nbytes for part in parts)


def compute_heads(trained: Trained, text: str, target: str | None = None, *, max_tokens: int = MAX_TOKENS) -> AllHeads:
    """Compute the attention weights for a text, with an optional forced translation.

    Source and target may have at most `max_tokens` tokens.
    """
    check_length(trained, text, max_tokens)
    if target is None:
        view = trained.heads(text)
    elif isinstance(trained, TranslatorPredictor):
        check_length(trained, target, max_tokens)
        view = trained.heads(text, target)
    else:
        raise UsageError(f"{trained.name} is {trained.description}: only translators accept a target.")
    statistics = {name: part.statistics() for name, part in view.parts.items()}
    return AllHeads(replace(view, parts={name: _to_float32(part) for name, part in view.parts.items()}), statistics)


def _to_float32(part: Part) -> Part:
    tokens, words = (maps._replace(weights=maps.weights.astype(np.float32)) for maps in (part.tokens, part.words))
    return replace(part, tokens=tokens, words=words)


def compute_alignment(
    trained: Trained, text: str, target: str | None = None, *, max_tokens: int = MAX_TOKENS
) -> AlignmentView | AllHeads:
    """Compute the source–target attention of a translator or denoiser, with all heads of a Transformer."""
    if not isinstance(trained, TranslatorPredictor | DenoiserPredictor):
        raise UsageError(
            f"{trained.name} is {trained.description} without an alignment. Choose a translator or denoiser."
        )
    if isinstance(trained, DenoiserPredictor) or isinstance(trained.model, Transformer):
        return compute_heads(trained, text, target, max_tokens=max_tokens)
    for side in (text, target):
        check_length(trained, side or "", max_tokens)
    return trained.attention(text, target)


def check_length(trained: Trained, text: str, max_tokens: int = MAX_TOKENS) -> None:
    """Reject a text with more tokens than a heat map can show."""
    if (count := len(trained.tokenizer.encode(text)) + 1) > max_tokens:
        raise UsageError(
            f"The text has {count:,} tokens including END; at most {max_tokens} can be shown. Shorten the text."
        )


def describe_output(view: AlignmentView | HeadsView) -> dict[str, object]:
    """Return the source, the output with its log-probability, and notes."""
    names = ("source", "text", "given", "finished", "notes")
    return {**{name: getattr(view, name) for name in names}, "logProb": view.log_prob}


# --- alignment --------------------------------------------------------------------------------------------------------


def _has_cross_attention(model: JsonObject) -> bool:
    if model.get("kind") == "image-to-text":
        seq2seq = model.get("seq2seq") or {}
        return _has_cross_attention({"kind": "transformer", **seq2seq} if isinstance(seq2seq, dict) else {})
    if model.get("kind") == "recurrent-seq2seq":
        return model.get("attention", {}) is not None  # null disables attention, which is enabled by default
    return MODELS.base(model.get("kind")) == "transformer"


alignment_view = View("alignment", "Alignment", _has_cross_attention)


class MapRequest(TextRequest):
    """The text of an attention map, and the labels of the map."""

    tokens: bool = False  # whether labels are tokens of the model instead of words
    end: bool = True  # whether to include END


class AlignmentRequest(MapRequest):
    """A source–target attention map."""

    # Layer of a Transformer; None means the layer with the best alignment
    layer: int | None = Field(None, ge=1, le=1000)
    head: int | None = Field(None, ge=1, le=1000)  # None means the mean over the heads


@alignment_view.post()
def alignment(body: AlignmentRequest, run: OpenRun) -> Response:
    """Return the attention weights over the source for each target word."""
    text, target = body.text.strip(), body.forced_target
    # The cache key equals that of `heads`, so that both views share the computation.
    attention = run.get_or_compute(("attention", text, target), lambda: compute_alignment(run.trained, text, target))
    if isinstance(attention, AlignmentView):
        view: AlignmentView | HeadsView = attention
        grid = attention.grid(tokens=body.tokens, end=body.end)
        head: dict[str, object] = {"layers": 0, "heads": 0, "layer": None, "head": None, "title": "attention"}
    else:
        view, part = attention.view, attention.view.cross
        grid = part.grid(body.layer, body.head, tokens=body.tokens, end=body.end)
        head = {"layers": part.layers, "heads": part.heads, **_describe_head(part, body.layer, body.head)}
    meta = {"rows": grid.rows, "columns": grid.columns, "axes": grid.axes, **head}
    return pack_arrays({**describe_output(view), **meta}, map=pack_float16(grid.weights))


def _describe_head(part: Part, layer: int | None, head: int | None) -> dict[str, object]:
    return {"layer": part.layer(layer), "head": head, "title": part.title(layer, head)}


# --- self-attention ---------------------------------------------------------------------------------------------------

TRANSFORMER_KINDS = ("transformer", "gpt", "bert", "electra")
heads_view = View("heads", "Self-attention", lambda model: encoder_kind(model) in TRANSFORMER_KINDS)


class HeadsRequest(MapRequest):
    """All heads of a part."""

    part: Literal["encoder", "decoder", "cross"] | None = None


class HeadRequest(HeadsRequest):
    """One head of a part."""

    layer: int | None = Field(None, ge=1, le=1000)
    head: int | None = Field(None, ge=1, le=1000)  # None means the mean over the heads


@heads_view.post()
def heads(body: HeadsRequest, run: OpenRun) -> Response:
    """Return a description of the output, the parts with heads, and thumbnails of all heads of one part.

    The last thumbnail of each layer is the mean over its heads.
    """
    attention, part = _compute_part(body, run)
    maps = part.maps(tokens=body.tokens, end=body.end)
    meta = {
        **describe_output(attention.view),
        "outputKind": attention.view.output_kind,
        "parts": [
            {
                "name": other.name,
                "title": NAMES[other.name],
                "layers": other.layers,
                "heads": other.heads,
                "defaultLayer": other.default_layer,
            }
            for other in attention.view.parts.values()
        ],
        "part": part.name,
        "axes": maps.axes,
        "rows": maps.rows,
        "columns": maps.columns,
        "endName": part.tokens.columns[0 if part.name == "decoder" else -1],
        "statistics": attention.statistics[part.name],
    }
    small = thumbnails(np.concatenate([maps.weights, maps.weights.mean(axis=1, keepdims=True)], axis=1))
    return pack_arrays(meta, grid=pack_uint8(small, low=0.0, high=float(small.max())))


@heads_view.post("/map")
def one_map(body: HeadRequest, run: OpenRun) -> Response:
    """Return the attention map of one head, or the mean over the heads of a layer."""
    _, part = _compute_part(body, run)
    grid = part.grid(body.layer, body.head, tokens=body.tokens, end=body.end)
    return pack_arrays(_describe_head(part, body.layer, body.head), map=pack_float16(grid.weights))


def _compute_part(body: HeadsRequest, run: OpenRun) -> tuple[AllHeads, Part]:
    """Return the cached attention weights of a text, and the requested part (default: the first part)."""
    text, target = body.text.strip(), body.forced_target
    attention: AllHeads | AlignmentView = run.get_or_compute(
        ("attention", text, target), lambda: compute_heads(run.trained, text, target)
    )
    if isinstance(attention, AlignmentView):  # this result was cached by the view "Alignment"
        raise UsageError(f"{run.name} has attention, but no heads. Choose a Transformer.")
    return attention, attention.view.part(body.part or next(iter(attention.view.parts)))


def thumbnails(weights: Array, max_size: int = THUMBNAIL_SIZE) -> Array:
    """Shrink maps (…, rows, columns) by max pooling to at most `max_size` cells per side.

    This keeps thin lines visible.
    """
    for axis in (-2, -1):
        size = weights.shape[axis]
        if size > max_size:
            weights = np.maximum.reduceat(weights, np.arange(max_size) * size // max_size, axis=axis)
    return weights
