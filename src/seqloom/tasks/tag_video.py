"""Labels of frames: a model reads the frames of a clip and predicts a label for each frame.

The model predicts only labels of the training data; a dev or test frame with another label counts as an error. The loss
is −log p of the labels per frame. With a CRF, the labels of a clip are predicted jointly.
"""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seqloom.config import Discriminator, config
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree
from seqloom.data.batching import Array
from seqloom.data.clips import ClipExample, ClipOptions, FrameLabelledClip, choose_frames
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.models.video import VideoTagger, VideoTaggerConfig
from seqloom.tasks.base import TaskInfo, TaskRecipe, cached_method
from seqloom.tasks.frame_labels_base import FrameTask
from seqloom.tasks.reading_base import UNSEEN
from seqloom.tasks.video_base import VideoBatchConfig, VideoTask
from seqloom.train.config import FitConfig


@config
class Recipe(TaskRecipe):
    task: Literal["tag-video"] = "tag-video"
    data: CorpusConfig[ClipExample]
    images: ClipOptions = ClipOptions()
    batch: VideoBatchConfig = VideoBatchConfig()
    model: Annotated[VideoTaggerConfig, Discriminator("kind")] = VideoTaggerConfig()
    # dev metric that selects the best checkpoint
    monitor: Literal["loss", "frame_accuracy", "clip_accuracy"] = "frame_accuracy"
    train: FitConfig


class Task(VideoTask[Recipe, VideoTagger], FrameTask[Recipe, VideoTagger]):
    speed_unit = "frames"
    measured_on = "clips with frame labels"
    complete_metric = "clip_accuracy"

    @classmethod
    def load(cls, recipe: Recipe) -> Corpus[ClipExample]:
        """Load the corpus with the labels of the frames as labels."""
        corpus: Corpus[ClipExample] = super().load(recipe)
        splits = {
            split: [FrameLabelledClip(each.clip, each.label, each.frame_labels, each.captions) for each in examples]
            for split, examples in corpus.splits.items()
        }
        return replace(corpus, splits=splits)

    def check_model(self) -> None:
        super().check_model()
        self.check_encoder()

    def sizes(self) -> dict[str, int]:
        return {**super().sizes(), "tags": len(self.names)}

    # --- data -------------------------------------------------------------------------------------------------------

    @cached_method
    def frame_labels(self, split: str) -> list[list[str]]:
        """Return the labels of the frames that the model reads, for each clip."""
        labels = [example.frame_labels for example in self.corpus.split(split)]
        return [[each[index] for index in choose_frames(len(each), self.recipe.images.frames)] for each in labels]

    @cached_method
    def tags(self, split: str) -> Tensor:
        """Return the ids of the frame labels (N, T), UNSEEN at padding."""
        rows = [torch.tensor(self.label_ids(labels)) for labels in self.frame_labels(split)]
        return pad_sequence(rows, batch_first=True, padding_value=UNSEEN)

    def with_tags(self, clips: Tree, split: str, members: Array) -> Tree:
        """Return a batch for the model: frames, the mask `words` of real frames, and tags (B, T)."""
        mask = clips["mask"]
        tags = self.tags(split)[members, : mask.shape[1]].to(mask.device)
        return {"frames": clips["frames"], "words": mask, "tags": tags}

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """Return a batch. An epoch reads the clips in a new order and drops an incomplete last batch."""
        clips, chosen = self.training_clips(seed, step, rank, world)
        return {**self.with_tags(clips, "train", chosen), "read": int(clips["mask"].sum())}

    def loss(self, model: VideoTagger, batch: Tree, carry: Tree) -> Loss:
        """Return the loss of independent clips, the number of frames, and no carried state."""
        value, count = model.loss(batch)
        return Loss(value, None, batch["read"], count)

    # --- evaluation -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def outputs(self, model: VideoTagger, split: str) -> tuple[list[list[str]], float]:
        """Return the predicted labels of the frames of each clip, and −log p per frame with a known label."""
        predicted, total, counted = list[list[str]](), 0.0, 0
        for members, clips in self.evaluation_clips(model, split):
            batch = self.with_tags(clips, split, members)
            log_probs, counts = model.log_likelihood(batch)
            total, counted = total - log_probs.double().sum().item(), counted + int(counts.sum())
            for row, mask in zip(model.predict(batch).tolist(), batch["words"].tolist(), strict=True):
                predicted.append([self.names[number] for number, real in zip(row, mask, strict=True) if real])
        return predicted, total / counted if counted else float("nan")


INFO = TaskInfo(
    name="tag-video",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.video:VideoTaggerPredictor",
    command="tag {run}",
    metric="frame_accuracy",
    loss_per="frame",
    examples="clips",
    example="clip.gif",
    views=("images",),
)
