"""Documents as rows of one length, packed or as pairs of sentences, and masked tokens (BERT, 2018).

A document is cut into pieces that fit a row; each piece stands as [CLS] piece [SEP]. Short pieces
share a row, longest first, each where least room is left over; `documents` numbers them, so that
none is seen from another.

Of a row's n tokens ⌊share · n + u⌋ are chosen, u drawn from [0, 1), so that the share is met on
average, however short the row, and are to be told from what stands around them. What becomes of one
that is chosen is drawn, too:

    80 %   [MASK]              10 %   any token of the vocabulary              10 %   it stays

The two tenths are there since a text that is read later has no masks: a model must not count on
them to know what it will be asked. END and special tokens are never chosen, and never put in
another's place.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch

from seqloom.config import config
from seqloom.config.constraints import Gt, Lt, Probability
from seqloom.core import END
from seqloom.core.device import derive
from seqloom.core.errors import DataError
from seqloom.core.tokens import Specials
from seqloom.core.tree import Tree
from seqloom.data.batching import KEPT_EPOCHS, Array, ShuffleSampler
from seqloom.text.model_inputs import frame_length, framed


class PackedRows(NamedTuple):
    tokens: Array  # (N, S), 0 where nothing stands
    documents: Array  # (N, S), from 1 in each row; 0 where nothing stands


def pack(texts: Sequence[Sequence[int]], specials: Specials, length: int) -> PackedRows:
    """Documents, each its tokens, in rows (N, S) of `length`; those without tokens are left out."""
    room = length - frame_length(1)
    pieces = [text[start : start + room] for text in texts for start in range(0, len(text), room)]
    shared = share_rows([len(piece) + length - room for piece in pieces], length)
    tokens, documents = np.zeros((len(shared), length), np.int32), np.zeros((len(shared), length), np.int16)
    for row, members in enumerate(shared):
        end = 0
        for number, member in enumerate(members, start=1):
            placed = framed(specials, "bert", pieces[member]).tokens
            start, end = end, end + len(placed)
            tokens[row, start:end], documents[row, start:end] = placed, number
    return PackedRows(tokens, documents)


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

    A document is read once, a row after the other. Where a ends is drawn, but no later than in the
    middle of the row; b is then what follows, or, half the time, begins at a sentence drawn from
    another document. Both are filled up in the same way, so that their lengths tell hardly
    anything. A sentence that would fill more than half a row is cut.
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
        self.room = length - frame_length(2)
        most = self.room // 2
        pieces = [
            [sentence[start : start + most] for sentence in document for start in range(0, len(sentence), most)]
            for document in documents
        ]
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
                end = int(self._fill(begin, self.room, last))
                if end - begin == 1:  # only at the end: a pair takes two, so the one before stands here as well
                    begin -= 1
                found.append((begin, end, document))
                begin = end
        begins, ends, documents = np.array(found).T
        return begins, ends, documents

    def _fill(self, begin: Array | int, room: Array | int, last: Array | int) -> Array:
        """The end of as many whole sentences from `begin` on as have room, up to `last`."""
        return np.minimum(np.searchsorted(self._starts, self._starts[begin] + room, side="right") - 1, last)

    def draw(self, draws: np.random.Generator) -> SentencePairRows:
        """Every row once: where a ends, whether b follows, and if not, where it comes from."""
        N, half = len(self), self.room // 2
        latest = self._fill(self._begins, half, self._ends - 1)  # a ends no later, and leaves b a sentence
        cut = draws.integers(self._begins + 1, latest + 1)
        other = draws.random(N) < 0.5
        own, after = self._first[self._document], self._first[self._document + 1]
        elsewhere = draws.integers(0, self._first[-1] - (after - own))  # a sentence of another document
        elsewhere = np.where(elsewhere < own, elsewhere, elsewhere + (after - own))
        begin = np.where(other, elsewhere, cut)
        room = self.room - (self._starts[cut] - self._starts[self._begins])
        document = np.searchsorted(self._first, begin, side="right") - 1
        end = np.where(other, self._fill(begin, room, self._first[document + 1]), self._ends)
        # [CLS] a [SEP] b [SEP] of all rows at once
        a, a_end, b, b_end = (self._starts[span][:, None] for span in (self._begins, cut, begin, end))  # in ids, (N, 1)
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


# --- masks ------------------------------------------------------------------------------------------------------------

NONE = -1  # the target where nothing was chosen
Masking = Literal["dynamic", "static"]


@config
class MasksConfig:
    """Which tokens are to be told, and what is shown in their place."""

    mlm_probability: Annotated[float, Gt(0), Lt(1)] = 0.15  # of the tokens is chosen
    mask_replace_prob: Probability = 0.8  # of the chosen: shown as [MASK]
    random_replace_prob: Probability = (
        0.1  # of the chosen: shown as any token, drawn from the vocabulary; the others stay
    )

    def problems(self) -> Iterator[str]:
        if self.mask_replace_prob + self.random_replace_prob > 1 + 1e-9:
            both = f"{self.mask_replace_prob} + {self.random_replace_prob}"
            yield f"mask_replace_prob + random_replace_prob must be at most 1; got {both}"

    def most(self, length: int) -> int:
        """How many tokens of a row can be chosen at most."""
        return min(int(self.mlm_probability * length) + 1, length)


class Masked(NamedTuple):
    """Rows as they are shown, and what was there."""

    tokens: Array  # (N, S)
    places: Array  # (N, P), in order; 0 where nothing was chosen
    targets: Array  # (N, P), what stood there; NONE where nothing was chosen


def mask_rows(
    rows: Array, config: MasksConfig, specials: Specials, vocabulary: int, draws: np.random.Generator
) -> Masked:
    """Rows (N, S) with masks drawn for each; padding is END."""
    may = ~np.isin(rows, [END, *specials.names])  # (N, S)
    N, S = may.shape
    counts = np.floor(config.mlm_probability * may.sum(axis=1) + draws.random(N)).astype(np.int64)  # (N,)
    keys = np.where(may, draws.random((N, S), dtype=np.float32), np.inf)
    P = config.most(S)
    smallest = np.argpartition(keys, P - 1, axis=1)[:, :P]
    ordered = np.take_along_axis(smallest, np.take_along_axis(keys, smallest, axis=1).argsort(axis=1), axis=1)
    places = np.sort(np.where(np.arange(P) < counts[:, None], ordered, S), axis=1)  # those with the smallest keys
    chosen = places < S
    places = np.where(chosen, places, 0)
    originals = np.take_along_axis(rows, places, axis=1)  # (N, P)
    fate = draws.random(originals.shape)
    anything = draws.integers(END + 1, vocabulary, originals.shape)
    swapped = np.where(fate < config.mask_replace_prob + config.random_replace_prob, anything, originals)
    shown = np.where(fate < config.mask_replace_prob, specials.mask, swapped)
    tokens = rows.copy()
    tokens[np.nonzero(chosen)[0], places[chosen]] = shown[chosen]
    return Masked(tokens, places, np.where(chosen, originals, NONE))


# --- batches ----------------------------------------------------------------------------------------------------------


class MaskedBatches:
    """Batches of masked rows: packed documents, or pairs of sentences.

    What an epoch shows (the pairs, the masks) is drawn from the seed and the epoch alone; where
    masking is static, every epoch shows what the first did, in another order. What is left over at
    the end of an epoch is not read in it, and since the order is drawn anew, it is not the same
    twice.
    """

    def __init__(
        self,
        source: PackedRows | NextSentencePairs,
        *,
        masks: MasksConfig,
        masking: Masking,
        specials: Specials,
        vocabulary: int,
        size: int,
    ) -> None:
        """`source` has the rows; a token of `vocabulary` may stand in the place of a chosen one."""
        self.source, self.masks, self.masking = source, masks, masking
        self.specials, self.vocabulary = specials, vocabulary
        self.total = len(source) if isinstance(source, NextSentencePairs) else len(source.tokens)
        self.size = min(size, self.total)
        self.sampler = ShuffleSampler(self.total, self.size, "masked rows")
        self._epoch = lru_cache(maxsize=KEPT_EPOCHS)(self._draw_epoch)

    @property
    def steps_per_epoch(self) -> int:
        return len(self.sampler)

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """Return the batch of this step: a pure function of its arguments, of one shape."""
        epoch, members = self.sampler.choose(seed, step, rank, world)
        return collate_masked(self.epoch(seed, epoch), members)

    def every(self, seed: int, size: int) -> Iterator[Tree]:
        """Yield all rows in their order, for an evaluation: its masks are those of the first epoch of its own seed."""
        shown = self.epoch(seed, 0)
        for start in range(0, self.total, size):
            yield collate_masked(shown, np.arange(start, min(start + size, self.total)))

    def epoch(self, seed: int, epoch: int) -> dict[str, Array]:
        """Return everything an epoch shows, by name, a row each."""
        return self._epoch(seed, 0 if self.masking == "static" else epoch)

    def _draw_epoch(self, seed: int, epoch: int) -> dict[str, Array]:
        draws = np.random.default_rng(derive(seed, "masks", epoch))
        shown: dict[str, Array] = {}
        if isinstance(self.source, NextSentencePairs):
            pairs = self.source.draw(draws)
            rows, shown["segments"], shown["other"] = pairs.tokens, pairs.segments, pairs.other
            shown["mask"] = np.arange(rows.shape[1]) < pairs.lengths[:, None]
        else:
            rows, shown["documents"] = self.source
            shown["mask"] = self.source.documents > 0
        masked = mask_rows(rows, self.masks, self.specials, self.vocabulary, draws)
        return shown | masked._asdict()


def collate_masked(shown: dict[str, Array], members: Array) -> Tree:
    """Return some rows as tensors, and how many real tokens they have: counted here, where nothing waits for a GPU."""
    rows = {name: own[members] for name, own in shown.items()}
    tensors = {name: torch.from_numpy(own if own.dtype == bool else own.astype(np.int64)) for name, own in rows.items()}
    return {**tensors, "read": int(rows["mask"].sum())}
