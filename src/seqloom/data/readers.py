"""From text to what a model reads, the same in training, in evaluation and in use.

    classifier   the tokens of a text and END after them; of a long text the beginning alone
    tagger       the words of a sentence with a space between any two, whatever stood there; a long sentence one part
                 after the other, since each of its words must have a tag
    pair         a and b in one row; where symmetric, in two, b before a in the second
    choice       a row for each option; of a text that is too long its end is read, where an option goes on
    answer       the question, then the context; a long context in windows that overlap

For a model on a pretrained backbone a frame of special tokens stands around what is read, in the place
of END. Where two texts have no room, the longer one gives way first.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from seqloom.core.tokens import Specials
from seqloom.data.batching import Ragged
from seqloom.data.collate import FIRST, SPELLING, ExampleRows, TextBatches
from seqloom.text import Characters, CharactersConfig, Tokenizer, Words
from seqloom.text.base import Span
from seqloom.text.model_inputs import Form, Row, frame_length, framed, shortened
from seqloom.text.word_spans import first_tokens, join_words, word_spans

SENTENCE_ENDS = frozenset(".!?…。！？।॥؟۔") | {"...", "?!", "!!", "??", "!!!", "???"}
TOGETHER = 9  # words and marks that may be one entry of a vocabulary: over-the-top, rock-'n'-roll

MAX_SPELLING = 32  # characters of a word; of a longer one both ends are read
SPELLING_STEP = 8  # rows are as long as the longest word of a batch, rounded up to a multiple: few different shapes


class Spellings:
    """How words are spelled, for models that read it: rows of characters.

    A word is known by its number, that of its row; number 0 is no word, and its row has no
    characters. Characters are the ids of an alphabet learned from the training words: 0 is none, 1
    is one that training did not have. Words may be added at any time.
    """

    def __init__(self, alphabet: Characters) -> None:
        self.alphabet = alphabet
        self._numbers = {"": 0}
        self._rows = np.zeros((1, MAX_SPELLING), dtype=np.int32)
        self._lengths = np.zeros(1, dtype=np.int64)

    @classmethod
    def of_words(cls, words: Iterable[str]) -> "Spellings":
        """With the characters of these words as its alphabet."""
        return cls(Characters.train(CharactersConfig(), words))

    def numbers(self, words: Iterable[str]) -> list[int]:
        """The number of each word; a new word gets the next one."""
        return [self._numbers.setdefault(word, len(self._numbers)) for word in words]

    def characters(self, numbers: Tensor) -> Tensor:
        """Numbers (…) to characters (…, C)."""
        if len(self._rows) < len(self._numbers):
            new = list(self._numbers)[len(self._rows) :]
            rows, lengths = np.zeros((len(new), MAX_SPELLING), dtype=np.int32), np.zeros(len(new), dtype=np.int64)
            for place, word in enumerate(new):
                ends = word if len(word) <= MAX_SPELLING else word[: MAX_SPELLING // 2] + word[-MAX_SPELLING // 2 :]
                ids = self.alphabet.encode(ends)
                rows[place, : len(ids)], lengths[place] = ids, len(ids)
            self._rows, self._lengths = np.concatenate([self._rows, rows]), np.concatenate([self._lengths, lengths])
        places = numbers.numpy()
        longest = int(self._lengths[places].max(initial=1))
        spelled = self._rows[places, : -(-longest // SPELLING_STEP) * SPELLING_STEP]
        return torch.from_numpy(spelled.astype(np.int64))


@dataclass(frozen=True)
class TextFrame:
    """The special tokens around a text, one before it and one after it; and where a row has two, one between."""

    specials: Specials
    form: Form
    texts: int = 1  # of a row

    before = 1  # tokens

    @property
    def length(self) -> int:
        return frame_length(self.texts)

    def around(self, tokens: Sequence[int]) -> list[int]:
        return framed(self.specials, self.form, tokens).tokens


class TextReader:
    """Reads texts for a classifier.

    Where a vocabulary of what stands between white space does not have a piece of text, `film,`
    say, words and marks in it are told apart: files are often written so that they already are, and
    what people type is not.
    """

    def __init__(
        self, tokenizer: Tokenizer, spellings: Spellings | None, max_length: int | None, frame: TextFrame | None = None
    ) -> None:
        self.tokenizer, self.spellings, self.max_length, self.frame = tokenizer, spellings, max_length, frame
        self._apart = isinstance(tokenizer, Words) and tokenizer.config.split == "whitespace"
        self._pieces: dict[str, list[Span]] = {}  # how a piece of text falls into tokens

    def read(self, text: str) -> tuple[str, list[Span]]:
        """Return the text as its tokens are taken from it, and where in the text that was given each of them stands."""
        if not self._apart:
            return text, self.tokenizer.spans(text)
        spans = [
            (match.start() + start, match.start() + end)
            for match in re.finditer(r"\S+", text)
            for start, end in self._cut(match[0])
        ]
        return " ".join([text[start:end] for start, end in spans]), spans

    def written(self, text: str) -> str:
        """Return the text as its tokens are taken from it."""
        return self.read(text)[0] if self._apart else text

    def _cut(self, piece: str) -> list[Span]:
        """Return the longest known parts from the left: `old-fashioned,` is old-fashioned and a comma."""
        if piece not in self._pieces:
            words, place, parts = [] if self._is_known(piece) else word_spans(piece), 0, []
            while place < len(words):
                start, most = words[place][0], min(TOGETHER, len(words) - place)
                ends = [words[place + count][1] for count in range(most)]
                count = next((n for n in range(most, 1, -1) if self._is_known(piece[start : ends[n - 1]])), 1)
                parts.append((start, ends[count - 1]))
                place += count
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
        values: Mapping[str, Sequence[int]] | None = None,
    ) -> TextBatches:
        """Return batches of texts, or of the beginnings that have room within their frames."""
        ids = self.tokenizer.encode_batch(map(self.written, texts))
        if self.frame is not None:
            room = None if self.max_length is None else self.max_length - self.frame.length
            was_cut, rows = [], []
            for text in ids:
                was_cut.append(room is not None and len(text) > room)
                rows.append(self.frame.around(text[:room]))
            return TextBatches(Ragged.plain(rows), was_cut=was_cut, tokens=tokens, shapes=shapes, values=values)
        encoded, spelled = Ragged.of(ids), None
        if self.spellings is not None:
            spelled = Ragged.of(map(self.spellings.numbers, map(self.pieces, texts)))  # END is no word: number 0
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
        """Return what stands in the text where its tokens are: of an unknown word the word."""
        return [text[start:end] for start, end in self.read(text)[1]]

    def unknown(self, text: str) -> list[str]:
        """Return what the vocabulary does not have."""
        return self.tokenizer.unknown_pieces(self.written(text))


# --- sentences --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SentencePart:
    """Words `start` to `end` of a sentence, the last one not included."""

    sentence: int
    start: int
    end: int
    tokens: list[int]  # without END
    first: list[int]  # the place of each word's first token


class SentenceReader:
    """Reads sentences for a tagger."""

    def __init__(
        self, tokenizer: Tokenizer, spellings: Spellings | None, max_length: int | None, frame: TextFrame | None = None
    ) -> None:
        self.tokenizer, self.spellings, self.max_length, self.frame = tokenizer, spellings, max_length, frame

    def pieces(self, sentences: Iterable[Sequence[str]]) -> list[SentencePart]:
        """Return the parts of the sentences, in their order; one without words has none."""
        parts: list[SentencePart] = []
        for number, words in enumerate(sentences):
            if not words:
                continue
            text, spans = join_words(words)
            ids = self.tokenizer.encode(text)
            first = first_tokens(self.tokenizer.spans(text), spans)
            borders = [*first, len(ids)]
            added = 1 if self.frame is None else self.frame.length  # END comes after them, or a frame around
            most = len(ids) if self.max_length is None else self.max_length - added
            for start, end in cuts(words, borders, most):
                tokens = ids[borders[start] : borders[end]][: max(most, 1)]
                last = max(len(tokens) - 1, 0)  # a word without a token of its own has the last
                places = [min(place - borders[start], last) for place in first[start:end]]
                parts.append(SentencePart(number, start, end, tokens, places))
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
        """Return batches of parts of these sentences. `tags` has a number for each word of each part."""
        before = 0 if self.frame is None else self.frame.before
        words = {FIRST: Ragged.plain([[place + before for place in piece.first] for piece in pieces])}
        if tags is not None:
            words["tags"] = Ragged.plain(tags)
        if self.spellings is not None:
            spelled = (sentences[piece.sentence][piece.start : piece.end] for piece in pieces)
            words[SPELLING] = Ragged.plain([self.spellings.numbers(each) for each in spelled])
        if self.frame is None:
            texts = Ragged.of(piece.tokens for piece in pieces)
        else:
            texts = Ragged.plain([self.frame.around(piece.tokens) for piece in pieces])
        return TextBatches(texts, spellings=self.spellings, words=words, tokens=tokens, shapes=shapes)


def cuts(words: Sequence[str], borders: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Where to cut a sentence, so that no piece has more than `most` tokens, or it is one word alone.

    `borders` (W + 1) says where the tokens of each word begin. Of the places that leave a piece at
    least half full, the last one after the end of a sentence is best; if there is none, the last
    one of all.
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


# --- rows of several texts --------------------------------------------------------------------------------------------


class RowReader:
    """Reads texts for a model whose rows stand in this frame, of at most `max_length` tokens, special ones included.

    With `apart`, words and marks are read with a space between any two, as WikiText and other
    treebanks write them.
    """

    def __init__(self, tokenizer: Tokenizer, frame: TextFrame, max_length: int | None, apart: bool = False) -> None:
        self.tokenizer, self.frame, self.max_length, self.apart = tokenizer, replace(frame, texts=2), max_length, apart
        self._texts = TextReader(tokenizer, None, None)
        self._known: dict[str, list[int]] = {}
        # how many tokens the texts of a row may have together; None for any number
        self.room = None if max_length is None else max(max_length - self.frame.length, 0)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; it is often read more than once."""
        if text not in self._known:
            self._known[text] = self.tokenizer.encode(self._written(text))
        return self._known[text]

    def read_ahead(self, texts: Iterable[str]) -> None:
        """Encode many texts at once, which is faster than one after the other."""
        new = [text for text in texts if text not in self._known]
        self._known.update(zip(new, self.tokenizer.encode_batch(map(self._written, new)), strict=True))

    def spans(self, text: str) -> list[Span]:
        """Where in the text, as it was given, each of its tokens stands."""
        if not self.apart:
            return self._texts.read(text)[1]
        words = word_spans(text)
        joined, places = join_words([text[start:end] for start, end in words])
        begins, ends = [start for start, _ in places], [end for _, end in places]
        spans = []
        for start, end in self.tokenizer.spans(joined):  # of the joined words, to those of the text
            first, last = bisect_right(ends, start), bisect_left(begins, end) - 1
            if first > last:  # a space alone
                spans.append((words[last][1], words[last][1]))
            else:
                begin = words[first][0] + max(start - begins[first], 0)
                spans.append((begin, min(words[last][0] + end - begins[last], words[last][1])))
        return spans

    def _written(self, text: str) -> str:
        return set_apart(text) if self.apart else self._texts.written(text)

    def unknown(self, *texts: str) -> list[str]:
        """What the vocabulary does not have."""
        found = (piece for text in texts for piece in self.tokenizer.unknown_pieces(self._written(text)))
        return list(dict.fromkeys(found))

    def row(self, first: Sequence[int], second: Sequence[int]) -> Row:
        return framed(self.frame.specials, self.frame.form, first, second)

    # --- pairs and choices ------------------------------------------------------------------------------------------

    def pair(self, first: str, second: str, symmetric: bool = False) -> ExampleRows:
        one, other, cut = self._fitted(self.encode(first), self.encode(second))
        rows = [self.row(one, other), *([self.row(other, one)] if symmetric else [])]
        return ExampleRows(rows, cut)

    def choice(self, text: str, options: Sequence[str]) -> ExampleRows:
        ids, rows, any_cut = self.encode(text), [], False
        for option in options:
            before, after, cut = self._fitted(ids, self.encode(option), from_end=True)
            rows.append(self.row(before, after))
            any_cut |= cut
        return ExampleRows(rows, any_cut)

    def _fitted(self, one: list[int], other: list[int], from_end: bool = False) -> tuple[list[int], list[int], bool]:
        """Both texts as far as there is room, and whether anything was cut."""
        room = self.room
        if room is None or len(one) + len(other) <= room:
            return one, other, False
        kept, also = shortened([len(one), len(other)], room)
        return one[len(one) - kept :] if from_end else one[:kept], other[:also], True

    # --- answers ----------------------------------------------------------------------------------------------------

    def windows(self, number: int, question: str, context: str, most: int, stride: int | None) -> Iterator["Window"]:
        """The windows of a context: each as many tokens as have room beside the question, of which `most` are read.

        `stride` is from the beginning of one to that of the next; None for half a window.
        """
        asked, ids, room = self.encode(question), self.encode(context), self.room
        cut, asked = len(asked) > most, asked[:most]
        size = max(len(ids), 1) if room is None else max(room - len(asked), 1)
        step = min(stride or max(size // 2, 1), size)
        start = 0
        while True:
            end = min(start + size, len(ids))
            yield Window(number, start, end, self.row(asked, ids[start:end]), cut)
            if end == len(ids):
                return
            start += step


def set_apart(text: str) -> str:
    """Words and marks with a space between any two."""
    return join_words([text[start:end] for start, end in word_spans(text)])[0]


@dataclass(frozen=True)
class Window:
    """Tokens `start` to `end` of the context of question `number`, in a row with the question."""

    number: int
    start: int
    end: int
    row: Row
    cut: bool  # whether only the beginning of the question is read

    @property
    def shift(self) -> int:
        """What is added to a token's number in the context to have its place in the row."""
        return self.row.starts[1] - self.start

    def rows(self) -> ExampleRows:
        begin = self.row.starts[1]
        context = range(begin, begin + self.end - self.start)
        places = [place == self.row.summary or place in context for place in range(len(self.row.tokens))]
        return ExampleRows([self.row], self.cut, [places])

    def targets(self, span: tuple[int, int] | None) -> tuple[int, int]:
        """Where in the row the first and the last of the answer's tokens stand; at [CLS] if they are not both here."""
        if span is None or span[0] < self.start or span[1] >= self.end:
            return self.row.summary, self.row.summary
        return span[0] + self.shift, span[1] + self.shift


def covering(spans: Sequence[Span], start: int, end: int) -> tuple[int, int] | None:
    """The first and the last token that have a character from `start` to `end`; None if there is none."""
    inside = [place for place, (begins, ends) in enumerate(spans) if begins < end and ends > start]
    return (inside[0], inside[-1]) if inside else None
