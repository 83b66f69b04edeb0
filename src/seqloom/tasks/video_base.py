"""The base class of tasks on clips. All frames are converted to one shape."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.device import device_of
from seqloom.core.errors import UsageError
from seqloom.core.tree import Tree, to_device
from seqloom.data.clips import ClipExample, ClipTable
from seqloom.data.corpus import Corpus
from seqloom.data.images import ImageShape
from seqloom.tasks.base import M, R, cached_method
from seqloom.tasks.image_base import ImageTask


@config
class VideoBatchConfig:
    """Batches of clips."""

    size: PositiveInt = 32  # number of clips per batch
    eval_size: PositiveInt = 128  # number of clips per batch in evaluation


class VideoTask(ImageTask[R, M]):
    """A task on clips. The section `images` of its recipe describes the frames."""

    corpus: Corpus[ClipExample]
    speed_unit = "clips"

    @cached_property
    def shape(self) -> ImageShape:
        """The shape to which all frames are converted."""
        shape: ImageShape = self.recipe.images.shape([example.clip for example in self.corpus.split("train")])
        return shape

    @cached_method
    def table(self, split: str) -> ClipTable:
        """Return the clips of a split."""
        clips = [example.clip for example in self.corpus.split(split)]
        return ClipTable(clips, self.shape, self.recipe.images.frames)

    @property
    def is_frozen(self) -> bool:
        """False: the vectors of frames are computed in every batch."""
        return False

    @cached_property
    def vectors_per_image(self) -> int:
        """The maximum number of frames, each of which is one vector."""
        return max(int(self.table(split).lengths.max()) for split in self.corpus.splits)

    def check_encoder(self) -> None:
        """Raise an error if the encoder of the model cannot read the longest clip."""
        encoder: Any = self.recipe.model.encoder
        longest = None if encoder is None else encoder.longest
        if longest is not None and self.vectors_per_image > longest:
            raise UsageError(
                f"A clip has {self.vectors_per_image} frames, but the encoder has {longest} positions: set "
                f"model.encoder.positions.max_length={self.vectors_per_image}, or images.frames={longest}."
            )

    def training_clips(
        self, seed: int, step: int, rank: int, world: int
    ) -> tuple[dict[str, Tensor], NDArray[np.int64]]:
        """Return the frames and masks of a batch, and the indices of its clips."""
        _, chosen = self.sampler.choose(seed, step, rank, world)
        return self.table("train").batch(chosen), chosen

    def evaluation_clips(self, model: M, split: str) -> Iterator[tuple[NDArray[np.int64], Tree]]:
        """Yield the indices of clips, and their frames and masks on the device of the model."""
        count, size = len(self.corpus.split(split)), self.recipe.batch.eval_size
        for start in range(0, count, size):
            members = np.arange(start, min(start + size, count))
            yield members, to_device(self.table(split).batch(members), device_of(model))
