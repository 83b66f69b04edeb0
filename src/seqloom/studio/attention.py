"""Attention as a page shows it: kept small while somebody looks at it, one head at a time, thumbnails of all.

    kept = Looks.of(trained, "Sunday, November 15, 2026")
    kept.view.cross.grid(2, 3)        layer 2, head 3, by words
    thumbnails(kept.view.cross.maps().weights)

`alignment_of` finds the source × target maps of any model that has them: the heads of a Transformer's cross-attention,
a denoiser's too, or the one attention of a recurrent translator.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seqloom.core.errors import UsageError
from seqloom.inspect.values import Array
from seqloom.inspect.views.attention import AlignmentView, AttentionMap, Habit, HeadsView, Part

THUMBNAIL = 64  # cells a side, at most


@dataclass(frozen=True, eq=False)
class Looks:
    """Where all heads looked, in the model's own single precision, and what each of them does."""

    view: HeadsView
    habits: dict[str, list[Habit]]  # by part

    @classmethod
    def of(cls, trained: Any, text: str, target: str | None = None, *, most: int | None = None) -> "Looks":
        """Let a model read a text, or say the given translation of it. No side may have more than `most` tokens."""
        view = seen_by(trained, text, target, most)
        habits = {name: part.habits() for name, part in view.parts.items()}
        return cls(replace(view, parts={name: _single(part) for name, part in view.parts.items()}), habits)

    @property
    def nbytes(self) -> int:
        """What it takes to keep it."""
        maps = [found for part in self.view.parts.values() for found in (part.tokens, part.words)]
        return sum(found.weights.nbytes for found in maps)


def seen_by(trained: Any, text: str, target: str | None = None, most: int | None = None) -> HeadsView:
    check_length(trained, text, most)
    if target is None:
        view: HeadsView = trained.heads(text)
        return view
    if not hasattr(trained, "translate"):
        raise UsageError(f"{trained.name} is {trained.what}: only a translator can be given a translation.")
    check_length(trained, target, most)
    given: HeadsView = trained.heads(text, target)
    return given


def alignment_of(
    trained: Any, text: str, target: str | None = None, *, most: int | None = None
) -> AlignmentView | Looks:
    """The source × target maps of a model: of every head where it has heads, or else of its one attention."""
    if hasattr(trained.model, "attentions"):
        found = Looks.of(trained, text, target, most=most)
        found.view.part("cross")  # refuses a model that reads and does not say
        return found
    if not hasattr(trained, "attention"):
        raise UsageError(f"{trained.name} is {trained.what}: it has no source and target to align.")
    for one in (text, target):
        check_length(trained, one or "", most)
    view: AlignmentView = trained.attention(text, target)
    return view


def described_sentence(found: AlignmentView | Looks) -> dict[str, Any]:
    """What was read, what was said of it, and how sure the model was."""
    view = found.view if isinstance(found, Looks) else found
    return {
        "source": view.source,
        "text": view.text,
        "given": view.given,
        "finished": view.finished,
        "logProb": view.log_prob,
        "notes": view.notes,
    }


def check_length(trained: Any, text: str, most: int | None) -> None:
    """Every token looks at every other: refuse what would be too large to draw, before it is computed."""
    if most is not None and (count := len(trained.tokenizer.encode(text)) + 1) > most:
        raise UsageError(f"The text has {count:,} tokens, its end included, and {most} can be shown: shorten it.")


def thumbnails(weights: Array, most: int = THUMBNAIL) -> Array:
    """Maps (…, rows, columns) with at most so many cells a side. Of cells that fall together the largest is seen, so
    that a thin line stays a line."""
    for axis in (-2, -1):
        weights = _pooled(weights, axis, most)
    return weights


def _pooled(weights: Array, axis: int, most: int) -> Array:
    size = weights.shape[axis]
    if size <= most:
        return weights
    begins = np.arange(most) * size // most
    pooled: Array = np.maximum.reduceat(weights, begins, axis=axis)
    return pooled


def _single(part: Part) -> Part:
    return replace(part, tokens=_halved(part.tokens), words=_halved(part.words))


def _halved(maps: AttentionMap) -> AttentionMap:
    return maps._replace(weights=maps.weights.astype(np.float32))
