"""Batches of masked rows: packed documents, or pairs of sentences.

What an epoch shows (the pairs, the masks) is drawn from the seed and the epoch alone; where masking is static, every
epoch shows what the first did, in another order. A batch is `rows` of them; what is left over at the end of an epoch is
not read in it, and since the order is drawn anew, it is not the same twice.
"""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch

from seqloom.core.seeding import derive
from seqloom.core.specials import Specials
from seqloom.core.tree import Tree
from seqloom.data.masking import MasksConfig, mask_rows
from seqloom.data.packing import Packed
from seqloom.data.sentence_pairs import SentencePairs

Array = np.ndarray[Any, Any]
Masking = Literal["dynamic", "static"]
KEPT = 2  # epochs: processes side by side may stand in two at once, never in three


class MaskedBatches:
    """`source` has the rows, `vocabulary` tokens may stand in the place of a chosen one."""

    def __init__(
        self,
        source: Packed | SentencePairs,
        *,
        masks: MasksConfig,
        masking: Masking,
        specials: Specials,
        vocabulary: int,
        rows: int,
    ) -> None:
        self.source, self.masks, self.masking = source, masks, masking
        self.specials, self.vocabulary = specials, vocabulary
        self.total = len(source) if isinstance(source, SentencePairs) else len(source.tokens)
        self.rows = min(rows, self.total)
        self._epochs: dict[tuple[int, int], dict[str, Array]] = {}
        self._orders: dict[tuple[int, int], Array] = {}

    @property
    def steps_per_epoch(self) -> int:
        return self.total // self.rows

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> dict[str, Any]:
        """The batch of this step: a pure function of its arguments, of one shape."""
        epoch, place = divmod(step * world + rank, self.steps_per_epoch)
        members = self._order(seed, epoch)[place * self.rows : (place + 1) * self.rows]
        return _tree(self.epoch(seed, epoch), members)

    def every(self, seed: int, rows: int) -> Iterator[Tree]:
        """All rows in their order, for an evaluation: its masks are those of the first epoch of a seed of its own."""
        shown = self.epoch(seed, 0)
        for start in range(0, self.total, rows):
            yield _tree(shown, np.arange(start, min(start + rows, self.total)))

    def epoch(self, seed: int, epoch: int) -> dict[str, Array]:
        """Everything an epoch shows, by name, a row each."""
        key = (seed, 0 if self.masking == "static" else epoch)
        if key not in self._epochs:
            _make_room(self._epochs)
            self._epochs[key] = self._shown(np.random.default_rng(derive(key[0], "masks", key[1])))
        return self._epochs[key]

    def _shown(self, draws: np.random.Generator) -> dict[str, Array]:
        shown: dict[str, Array] = {}
        if isinstance(self.source, SentencePairs):
            pairs = self.source.drawn(draws)
            rows, shown["segments"], shown["other"] = pairs.tokens, pairs.segments, pairs.other
            shown["mask"] = np.arange(rows.shape[1]) < pairs.lengths[:, None]
        else:
            rows, shown["documents"] = self.source
            shown["mask"] = self.source.documents > 0
        masked = mask_rows(rows, self.masks, self.specials, self.vocabulary, draws)
        return shown | masked._asdict()

    def _order(self, seed: int, epoch: int) -> Array:
        if (seed, epoch) not in self._orders:
            _make_room(self._orders)
            drawn = np.random.default_rng(derive(seed, "masked rows", epoch))
            self._orders[seed, epoch] = drawn.permutation(self.total)
        return self._orders[seed, epoch]


def _make_room(kept: dict[tuple[int, int], Any]) -> None:
    while len(kept) >= KEPT:
        kept.pop(next(iter(kept)))


def _tree(shown: dict[str, Array], members: Array) -> dict[str, Any]:
    """Some rows as tensors, and how many real tokens they have: counted here, where nothing waits for a GPU."""
    batch: dict[str, Any] = {
        name: torch.from_numpy(rows[members] if rows.dtype == bool else rows[members].astype(np.int64))
        for name, rows in shown.items()
    }
    return {**batch, "read": int(batch["mask"].sum())}
