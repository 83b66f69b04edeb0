"""Texts with gaps, written [MASK], as a masked language model reads them."""

from dataclasses import dataclass

from seqloom.core.specials import MASK_TEXT, Specials
from seqloom.text.base import Tokenizer
from seqloom.text.bytepair import BytePair
from seqloom.text.spans import Span, token_spans


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
        spelled = part.removesuffix(" ") if masked and isinstance(tokenizer, BytePair) else part
        ids += tokenizer.encode(spelled)
        spans += [(start + a, start + b) for a, b in token_spans(tokenizer, spelled)]
        unknown += tokenizer.unknown_pieces(spelled)
        end = start + len(part) + len(MASK_TEXT)
        if masked:
            masks.append(len(ids))
            ids.append(specials.mask)
            spans.append((start + len(spelled), end))
        start = end
    return Gaps(ids, spans, masks, tuple(dict.fromkeys(unknown)))
