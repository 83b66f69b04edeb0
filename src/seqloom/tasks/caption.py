"""Image captioning: a model reads an image and writes a sentence that describes it.

An image can have several captions. Training reads every caption; the metrics compare a written caption with all
captions of the image.
"""

from collections.abc import Sequence
from typing import Literal

from seqloom.config import config
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.image_texts import CaptionedImage
from seqloom.evaluate.captions import score_captions
from seqloom.evaluate.written_texts import WrittenText
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.image_to_text_base import ImageToTextRecipe, ImageToTextTask


@config
class Recipe(ImageToTextRecipe):
    task: Literal["caption"] = "caption"
    data: CorpusConfig[CaptionedImage]
    # dev metric that selects the best checkpoint
    monitor: Literal["loss", "bleu_1", "bleu_4", "cider_d", "chrf", "exact_match"] = "loss"


class Task(ImageToTextTask[Recipe]):
    corpus: Corpus[CaptionedImage]
    measured_on = "images with captions"

    def score(self, lines: Sequence[WrittenText]) -> dict[str, float]:
        return score_captions([line.text for line in lines], [line.example.target_texts for line in lines])


INFO = TaskInfo(
    name="caption",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.image_to_text:Captioner",
    command="caption {run}",
    pipeline_tag="image-to-text",
    metric="bleu_4",
    examples="images",
    example="picture.png",
    views=("alignment",),
)
