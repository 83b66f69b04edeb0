"""Rows of packed documents or sentence pairs, and masked tokens (BERT, 2018).

A document is divided into pieces that fit into a row as [CLS] piece [SEP]. Short pieces share a row:
they are packed by best fit, longest first. `documents` numbers the pieces, so that attention can be
restricted to one document.

Of the n tokens of a row, ⌊p · n + u⌋ are selected for prediction, with u uniform in [0, 1), so that
the expected fraction is p even in short rows. Each selected token is replaced at random:

    80 %   by [MASK]           10 %   by a random token of the vocabulary           10 %   not replaced

The last two cases are needed because texts contain no masks after pretraining. A model must not rely on masks to
determine which tokens to predict. END and special tokens are neither selected nor used as replacements.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch

from seqloom.config import config
from seqloom.config.constraints import Gt, Lt, Probability
from seqloom.core import END
from seqloom.core.device import derive_seed
from seqloom.core.errors import DataError
from seqloom.core.tokens import Specials
from seqloom.core.tree import Tree
from seqloom.data.batching import CACHED_EPOCHS, Array, ShuffleSampler
from seqloom.text.model_inputs import frame_length, frame_texts


class PackedRows(NamedTuple):
    tokens: Array  # (N, S); padding is 0
    documents: Array  # (N, S), counted from 1 in each row; padding is 0


def pack(texts: Sequence[Sequence[int]], specials: Specials, length: int) -> PackedRows:
    """Pack the tokens of documents into rows (N, S) of `length`; empty documents are left out."""
    room = length - frame_length(1)
    pieces = [text[start : start + room] for text in texts for start in range(0, len(text), room)]
    rows = pack_by_best_fit([len(piece) + length - room for piece in pieces], length)
    tokens, documents = np.zeros((len(rows), length), np.int32), np.zeros((len(rows), length), np.int16)
    for row, members in enumerate(rows):
        end = 0
        for number, member in enumerate(members, start=1):
            framed_piece = frame_texts(specials, "bert", pieces[member]).tokens
            start, end = end, end + len(framed_piece)
            tokens[row, start:end], documents[row, start:end] = framed_piece, number
    return PackedRows(tokens, documents)


def pack_by_best_fit(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Assign pieces to rows: longest first, each to the fullest row that has room for it."""
    rows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(length + 1)]  # rows for each remaining room
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
    tokens: Array  # (N, S); padding is 0
    segments: Array  # (N, S), 0 for a, 1 for b
    lengths: Array  # (N,)
    other: Array  # (N,), 1 if b is from another document, 0 if b follows a


