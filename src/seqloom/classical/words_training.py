"""The training of word vectors, block by block: which engine makes the steps, on how many threads, at which rate.

`torch` takes the equations as they stand, a batch of predictions at a time, on any device. `numba` compiles them for
the CPU, one prediction at a time. With one worker each is the same to the bit however often it is stopped; several
workers are faster and not so (see `fast_words`).
"""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from seqloom.classical import glove, negative_sampling
from seqloom.classical.glove import PairSampler
from seqloom.classical.negative_sampling import Sampler, Text
from seqloom.classical.word_vectors import WordVectors
from seqloom.classical.words_graph import RecordedStep
from seqloom.config import config
from seqloom.core.device import choose_device, has_numba, make_deterministic
from seqloom.core.errors import ResourceError
from seqloom.core.seeding import derive
from seqloom.train.estimate import EstimateConfig

Engine = Literal["auto", "numba", "torch"]
RATES = {"skipgram": 0.025, "cbow": 0.025, "glove": 0.05}
ALL = sys.maxsize  # predictions of a block at once
_ABOVE_ZERO = ("epochs", "lr", "workers", "block", "batch", "save_every", "log_every", "keep")


@config
class WordTrainConfig(EstimateConfig):
    """How to train word vectors."""

    epochs: int = 5  # passes over the text; of GloVe, over the pairs
    lr: float | None = None  # where the rate begins; if left out, 0.025, for GloVe 0.05
    schedule: Literal["linear", "constant"] = "linear"  # linear falls to min_lr over the whole training
    min_lr: float = 1e-4  # where linear ends
    engine: Engine = "auto"  # numba is fastest on a CPU; auto takes it where it is installed, else torch
    workers: int = 1  # threads of numba (torch has its own); with more than one, a run cannot be repeated to the bit
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    deterministic: bool = False  # on a GPU: exact resume, at some cost in speed
    block: int = 10_000  # words, of GloVe pairs, that are read at one rate
    batch: int = 4096  # torch: predictions made at once
    save_every: int | None = None  # words, or pairs, between checkpoints; if left out, once an epoch
    log_every: int = 20  # blocks between lines of the log

    def problems(self) -> Iterator[str]:
        for name in _ABOVE_ZERO:
            value = getattr(self, name)
            if value is not None and value <= 0:
                yield f"{name} must be above 0, got {value}"
        if self.min_lr < 0:
            yield f"min_lr must be at least 0, got {self.min_lr}"
        if self.engine == "numba" and self.device not in ("auto", "cpu"):
            yield f"numba computes on the CPU: set device to cpu, or engine to torch; got {self.device}"


@dataclass(frozen=True)
class Trained:
    """What a stretch of blocks did."""

    loss: float  # mean over the predictions that were looked at
    read: int  # words, or pairs


def engine_of(config: WordTrainConfig) -> tuple[str, torch.device]:
    """Which engine computes, and where: a GPU if there is one, else numba if it is installed."""
    if config.engine == "numba" and not has_numba():
        raise ResourceError("train.engine=numba needs numba: pip install 'seqloom[fast]', or set train.engine=torch.")
    gpu = config.device == "auto" and config.engine != "numba" and torch.cuda.is_available()
    device = choose_device("cuda" if gpu else "cpu" if config.device == "auto" else config.device)
    compiled = has_numba() and device.type == "cpu" and config.engine != "torch"
    return "numba" if compiled else "torch", device


def _numbers(losses: list[Any]) -> list[float]:
    """All at once: a GPU is waited for each time it is asked."""
    if losses and all(isinstance(loss, torch.Tensor) for loss in losses):
        return torch.stack(losses).tolist()
    return [float(loss) for loss in losses]


class Trainer:
    """Makes the steps of a training on a text, in any stretches one likes."""

    def __init__(self, model: WordVectors, text: Text, train: WordTrainConfig, *, seed: int) -> None:
        self.engine, device = engine_of(train)
        self.model, self.train = model.to(device), train
        if train.deterministic:
            make_deterministic()
        seed = derive(seed, "word vectors")
        self.sampler: Any
        if model.glove:
            self.sampler = PairSampler(model.config, text.to(device), model.vocabulary, seed=seed, block=train.block)
        else:
            self.sampler = Sampler(model.config, text.to(device), model.counts, seed=seed, block=train.block)
        self.total = train.epochs * self.sampler.blocks
        self._recorded: RecordedStep | None = None

    def rate(self, step: int) -> float:
        """η falls in a straight line, or stays."""
        peak = self.train.lr if self.train.lr is not None else RATES[self.model.config.objective]
        if self.train.schedule == "constant":
            return peak
        return max(min(self.train.min_lr, peak), peak * (1 - step / self.total))

    def run(self, steps: Sequence[int]) -> Trained:
        """Make these steps, a block each."""
        if self.train.workers == 1 or self.engine == "torch":
            found = [self._step(step) for step in steps]
        else:
            with ThreadPoolExecutor(self.train.workers) as pool:
                found = list(pool.map(self._step, steps))
        seen = sum(count for _, count in found)
        loss = sum(_numbers([loss for loss, _ in found])) / seen if seen else 0.0
        return Trained(loss, sum(self.sampler.read(step) for step in steps))

    def _step(self, step: int) -> tuple[Any, int]:
        """The sum of the losses that were looked at, and of how many."""
        block, rate = self.sampler.block(step), self.rate(step)
        if self.engine == "numba":
            return self._compiled(block, rate)
        if self.model.glove:
            return self._pairs(block, rate)
        if self.model.device.type == "cuda" and not torch.are_deterministic_algorithms_enabled():
            return self._played(block, rate)
        loss, count = torch.zeros((), device=self.model.device), 0
        for made in self.sampler.predictions(block, self.train.batch):
            loss += negative_sampling.update(self.model, made, rate)
            count += len(made.told)
        return loss, count

    def _played(self, block: negative_sampling.Block, rate: float) -> tuple[Any, int]:
        if self._recorded is None or not self._recorded.holds(self.model):
            self._recorded = RecordedStep(self.model, self.train.batch)
        made = next(self.sampler.predictions(block, ALL), None)
        return (0.0, 0) if made is None else (self._recorded.play(made, rate), len(made.told))

    def _pairs(self, block: glove.Fitted, rate: float) -> tuple[Any, int]:
        loss = torch.zeros((), device=self.model.device)
        for first in range(0, len(block.rows), self.train.batch):
            part = slice(first, first + self.train.batch)
            some = glove.Fitted(block.rows[part], block.columns[part], block.logs[part], block.weights[part])
            loss += glove.update(self.model, some, rate)
        return loss, len(block.rows)

    def _compiled(self, block: Any, rate: float) -> tuple[Any, int]:
        from seqloom.classical import fast_words

        model = self.model
        if model.glove:
            tables = [getattr(model, name) for name in model.squares] + list(model.squares.values())
            arrays = [table.numpy() for table in (*tables, block.rows, block.columns, block.logs, block.weights)]
            loss, count = fast_words.glove(*arrays, np.float32(rate))
            return loss, count
        noise = self.sampler.noise
        arrays = [
            tensor.numpy() for tensor in (model.vectors, model.contexts, block.words, block.documents, block.reach)
        ]
        kernel = getattr(fast_words, model.config.objective)
        loss, count = kernel(
            *arrays,
            noise.share.numpy(),
            noise.alias.numpy(),
            model.config.negatives,
            np.uint64(block.seed),
            np.float32(rate),
        )
        return loss, -(-count // fast_words.SEEN)
