"""Handwritten digits as series: the 1,797 images of scikit-learn, read row by row from the top."""

from typing import TYPE_CHECKING, Literal

from seqloom.config import config
from seqloom.core.errors import ResourceError
from seqloom.data.corpus import Corpus
from seqloom.data.splits import split_of_group

if TYPE_CHECKING:
    from seqloom.data.series import LabelledSeries

SUMMARY = "handwritten digits as series of 8 rows of 8 numbers, from scikit-learn; no download"
FORM = "series-labelled"
HELD_OUT = {"test": 0.2, "dev": 0.15}  # fractions of the images


@config
class Config:
    corpus: Literal["digits"] = "digits"
    by: Literal["rows", "pixels"] = "rows"  # rows: 8 steps of 8 variables; pixels: 64 steps of one variable


def load(config: Config) -> "Corpus[LabelledSeries]":
    """Load the images; a hash of the pixels assigns each image to a split."""
    from seqloom.data.series import LabelledSeries

    try:
        import sklearn
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise ResourceError("The corpus digits needs scikit-learn: pip install 'seqloom[series]'.") from error
    digits = load_digits()
    splits: dict[str, list[LabelledSeries]] = {"train": [], "dev": [], "test": []}
    for image, digit in zip(digits.images, digits.target, strict=True):
        values = image if config.by == "rows" else image.reshape(-1, 1)
        splits[split_of_group(image.tobytes(), HELD_OUT)].append(LabelledSeries(values.astype("float64"), str(digit)))
    return Corpus(
        name="digits",
        version=f"scikit-learn {sklearn.__version__}",
        licence="CC BY 4.0 (UCI, Optical Recognition of Handwritten Digits)",
        description=f"handwritten digits of 8 × 8 pixels, as {'8 rows' if config.by == 'rows' else '64 pixels'}",
        splits=splits,
    )
