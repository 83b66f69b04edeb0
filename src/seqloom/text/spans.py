"""Where in a text its tokens stand: characters, from the first to the one after the last.

A byte-pair token may be a part of a character. The parts of one character all stand where that character stands, so
spans may overlap; they never go backwards.
"""

import unicodedata
from collections.abc import Sequence

from seqloom.text.base import Tokenizer
from seqloom.text.imported import Imported
from seqloom.text.sentencepieces import SentencePieces
from seqloom.text.words import Words

Span = tuple[int, int]


def token_spans(tokenizer: Tokenizer, text: str) -> list[Span]:
    """The part of `text` that each token of `tokenizer.encode(text)` stands for."""
    if isinstance(tokenizer, Words | SentencePieces):  # decoding does not give back spaces, capitals, rare words
        return tokenizer.spans(text)
    if isinstance(tokenizer, Imported):
        return with_marks(text, tokenizer.spans(text))
    return decoded_spans(tokenizer, tokenizer.encode(text))


def with_marks(text: str, spans: Sequence[Span]) -> list[Span]:
    """Spans of tokens whose tokenizer reads letters without their marks: an accent that is a character of its own, or
    the sign of a vowel, then stands in no token. It belongs to the one before it."""
    found: list[Span] = []
    begins = [*(start for start, _ in spans), len(text)]
    for (start, end), following in zip(spans, begins[1:], strict=True):
        while end < following and unicodedata.category(text[end]).startswith("M"):
            end += 1
        found.append((start, end))
    return found


def decoded_spans(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Span]:
    """The part of `tokenizer.decode(ids)` that each of these tokens stands for. END stands for nothing.

    For tokens that a model made: another spelling of the text than `encode` would choose, perhaps.
    """
    decoder, spans, start = tokenizer.stream(), [], 0
    whole = 0  # where the tokens that are decoded anew begin: before it, no character was left half said
    for place, token in enumerate(ids):
        end = start + len(decoder.push(token))
        again = tokenizer.stream()
        again.read(ids[whole : place + 1])
        half = bool(again.flush())  # the token ends within a character, which then belongs to it as well
        spans.append((start, end + half))
        start, whole = end, whole if half else place + 1
    return spans
