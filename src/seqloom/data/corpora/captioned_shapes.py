"""Images of one or two coloured shapes with captions. Combinations of shape and colour in dev and test are unseen."""

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Ge, Le, PositiveInt
from seqloom.data.corpus import Corpus, GeneratedConfig, version_of

if TYPE_CHECKING:
    from seqloom.data.image_texts import CaptionedImage

SUMMARY = "captions of coloured shapes, rendered on the spot; dev and test have unseen combinations"
FORM = "image-captioning"


@config
class Config(GeneratedConfig):
    corpus: Literal["captioned-shapes"] = "captioned-shapes"
    train: PositiveInt = 4000
    dev: PositiveInt = 400
    test: PositiveInt = 500
    side: Annotated[int, Ge(16), Le(512)] = 48  # height and width of an image in pixels


def load(config: Config) -> "Corpus[CaptionedImage]":
    """Render the images. An image with two shapes has two captions, which differ in the order of the shapes."""
    from seqloom.data.image_texts import CaptionedImage
    from seqloom.data.shapes import caption_scene, draw_scenes, scene_image

    def take(split: str, count: int) -> list[CaptionedImage]:
        scenes = islice(draw_scenes(split, config.seed, objects=(1, 2)), count)
        return [
            CaptionedImage(scene_image(scene, f"{split} {number}", config.side), caption_scene(scene))
            for number, scene in enumerate(scenes, start=1)
        ]

    splits = config.draw(take)
    return Corpus(
        name="captioned-shapes",
        version=f"{version_of(splits)} seed {config.seed}",
        description=f"captions of coloured shapes of {config.side} × {config.side} pixels",
        splits=splits,
    )