class NextSentencePairs:
    """Pairs for next-sentence prediction (BERT, 2018): b follows a, or is from another document.

        [CLS] a [SEP] b [SEP]          a and b are consecutive complete sentences that fit into the row

    A document is read once, row by row. `a` ends after a random sentence in the first half of the row. With probability
    1/2, `b` follows `a`; otherwise `b` starts at a random sentence of another document. Both kinds of pairs are filled
    in the same way, so that the lengths hardly reveal the kind. A sentence longer than half a row is divided.
    """

    def __init__(
        self,
        documents: Sequence[Sequence[Sequence[int]]],
        specials: Specials,
        length: int,
        what: str = "the text",
    ) -> None:
        """Create pairs in rows of `length` tokens.

        A document is a list of encoded sentences. Error messages refer to the documents as `what`.
        """
        self.specials, self.length = specials, length
        self.room = length - frame_length(2)
        max_length = self.room // 2
        pieces = [
            [
                sentence[start : start + max_length]
                for sentence in document
                for start in range(0, len(sentence), max_length)
            ]
            for document in documents
        ]
        self.alone = sum(len(document) == 1 for document in pieces)  # documents with one sentence, without a pair
        pieces = [document for document in pieces if len(document) > 1]
        if len(pieces) < 2:
            raise DataError(
                "Next-sentence prediction needs at least two documents with at least two sentences each, but "
                f"{what} has {len(pieces)}. Set objective=mlm, or change data.documents."
            )
        sentences = [sentence for document in pieces for sentence in document]
        self._ids = np.concatenate([np.asarray(sentence, np.int32) for sentence in sentences])
        self._starts = np.cumsum([0, *map(len, sentences)])  # the first id of each sentence, and the end
        self._first = np.cumsum([0, *map(len, pieces)])  # the first sentence of each document, and the end
        self._row_starts, self._row_ends, self._document = self._rows()

    def __len__(self) -> int:
        return len(self._row_starts)

    def _rows(self) -> tuple[Array, Array, Array]:
        """Return the first sentence, the end and the document of each row."""
        rows = []
        for document in range(len(self._first) - 1):
            start, last = int(self._first[document]), int(self._first[document + 1])
            while start < last:
                end = int(self._fill(start, self.room, last))
                if end - start == 1:  # a pair needs two sentences, so the sentence before the last is repeated
                    start -= 1
                rows.append((start, end, document))
                start = end
        starts, ends, documents = np.array(rows).T
        return starts, ends, documents

    def _fill(self, start: Array | int, room: Array | int, last: Array | int) -> Array:
        """Return the end of the complete sentences from `start` that fit into `room`; the end is at most `last`."""
        return np.minimum(np.searchsorted(self._starts, self._starts[start] + room, side="right") - 1, last)

    def draw(self, draws: np.random.Generator) -> SentencePairRows:
        """Draw the pair of each row: the end of a, whether b follows a, and the start of b if it does not."""
        N, half = len(self), self.room // 2
        latest = self._fill(self._row_starts, half, self._row_ends - 1)  # the last possible end of a
        cut = draws.integers(self._row_starts + 1, latest + 1)
        other = draws.random(N) < 0.5
        first, after = self._first[self._document], self._first[self._document + 1]
        elsewhere = draws.integers(0, self._first[-1] - (after - first))  # a sentence of another document
        elsewhere = np.where(elsewhere < first, elsewhere, elsewhere + (after - first))
        start = np.where(other, elsewhere, cut)
        room = self.room - (self._starts[cut] - self._starts[self._row_starts])
        document = np.searchsorted(self._first, start, side="right") - 1
        end = np.where(other, self._fill(start, room, self._first[document + 1]), self._row_ends)
        # Build [CLS] a [SEP] b [SEP] for all rows.
        spans = (self._row_starts, cut, start, end)
        a, a_end, b, b_end = (self._starts[border][:, None] for border in spans)  # (N, 1) positions in ids
        position = np.arange(self.length)
        middle = 1 + a_end - a  # position of the first [SEP]
        last = middle + 1 + b_end - b
        indices = np.where(position < middle, a + position - 1, b + position - middle - 1)
        tokens = self._ids.take(indices, mode="clip")
        for mask, token in ((position == 0, self.specials.classify), (position == middle, self.specials.separate)):
            tokens[np.broadcast_to(mask, tokens.shape)] = token
        tokens = np.where(position < last, tokens, np.where(position == last, self.specials.separate, END))
        segments = ((position > middle) & (position <= last)).astype(np.int8)
        return SentencePairRows(tokens.astype(np.int32), segments, last[:, 0] + 1, other.astype(np.int64))


# --- masks ------------------------------------------------------------------------------------------------------------

NO_TARGET = -1
Masking = Literal["dynamic", "static"]


@config
class MasksConfig:
    """The selection of tokens to predict, and their replacements."""

    mlm_probability: Annotated[float, Gt(0), Lt(1)] = 0.15  # fraction of the tokens to predict
    mask_replace_prob: Probability = 0.8  # fraction of the selected tokens replaced by [MASK]
    # fraction of the selected tokens replaced by random tokens; the others are not changed
    random_replace_prob: Probability = 0.1

    def problems(self) -> Iterator[str]:
        if self.mask_replace_prob + self.random_replace_prob > 1 + 1e-9:
            both = f"{self.mask_replace_prob} + {self.random_replace_prob}"
            yield f"mask_replace_prob + random_replace_prob must be at most 1; got {both}"

    def max_targets(self, length: int) -> int:
        """Return the maximum number of selected tokens in a row."""
        return min(int(self.mlm_probability * length) + 1, length)


class MaskedRows(NamedTuple):
    """Rows with masks, and the original tokens at the selected positions."""

    tokens: Array  # (N, S)
    positions: Array  # (N, P), in ascending order; padding is 0
    targets: Array  # (N, P), the original tokens; padding is NO_TARGET


