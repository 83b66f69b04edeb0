"""Base classes of tokenizers, the JSON format of saved tokenizers, and functions that split long texts.

Ids are 0 … len - 1. Id 0 is the end token, END (`</s>`). END follows the last token of a document and precedes the
first token. No text is encoded to END. Tokenizers with a limited vocabulary use id 1 for `<unk>`.

While encoding, a tokenizer needs up to a hundred bytes for each byte of text, so long texts are encoded in pieces. A
text is divided before a space or line break that follows another character. No word or pre-token of these tokenizers
crosses such a boundary or depends on the text before it. The ids of the text are therefore the concatenated ids of the
pieces.
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

from seqloom.core import END, Json
from seqloom.core.errors import CheckpointError, DataError, UsageError
from seqloom.core.progress import track

if TYPE_CHECKING:
    from torch import Tensor

Span = tuple[int, int]  # start (inclusive) and end (exclusive) of a part of a text, in characters
END_TEXT = "</s>"
UNKNOWN, UNKNOWN_TEXT = 1, "<unk>"
FORMAT, VERSION = "seqloom-tokenizer", 1
PIECE_LENGTH = 1 << 16  # maximum characters of a piece; a piece without white space may be longer
BATCH_SIZE = 1024  # texts or pieces of texts encoded in one call
BATCH_CHARACTERS = 1 << 20  # maximum characters encoded in one call
_SPACE_OR_NEWLINE = re.compile(r"(?<=\S)[ \n]")
_SPACE = re.compile(r"(?<=\S) ")
SENTENCE_ENDS = re.compile(
    r"""(?:[.!?…]['"”’)\]]*(?=\s))  # . " ' ) then white space
    |   (?:[。！？][”’」』）]*)        # not followed by spaces
    |   (?<=\S)(?=\s*\n\s*\n)      # a blank line
    """,
    re.VERBOSE,
)


class StreamDecoder(ABC):
    """An incremental decoder. The concatenated results of `push` and `flush` equal the result of `decode`.

    To continue a prompt, call `read` with the ids of the prompt and discard the result. The continuation then starts
    with the correct space or the remaining bytes of a character.
    """

    @abstractmethod
    def push(self, token: int) -> str:
        """Add an id and return the text that later ids cannot change."""

    def flush(self) -> str:
        """Return the remaining text."""
        return ""

    def read(self, tokens: Iterable[int]) -> str:
        return "".join(map(self.push, tokens))


class ByteStream(StreamDecoder):
    """A decoder of byte tokens that returns only complete characters. Invalid bytes become U+FFFD."""

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        """Create the decoder. `spell` returns the bytes of a token."""
        self._spell, self._decoder = spell, codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._spell(token), final=token == END)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class Tokenizer(ABC):
    """Base class of tokenizers. A tokenizer is trained once on the training split and does not change afterwards."""

    kind: ClassVar[str]
    end: ClassVar[int] = END
    unknown: int | None = None
    padding: int | None = None  # the padding token, if it is known and not END
    begins_words_with_space: bool = False  # whether the first token of a word includes the space before it
    separates_words: ClassVar[bool] = False  # whether tokens are words separated by spaces

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens. `</s>` in the text is encoded like other text."""

    def encode_batch(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Yield the ids of many texts."""
        tokens: list[int] = []
        for ids, is_last in self.encode_pieces(texts):
            tokens.extend(ids)
            if is_last:
                yield tokens
                tokens = []

    def encode_pieces(self, texts: Iterable[str]) -> Iterator[tuple[list[int], bool]]:
        """Yield the ids of each piece of the texts, and whether the piece is the last of its text."""
        last: deque[bool] = deque()

        def pieces() -> Iterator[str]:
            for text in texts:
                for piece, is_last in mark_last(self.cut(text)):
                    last.append(is_last)
                    yield piece

        for ids in self._encode_all(track(pieces(), "tokenizing", texts)):
            yield ids, last.popleft()

    def cut(self, text: str) -> Iterable[str]:
        """Divide a long text into pieces whose concatenated ids are the ids of the text.

        By default, there is one piece.
        """
        return [text]

    def _encode_all(self, pieces: Iterable[str]) -> Iterable[list[int]]:
        """Yield the ids of each piece. Subclasses may pass batches to a library."""
        return map(self.encode, pieces)

    @property
    def of_targets(self) -> "Tokenizer":
        """The tokenizer of target texts. This tokenizer is returned unless source and target have separate models."""
        return self

    @property
    def languages(self) -> dict[str, str]:
        """The `source` and `target` languages of the tokenizer of a translation model, if they are known."""
        return {}

    @property
    def banned(self) -> tuple[int, ...]:
        """The tokens that a model must not generate."""
        return () if self.unknown is None else (self.unknown,)

    @abstractmethod
    def stream(self) -> StreamDecoder:
        """Return a decoder at the start of a document."""

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of ids. END produces no text, and a new document starts after it."""
        decoder = self.stream()
        return decoder.read(tokens) + decoder.flush()

    @abstractmethod
    def token(self, token_id: int) -> str:
        """Return the text of an id for display."""

    @abstractmethod
    def spell(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text, including the space before a word. Special tokens add none."""

    def append_token(self, text: str, token: int) -> str:
        """Append a token to a text. A piece that continues a word (##ing) is joined to the word."""
        return text + self.decode([token])

    def spans(self, text: str) -> list[Span]:
        """Return the span of each token of `encode(text)` in the text.

        A byte-pair token that is part of a character has the span of the whole character, so spans can overlap. The
        starts and the ends of the spans never decrease.
        """
        return self.decoded_spans(self.encode(text))

    def decoded_spans(self, ids: Sequence[int]) -> list[Span]:
        """Return the span of each token in `decode(ids)`. The span of END is empty.

        Generated ids may differ from the result of `encode` for the same text.
        """
        decoder, spans, start = self.stream(), list[Span](), 0
        complete = 0  # decoding can restart at this position, because all earlier characters are complete
        for position, token in enumerate(ids):
            end = start + len(decoder.push(token))
            restarted = self.stream()
            restarted.read(ids[complete : position + 1])
            # If text remains, the token ends within a character, which its span includes
            is_partial = bool(restarted.flush())
            spans.append((start, end + is_partial))
            start, complete = end, complete if is_partial else position + 1
        return spans

    def unknown_pieces(self, text: str) -> list[str]:
        """Return the distinct parts of a text that are not in the vocabulary."""
        return []

    @abstractmethod
    def content(self) -> dict[str, Json]:
        """Return the trained content as JSON values."""

    @classmethod
    @abstractmethod
    def from_content(cls, content: Mapping[str, Json]) -> Self:
        """Create a tokenizer from its content. Raise ValueError, TypeError or KeyError if the content is invalid."""

    def fingerprint(self) -> str:
        return digest(self.kind, self.content())

    def to_json(self) -> dict[str, Json]:
        content = self.content()
        head = {"format": FORMAT, "version": VERSION, "kind": self.kind, "sha256": digest(self.kind, content)}
        return {**head, "content": content}


class ForeignTokenizer(Tokenizer):
    """Base class of imported tokenizers. The ids of an imported tokenizer are reordered so that END comes first.

    order[i]   the original id of the seqloom id i,        i = 0 … rows − 1
    """

    rows: int  # number of rows of the embedding
    order: list[int]
    source: ClassVar[str]  # name in messages of the model that has this tokenizer

    @classmethod
    def train(cls, config: object, texts: Iterable[str]) -> Self:
        raise UsageError(
            f"tokenizer.kind={cls.kind} is the tokenizer of {cls.source} and cannot be trained. Import a model with "
            "`seqloom import-hf` and start from it (init.from=RUN), or choose another tokenizer.kind."
        )

    @cached_property
    def _our_ids(self) -> dict[int, int]:
        return {original: id for id, original in enumerate(self.order)}

    def to_original_ids(self, tokens: Iterable[int]) -> list[int]:
        """Convert ids of this tokenizer, including special tokens, to the original ids."""
        ids = list(tokens)
        check_ids(ids, self.rows)
        return [self.order[id] for id in ids]

    def from_original_ids(self, tokens: Iterable[int]) -> list[int]:
        """Convert original ids to the ids of this tokenizer."""
        ids = list(tokens)
        check_ids(ids, self.rows)
        return [self._our_ids[id] for id in ids]


def digest(kind: str, content: Mapping[str, Json]) -> str:
    """Return the sha256 of a tokenizer's content, independent of the JSON layout."""
    text = json.dumps([kind, content], ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def open_json(value: Any, kinds: Sequence[str]) -> tuple[str, Mapping[str, Json]]:
    """Return the kind and the content of a tokenizer's JSON. Raise CheckpointError if the JSON is invalid."""
    if not isinstance(value, Mapping) or value.get("format") != FORMAT:
        raise CheckpointError("This JSON is not a seqloom tokenizer: its format must be seqloom-tokenizer.")
    version, kind, content = value.get("version"), value.get("kind"), value.get("content")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CheckpointError(f"The tokenizer is damaged: its version must be a positive integer; got {version!r}.")
    if version > VERSION:
        raise CheckpointError(
            f"The tokenizer has format version {version}; this version of seqloom reads formats up to {VERSION}. "
            f"Install a newer seqloom."
        )
    if not isinstance(kind, str) or kind not in kinds:
        raise CheckpointError(f"The kind of the tokenizer must be one of {', '.join(kinds)}; got {kind!r}.")
    if not isinstance(content, Mapping) or value.get("sha256") != digest(kind, content):
        raise CheckpointError("The tokenizer is damaged: its content does not match its checksum. Restore the file.")
    return kind, content


def cut_at_spaces(text: str, size: int = PIECE_LENGTH, line_breaks: bool = True) -> Iterator[str]:
    """Divide a text before white space into one or more pieces of about `size` characters.

    Without `line_breaks`, divide the text only before spaces.
    """
    border = _SPACE_OR_NEWLINE if line_breaks else _SPACE
    start = 0
    while len(text) - start > size and (cut := border.search(text, start + size)):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:] if start else text


def batch_texts(
    texts: Iterable[str], size: int = BATCH_SIZE, characters: int = BATCH_CHARACTERS
) -> Iterator[list[str]]:
    """Yield batches of at most `size` texts and about `characters` characters."""
    batch: list[str] = []
    length = 0
    for text in texts:
        if batch and (len(batch) == size or length + len(text) > characters):
            yield batch
            batch, length = [], 0
        batch.append(text)
        length += len(text)
    if batch:
        yield batch


def mark_last(pieces: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield each piece and whether it is the last piece."""
    remaining = iter(pieces)
    piece = next(remaining, "")
    for following in remaining:
        yield piece, False
        piece = following
    yield piece, True


def split_sentences(document: str) -> list[str]:
    """Split a document into sentences that concatenate to the document.

    A sentence ends after . ! ? or …, and after any closing quotation marks or brackets, if white space follows. A blank
    line also ends a sentence, so headings are sentences. White space belongs to the following sentence.
    """
    sentences: list[str] = []
    start = 0
    for match in SENTENCE_ENDS.finditer(document):
        if document[start : match.end()].strip():
            sentences.append(document[start : match.end()])
            start = match.end()
    remainder = document[start:]
    if remainder.strip() or not sentences:
        sentences.append(remainder)
    else:
        sentences[-1] += remainder
    return [sentence for sentence in sentences if sentence.strip()]


def require_strings(value: object) -> list[str]:
    """Return a JSON value if it is a list of strings. Otherwise, raise ValueError."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("a list of strings is missing")
    return value


def check_ids(tokens: Sequence[int], size: int) -> None:
    """Raise IndexError for ids outside the vocabulary, including negative ids."""
    for token in tokens:
        if not 0 <= token < size:
            raise IndexError(f"token ids must be from 0 to {size - 1}; got {token}")


def require_text(content: object) -> None:
    """Raise `DataError` if the training text is empty."""
    if not content:
        raise DataError("A tokenizer needs text, but the training split has none.")


def encode_documents(tokenizer: Tokenizer, documents: Iterable[str]) -> "Tensor":
    """Return the token stream of a language model (N,), which contains the tokens of each document followed by END."""
    import numpy  # imported here, so that tokenizers can be listed and configured without torch
    import torch

    encoded = tokenizer.encode_pieces(documents)
    ids = chain.from_iterable(chain(tokens, (END,) * is_last) for tokens, is_last in encoded)
    return torch.from_numpy(numpy.fromiter(ids, dtype=numpy.int64))
