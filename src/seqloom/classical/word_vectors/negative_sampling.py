"""Skip-gram and CBOW by negative sampling, as equations on tensors: what a step does, on any device.

The text is read a block of words at a time. Of a block, frequent words are left out at random: word
w is kept with

    min(1, √(t / q_w) + t / q_w)        q_w its share of the text, t = `subsample`

and each that is left looks 1 … `window` words to either side, how far is drawn. Then, with x = v_c
(skip-gram: for each neighbour o, which is what is there) or x = mean of v_o (CBOW: c is what is
there) and y = 1 for the word that is there, 0 for its negatives w,

    g_w = η (y_w − σ(x · u_w))        e = Σ_w g_w u_w        u_w ← u_w + g_w x        v ← v + e

v being v_c, or of CBOW each v_o, as word2vec has it: e is not divided among the neighbours. A word
that is drawn twice for one prediction, or is the one that is there, counts once. `Predictions` of
any number are made at once, all from the vectors as they were before; a batch of one is word2vec
itself, and that is what `numba_engine` compiles. In a batch the n steps on one word are added up,
and where n η would be more than `MOST`, all of them are made smaller by so much: one by one, each
would have been corrected by those before it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.classical.word_vectors import WordVectors, WordVectorsConfig
from seqloom.core.device import derive
from seqloom.core.errors import DataError
from seqloom.core.operations import operation

MOST = 1.0  # of the rates of all steps on a word in one batch
GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of SplitMix64


# --- random numbers by their place ------------------------------------------------------------------------------------


def draws(seed: int, places: Tensor) -> Tensor:
    """r_n (…) as int64 for n in `places` (…)."""
    # the same 64 bits as torch's integers read them
    seed, gamma, first, second = (
        (number + (1 << 63)) % (1 << 64) - (1 << 63) for number in (seed, GAMMA, FIRST, SECOND)
    )
    x = (places + 1) * gamma + seed
    x = (x ^ _shift(x, 30)) * first
    x = (x ^ _shift(x, 27)) * second
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """x / 2^bits of an unsigned number: torch's own shift would bring in copies of the first bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def below(r: Tensor, n: int) -> Tensor:
    """A whole number from 0 to n − 1: ⌊r's upper 32 bits · n / 2³²⌋."""
    return (_shift(r, 32) * n) >> 32


def lower(r: Tensor) -> Tensor:
    """The lower 24 bits as a number from 0 to 1, exact in float32."""
    return (r & 0xFFFFFF).float() / (1 << 24)


class Noise:
    """Draws from any distribution p (V,) with one number each: a column is drawn, and then it or its alias (Walker).

    Columns are of equal height 1/V, each of at most two outcomes: itself up to `share`, above it
    `alias`.
    """

    def __init__(self, p: Tensor) -> None:
        exact = p.double().numpy()
        height = (exact / exact.sum() * len(p)).tolist()
        share, alias = np.ones(len(p), np.float32), np.arange(len(p), dtype=np.int64)
        low = [column for column, own in enumerate(height) if own < 1]
        high = [column for column, own in enumerate(height) if own >= 1]
        while low and high:
            small, large = low.pop(), high[-1]
            share[small], alias[small] = height[small], large
            height[large] -= 1 - height[small]
            if height[large] < 1:
                low.append(high.pop())
        self.share, self.alias = torch.from_numpy(share), torch.from_numpy(alias)

    def to(self, device: torch.device | str) -> "Noise":
        self.share, self.alias = self.share.to(device), self.alias.to(device)
        return self

    def __call__(self, r: Tensor) -> Tensor:
        column = below(r, len(self.share))
        return torch.where(lower(r) < self.share[column], column, self.alias[column])


# --- blocks of a text -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    """The words of a text without what has no vector, and the document each stands in: windows end there."""

    words: Tensor  # (N,)
    documents: Tensor  # (N,)

    def __len__(self) -> int:
        return len(self.words)

    def to(self, device: torch.device | str) -> "Text":
        return Text(self.words.to(device), self.documents.to(device))


@dataclass(frozen=True)
class TextBlock:
    """What is left of a block of words, and how far each looks."""

    words: Tensor  # (n,)
    documents: Tensor  # (n,)
    reach: Tensor  # (n,) from 1 to the window
    seed: int  # of its noise


