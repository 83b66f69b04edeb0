"""Captioning of clips: a model reads the frames of a clip and writes a sentence that describes the clip."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from torch import Tensor

from seqloom.config import Discriminator, config
from seqloom.core.tree import Tree
from seqloom.data.batching import Array
from seqloom.data.clips import ClipExample, ClipOptions
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.evaluate.captions import score_captions
from seqloom.evaluate.written_texts import WrittenText
from seqloom.models.video import VideoToTextConfig
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.image_to_text_base import DescribingRecipe, ImageToTextTask
from seqloom.tasks.video_base import VideoTask


@config
class Recipe(DescribingRecipe):
    task: Literal["caption-video"] = "caption-video"
    data: CorpusConfig[ClipExample]
    images: ClipOptions = ClipOptions()
    model: Annotated[VideoToTextConfig, Discriminator("kind")] = VideoToTextConfig()
    # dev metric that selects the best checkpoint
    monitor: Literal["loss", "bleu_1", "bleu_4", "cider_d", "chrf", "exact_match"] = "loss"


class Task(VideoTask[Recipe, Any], ImageToTextTask[Recipe]):
    corpus: Corpus[ClipExample]
    measured_on = "clips with captions"

    def score(self, lines: Sequence[WrittenText]) -> dict[str, float]:
        return score_captions([line.text for line in lines], [line.example.target_texts for line in lines])

    def source_batch(self, split: str, members: Array, images: Array | None = None) -> dict[str, Tree]:
        """Return the frames of these examples as the source, with its mask."""
        return clip_source(self.table(split).batch(members))

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """Return a batch of pairs of a clip and a caption."""
        _, pairs = self.sampler.choose(seed, step, rank, world)
        members = self.examples_of_targets("train")[pairs]
        return {**self.source_batch("train", members), **self.target_batch("train", pairs), "read": len(pairs)}


def clip_source(clips: dict[str, Tensor]) -> dict[str, Tree]:
    """Return frames (B, T, H, W, C) as the source of an encoder–decoder, with their mask (B, T)."""
    return {"source": {"frames": clips["frames"]}, "source_mask": clips["mask"]}


INFO = TaskInfo(
    name="caption-video",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.video:VideoCaptioner",
    command="caption {run}",
    pipeline_tag="video-text-to-text",
    metric="bleu_4",
    examples="clips",
    example="clip.gif",
)
