"""Sounds with a label for each frame, and their batches.

The labels of a sound are segments: a label and the time at which it starts. A segment ends where the next one starts. A
frame of features has the label of the segment that contains the middle of the frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from seqloom.core.device import derive_seed
from seqloom.core.tree import Tree
from seqloom.data.batching import Array, Batches, LengthSampler, Ragged, Shape
from seqloom.data.corpus import Corpus, Example, frame
from seqloom.data.sound import Sound
from seqloom.data.transcriptions import RaggedVectors, SignalFeatures, Vectors, pad_vectors


class Segment(NamedTuple):
    """A label and its start in seconds."""

    label: str
    start: float


@dataclass(frozen=True)
class LabelledSound(Example):
    """A sound with the labels of its frames."""

    form: ClassVar = "sound-labels"
    unit: ClassVar = "recordings"

    signal: Sound
    segments: tuple[Segment, ...]  # at least one, sorted by start
    text: str  # what is said
    group: str = ""  # the speaker or the voice, or "" if unknown

    def labels(self) -> Sequence[str]:
        return [segment.label for segment in self.segments]

    def texts(self) -> Sequence[str]:
        return [self.text]

    def content(self) -> bytes:
        segments = [part for segment in self.segments for part in (segment.label, f"{segment.start:.4f}")]
        return b"".join(map(frame, (self.signal.sha256, self.text, self.group, *segments)))

    @classmethod
    def sizes(cls, corpus: "Corpus[Any]", split: str) -> dict[str, int]:
        examples = corpus.split(split)
        groups = {example.group for example in examples if example.group}
        segments = sum(len(example.segments) for example in examples)
        return {"recordings": len(examples), "groups": len(groups), "segments": segments}

    def labels_at(self, times: NDArray[np.float64]) -> list[str]:
        """Return the labels at these times in seconds."""
        starts = np.array([segment.start for segment in self.segments])
        indices = np.searchsorted(starts, times, side="right") - 1
        return [self.segments[index].label for index in indices.clip(0).tolist()]


class FrameBatches(Batches):
    """Batches of sounds of similar length: vectors (B, S, D), mask and words (B, S), and tags (B, S)."""

    has_targets = False

    def __init__(
        self, vectors: RaggedVectors, tags: Ragged, *, tokens: int, features: SignalFeatures | None = None
    ) -> None:
        """Create batches. `features` changes the vectors of every batch at random, by seed, step and recording."""
        self.vectors, self.tags, self.features = vectors, tags, features
        lengths = np.stack([vectors.lengths, vectors.lengths], axis=1)
        self.sampler = LengthSampler(lengths, tokens=tokens, shapes=None, purpose="labelled sounds")

    def __len__(self) -> int:
        return len(self.vectors)

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        members, shape = self.sampler.choose(seed, step, rank, world)
        if self.features is None:
            return self.collate(members, shape)
        seeds = (derive_seed(seed, "augment", step * world + rank, index) for index in members.tolist())
        draws = map(np.random.default_rng, seeds)
        pairs = zip(members.tolist(), draws, strict=True)
        changed = [self.features.augment(self.vectors[index], draw) for index, draw in pairs]
        return self._collate(members, changed, shape)

    def collate(self, members: Array, shape: Shape | None = None) -> Tree:
        longest = int(self.vectors.lengths[members].max())
        sequences = [self.vectors[index] for index in members.tolist()]
        return self._collate(members, sequences, shape or (len(members), longest, longest))

    def _collate(self, members: Array, sequences: Sequence[Vectors], shape: Shape) -> Tree:
        rows, length, _ = shape
        batch = pad_vectors(sequences, rows, length)
        tags, mask = self.tags.pad(members, rows, length)
        return {**batch, "words": mask, "tags": tags.to(torch.int64)}
