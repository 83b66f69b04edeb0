"""An imported tokenizer: the tokenizer.json of a Hugging Face directory, loaded by the `tokenizers` library.

The ids are reordered: END comes first, then the other ids in order. [CLS], [SEP] and [MASK] come last if the model has
them, because they are outside the vocabulary (`seqloom.core.tokens`). If the model has more embedding rows than the
vocabulary of the file has tokens, no text is encoded to the tokens of the additional rows.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

from tokenizers import Encoding
from tokenizers import Tokenizer as Library

from seqloom.config import config
from seqloom.core import END
from seqloom.core.words import format_value
from seqloom.text.base import (
    END_TEXT,
    ForeignTokenizer,
    Span,
    StreamDecoder,
    batch_texts,
    check_ids,
    cut_at_spaces,
)
from seqloom.text.bytepair import byte_text, token_bytes
from seqloom.text.library_checks import check_time_and_growth, library_errors

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # ends a text whose last character is incomplete
SPACE = "▁"  # represents a space in a SentencePiece token
PADDING = ("<pad>", "[PAD]")


@config
class ImportedConfig:
    kind: Literal["huggingface"] = "huggingface"


class Imported(ForeignTokenizer):
    """A tokenizer of the `tokenizers` library with reordered ids.

    No text is encoded to END, [CLS], [SEP], [MASK] or another special token of the file. If the name of a special token
    occurs in a text, it is encoded as ordinary text. `unknown` is the unknown token, if any.
    """

    kind = "huggingface"
    source = "an imported model"

    def __init__(self, file: Mapping[str, Any], end: int, last: Sequence[int], rows: int) -> None:
        """Create the tokenizer from the content of a tokenizer.json.

        `end` is the original id of END. `last` contains the original ids of [CLS], [SEP] and [MASK], if present. `rows`
        is the number of embeddings of the model.
        """
        self.file, self.last, self.rows = dict(file), list(last), rows
        self._library, self._names = _open(file)
        self._check_ids(end)
        self.order = [end, *(id for id in range(rows) if id != end and id not in self.last), *self.last]
        added, model = file.get("added_tokens") or (), file["model"]
        special = {entry["id"]: entry["content"] for entry in added if entry.get("special")}
        ids = {name: id for id, name in self._names.items()}
        unknown = model["unk_id"] if isinstance(model.get("unk_id"), int) else ids.get(model.get("unk_token"))
        self._silent = {end, *self.last} | (special.keys() - {unknown})  # original ids that have no text
        self.unknown = None if unknown is None or unknown in (end, *self.last) else self._our_ids[unknown]
        padding = next((id for id, name in special.items() if name in PADDING), end)
        self.padding = None if padding == end else self._our_ids[padding]
        decoder = json.dumps(file.get("decoder"))
        self.begins_words_with_space = "ByteLevel" in decoder
        self._falls_back = "ByteFallback" in decoder
        self._cuts_at_spaces = _cuts_at_spaces(file)
        # Maps the library ids of added tokens, which changed when special tokens were removed, to the original ids.
        plain = {entry["content"]: entry["id"] for entry in added if not entry.get("special")}
        moved = {self._library.token_to_id(name): id for name, id in plain.items()}
        self._shifted = {library: id for library, id in moved.items() if library is not None and library != id}
        self._back = {theirs: library for library, theirs in self._shifted.items()}

    def _check_ids(self, end: int) -> None:
        """Raise ValueError unless the ids of the file match the model."""
        names, last, rows = self._names, self.last, self.rows
        if names and max(names) >= rows:
            raise ValueError(f"its ids go up to {max(names)}, but the model has {rows} embeddings")
        for id in (end, *last):
            if not 0 <= id < rows:
                raise ValueError(f"the id of a special token must be from 0 to {rows - 1}; got {id}")
        if len({end, *last}) < 1 + len(last):
            raise ValueError(f"END, [CLS], [SEP] and [MASK] must be different tokens; got {[end, *last]}")

    def __len__(self) -> int:
        return self.rows - len(self.last)

    # Text to ids

    def encode(self, text: str) -> list[int]:
        return next(iter(self.encode_batch([text])))

    def cut(self, text: str) -> Iterable[str]:
        return cut_at_spaces(text, line_breaks=False) if self._cuts_at_spaces else [text]

    def _encode_all(self, pieces: Iterable[str]) -> Iterator[list[int]]:
        for batch in batch_texts(pieces):
            with library_errors(batch):
                encodings = self._library.encode_batch_fast(batch, add_special_tokens=False)
            for text, encoding in zip(batch, encodings, strict=True):
                ids = self._library_to_theirs(encoding.ids)
                if not self._silent.isdisjoint(ids):
                    ids = [id for id, _ in self._pieces(text)]
                yield [self._our_ids[id] for id in ids]

    def spans(self, text: str) -> list[Span]:
        return include_marks(text, [span for _, span in self._pieces(text)])

    def unknown_pieces(self, text: str) -> list[str]:
        if self.unknown is None:
            return []
        unknown = self.order[self.unknown]
        pieces = (text[start:end] for id, (start, end) in self._pieces(text) if id == unknown)
        return list(dict.fromkeys(pieces))

    def _pieces(self, text: str) -> list[tuple[int, Span]]:
        """Return the original ids and spans of the tokens.

        Special tokens in the text are split after their first character, and all parts are encoded again. The number of
        iterations is at most the length of a special token.
        """
        pieces: list[tuple[int, Span]] = []
        parts = [(0, len(text))]
        while parts:
            remaining: list[Span] = []
            encodings: list[Encoding] = []
            for batch in batch_texts(text[start:end] for start, end in parts):
                with library_errors(batch):
                    encodings += self._library.encode_batch(batch, add_special_tokens=False)
            for (start, end), encoding in zip(parts, encodings, strict=True):
                ids = self._library_to_theirs(encoding.ids)
                encoded = [(id, (start + a, start + b)) for id, (a, b) in zip(ids, encoding.offsets, strict=True)]
                silent = [span for id, span in encoded if id in self._silent]
                if not silent:
                    pieces += encoded
                    continue
                for first, last in silent:
                    border = first + 1 if last - first > 1 else first
                    remaining += [(start, border)] if border > start else []
                    start = border
                    if last - first <= 1:  # a single character cannot be split, so it is encoded as unknown
                        pieces += [] if self.unknown is None else [(self.order[self.unknown], (first, last))]
                        start = max(last, first + 1)
                remaining += [(start, end)] if end > start else []
            parts = remaining
        return sorted(pieces, key=lambda piece: piece[1])

    def _library_to_theirs(self, ids: list[int]) -> list[int]:
        return [self._shifted.get(id, id) for id in ids] if self._shifted else ids

    # Ids to text

    def stream(self) -> StreamDecoder:
        return _LibraryStream(self)

    def decode(self, tokens: Iterable[int]) -> str:
        text, document = "", list[int]()
        for token in tokens:
            if token == END:
                text, document = text + self.text(document), []
            elif self.has_text(token):
                document.append(token)
        return text + self.text(document)

    def has_text(self, token: int) -> bool:
        """Return whether a token has text. Special tokens and rows beyond the vocabulary have no text."""
        check_ids([token], self.rows)
        original = self.order[token]
        return original in self._names and original not in self._silent

    def text(self, tokens: Sequence[int]) -> str:
        """Decode tokens that have text."""
        ids = [self._back.get(self.order[token], self.order[token]) for token in tokens]
        return self._library.decode(ids, skip_special_tokens=False)

    def token(self, token_id: int) -> str:
        """Return the text of a token. Byte letters are decoded, and space marks become spaces."""
        check_ids([token_id], self.rows)
        if token_id == END:
            return END_TEXT
        name = self.name(token_id)
        if not self.has_text(token_id):
            return name
        return byte_text(name) if self.begins_words_with_space else name.replace(SPACE, " ")

    def spell(self, token_id: int) -> bytes:
        if not self.has_text(token_id):
            return b""
        name, model = self.name(token_id), self.file["model"]
        if self.begins_words_with_space:
            return token_bytes(name)
        if self.is_byte(token_id):
            return bytes.fromhex(name[3:5])
        if model.get("type") in ("WordPiece", "WordLevel"):
            mark = model.get("continuing_subword_prefix") or ""
            return (name.removeprefix(mark) if mark and name.startswith(mark) else f" {name}").encode()
        if suffix := model.get("end_of_word_suffix"):
            return (f"{name.removesuffix(suffix)} " if name.endswith(suffix) else name).encode()
        return name.replace(SPACE, " ").encode()

    def append_token(self, text: str, token: int) -> str:
        model, piece = self.file["model"], self.decode([token])
        mark = model.get("continuing_subword_prefix")
        if mark and model.get("type") == "WordPiece" and piece.startswith(mark):
            return text.rstrip() + piece.removeprefix(mark)
        return text + piece

    def is_byte(self, token: int) -> bool:
        """Return whether a token is a byte of the byte fallback, such as <0xE2>."""
        return self._falls_back and re.fullmatch("<0x[0-9A-F]{2}>", self.name(token)) is not None

    def name(self, token: int) -> str:
        """Return the name of a token in the file."""
        check_ids([token], self.rows)
        return self._names.get(self.order[token], f"<unused {self.order[token]}>")

    # Storage

    def content(self) -> dict[str, Any]:
        return {"file": self.file, "end": self.order[END], "last": self.last, "rows": self.rows}

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Self:
        """Create the tokenizer from its content. Raise ValueError if the content is invalid."""
        file, end, last, rows = (content[name] for name in ("file", "end", "last", "rows"))
        numbers = [end, rows, *(last if isinstance(last, list) else [None])]
        if not isinstance(file, Mapping) or not all(type(number) is int for number in numbers):
            raise ValueError("it must contain a tokenizer.json and the ids of its special tokens")
        return cls(file, end, last, rows)


class _LibraryStream(StreamDecoder):
    """A decoder that decodes each token together with the previous token and returns the additional text."""

    def __init__(self, tokenizer: Imported) -> None:
        self._tokenizer = tokenizer
        self._document: list[int] = []
        self._context = self._decoded = 0  # first token to decode; first token without text so far

    def push(self, token: int) -> str:
        if token == END:
            rest = self.flush()
            self._document, self._context, self._decoded = [], 0, 0
            return rest
        if not self._tokenizer.has_text(token):
            return ""
        self._document.append(token)
        text = self.flush()
        if text.endswith(INCOMPLETE) or self._tokenizer.is_byte(token):
            return ""
        self._context, self._decoded = self._decoded, len(self._document)
        return text

    def flush(self) -> str:
        context = self._tokenizer.text(self._document[self._context : self._decoded])
        return self._tokenizer.text(self._document[self._context :])[len(context) :]


def include_marks(text: str, spans: Sequence[Span]) -> list[Span]:
    """Extend spans over combining marks that a tokenizer removes, such as separate accents or vowel signs."""
    extended: list[Span] = []
    starts = [*(start for start, _ in spans), len(text)]
    for (start, end), following in zip(spans, starts[1:], strict=True):
        while end < following and unicodedata.category(text[end]).startswith("M"):
            end += 1
        extended.append((start, end))
    return extended


def check_file(file: Mapping[str, Any]) -> None:
    """Raise ValueError unless a tokenizer.json contains the parts that are read without the library."""
    added = file.get("added_tokens") or []
    if not isinstance(file.get("model"), Mapping) or not isinstance(added, list):
        raise ValueError("it must have a `model` and a list of `added_tokens`")
    for entry in added:
        if not isinstance(entry, Mapping) or type(entry.get("id")) is not int or type(entry.get("content")) is not str:
            raise ValueError(
                f"each entry of `added_tokens` must have a whole number `id` and a string `content`; "
                f"got {format_value(entry)}"
            )


def _open(file: Mapping[str, Any]) -> tuple[Library, dict[int, str]]:
    """Load a tokenizer without special tokens, truncation and padding. Return it and the names of the original ids."""
    check_file(file)
    added, model = file.get("added_tokens") or [], file["model"]
    if model.get("dropout"):
        raise ValueError(f"its dropout must be null, because encoding must be deterministic; got {model['dropout']}")
    plain = [entry for entry in added if not entry.get("special")]
    check_time_and_growth(file)
    bare = {**file, "added_tokens": plain, "truncation": None, "padding": None, "post_processor": None}
    try:
        library = Library.from_str(json.dumps(bare))
    except Exception as error:  # the library does not raise a narrower class
        raise ValueError(f"the tokenizers library cannot read it ({error})") from error
    names = {id: name for name, id in library.get_vocab(with_added_tokens=False).items()}
    if names and max(names) >= len(names):
        raise ValueError("the ids of its vocabulary must start at 0 and have no gaps")
    return library, names | {entry["id"]: entry["content"] for entry in added}


def _cuts_at_spaces(file: Mapping[str, Any]) -> bool:
    """Return whether dividing a text before a space keeps its ids, as with the pre-tokenizers of GPT-2 and BERT.

    Other tokenizers may mark the start of a text or have tokens that span several words.
    """
    kinds = [section and section.get("type") for section in (file.get("normalizer"), file.get("pre_tokenizer"))]
    if kinds == [None, "ByteLevel"]:
        is_safe = file["pre_tokenizer"].get("use_regex", True) is True
    else:
        is_safe = kinds == ["BertNormalizer", "BertPreTokenizer"]
    plain = (entry for entry in file.get("added_tokens") or () if not entry.get("special"))
    return is_safe and not any(re.search(r"\s", entry["content"]) or entry.get("rstrip") for entry in plain)
