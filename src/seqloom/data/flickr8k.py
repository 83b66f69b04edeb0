"""The files of Flickr8k: captions of pictures, the pictures of each split, and their pixels."""

from seqloom.core.errors import DataError
from seqloom.core.words import format_value
from seqloom.data.files import DataSet, read_lines

SOURCE = DataSet(
    "Flickr8k",
    "its authors (Hodosh, Young and Hockenmaier 2013), who ask to be cited; no licence is stated for the captions",
)
LICENCE = "none stated; its authors ask to be cited"


def read_captions() -> dict[str, list[str]]:
    """Read the captions of each picture."""
    path = SOURCE.file("flickr8k/Flickr8k.token.txt.gz")
    captions: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        name, tab, caption = line.partition("\t")
        picture, mark, _ = name.rpartition("#")
        if not (tab and mark):
            raise DataError(
                f"Line {number:,} of {path} must consist of PICTURE#NUMBER, a tab and a caption: {format_value(line)}."
            )
        if caption.strip():
            captions.setdefault(picture, []).append(caption.strip())
    return captions


def read_split(split: str) -> list[str]:
    """Read the names of the pictures of a split."""
    return [line.strip() for line in read_lines(SOURCE.file(f"flickr8k/Flickr_8k.{split}Images.txt.gz"))]
