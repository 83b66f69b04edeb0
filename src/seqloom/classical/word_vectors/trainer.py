"""Block-wise training of word vectors: engine, threads and learning rate.

Engine `torch` evaluates the equations on batches of training examples on any device. Engine `numba` compiles them for
the CPU and processes one example at a time. With one worker, resumed training is bit-identical to uninterrupted
training; several workers are faster but not reproducible (see `numba_engine`).
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from seqloom.classical.word_vectors import WordVectorModel
from seqloom.classical.word_vectors.glove import PairSampler
from seqloom.classical.word_vectors.negative_sampling import BlockSampler, Sampler, Text
from seqloom.config import config
from seqloom.config.constraints import NonNegativeFloat, PositiveFloat, PositiveInt
from seqloom.core.device import choose_device, derive_seed, has_numba, make_deterministic
from seqloom.core.errors import ResourceError
from seqloom.train.estimate import EstimateConfig

Engine = Literal["auto", "numba", "torch"]
RATES = {"skipgram": 0.025, "cbow": 0.025, "glove": 0.05}


@config
class WordTrainConfig(EstimateConfig):
    """Training settings of word vectors."""

    epochs: PositiveInt = 5  # number of passes over the text, or for GloVe over the pairs
    lr: PositiveFloat | None = None  # initial learning rate; null: 0.025, or 0.05 for GloVe
    schedule: Literal["linear", "constant"] = "linear"  # linear: the learning rate decreases to min_lr
    min_lr: NonNegativeFloat = 1e-4  # final learning rate of the linear schedule
    engine: Engine = "auto"  # auto: numba on a CPU if installed, else torch
    workers: PositiveInt = 1  # number of numba threads; with more than one, results are not reproducible
    device: str = "auto"  # auto, cpu, cuda, cuda:1 or mps
    deterministic: bool = False  # on a GPU: make resuming exact, at some cost in speed
    block: PositiveInt = 10_000  # number of words, or GloVe pairs, per update of the learning rate
    batch: PositiveInt = 4096  # torch: number of training examples per step
    save_every: PositiveInt | None = None  # number of words or pairs between checkpoints; null: once per epoch
    log_every: PositiveInt = 20  # number of blocks between log lines

    def problems(self) -> Iterator[str]:
        if self.engine == "numba" and self.device not in ("auto", "cpu"):
            yield f"engine numba needs the CPU; got device {self.device}. Set device to cpu, or engine to torch"


@dataclass(frozen=True)
class TrainingResult:
    """The loss and the size of some training steps."""

    loss: float  # mean loss of the measured examples
    read: int  # number of words or pairs


def select_engine(config: WordTrainConfig) -> tuple[str, torch.device]:
    """Select engine and device: a GPU if available, else numba if installed."""
    if config.engine == "numba" and not has_numba():
        raise ResourceError("train.engine=numba needs numba: pip install 'seqloom[fast]', or set train.engine=torch.")
    gpu = config.device == "auto" and config.engine != "numba" and torch.cuda.is_available()
    device = choose_device("cuda" if gpu else "cpu" if config.device == "auto" else config.device)
    compiled = has_numba() and device.type == "cpu" and config.engine != "torch"
    return "numba" if compiled else "torch", device


class WordVectorTrainer:
    """A trainer of word vectors, which runs any number of steps at a time."""

    def __init__(self, model: WordVectorModel, text: Text, train: WordTrainConfig, *, seed: int) -> None:
        self.engine, device = select_engine(train)
        self.model, self.train = model.to(device), train
        if train.deterministic:
            make_deterministic()
        seed = derive_seed(seed, "word vectors")
        self.sampler: BlockSampler
        if model.glove:
            self.sampler = PairSampler(model.config, text.to(device), model.vocabulary, seed=seed, block=train.block)
        else:
            self.sampler = Sampler(model.config, text.to(device), model.counts, seed=seed, block=train.block)
        self.total = train.epochs * self.sampler.blocks

    def rate(self, step: int) -> float:
        """Return the learning rate η of a step."""
        peak = self.train.lr if self.train.lr is not None else RATES[self.model.config.objective]
        if self.train.schedule == "constant":
            return peak
        return max(min(self.train.min_lr, peak), peak * (1 - step / self.total))

    def run(self, steps: Sequence[int]) -> TrainingResult:
        """Run `steps`, each on one block, and return the loss and the size of all steps."""
        if self.train.workers == 1 or self.engine == "torch":
            results = [self._step(step) for step in steps]
        else:
            with ThreadPoolExecutor(self.train.workers) as pool:
                results = list(pool.map(self._step, steps))
        measured = sum(count for _, count in results)
        tensors = [loss for loss, _ in results if isinstance(loss, Tensor)]  # one device synchronization for all losses
        losses = torch.stack(tensors).tolist() if tensors else [float(loss) for loss, _ in results]
        loss = sum(losses) / measured if measured else 0.0
        return TrainingResult(loss, sum(self.sampler.read(step) for step in steps))

    def _step(self, step: int) -> tuple[Tensor | float, int]:
        """Run one step; return the sum of the measured losses and their number."""
        if self.engine == "numba":
            return self.sampler.train_compiled(self.model, step, self.rate(step))
        return self.sampler.train(self.model, step, self.rate(step), self.train.batch)
