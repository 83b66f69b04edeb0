"""Skip-gram and CBOW by negative sampling, as equations on tensors: what a step does, on any device.

The text is read a block of words at a time. Of a block, frequent words are left out at random: word w is kept with

    min(1, √(t / q_w) + t / q_w)        q_w its share of the text, t = `subsample`

and each that is left looks 1 … `window` words to either side, how far is drawn. Then, with x = v_c (skip-gram: for each
neighbour o, which is what is there) or x = mean of v_o (CBOW: c is what is there) and y = 1 for the word that is there,
0 for its negatives w,

    g_w = η (y_w − σ(x · u_w))        e = Σ_w g_w u_w        u_w ← u_w + g_w x        v ← v + e

v being v_c, or of CBOW each v_o, as word2vec has it: e is not divided among the neighbours. A word that is drawn twice
for one prediction, or is the one that is there, counts once. `Predictions` of any number are made at once, all from the
vectors as they were before; a batch of one is word2vec itself, and that is what `numba_engine` compiles. In a batch the
n steps on one word are added up, and where n η would be more than `MOST`, all of them are made smaller by so much: one
by one, each would have been corrected by those before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.classical.word_vectors.counter_draws import Noise, below, draws, lower
from seqloom.classical.word_vectors.vectors import WordVectors, WordVectorsConfig
from seqloom.core.errors import DataError
from seqloom.core.operations import operation
from seqloom.core.seeding import derive

MOST = 1.0  # of the rates of all steps on a word in one batch


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


class Sampler:
    """Blocks of a text and their predictions, as pure functions of the seed and the step."""

    def __init__(self, config: WordVectorsConfig, text: Text, counts: Tensor, *, seed: int, block: int) -> None:
        self.config, self.text, self.seed, self.size = config, text, seed, block
        if not len(text):
            raise DataError("There is no word to learn from: every word of the text is rarer than the vocabulary asks.")
        self.keep = kept_shares(counts.cpu(), config.subsample).to(text.words.device)
        self.noise = Noise(counts.cpu().double() ** config.noise * (counts.cpu() > 0)).to(text.words.device)
        self.blocks = -(-len(text) // block)  # in an epoch

    def block(self, step: int) -> TextBlock:
        first = step % self.blocks * self.size
        words, documents = (part[first : first + self.size] for part in (self.text.words, self.text.documents))
        places = torch.arange(len(words), device=words.device)
        kept = (lower(draws(derive(self.seed, "keep", step), places)) < self.keep[words]).nonzero().squeeze(1)
        words, documents = words[kept], documents[kept]
        reach = 1 + below(draws(derive(self.seed, "reach", step), places[: len(words)]), self.config.window)
        return TextBlock(words, documents, reach, derive(self.seed, "noise", step))

    def read(self, step: int) -> int:
        """How many words the block of a step has before any is left out."""
        first = step % self.blocks * self.size
        return min(self.size, len(self.text) - first)

    def predictions(self, block: TextBlock) -> Predictions:
        """All predictions of a block, in the order of the text."""
        there, neighbours = self._neighbours(block)  # (n, 2 · window)
        if self.config.objective == "cbow":
            rows = there.any(dim=1).nonzero().squeeze(1)
            read, used, target = block.words[neighbours[rows]], there[rows], block.words[rows]
        else:
            rows, slots = there.nonzero(as_tuple=True)
            read, target = block.words[rows].unsqueeze(1), block.words[neighbours[rows, slots]]
            used = torch.ones_like(read, dtype=torch.bool)
        told = torch.cat([target.unsqueeze(1), self._negatives(block, target)], dim=1)
        return Predictions(read, used, told, _counts_once(told))

    def _neighbours(self, block: TextBlock) -> tuple[Tensor, Tensor]:
        """Which of the 2 · window places around each word are read, and which these are."""
        window, n, device = self.config.window, len(block.words), block.words.device
        offsets = torch.arange(-window, window, device=device)
        offsets = offsets + (offsets >= 0)  # the place itself is none of them
        places = torch.arange(n, device=device).unsqueeze(1) + offsets
        inside = (places >= 0) & (places < n)
        places = places.clamp(0, max(n - 1, 0))
        near = offsets.abs() <= block.reach.unsqueeze(1)
        return inside & near & (block.documents[places] == block.documents.unsqueeze(1)), places

    def _negatives(self, block: TextBlock, target: Tensor) -> Tensor:
        """Negative k of prediction p is draw p · K + k of the block."""
        numbers = torch.arange(len(target), device=target.device).unsqueeze(1) * self.config.negatives
        return self.noise(draws(block.seed, numbers + torch.arange(self.config.negatives, device=target.device)))


def kept_shares(counts: Tensor, subsample: float) -> Tensor:
    """How likely each word (V,) is kept."""
    if subsample == 0:
        return torch.ones(len(counts))
    ratio = subsample * counts.sum().double() / counts.double().clamp(min=1)
    return (ratio.sqrt() + ratio).clamp(max=1).float()


def _counts_once(told: Tensor) -> Tensor:
    """Which of the words told (P, 1 + K) stand there for the first time."""
    same = told.unsqueeze(2) == told.unsqueeze(1)  # (P, 1 + K, 1 + K)
    return ~same.tril(diagonal=-1).any(dim=2)


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
    read, used, to_v = _gradients_of_read(made, e)
    model.contexts.index_add_(0, told, to_u * _share(told, made.real.flatten(), rate, model.vocabulary))
    model.vectors.index_add_(0, read, to_v * _share(read, used, rate, model.vocabulary))
    return losses(score, made).sum()


def _gradients_of_read(made: Predictions, e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Words that were read (N,), which of them were there (N,), and the step e of each (N, D)."""
    if e.device.type == "cpu":  # those that were there alone; a GPU would be waited for, to say how many they are
        return made.read[made.used], made.used[made.used], e[made.used.nonzero(as_tuple=True)[0]]
    return made.read.flatten(), made.used.flatten(), (e.unsqueeze(1) * made.used.unsqueeze(2)).flatten(0, 1)


def _share(words: Tensor, counting: Tensor, rate: float | Tensor, vocabulary: int) -> Tensor:
    """min(1, MOST / n η) for each of these words (P, 1), n of them being the same one."""
    n = torch.zeros(vocabulary, device=words.device).index_add_(0, words, counting.float())
    return (MOST / (n[words] * rate).clamp(min=MOST)).unsqueeze(1)
