"""From text to what a classifier or a tagger reads, the same in training, in evaluation and in use.

A classifier reads the tokens of a text and END after them, and of a long text the beginning alone. A tagger reads the
words of a sentence with a space between any two, whatever stood there, and of a long sentence one piece after the
other: each of its words must have a tag. For a model on a pretrained body a frame of special tokens stands around what
is read, in the place of END.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.data.batching import Ragged
from seqloom.data.collate import FIRST, SPELLING, TextBatches
from seqloom.text import Characters, CharactersConfig, Tokenizer, Words
from seqloom.text.base import Span
from seqloom.text.specials import Form, Specials, frame_length, framed
from seqloom.text.word_spans import first_tokens, join_words, word_spans

SENTENCE_ENDS = frozenset(".!?…。！？।॥؟۔") | {"...", "?!", "!!", "??", "!!!", "???"}
TOGETHER = 9  # words and marks that may be one entry of a vocabulary: over-the-top, rock-'n'-roll

MAX_SPELLING = 32  # characters of a word; of a longer one both ends are read
SPELLING_STEP = 8  # rows are as long as the longest word of a batch, rounded up to a multiple: few different shapes


class Spellings:
    """How words are spelled, for models that read it: rows of characters.

    A word is known by its number, that of its row; number 0 is no word, and its row has no characters. Characters are
    the ids of an alphabet learned from the training words: 0 is none, 1 is one that training did not have. Words may
    be added at any time.
    """

    def __init__(self, alphabet: Characters) -> None:
        self.alphabet = alphabet
        self._numbers = {"": 0}
        self._rows = np.zeros((1, MAX_SPELLING), dtype=np.int32)
        self._lengths = np.zeros(1, dtype=np.int64)

    @classmethod
    def learned(cls, words: Iterable[str]) -> "Spellings":
        """With the characters of these words as its alphabet."""
        return cls(Characters.train(CharactersConfig(), words))

    def numbers(self, words: Iterable[str]) -> list[int]:
        """The number of each word; a new word gets the next one."""
        return [self._numbers.setdefault(word, len(self._numbers)) for word in words]

    def characters(self, numbers: Tensor) -> Tensor:
        """Numbers (…) to characters (…, C)."""
        self._spell()
        places = numbers.numpy()
        longest = int(self._lengths[places].max(initial=1))
        rows = self._rows[places, : -(-longest // SPELLING_STEP) * SPELLING_STEP]
        return torch.from_numpy(rows.astype(np.int64))

    def _spell(self) -> None:
        """Rows for the words that have none yet."""
        if len(self._rows) == len(self._numbers):
            return
        new = list(self._numbers)[len(self._rows) :]
        rows, lengths = np.zeros((len(new), MAX_SPELLING), dtype=np.int32), np.zeros(len(new), dtype=np.int64)
        for place, word in enumerate(new):
            ends = word if len(word) <= MAX_SPELLING else word[: MAX_SPELLING // 2] + word[-MAX_SPELLING // 2 :]
            ids = self.alphabet.encode(ends)
            rows[place, : len(ids)], lengths[place] = ids, len(ids)
        self._rows, self._lengths = np.concatenate([self._rows, rows]), np.concatenate([self._lengths, lengths])


@dataclass(frozen=True)
class Frame:
    """The special tokens around a text, one before it and one after it; and where a row has two, one between."""

    specials: Specials
    form: Form
    texts: int = 1  # of a row

    before = 1  # tokens

    @property
    def length(self) -> int:
        return frame_length(self.form, self.texts)

    def around(self, tokens: Sequence[int]) -> list[int]:
        return framed(self.specials, self.form, tokens).tokens


class TextReader:
    """Reads texts for a classifier.

    Where a vocabulary of what stands between white space does not have a piece of text, `film,` say, words and marks in
    it are told apart: files are often written so that they already are, and what people type is not.
    """

    def __init__(
        self, tokenizer: Tokenizer, spellings: Spellings | None, max_length: int | None, frame: Frame | None = None
    ) -> None:
        self.tokenizer, self.spellings, self.max_length, self.frame = tokenizer, spellings, max_length, frame
        self._apart = isinstance(tokenizer, Words) and tokenizer.config.split == "whitespace"
        self._pieces: dict[str, list[Span]] = {}  # how a piece of text falls into tokens

    def read(self, text: str) -> tuple[str, list[Span]]:
        """The text as its tokens are taken from it, and where in the text that was given each of them stands."""
        if not self._apart:
            return text, self.tokenizer.spans(text)
        found = [
            (match.start() + start, match.start() + end)
            for match in re.finditer(r"\S+", text)
            for start, end in self._cut(match[0])
        ]
        return " ".join([text[start:end] for start, end in found]), found

    def written(self, text: str) -> str:
        """The text as its tokens are taken from it."""
        return self.read(text)[0] if self._apart else text

    def _cut(self, piece: str) -> list[Span]:
        if piece not in self._pieces:
            whole = [(0, len(piece))]
            self._pieces[piece] = whole if self._known(piece) else self._known_parts(piece) or whole
        return self._pieces[piece]

    def _known_parts(self, piece: str) -> list[Span]:
        """From the left the longest parts that are known: `old-fashioned,` is old-fashioned and a comma."""
        words, place, found = word_spans(piece), 0, []
        while place < len(words):
            start, most = words[place][0], min(TOGETHER, len(words) - place)
            ends = [words[place + count][1] for count in range(most)]
            count = next((n for n in range(most, 1, -1) if self._known(piece[start : ends[n - 1]])), 1)
            found.append((start, ends[count - 1]))
            place += count
        return found

    def _known(self, piece: str) -> bool:
        return self.tokenizer.encode(piece) != [self.tokenizer.unknown]

    def batches(self, texts: Sequence[str], *, tokens: int, **options: Any) -> TextBatches:
        """`options` are those of `TextBatches`."""
        ids = self.tokenizer.encode_batch(map(self.written, texts))
        if self.frame is not None:
            return self._framed(self.frame, ids, tokens=tokens, **options)
        encoded, spelled = Ragged.of(ids), None
        if self.spellings is not None:
            spelled = Ragged.of(map(self.spellings.numbers, map(self.pieces, texts)))  # END is no word: number 0
        return TextBatches(
            encoded, spellings=self.spellings, spelled=spelled, tokens=tokens, max_length=self.max_length, **options
        )

    def _framed(self, frame: Frame, texts: Iterable[Sequence[int]], **options: Any) -> TextBatches:
        """The beginnings of texts, as much as there is room for within their frames."""
        room = None if self.max_length is None else self.max_length - frame.length
        lengths, rows = [], []
        for ids in texts:
            lengths.append(len(ids))
            rows.append(frame.around(ids[:room]))
        was_cut = [room is not None and length > room for length in lengths]
        return TextBatches(Ragged.plain(rows), was_cut=was_cut, **options)

    def pieces(self, text: str) -> list[str]:
        """What stands in the text where its tokens are: of an unknown word the word."""
        return [text[start:end] for start, end in self.read(text)[1]]

    def unknown(self, text: str) -> list[str]:
        """What the vocabulary does not have."""
        return self.tokenizer.unknown_pieces(self.written(text))


@dataclass(frozen=True)
class Piece:
    """Words `start` to `end` of a sentence, the last one not included."""

    sentence: int
    start: int
    end: int
    tokens: list[int]  # without END
    first: list[int]  # the place of each word's first token


class SentenceReader:
    def __init__(
        self, tokenizer: Tokenizer, spellings: Spellings | None, max_length: int | None, frame: Frame | None = None
    ) -> None:
        self.tokenizer, self.spellings, self.max_length, self.frame = tokenizer, spellings, max_length, frame

    def pieces(self, sentences: Iterable[Sequence[str]]) -> list[Piece]:
        """In the order of the sentences; one without words has none."""
        return [piece for number, words in enumerate(sentences) if words for piece in self._sentence(number, words)]

    def _sentence(self, number: int, words: Sequence[str]) -> Iterator[Piece]:
        text, spans = join_words(words)
        ids = self.tokenizer.encode(text)
        first = first_tokens(self.tokenizer.spans(text), spans)
        borders = [*first, len(ids)]
        added = 1 if self.frame is None else self.frame.length  # END comes after them, or a frame around
        most = len(ids) if self.max_length is None else self.max_length - added
        for start, end in cuts(words, borders, most):
            tokens = ids[borders[start] : borders[end]][: max(most, 1)]
            last = max(len(tokens) - 1, 0)  # a word without a token of its own has the last
            yield Piece(number, start, end, tokens, [min(place - borders[start], last) for place in first[start:end]])

    def batches(
        self,
        sentences: Sequence[Sequence[str]],
        pieces: Sequence[Piece],
        *,
        tags: Sequence[Sequence[int]] | None = None,
        **options: Any,
    ) -> TextBatches:
        """Batches of pieces of these sentences. `tags` has a number for each word of each piece."""
        before = 0 if self.frame is None else self.frame.before
        words = {FIRST: Ragged.plain([[place + before for place in piece.first] for piece in pieces])}
        if tags is not None:
            words["tags"] = Ragged.plain(tags)
        if self.spellings is not None:
            own = (sentences[piece.sentence][piece.start : piece.end] for piece in pieces)
            words[SPELLING] = Ragged.plain([self.spellings.numbers(each) for each in own])
        if self.frame is None:
            texts = Ragged.of(piece.tokens for piece in pieces)
        else:
            texts = Ragged.plain([self.frame.around(piece.tokens) for piece in pieces])
        return TextBatches(texts, spellings=self.spellings, words=words, **options)


def cuts(words: Sequence[str], borders: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Where to cut a sentence, so that no piece has more than `most` tokens, or it is one word alone.

    `borders` (W + 1) says where the tokens of each word begin. Of the places that leave a piece at least half full, the
    last one after the end of a sentence is best; if there is none, the last one of all.
    """
    start = 0
    while start < len(words):
        end = start + 1
        while end < len(words) and borders[end + 1] - borders[start] <= most:
            end += 1
        if end < len(words):
            half = start + (end - start) // 2
            end = next((place for place in range(end, half, -1) if words[place - 1] in SENTENCE_ENDS), end)
        yield start, end
        start = end
