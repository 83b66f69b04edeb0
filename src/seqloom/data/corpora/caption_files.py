"""Your own images with captions: a table of image paths and captions."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from seqloom.config import config
from seqloom.data.corpus import Corpus, FileConfig
from seqloom.data.splits import load_files
from seqloom.data.tables import Column, Format, column_problems

if TYPE_CHECKING:
    from seqloom.data.image_texts import CaptionedImage

SUMMARY = "your own images with captions: a table of image paths and captions"
FORM = "image-captioning"


@config
class Config(FileConfig):
    folder_keys: ClassVar = ("folder",)
    corpus: Literal["caption-files"] = "caption-files"
    train: str  # a table (.csv, .tsv, .jsonl, .parquet); rows with the same image are its captions
    folder: str | None = None  # folder that contains the images; null: the folder of the table
    image: Column = "image"  # column of the paths, relative to the folder: its name, or its number, counted from 1
    caption: Column | tuple[Column, ...] = "caption"  # column of the captions, or several columns
    format: Format | None = None  # format of the table; null: derived from the file extension

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        columns = {"image": self.image, **{f"caption {number}": name for number, name in enumerate(self.captions, 1)}}
        yield from column_problems(columns, None, self.format, self.files())

    @property
    def captions(self) -> tuple[Column, ...]:
        """The columns of the captions."""
        return self.caption if isinstance(self.caption, tuple) else (self.caption,)


def load(config: Config) -> "Corpus[CaptionedImage]":
    """Load the images; equal images are in the same split."""
    from seqloom.data.caption_tables import read_caption_table
    from seqloom.data.image_folders import check_image_folder

    check_image_folder(config.folder)
    return load_files(
        config,
        lambda split, file: read_caption_table(file, config.folder, config.image, config.captions, config.format),
        description=f"{config.train}: images with captions",
        groups=lambda examples, _: [example.image.sha256 for example in examples],
        repeats=("images", lambda example: example.image.sha256),
    )
