"""The base class of tasks on labelled images. All images are converted to one shape."""

from functools import cached_property
from typing import TYPE_CHECKING, Self

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.data.batching import ShuffleSampler
from seqloom.data.corpus import Corpus
from seqloom.data.image_folders import LabelledImage
from seqloom.data.images import ImageShape, ImageTable
from seqloom.tasks.base import M, R, Task, TaskRecipe, cached_method

if TYPE_CHECKING:
    from seqloom.runs.run import Run


@config
class BatchConfig:
    """Batches of images."""

    size: PositiveInt = 64  # number of images per batch
    eval_size: PositiveInt = 512  # number of images per batch in evaluation


class ImageTask(Task[R, M]):
    """A task on images. Its recipe has the sections `images` and `batch`."""

    corpus: Corpus[LabelledImage]
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
        return [f"{split}: {note}" for split in self.corpus.splits for note in self.table(split).fill()]

    @classmethod
    def of_corpus(cls, recipe: R, run: "Run", corpus: Corpus[LabelledImage]) -> Self:
        task = super().of_corpus(recipe, run, corpus)
        task.shape = shape_of(recipe, run)
        return task

    def check_model(self) -> None:
        self.image_notes  # noqa: B018 (decodes all images before the run is created)

    def warnings(self) -> list[str]:
        return [*super().warnings(), *(f"{note}." for note in self.image_notes)]

    def sizes(self) -> dict[str, int]:
        height, width, channels, _ = self.shape
        return {"height": height, "width": width, "channels": channels}

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
