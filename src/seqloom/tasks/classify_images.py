"""Image classification: a model reads an image and predicts its label.

All images are converted to one size (`images`). The model predicts only labels of the training data; a dev or test
image with another label counts as an error. The loss is −log p of the label. Training images can be augmented by random
shifts and mirroring, which depend only on the seed and the step.
"""

from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import Fraction
from seqloom.core.device import device_of
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree, to_device
from seqloom.data.corpora import CorpusConfig
from seqloom.data.image_folders import LabelledImage
from seqloom.data.images import ImageOptions
from seqloom.models import MODELS
from seqloom.models.image_classifier import AnyImageClassifier
from seqloom.tasks.base import TaskInfo, TaskRecipe
from seqloom.tasks.image_base import AugmentConfig, BatchConfig, ImageTask
from seqloom.tasks.reading_base import LabelTask
from seqloom.train.config import FitConfig


@config
class ImageLossConfig:
    label_smoothing: Fraction = 0.0  # ε: the loss is (1 − ε) · (−log p) + ε · the mean of −log p over the labels


@config
class Recipe(TaskRecipe):
    task: Literal["classify-images"] = "classify-images"
    data: CorpusConfig[LabelledImage]
    images: ImageOptions = ImageOptions()
    augment: AugmentConfig = AugmentConfig()
    batch: BatchConfig = BatchConfig()
    model: Annotated[Any, MODELS.only("image-classifier", "glimpses")] = MODELS.default("image-classifier")
    loss: ImageLossConfig = ImageLossConfig()
    # dev metric that selects the best checkpoint
    monitor: Literal["loss", "accuracy", "macro_f1", "matthews"] = "accuracy"
    train: FitConfig


class Task(ImageTask[Recipe, AnyImageClassifier], LabelTask[Recipe, AnyImageClassifier]):
    measured_on = "images with labels"

    @property
    def loss_remark(self) -> str:
        smoothed = "smoothed" if self.recipe.loss.label_smoothing else ""
        return ", ".join(filter(None, (smoothed, self.recipe.model.loss_remark)))

    @cached_property
    def train_labels(self) -> Tensor:
        return torch.tensor(self.labels("train"))

    def check_model(self) -> None:
        super().check_model()
        self.recipe.model.check_vectors(self.vectors_per_image)

    def sizes(self) -> dict[str, int]:
        return {**super().sizes(), "labels": len(self.names)}

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """Return a batch. An epoch reads the images in a new order and drops an incomplete last batch."""
        _, chosen = self.sampler.choose(seed, step, rank, world)
        images = self.recipe.augment.apply(self.table("train").take(chosen), seed, step * world + rank)
        return {"images": torch.from_numpy(images), "labels": self.train_labels[chosen]}

    def loss(self, model: AnyImageClassifier, batch: Tree, carry: Tree) -> Loss:
        """Return the loss of independent images, the number of images, and no carried state."""
        value, count = model.loss(batch, None, self.recipe.loss.label_smoothing)
        return Loss(value, None, len(batch["labels"]), count)

    @torch.no_grad()
    def outputs(self, model: AnyImageClassifier, split: str) -> Tensor:
        """Return log p (N, L) of each label of each image of a split, on the CPU."""
        table, outputs = self.table(split), []
        for start in range(0, len(table), self.recipe.batch.eval_size):
            members = np.arange(start, min(start + self.recipe.batch.eval_size, len(table)))
            batch = to_device({"images": torch.from_numpy(table.take(members))}, device_of(model))
            outputs.append(model.log_probs(batch).float().cpu())
        return torch.cat(outputs)


INFO = TaskInfo(
    name="classify-images",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.classify_images:ImageClassifierPredictor",
    command="classify {run}",
    metric="accuracy",
    loss_per="image",
    examples="images",
    example="picture.png",
    views=("images",),
)
