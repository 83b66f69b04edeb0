"""The base of all tokenizers, how they are saved, and how long texts are cut.

Ids are 0 … len - 1. Id 0 is END, `</s>`: it ends a document, and it is the context before a
document's first token. No text encodes to it. Kinds that cannot spell everything keep id 1 for
`<unk>`.

A tokenizer keeps up to a hundred bytes for each byte of a text while it encodes it, so a text of
many megabytes is encoded a piece at a time. A cut lies between a character that is not white space
and a space or line break. No word, and no pre-token of the tokenizers that are cut this way, spans
such a cut, and each of them reads what follows it the same with or without the text before it. So
the ids of the pieces, joined, are the ids of the whole text.
"""

import codecs
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Self

from seqloom.core import END
from seqloom.core.errors import CheckpointError, DataError, UsageError
from seqloom.core.progress import track

if TYPE_CHECKING:
    from torch import Tensor

Span = tuple[int, int]  # characters of a text, from the first to the one after the last
END_TEXT = "</s>"
UNKNOWN, UNKNOWN_TEXT = 1, "<unk>"
FORMAT, VERSION = "seqloom-tokenizer", 1
PIECE = 1 << 16  # characters of a piece; one without white space may be longer
BATCH = 1024  # texts, or pieces of texts, …
BATCH_CHARACTERS = 1 << 20  # … and characters, encoded in one call
_AT_LINES_TOO = re.compile(r"(?<=\S)[ \n]")
_AT_SPACES = re.compile(r"(?<=\S) ")
SENTENCE_ENDS = re.compile(
    r"""(?:[.!?…]['"”’)\]]*(?=\s))  # . " ' ) then white space
    |   (?:[。！？][”’」』）]*)        # no space stands after these
    |   (?<=\S)(?=\s*\n\s*\n)      # a blank line
    """,
    re.VERBOSE,
)


class StreamDecoder(ABC):
    """Text piece by piece: the pieces read so far, and `flush`, join to what `decode` gives for the same ids.

    To continue a prompt, `read` the prompt's ids first and throw the result away: what follows then
    begins with the space, or the rest of a character, that belongs there.
    """

    @abstractmethod
    def push(self, token: int) -> str:
        """The text that is certain now that this id has come."""

    def flush(self) -> str:
        """What was held back in the hope of more."""
        return ""

    def read(self, tokens: Iterable[int]) -> str:
        return "".join(map(self.push, tokens))


