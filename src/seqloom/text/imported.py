"""A tokenizer from elsewhere: the tokenizer.json of a Hugging Face directory, read by the `tokenizers` library.

Its ids are put in our order: END first, then all others as they stood, and last, where the model
has them, [CLS], [SEP] and [MASK], which are then no tokens of the tokenizer any more
(`seqloom.core.tokens`). Rows of an embedding beyond the vocabulary of the file are tokens too; no
text encodes to them.
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
from seqloom.core.words import shown
from seqloom.text.base import (
    END_TEXT,
    ForeignTokenizer,
    Span,
    StreamDecoder,
    batches,
    check_ids,
    cut_at_spaces,
)
from seqloom.text.bytepair import byte_text
from seqloom.text.library_checks import check_time_and_growth, library_errors

HALF = "\N{REPLACEMENT CHARACTER}"  # the end of a text whose last character is not whole yet
SPACE = "▁"  # how pieces of sentences write one
PADDING = ("<pad>", "[PAD]")


@config
class ImportedConfig:
    kind: Literal["huggingface"] = "huggingface"


class Imported(ForeignTokenizer):
    """What the library makes of a text, in our order of ids.

    No text encodes to END, to [CLS], [SEP], [MASK] or to another special token of the file: one
    that is spelled in a text is read as other text is. `unknown` is the token for what the
    vocabulary cannot spell, where there is one.
    """

    kind = "huggingface"
    source = "an imported model"

    def __init__(self, file: Mapping[str, Any], end: int, last: Sequence[int], rows: int) -> None:
        """`file` is the tokenizer.json, `end` and `last` are their ids of END and of [CLS], [SEP], [MASK], if it has
        them; `rows` is how many tokens have a vector in the model."""
        self.file, self.last, self.rows = dict(file), list(last), rows
        self._library, self._names = _open(file)
        self._check_ids(end)
        self.order = [end, *(id for id in range(rows) if id != end and id not in self.last), *self.last]
        added, model = file.get("added_tokens") or (), file["model"]
        special = {entry["id"]: entry["content"] for entry in added if entry.get("special")}
        ids = {name: id for id, name in self._names.items()}
        unknown = model["unk_id"] if isinstance(model.get("unk_id"), int) else ids.get(model.get("unk_token"))
        self._silent = {end, *self.last} | (special.keys() - {unknown})  # their ids that no text has: they say nothing
        self.unknown = None if unknown is None or unknown in (end, *self.last) else self._our_ids[unknown]
        padding = next((id for id, name in special.items() if name in PADDING), end)
        self.padding = None if padding == end else self._our_ids[padding]
        decoder = json.dumps(file.get("decoder"))
        self.begins_words_with_space = "ByteLevel" in decoder
        self._falls_back = "ByteFallback" in decoder
        self._cuts_at_spaces = _cuts_at_spaces(file)
        # library's ids of added tokens that moved up when special ones before them were taken out → theirs
        plain = {entry["content"]: entry["id"] for entry in added if not entry.get("special")}
        moved = {self._library.token_to_id(name): id for name, id in plain.items()}
        self._shifted = {library: id for library, id in moved.items() if library is not None and library != id}
        self._back = {theirs: library for library, theirs in self._shifted.items()}

    def _check_ids(self, end: int) -> None:
        """Raise ValueError unless the ids of the file fit the model."""
        names, last, rows = self._names, self.last, self.rows
        if names and max(names) >= rows:
            raise ValueError(f"its ids go up to {max(names)}, and the model has vectors for {rows} tokens")
        for id in (end, *last):
            if not 0 <= id < rows:
                raise ValueError(f"the special token {id} must be one of {rows} tokens")
        if len({end, *last}) < 1 + len(last):
            raise ValueError(f"END, [CLS], [SEP] and [MASK] must be different tokens; got {[end, *last]}")

    def __len__(self) -> int:
        return self.rows - len(self.last)

    # Text to ids.

    def encode(self, text: str) -> list[int]:
        return next(iter(self.encode_batch([text])))

    def cut(self, text: str) -> Iterable[str]:
        return cut_at_spaces(text, line_breaks=False) if self._cuts_at_spaces else [text]

    def _encode_all(self, pieces: Iterable[str]) -> Iterator[list[int]]:
        for batch in batches(pieces):
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
        found = (text[start:end] for id, (start, end) in self._pieces(text) if id == unknown)
        return list(dict.fromkeys(found))

    def _pieces(self, text: str) -> list[tuple[int, Span]]:
        """Their ids and where they stand.

        Every special token that was found is cut after its first character, and the parts are read
        anew, all of them at once: each turn reads every character once more, and there are no more
        turns than a special token is long.
        """
        found: list[tuple[int, Span]] = []
        parts = [(0, len(text))]
        while parts:
            remaining: list[Span] = []
            encodings: list[Encoding] = []
            for batch in batches(text[start:end] for start, end in parts):
                with library_errors(batch):
                    encodings += self._library.encode_batch(batch, add_special_tokens=False)
            for (start, end), encoding in zip(parts, encodings, strict=True):
                ids = self._library_to_theirs(encoding.ids)
                read = [(id, (start + a, start + b)) for id, (a, b) in zip(ids, encoding.offsets, strict=True)]
                silent = [span for id, span in read if id in self._silent]
                if not silent:
                    found += read
                    continue
                for first, last in silent:
                    border = first + 1 if last - first > 1 else first
                    remaining += [(start, border)] if border > start else []
                    start = border
                    if last - first <= 1:  # nothing to cut: what it stands for is unknown
                        found += [] if self.unknown is None else [(self.order[self.unknown], (first, last))]
                        start = max(last, first + 1)
                remaining += [(start, end)] if end > start else []
            parts = remaining
        return sorted(found, key=lambda piece: piece[1])

    def _library_to_theirs(self, ids: list[int]) -> list[int]:
        return [self._shifted.get(id, id) for id in ids] if self._shifted else ids

    # Ids to text.

    def stream(self) -> StreamDecoder:
        return _LibraryStream(self)

    def decode(self, tokens: Iterable[int]) -> str:
        text, document = "", list[int]()
        for token in tokens:
            if token == END:
                text, document = text + self.text(document), []
            elif self.says(token):
                document.append(token)
        return text + self.text(document)

    def says(self, token: int) -> bool:
        """Whether it stands for text: special tokens do not, nor rows beyond the vocabulary."""
        check_ids([token], self.rows)
        theirs = self.order[token]
        return theirs in self._names and theirs not in self._silent

    def text(self, tokens: Sequence[int]) -> str:
        """What the library makes of ids that say something."""
        shown = [self._back.get(self.order[token], self.order[token]) for token in tokens]
        return self._library.decode(shown, skip_special_tokens=False)

    def token(self, token: int) -> str:
        """The token's text: of bytes, characters where they are whole; of pieces, a space where they write one."""
        check_ids([token], self.rows)
        if token == END:
            return END_TEXT
        name = self.name(token)
        if not self.says(token):
            return name
        return byte_text(name) if self.begins_words_with_space else name.replace(SPACE, " ")

    def append_token(self, text: str, token: int) -> str:
        model, piece = self.file["model"], self.decode([token])
        mark = model.get("continuing_subword_prefix")
        if mark and model.get("type") == "WordPiece" and piece.startswith(mark):
            return text.rstrip() + piece.removeprefix(mark)
        return text + piece

    def is_byte(self, token: int) -> bool:
        """Whether it is one of those bytes, such as <0xE2>, that only a whole run of makes characters."""
        return self._falls_back and re.fullmatch("<0x[0-9A-F]{2}>", self.name(token)) is not None

    def name(self, token: int) -> str:
        """What the file itself calls it."""
        check_ids([token], self.rows)
        return self._names.get(self.order[token], f"<unused {self.order[token]}>")

    # On disk.

    def content(self) -> dict[str, Any]:
        return {"file": self.file, "end": self.order[END], "last": self.last, "rows": self.rows}

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Self:
        """ValueError says what is wrong with the file, or with how it fits a model with so many rows."""
        file, end, last, rows = (content[name] for name in ("file", "end", "last", "rows"))
        whole = [end, rows, *(last if isinstance(last, list) else [None])]
        if not isinstance(file, Mapping) or not all(type(number) is int for number in whole):
            raise ValueError("it must hold a tokenizer.json and the ids of its special tokens")
        return cls(file, end, last, rows)


