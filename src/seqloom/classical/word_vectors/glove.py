"""GloVe: weighted least squares on how often words stand near each other.

    X_ij = Σ 1/distance        over all places where j stands at most `window` words from i, on either side

and for every pair with X_ij > 0, in an order drawn for each epoch, a step of AdaGrad, s being the
sums of squares:

    o = v_i · u_j + b_i + d_j − log X_ij        g = η f(X_ij) o        f(x) = min(1, (x / cutoff)^power)
    v_i ← v_i − g u_j / √s        s ← s + (g u_j)²        and alike u_j with g v_i, b_i and d_j with g

As in `negative_sampling`, a batch makes all its steps from the same vectors: each is divided by the
√s from before it, and steps on one word are added up. A batch of one is GloVe itself, which
`numba_engine` compiles.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.classical.word_vectors import WordVectors, WordVectorsConfig
from seqloom.classical.word_vectors.negative_sampling import BlockSampler, Text
from seqloom.core.device import generator
from seqloom.core.errors import DataError

Ints = NDArray[np.int64]
Reals = NDArray[np.float64]
AT_ONCE = 1 << 25  # places looked at between two sums, so that memory grows with the pairs, not with the text


@dataclass(frozen=True)
class Pairs:
    """Words that stand near each other, and how often."""

    rows: Tensor  # (P,) i
    columns: Tensor  # (P,) j
    counts: Tensor  # (P,) X_ij, float64

    def __len__(self) -> int:
        return len(self.rows)


def count_pairs(text: Text, window: int, vocabulary: int) -> Pairs:
    """All pairs of a text with X_ij > 0, both (i, j) and (j, i)."""
    keys: Ints = np.empty(0, np.int64)
    counts: Reals = np.empty(0)
    words, documents = text.words.numpy(), text.documents.numpy()
    size = max(1, AT_ONCE // window)
    for first in range(0, len(text), size):
        found = list(_places(words, documents, first, first + size, window, vocabulary))
        places = np.sort(np.concatenate(found)) if found else keys[:0]
        begin = _first_of_each(places)
        times, once = np.diff(begin, append=len(places)), places[begin]
        several = len(keys) > 0
        keys = np.concatenate([keys, once // window])
        counts = np.concatenate([counts, times / (once % window + 1)])
        if several:
            order = np.argsort(keys, kind="stable")  # two ascending rows are merged
            keys, counts = keys[order], counts[order]
        begin = _first_of_each(keys)
        keys, counts = keys[begin], np.add.reduceat(counts, begin) if len(begin) else counts
    one, other = np.divmod(keys, vocabulary)
    apart = one != other  # what stands near itself was counted once at each place, and does so on both sides
    rows, columns = np.concatenate([one, other[apart]]), np.concatenate([other, one[apart]])
    both = np.concatenate([np.where(apart, counts, 2 * counts), counts[apart]])
    return Pairs(torch.from_numpy(rows), torch.from_numpy(columns), torch.from_numpy(both))


def _places(words: Ints, documents: Ints, first: int, last: int, window: int, vocabulary: int) -> Iterator[Ints]:
    """Each place of the text with those after it: both words, the smaller first, and their distance, as one number."""
    for distance in range(1, window + 1):
        end = min(last, len(words) - distance)
        if end <= first:
            return
        here, there = slice(first, end), slice(first + distance, end + distance)
        together = documents[here] == documents[there]
        a, b = words[here][together], words[there][together]
        yield (np.minimum(a, b) * vocabulary + np.maximum(a, b)) * window + distance - 1


def _first_of_each(ordered: Ints) -> Ints:
    """Where each number of an ascending row begins."""
    new = np.ones(len(ordered), dtype=bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return np.flatnonzero(new)


@dataclass(frozen=True)
class WeightedPairs:
    """Pairs as a step needs them."""

    rows: Tensor  # (P,)
    columns: Tensor  # (P,)
    logs: Tensor  # (P,) log X_ij
    weights: Tensor  # (P,) f(X_ij)

    def select(self, chosen: Tensor | slice) -> "WeightedPairs":
        """Some of the pairs."""
        return WeightedPairs(*(part[chosen] for part in vars(self).values()))


class PairSampler(BlockSampler):
    """The pairs of a text in blocks, in another order in every epoch."""

    def __init__(self, config: WordVectorsConfig, text: Text, vocabulary: int, *, seed: int, block: int) -> None:
        found = count_pairs(text.to("cpu"), config.window, vocabulary)
        super().__init__(len(found), block, seed)
        if not len(found):
            raise DataError("No two words stand near each other in this text: there is nothing to learn from.")
        self.weighted = weigh_pairs(config, found, text.words.device)
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))
        self._one_at_a_time = Lock()

    def block(self, step: int) -> WeightedPairs:
        epoch, number = divmod(step, self.blocks)
        with self._one_at_a_time:  # threads that begin an epoch together draw it once
            if self._order[0] != epoch:
                order = torch.randperm(self.total, generator=generator(self.seed, "pairs", epoch))
                self._order = epoch, order.to(self.weighted.rows.device)
            order = self._order[1]
        return self.weighted.select(order[number * self.size : (number + 1) * self.size])

    def train(self, model: WordVectors, step: int, rate: float, batch: int) -> tuple[Tensor, int]:
        block, loss = self.block(step), torch.zeros((), device=model.device)
        for first in range(0, len(block.rows), batch):
            loss += update(model, block.select(slice(first, first + batch)), rate)
        return loss, len(block.rows)

    def train_compiled(self, model: WordVectors, step: int, rate: float) -> tuple[float, int]:
        from seqloom.classical.word_vectors import numba_engine

        learned = [getattr(model, name) for name in model.squares]
        tensors = (*learned, *model.squares.values(), *vars(self.block(step)).values())
        loss, count = numba_engine.glove(*(tensor.numpy() for tensor in tensors), np.float32(rate))
        return loss, count


def weigh_pairs(config: WordVectorsConfig, pairs: Pairs, device: torch.device) -> WeightedPairs:
    """Compute log X and f(X) of pairs."""
    weights = (pairs.counts / config.cutoff).clamp(max=1) ** config.power
    parts = (pairs.rows, pairs.columns, pairs.counts.log().float(), weights.float())
    return WeightedPairs(*(part.to(device) for part in parts))


def residuals(model: WordVectors, pairs: WeightedPairs) -> tuple[Tensor, Tensor, Tensor]:
    """v_i, u_j (P, D) and o (P,)."""
    v, u = model.vectors[pairs.rows], model.contexts[pairs.columns]
    return v, u, (v * u).sum(dim=1) + model.biases[pairs.rows] + model.context_biases[pairs.columns] - pairs.logs


def losses(pairs: WeightedPairs, o: Tensor) -> Tensor:
    return 0.5 * pairs.weights * o**2


def update(model: WordVectors, pairs: WeightedPairs, rate: float) -> Tensor:
    """One step from these pairs, in place; the sum of their losses before it."""
    v, u, o = residuals(model, pairs)
    g = rate * pairs.weights * o  # (P,)
    steps = {
        "vectors": (pairs.rows, g.unsqueeze(1) * u),
        "contexts": (pairs.columns, g.unsqueeze(1) * v),
        "biases": (pairs.rows, g),
        "context_biases": (pairs.columns, g),
    }
    for name, (places, step) in steps.items():
        squares = model.squares[name]
        getattr(model, name).index_add_(0, places, -step / squares[places].sqrt())
        squares.index_add_(0, places, step**2)
    return losses(pairs, o).sum()
