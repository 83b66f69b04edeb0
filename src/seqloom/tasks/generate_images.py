"""Image generation: a model with latent variables learns the distribution of images and draws new images.

The loss is a bound on −log p(x) in nats per image (`seqloom.models.image_generator`). With `binarize`, the pixels are
binary, so that the bound can be compared with published values for binarized MNIST. The noise of an evaluation has a
fixed seed.
"""

from collections.abc import Iterator
from math import log
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.device import device_of, make_generator
from seqloom.core.progress import check_cancelled
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree
from seqloom.data.binarize import Binarization, binarize_fixed, binarize_training
from seqloom.data.corpora import CorpusConfig
from seqloom.data.image_folders import LabelledImage
from seqloom.data.images import ImageOptions
from seqloom.models import MODELS
from seqloom.models.image_generator import ImageGenerator, LikelihoodBound
from seqloom.tasks.base import TaskInfo, TaskRecipe
from seqloom.tasks.image_base import AugmentConfig, BatchConfig, ImageTask
from seqloom.train.config import FitConfig


@config
class GenerationBatchConfig(BatchConfig):
    """Batches of images to generate."""

    size: PositiveInt = 128  # number of images per batch
    # samples of z per image in evaluation; with more than 1, a tighter bound is also computed
    eval_samples: PositiveInt = 1


@config
class Recipe(TaskRecipe):
    task: Literal["generate-images"] = "generate-images"
    data: CorpusConfig[LabelledImage]
    images: ImageOptions = ImageOptions()
    binarize: Binarization = "stochastic"  # binary pixels: stochastic, fixed, threshold or none
    augment: AugmentConfig = AugmentConfig()
    batch: GenerationBatchConfig = GenerationBatchConfig()
    model: Annotated[Any, MODELS.only("draw", "image-vae")] = MODELS.default("draw")
    train: FitConfig


class Task(ImageTask[Recipe, ImageGenerator]):
    validates_part = True
    measured_on = "images"

    @property
    def loss_remark(self) -> str:
        return "new binary images at every step" if self.recipe.binarize == "stochastic" else ""

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """Return a batch. An epoch reads the images in a new order and drops an incomplete last batch."""
        _, chosen = self.sampler.choose(seed, step, rank, world)
        number = step * world + rank
        images = self.recipe.augment.apply(self.table("train").take(chosen), seed, number)
        images = binarize_training(images, chosen, self.recipe.binarize, seed, number)
        return {"images": torch.from_numpy(images)}

    def loss(self, model: ImageGenerator, batch: Tree, carry: Tree) -> Loss:
        """Return the bound of independent images, the number of images, and no carried state."""
        return Loss(model.loss(batch["images"]), None, len(batch["images"]))

    def validate(self, model: ImageGenerator) -> dict[str, float]:
        return self.measure(model, "dev", 1)

    def evaluate(self, model: ImageGenerator, split: str) -> dict[str, float]:
        return self.measure(model, split, self.recipe.batch.eval_samples)

    @torch.no_grad()
    def measure(self, model: ImageGenerator, split: str, samples: int) -> dict[str, float]:
        """Compute the bound, its parts, and with several samples of z the importance-weighted bound, per image."""
        reconstruction, kl, tighter = list[Tensor](), list[Tensor](), list[Tensor]()
        for bounds in self.bounds(model, split, samples):
            reconstruction += [bound.reconstruction for bound in bounds]
            kl += [bound.kl for bound in bounds]
            log_weights = torch.stack([bound.log_weight for bound in bounds]).double()
            tighter.append(log(samples) - log_weights.logsumexp(dim=0))
        parts = {"reconstruction_loss": reconstruction, "kl": kl, "importance_loss": tighter}
        means = {name: torch.cat(values).double().mean().item() for name, values in parts.items()}
        if samples == 1:
            del means["importance_loss"]
        return {"loss": means["reconstruction_loss"] + means["kl"], **means}

    def bounds(self, model: ImageGenerator, split: str, samples: int) -> Iterator[list[LikelihoodBound]]:
        """Yield the bounds of each batch of a split, one for each sample of z."""
        table, size, device = self.table(split), self.recipe.batch.eval_size, device_of(model)
        generator = make_generator(0, "evaluate", split)
        for start in range(0, len(table), size):
            check_cancelled()
            members = np.arange(start, min(start + size, len(table)))
            images = binarize_fixed(table.take(members), members, self.recipe.binarize, split)
            shape = (samples, len(members), model.steps, model.latent)
            noise = torch.randn(shape, generator=generator)
            inputs = torch.from_numpy(images).to(device)
            yield [model(inputs, each.to(device)) for each in noise]


INFO = TaskInfo(
    name="generate-images",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.generate_images:ImageGeneratorPredictor",
    command="generate {run} --grid images.png",
    loss_per="image",
    pipeline_tag="unconditional-image-generation",
    examples="images",
    views=("images",),
)
