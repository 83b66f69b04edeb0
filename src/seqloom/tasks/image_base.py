"""The base class of tasks on images. All images are converted to one shape."""

from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import nn

from seqloom.config import config
from seqloom.config.constraints import NonNegativeInt, PositiveInt
from seqloom.core.device import derive_seed
from seqloom.core.errors import DataError
from seqloom.data.batching import ShuffleSampler
from seqloom.data.images import ImageShape, ImageTable, Pixels
from seqloom.models.image_encoder import EfficientNetEncoderConfig, ImageEncoder
from seqloom.runs.image_vectors import VectorTable
from seqloom.runs.image_weights import find_weights, load_image_weights
from seqloom.tasks.base import M, R, Task, TaskRecipe, cached_method
from seqloom.train.state import device_for

if TYPE_CHECKING:
    from seqloom.runs.run import Run


@config
class BatchConfig:
    """Batches of images."""

    size: PositiveInt = 64  # number of images per batch
    eval_size: PositiveInt = 512  # number of images per batch in evaluation


@config
class AugmentConfig:
    """Random changes to the training images."""

    shift: NonNegativeInt = 0  # maximum shift in each direction in pixels; edges are repeated
    mirror: bool = False  # mirror half of the images from left to right

    @property
    def is_active(self) -> bool:
        """Whether images are changed."""
        return self.shift > 0 or self.mirror

    def apply(self, images: Pixels, seed: int, step: int) -> Pixels:
        """Return images (B, H, W, C) with random changes that depend only on the seed and the step."""
        (B, H, W, _), draws = images.shape, np.random.default_rng(derive_seed(seed, "augment", step))
        corners = draws.integers(0, 2 * self.shift + 1, size=(B, 2))
        is_mirrored = draws.random((B,)) < (0.5 if self.mirror else 0.0)
        padded = np.pad(images, ((0, 0), (self.shift, self.shift), (self.shift, self.shift), (0, 0)), mode="edge")
        changed = np.empty_like(images)
        for number, (row, column) in enumerate(corners):
            part = padded[number, row : row + H, column : column + W]
            changed[number] = part[:, ::-1] if is_mirrored[number] else part
        return changed


class ImageTask(Task[R, M]):
    """A task on images. Its recipe has the sections `images` and `batch`, and its model `ImageModelOptions`."""

    corpus: Any  # a corpus whose examples have an `image`
    reads_tokens = False
    speed_unit = "images"

    @cached_property
    def shape(self) -> ImageShape:
        """The shape to which all images are converted."""
        shape: ImageShape = self.recipe.images.shape([example.image for example in self.corpus.split("train")])
        return shape

    @cached_method
    def table(self, split: str) -> ImageTable:
        """Return the images of a split."""
        return ImageTable([example.image for example in self.corpus.split(split)], self.shape)

    @cached_property
    def image_notes(self) -> list[str]:
        """Notes on the images of all splits. If images cannot be read, raise a DataError that names them."""
        notes, problems = list[str](), list[str]()
        for split in self.corpus.splits:
            try:
                notes += [f"{split}: {note}" for note in self.table(split).fill()]
            except DataError as error:
                problems.append(f"{split}: {error}")
        if problems:
            raise DataError("\n".join(problems))
        return notes

    @classmethod
    def of_corpus(cls, recipe: R, run: "Run", corpus: Any) -> Self:
        task = super().of_corpus(recipe, run, corpus)
        task.shape = shape_of(recipe, run)
        return task

    def check_model(self) -> None:
        encoder = self.recipe.model.image_encoder
        if isinstance(encoder, EfficientNetEncoderConfig) and encoder.pretrained:
            find_weights()
        self.image_notes  # noqa: B018 (decodes all images before the run is created)

    def warnings(self) -> list[str]:
        return [*super().warnings(), *(f"{note}." for note in self.image_notes)]

    def sizes(self) -> dict[str, int]:
        height, width, channels, _ = self.shape
        return {"height": height, "width": width, "channels": channels}

    @cached_property
    def vectors_per_image(self) -> int:
        """The number of vectors to which the image encoder maps an image, or 0 without an image encoder."""
        encoder = self.recipe.model.image_encoder
        if encoder is None:
            return 0
        with torch.device("meta"):
            length: int = encoder.build(*self.shape[:3]).length
        return length

    def model(self) -> M:
        model = super().model()
        assert isinstance(model, nn.Module)
        load_image_weights(model)
        return model

    @cached_property
    def frozen_encoder(self) -> ImageEncoder:
        """The frozen image encoder with its pretrained weights, on the device of the training."""
        encoder: ImageEncoder = self.recipe.model.image_encoder.build(*self.shape[:3])
        load_image_weights(encoder)
        return encoder.to(device_for(self.recipe.train)).eval()

    def adopt_encoder(self, model: nn.Module) -> None:
        """Use the frozen image encoder of a trained model, so that an evaluation does not need pretrained weights."""
        if self.is_frozen and "frozen_encoder" not in vars(self):
            self.frozen_encoder = next(module for module in model.modules() if isinstance(module, ImageEncoder))

    @property
    def is_frozen(self) -> bool:
        """Whether the vectors of the images do not change in training, so that they are computed once."""
        encoder = self.recipe.model.image_encoder
        return isinstance(encoder, EfficientNetEncoderConfig) and encoder.frozen and not self.recipe.augment.is_active

    @cached_method
    def vectors(self, split: str) -> VectorTable | None:
        """Return the vectors of the images of a split, or None if they change in training or need too much memory."""
        table = VectorTable(self.table(split), self.frozen_encoder) if self.is_frozen else None
        return table if table is not None and table.fits else None

    @cached_property
    def sampler(self) -> ShuffleSampler:
        count = len(self.corpus.split("train"))
        return ShuffleSampler(count, min(self.recipe.batch.size, count), "images")

    def steps_per_epoch(self) -> int:
        return len(self.sampler)


def shape_of(recipe: TaskRecipe, run: "Run") -> ImageShape:
    """Return the shape to which the images of a run are converted."""
    sizes = run.sizes
    return ImageShape(sizes["height"], sizes["width"], sizes["channels"], recipe.images.fit)
