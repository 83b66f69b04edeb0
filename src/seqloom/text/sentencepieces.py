"""The tokenizer of a Marian model. The tokenizer has a SentencePiece model for each language, and a shared vocabulary.

    source   source.spm divides a text into pieces, and vocab.json maps pieces to ids
    target   target.spm and the same vocab.json

The models are loaded by the `sentencepiece` library (`pip install 'seqloom[marian]'`). Ids are reordered so that END
comes first. No text is encoded to the tokens of embedding rows beyond the vocabulary.
"""

import base64
import copy
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, Self

from seqloom.config import config
from seqloom.core import END, Json
from seqloom.core.errors import ResourceError
from seqloom.text.base import (
    END_TEXT,
    UNKNOWN_TEXT,
    ByteStream,
    ForeignTokenizer,
    Span,
    StreamDecoder,
    Tokenizer,
    check_ids,
)
from seqloom.text.bytepair import not_unicode

SPACE = "▁"  # represents a space in a piece
BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte, in models with byte fallback
CODE = re.compile(r">>.*?<<")  # the target language, at the start of a text
Piece = tuple[str, int, int]  # a piece, with its start and its end in the text


@config
class SentencePieceConfig:
    kind: Literal["sentencepiece"] = "sentencepiece"


class SentencePieces(ForeignTokenizer):
    """A SentencePiece tokenizer with reordered ids.

    `encode` uses the source model, and `of_targets` is the tokenizer with the target model. A language code at the
    start of a text, such as `>>fra<<`, is one token. No text is encoded to END or padding.
    """

    kind = "sentencepiece"
    source = "an imported Marian model"

    def __init__(self, content: Mapping[str, Json]) -> None:
        """Create the tokenizer from its content.

        `content` contains the vocabulary, the two models in base64, the number of `rows` of the embedding, the original
        ids of `end`, `padding` (may be null) and `unknown`, and optionally `languages`.
        """
        self._content = dict(content)
        vocabulary: Mapping[str, int] = content["vocabulary"]
        self.rows: int = content["rows"]
        end, padding, unknown = (content[name] for name in ("end", "padding", "unknown"))
        self._check(vocabulary, self.rows, {"end": end, "padding": padding, "unknown": unknown})
        self.order = [end, *(id for id in range(self.rows) if id != end)]
        self.unknown = self._unknown = self._our_ids[unknown]
        self.padding = None if padding is None else self._our_ids[padding]
        self._names = {self._our_ids[id]: name for name, id in vocabulary.items()}
        silent = (END, self.padding)
        # Ids of the pieces that occur in texts
        self._ids = {name: id for id, name in self._names.items() if id not in silent}
        self._processor, self._of_targets = (_open(content[side], f"{side}.spm") for side in ("source", "target"))

    @cached_property
    def of_targets(self) -> Tokenizer:
        if self._processor is self._of_targets:
            return self
        other = copy.copy(self)
        other._processor = self._of_targets
        return other

    def __len__(self) -> int:
        return self.rows

    @property
    def banned(self) -> tuple[int, ...]:
        return tuple(token for token in (self.unknown, self.padding) if token is not None)

    @property
    def languages(self) -> dict[str, str]:
        return dict(self._content.get("languages") or {})

    # Text to ids

    def encode(self, text: str) -> list[int]:
        return [self._id(piece) for piece, _, _ in self._pieces(text)]

    def spans(self, text: str) -> list[Span]:
        return [(start, end) for _, start, end in self._pieces(text)]

    def unknown_pieces(self, text: str) -> list[str]:
        unknown = ((start, end) for piece, start, end in self._pieces(text) if self._id(piece) == self.unknown)
        pieces = (text[start:end].strip() for start, end in unknown)
        return list(dict.fromkeys(filter(None, pieces)))

    def _id(self, piece: str) -> int:
        return self._ids.get(piece, self._unknown)

    def _pieces(self, text: str) -> list[Piece]:
        code = CODE.match(text)
        offset = code.end() if code else 0
        try:
            encoding = self._processor.encode(text[offset:], return_type="offset_mapping")
        except (RuntimeError, UnicodeError):
            raise not_unicode([text]) from None
        pairs = zip(encoding["pieces"], encoding["offsets"], strict=True)
        pieces = [(piece, offset + start, offset + end) for piece, (start, end) in pairs]
        return [(code[0], 0, offset), *pieces] if code else pieces

    # Ids to text

    def stream(self) -> StreamDecoder:
        return _PieceStream(self.spell)

    def spell(self, token_id: int) -> bytes:
        check_ids([token_id], self.rows)
        name = self._names.get(token_id)
        if name is None or token_id in (END, self.padding):
            return b""
        byte = BYTE.fullmatch(name)
        return bytes.fromhex(byte[1]) if byte else name.replace(SPACE, " ").encode()

    def token(self, token_id: int) -> str:
        """Return a piece of the vocabulary with plain spaces."""
        check_ids([token_id], self.rows)
        if token_id in (END, self.unknown):
            return END_TEXT if token_id == END else UNKNOWN_TEXT
        return self._names.get(token_id, f"<unused {self.order[token_id]}>").replace(SPACE, " ")

    # Storage

    @staticmethod
    def _check(vocabulary: object, rows: object, specials: Mapping[str, object]) -> None:
        """Raise ValueError unless vocabulary, rows and special tokens are consistent."""
        names = vocabulary if isinstance(vocabulary, Mapping) else {None: None}
        if type(rows) is not int or not all(type(id) is int for id in names.values()):
            raise ValueError("its vocabulary must map names to ids")
        ids = set(names.values())
        if len(ids) < len(names):
            raise ValueError("two tokens of its vocabulary have the same id")
        if ids and (min(ids) < 0 or max(ids) >= rows):
            raise ValueError(f"its ids go from {min(ids)} to {max(ids)}, but the model has {rows} embeddings")
        for name, id in specials.items():
            if (id is not None or name != "padding") and not (type(id) is int and 0 <= id < rows):
                raise ValueError(f"the id of {name} must be from 0 to {rows - 1}; got {id!r}")
        if len(set(specials.values())) < 3:
            raise ValueError("end, padding and unknown must be different tokens")

    def content(self) -> dict[str, Json]:
        return self._content

    @classmethod
    def from_content(cls, content: Mapping[str, Json]) -> Self:
        """Create the tokenizer from its content. Raise ValueError if the content is invalid."""
        return cls(content)


class _PieceStream(ByteStream):
    """A decoder that strips spaces at both ends of a text. The decoder withholds spaces until a piece follows."""

    _space, _has_started = "", False

    def push(self, token: int) -> str:
        text = self._without_ends(super().push(token))
        if token == END:
            self._space, self._has_started = "", False
        return text

    def flush(self) -> str:
        return self._without_ends(super().flush())

    def _without_ends(self, text: str) -> str:
        pending = (self._space if self._has_started else "") + text
        stripped = pending.rstrip(" ")
        if not self._has_started:
            stripped = stripped.lstrip(" ")
        self._space, self._has_started = pending[len(pending.rstrip(" ")) :], self._has_started or bool(stripped)
        return stripped


def _open(model: Any, name: str) -> Any:
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        raise ResourceError("This tokenizer needs SentencePiece: pip install 'seqloom[marian]'.") from None
    if not isinstance(model, str):
        raise ValueError(f"{name} is missing")
    try:
        processor = SentencePieceProcessor()
        processor.LoadFromSerializedProto(base64.b64decode(model, validate=True))
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{name} is not a SentencePiece model ({' '.join(str(error).split())})") from None
    return processor
