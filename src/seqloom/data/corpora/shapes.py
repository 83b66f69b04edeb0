"""Images of single coloured shapes. The combinations of shape and colour in dev and test do not occur in train."""

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Ge, Le, PositiveInt
from seqloom.data.corpus import Corpus, GeneratedConfig, version_of

if TYPE_CHECKING:
    from seqloom.data.image_folders import LabelledImage

SUMMARY = "generated images of coloured shapes; dev and test have unseen combinations; no download"
FORM = "image-classification"


@config
class Config(GeneratedConfig):
    corpus: Literal["shapes"] = "shapes"
    train: PositiveInt = 3000
    dev: PositiveInt = 500
    test: PositiveInt = 500
    side: Annotated[int, Ge(16), Le(512)] = 48  # height and width of an image in pixels
    label: Literal["shape", "colour", "size"] = "shape"  # property to predict


def load(config: Config) -> "Corpus[LabelledImage]":
    """Render the images."""
    from seqloom.data.image_folders import LabelledImage
    from seqloom.data.shapes import draw_scenes, scene_image

    def take(split: str, count: int) -> list[LabelledImage]:
        scenes = islice(draw_scenes(split, config.seed, objects=(1, 1)), count)
        return [
            LabelledImage(
                scene_image(scene, f"{part.size} {part.colour} {part.shape}, {part.position}", config.side),
                str(getattr(part, config.label)),
            )
            for scene in scenes
            for part in scene.objects
        ]

    splits = config.draw(take)
    return Corpus(
        name="shapes",
        version=f"{version_of(splits)} seed {config.seed}",
        description=f"coloured shapes of {config.side} × {config.side} pixels, labelled by {config.label}",
        splits=splits,
    )
