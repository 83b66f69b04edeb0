"""Documents as rows of one length: packed, or as pairs of sentences.

A document is cut into pieces that fit a row; each piece stands as [CLS] piece [SEP]. Short pieces share a row, longest
first, each where least room is left over; `documents` numbers them, so that none is seen from another.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from seqloom.core.errors import DataError
from seqloom.core.specials import Specials
from seqloom.data.batching import Array
from seqloom.text.base import END
from seqloom.text.specials import frame_length, framed


class Packed(NamedTuple):
    tokens: Array  # (N, S), 0 where nothing stands
    documents: Array  # (N, S), from 1 in each row; 0 where nothing stands


def pack(texts: Sequence[Sequence[int]], specials: Specials, length: int) -> Packed:
    """Documents, each its tokens, in rows (N, S) of `length`; those without tokens are left out."""
    room = length - frame_length("bert", 1)
    pieces = [text[start : start + room] for text in texts for start in range(0, len(text), room)]
    shared = share_rows([len(piece) + length - room for piece in pieces], length)
    tokens, documents = np.zeros((len(shared), length), np.int32), np.zeros((len(shared), length), np.int16)
    for row, members in enumerate(shared):
        end = 0
        for number, member in enumerate(members, start=1):
            placed = framed(specials, "bert", pieces[member]).tokens
            start, end = end, end + len(placed)
            tokens[row, start:end], documents[row, start:end] = placed, number
    return Packed(tokens, documents)


def share_rows(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Which pieces go into one row: the longest first, each into the row where least room is left."""
    rows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(length + 1)]  # rows by how much room they have
    for piece in sorted(range(len(sizes)), key=lambda piece: -sizes[piece]):
        size = sizes[piece]
        room = next((room for room in range(size, length + 1) if by_room[room]), None)
        if room is None:
            room = length
            by_room[room].append(len(rows))
            rows.append([])
        row = by_room[room].pop()
        rows[row].append(piece)
        by_room[room - size].append(row)
    return rows


class SentencePairRows(NamedTuple):
    tokens: Array  # (N, S), 0 where nothing stands
    segments: Array  # (N, S), 0 of a, 1 of b
    lengths: Array  # (N,)
    other: Array  # (N,), 1 where b is from another document, 0 where it follows


class NextSentencePairs:
    """Pairs for next-sentence prediction (BERT, 2018): does b follow a, or is it from another document?

        [CLS] a [SEP] b [SEP]          a, b: one sentence after the other, as many whole ones as there is room for

    A document is read once, a row after the other. Where a ends is drawn, but no later than in the middle of the row; b
    is then what follows, or, half the time, begins at a sentence drawn from another document. Both are filled up in the
    same way, so that their lengths tell hardly anything. A sentence that would fill more than half a row is cut.
    """

    def __init__(
        self,
        documents: Sequence[Sequence[Sequence[int]]],
        specials: Specials,
        length: int,
        what: str = "the text",
    ) -> None:
        """`documents`, each its sentences, each its tokens; rows are `length` long; `what` is for the errors."""
        self.specials, self.length = specials, length
        self.room = length - frame_length("bert", 2)
        pieces = [list(_pieces(document, self.room // 2)) for document in documents]
        self.alone = sum(len(document) == 1 for document in pieces)  # of one sentence: it has nothing to follow it
        pieces = [document for document in pieces if len(document) > 1]
        if len(pieces) < 2:
            raise DataError(
                "Next sentences need at least two documents with two sentences each, so that one may be taken from "
                f"another; {what} has {len(pieces)}. Say objective=mlm, or what a document is (data.documents)."
            )
        every = [sentence for document in pieces for sentence in document]
        self._ids = np.concatenate([np.asarray(sentence, np.int32) for sentence in every])
        self._starts = np.cumsum([0, *map(len, every)])  # of each sentence, in ids; and the end
        self._first = np.cumsum([0, *map(len, pieces)])  # of each document, in sentences; and the end
        self._begins, self._ends, self._document = self._rows()

    def __len__(self) -> int:
        return len(self._begins)

    def _rows(self) -> tuple[Array, Array, Array]:
        """From which sentence to which each row goes, and of which document."""
        found = []
        for document in range(len(self._first) - 1):
            begin, last = int(self._first[document]), int(self._first[document + 1])
            while begin < last:
                end = self._filled(begin, self.room, last)
                if end - begin == 1:  # only at the end: a pair takes two, so the one before stands here as well
                    begin -= 1
                found.append((begin, end, document))
                begin = end
        begins, ends, documents = np.array(found).T
        return begins, ends, documents

    def _filled(self, begin: Any, room: Any, last: Any) -> Any:
        """The end of as many whole sentences from `begin` on as have room, up to `last`."""
        return np.minimum(np.searchsorted(self._starts, self._starts[begin] + room, side="right") - 1, last)

    def draw(self, draws: np.random.Generator) -> SentencePairRows:
        """Every row once: where a ends, whether b follows, and if not, where it comes from."""
        N, half = len(self), self.room // 2
        latest = self._filled(self._begins, half, self._ends - 1)  # a ends no later, and leaves b a sentence
        cut = draws.integers(self._begins + 1, latest + 1)
        other = draws.random(N) < 0.5
        elsewhere = self._elsewhere(draws)
        begin = np.where(other, elsewhere, cut)
        room = self.room - (self._starts[cut] - self._starts[self._begins])
        document = np.searchsorted(self._first, begin, side="right") - 1
        end = np.where(other, self._filled(begin, room, self._first[document + 1]), self._ends)
        return self._framed((self._begins, cut, begin, end), other)

    def _elsewhere(self, draws: np.random.Generator) -> Array:
        """For each row a sentence of another document, every one as likely."""
        own, after = self._first[self._document], self._first[self._document + 1]
        sentence = draws.integers(0, self._first[-1] - (after - own))
        return np.where(sentence < own, sentence, sentence + (after - own))

    def _framed(self, spans: Sequence[Array], other: Array) -> SentencePairRows:
        """[CLS] a [SEP] b [SEP] of all rows at once, given where a and b begin and end."""
        a, a_end, b, b_end = (self._starts[span][:, None] for span in spans)  # in ids, (N, 1)
        place = np.arange(self.length)
        middle = 1 + a_end - a  # where the first [SEP] stands
        last = middle + 1 + b_end - b
        inside = np.where(place < middle, a + place - 1, b + place - middle - 1)
        tokens = self._ids.take(inside, mode="clip")
        for where, token in ((place == 0, self.specials.classify), (place == middle, self.specials.separate)):
            tokens[np.broadcast_to(where, tokens.shape)] = token
        tokens = np.where(place < last, tokens, np.where(place == last, self.specials.separate, END))
        segments = ((place > middle) & (place <= last)).astype(np.int8)
        return SentencePairRows(tokens.astype(np.int32), segments, last[:, 0] + 1, other.astype(np.int64))


def _pieces(document: Sequence[Sequence[int]], most: int) -> Iterator[Sequence[int]]:
    """The sentences that have tokens, those with more than `most` cut."""
    for sentence in document:
        yield from (sentence[start : start + most] for start in range(0, len(sentence), most))
