"""Characters: every Unicode character of the training text is a token."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Self

from seqloom.config import config
from seqloom.text.base import (
    END,
    END_TEXT,
    UNKNOWN,
    UNKNOWN_TEXT,
    StreamDecoder,
    Tokenizer,
    check_ids,
    each_once,
    require_text,
    text_list,
)
from seqloom.text.pieces import PIECE


@config
class CharactersConfig:
    kind: Literal["characters"] = "characters"


class Characters(Tokenizer):
    """`</s>`, `<unk>`, then the characters in the order of their code points.

    Nothing is normalised: decode(encode(x)) = x for every x within the alphabet. An unknown character decodes to
    U+FFFD, so a text keeps its length.
    """

    kind = "characters"
    unknown = UNKNOWN

    def __init__(self, alphabet: Iterable[str]) -> None:
        self.alphabet = list(alphabet)
        self._texts = ["", "\N{REPLACEMENT CHARACTER}", *self.alphabet]
        self._ids = {character: id for id, character in enumerate(self.alphabet, start=UNKNOWN + 1)}

    @classmethod
    def train(cls, config: CharactersConfig, texts: Iterable[str]) -> Self:
        alphabet: set[str] = set()
        for text in texts:
            alphabet.update(text)
        require_text(alphabet)
        return cls(sorted(alphabet))

    def __len__(self) -> int:
        return len(self._texts)

    def encode(self, text: str) -> list[int]:
        get = self._ids.get
        return [get(character, UNKNOWN) for character in text]

    def cut(self, text: str) -> Iterator[str]:
        return (text[start : start + PIECE] for start in range(0, len(text), PIECE))

    def stream(self) -> StreamDecoder:
        return _CharacterStream(self._texts)

    def token(self, token: int) -> str:
        check_ids([token], len(self))
        return {END: END_TEXT, UNKNOWN: UNKNOWN_TEXT}.get(token, self._texts[token])

    def unknown_pieces(self, text: str) -> list[str]:
        return each_once(character for character in text if character not in self._ids)

    def content(self) -> dict[str, Any]:
        return {"alphabet": self.alphabet}

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Self:
        alphabet = text_list(content["alphabet"])
        if any(len(character) != 1 for character in alphabet) or len(set(alphabet)) != len(alphabet):
            raise ValueError("the alphabet must hold single characters, each once")
        return cls(alphabet)


class _CharacterStream(StreamDecoder):
    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def push(self, token: int) -> str:
        check_ids([token], len(self._texts))
        return self._texts[token]
