"""The adding problem: a recurrent network reads numbers, two of them marked, and answers with the sum of these two."""

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.config import Discriminator, config
from seqloom.core.errors import UsageError
from seqloom.core.protocols import Loss, Monitor
from seqloom.core.tree import Tree
from seqloom.data.vectors import AddingConfig, VectorData
from seqloom.models.recurrent_reader import RecurrentReaderConfig
from seqloom.runs.run import Run
from seqloom.tasks import base
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.language_model import device_of, refuse_changed_data
from seqloom.train.config import FitConfig

CLOSE = 0.04  # an answer this near to the sum is right


@config
class BatchConfig:
    """How many sequences are read at once."""

    rows: int = 64  # sequences read side by side

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"rows must be at least 1, got {self.rows}")


@config
class Recipe:
    task: Literal["adding"] = "adding"
    seed: int = 1
    data: AddingConfig = AddingConfig()
    batch: BatchConfig = BatchConfig()
    model: Annotated[RecurrentReaderConfig, Discriminator("kind")] = RecurrentReaderConfig()
    train: FitConfig


class VectorTask(base.Task, ABC):
    """What every task shares that reads vectors made on the spot and answers once.

    `data` gives the sequences; a subclass says what the loss of an answer is, and which answers are right.
    """

    monitor = Monitor("loss", unit="nats per answer")
    counted = "vectors"  # what is read
    eval_rows = 500  # sequences read at once in evaluation

    def __init__(self, recipe: Any):
        self.recipe = recipe
        self.data: VectorData = recipe.data.data()

    @classmethod
    def prepare(cls, recipe: Any) -> Self:
        return cls(recipe)

    @classmethod
    def reopen(cls, recipe: Any, run: Run) -> Self:
        task = cls(recipe)
        refuse_changed_data(run, task.data)
        return task

    def sizes(self) -> dict[str, int]:
        """What the data decides of the model: the arguments of its config's `build`."""
        return {"inputs": self.data.inputs, "outputs": self.data.outputs}

    def documents(self) -> dict[str, Any]:
        return {"sizes.json": self.sizes(), "data.json": self.data.describe()}

    def model(self) -> Any:
        return self.recipe.model.build(**self.sizes())

    def steps_per_epoch(self) -> int:
        return -(-self.recipe.data.epoch // self.recipe.batch.rows)

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """The sequences from step · rows on, shared out among the processes."""
        rows = self.recipe.batch.rows
        if rows % world:
            raise UsageError(f"batch.rows must be a multiple of the {world} processes, got {rows}.")
        drawn = self.data.batch(seed, step * rows, rows)
        part = slice(rank * rows // world, (rank + 1) * rows // world)
        return {name: tensor[part] for name, tensor in drawn.items() if isinstance(tensor, Tensor)}

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        """Every sequence begins afresh, so nothing is carried. What is counted are the vectors read."""
        rows, steps, _ = batch["inputs"].shape
        value = self.losses(model(batch["inputs"]), batch["targets"]).mean()
        return Loss(value, None, rows * steps)

    @torch.no_grad()
    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        """Loss and success of the model, and of the best guess without reading."""
        drawn, device = self.data.split(split), device_of(model)
        pieces = drawn["inputs"].split(self.eval_rows)
        answers = torch.cat([model(piece.to(device)).float().cpu() for piece in pieces])  # (N, outputs)
        found = {}
        for name, said in (("", answers), ("blind_", self.data.blind(drawn["targets"]))):
            found[f"{name}loss"] = self.losses(said, drawn["targets"]).double().mean().item()
            found[f"{name}success"] = self.right(said, drawn["targets"]).double().mean().item()
        return found

    @abstractmethod
    def losses(self, answers: Tensor, targets: Tensor) -> Tensor:
        """The loss of each answer (B,)."""

    @abstractmethod
    def right(self, answers: Tensor, targets: Tensor) -> Tensor:
        """Which answers are right (B,)."""


class Task(VectorTask):
    """The loss is the squared error. Always answering 1 has the variance of the sum, 1/6, and is rarely right."""

    monitor = Monitor("loss", unit="squared error")

    def losses(self, answers: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(answers.squeeze(1).float(), targets, reduction="none")

    def right(self, answers: Tensor, targets: Tensor) -> Tensor:
        return (answers.squeeze(1) - targets).abs() < CLOSE


INFO = TaskInfo(
    name="adding",
    recipe=Recipe,
    task=Task,
    metric="success",
    loss_per="answer",
    examples="sequences",
)