class _LibraryStream(StreamDecoder):
    """What a token adds to the text of those before it, seen beside the one before: further back nothing changes."""

    def __init__(self, tokenizer: Imported) -> None:
        self._tokenizer = tokenizer
        self._document: list[int] = []
        self._before = self._said = 0  # tokens from which to decode, and of which the text was given

    def push(self, token: int) -> str:
        if token == END:
            rest = self.flush()
            self._document, self._before, self._said = [], 0, 0
            return rest
        if not self._tokenizer.says(token):
            return ""
        self._document.append(token)
        text = self._new()
        if text.endswith(HALF) or self._tokenizer.is_byte(token):
            return ""
        self._before, self._said = self._said, len(self._document)
        return text

    def flush(self) -> str:
        return self._new()

    def _new(self) -> str:
        known = self._tokenizer.text(self._document[self._before : self._said])
        return self._tokenizer.text(self._document[self._before :])[len(known) :]


def include_marks(text: str, spans: Sequence[Span]) -> list[Span]:
    """Extend spans of tokens whose tokenizer reads letters without their marks.

    An accent that is a character of its own, or the sign of a vowel, then stands in no token. It
    belongs to the one before it.
    """
    found: list[Span] = []
    begins = [*(start for start, _ in spans), len(text)]
    for (start, end), following in zip(spans, begins[1:], strict=True):
        while end < following and unicodedata.category(text[end]).startswith("M"):
            end += 1
        found.append((start, end))
    return found


