"""The adding problem: a recurrent network reads numbers and adds the two marked numbers."""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import Discriminator, config
from seqloom.config.constraints import PositiveInt
from seqloom.core import Json
from seqloom.core.device import device_of
from seqloom.core.errors import UsageError
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree
from seqloom.data.vectors import AddingConfig, VectorData
from seqloom.models.recurrent_reader import RecurrentReaderConfig
from seqloom.nn.softmax import at_least_float32
from seqloom.tasks.base import Task as BaseTask
from seqloom.tasks.base import TaskInfo, TaskRecipe
from seqloom.train.config import FitConfig

MAX_ERROR = 0.04  # an answer with a smaller error is correct


@config
class BatchConfig:
    """Batches of sequences."""

    size: PositiveInt = 64  # number of sequences per batch


@config
class Recipe(TaskRecipe):
    task: Literal["adding"] = "adding"
    data: AddingConfig = AddingConfig()
    batch: BatchConfig = BatchConfig()
    model: Annotated[RecurrentReaderConfig, Discriminator("kind")] = RecurrentReaderConfig()
    train: FitConfig


class VectorTask(BaseTask[TaskRecipe, nn.Module]):
    """A task in which a model computes one answer for each sequence of generated vectors.

    The corpus generates the sequences; a subclass defines the loss and the correctness of answers.
    """

    corpus: VectorData
    reads_tokens = False
    speed_unit = "vectors"
    eval_size = 500  # sequences per batch for evaluation

    @classmethod
    def load(cls, recipe: TaskRecipe) -> VectorData:
        data: VectorData = recipe.data.data()
        return data

    def warnings(self) -> list[str]:
        return []

    def sizes(self) -> dict[str, int]:
        return {"inputs": self.corpus.inputs, "outputs": self.corpus.outputs}

    def describe_data(self) -> dict[str, Json]:
        return self.corpus.describe()

    def steps_per_epoch(self) -> int:
        return -(-int(self.recipe.data.epoch) // int(self.recipe.batch.size))

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """Return the sequences of a step, divided among the processes."""
        size = self.recipe.batch.size
        if size % world:
            raise UsageError(f"batch.size must be a multiple of the number of processes ({world}); got {size}.")
        sequences = self.corpus.batch(seed, step * size, size)
        part = slice(rank * size // world, (rank + 1) * size // world)
        return {name: tensor[part] for name, tensor in sequences.items() if isinstance(tensor, Tensor)}

    def loss(self, model: nn.Module, batch: Tree, carry: Tree) -> Loss:
        """Return the loss of independent sequences, the number of vectors read, and no carried state."""
        size, steps, _ = batch["inputs"].shape
        value = self.losses(model(batch["inputs"]), batch["targets"]).mean()
        return Loss(value, None, size * steps)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        """Return the loss and the success rate of the model and of the best constant answer."""
        sequences, device = self.corpus.split(split), device_of(model)
        chunks = sequences["inputs"].split(self.eval_size)
        answers = torch.cat([model(chunk.to(device)).float().cpu() for chunk in chunks])  # (N, outputs)
        metrics = {}
        for name, predictions in (("", answers), ("blind_", self.corpus.blind(sequences["targets"]))):
            metrics[f"{name}loss"] = self.losses(predictions, sequences["targets"]).double().mean().item()
            metrics[f"{name}success"] = self.correctness(predictions, sequences["targets"]).double().mean().item()
        return metrics

    def losses(self, answers: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each answer (B,)."""
        raise NotImplementedError

    def correctness(self, answers: Tensor, targets: Tensor) -> Tensor:
        """Return whether each answer is correct (B,)."""
        raise NotImplementedError


class Task(VectorTask):
    """The adding problem with squared error. The error of the constant answer 1 is 1/6, the variance of the sum."""

    loss_unit = "squared error"

    def losses(self, answers: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(at_least_float32(answers.squeeze(1)), targets, reduction="none")

    def correctness(self, answers: Tensor, targets: Tensor) -> Tensor:
        return (answers.squeeze(1) - targets).abs() < MAX_ERROR


INFO = TaskInfo(
    name="adding",
    recipe=Recipe,
    task=Task,
    metric="success",
    loss_per="answer",
    examples="sequences",
)
