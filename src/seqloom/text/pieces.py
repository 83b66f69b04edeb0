"""Cutting texts: into sentences, and into pieces that can be encoded one by one.

A tokenizer keeps up to a hundred bytes for each byte of a text while it encodes it, so a text of many megabytes is
encoded a piece at a time. A cut lies between a character that is not white space and a space or line break. No word,
and no pre-token of the tokenizers that are cut this way, spans such a place, and each of them reads what follows it the
same with or without the text before it. So the ids of the pieces, joined, are the ids of the whole text.
"""

import re
from collections.abc import Iterable, Iterator

PIECE = 1 << 16  # characters of a piece; one without white space may be longer
BATCH = 1024  # texts, or pieces of texts, …
BATCH_CHARACTERS = 1 << 20  # … and characters, encoded in one call


def cut_at_spaces(text: str, size: int = PIECE, line_breaks: bool = True) -> Iterator[str]:
    """Cut a text after `size` characters or a few more, before white space; joined, the pieces are the text.

    A text that is short enough is one piece, an empty one too. Without `line_breaks`, cuts lie before spaces only.
    """
    place = _AT_LINES_TOO if line_breaks else _AT_SPACES
    start = 0
    while len(text) - start > size and (cut := place.search(text, start + size)):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:] if start else text


def batches(texts: Iterable[str], most: int = BATCH, characters: int = BATCH_CHARACTERS) -> Iterator[list[str]]:
    """Group texts for a library that encodes many at once: at most so many, and of so many characters in all."""
    batch: list[str] = []
    length = 0
    for text in texts:
        if batch and (len(batch) == most or length + len(text) > characters):
            yield batch
            batch, length = [], 0
        batch.append(text)
        length += len(text)
    if batch:
        yield batch


def mark_last(pieces: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield each piece and whether it is the last one."""
    remaining = iter(pieces)
    piece = next(remaining, "")
    for following in remaining:
        yield piece, False
        piece = following
    yield piece, True


_AT_LINES_TOO = re.compile(r"(?<=\S)[ \n]")
_AT_SPACES = re.compile(r"(?<=\S) ")


SENTENCE_ENDS = re.compile(
    r"""(?:[.!?…]['"”’)\]]*(?=\s))  # . " ' ) then white space
    |   (?:[。！？][”’」』）]*)        # no space stands after these
    |   (?<=\S)(?=\s*\n\s*\n)      # a blank line
    """,
    re.VERBOSE,
)


def split_sentences(document: str) -> list[str]:
    """Cut a document where its sentences end, as well as its marks show them; joined, they are the document.

    A sentence ends after . ! ? … and what closes a quotation or a bracket, where white space follows, and at a blank
    line: headings stand by themselves. Each begins with the white space before it.
    """
    found: list[str] = []
    start = 0
    for match in SENTENCE_ENDS.finditer(document):
        if document[start : match.end()].strip():
            found.append(document[start : match.end()])
            start = match.end()
    rest = document[start:]
    if rest.strip() or not found:
        found.append(rest)
    else:
        found[-1] += rest
    return [sentence for sentence in found if sentence.strip()]
