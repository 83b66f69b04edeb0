"""Captioned images of the user: a table with a column of image paths and one or more columns of captions.

Rows with the same path contain captions of the same image. A path may end with the number of the caption, as in the
files of Flickr8k (photo.jpg#0). In JSON Lines and Parquet, a cell may be a list of captions.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from seqloom.core.words import format_count
from seqloom.data.detect_images import is_image
from seqloom.data.files import expand_home
from seqloom.data.image_folders import inside, refuse_missing
from seqloom.data.image_texts import CaptionedImage
from seqloom.data.images import StoredImage
from seqloom.data.splits import Read, complete_examples
from seqloom.data.tables import Column, Format, format_of, read_table

CAPTION_NUMBER = re.compile(r"#\d+$")


def read_caption_table(
    file: str, folder: str | None, image: Column, captions: Sequence[Column], form: Format | None
) -> Read[CaptionedImage]:
    """Return the images of a table with their captions, and notes on rows and images that were left out.

    Paths are relative to `folder`, by default the folder of the table. One error lists all images that do not exist.
    """
    table = expand_home(Path(file))
    place = table.parent if folder is None else expand_home(Path(folder))
    texts = {f"caption {number}": column for number, column in enumerate(captions, start=1)}
    kind = form or format_of(table)
    rows, notes = complete_examples(
        file,
        (
            (line, (line, cells["image"].strip(), split_captions([cells[key] for key in texts], kind)))
            for line, cells in read_table(table, {"image": image, **texts}, form=form, header=None, lists=texts)
        ),
        {"no image": lambda row: not row[1], "no caption": lambda row: not row[2]},
        required="rows with an image and a caption",
        blank="every row lacks an image or a caption",
    )
    files: dict[str, Path] = {}
    captions_of: dict[Path, list[str]] = {}
    missing: dict[str, str] = {}
    for line, name, written in rows:
        if name not in files:
            files[name] = find_image(place, name, f"Line {line:,} of {table}")
        if files[name].is_file():
            captions_of.setdefault(files[name], []).extend(written)
        else:
            missing.setdefault(name, f"{name} (line {line:,})")
    refuse_missing(list(missing.values()), table, place)
    examples = [CaptionedImage(StoredImage(path), tuple(written)) for path, written in captions_of.items()]
    if folder is not None and (left := count_images(place) - len(captions_of)) > 0:
        notes.append(f"{format_count(left, 'image')} of {folder} without a caption in {file}")
    return examples, notes


def split_captions(cells: Sequence[str], form: Format | None) -> list[str]:
    """Return the captions in the cells of a row. A cell of JSON Lines or Parquet may be a list."""
    captions = list[str]()
    for cell in cells:
        listed = None
        if form not in ("csv", "tsv") and cell.startswith("["):
            try:
                listed = json.loads(cell)
            except ValueError:
                listed = None
        captions += listed if isinstance(listed, list) and all(isinstance(text, str) for text in listed) else [cell]
    return [text for caption in captions if (text := " ".join(caption.split()))]


def find_image(folder: Path, name: str, where: str) -> Path:
    """Return the path of an image; the number of a caption at its end is ignored if there is no such file."""
    path = inside(folder, name, where)
    if not path.is_file() and CAPTION_NUMBER.search(name):
        return inside(folder, CAPTION_NUMBER.sub("", name), where)
    return path


def count_images(folder: Path) -> int:
    """Return the number of image files below a folder that are not hidden."""
    return sum(is_image(Path(name)) for _, _, files in os.walk(folder) for name in files)
