"""Conversion of texts to model inputs, which is the same in training, evaluation and prediction.

`TextReader`, `SentenceReader` and `RowReader` convert texts; `files.py` and `tables.py` read data files.

    classifier   the tokens of a text and END; long texts are truncated
    tagger       the words of a sentence, separated by spaces; long sentences are divided into parts, because every
                 word needs a tag
    pair         a and b in one row; if symmetric, a second row with b before a
    choice       a row for each option; the beginning of a long text is dropped, because options continue the text
    answer       the question, then the context; a long context is divided into overlapping windows

With a pretrained backbone, special tokens frame the inputs instead of END. If two texts do not fit, the
longer text is truncated first.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from seqloom.core.tokens import Specials
from seqloom.data.batching import Ragged
from seqloom.data.collate import FIRST, SPELLING, ExampleRows, TextBatches
from seqloom.text import Characters, CharactersConfig, Tokenizer, Words
from seqloom.text.base import Span
from seqloom.text.model_inputs import Form, Row, frame_length, frame_texts, truncated_lengths
from seqloom.text.word_spans import first_tokens, join_words, word_spans

SENTENCE_ENDS = frozenset(".!?…。！？।॥؟۔") | {"...", "?!", "!!", "??", "!!!", "???"}
MAX_COMPOUND = 9  # maximum number of words and punctuation marks of a vocabulary entry, such as rock-'n'-roll

MAX_SPELLING = 32  # maximum number of characters of a word; the middle of a longer word is dropped
SPELLING_STEP = 8  # the width of a batch of spellings is a multiple of this number, to limit the number of shapes


class Spellings:
    """The spellings of words as rows of characters, for models that read characters.

    A word is identified by the number of its row; number 0 is padding. Characters are ids of an alphabet
    learned from the training words: 0 is padding, and 1 is an unknown character. Words may be added at any
    time.
    """

    def __init__(self, alphabet: Characters) -> None:
        self.alphabet = alphabet
        self._numbers = {"": 0}
        self._rows = np.zeros((1, MAX_SPELLING), dtype=np.int32)
        self._lengths = np.zeros(1, dtype=np.int64)

    @classmethod
    def of_words(cls, words: Iterable[str]) -> "Spellings":
        """Create spellings with the characters of these words as alphabet."""
        return cls(Characters.train(CharactersConfig(), words))

    def numbers(self, words: Iterable[str]) -> list[int]:
        """Return the number of each word; a new word gets the next number."""
        return [self._numbers.setdefault(word, len(self._numbers)) for word in words]

    def characters(self, numbers: Tensor) -> Tensor:
        """Return the characters (…, C) of word numbers (…)."""
        if len(self._rows) < len(self._numbers):
            new = list(self._numbers)[len(self._rows) :]
            rows, lengths = np.zeros((len(new), MAX_SPELLING), dtype=np.int32), np.zeros(len(new), dtype=np.int64)
            for row, word in enumerate(new):
                ends = word if len(word) <= MAX_SPELLING else word[: MAX_SPELLING // 2] + word[-MAX_SPELLING // 2 :]
                ids = self.alphabet.encode(ends)
                rows[row, : len(ids)], lengths[row] = ids, len(ids)
            self._rows, self._lengths = np.concatenate([self._rows, rows]), np.concatenate([self._lengths, lengths])
        indices = numbers.numpy()
        longest = int(self._lengths[indices].max(initial=1))
        characters = self._rows[indices, : -(-longest // SPELLING_STEP) * SPELLING_STEP]
        return torch.from_numpy(characters.astype(np.int64))


@dataclass(frozen=True)
class TextFrame:
    """The special tokens around a text: one before it, one after it, and one between two texts."""

    specials: Specials
    form: Form
    texts: int = 1  # number of texts in a row

    before = 1  # number of special tokens before the text

    @property
    def length(self) -> int:
        return frame_length(self.texts)

    def around(self, tokens: Sequence[int]) -> list[int]:
        return frame_texts(self.specials, self.form, tokens).tokens


class TextReader:
    """A reader of texts for a classifier.

    With a vocabulary of words separated by white space, unknown pieces such as `film,` are split into
    words and punctuation, because corpora are often already tokenized, but typed texts are not.
    """

    def __init__(
        self, tokenizer: Tokenizer, spellings: Spellings | None, max_length: int | None, frame: TextFrame | None = None
    ) -> None:
        self.tokenizer, self.spellings, self.max_length, self.frame = tokenizer, spellings, max_length, frame
        self._splits_words = isinstance(tokenizer, Words) and tokenizer.config.split == "whitespace"
        self._pieces: dict[str, list[Span]] = {}  # piece of text → the spans of its tokens

    def read(self, text: str) -> tuple[str, list[Span]]:
        """Return the text that is tokenized, and the spans of its tokens in the original text."""
        if not self._splits_words:
            return text, self.tokenizer.spans(text)
        spans = [
            (match.start() + start, match.start() + end)
            for match in re.finditer(r"\S+", text)
            for start, end in self._cut(match[0])
        ]
        return " ".join([text[start:end] for start, end in spans]), spans

    def prepare_text(self, text: str) -> str:
        """Return the text that is tokenized."""
        return self.read(text)[0] if self._splits_words else text

    def _cut(self, piece: str) -> list[Span]:
        """Divide a piece into its longest known parts: `old-fashioned,` into `old-fashioned` and a comma."""
        if piece not in self._pieces:
            words, index, parts = [] if self._is_known(piece) else word_spans(piece), 0, []
            while index < len(words):
                start, limit = words[index][0], min(MAX_COMPOUND, len(words) - index)
                ends = [words[index + count][1] for count in range(limit)]
                count = next((n for n in range(limit, 1, -1) if self._is_known(piece[start : ends[n - 1]])), 1)
                parts.append((start, ends[count - 1]))
                index += count
            self._pieces[piece] = parts or [(0, len(piece))]
        return self._pieces[piece]

    def _is_known(self, piece: str) -> bool:
        return self.tokenizer.encode(piece) != [self.tokenizer.unknown]

    def batches(
        self,
        texts: Sequence[str],
        *,
        tokens: int,
        shapes: int | None = None,
        values: Mapping[str, ArrayLike] | None = None,
    ) -> TextBatches:
        """Return batches of texts, truncated to fit into their frames."""
        ids = self.tokenizer.encode_batch(map(self.prepare_text, texts))
        if self.frame is not None:
            room = None if self.max_length is None else self.max_length - self.frame.length
            was_cut, rows = [], []
            for text in ids:
                was_cut.append(room is not None and len(text) > room)
                rows.append(self.frame.around(text[:room]))
            return TextBatches(Ragged.plain(rows), was_cut=was_cut, tokens=tokens, shapes=shapes, values=values)
        encoded, spelled = Ragged.of(ids), None
        if self.spellings is not None:
            spelled = Ragged.of(map(self.spellings.numbers, map(self.pieces, texts)))  # END has number 0
        return TextBatches(
            encoded,
            spellings=self.spellings,
            spelled=spelled,
            tokens=tokens,
            shapes=shapes,
            max_length=self.max_length,
            values=values,
        )

    def pieces(self, text: str) -> list[str]:
        """Return the parts of the text at the spans of its tokens, including unknown words."""
        return [text[start:end] for start, end in self.read(text)[1]]

    def unknown(self, text: str) -> list[str]:
        """Return the parts of the text that are not in the vocabulary."""
        return self.tokenizer.unknown_pieces(self.prepare_text(text))


# --- sentences --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SentencePart:
    """Words `start` to `end` (exclusive) of a sentence."""

    sentence: int
    start: int
    end: int
    tokens: list[int]  # the tokens without END
    first: list[int]  # the position of the first token of each word


class SentenceReader:
    """A reader of sentences for a tagger."""

    def __init__(
        self, tokenizer: Tokenizer, spellings: Spellings | None, max_length: int | None, frame: TextFrame | None = None
    ) -> None:
        self.tokenizer, self.spellings, self.max_length, self.frame = tokenizer, spellings, max_length, frame

    def pieces(self, sentences: Iterable[Sequence[str]]) -> list[SentencePart]:
        """Return the parts of the sentences; an empty sentence has no parts."""
        parts: list[SentencePart] = []
        for number, words in enumerate(sentences):
            if not words:
                continue
            text, spans = join_words(words)
            ids = self.tokenizer.encode(text)
            first = first_tokens(self.tokenizer.spans(text), spans)
            borders = [*first, len(ids)]
            added = 1 if self.frame is None else self.frame.length  # number of tokens of END or the frame
            max_tokens = len(ids) if self.max_length is None else self.max_length - added
            for start, end in cut_sentence(words, borders, max_tokens):
                tokens = ids[borders[start] : borders[end]][: max(max_tokens, 1)]
                last = max(len(tokens) - 1, 0)  # position for a word that has no token
                positions = [min(position - borders[start], last) for position in first[start:end]]
                parts.append(SentencePart(number, start, end, tokens, positions))
        return parts

    def batches(
        self,
        sentences: Sequence[Sequence[str]],
        pieces: Sequence[SentencePart],
        *,
        tokens: int,
        shapes: int | None = None,
        tags: Sequence[Sequence[int]] | None = None,
    ) -> TextBatches:
        """Return batches of parts of these sentences; `tags` contains a number for each word of each part."""
        before = 0 if self.frame is None else self.frame.before
        words = {FIRST: Ragged.plain([[position + before for position in piece.first] for piece in pieces])}
        if tags is not None:
            words["tags"] = Ragged.plain(tags)
        if self.spellings is not None:
            parts = (sentences[piece.sentence][piece.start : piece.end] for piece in pieces)
            words[SPELLING] = Ragged.plain([self.spellings.numbers(part) for part in parts])
        if self.frame is None:
            texts = Ragged.of(piece.tokens for piece in pieces)
        else:
            texts = Ragged.plain([self.frame.around(piece.tokens) for piece in pieces])
        return TextBatches(texts, spellings=self.spellings, words=words, tokens=tokens, shapes=shapes)


def cut_sentence(words: Sequence[str], borders: Sequence[int], max_tokens: int) -> Iterator[tuple[int, int]]:
    """Divide a sentence into parts of at most `max_tokens` tokens; a longer word is a separate part.

    `borders` (W + 1) are the starts of the tokens of each word. A part ends after the last sentence-final punctuation
    mark that leaves the part at least half full; without such a mark, the part is filled completely.
    """
    start = 0
    while start < len(words):
        end = start + 1
        while end < len(words) and borders[end + 1] - borders[start] <= max_tokens:
            end += 1
        if end < len(words):
            half = start + (end - start) // 2
            end = next((border for border in range(end, half, -1) if words[border - 1] in SENTENCE_ENDS), end)
        yield start, end
        start = end


# --- rows of several texts --------------------------------------------------------------------------------------------


class RowReader:
    """A reader of rows in a frame, with at most `max_length` tokens including special tokens.

    With `split_punctuation`, words and punctuation marks are separated by spaces, as in WikiText and
    treebanks.
    """

    def __init__(
        self, tokenizer: Tokenizer, frame: TextFrame, max_length: int | None, split_punctuation: bool = False
    ) -> None:
        self.tokenizer, self.frame, self.max_length = tokenizer, replace(frame, texts=2), max_length
        self.split_punctuation = split_punctuation
        self._texts = TextReader(tokenizer, None, None)
        self._cache: dict[str, list[int]] = {}
        # The maximum number of tokens of all texts in a row, or None for no limit.
        self.room = None if max_length is None else max(max_length - self.frame.length, 0)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; the tokens are cached."""
        if text not in self._cache:
            self._cache[text] = self.tokenizer.encode(self._prepare_text(text))
        return self._cache[text]

    def read_ahead(self, texts: Iterable[str]) -> None:
        """Encode many texts in one batch, which is faster than encoding them one by one."""
        new = [text for text in texts if text not in self._cache]
        self._cache.update(zip(new, self.tokenizer.encode_batch(map(self._prepare_text, new)), strict=True))

    def spans(self, text: str) -> list[Span]:
        """Return the spans of the tokens in the original text."""
        if not self.split_punctuation:
            return self._texts.read(text)[1]
        words = word_spans(text)
        joined, joined_spans = join_words([text[start:end] for start, end in words])
        starts, ends = [start for start, _ in joined_spans], [end for _, end in joined_spans]
        spans = []
        for start, end in self.tokenizer.spans(joined):
            first, last = bisect_right(ends, start), bisect_left(starts, end) - 1
            if first > last:  # the token is only a space
                spans.append((words[last][1], words[last][1]))
            else:
                original = words[first][0] + max(start - starts[first], 0)
                spans.append((original, min(words[last][0] + end - starts[last], words[last][1])))
        return spans

    def _prepare_text(self, text: str) -> str:
        return separate_punctuation(text) if self.split_punctuation else self._texts.prepare_text(text)

    def unknown(self, *texts: str) -> list[str]:
        """Return the parts of the texts that are not in the vocabulary."""
        pieces = (piece for text in texts for piece in self.tokenizer.unknown_pieces(self._prepare_text(text)))
        return list(dict.fromkeys(pieces))

    def row(self, first: Sequence[int], second: Sequence[int]) -> Row:
        return frame_texts(self.frame.specials, self.frame.form, first, second)

    # --- pairs and choices ------------------------------------------------------------------------------------------

    def pair(self, first: str, second: str, symmetric: bool = False) -> ExampleRows:
        a, b, cut = self._truncate(self.encode(first), self.encode(second))
        rows = [self.row(a, b), *([self.row(b, a)] if symmetric else [])]
        return ExampleRows(rows, cut)

    def choice(self, text: str, options: Sequence[str]) -> ExampleRows:
        ids, rows, any_cut = self.encode(text), [], False
        for option in options:
            before, after, cut = self._truncate(ids, self.encode(option), keep_end=True)
            rows.append(self.row(before, after))
            any_cut |= cut
        return ExampleRows(rows, any_cut)

    def _truncate(self, a: list[int], b: list[int], keep_end: bool = False) -> tuple[list[int], list[int], bool]:
        """Truncate both texts to fit into a row; return the texts, and whether they were truncated."""
        if self.room is None or len(a) + len(b) <= self.room:
            return a, b, False
        a_length, b_length = truncated_lengths([len(a), len(b)], self.room)
        return a[len(a) - a_length :] if keep_end else a[:a_length], b[:b_length], True

    # --- answers ----------------------------------------------------------------------------------------------------

    def windows(
        self, number: int, question: str, context: str, max_question_length: int, stride: int | None
    ) -> Iterator["Window"]:
        """Yield the windows of a context; a window fills a row after at most `max_question_length` question tokens.

        `stride` is the distance between the starts of windows; None means half a window.
        """
        question_ids, ids, room = self.encode(question), self.encode(context), self.room
        cut, question_ids = len(question_ids) > max_question_length, question_ids[:max_question_length]
        size = max(len(ids), 1) if room is None else max(room - len(question_ids), 1)
        step = min(stride or max(size // 2, 1), size)
        start = 0
        while True:
            end = min(start + size, len(ids))
            yield Window(number, start, end, self.row(question_ids, ids[start:end]), cut)
            if end == len(ids):
                return
            start += step


def separate_punctuation(text: str) -> str:
    """Separate words and punctuation marks by spaces."""
    return join_words([text[start:end] for start, end in word_spans(text)])[0]


@dataclass(frozen=True)
class Window:
    """A row with question `number` and the tokens `start` to `end` of its context."""

    number: int
    start: int
    end: int
    row: Row
    cut: bool  # whether the question is truncated

    @property
    def shift(self) -> int:
        """The difference between the positions of a token in the row and in the context."""
        return self.row.starts[1] - self.start

    def rows(self) -> ExampleRows:
        start = self.row.starts[1]
        context = range(start, start + self.end - self.start)
        answerable = [p == self.row.cls_position or p in context for p in range(len(self.row.tokens))]
        return ExampleRows([self.row], self.cut, [answerable])

    def targets(self, span: tuple[int, int] | None) -> tuple[int, int]:
        """Return the positions of the first and last token of an answer, or of [CLS] if the window lacks the answer."""
        if span is None or span[0] < self.start or span[1] >= self.end:
            return self.row.cls_position, self.row.cls_position
        return span[0] + self.shift, span[1] + self.shift


def tokens_covering(spans: Sequence[Span], start: int, end: int) -> tuple[int, int] | None:
    """Return the first and last token that overlap characters `start` to `end`, or None if no token overlaps them."""
    inside = [index for index, (token_start, token_end) in enumerate(spans) if token_start < end and token_end > start]
    return (inside[0], inside[-1]) if inside else None
