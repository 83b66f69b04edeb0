"""Texts with gaps, written [MASK], as a masked language model reads them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from seqloom.core.specials import MASK_TEXT, Specials
from seqloom.text.base import Tokenizer
from seqloom.text.bytepair import BytePair
from seqloom.text.imported import Imported
from seqloom.text.spans import Span, token_spans
from seqloom.text.words import Words


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
        spelled = part.removesuffix(" ") if masked and _of_bytes(tokenizer) else part
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


def with_gaps(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Tokens as a text, [MASK] for each that is not the tokenizer's: `read_gaps` reads it again as it was, unless its
    tokens are characters or a word is cut in two."""
    shown = ""
    for gap, run in groupby(ids, key=lambda token: token >= len(tokenizer)):
        tokens = list(run)
        for part in [MASK_TEXT] * len(tokens) if gap else [tokenizer.decode(tokens)]:
            joined = not shown or shown[-1].isspace() or part[:1].isspace() or (not gap and not _apart(tokenizer))
            shown += part if joined else f" {part}"
    return shown


def told_after(tokenizer: Tokenizer, text: str, token: int) -> str:
    """A text and the token that is told after it. A piece that goes on with a word (##ing) is joined to it."""
    model = tokenizer.file["model"] if isinstance(tokenizer, Imported) else {}
    mark, piece = model.get("continuing_subword_prefix"), tokenizer.decode([token])
    if mark and model.get("type") == "WordPiece" and piece.startswith(mark):
        return text.rstrip() + piece.removeprefix(mark)
    return text + piece


def _of_bytes(tokenizer: Tokenizer) -> bool:
    return isinstance(tokenizer, BytePair) or (isinstance(tokenizer, Imported) and tokenizer.of_bytes)


def _apart(tokenizer: Tokenizer) -> bool:
    """Whether what follows a mask is a word of its own, whose tokens do not say so."""
    return isinstance(tokenizer, Words)
