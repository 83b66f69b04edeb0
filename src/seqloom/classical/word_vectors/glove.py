"""GloVe: weighted least squares on word co-occurrences.

    X_ij = Σ 1/distance        over all positions where j is at most `window` words from i, on either side

Every epoch runs an AdaGrad step for every pair with X_ij > 0, in random order. s is the sum of squares:

    o = v_i · u_j + b_i + d_j − log X_ij        g = η f(X_ij) o        f(x) = min(1, (x / cutoff)^power)
    v_i ← v_i − g u_j / √s        s ← s + (g u_j)²        and likewise u_j with g v_i, and b_i and d_j with g

As in `negative_sampling`, all steps of a batch use the vectors and the √s from before the batch, and steps on the same
word are added. A batch of one pair gives the original algorithm, which `numba_engine` compiles.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.classical.word_vectors import WordVectorModel, WordVectorsConfig
from seqloom.classical.word_vectors.negative_sampling import BlockSampler, Text
from seqloom.core.device import make_generator
from seqloom.core.errors import DataError

Ints = NDArray[np.int64]
Reals = NDArray[np.float64]
PAIRS_PER_CHUNK = 1 << 25  # co-occurrences counted at a time, so that memory grows with the pairs, not with the text


@dataclass(frozen=True)
class Pairs:
    """Co-occurring words and their counts."""

    rows: Tensor  # (P,) i
    columns: Tensor  # (P,) j
    counts: Tensor  # (P,) X_ij, float64

    def __len__(self) -> int:
        return len(self.rows)


def count_pairs(text: Text, window: int, vocabulary: int) -> Pairs:
    """Count the pairs of a text with X_ij > 0, both (i, j) and (j, i)."""
    keys: Ints = np.empty(0, np.int64)
    counts: Reals = np.empty(0)
    words, documents = text.words.numpy(), text.documents.numpy()
    size = max(1, PAIRS_PER_CHUNK // window)
    for first in range(0, len(text), size):
        parts = list(_encode_pairs(words, documents, first, first + size, window, vocabulary))
        codes = np.sort(np.concatenate(parts)) if parts else keys[:0]
        begin = _run_starts(codes)
        repeats, unique = np.diff(begin, append=len(codes)), codes[begin]
        is_merge = len(keys) > 0
        keys = np.concatenate([keys, unique // window])
        counts = np.concatenate([counts, repeats / (unique % window + 1)])
        if is_merge:
            order = np.argsort(keys, kind="stable")
            keys, counts = keys[order], counts[order]
        begin = _run_starts(keys)
        keys, counts = keys[begin], np.add.reduceat(counts, begin) if len(begin) else counts
    smaller, larger = np.divmod(keys, vocabulary)
    differ = smaller != larger  # a pair of equal words is counted once but occurs in both directions
    rows, columns = np.concatenate([smaller, larger[differ]]), np.concatenate([larger, smaller[differ]])
    both = np.concatenate([np.where(differ, counts, 2 * counts), counts[differ]])
    return Pairs(torch.from_numpy(rows), torch.from_numpy(columns), torch.from_numpy(both))


def _encode_pairs(words: Ints, documents: Ints, first: int, last: int, window: int, vocabulary: int) -> Iterator[Ints]:
    """Encode each word and a later word as one number that contains the smaller id, the larger id and the distance."""
    for distance in range(1, window + 1):
        end = min(last, len(words) - distance)
        if end <= first:
            return
        left, right = slice(first, end), slice(first + distance, end + distance)
        together = documents[left] == documents[right]
        a, b = words[left][together], words[right][together]
        yield (np.minimum(a, b) * vocabulary + np.maximum(a, b)) * window + distance - 1


def _run_starts(ordered: Ints) -> Ints:
    """Return the first index of each distinct number of a sorted array."""
    new = np.ones(len(ordered), dtype=bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return np.flatnonzero(new)


@dataclass(frozen=True)
class WeightedPairs:
    """Pairs with the log-counts and weights of a training step."""

    rows: Tensor  # (P,)
    columns: Tensor  # (P,)
    logs: Tensor  # (P,) log X_ij
    weights: Tensor  # (P,) f(X_ij)

    def select(self, chosen: Tensor | slice) -> "WeightedPairs":
        """Select pairs by index."""
        return WeightedPairs(*(part[chosen] for part in vars(self).values()))


class PairSampler(BlockSampler):
    """Blocks of the pairs of a text, shuffled in every epoch."""

    def __init__(self, config: WordVectorsConfig, text: Text, vocabulary: int, *, seed: int, block: int) -> None:
        pairs = count_pairs(text.to("cpu"), config.window, vocabulary)
        super().__init__(len(pairs), block, seed)
        if not len(pairs):
            raise DataError("The text contains no pair of neighbouring words. Use documents of at least two words.")
        self.weighted = weigh_pairs(config, pairs, text.words.device)
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))
        self._lock = Lock()

    def block(self, step: int) -> WeightedPairs:
        epoch, number = divmod(step, self.blocks)
        with self._lock:  # threads that begin an epoch together draw its order once
            if self._order[0] != epoch:
                order = torch.randperm(self.total, generator=make_generator(self.seed, "pairs", epoch))
                self._order = epoch, order.to(self.weighted.rows.device)
            order = self._order[1]
        return self.weighted.select(order[number * self.size : (number + 1) * self.size])

    def train(self, model: WordVectorModel, step: int, rate: float, batch: int) -> tuple[Tensor, int]:
        block, loss = self.block(step), torch.zeros((), device=model.device)
        for first in range(0, len(block.rows), batch):
            loss += update(model, block.select(slice(first, first + batch)), rate)
        return loss, len(block.rows)

    def train_compiled(self, model: WordVectorModel, step: int, rate: float) -> tuple[float, int]:
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


def residuals(model: WordVectorModel, pairs: WeightedPairs) -> tuple[Tensor, Tensor, Tensor]:
    """Return v_i, u_j (P, D) and o (P,)."""
    v, u = model.vectors[pairs.rows], model.contexts[pairs.columns]
    return v, u, (v * u).sum(dim=1) + model.biases[pairs.rows] + model.context_biases[pairs.columns] - pairs.logs


def losses(pairs: WeightedPairs, o: Tensor) -> Tensor:
    """Return the loss of each pair (P,)."""
    return 0.5 * pairs.weights * o**2


def update(model: WordVectorModel, pairs: WeightedPairs, rate: float) -> Tensor:
    """Perform one training step on these pairs in place; return the sum of the losses before the step."""
    v, u, o = residuals(model, pairs)
    g = rate * pairs.weights * o  # (P,)
    steps = {
        "vectors": (pairs.rows, g.unsqueeze(1) * u),
        "contexts": (pairs.columns, g.unsqueeze(1) * v),
        "biases": (pairs.rows, g),
        "context_biases": (pairs.columns, g),
    }
    for name, (words, step) in steps.items():
        squares = model.squares[name]
        getattr(model, name).index_add_(0, words, -step / squares[words].sqrt())
        squares.index_add_(0, words, step**2)
    return losses(pairs, o).sum()