def mask_rows(
    rows: Array, config: MasksConfig, specials: Specials, vocabulary: int, draws: np.random.Generator
) -> MaskedRows:
    """Draw the masks of rows (N, S), whose padding is END."""
    may_be_selected = ~np.isin(rows, [END, *specials.names])  # (N, S)
    N, S = may_be_selected.shape
    counts = np.floor(config.mlm_probability * may_be_selected.sum(axis=1) + draws.random(N)).astype(np.int64)  # (N,)
    keys = np.where(may_be_selected, draws.random((N, S), dtype=np.float32), np.inf)
    P = config.max_targets(S)
    smallest = np.argpartition(keys, P - 1, axis=1)[:, :P]
    ordered = np.take_along_axis(smallest, np.take_along_axis(keys, smallest, axis=1).argsort(axis=1), axis=1)
    positions = np.sort(np.where(np.arange(P) < counts[:, None], ordered, S), axis=1)  # the smallest keys
    selected = positions < S
    positions = np.where(selected, positions, 0)
    originals = np.take_along_axis(rows, positions, axis=1)  # (N, P)
    draw = draws.random(originals.shape)
    random_tokens = draws.integers(END + 1, vocabulary, originals.shape)
    unmasked = np.where(draw < config.mask_replace_prob + config.random_replace_prob, random_tokens, originals)
    replacements = np.where(draw < config.mask_replace_prob, specials.mask, unmasked)
    tokens = rows.copy()
    tokens[np.nonzero(selected)[0], positions[selected]] = replacements[selected]
    return MaskedRows(tokens, positions, np.where(selected, originals, NO_TARGET))


# --- batches ----------------------------------------------------------------------------------------------------------


class MaskedBatches:
    """Batches of masked rows: packed documents or sentence pairs.

    Pairs and masks depend only on the seed and the epoch. With static masking, every epoch repeats the pairs and masks
    of the first epoch in another order. An incomplete last batch of an epoch is omitted. The omitted rows differ
    between epochs.
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
        """Create batches of the rows of `source`; random replacements are tokens below `vocabulary`."""
        self.source, self.masks, self.masking = source, masks, masking
        self.specials, self.vocabulary = specials, vocabulary
        self.total = len(source) if isinstance(source, NextSentencePairs) else len(source.tokens)
        self.size = min(size, self.total)
        self.sampler = ShuffleSampler(self.total, self.size, "masked rows")
        self._epoch = lru_cache(maxsize=CACHED_EPOCHS)(self._draw_epoch)

    @property
    def steps_per_epoch(self) -> int:
        return len(self.sampler)

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """Return the batch of a step. The batch is a pure function of the arguments and has a constant shape."""
        epoch, members = self.sampler.choose(seed, step, rank, world)
        return collate_masked(self.epoch(seed, epoch), members)

    def all_batches(self, seed: int, size: int) -> Iterator[Tree]:
        """Yield all rows in order for evaluation, with the masks of the first epoch of this seed."""
        rows = self.epoch(seed, 0)
        for start in range(0, self.total, size):
            yield collate_masked(rows, np.arange(start, min(start + size, self.total)))

    def epoch(self, seed: int, epoch: int) -> dict[str, Array]:
        """Return the masked rows of an epoch by name."""
        return self._epoch(seed, 0 if self.masking == "static" else epoch)

    def _draw_epoch(self, seed: int, epoch: int) -> dict[str, Array]:
        draws = np.random.default_rng(derive_seed(seed, "masks", epoch))
        arrays: dict[str, Array] = {}
        if isinstance(self.source, NextSentencePairs):
            pairs = self.source.draw(draws)
            rows, arrays["segments"], arrays["other"] = pairs.tokens, pairs.segments, pairs.other
            arrays["mask"] = np.arange(rows.shape[1]) < pairs.lengths[:, None]
        else:
            rows, arrays["documents"] = self.source
            arrays["mask"] = self.source.documents > 0
        masked = mask_rows(rows, self.masks, self.specials, self.vocabulary, draws)
        return arrays | masked._asdict()


def collate_masked(arrays: dict[str, Array], members: Array) -> Tree:
    """Return the chosen rows as tensors, and their number of tokens, which is counted here to avoid synchronization."""
    rows = {name: array[members] for name, array in arrays.items()}
    tensors = {name: torch.from_numpy(a if a.dtype == bool else a.astype(np.int64)) for name, a in rows.items()}
    return {**tensors, "read": int(rows["mask"].sum())}
