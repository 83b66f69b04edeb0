"""Classification of series: a model reads a series of numbers and predicts its label.

The model predicts only labels of the training data; a dev or test series with another label counts as an error. The
loss is −log p of the label.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from seqloom.config import Discriminator, config
from seqloom.config.constraints import PositiveInt
from seqloom.core.device import derive_seed, device_of
from seqloom.core.errors import DataError, UsageError
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree, to_device
from seqloom.core.words import format_count
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.series import LabelledSeries, variables_of
from seqloom.models.classifier import SeriesClassifierConfig, SeriesClassifierModel
from seqloom.tasks.base import TaskInfo, TaskRecipe
from seqloom.tasks.reading_base import LabelTask
from seqloom.train.config import FitConfig

if TYPE_CHECKING:
    from seqloom.runs.run import Run


@config
class BatchConfig:
    """Batches of series."""

    size: PositiveInt = 32  # number of series per batch
    eval_size: PositiveInt = 256  # number of series per batch in evaluation


@config
class Recipe(TaskRecipe):
    task: Literal["series-classify"] = "series-classify"
    data: CorpusConfig[LabelledSeries]
    batch: BatchConfig = BatchConfig()
    model: Annotated[SeriesClassifierConfig, Discriminator("kind")] = SeriesClassifierConfig()
    # dev metric that selects the best checkpoint
    monitor: Literal["loss", "accuracy", "macro_f1", "matthews"] = "accuracy"
    train: FitConfig


class Task(LabelTask[Recipe, SeriesClassifierModel]):
    corpus: Corpus[LabelledSeries]
    reads_tokens = False
    speed_unit = "steps"
    measured_on = "series with labels"

    @classmethod
    def of_corpus(cls, recipe: Recipe, run: "Run", corpus: Any) -> Self:
        given, expected = variables_of(corpus), run.sizes["variables"]
        if given != expected:
            raise DataError(
                f"The series of {corpus.name} have {format_count(given, 'variable')}, but {run.path} reads "
                f"{format_count(expected, 'variable')}."
            )
        return super().of_corpus(recipe, run, corpus)

    def check_model(self) -> None:
        longest = self.recipe.model.encoder.longest
        most = max(len(example.values) for examples in self.corpus.splits.values() for example in examples)
        if longest is not None and most > longest:
            raise UsageError(
                f"The longest series has {most} steps, but the encoder has {longest} positions: set "
                f"model.encoder.positions.max_length={most}."
            )

    def sizes(self) -> dict[str, int]:
        return {"variables": variables_of(self.corpus), "labels": len(self.names)}

    def model(self) -> SeriesClassifierModel:
        model = super().model()
        model.set_scale([torch.from_numpy(example.values) for example in self.corpus.split("train")])
        return model

    def steps_per_epoch(self) -> int:
        return -(-len(self.corpus.split("train")) // self.recipe.batch.size)

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """Return a batch. Every epoch reads all series once in a new order."""
        size, train = self.recipe.batch.size, self.corpus.split("train")
        if size % world:
            raise UsageError(f"batch.size must be a multiple of the number of processes ({world}); got {size}.")
        epoch, position = divmod(step, self.steps_per_epoch())
        order = np.random.default_rng(derive_seed(seed, "series", epoch)).permutation(len(train))
        chosen = np.resize(order, self.steps_per_epoch() * size)[position * size : (position + 1) * size]
        examples = [train[number] for number in chosen[rank * size // world : (rank + 1) * size // world]]
        labels = self.label_ids(example.label for example in examples)
        return collate_series(examples, labels, max(len(example.values) for example in train))

    def loss(self, model: SeriesClassifierModel, batch: Tree, carry: Tree) -> Loss:
        """Return the loss of independent series, the number of steps read, and no carried state."""
        value, count = model.loss(batch)
        return Loss(value, None, batch["mask"].numel(), count)

    @torch.no_grad()
    def outputs(self, model: SeriesClassifierModel, split: str) -> Tensor:
        """Return log p (N, L) of each label of each series of a split, on the CPU."""
        examples, labels, size, outputs = self.corpus.split(split), self.labels(split), self.recipe.batch.eval_size, []
        for start in range(0, len(examples), size):
            chunk = examples[start : start + size]
            batch = collate_series(chunk, labels[start : start + size], max(len(example.values) for example in chunk))
            outputs.append(model.log_probs(to_device(batch, device_of(model))).float().cpu())
        return torch.cat(outputs)


def collate_series(examples: Sequence[LabelledSeries], labels: Sequence[int], length: int) -> dict[str, Tensor]:
    """Return values, masks and labels, padded to `length`."""
    values = np.full((len(examples), length, examples[0].values.shape[1]), np.nan)
    mask = np.zeros((len(examples), length), dtype=bool)
    for row, example in enumerate(examples):
        values[row, : len(example.values)] = example.values
        mask[row, : len(example.values)] = True
    return {
        "values": torch.from_numpy(np.nan_to_num(values)).float(),
        "observed": torch.from_numpy(~np.isnan(values)),
        "mask": torch.from_numpy(mask),
        "labels": torch.tensor(labels),
    }


INFO = TaskInfo(
    name="series-classify",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.classify:SeriesClassifierPredictor",
    metric="accuracy",
    loss_per="series",
    examples="series",
)
