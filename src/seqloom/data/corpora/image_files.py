"""Your own labelled images: a folder with a subfolder for each label, or a table of paths and labels."""

from typing import TYPE_CHECKING, Literal

from seqloom.config import config
from seqloom.data.corpus import Corpus, FileConfig
from seqloom.data.splits import load_files
from seqloom.data.tables import Column, Format

if TYPE_CHECKING:
    from seqloom.data.image_folders import LabelledImage

SUMMARY = "your own labelled images: a folder with a subfolder for each label, or a table of paths and labels"
FORM = "image-classification"


@config
class Config(FileConfig):
    corpus: Literal["image-files"] = "image-files"
    train: str  # a folder with a subfolder of images for each label, or a table (.csv, .tsv, .jsonl)
    # column of a table with the paths, relative to the table: its name, or its number, counted from 1
    image: Column = "image"
    label: Column = "label"  # column of a table with the labels
    format: Format | None = None  # format of a table; null: derived from the file extension


def load(config: Config) -> "Corpus[LabelledImage]":
    """Load the images; equal files are in the same split, and dev and test are stratified by label."""
    from seqloom.data.image_folders import read_labelled_images

    return load_files(
        config,
        lambda split, file: read_labelled_images(file, config.image, config.label, config.format),
        description=f"{config.train}: images by label",
        groups=lambda examples, _: [example.image.sha256 for example in examples],
        strata=lambda examples: [example.label for example in examples],
        repeats=("images", lambda example: example.image.sha256),
    )
