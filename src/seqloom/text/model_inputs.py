"""Model inputs: texts with special tokens, and texts with masked tokens.

`seqloom.core.tokens` defines the special tokens. A row of one or two texts has one of these forms:

bert     [CLS] a [SEP]          [CLS] a [SEP] b [SEP]         segments 0 … 0 1 … 1; a [SEP] has the segment before it
causal   END a [CLS]            END a [SEP] b [CLS]           [CLS] comes last, so that its state depends on all tokens
ends     END a END              END a END b END               for models that were trained on documents with END
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
    """One or two texts with special tokens."""

    tokens: list[int]
    segments: list[int]  # index of the text that contains each token: 0 or 1
    starts: tuple[int, ...]  # the position of the first token of each text
    cls_position: int  # the position of [CLS], or of its substitute


def frame_texts(specials: Specials, form: Form, first: Sequence[int], second: Sequence[int] | None = None) -> Row:
    """Add the special tokens of a bidirectional model (forms bert and ends) or of a causal model."""
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
    """Return the number of special tokens in a row. The number is the same in every form."""
    return 1 + texts


def truncated_lengths(lengths: Sequence[int], room: int) -> list[int]:
    """Return the lengths of texts that are truncated to `room` tokens in total.

    The longest texts are truncated first.
    """
    remaining, limit, extra = room, 0, 0
    for index, length in enumerate(sorted(lengths)):
        limit, extra = divmod(remaining, len(lengths) - index)  # applies to each of the longer texts
        if length > limit:
            break
        remaining -= length
    else:
        return list(lengths)
    longer = [index for index, length in enumerate(lengths) if length > limit]
    one_more = longer[len(longer) - extra :]
    return [min(length, limit + (index in one_more)) for index, length in enumerate(lengths)]


# --- texts with masks -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gaps:
    ids: list[int]  # token ids, including the ids of masks
    spans: list[Span]  # spans of the tokens in the text
    masks: list[int]  # positions of the masks
    unknown: tuple[str, ...]  # parts of the text that are not in the vocabulary


def read_gaps(tokenizer: Tokenizer, specials: Specials, text: str) -> Gaps:
    """Encode a text with [MASK]. If word tokens include the preceding space, a mask also includes it."""
    ids: list[int] = []
    spans: list[Span] = []
    masks: list[int] = []
    unknown: list[str] = []
    start, (*before, last) = 0, text.split(MASK_TEXT)
    for part, is_masked in [*((part, True) for part in before), (last, False)]:
        encoded = part.removesuffix(" ") if is_masked and tokenizer.begins_words_with_space else part
        ids += tokenizer.encode(encoded)
        spans += [(start + a, start + b) for a, b in tokenizer.spans(encoded)]
        unknown += tokenizer.unknown_pieces(encoded)
        end = start + len(part) + len(MASK_TEXT)
        if is_masked:
            masks.append(len(ids))
            ids.append(specials.mask)
            spans.append((start + len(encoded), end))
        start = end
    return Gaps(ids, spans, masks, tuple(dict.fromkeys(unknown)))


def decode_gaps(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Decode tokens, with [MASK] for ids outside the vocabulary.

    This function inverts `read_gaps`, unless tokens are characters or a word is divided.
    """
    text = ""
    for is_gap, group in groupby(ids, key=lambda token: token >= len(tokenizer)):
        tokens = list(group)
        for part in [MASK_TEXT] * len(tokens) if is_gap else [tokenizer.decode(tokens)]:
            has_space = not text or text[-1].isspace() or part[:1].isspace()
            text += part if has_space or not (is_gap or tokenizer.separates_words) else f" {part}"
    return text
