"""The adding problem: a recurrent network reads numbers, two of them marked, and answers with the sum of these two."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.config import Discriminator, config
from seqloom.config.constraints import PositiveInt
from seqloom.core.device import device_of
from seqloom.core.errors import UsageError
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree
from seqloom.data.vectors import AddingConfig, VectorData
from seqloom.models.recurrent_reader import RecurrentReaderConfig
from seqloom.tasks.base import Task as BaseTask
from seqloom.tasks.base import TaskInfo, TaskRecipe, refuse_changed_data
from seqloom.train.config import FitConfig

if TYPE_CHECKING:
    from seqloom.runs.run import Run

CLOSE = 0.04  # an answer this near to the sum is right


@config
class BatchConfig:
    """How many sequences are read at once."""

    rows: PositiveInt = 64  # sequences read side by side


@config
class Recipe(TaskRecipe):
    task: Literal["adding"] = "adding"
    data: AddingConfig = AddingConfig()
    batch: BatchConfig = BatchConfig()
    model: Annotated[RecurrentReaderConfig, Discriminator("kind")] = RecurrentReaderConfig()
    train: FitConfig


class VectorTask(BaseTask):
    """A task that reads vectors drawn on the spot and answers once.

    `data` gives the sequences; a subclass defines the loss of an answer, and which answers are right.
    """

    counted = "vectors"  # what is read
    eval_rows = 500  # sequences read at once in evaluation

    def __init__(self, recipe: Any):
        super().__init__(recipe, None)
        self.data: VectorData = recipe.data.data()

    @classmethod
    def prepare(cls, recipe: Any) -> Self:
        return cls(recipe)

    @classmethod
    def reopen(cls, recipe: Any, run: "Run") -> Self:
        task = cls(recipe)
        refuse_changed_data(run, task.data)
        return task

    def loss_unit(self) -> str:
        return "nats per answer"

    def warnings(self) -> list[str]:
        return []

    def sizes(self) -> dict[str, int]:
        return {"inputs": self.data.inputs, "outputs": self.data.outputs}

    def describe_data(self) -> dict[str, Any]:
        return self.data.describe()

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

    def losses(self, answers: Tensor, targets: Tensor) -> Tensor:
        """The loss of each answer (B,)."""
        raise NotImplementedError

    def right(self, answers: Tensor, targets: Tensor) -> Tensor:
        """Which answers are right (B,)."""
        raise NotImplementedError


class Task(VectorTask):
    """The loss is the squared error. Always answering 1 has the variance of the sum, 1/6, and is rarely right."""

    def loss_unit(self) -> str:
        return "squared error"

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