def check_file(file: Mapping[str, Any]) -> None:
    """ValueError if it does not have the parts of a tokenizer.json that are read without the library."""
    added = file.get("added_tokens") or []
    if not isinstance(file.get("model"), Mapping) or not isinstance(added, list):
        raise ValueError("it must have a model, and a list of added_tokens")
    for entry in added:
        if not isinstance(entry, Mapping) or type(entry.get("id")) is not int or type(entry.get("content")) is not str:
            raise ValueError(f"each of its added_tokens must have an id and a content; got {shown(entry)}")


def _open(file: Mapping[str, Any]) -> tuple[Library, dict[int, str]]:
    """The library without what would add to a text or cut it, and the name of each of their ids."""
    check_file(file)
    added, model = file.get("added_tokens") or [], file["model"]
    if model.get("dropout"):
        raise ValueError(f"its dropout, {model['dropout']}, would read a text differently every time; it must be none")
    plain = [entry for entry in added if not entry.get("special")]
    check_time_and_growth(file)
    bare = {**file, "added_tokens": plain, "truncation": None, "padding": None, "post_processor": None}
    try:
        library = Library.from_str(json.dumps(bare))
    except Exception as error:  # the library raises no narrower class
        raise ValueError(f"the tokenizers library cannot read it ({error})") from error
    names = {id: name for name, id in library.get_vocab(with_added_tokens=False).items()}
    if names and max(names) >= len(names):
        raise ValueError("the ids of its vocabulary must go from 0 on without a gap")
    return library, names | {entry["id"]: entry["content"] for entry in added}


def _cuts_at_spaces(file: Mapping[str, Any]) -> bool:
    """Whether a text may be cut before a space without a change of its ids: known of GPT-2's and BERT's way of reading.

    Others may mark the beginning of a text, or have tokens of several words.
    """
    kinds = [section and section.get("type") for section in (file.get("normalizer"), file.get("pre_tokenizer"))]
    if kinds == [None, "ByteLevel"]:
        known = file["pre_tokenizer"].get("use_regex", True) is True
    else:
        known = kinds == ["BertNormalizer", "BertPreTokenizer"]
    plain = (entry for entry in file.get("added_tokens") or () if not entry.get("special"))
    return known and not any(re.search(r"\s", entry["content"]) or entry.get("rstrip") for entry in plain)
