"""Masked tokens (BERT, 2018): some are chosen, to be told from what stands around them.

Of a row's n tokens ⌊share · n + u⌋ are chosen, u drawn from [0, 1), so that the share is met on average, however short
the row. What becomes of one that is chosen is drawn, too:

    80 %   [MASK]              10 %   any token of the vocabulary              10 %   it stays

The two tenths are there since a text that is read later has no masks: a model must not count on them to know what it
will be asked. END and special tokens are never chosen, and never put in another's place.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch

from seqloom.config import config
from seqloom.config.constraints import Gt, Lt, Probability
from seqloom.core.seeding import derive
from seqloom.core.specials import Specials
from seqloom.core.tree import Tree
from seqloom.data.batching import KEPT_EPOCHS, Array, ShuffleSampler
from seqloom.data.packing import NextSentencePairs, Packed
from seqloom.text.base import END

NONE = -1  # the target where nothing was chosen
Masking = Literal["dynamic", "static"]


@config
class MasksConfig:
    """Which tokens are to be told, and what is shown in their place."""

    share: Annotated[float, Gt(0), Lt(1)] = 0.15  # of the tokens is chosen
    hidden: Probability = 0.8  # of the chosen: shown as [MASK]
    swapped: Probability = 0.1  # of the chosen: shown as any token, drawn from the vocabulary; the others stay

    def problems(self) -> Iterator[str]:
        if self.hidden + self.swapped > 1 + 1e-9:
            yield f"hidden and swapped are shares of one whole; got {self.hidden} and {self.swapped}"

    def most(self, length: int) -> int:
        """How many tokens of a row can be chosen at most."""
        return min(int(self.share * length) + 1, length)


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
    places, chosen = _choose(may, config, draws)
    originals = np.take_along_axis(rows, places, axis=1)  # (N, P)
    shown = _shown(originals, config, specials, vocabulary, draws)
    tokens = rows.copy()
    tokens[np.nonzero(chosen)[0], places[chosen]] = shown[chosen]
    return Masked(tokens, places, np.where(chosen, originals, NONE))


def _choose(may: Array, config: MasksConfig, draws: np.random.Generator) -> tuple[Array, Array]:
    """Places (N, P) in order, and which of them are meant (N, P), out of those that may be chosen (N, S)."""
    N, S = may.shape
    counts = np.floor(config.share * may.sum(axis=1) + draws.random(N)).astype(np.int64)  # (N,)
    keys = np.where(may, draws.random((N, S), dtype=np.float32), np.inf)
    P = config.most(S)
    smallest = np.argpartition(keys, P - 1, axis=1)[:, :P]
    ordered = np.take_along_axis(smallest, np.take_along_axis(keys, smallest, axis=1).argsort(axis=1), axis=1)
    places = np.sort(np.where(np.arange(P) < counts[:, None], ordered, S), axis=1)  # those with the smallest keys
    return np.where(places < S, places, 0), places < S


def _shown(
    originals: Array, config: MasksConfig, specials: Specials, vocabulary: int, draws: np.random.Generator
) -> Array:
    fate = draws.random(originals.shape)
    anything = draws.integers(END + 1, vocabulary, originals.shape)
    swapped = np.where(fate < config.hidden + config.swapped, anything, originals)
    return np.where(fate < config.hidden, specials.mask, swapped)


# --- batches ----------------------------------------------------------------------------------------------------------


class MaskedBatches:
    """Batches of masked rows: packed documents, or pairs of sentences.

    What an epoch shows (the pairs, the masks) is drawn from the seed and the epoch alone; where masking is static,
    every epoch shows what the first did, in another order. What is left over at the end of an epoch is not read in it,
    and since the order is drawn anew, it is not the same twice.
    """

    def __init__(
        self,
        source: Packed | NextSentencePairs,
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
