"""Tokenizers whose vocabulary consists of the characters or words of the training text.

Texts are split at white space and, optionally, at punctuation marks.
"""

import re
import sys
import unicodedata
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Annotated, Literal, Self

from seqloom.config import config
from seqloom.config.constraints import Ge, PositiveInt
from seqloom.core import END, Json
from seqloom.core.errors import DataError
from seqloom.text.base import (
    END_TEXT,
    PIECE_LENGTH,
    UNKNOWN,
    UNKNOWN_TEXT,
    Span,
    StreamDecoder,
    Tokenizer,
    check_ids,
    cut_at_spaces,
    require_strings,
    require_text,
)

# Marks a piece without a preceding space. The mark is a symbol, and symbols are always single pieces. A longer piece
# that starts with the mark is therefore unambiguous.
GLUE = "\N{HALFWIDTH BLACK SQUARE}"
NEWLINE = "\n"


class VocabularyTokenizer(Tokenizer):
    """Base class of tokenizers with a vocabulary: `</s>`, `<unk>`, then the learned tokens."""

    unknown = UNKNOWN

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = [END_TEXT, UNKNOWN_TEXT, *tokens]
        self._ids = {token: id for id, token in enumerate(self._tokens) if id > UNKNOWN}

    def __len__(self) -> int:
        return len(self._tokens)

    def token(self, token_id: int) -> str:
        check_ids([token_id], len(self))
        return self._tokens[token_id]

    def spell(self, token_id: int) -> bytes:
        return self.token(token_id).encode() if token_id > UNKNOWN else b""

    @abstractmethod
    def pieces(self, text: str) -> Iterable[str]:
        """Split a text into the pieces that are looked up in the vocabulary."""

    def encode(self, text: str) -> list[int]:
        get = self._ids.get
        return [get(piece, UNKNOWN) for piece in self.pieces(text)]

    def unknown_pieces(self, text: str) -> list[str]:
        return list(dict.fromkeys(piece for piece in self.pieces(text) if piece not in self._ids))


@config
class CharactersConfig:
    kind: Literal["characters"] = "characters"


class Characters(VocabularyTokenizer):
    """A tokenizer whose tokens are the Unicode characters of the training text, sorted by code point.

    Text is not normalized: decode(encode(x)) = x for every x within the alphabet. An unknown character decodes to
    U+FFFD, which preserves the length of a text.
    """

    kind = "characters"

    def __init__(self, alphabet: Iterable[str]) -> None:
        self.alphabet = list(alphabet)
        super().__init__(self.alphabet)

    @classmethod
    def train(cls, config: CharactersConfig, texts: Iterable[str]) -> Self:
        alphabet: set[str] = set()
        for text in texts:
            alphabet.update(text)
        require_text(alphabet)
        return cls(sorted(alphabet))

    def pieces(self, text: str) -> Iterable[str]:
        return text

    def cut(self, text: str) -> Iterator[str]:
        return (text[start : start + PIECE_LENGTH] for start in range(0, len(text), PIECE_LENGTH))

    def stream(self) -> StreamDecoder:
        return _CharacterStream(self)

    def content(self) -> dict[str, Json]:
        return {"alphabet": self.alphabet}

    @classmethod
    def from_content(cls, content: Mapping[str, Json]) -> Self:
        alphabet = require_strings(content["alphabet"])
        if any(len(character) != 1 for character in alphabet) or len(set(alphabet)) != len(alphabet):
            raise ValueError("the alphabet must contain distinct single characters")
        return cls(alphabet)


class _CharacterStream(StreamDecoder):
    def __init__(self, tokenizer: Characters) -> None:
        self._texts = ["", "\N{REPLACEMENT CHARACTER}", *tokenizer.alphabet]

    def push(self, token: int) -> str:
        check_ids([token], len(self._texts))
        return self._texts[token]


@config
class WordsConfig:
    kind: Literal["words"] = "words"
    min_count: PositiveInt = 1  # words with a lower count become <unk>
    max_size: Annotated[int, Ge(3)] | None = None  # maximum vocabulary size, including </s> and <unk>
    split: Literal["whitespace", "punctuation"] = "whitespace"  # punctuation: punctuation marks are separate tokens
    lowercase: bool = False


