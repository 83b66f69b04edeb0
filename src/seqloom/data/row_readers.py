"""From several texts to the rows a fine-tuned model reads, the same in training, in evaluation and in use.

    pair      a and b in one row; where symmetric, in two, b before a in the second
    choice    a row for each option; of a text that is too long its end is read, since that is where an option goes on
    answer    the question, then the context; a long context in windows that overlap

Where two texts have no room, the longer one gives way first.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from seqloom.data.collate import Rows
from seqloom.data.readers import Frame, TextReader
from seqloom.text import Tokenizer
from seqloom.text.base import Span
from seqloom.text.specials import Row, framed, shortened
from seqloom.text.word_spans import join_words, word_spans


class RowReader:
    """Reads texts for a model whose rows stand in this frame, of at most `max_length` tokens, special ones included.

    With `apart`, words and marks are read with a space between any two, as WikiText and other treebanks write them.
    """

    def __init__(self, tokenizer: Tokenizer, frame: Frame, max_length: int | None, apart: bool = False) -> None:
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
        return [_back(span, words, begins, ends) for span in self.tokenizer.spans(joined)]

    def _written(self, text: str) -> str:
        return set_apart(text) if self.apart else self._texts.written(text)

    def unknown(self, *texts: str) -> list[str]:
        """What the vocabulary does not have."""
        found = (piece for text in texts for piece in self.tokenizer.unknown_pieces(self._written(text)))
        return list(dict.fromkeys(found))

    def row(self, first: Sequence[int], second: Sequence[int]) -> Row:
        return framed(self.frame.specials, self.frame.form, first, second)

    # --- pairs and choices ------------------------------------------------------------------------------------------

    def pair(self, first: str, second: str, symmetric: bool = False) -> Rows:
        one, other, cut = self._fitted(self.encode(first), self.encode(second))
        rows = [self.row(one, other), *([self.row(other, one)] if symmetric else [])]
        return Rows(rows, cut)

    def choice(self, text: str, options: Sequence[str]) -> Rows:
        ids, rows, any_cut = self.encode(text), [], False
        for option in options:
            before, after, cut = self._fitted(ids, self.encode(option), from_end=True)
            rows.append(self.row(before, after))
            any_cut |= cut
        return Rows(rows, any_cut)

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

    def rows(self) -> Rows:
        begin = self.row.starts[1]
        places = [place == self.row.summary or begin <= place < begin + self.end - self.start for place in self._all()]
        return Rows([self.row], self.cut, [places])

    def _all(self) -> range:
        return range(len(self.row.tokens))

    def targets(self, span: tuple[int, int] | None) -> tuple[int, int]:
        """Where in the row the first and the last of the answer's tokens stand; at [CLS] if they are not both here."""
        if span is None or span[0] < self.start or span[1] >= self.end:
            return self.row.summary, self.row.summary
        return span[0] + self.shift, span[1] + self.shift


def covering(spans: Sequence[Span], start: int, end: int) -> tuple[int, int] | None:
    """The first and the last token that have a character from `start` to `end`; None if there is none."""
    inside = [place for place, (begins, ends) in enumerate(spans) if begins < end and ends > start]
    return (inside[0], inside[-1]) if inside else None


def _back(span: Span, words: Sequence[Span], begins: Sequence[int], ends: Sequence[int]) -> Span:
    """A span of the joined words, which begin and end there, as a span of the text the words were cut from."""
    first, last = bisect_right(ends, span[0]), bisect_left(begins, span[1]) - 1
    if first > last:  # a space alone
        return words[last][1], words[last][1]
    start = words[first][0] + max(span[0] - begins[first], 0)
    return start, min(words[last][0] + span[1] - begins[last], words[last][1])
