"""Skip-gram and CBOW with negative sampling, as equations on tensors.

The text is read in blocks of words. In a block, frequent words are dropped at random. A word w is
kept with probability

    min(1, √(t / q_w) + t / q_w)        q_w is the relative frequency of w, t = `subsample`

For each remaining word c, a window of 1 … `window` words on either side is drawn. Skip-gram predicts
each neighbour o from x = v_c; CBOW predicts c from x = mean of v_o. With y = 1 for the target and
y = 0 for its negatives w, a step is

    g_w = η (y_w − σ(x · u_w))        e = Σ_w g_w u_w        u_w ← u_w + g_w x        v ← v + e

Here v is v_c, or every v_o in CBOW: as in word2vec, e is not divided among the neighbours. A negative that was already
drawn, or that equals the target, is ignored. All examples of a batch use the vectors from before the batch. A batch of
one example gives the algorithm of word2vec, which `numba_engine` compiles. In a batch, the n steps on one word are
added. If n η exceeds `MAX_TOTAL_RATE`, the steps are scaled down to this total rate, because sequential steps would
have corrected each other.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.classical.word_vectors import WordVectorModel, WordVectorsConfig
from seqloom.core.device import derive_seed
from seqloom.core.errors import DataError
from seqloom.core.operations import operation

MAX_TOTAL_RATE = 1.0  # maximum sum of the rates of all steps on one word in a batch
GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # constants of SplitMix64


# --- counter-based random numbers -------------------------------------------------------------------------------------


def random_bits(seed: int, positions: Tensor) -> Tensor:
    """Return the SplitMix64 numbers r_n (…) as int64 for n in `positions` (…)."""
    # Use the 64 bits as signed integers, because torch has no arithmetic on uint64.
    seed, gamma, first, second = (
        (number + (1 << 63)) % (1 << 64) - (1 << 63) for number in (seed, GAMMA, FIRST, SECOND)
    )
    x = (positions + 1) * gamma + seed
    x = (x ^ _shift(x, 30)) * first
    x = (x ^ _shift(x, 27)) * second
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right without sign extension."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def to_integer(r: Tensor, n: int) -> Tensor:
    """Map random bits to an integer from 0 to n − 1: ⌊upper 32 bits · n / 2³²⌋."""
    return (_shift(r, 32) * n) >> 32


def to_uniform(r: Tensor) -> Tensor:
    """Map the lower 24 bits to a number in [0, 1), exact in float32."""
    return (r & 0xFFFFFF).float() / (1 << 24)


class Noise:
    """Walker's alias method: draws words from a distribution p (V,) with one random number per draw.

    Each of V equally likely columns has at most two outcomes: the column itself below `threshold`, and its
    `alias` above.
    """

    def __init__(self, p: Tensor) -> None:
        exact = p.double().numpy()
        height = (exact / exact.sum() * len(p)).tolist()
        threshold, alias = np.ones(len(p), np.float32), np.arange(len(p), dtype=np.int64)
        low = [column for column, value in enumerate(height) if value < 1]
        high = [column for column, value in enumerate(height) if value >= 1]
        while low and high:
            small, large = low.pop(), high[-1]
            threshold[small], alias[small] = height[small], large
            height[large] -= 1 - height[small]
            if height[large] < 1:
                low.append(high.pop())
        self.threshold, self.alias = torch.from_numpy(threshold), torch.from_numpy(alias)

    def to(self, device: torch.device | str) -> "Noise":
        self.threshold, self.alias = self.threshold.to(device), self.alias.to(device)
        return self

    def __call__(self, r: Tensor) -> Tensor:
        column = to_integer(r, len(self.threshold))
        return torch.where(to_uniform(r) < self.threshold[column], column, self.alias[column])


# --- blocks of a text -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    """The in-vocabulary words of a text and their documents; windows do not cross documents."""

    words: Tensor  # (N,)
    documents: Tensor  # (N,)

    def __len__(self) -> int:
        return len(self.words)

    def to(self, device: torch.device | str) -> "Text":
        return Text(self.words.to(device), self.documents.to(device))


@dataclass(frozen=True)
class TextBlock:
    """The words of a block after subsampling, and the window of each word."""

    words: Tensor  # (n,)
    documents: Tensor  # (n,)
    reach: Tensor  # (n,) drawn window of each word, from 1 to `window`
    seed: int  # random seed of the noise


@dataclass(frozen=True)
class ContextPredictions:
    """P training examples: input words, and a target with its negatives."""

    inputs: Tensor  # (P, R) words whose vectors v are averaged
    input_mask: Tensor  # (P, R)
    candidates: Tensor  # (P, 1 + K) the target, then its negatives
    candidate_mask: Tensor  # (P, 1 + K)

    def __len__(self) -> int:
        return len(self.candidates)

    def batches(self, size: int) -> Iterator["ContextPredictions"]:
        """Split the examples into batches of at most `size`."""
        for first in range(0, len(self), size):
            yield ContextPredictions(*(part[first : first + size] for part in vars(self).values()))


class BlockSampler(ABC):
    """The blocks of an epoch, with at most `size` items each. A block is a pure function of seed and step."""

    def __init__(self, total: int, size: int, seed: int) -> None:
        self.total, self.size, self.seed = total, size, seed
        self.blocks = -(-total // size)  # number of blocks in an epoch

    def read(self, step: int) -> int:
        """Return the number of words or pairs in the block of a step, before subsampling."""
        return min(self.size, self.total - step % self.blocks * self.size)

    @abstractmethod
    def train(self, model: WordVectorModel, step: int, rate: float, batch: int) -> tuple[Tensor, int]:
        """Train on a block in place, `batch` steps at a time; return the sum and the number of the losses."""

    @abstractmethod
    def train_compiled(self, model: WordVectorModel, step: int, rate: float) -> tuple[float, int]:
        """Train on a block step by step with numba; the returned loss covers only some of the steps."""


class Sampler(BlockSampler):
    """The blocks of a text and their training examples."""

    def __init__(self, config: WordVectorsConfig, text: Text, counts: Tensor, *, seed: int, block: int) -> None:
        super().__init__(len(text), block, seed)
        self.config, self.text = config, text
        if not len(text):
            raise DataError("The text has no word in the vocabulary. Use more text or lower tokenizer.min_count.")
        self.keep = keep_probabilities(counts.cpu(), config.subsample).to(text.words.device)
        self.noise = Noise(counts.cpu().double() ** config.noise * (counts.cpu() > 0)).to(text.words.device)

    def block(self, step: int) -> TextBlock:
        first = step % self.blocks * self.size
        words, documents = (part[first : first + self.size] for part in (self.text.words, self.text.documents))
        positions = torch.arange(len(words), device=words.device)
        uniform = to_uniform(random_bits(derive_seed(self.seed, "keep", step), positions))
        remaining = (uniform < self.keep[words]).nonzero().squeeze(1)
        words, documents = words[remaining], documents[remaining]
        bits = random_bits(derive_seed(self.seed, "reach", step), positions[: len(words)])
        reach = 1 + to_integer(bits, self.config.window)
        return TextBlock(words, documents, reach, derive_seed(self.seed, "noise", step))

    def train(self, model: WordVectorModel, step: int, rate: float, batch: int) -> tuple[Tensor, int]:
        predictions = self.predictions(self.block(step))
        return update_in_batches(model, predictions, rate, batch), len(predictions)

    def train_compiled(self, model: WordVectorModel, step: int, rate: float) -> tuple[float, int]:
        from seqloom.classical.word_vectors import numba_engine

        block, noise = self.block(step), self.noise
        kernel = numba_engine.cbow if model.config.objective == "cbow" else numba_engine.skipgram
        tensors = (
            model.vectors,
            model.contexts,
            block.words,
            block.documents,
            block.reach,
            noise.threshold,
            noise.alias,
        )
        arrays = [tensor.numpy() for tensor in tensors]
        loss, count = kernel(*arrays, model.config.negatives, np.uint64(block.seed), np.float32(rate))
        return loss, -(-count // numba_engine.LOSS_INTERVAL)

    def predictions(self, block: TextBlock) -> ContextPredictions:
        """Build all training examples of a block, in the order of the text."""
        window, n, device = self.config.window, len(block.words), block.words.device
        offsets = torch.arange(-window, window, device=device)
        offsets = offsets + (offsets >= 0)  # skip the word itself
        neighbours = torch.arange(n, device=device).unsqueeze(1) + offsets  # (n, 2 · window)
        is_neighbour = (neighbours >= 0) & (neighbours < n)
        neighbours = neighbours.clamp(0, max(n - 1, 0))
        within_window = offsets.abs() <= block.reach.unsqueeze(1)
        is_neighbour = is_neighbour & within_window & (block.documents[neighbours] == block.documents.unsqueeze(1))
        if self.config.objective == "cbow":
            rows = is_neighbour.any(dim=1).nonzero().squeeze(1)
            inputs, input_mask, target = block.words[neighbours[rows]], is_neighbour[rows], block.words[rows]
        else:
            rows, slots = is_neighbour.nonzero(as_tuple=True)
            inputs, target = block.words[rows].unsqueeze(1), block.words[neighbours[rows, slots]]
            input_mask = torch.ones_like(inputs, dtype=torch.bool)
        # Negative k of prediction p is the random number p · K + k of the block.
        numbers = torch.arange(len(target), device=device).unsqueeze(1) * self.config.negatives
        negatives = self.noise(random_bits(block.seed, numbers + torch.arange(self.config.negatives, device=device)))
        candidates = torch.cat([target.unsqueeze(1), negatives], dim=1)
        same = candidates.unsqueeze(2) == candidates.unsqueeze(1)  # (P, 1 + K, 1 + K)
        is_first = ~same.tril(diagonal=-1).any(dim=2)  # duplicates are masked out
        return ContextPredictions(inputs, input_mask, candidates, is_first)


def keep_probabilities(counts: Tensor, subsample: float) -> Tensor:
    """Return the probability that subsampling keeps each word (V,)."""
    if subsample == 0:
        return torch.ones(len(counts))
    ratio = subsample * counts.sum().double() / counts.double().clamp(min=1)
    return (ratio.sqrt() + ratio).clamp(max=1).float()


def scores(model: WordVectorModel, predictions: ContextPredictions) -> tuple[Tensor, Tensor, Tensor]:
    """Return x (P, D), u (P, 1 + K, D) and x · u (P, 1 + K)."""
    v = model.vectors[predictions.inputs] * predictions.input_mask.unsqueeze(2)  # (P, R, D)
    x = v.sum(dim=1) / predictions.input_mask.sum(dim=1, keepdim=True).clamp(min=1)
    u = model.contexts[predictions.candidates]
    return x, u, torch.einsum("pd,pkd->pk", x, u)


def losses(score: Tensor, predictions: ContextPredictions) -> Tensor:
    """Return the loss of each example (P,)."""
    signs = torch.ones_like(score)
    signs[:, 1:].fill_(-1)
    return -(F.logsigmoid(signs * score) * predictions.candidate_mask).sum(dim=1)


@operation
def update_in_batches(model: WordVectorModel, predictions: ContextPredictions, rate: float, batch: int) -> Tensor:
    """Run steps on these examples in place, `batch` examples at a time; return the sum of their losses."""
    loss = torch.zeros((), device=model.device)
    for part in predictions.batches(batch):
        loss += update(model, part, rate)
    return loss


def update(model: WordVectorModel, predictions: ContextPredictions, rate: float | Tensor) -> Tensor:
    """Perform one step in place without device synchronization; return the sum of the losses before the step."""
    x, u, score = scores(model, predictions)
    y = torch.zeros_like(score)
    y[:, :1].fill_(1)
    g = rate * (y - score.sigmoid()) * predictions.candidate_mask  # (P, 1 + K)
    e = torch.einsum("pk,pkd->pd", g, u)
    words, mask = predictions.candidates.flatten(), predictions.candidate_mask.flatten()
    step = (g.unsqueeze(2) * x.unsqueeze(1)).flatten(0, 1)
    model.contexts.index_add_(0, words, step * _step_scale(words, mask, rate, model.vocabulary))
    words, mask = predictions.inputs, predictions.input_mask
    if e.device.type == "cpu":  # drop padding; on a GPU, dropping would synchronize the device
        words, step, mask = words[mask], e[mask.nonzero(as_tuple=True)[0]], mask[mask]
    else:
        step = (e.unsqueeze(1) * mask.unsqueeze(2)).flatten(0, 1)
        words, mask = words.flatten(), mask.flatten()
    model.vectors.index_add_(0, words, step * _step_scale(words, mask, rate, model.vocabulary))
    return losses(score, predictions).sum()


def _step_scale(words: Tensor, mask: Tensor, rate: float | Tensor, vocabulary: int) -> Tensor:
    """Return min(1, MAX_TOTAL_RATE / n η) (P, 1) for words that occur n times."""
    n = torch.zeros(vocabulary, device=words.device).index_add_(0, words, mask.float())
    return (MAX_TOTAL_RATE / (n[words] * rate).clamp(min=MAX_TOTAL_RATE)).unsqueeze(1)
