"""Tokenizers with a list of tokens: the characters of the training text, or its words.

Words are what stands between white space, or words and punctuation marks apart.
"""

import re
import sys
import unicodedata
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Annotated, Any, Literal, Self

from seqloom.config import config
from seqloom.config.constraints import Ge, PositiveInt
from seqloom.core import END
from seqloom.core.errors import DataError
from seqloom.text.base import (
    END_TEXT,
    PIECE,
    UNKNOWN,
    UNKNOWN_TEXT,
    Span,
    StreamDecoder,
    Tokenizer,
    check_ids,
    cut_at_spaces,
    require_text,
    text_list,
)

# Stands before a piece that was written without a space before it. It is a symbol, never part of a word, and every
# symbol is a piece of its own: so a longer piece that begins with it can only be a marked one.
GLUE = "\N{HALFWIDTH BLACK SQUARE}"
NEWLINE = "\n"


class VocabularyTokenizer(Tokenizer):
    """`</s>`, `<unk>`, then the tokens that were learned."""

    unknown = UNKNOWN

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = [END_TEXT, UNKNOWN_TEXT, *tokens]
        self._ids = {token: id for id, token in enumerate(self._tokens) if id > UNKNOWN}

    def __len__(self) -> int:
        return len(self._tokens)

    def token(self, token: int) -> str:
        check_ids([token], len(self))
        return self._tokens[token]

    @abstractmethod
    def pieces(self, text: str) -> Iterable[str]:
        """Cut a text into what are tokens where they are known."""

    def encode(self, text: str) -> list[int]:
        get = self._ids.get
        return [get(piece, UNKNOWN) for piece in self.pieces(text)]

    def unknown_pieces(self, text: str) -> list[str]:
        return list(dict.fromkeys(piece for piece in self.pieces(text) if piece not in self._ids))


@config
class CharactersConfig:
    kind: Literal["characters"] = "characters"


class Characters(VocabularyTokenizer):
    """Every Unicode character of the training text is a token, in the order of their code points.

    Nothing is normalised: decode(encode(x)) = x for every x within the alphabet. An unknown
    character decodes to U+FFFD, so a text keeps its length.
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
        return (text[start : start + PIECE] for start in range(0, len(text), PIECE))

    def stream(self) -> StreamDecoder:
        return _CharacterStream(self)

    def content(self) -> dict[str, Any]:
        return {"alphabet": self.alphabet}

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Self:
        alphabet = text_list(content["alphabet"])
        if any(len(character) != 1 for character in alphabet) or len(set(alphabet)) != len(alphabet):
            raise ValueError("the alphabet must hold single characters, each once")
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
    min_count: PositiveInt = 1  # rarer words become <unk>
    max_size: Annotated[int, Ge(3)] | None = None  # tokens, </s> and <unk> included; the most frequent stay
    split: Literal["whitespace", "punctuation"] = "whitespace"  # punctuation: marks are tokens of their own
    lowercase: bool = False


class Words(VocabularyTokenizer):
    """The words by falling count; equal counts in the order of their code points.

    A line break within a document is a token; other white space only separates. So
    decode(encode(x)) = `normalise(x)` where every word is known, letters made lower-case included
    if `lowercase` is set. A word that is literally `<unk>` is the unknown word, since published
    texts mark theirs so.
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
        whole: Counter[str] = Counter()
        for text in texts:
            whole.update(untrained.whole_words(text))
        require_text(whole)
        counts = Counter[str]()
        for word, count in whole.items():
            for piece in untrained.split_word(word):
                counts[piece] += count
        counts.pop(UNKNOWN_TEXT, None)
        frequent = [word for word, count in counts.items() if count >= config.min_count]
        if not frequent:
            raise DataError(f"No word occurs {config.min_count} times. Lower tokenizer.min_count, or give more text.")
        frequent.sort(key=lambda word: (-counts[word], word))
        return cls(config, frequent[: None if config.max_size is None else config.max_size - 2])

    def whole_words(self, text: str) -> Iterator[str]:
        """Yield what stands between white space, and each line break."""
        first = True
        for line in (text.lower() if self.config.lowercase else text).split(NEWLINE):
            if not first:
                yield NEWLINE
            first = False
            yield from line.split()

    def split_word(self, word: str) -> list[str]:
        """Cut what stands between white space into pieces."""
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
        found: list[Span] = []
        for match in re.finditer(rf"{NEWLINE}|\S+", text):
            place, word = match.start(), match[0].lower() if self.config.lowercase else match[0]
            for piece in self.split_word(word):
                end = place + len(piece) - self.is_glued(piece)
                found.append((place, min(end, match.end())))  # İ has more letters when it is made lower-case
                place = found[-1][1]
        return found

    def stream(self) -> StreamDecoder:
        return _WordStream(self)

    def unknown_pieces(self, text: str) -> list[str]:
        return list(dict.fromkeys(map(self.plain, super().unknown_pieces(text))))

    def is_glued(self, piece: str) -> bool:
        """Whether a piece was written without a space before it."""
        return self.config.split == "punctuation" and len(piece) > 1 and piece[0] == GLUE

    def plain(self, piece: str) -> str:
        """Return a piece without the mark that no space stands before it."""
        return piece[1:] if self.is_glued(piece) else piece

    def content(self) -> dict[str, Any]:
        settings = {name: value for name, value in vars(self.config).items() if name != "kind"}
        return {**settings, "words": self.words}

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Self:
        settings = {name: value for name, value in content.items() if name != "words"}
        words = text_list(content["words"])
        if len({UNKNOWN_TEXT, *words}) != len(words) + 1 or not all(words):
            raise ValueError("the words must be distinct and not empty")
        if settings["split"] not in ("whitespace", "punctuation"):
            raise ValueError(f"split is {settings['split']!r}")
        return cls(WordsConfig(**settings), words)


def normalise(text: str) -> str:
    """Runs of white space become one space, lines lose it at both ends, line breaks stay."""
    return NEWLINE.join(" ".join(line.split()) for line in text.split(NEWLINE))


@cache
def _piece_pattern() -> re.Pattern[str]:
    """`<unk>` at the beginning, a run of letters, digits and their marks, or any single other character.

    Python's \\w leaves out combining marks, and would cut words of Hindi or decomposed é apart.
    """
    marks = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "M"]
    joiners = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"
    return re.compile(rf"\A{UNKNOWN_TEXT}|[\w{re.escape(''.join(marks))}{joiners}]+|.", re.DOTALL)


class _WordStream(StreamDecoder):
    def __init__(self, words: Words) -> None:
        self._words = words
        self._space = False  # whether a word that comes now is set apart by a space

    def push(self, token: int) -> str:
        word = self._words.token(token)
        if token == END or word == NEWLINE:
            self._space = False
            return NEWLINE if token != END else ""
        text = self._words.plain(word) if self._words.is_glued(word) else " " * self._space + word
        self._space = True
        return text
