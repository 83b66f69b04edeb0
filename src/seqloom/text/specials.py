"""The forms in which texts stand between special tokens; `seqloom.core.specials` says which those are.

bert     [CLS] a [SEP]          [CLS] a [SEP] b [SEP]         segments 0 … 0 1 … 1, each [SEP] with what it ends
causal   END a [CLS]            END a [SEP] b [CLS]           the sum comes last, where all has been read
ends     END a END              END a END b END               as a model reads that learned from documents so
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from seqloom.core.specials import CLASSIFY_TEXT, EXTRA, MASK_TEXT, SEPARATE_TEXT, Specials
from seqloom.text.base import END

__all__ = [
    "CLASSIFY_TEXT",
    "EXTRA",
    "MASK_TEXT",
    "SEPARATE_TEXT",
    "Form",
    "Row",
    "Specials",
    "frame_length",
    "framed",
    "shortened",
]

Form = Literal["bert", "causal", "ends"]


@dataclass(frozen=True)
class Row:
    """One text or two, as a model reads them."""

    tokens: list[int]
    segments: list[int]  # which of the two texts each token belongs to; of the same length
    starts: tuple[int, ...]  # where each text begins in `tokens`
    summary: int  # where [CLS] stands, or what there is in its place


def framed(specials: Specials, form: Form, first: Sequence[int], second: Sequence[int] | None = None) -> Row:
    """The form of a model that reads both ways (bert, ends), or of one that reads from left to right (causal)."""
    if form == "bert":
        return _between(specials.classify, specials.separate, first, second)
    if form == "ends":
        return _between(END, END, first, second)
    return _causal(specials, first, second)


def frame_length(form: Form, texts: int) -> int:
    """How many tokens the form itself takes, whichever it is, of one text or of two."""
    return 1 + texts


def _between(before: int, after: int, first: Sequence[int], second: Sequence[int] | None) -> Row:
    """One token before all, one after each text; summed up at the first."""
    tokens = [before, *first, after]
    segments = [0] * len(tokens)
    if second is None:
        return Row(tokens, segments, (1,), 0)
    starts = (1, len(tokens))
    tokens += [*second, after]
    return Row(tokens, segments + [1] * (len(second) + 1), starts, 0)


def _causal(specials: Specials, first: Sequence[int], second: Sequence[int] | None) -> Row:
    if second is None:
        tokens = [END, *first, specials.classify]
        return Row(tokens, [0] * len(tokens), (1,), len(tokens) - 1)
    tokens = [END, *first, specials.separate, *second, specials.classify]
    segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    return Row(tokens, segments, (1, len(first) + 2), len(tokens) - 1)


def shortened(lengths: Sequence[int], room: int) -> list[int]:
    """How many tokens of each text are kept so that together they have at most `room`: the longest give way first."""
    left, level, more = room, 0, 0
    for place, length in enumerate(sorted(lengths)):
        level, more = divmod(left, len(lengths) - place)  # what each of the others may have
        if length > level:
            break
        left -= length
    else:
        return list(lengths)
    longer = [place for place, length in enumerate(lengths) if length > level]
    one_more = longer[len(longer) - more :]
    return [min(length, level + (place in one_more)) for place, length in enumerate(lengths)]
