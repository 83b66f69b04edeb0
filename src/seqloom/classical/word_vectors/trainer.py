"""The training of word vectors, block by block: which engine makes the steps, on how many threads, at which rate.

`torch` takes the equations as they stand, a batch of predictions at a time, on any device. `numba` compiles them for
the CPU, one prediction at a time. With one worker each is the same to the bit however often it is stopped; several
workers are faster and not so (see `numba_engine`).
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from seqloom.classical.word_vectors import glove, negative_sampling
from seqloom.classical.word_vectors.glove import PairSampler
from seqloom.classical.word_vectors.negative_sampling import Sampler, Text
from seqloom.classical.word_vectors.vectors import WordVectors
from seqloom.config import config
from seqloom.config.constraints import NonNegativeFloat, PositiveFloat, PositiveInt
from seqloom.core.device import choose_device, has_numba, make_deterministic
from seqloom.core.errors import ResourceError
from seqloom.core.seeding import derive
from seqloom.train.estimate import EstimateConfig

Engine = Literal["auto", "numba", "torch"]
RATES = {"skipgram": 0.025, "cbow": 0.025, "glove": 0.05}


@config
class WordTrainConfig(EstimateConfig):
    """How to train word vectors."""

    epochs: PositiveInt = 5  # passes over the text; of GloVe, over the pairs
    lr: PositiveFloat | None = None  # where the rate begins; if left out, 0.025, for GloVe 0.05
    schedule: Literal["linear", "constant"] = "linear"  # linear falls to min_lr over the whole training
    min_lr: NonNegativeFloat = 1e-4  # where linear ends
    engine: Engine = "auto"  # numba is fastest on a CPU; auto takes it where it is installed, else torch
    workers: PositiveInt = 1  # threads of numba (torch has its own); with more, a run cannot be repeated to the bit
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    deterministic: bool = False  # on a GPU: exact resume, at some cost in speed
    block: PositiveInt = 10_000  # words, of GloVe pairs, that are read at one rate
    batch: PositiveInt = 4096  # torch: predictions made at once
    save_every: PositiveInt | None = None  # words, or pairs, between checkpoints; if left out, once an epoch
    log_every: PositiveInt = 20  # blocks between lines of the log

    def problems(self) -> Iterator[str]:
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


class WordVectorTrainer:
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
        made = self.sampler.predictions(block)
        return negative_sampling.update_in_batches(self.model, made, rate, self.train.batch), len(made)

    def _pairs(self, block: glove.Fitted, rate: float) -> tuple[Any, int]:
        loss = torch.zeros((), device=self.model.device)
        for first in range(0, len(block.rows), self.train.batch):
            part = slice(first, first + self.train.batch)
            some = glove.Fitted(block.rows[part], block.columns[part], block.logs[part], block.weights[part])
            loss += glove.update(self.model, some, rate)
        return loss, len(block.rows)

    def _compiled(self, block: Any, rate: float) -> tuple[Any, int]:
        from seqloom.classical.word_vectors import numba_engine

        model = self.model
        if model.glove:
            tables = [getattr(model, name) for name in model.squares] + list(model.squares.values())
            arrays = [table.numpy() for table in (*tables, block.rows, block.columns, block.logs, block.weights)]
            loss, count = numba_engine.glove(*arrays, np.float32(rate))
            return loss, count
        noise = self.sampler.noise
        arrays = [
            tensor.numpy() for tensor in (model.vectors, model.contexts, block.words, block.documents, block.reach)
        ]
        kernel = getattr(numba_engine, model.config.objective)
        loss, count = kernel(
            *arrays,
            noise.share.numpy(),
            noise.alias.numpy(),
            model.config.negatives,
            np.uint64(block.seed),
            np.float32(rate),
        )
        return loss, -(-count // numba_engine.SEEN)
