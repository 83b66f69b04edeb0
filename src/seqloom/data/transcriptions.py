"""Recordings with their transcriptions, the features of recordings, and batches of vectors.

    signal                     a sound, the strokes of a pen
    x_1 … x_S = features       one vector of fixed size per frame or per point of the pen; `SignalFeatures`
    y_1 … y_T                  the tokens of the transcription

A form of recordings consists of a subclass of `Signal`, and of a config of features in `FEATURES`. The task
`transcribe`, its models and `seqloom transcribe` work with all forms.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.config import Kinds
from seqloom.core.device import derive_seed
from seqloom.core.errors import DataError
from seqloom.core.limits import max_source
from seqloom.core.tree import Tree
from seqloom.data.batching import Array, Batches, LengthSampler, Ragged, Shape
from seqloom.data.collate import shift_right
from seqloom.data.corpus import Corpus, Example, frame

Vectors = NDArray[np.float32]  # (S, D)
FEATURES = Kinds(
    "kind",
    {
        "pen-offsets": "seqloom.data.pen_features:PenOffsetsConfig",
        "log-mel": "seqloom.data.features_sound:LogMelConfig",
    },
)


# --- recordings -------------------------------------------------------------------------------------------------------


class Signal(ABC):
    """A recording: what a model reads before it is converted to vectors."""

    name: str  # the file or the number of the recording, for messages and plots
    start: float = 0.0  # for a window of a longer recording: the position at which the window starts
    part: tuple[float, float] | None = None  # for a window: the start and the end of the part whose tokens it keeps
    quality: tuple[str, ...] = ()  # notes for the user on problems of the recording
    is_silent: bool = False  # whether the recording contains nothing to transcribe

    @abstractmethod
    def content(self) -> bytes:
        """Return bytes that are equal only for equal recordings."""

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content()).hexdigest()


@dataclass(frozen=True)
class TranscribedExample(Example):
    """A recording and its transcription."""

    form: ClassVar = "transcription"
    unit: ClassVar = "recordings"

    signal: Signal
    text: str
    group: str = ""  # the speaker, the voice or the writer, or "" if unknown

    @property
    def name(self) -> str:
        """The name of the recording."""
        return self.signal.name

    @property
    def target_texts(self) -> Sequence[str]:
        """The transcription, the only correct text."""
        return (self.text,)

    def texts(self) -> Sequence[str]:
        return [self.text]

    def content(self) -> bytes:
        return b"".join(map(frame, (self.signal.sha256, self.text, self.group)))

    @classmethod
    def sizes(cls, corpus: "Corpus[Any]", split: str) -> dict[str, int]:
        examples = corpus.split(split)
        groups = {example.group for example in examples if example.group}
        words = sum(len(example.text.split()) for example in examples)
        characters = sum(len(example.text) for example in examples)
        count = {"groups": len(groups)} if groups else {}
        return {"recordings": len(examples), **count, "words": words, "characters": characters}


# --- features ---------------------------------------------------------------------------------------------------------


class SignalFeatures(ABC):
    """The base class of the configs in `FEATURES`, which convert recordings of one form to vectors."""

    signal_type: ClassVar[type[Signal]]
    recordings: ClassVar[str]  # the plural noun for recordings of this form

    @property
    @abstractmethod
    def size(self) -> int:
        """D, the number of values of a vector."""

    @abstractmethod
    def vectors(self, signal: Any) -> Vectors:
        """Return the vectors (S, D) of a recording; raise `DataError` if it has none."""

    @abstractmethod
    def times(self, count: int) -> NDArray[np.float64]:
        """Return the position of each of `count` vectors: seconds, or the number of a point of the pen."""

    def augment(self, vectors: Vectors, draws: np.random.Generator) -> Vectors:
        """Return vectors (S, D) with random changes, which depend only on `draws`. By default, nothing is changed."""
        return vectors

    @property
    def augments(self) -> bool:
        """Whether `augment` changes vectors."""
        return False

    @abstractmethod
    def read_file(self, path: Path) -> Iterator[Any]:
        """Yield the recordings of a file; raise `DataError` if the file cannot be read."""

    @abstractmethod
    def read_stream(self, stream: BinaryIO) -> Iterator[Any]:
        """Yield the recordings of an open file, such as standard input."""

    @abstractmethod
    def as_signal(self, values: Any) -> Signal:
        """Return a recording that is given as arrays or lists; raise `UsageError` if it has another form."""


def check_length(name: str, count: int, unit: str) -> None:
    """Raise an error if a recording has more vectors than a model may read."""
    if count > max_source():
        raise DataError(
            f"{name} has {count:,} {unit}; the limit is {max_source():,}. Divide the recording, or raise the limit: "
            f"SEQLOOM_MAX_SOURCE={count}."
        )


# --- batches ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RaggedVectors:
    """Sequences of vectors in one array: sequence i is values[starts[i] : starts[i + 1]]."""

    values: Vectors  # (Σ lengths, D)
    starts: NDArray[np.int64]  # (N + 1,)

    @classmethod
    def of(cls, sequences: Iterable[Vectors], size: int) -> "RaggedVectors":
        """Store sequences of vectors with `size` values."""
        parts = [np.zeros((0, size), dtype=np.float32), *sequences]
        return cls(np.concatenate(parts), np.cumsum([len(part) for part in parts], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> Vectors:
        return self.values[self.starts[index] : self.starts[index + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)


def pad_vectors(sequences: Sequence[Vectors], rows: int, length: int) -> dict[str, Tensor]:
    """Return `vectors` (rows, length, D), zero at padding, and their `mask` (rows, length)."""
    vectors = np.zeros((rows, length, sequences[0].shape[1]), dtype=np.float32)
    mask = np.zeros((rows, length), dtype=bool)
    for row, sequence in enumerate(sequences):
        vectors[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = True
    return {"vectors": torch.from_numpy(vectors), "mask": torch.from_numpy(mask)}


class TranscriptionBatches(Batches):
    """Batches of recordings of similar length with their transcriptions.

    vectors (B, S, D), mask (B, S)                    the recordings
    inputs, targets, target_mask (B, T)               the transcriptions, which end with END
    """

    def __init__(
        self,
        vectors: RaggedVectors,
        targets: Ragged,
        *,
        tokens: int,
        shapes: int | None = None,
        features: SignalFeatures | None = None,
    ) -> None:
        """Create batches. `features` changes the vectors of every batch at random, by seed, step and recording."""
        self.vectors, self.targets, self.features = vectors, targets, features
        lengths = np.stack([vectors.lengths, targets.lengths], axis=1)  # (N, 2)
        self.sampler = LengthSampler(lengths, tokens=tokens, shapes=shapes, purpose="recordings")

    def __len__(self) -> int:
        """Return the number of recordings."""
        return len(self.vectors)

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        members, shape = self.sampler.choose(seed, step, rank, world)
        if self.features is None:
            return self.collate(members, shape)
        changed = [
            self.features.augment(
                self.vectors[index], np.random.default_rng(derive_seed(seed, "augment", step * world + rank, index))
            )
            for index in members.tolist()
        ]
        rows, source, target = shape
        return self._collate(members, changed, (rows, max(source, *map(len, changed)), target))

    def collate(self, members: Array, shape: Shape | None = None) -> Tree:
        longest = (int(self.vectors.lengths[members].max()), int(self.targets.lengths[members].max()))
        return self._collate(members, [self.vectors[index] for index in members], shape or (len(members), *longest))

    def _collate(self, members: Array, sequences: Sequence[Vectors], shape: Shape) -> Tree:
        rows, source, target = shape
        targets, mask = self.targets.pad(members, rows, target)
        batch = pad_vectors(sequences, rows, source)
        return {**batch, "inputs": shift_right(targets), "targets": targets, "target_mask": mask}
