"""Labels of the frames of a sound: a model reads the features of all frames and predicts a label for each frame.

The model predicts only labels of the training data; a dev or test frame with another label counts as an error. The loss
is −log p of the labels per frame.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Literal

import torch

from seqloom.config import Discriminator, config
from seqloom.config.constraints import PositiveInt
from seqloom.core.tree import Tree
from seqloom.data.batching import Ragged
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.features_sound import LogMelConfig
from seqloom.data.sound_labels import FrameBatches, LabelledSound
from seqloom.data.transcriptions import RaggedVectors
from seqloom.models.vectors_tagger import VectorsTagger, VectorsTaggerConfig
from seqloom.tasks.base import BatchedTask, TaskInfo, TaskRecipe, cached_method
from seqloom.tasks.frame_labels_base import FrameTask
from seqloom.train.config import FitConfig


@config
class FrameBatchConfig:
    """Batches of sounds of similar length."""

    tokens: PositiveInt = 8192  # maximum number of frames per batch, including padding
    eval_tokens: PositiveInt = 32768  # maximum number of frames per batch in evaluation


@config
class Recipe(TaskRecipe):
    task: Literal["tag-sound"] = "tag-sound"
    data: CorpusConfig[LabelledSound]
    features: Annotated[LogMelConfig, Discriminator("kind")] = LogMelConfig()
    batch: FrameBatchConfig = FrameBatchConfig()
    model: Annotated[VectorsTaggerConfig, Discriminator("kind")] = VectorsTaggerConfig()
    # dev metric that selects the best checkpoint
    monitor: Literal["loss", "frame_accuracy"] = "frame_accuracy"
    train: FitConfig

    def problems(self) -> Iterator[str]:
        if self.features.spec_augment.stretch:
            yield "features.spec_augment.stretch must be 0, because each frame has its own label"


class Task(BatchedTask[Recipe, VectorsTagger], FrameTask[Recipe, VectorsTagger]):
    corpus: Corpus[LabelledSound]
    reads_tokens = False
    speed_unit = "frames"
    measured_on = "sounds with frame labels"

    def sizes(self) -> dict[str, int]:
        return {"size": self.recipe.features.size, "tags": len(self.names)}

    # --- data -------------------------------------------------------------------------------------------------------

    @cached_method
    def vectors(self, split: str) -> RaggedVectors:
        """Return the features of the frames of all sounds."""
        features = self.recipe.features
        return RaggedVectors.of((features.vectors(each.signal) for each in self.corpus.split(split)), features.size)

    @cached_method
    def frame_labels(self, split: str) -> list[list[str]]:
        """Return the labels of the frames of each sound, at the middle of each frame."""
        features, lengths = self.recipe.features, self.vectors(split).lengths.tolist()
        middle = features.frame_ms / 2000
        examples = zip(self.corpus.split(split), lengths, strict=True)
        return [example.labels_at(features.times(length) + middle) for example, length in examples]

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> FrameBatches:
        tags = Ragged.plain([self.label_ids(labels) for labels in self.frame_labels(split)])
        features = self.recipe.features if split == "train" and self.recipe.features.augments else None
        return FrameBatches(self.vectors(split), tags, tokens=tokens, features=features)

    @cached_property
    def batches(self) -> FrameBatches:
        """The batches of the training split."""
        return self.make_batches("train", tokens=self.recipe.batch.tokens)

    def tokens_per_step(self) -> float:
        """Return the mean number of frames in a batch."""
        return len(self.vectors("train").values) / self.steps_per_epoch()

    # --- evaluation -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def outputs(self, model: VectorsTagger, split: str) -> tuple[list[list[str]], float]:
        """Return the predicted labels of the frames of each sound, and −log p per frame with a known label."""

        def compute(batch: Tree) -> list[tuple[list[str], float, int]]:
            log_probs, counts = model.log_likelihood(batch)
            best, lengths = model.predict(batch).tolist(), batch["words"].sum(dim=1).tolist()
            labels = ([self.names[i] for i in row[:length]] for row, length in zip(best, lengths, strict=True))
            return list(zip(labels, log_probs.tolist(), counts.tolist(), strict=True))

        rows = self.for_each_example(model, split, compute)
        counted = sum(count for _, _, count in rows)
        loss = -sum(log_prob for _, log_prob, _ in rows) / counted if counted else float("nan")
        return [labels for labels, _, _ in rows], loss


INFO = TaskInfo(
    name="tag-sound",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.sound:SoundTagger",
    command="tag {run}",
    metric="frame_accuracy",
    loss_per="frame",
    examples="recordings",
    example="recording.wav",
)
