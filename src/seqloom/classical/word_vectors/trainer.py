"""The training of word vectors, block by block: which engine makes the steps, on how many threads, at which rate.

`torch` takes the equations as they stand, a batch of predictions at a time, on any device. `numba`
compiles them for the CPU, one prediction at a time. With one worker each is the same to the bit
however often it is stopped; several workers are faster and not so (see `numba_engine`).
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from seqloom.classical.word_vectors import WordVectors
from seqloom.classical.word_vectors.glove import PairSampler
from seqloom.classical.word_vectors.negative_sampling import BlockSampler, Sampler, Text
from seqloom.config import config
from seqloom.config.constraints import NonNegativeFloat, PositiveFloat, PositiveInt
from seqloom.core.device import choose_device, derive, has_numba, make_deterministic
from seqloom.core.errors import ResourceError
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


class WordVectorTrainer:
    """Makes the steps of a training on a text, in any stretches one likes."""

    def __init__(self, model: WordVectors, text: Text, train: WordTrainConfig, *, seed: int) -> None:
        self.engine, device = engine_of(train)
        self.model, self.train = model.to(device), train
        if train.deterministic:
            make_deterministic()
        seed = derive(seed, "word vectors")
        self.sampler: BlockSampler
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
        tensors = [loss for loss, _ in found if isinstance(loss, Tensor)]  # a GPU is waited for each time it is asked
        losses = torch.stack(tensors).tolist() if tensors else [float(loss) for loss, _ in found]
        loss = sum(losses) / seen if seen else 0.0
        return Trained(loss, sum(self.sampler.read(step) for step in steps))

    def _step(self, step: int) -> tuple[Tensor | float, int]:
        """The sum of the losses that were looked at, and of how many."""
        if self.engine == "numba":
            return self.sampler.train_compiled(self.model, step, self.rate(step))
        return self.sampler.train(self.model, step, self.rate(step), self.train.batch)
