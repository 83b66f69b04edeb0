"""The tokenizer of a Marian translator: two SentencePiece models, one for each language, and a vocabulary for both.

    source   source.spm cuts a text into pieces,  vocab.json numbers them
    target   target.spm does,                     the same vocab.json

The models are read by the `sentencepiece` library (`pip install 'seqloom[marian]'`). Ids are put in
our order: END first, then all others as they stood. Rows of an embedding beyond the vocabulary are
tokens that no text encodes to.
"""

import base64
import copy
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, Self

from seqloom.config import config
from seqloom.core import END
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

SPACE = "▁"  # how pieces write one
BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a piece that is a byte, where a model falls back to them
CODE = re.compile(r">>.*?<<")  # at the beginning of a text: which language to translate into
Piece = tuple[str, int, int]  # and where in the text it begins and ends


@config
class SentencePieceConfig:
    kind: Literal["sentencepiece"] = "sentencepiece"


class SentencePieces(ForeignTokenizer):
    """What SentencePiece makes of a text, in our order of ids.

    `encode` reads a text as a source; `of_targets` is the same tokenizer, reading as targets are
    read. A text that begins with a code, `>>fra<<`, begins with its token. No text encodes to END
    or to padding.
    """

    kind = "sentencepiece"
    source = "an imported Marian model"

    def __init__(self, content: Mapping[str, Any]) -> None:
        """`content` holds the vocabulary by name, the two models in base64, how many `rows` the model has, and which of
        their ids is the `end`, the `padding` (perhaps null) and the one `unknown`; perhaps also the `languages`."""
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
        self._ids = {name: id for id, name in self._names.items() if id not in silent}  # of what a text may spell
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

    # Text to ids.

    def encode(self, text: str) -> list[int]:
        return [self._id(piece) for piece, _, _ in self._pieces(text)]

    def spans(self, text: str) -> list[Span]:
        return [(start, end) for _, start, end in self._pieces(text)]

    def unknown_pieces(self, text: str) -> list[str]:
        found = (text[start:end].strip() for piece, start, end in self._pieces(text) if self._id(piece) == self.unknown)
        return list(dict.fromkeys(piece for piece in found if piece))

    def _id(self, piece: str) -> int:
        return self._ids.get(piece, self._unknown)

    def _pieces(self, text: str) -> list[Piece]:
        code = CODE.match(text)
        after = code.end() if code else 0
        try:
            found = self._processor.encode(text[after:], return_type="offset_mapping")
        except (RuntimeError, UnicodeError):
            raise not_unicode([text]) from None
        both = zip(found["pieces"], found["offsets"], strict=True)
        pieces = [(piece, after + start, after + end) for piece, (start, end) in both]
        return [(code[0], 0, after), *pieces] if code else pieces

    # Ids to text.

    def stream(self) -> StreamDecoder:
        return _PieceStream(self.spelled)

    def spelled(self, token: int) -> bytes:
        """What a token adds to a text."""
        check_ids([token], self.rows)
        name = self._names.get(token)
        if name is None or token in (END, self.padding):
            return b""
        byte = BYTE.fullmatch(name)
        return bytes.fromhex(byte[1]) if byte else name.replace(SPACE, " ").encode()

    def token(self, token: int) -> str:
        """A piece as it stands in the vocabulary, with a space where it writes one."""
        check_ids([token], self.rows)
        if token in (END, self.unknown):
            return END_TEXT if token == END else UNKNOWN_TEXT
        return self._names.get(token, f"<unused {self.order[token]}>").replace(SPACE, " ")

    # On disk.

    @staticmethod
    def _check(vocabulary: object, rows: object, specials: Mapping[str, object]) -> None:
        """Raise ValueError unless names, numbers and special tokens fit together."""
        names = vocabulary if isinstance(vocabulary, Mapping) else {None: None}
        if type(rows) is not int or not all(type(id) is int for id in names.values()):
            raise ValueError("its vocabulary must be names with their numbers")
        known = set(names.values())
        if len(known) < len(names):
            raise ValueError("two tokens of its vocabulary have the same number")
        if known and (min(known) < 0 or max(known) >= rows):
            ends = f"its ids go from {min(known)} to {max(known)}"
            raise ValueError(f"{ends}, and the model has vectors for {rows} tokens")
        for what, id in specials.items():
            if (id is not None or what != "padding") and not (type(id) is int and 0 <= id < rows):
                raise ValueError(f"the token for {what} must be one of {rows}; got {id!r}")
        if len(set(specials.values())) < 3:
            raise ValueError("end, padding and unknown must be different tokens")

    def content(self) -> dict[str, Any]:
        return self._content

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Self:
        """ValueError says what is wrong with it, or with how it fits a model with so many rows."""
        return cls(content)


class _PieceStream(ByteStream):
    """Spaces at the ends of a text are not part of it: they wait until something follows."""

    _space, _begun = "", False

    def push(self, token: int) -> str:
        text = self._without_ends(super().push(token))
        if token == END:
            self._space, self._begun = "", False
        return text

    def flush(self) -> str:
        return self._without_ends(super().flush())

    def _without_ends(self, text: str) -> str:
        whole = (self._space if self._begun else "") + text
        said = whole.rstrip(" ")
        if not self._begun:
            said = said.lstrip(" ")
        self._space, self._begun = whole[len(whole.rstrip(" ")) :], self._begun or bool(said)
        return said


def _open(model: Any, name: str) -> Any:
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        raise ResourceError(
            "This tokenizer is read by SentencePiece, which is not installed: pip install 'seqloom[marian]'."
        ) from None
    if not isinstance(model, str):
        raise ValueError(f"{name} is missing")
    try:
        processor = SentencePieceProcessor()
        processor.LoadFromSerializedProto(base64.b64decode(model, validate=True))
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{name} is no SentencePiece model ({' '.join(str(error).split())})") from None
    return processor