class Words(VocabularyTokenizer):
    """A tokenizer whose tokens are words, sorted by descending frequency, then by code points.

    A line break within a document is a token; other white space only separates words. If every word is known,
    decode(encode(x)) equals `normalize(x)`, in lowercase if `lowercase` is set. `<unk>` in a text is encoded as the
    unknown word, as in published corpora.
    """

    kind = "words"
    separates_words = True

    def __init__(self, config: WordsConfig, words: Iterable[str]) -> None:
        self.config, self.words = config, list(words)
        super().__init__(self.words)
        self._ids[UNKNOWN_TEXT] = UNKNOWN
        self._word_ids = lru_cache(maxsize=1 << 17)(self._encode_word)

    @classmethod
    def train(cls, config: WordsConfig, texts: Iterable[str]) -> Self:
        untrained = cls(config, [])
        word_counts: Counter[str] = Counter()
        for text in texts:
            word_counts.update(untrained.whole_words(text))
        require_text(word_counts)
        counts = Counter[str]()
        for word, count in word_counts.items():
            for piece in untrained.split_word(word):
                counts[piece] += count
        counts.pop(UNKNOWN_TEXT, None)
        frequent = [word for word, count in counts.items() if count >= config.min_count]
        if not frequent:
            raise DataError(f"No word occurs {config.min_count} times. Lower tokenizer.min_count, or use more text.")
        frequent.sort(key=lambda word: (-counts[word], word))
        return cls(config, frequent[: None if config.max_size is None else config.max_size - 2])

    def whole_words(self, text: str) -> Iterator[str]:
        """Yield the words separated by white space, and each line break."""
        is_first = True
        for line in (text.lower() if self.config.lowercase else text).split(NEWLINE):
            if not is_first:
                yield NEWLINE
            is_first = False
            yield from line.split()

    def split_word(self, word: str) -> list[str]:
        """Divide a word into pieces."""
        if self.config.split == "whitespace":
            return [word]
        first, *others = _piece_pattern().findall(word)
        return [first, *(GLUE + piece for piece in others)]

    def pieces(self, text: str) -> Iterable[str]:
        return (piece for word in self.whole_words(text) for piece in self.split_word(word))

    def _encode_word(self, word: str) -> tuple[int, ...]:
        return tuple(self._ids.get(piece, UNKNOWN) for piece in self.split_word(word))

    def encode(self, text: str) -> list[int]:
        words = self.whole_words(text)
        if self.config.split == "whitespace":
            get = self._ids.get
            return [get(word, UNKNOWN) for word in words]
        word_ids = self._word_ids
        return [id for word in words for id in word_ids(word)]

    def cut(self, text: str) -> Iterator[str]:
        return cut_at_spaces(text)

    def spans(self, text: str) -> list[Span]:
        spans: list[Span] = []
        for match in re.finditer(rf"{NEWLINE}|\S+", text):
            start, word = match.start(), match[0].lower() if self.config.lowercase else match[0]
            for piece in self.split_word(word):
                end = start + len(piece) - self.is_glued(piece)
                spans.append((start, min(end, match.end())))  # İ has two characters in lowercase
                start = spans[-1][1]
        return spans

    def stream(self) -> StreamDecoder:
        return _WordStream(self)

    def unknown_pieces(self, text: str) -> list[str]:
        return list(dict.fromkeys(map(self.plain, super().unknown_pieces(text))))

    def spell(self, token_id: int) -> bytes:
        piece = self.token(token_id)
        if token_id <= UNKNOWN or piece == NEWLINE:
            return NEWLINE.encode() if piece == NEWLINE else b""
        return (self.plain(piece) if self.is_glued(piece) else f" {piece}").encode()

    def is_glued(self, piece: str) -> bool:
        """Return whether a piece is not preceded by a space."""
        return self.config.split == "punctuation" and len(piece) > 1 and piece[0] == GLUE

    def plain(self, piece: str) -> str:
        """Return a piece without the mark for a missing space."""
        return piece[1:] if self.is_glued(piece) else piece

    def content(self) -> dict[str, Json]:
        settings = {name: value for name, value in vars(self.config).items() if name != "kind"}
        return {**settings, "words": self.words}

    @classmethod
    def from_content(cls, content: Mapping[str, Json]) -> Self:
        settings = {name: value for name, value in content.items() if name != "words"}
        words = require_strings(content["words"])
        if len({UNKNOWN_TEXT, *words}) != len(words) + 1 or not all(words):
            raise ValueError("the words must be distinct and nonempty")
        if settings["split"] not in ("whitespace", "punctuation"):
            raise ValueError(f"split must be whitespace or punctuation; got {settings['split']!r}")
        return cls(WordsConfig(**settings), words)


def normalize(text: str) -> str:
    """Collapse white space to single spaces and strip lines. Line breaks are kept."""
    return NEWLINE.join(" ".join(line.split()) for line in text.split(NEWLINE))


@cache
def _piece_pattern() -> re.Pattern[str]:
    """Return a pattern for the pieces of a word.

    The pattern matches `<unk>` at the start, letters and digits with combining marks, or any other character.

    Python's \\w does not match combining marks and would split words of Hindi or a decomposed é.
    """
    marks = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "M"]
    joiners = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"
    return re.compile(rf"\A{UNKNOWN_TEXT}|[\w{re.escape(''.join(marks))}{joiners}]+|.", re.DOTALL)


class _WordStream(StreamDecoder):
    def __init__(self, words: Words) -> None:
        self._words = words
        self._needs_space = False  # whether a space precedes the next word

    def push(self, token: int) -> str:
        word = self._words.token(token)
        if token == END or word == NEWLINE:
            self._needs_space = False
            return NEWLINE if token != END else ""
        text = self._words.plain(word) if self._words.is_glued(word) else " " * self._needs_space + word
        self._needs_space = True
        return text
