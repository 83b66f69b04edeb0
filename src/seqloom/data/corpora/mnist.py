"""MNIST: handwritten digits as grey images of 28 × 28 pixels."""

from typing import TYPE_CHECKING, Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Ge, PositiveInt
from seqloom.core.errors import DataError
from seqloom.data.corpus import Corpus
from seqloom.data.files import DataSet

if TYPE_CHECKING:
    from seqloom.data.image_folders import LabelledImage

SUMMARY = "MNIST: 70,000 images of handwritten digits (needs SEQLOOM_DATA)"
FORM = "image-classification"
SOURCE = DataSet("MNIST", "http://yann.lecun.com/exdb/mnist; no licence is stated")


@config
class Config:
    corpus: Literal["mnist"] = "mnist"
    dev: Annotated[int, Ge(1)] = 5000  # number of images at the end of the training part that are held out for dev
    # number of training images, counted from the first; null: all images that are not held out
    train: PositiveInt | None = None


def load(config: Config) -> "Corpus[LabelledImage]":
    """Load the images; test is the published test part."""
    train = _read("train")
    if len(train) <= config.dev:
        raise DataError(f"The training part of MNIST has {len(train):,} images; data.dev={config.dev} leaves none.")
    rest, dev = train[: -config.dev], train[-config.dev :]
    return Corpus(
        name="mnist",
        licence="none stated",
        description="handwritten digits, 28 × 28 grey pixels, white on black",
        splits={"train": rest[: config.train], "dev": dev, "test": _read("t10k")},
    )


def _read(part: str) -> "list[LabelledImage]":
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
    return [
        LabelledImage(PixelImage(f"{name} {number}", image[:, :, None]), str(label))
        for number, (image, label) in enumerate(zip(pixels, labels.tolist(), strict=True))
    ]
