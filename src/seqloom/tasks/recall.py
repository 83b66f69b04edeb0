"""The recall problem: a recurrent network reads symbols and recalls the first symbol."""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.config import Discriminator, config
from seqloom.data.vectors import RecallConfig
from seqloom.models.recurrent_reader import RecurrentReaderConfig
from seqloom.tasks.adding import BatchConfig, VectorTask
from seqloom.tasks.base import TaskInfo, TaskRecipe
from seqloom.train.config import FitConfig


@config
class Recipe(TaskRecipe):
    task: Literal["recall"] = "recall"
    data: RecallConfig = RecallConfig()
    batch: BatchConfig = BatchConfig()
    model: Annotated[RecurrentReaderConfig, Discriminator("kind")] = RecurrentReaderConfig()
    train: FitConfig


class Task(VectorTask):
    """The task of recalling a symbol. The loss is −log p(symbol) in nats. The answer is the most probable symbol."""

    def losses(self, answers: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(answers.float(), targets, reduction="none")

    def correctness(self, answers: Tensor, targets: Tensor) -> Tensor:
        """Return whether each answer is correct, as a fraction if several symbols are equally probable."""
        best = answers == answers.amax(dim=1, keepdim=True)
        return torch.where(best.gather(1, targets.unsqueeze(1)).squeeze(1), 1 / best.sum(dim=1), 0.0)


INFO = TaskInfo(
    name="recall",
    recipe=Recipe,
    task=Task,
    metric="success",
    loss_per="answer",
    examples="sequences",
)
