"""Masked tokens (BERT, 2018): some are chosen, to be told from what stands around them.

Of a row's n tokens ⌊share · n + u⌋ are chosen, u drawn from [0, 1), so that the share is met on average, however short
the row. What becomes of one that is chosen is drawn, too:

    80 %   [MASK]              10 %   any token of the vocabulary              10 %   it stays

The two tenths are there since a text that is read later has no masks: a model must not count on them to know what it
will be asked. END and special tokens are never chosen, and never put in another's place.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from seqloom.config import config
from seqloom.core.specials import Specials
from seqloom.text.base import END

Array = np.ndarray[Any, Any]
NONE = -1  # the target where nothing was chosen


@config
class MasksConfig:
    """Which tokens are to be told, and what is shown in their place."""

    share: float = 0.15  # of the tokens is chosen
    hidden: float = 0.8  # of the chosen: shown as [MASK]
    swapped: float = 0.1  # of the chosen: shown as any token, drawn from the vocabulary; the others stay

    def problems(self) -> Iterator[str]:
        if not 0 < self.share < 1:
            yield f"share must be above 0 and below 1; got {self.share}"
        for name in ("hidden", "swapped"):
            if not 0 <= getattr(self, name) <= 1:
                yield f"{name} must be from 0 to 1; got {getattr(self, name)}"
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
