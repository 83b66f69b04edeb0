"""Classification of clips: a model reads the frames of a clip and predicts the label of the clip.

The model predicts only labels of the training data; a dev or test clip with another label counts as an error. The loss
is −log p of the label.
"""

from typing import Annotated, Literal

import torch
from torch import Tensor

from seqloom.config import Discriminator, config
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree
from seqloom.data.clips import ClipExample, ClipOptions
from seqloom.data.corpora import CorpusConfig
from seqloom.models.video import VideoClassifier, VideoClassifierConfig
from seqloom.tasks.base import TaskInfo, TaskRecipe
from seqloom.tasks.reading_base import LabelTask
from seqloom.tasks.video_base import VideoBatchConfig, VideoTask
from seqloom.train.config import FitConfig


@config
class Recipe(TaskRecipe):
    task: Literal["classify-video"] = "classify-video"
    data: CorpusConfig[ClipExample]
    images: ClipOptions = ClipOptions()
    batch: VideoBatchConfig = VideoBatchConfig()
    model: Annotated[VideoClassifierConfig, Discriminator("kind")] = VideoClassifierConfig()
    # dev metric that selects the best checkpoint
    monitor: Literal["loss", "accuracy", "macro_f1", "matthews"] = "accuracy"
    train: FitConfig


class Task(VideoTask[Recipe, VideoClassifier], LabelTask[Recipe, VideoClassifier]):
    measured_on = "clips with labels"

    def check_model(self) -> None:
        super().check_model()
        self.check_encoder()

    def sizes(self) -> dict[str, int]:
        return {**super().sizes(), "labels": len(self.names)}

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """Return a batch. An epoch reads the clips in a new order and drops an incomplete last batch."""
        clips, chosen = self.training_clips(seed, step, rank, world)
        return {**clips, "labels": torch.tensor(self.labels("train"))[chosen]}

    def loss(self, model: VideoClassifier, batch: Tree, carry: Tree) -> Loss:
        """Return the loss of independent clips, the number of clips, and no carried state."""
        value, count = model.loss(batch)
        return Loss(value, None, len(batch["labels"]), count)

    @torch.no_grad()
    def outputs(self, model: VideoClassifier, split: str) -> Tensor:
        """Return log p (N, L) of each label of each clip of a split, on the CPU."""
        return torch.cat([model.log_probs(batch).float().cpu() for _, batch in self.evaluation_clips(model, split)])


INFO = TaskInfo(
    name="classify-video",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.video:VideoClassifierPredictor",
    command="classify {run}",
    pipeline_tag="video-classification",
    metric="accuracy",
    loss_per="clip",
    examples="clips",
    example="clip.gif",
    views=("images",),
)
