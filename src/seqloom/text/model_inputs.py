"""Rows of tokens as models read them: texts between special tokens, and texts with masked tokens.

`seqloom.core.tokens` has the special tokens. A row of one text or of two has one of these forms:

bert     [CLS] a [SEP]          [CLS] a [SEP] b [SEP]         segments 0 … 0 1 … 1, each [SEP] with what it ends
causal   END a [CLS]            END a [SEP] b [CLS]           the sum comes last, where all has been read
ends     END a END              END a END b END               as a model reads that learned from documents so
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from seqloom.core import END
from seqloom.core.tokens import MASK_TEXT, Specials
from seqloom.text.base import Span, Tokenizer

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
    before, between, after = {
        "bert": (specials.classify, specials.separate, specials.separate),
        "ends": (END, END, END),
        "causal": (END, specials.separate, specials.classify),
    }[form]
    if second is None:
        tokens, segments = [before, *first, after], [0] * (len(first) + 2)
    else:
        tokens = [before, *first, between, *second, after]
        segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    starts = (1,) if second is None else (1, len(first) + 2)
    return Row(tokens, segments, starts, len(tokens) - 1 if form == "causal" else 0)


def frame_length(texts: int) -> int:
    """The number of special tokens in a row of one text or of two; it is the same in every form."""
    return 1 + texts


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


# --- texts with gaps --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gaps:
    ids: list[int]  # of its tokens; that of the mask where the text has one
    spans: list[Span]  # where in the text each of them stands
    masks: list[int]  # which of them are masks
    unknown: tuple[str, ...]  # what the vocabulary cannot spell


def read_gaps(tokenizer: Tokenizer, specials: Specials, text: str) -> Gaps:
    """Byte-pair words begin with the space before them: one before a mask is the mask's own."""
    ids: list[int] = []
    spans: list[Span] = []
    masks: list[int] = []
    unknown: list[str] = []
    start, (*before, last) = 0, text.split(MASK_TEXT)
    for part, masked in [*((part, True) for part in before), (last, False)]:
        spelled = part.removesuffix(" ") if masked and tokenizer.begins_words_with_space else part
        ids += tokenizer.encode(spelled)
        spans += [(start + a, start + b) for a, b in tokenizer.spans(spelled)]
        unknown += tokenizer.unknown_pieces(spelled)
        end = start + len(part) + len(MASK_TEXT)
        if masked:
            masks.append(len(ids))
            ids.append(specials.mask)
            spans.append((start + len(spelled), end))
        start = end
    return Gaps(ids, spans, masks, tuple(dict.fromkeys(unknown)))


def with_gaps(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Tokens as a text, [MASK] for each that is not the tokenizer's: `read_gaps` reads it again as it was, unless its
    tokens are characters or a word is cut in two."""
    shown = ""
    for gap, run in groupby(ids, key=lambda token: token >= len(tokenizer)):
        tokens = list(run)
        for part in [MASK_TEXT] * len(tokens) if gap else [tokenizer.decode(tokens)]:
            has_space = not shown or shown[-1].isspace() or part[:1].isspace()
            shown += part if has_space or not (gap or tokenizer.separates_words) else f" {part}"
    return shown