@dataclass(frozen=True)
class Predictions:
    """P predictions: what is read, and what is told from noise."""

    read: Tensor  # (P, R) words whose vectors are read
    used: Tensor  # (P, R) which of them are there
    told: Tensor  # (P, 1 + K) the word that is there, then its negatives
    real: Tensor  # (P, 1 + K) which of them count

    def __len__(self) -> int:
        return len(self.told)

    def batches(self, size: int) -> Iterator["Predictions"]:
        """The same, at most `size` at a time."""
        for first in range(0, len(self), size):
            yield Predictions(*(part[first : first + size] for part in vars(self).values()))


class BlockSampler(ABC):
    """What is read in an epoch, in blocks of at most `size`: pure functions of the seed and the step."""

    def __init__(self, total: int, size: int, seed: int) -> None:
        self.total, self.size, self.seed = total, size, seed
        self.blocks = -(-total // size)  # in an epoch

    def read(self, step: int) -> int:
        """How many words, or pairs, the block of a step has before any is left out."""
        return min(self.size, self.total - step % self.blocks * self.size)

    @abstractmethod
    def train(self, model: WordVectors, step: int, rate: float, batch: int) -> tuple[Tensor, int]:
        """Make the steps of a block, `batch` at a time, in place; the sum of their losses, and how many they are."""

    @abstractmethod
    def train_compiled(self, model: WordVectors, step: int, rate: float) -> tuple[float, int]:
        """The same one by one, compiled by numba; the loss is that of some of the steps."""


class Sampler(BlockSampler):
    """Blocks of a text and their predictions."""

    def __init__(self, config: WordVectorsConfig, text: Text, counts: Tensor, *, seed: int, block: int) -> None:
        super().__init__(len(text), block, seed)
        self.config, self.text = config, text
        if not len(text):
            raise DataError("There is no word to learn from: every word of the text is rarer than the vocabulary asks.")
        self.keep = kept_shares(counts.cpu(), config.subsample).to(text.words.device)
        self.noise = Noise(counts.cpu().double() ** config.noise * (counts.cpu() > 0)).to(text.words.device)

    def block(self, step: int) -> TextBlock:
        first = step % self.blocks * self.size
        words, documents = (part[first : first + self.size] for part in (self.text.words, self.text.documents))
        places = torch.arange(len(words), device=words.device)
        kept = (lower(draws(derive(self.seed, "keep", step), places)) < self.keep[words]).nonzero().squeeze(1)
        words, documents = words[kept], documents[kept]
        reach = 1 + below(draws(derive(self.seed, "reach", step), places[: len(words)]), self.config.window)
        return TextBlock(words, documents, reach, derive(self.seed, "noise", step))

    def train(self, model: WordVectors, step: int, rate: float, batch: int) -> tuple[Tensor, int]:
        made = self.predictions(self.block(step))
        return update_in_batches(model, made, rate, batch), len(made)

    def train_compiled(self, model: WordVectors, step: int, rate: float) -> tuple[float, int]:
        from seqloom.classical.word_vectors import numba_engine

        block, noise = self.block(step), self.noise
        kernel = numba_engine.cbow if model.config.objective == "cbow" else numba_engine.skipgram
        tensors = (
            model.vectors,
            model.contexts,
            block.words,
            block.documents,
            block.reach,
            noise.share,
            noise.alias,
        )
        arrays = [tensor.numpy() for tensor in tensors]
        loss, count = kernel(*arrays, model.config.negatives, np.uint64(block.seed), np.float32(rate))
        return loss, -(-count // numba_engine.SEEN)

    def predictions(self, block: TextBlock) -> Predictions:
        """All predictions of a block, in the order of the text."""
        window, n, device = self.config.window, len(block.words), block.words.device
        offsets = torch.arange(-window, window, device=device)
        offsets = offsets + (offsets >= 0)  # the word itself is no neighbour
        neighbours = torch.arange(n, device=device).unsqueeze(1) + offsets  # (n, 2 · window)
        there = (neighbours >= 0) & (neighbours < n)
        neighbours = neighbours.clamp(0, max(n - 1, 0))
        near = offsets.abs() <= block.reach.unsqueeze(1)
        there = there & near & (block.documents[neighbours] == block.documents.unsqueeze(1))
        if self.config.objective == "cbow":
            rows = there.any(dim=1).nonzero().squeeze(1)
            read, used, target = block.words[neighbours[rows]], there[rows], block.words[rows]
        else:
            rows, slots = there.nonzero(as_tuple=True)
            read, target = block.words[rows].unsqueeze(1), block.words[neighbours[rows, slots]]
            used = torch.ones_like(read, dtype=torch.bool)
        # negative k of prediction p is draw p · K + k of the block
        numbers = torch.arange(len(target), device=device).unsqueeze(1) * self.config.negatives
        negatives = self.noise(draws(block.seed, numbers + torch.arange(self.config.negatives, device=device)))
        told = torch.cat([target.unsqueeze(1), negatives], dim=1)
        same = told.unsqueeze(2) == told.unsqueeze(1)  # (P, 1 + K, 1 + K)
        return Predictions(read, used, told, ~same.tril(diagonal=-1).any(dim=2))  # each word counts once


def kept_shares(counts: Tensor, subsample: float) -> Tensor:
    """How likely each word (V,) is kept."""
    if subsample == 0:
        return torch.ones(len(counts))
    ratio = subsample * counts.sum().double() / counts.double().clamp(min=1)
    return (ratio.sqrt() + ratio).clamp(max=1).float()


def scores(model: WordVectors, made: Predictions) -> tuple[Tensor, Tensor, Tensor]:
    """x (P, D), u (P, 1 + K, D) and x · u (P, 1 + K)."""
    v = model.vectors[made.read] * made.used.unsqueeze(2)  # (P, R, D)
    x = v.sum(dim=1) / made.used.sum(dim=1, keepdim=True).clamp(min=1)
    u = model.contexts[made.told]
    return x, u, torch.einsum("pd,pkd->pk", x, u)


def losses(score: Tensor, made: Predictions) -> Tensor:
    """The loss of each prediction (P,)."""
    signs = torch.ones_like(score)
    signs[:, 1:].fill_(-1)
    return -(F.logsigmoid(signs * score) * made.real).sum(dim=1)


@operation
def update_in_batches(model: WordVectors, made: Predictions, rate: float, batch: int) -> Tensor:
    """Steps from these predictions, `batch` at a time, in place; the sum of their losses."""
    loss = torch.zeros((), device=model.device)
    for some in made.batches(batch):
        loss += update(model, some, rate)
    return loss


def update(model: WordVectors, made: Predictions, rate: float | Tensor) -> Tensor:
    """One step from these predictions, in place; the sum of their losses before it. On a GPU it never waits for it."""
    x, u, score = scores(model, made)
    y = torch.zeros_like(score)
    y[:, :1].fill_(1)
    g = rate * (y - score.sigmoid()) * made.real  # (P, 1 + K)
    e = torch.einsum("pk,pkd->pd", g, u)
    told, to_u = made.told.flatten(), (g.unsqueeze(2) * x.unsqueeze(1)).flatten(0, 1)
    if e.device.type == "cpu":  # the words that were read alone; a GPU would be waited for, to say how many they are
        read, used, to_v = made.read[made.used], made.used[made.used], e[made.used.nonzero(as_tuple=True)[0]]
    else:
        read, used = made.read.flatten(), made.used.flatten()
        to_v = (e.unsqueeze(1) * made.used.unsqueeze(2)).flatten(0, 1)
    model.contexts.index_add_(0, told, to_u * _share(told, made.real.flatten(), rate, model.vocabulary))
    model.vectors.index_add_(0, read, to_v * _share(read, used, rate, model.vocabulary))
    return losses(score, made).sum()


def _share(words: Tensor, counting: Tensor, rate: float | Tensor, vocabulary: int) -> Tensor:
    """min(1, MOST / n η) for each of these words (P, 1), n of them being the same one."""
    n = torch.zeros(vocabulary, device=words.device).index_add_(0, words, counting.float())
    return (MOST / (n[words] * rate).clamp(min=MOST)).unsqueeze(1)