class ByteStream(StreamDecoder):
    """Holds bytes back until they make a character; bytes that never will become U+FFFD."""

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        """`spell` gives the bytes that a token adds to a text."""
        self._spell, self._decoder = spell, codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._spell(token), final=token == END)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class Tokenizer(ABC):
    """Text to ids and back. Trained once, from the training split alone; never changed afterwards."""

    kind: ClassVar[str]
    end: ClassVar[int] = END
    unknown: int | None = None
    padding: int | None = None  # the token that rows are filled up with, where it is known and not END
    begins_words_with_space: bool = False  # whether a word's first token has the space before it
    separates_words: ClassVar[bool] = False  # whether any two tokens are words with a space between

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text, with nothing added: a literal `</s>` in it is spelled like any other text."""

    def encode_batch(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """The ids of many texts, in their order."""
        tokens: list[int] = []
        for ids, is_last in self.encode_pieces(texts):
            tokens.extend(ids)
            if is_last:
                yield tokens
                tokens = []

    def encode_pieces(self, texts: Iterable[str]) -> Iterator[tuple[list[int], bool]]:
        """Yield the ids of texts a piece at a time, in their order, and whether a piece is the last of its text."""
        last: deque[bool] = deque()

        def pieces() -> Iterator[str]:
            for text in texts:
                for piece, is_last in mark_last(self.cut(text)):
                    last.append(is_last)
                    yield piece

        for ids in self._encode_all(track(pieces(), "tokenizing", texts)):
            yield ids, last.popleft()

    def cut(self, text: str) -> Iterable[str]:
        """Cut a long text into pieces whose ids, joined, are the ids of the text; by default it stays whole."""
        return [text]

    def _encode_all(self, pieces: Iterable[str]) -> Iterable[list[int]]:
        """The ids of each piece, in their order; a library that encodes many at once is called here."""
        return map(self.encode, pieces)

    @property
    def of_targets(self) -> "Tokenizer":
        """The tokenizer as it reads what a source is translated into: the same, unless the two languages have their
        own."""
        return self

    @property
    def languages(self) -> dict[str, str]:
        """The `source` and `target` language of a translator's tokenizer, where both are known."""
        return {}

    @property
    def banned(self) -> tuple[int, ...]:
        """Tokens that no search should say."""
        return () if self.unknown is None else (self.unknown,)

    @abstractmethod
    def stream(self) -> StreamDecoder:
        """A decoder that stands at the beginning of a document."""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of these ids. END is not shown; what follows it begins anew, as a document does."""
        decoder = self.stream()
        return decoder.read(tokens) + decoder.flush()

    @abstractmethod
    def token(self, token: int) -> str:
        """One id as it is shown to people."""

    def append_token(self, text: str, token: int) -> str:
        """Return a text and the token after it. A piece that continues a word (##ing) is joined to it."""
        return text + self.decode([token])

    def spans(self, text: str) -> list[Span]:
        """Return the part of `text` that each token of `encode(text)` stands for.

        A byte-pair token may be a part of a character. The parts of one character all stand where
        that character stands, so spans may overlap; they never go backwards.
        """
        return self.decoded_spans(self.encode(text))

    def decoded_spans(self, ids: Sequence[int]) -> list[Span]:
        """Return the part of `decode(ids)` that each of these tokens stands for. END stands for nothing.

        For tokens that a model made: another spelling of the text than `encode` would choose,
        perhaps.
        """
        decoder, spans, start = self.stream(), list[Span](), 0
        whole = 0  # where the tokens that are decoded anew begin: before it, no character was left half said
        for position, token in enumerate(ids):
            end = start + len(decoder.push(token))
            again = self.stream()
            again.read(ids[whole : position + 1])
            half = bool(again.flush())  # the token ends within a character, which then belongs to it as well
            spans.append((start, end + half))
            start, whole = end, whole if half else position + 1
        return spans

    def unknown_pieces(self, text: str) -> list[str]:
        """What the vocabulary cannot spell, each piece once, in the order of the text."""
        return []

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """All that was learned, as JSON values."""

    @classmethod
    @abstractmethod
    def from_content(cls, content: Mapping[str, Any]) -> Self:
        """The tokenizer that gave this content; ValueError, TypeError or KeyError if nothing can have."""

    def fingerprint(self) -> str:
        return digest(self.kind, self.content())

    def to_json(self) -> dict[str, Any]:
        content = self.content()
        head = {"format": FORMAT, "version": VERSION, "kind": self.kind, "sha256": digest(self.kind, content)}
        return {**head, "content": content}


class ForeignTokenizer(Tokenizer):
    """Base class of tokenizers from elsewhere, whose ids are put in our order: END first.

    order[i]   their id of our row i,        i = 0 … rows − 1
    """

    rows: int  # tokens that have a vector in the model
    order: list[int]
    source: ClassVar[str]  # what the tokenizer belongs to

    @classmethod
    def train(cls, config: object, texts: Iterable[str]) -> Self:
        raise UsageError(
            f"tokenizer.kind={cls.kind} is the tokenizer of {cls.source} and cannot be trained. Import one with "
            "`seqloom import-hf` and begin with it (init.from=RUN), or choose another tokenizer.kind."
        )

    @cached_property
    def _our_ids(self) -> dict[int, int]:
        return {theirs: ours for ours, theirs in enumerate(self.order)}

    def theirs(self, tokens: Iterable[int]) -> list[int]:
        """Return our ids, those of special tokens included, as theirs."""
        listed = list(tokens)
        check_ids(listed, self.rows)
        return [self.order[token] for token in listed]

    def ours(self, tokens: Iterable[int]) -> list[int]:
        """Return their ids as ours."""
        listed = list(tokens)
        check_ids(listed, self.rows)
        return [self._our_ids[token] for token in listed]


def digest(kind: str, content: Mapping[str, Any]) -> str:
    """The same for the same content, however its JSON was laid out."""
    text = json.dumps([kind, content], ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def open_json(value: Any, kinds: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """The kind and the content of a tokenizer's JSON, or CheckpointError with what is wrong with it."""
    if not isinstance(value, Mapping) or value.get("format") != FORMAT:
        raise CheckpointError("This is not a seqloom tokenizer: its JSON must say format: seqloom-tokenizer.")
    version, kind, content = value.get("version"), value.get("kind"), value.get("content")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CheckpointError(f"The tokenizer is damaged: its version must be a whole number, got {version!r}.")
    if version > VERSION:
        raise CheckpointError(
            f"The tokenizer has format version {version}; this seqloom reads up to {VERSION}. Install a newer seqloom."
        )
    if not isinstance(kind, str) or kind not in kinds:
        raise CheckpointError(f"The tokenizer's kind must be one of {', '.join(kinds)}, got {kind!r}.")
    if not isinstance(content, Mapping) or value.get("sha256") != digest(kind, content):
        raise CheckpointError("The tokenizer is damaged: its content does not match its checksum. Restore the file.")
    return kind, content


def cut_at_spaces(text: str, size: int = PIECE, line_breaks: bool = True) -> Iterator[str]:
    """Cut a text after `size` characters or a few more, before white space; joined, the pieces are the text.

    A text that is short enough is one piece, an empty one too. Without `line_breaks`, cuts lie
    before spaces only.
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


def split_sentences(document: str) -> list[str]:
    """Cut a document where its sentences end, as well as its marks show them; joined, they are the document.

    A sentence ends after . ! ? … and what closes a quotation or a bracket, where white space
    follows, and at a blank line: headings stand by themselves. Each begins with the white space
    before it.
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


def text_list(value: object) -> list[str]:
    """A list of strings out of JSON, or ValueError."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("a list of strings is missing")
    return value


def check_ids(tokens: Sequence[int], size: int) -> None:
    """Python would take -1 for the last token; an id outside the vocabulary is always a mistake."""
    for token in tokens:
        if not 0 <= token < size:
            raise IndexError(f"token ids go from 0 to {size - 1}, got {token}")


def require_text(found: object) -> None:
    """Raise `DataError` if nothing was found to learn from."""
    if not found:
        raise DataError("A tokenizer needs text to learn from: the training split holds none.")


def encode_documents(tokenizer: Tokenizer, documents: Iterable[str]) -> "Tensor":
    """The stream a language model reads (N,): the tokens of each document, each followed by END."""
    import numpy  # here, so that tokenizers can be listed and configured without waiting for torch
    import torch

    encoded = tokenizer.encode_pieces(documents)
    ids = chain.from_iterable(chain(tokens, (END,) * is_last) for tokens, is_last in encoded)
    return torch.from_numpy(numpy.fromiter(ids, dtype=numpy.int64))
