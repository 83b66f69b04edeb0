"""MNIST: handwritten digits as grey images of 28 × 28 pixels, or on a larger canvas with or without clutter."""

from typing import TYPE_CHECKING, Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Ge, Le, NonNegativeInt, PositiveInt
from seqloom.core.errors import DataError
from seqloom.data.corpus import Corpus, version_of
from seqloom.data.files import DataSet

if TYPE_CHECKING:
    from seqloom.data.image_folders import LabelledImage
    from seqloom.data.scattered_digits import Digits

SUMMARY = "MNIST: 70,000 images of handwritten digits (needs SEQLOOM_DATA)"
FORM = "image-classification"
SOURCE = DataSet("MNIST", "http://yann.lecun.com/exdb/mnist; no licence is stated")


@config
class Config:
    corpus: Literal["mnist"] = "mnist"
    dev: Annotated[int, Ge(1)] = 5000  # number of images at the end of the training part that are held out for dev
    # number of training images, counted from the first; null: all images that are not held out
    train: PositiveInt | None = None
    # plain; translated: at random positions of a larger canvas; cluttered: translated, among pieces of other digits
    variant: Literal["plain", "translated", "cluttered"] = "plain"
    side: Annotated[int, Ge(28), Le(512)] = 60  # height and width of the canvas, unless the variant is plain
    pieces: NonNegativeInt = 4  # number of pieces of other digits in a cluttered image
    seed: int = 1  # seed of the positions, unless the variant is plain


def load(config: Config) -> "Corpus[LabelledImage]":
    """Load the images; test is the published test part."""
    train, test = _read("train", config), _read("t10k", config)
    if len(train) <= config.dev:
        raise DataError(f"The training part of MNIST has {len(train):,} images; data.dev={config.dev} leaves none.")
    rest, dev = train[: -config.dev], train[-config.dev :]
    side, seed, variant = (28, "", "") if config.variant == "plain" else (config.side, config.seed, config.variant)
    splits = {"train": rest[: config.train], "dev": dev, "test": test}
    return Corpus(
        name="mnist",
        licence="none stated",
        description=f"{variant} handwritten digits, {side} × {side} grey pixels, white on black".strip(),
        version=f"{version_of(splits)} {variant}, seed {seed}" if variant else "",
        splits=splits,
    )


def _read(part: str, config: Config) -> "list[LabelledImage]":
    from seqloom.data.image_folders import LabelledImage
    from seqloom.data.images import PixelImage, read_idx

    paths = [SOURCE.file(f"mnist/{part}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1")]
    pixels, labels = map(read_idx, paths)
    if pixels.ndim != 3 or labels.shape != pixels.shape[:1]:
        raise DataError(
            f"{paths[0]} must have images with one label each in {paths[1].name}, but the sizes are "
            f"{pixels.shape} and {labels.shape}."
        )
    name = "test" if part == "t10k" else part
    if config.variant != "plain":
        pixels = _scatter(pixels, name, config)
    return [
        LabelledImage(PixelImage(f"{name} {number}", image[:, :, None]), str(label))
        for number, (image, label) in enumerate(zip(pixels, labels.tolist(), strict=True))
    ]


def _scatter(pixels: "Digits", name: str, config: Config) -> "Digits":
    """Place the digits of a part on larger canvases. Dev is scattered separately, so its clutter is never in train."""
    import numpy as np

    from seqloom.core.device import derive_seed
    from seqloom.data.scattered_digits import PIECE, scatter

    _, height, width = pixels.shape
    if max(height, width) > config.side or min(height, width) < PIECE:
        raise DataError(
            f"The variant {config.variant} needs digits with sides between {PIECE} and data.side={config.side} pixels, "
            f"but the digits have {height} × {width} pixels."
        )
    pieces = config.pieces if config.variant == "cluttered" else 0
    draws = np.random.default_rng(derive_seed(config.seed, "mnist", name))
    groups = [pixels] if name == "test" else [pixels[: -config.dev], pixels[-config.dev :]]
    return np.concatenate([scatter(group, config.side, pieces, draws) for group in groups if len(group)])
