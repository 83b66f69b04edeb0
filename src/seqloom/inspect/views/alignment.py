"""Where a translator looked while it translated, as plain arrays.

    view = alignment_view(seqloom.load("runs/quickstart-en-fr"), "Sunday, November 15, 2026")
    view.words.weights      (target words, source words): each row sums to 1

Row t of the weights is where the model looked when it produced target token t.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.core.errors import DataError, UsageError
from seqloom.evaluate.alignment import Word, hard_links, merge, to_pharaoh, words_of
from seqloom.inspect.capture import evaluating
from seqloom.text import END, Tokenizer
from seqloom.text.base import END_TEXT

Array = NDArray[np.floating[Any]]


class AxisTitles(NamedTuple):
    """What the rows and the columns of an attention map are."""

    row: str
    column: str

    def __str__(self) -> str:
        return f"rows: {self.row}; columns: {self.column}"


SELF_ATTENTION = AxisTitles("query (attends)", "key (attended to)")
# Position t of a decoder reads target token t - 1 and produces target token t. Alignments name it by what it produces.
CROSS_ATTENTION = AxisTitles("produces (target)", "key (source)")


class Grid(NamedTuple):
    """A heat map: target down the side, source across. Of self-attention, both are the same text."""

    target: list[str]
    source: list[str]
    weights: Array  # (target, source)
    axes: AxisTitles = CROSS_ATTENTION


@dataclass(frozen=True, eq=False)
class AlignmentView:
    source: str
    text: str  # the translation
    given: bool  # whether it was given, or else found
    finished: bool  # whether it came to its end; if not, END is not among its tokens
    log_prob: float  # of the translation, its end included
    tokens: Grid  # as the model reads and writes them; END last on both sides
    words: Grid  # the same by words
    notes: tuple[str, ...] = ()  # what a person should know

    def grid(self, *, tokens: bool = False, end: bool = True) -> Grid:
        """Without `end`, END is left out on both sides, unless the translation is nothing else. Rows stay as they are:
        what they lack of 1, END was given."""
        found = self.tokens if tokens else self.words
        target, source, weights, _ = found
        rows = len(target) - self.finished
        return found if end or not rows else Grid(target[:rows], source[:-1], weights[:rows, :-1])

    @property
    def links(self) -> str:
        """Each word of the translation and the one it looked at most, as 0-0 1-2: source place, target place."""
        rows = len(self.words.target) - self.finished
        found = hard_links(self.words.weights[:rows])
        return to_pharaoh(link for link in found if link[0] < len(self.words.source) - 1)  # not to END


def alignment_view(translator: Any, source: str, target: str | None = None, **options: Any) -> AlignmentView:
    """Let a translator translate a line, or say the given translation of it, and keep where it looked.

    `translator` is what `seqloom.load` gives for a translation run; `options` are those of its search (beam,
    max_length …). Dropout is off.
    """
    if not hasattr(translator.model, "attention"):
        raise _blind(translator)
    said = say(translator, source, target, **options)
    weights, log_prob = _force(translator.model, said)
    if weights is None:
        raise _blind(translator)
    tokens = Grid(said.target_tokens, said.source_tokens, weights)
    rows, columns = said.target_words, said.source_words
    words = Grid([word.text for word in rows], [word.text for word in columns], merge(weights, rows, columns))
    return AlignmentView(said.source, said.text, said.given, said.finished, log_prob, tokens, words, said.notes)


# --- a sentence and its translation, as a model has them --------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """What the model reads and what it says, or is made to say; END ends both, unless the translation was cut."""

    source: str
    text: str
    given: bool  # whether the translation was given, or else found
    finished: bool
    read: list[int]
    said: list[int]
    source_tokens: list[str]
    target_tokens: list[str]
    source_words: list[Word]  # and which tokens they are
    target_words: list[Word]
    notes: tuple[str, ...]

    def batch(self, model: Any) -> dict[str, Tensor]:
        """The pair as a model is taught it."""
        device = next(model.parameters()).device
        read, said = torch.tensor([self.read], device=device), torch.tensor([self.said], device=device)
        return {
            "source": read,
            "source_mask": torch.ones_like(read, dtype=torch.bool),
            "inputs": torch.cat([torch.full_like(said[:, :1], END), said[:, :-1]], dim=1),
            "targets": said,
            "target_mask": torch.ones_like(said, dtype=torch.bool),
        }


def say(translator: Any, source: str, target: str | None = None, **options: Any) -> Said:
    """Let a translator find a translation, or take the given one."""
    source, tokenizer = one_line(source, "text"), translator.tokenizer
    if target is None:
        (found,) = translator.translate([source], **options)
        ids, finished = found.candidates[0].ids, found.candidates[0].finished
        text, spans = tokenizer.decode(ids), tokenizer.decoded_spans(ids)
    else:
        text, finished = one_line(target, "translation"), True
        speaker = tokenizer.of_targets
        ids, spans = speaker.encode(text), speaker.spans(text)
    read, said = [*tokenizer.encode(source), END], [*ids, *[END] * finished]
    return Said(
        source,
        text,
        target is not None,
        finished,
        read,
        said,
        [tokenizer.token(token) for token in read],
        [tokenizer.token(token) for token in said],
        words_of(source, tokenizer.spans(source), END_TEXT),
        words_of(text, spans, END_TEXT if finished else None),
        _notes(tokenizer, source, target, finished),
    )


def _notes(tokenizer: Tokenizer, source: str, target: str | None, finished: bool) -> tuple[str, ...]:
    notes = [
        unknown_note(unknown, what)
        for what, reader, text in (("text", tokenizer, source), ("translation", tokenizer.of_targets, target or ""))
        if (unknown := reader.unknown_pieces(text))
    ]
    return (*notes, *([] if finished else ["the translation was cut at the longest allowed: the model did not end it"]))


def unknown_note(unknown: Sequence[str], what: str) -> str:
    more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
    return f"the vocabulary lacks {', '.join(map(repr, unknown[:8]))}{more} of the {what}: read as <unk>"


def one_line(text: str, what: str) -> str:
    """The text without white space at its ends, if it can be looked at."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise DataError(f"The {what} must be UTF-8, but this is not: {text!r}.")
    if not text.strip():
        raise UsageError(f"The {what} is empty: give at least one word.")
    return text.strip()


def _force(model: Any, said: Said) -> tuple[Array | None, float]:
    """Where the model looks (T, S) when it is made to say the target, and what it thinks of it: Σ log p."""
    batch = said.batch(model)
    with evaluating(model), torch.no_grad():
        weights, log_probs = model.attention(batch), model.target_log_probs(batch)
    found = None if weights is None else weights[0].double().cpu().numpy()
    return found, log_probs.double().sum().item()


def _blind(translator: Any) -> UsageError:
    return UsageError(
        f"{translator.name} has no attention to look at. Train a translator that has: model.attention.order=luong, say."
    )
