"""The recall problem: a recurrent network reads symbols and must say which was the first."""

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
    """The loss is −log p(the symbol), in nats; the likeliest symbol is the answer."""

    def losses(self, answers: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(answers.float(), targets, reduction="none")

    def right(self, answers: Tensor, targets: Tensor) -> Tensor:
        """The likeliest counts; of several equally likely ones each by its share."""
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
