"""Flickr8k: 8,000 photographs of people and animals, each with five captions."""

from typing import TYPE_CHECKING, Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError
from seqloom.data.corpus import SPLITS, Corpus

if TYPE_CHECKING:
    from seqloom.data.image_texts import CaptionedImage

SUMMARY = "Flickr8k: 8,000 photographs with five captions each (needs SEQLOOM_DATA)"
FORM = "image-captioning"


@config
class Config:
    corpus: Literal["flickr8k-captions"] = "flickr8k-captions"
    train: PositiveInt | None = None  # number of training images, counted from the first; null: all


def load(config: Config) -> "Corpus[CaptionedImage]":
    """Load the images of the published splits with their captions."""
    from seqloom.data.flickr8k import LICENCE, read_captions

    captions = read_captions()
    splits = {split: _read(split, captions) for split in SPLITS}
    return Corpus(
        name="flickr8k-captions",
        licence=LICENCE,
        description="photographs with five captions each, stretched to 128 × 128 pixels",
        splits={**splits, "train": splits["train"][: config.train]},
    )


def _read(split: str, captions: dict[str, list[str]]) -> "list[CaptionedImage]":
    from seqloom.data.flickr8k import SOURCE, read_split
    from seqloom.data.image_texts import CaptionedImage
    from seqloom.data.images import read_zip

    path = SOURCE.file(f"flickr8k/images_128_{split}.zip")
    images, names = read_zip(path), read_split(split)
    for what, present in (("images", images), ("captions", captions)):
        if missing := [name for name in names if name not in present]:
            raise DataError(
                f"{len(missing):,} of the {len(names):,} pictures of Flickr8k in {split} have no {what}; the first is "
                f"{missing[0]}. Download {path.name if what == 'images' else 'the captions'} again."
            )
    return [CaptionedImage(images[name], tuple(captions[name])) for name in names]
