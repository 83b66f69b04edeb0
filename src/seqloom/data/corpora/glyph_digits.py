"""Images of digits: embedded glyphs of slightly different sizes at random positions."""

import random
from typing import TYPE_CHECKING, Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Ge, Gt, Le, PositiveInt
from seqloom.data.corpus import Corpus, GeneratedConfig, version_of

if TYPE_CHECKING:
    from seqloom.data.image_folders import LabelledImage

SUMMARY = "generated images of a bright digit at a random position of a black canvas; no download"
FORM = "image-classification"
SIZES = 0.9, 1.1  # smallest and largest height of a digit, as fractions of the height in the configuration
BRIGHTNESS = 170, 255  # smallest and largest grey value of a digit


@config
class Config(GeneratedConfig):
    corpus: Literal["glyph-digits"] = "glyph-digits"
    train: PositiveInt = 5000
    dev: PositiveInt = 500
    test: PositiveInt = 500
    side: Annotated[int, Ge(16), Le(256)] = 28  # height and width of an image in pixels
    height: Annotated[float, Gt(0), Le(0.9)] = 0.6  # mean height of a digit, as a fraction of the side


def load(config: Config) -> "Corpus[LabelledImage]":
    """Render the images."""
    from seqloom.data.image_folders import LabelledImage
    from seqloom.data.images import PixelImage
    from seqloom.data.moving_digits import DIGITS, STILL, MovingDigit, embedded_glyphs, render_clip

    glyphs = embedded_glyphs()

    def draw(draws: random.Random, number: int) -> MovingDigit:
        height = config.height * draws.uniform(*SIZES)
        x, y = (draws.uniform(margin, 1 - margin) for margin in (height * 5 / 14, height / 2))
        return MovingDigit(number % len(DIGITS), (STILL,), x, y, height, 0.0, draws.randint(*BRIGHTNESS))

    def take(split: str, count: int) -> list[LabelledImage]:
        draws, examples = random.Random(f"glyph-digits {config.seed} {split}"), []
        for number in range(count):
            digit = draw(draws, number)
            pixels = render_clip(digit, glyphs[digit.digit][0], config.side)[0]
            examples.append(LabelledImage(PixelImage(f"{split} {number + 1}", pixels), str(digit.digit)))
        return examples

    splits = config.draw(take)
    return Corpus(
        name="glyph-digits",
        version=f"{version_of(splits)} seed {config.seed}",
        description=f"digits on black images of {config.side} × {config.side} pixels",
        splits=splits,
    )
