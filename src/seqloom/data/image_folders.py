"""Labelled images of the user: a folder with a subfolder for each label, or a table of paths and labels.

Files outside the data folder are never read: a path in a table must be inside the folder of the table, and links that
lead out of the folder raise an error.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from seqloom.core.errors import DataError
from seqloom.core.words import format_value, shorten
from seqloom.data.corpus import Corpus, Example, frame
from seqloom.data.examples import check_labels
from seqloom.data.files import IMAGE_EXTENSIONS, expand_home
from seqloom.data.images import Image, StoredImage
from seqloom.data.tables import Column, Format, read_table

MAX_LISTED = 5  # maximum number of files that a message lists


@dataclass(frozen=True)
class LabelledImage(Example):
    """An image and its label."""

    form: ClassVar = "image-classification"
    unit: ClassVar = "images"
    label_field = "label"

    image: Image
    label: str

    @property
    def text(self) -> str:
        """The name of the image, for display."""
        return self.image.name

    def content(self) -> bytes:
        return frame(self.image.sha256) + frame(self.label)

    @classmethod
    def sizes(cls, corpus: "Corpus[LabelledImage]", split: str) -> dict[str, int]:
        return {"images": len(corpus.split(split)), "labels": len(corpus.label_counts(split))}

    @classmethod
    def check(cls, corpus: "Corpus[LabelledImage]") -> "Corpus[LabelledImage]":
        return check_labels(corpus)


def read_folder(folder: Path) -> tuple[list[LabelledImage], list[str]]:
    """Return the images of a folder whose subfolders are the labels, and notes on files that were left out.

    The images of a label may be in nested folders. Hidden files are left out.
    """
    examples, others = list[LabelledImage](), list[str]()
    labels = sorted(path for path in list_folder(folder) if path.is_dir())
    for label in labels:
        for path in image_files(label, folder, others):
            examples.append(LabelledImage(StoredImage(path), label.name))
    counts = {label.name: 0 for label in labels}
    for example in examples:
        counts[example.label] += 1
    if len(labels) < 2 or not examples:
        names = ", ".join(format_value(label.name) for label in labels)
        found = f"one folder, {names}" if len(labels) == 1 else "no folder" if not labels else "no image in its folders"
        raise DataError(
            f"{folder} must contain at least two folders with images, one for each label, but it has {found}."
        )
    notes = [
        f"the folder {format_value(name)} of {folder} has no images" for name, count in counts.items() if not count
    ]
    if others:
        listed = ", ".join(others[:MAX_LISTED]) + (" …" if len(others) > MAX_LISTED else "")
        kinds = ", ".join(IMAGE_EXTENSIONS)
        count = "1 file" if len(others) == 1 else f"{len(others):,} files"
        notes.append(f"{count} of {folder} left out, because they have no image extension ({kinds}): {listed}")
    return examples, notes


def list_folder(folder: Path) -> list[Path]:
    """Return the entries of a folder that are not hidden."""
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise DataError(f"The folder {folder} cannot be read ({error.strerror}).") from error


def image_files(label: Path, folder: Path, others: list[str]) -> Iterable[Path]:
    """Yield the image files below the folder of a label, sorted; add the names of other files to `others`."""
    check_inside(label, folder)
    for parent, folders, files in os.walk(label):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(parent, name)
            if name.startswith("."):
                continue
            if name.lower().endswith(IMAGE_EXTENSIONS):
                check_inside(path, folder)
                yield path
            else:
                others.append(path.relative_to(folder).as_posix())


def read_image_table(path: Path, image: Column, label: Column, form: Format | None) -> list[LabelledImage]:
    """Read a table of labels and paths, which are relative to the table's folder; one error lists all missing files."""
    examples, missing = list[LabelledImage](), list[str]()
    for line, cells in read_table(path, {"image": image, "label": label}, form=form, header=None):
        name, text = cells["image"].strip(), cells["label"].strip()
        if not name or not text:
            raise DataError(f"Line {line:,} of {path} must have an image and a label.")
        file = inside(path.parent, name, f"Line {line:,} of {path}")
        if file.is_file():
            examples.append(LabelledImage(StoredImage(file), text))
        else:
            missing.append(f"{name} (line {line:,})")
    refuse_missing(missing, path, path.parent)
    return examples


def refuse_missing(missing: list[str], path: Path, folder: Path) -> None:
    """Raise `DataError` that names the images of a table that do not exist below a folder."""
    if missing:
        listed = "\n".join(f"  {shorten(name, 200)}" for name in missing)
        count = "1 image that does" if len(missing) == 1 else f"{len(missing):,} images that do"
        raise DataError(f"{path} names {count} not exist below {folder}:\n{listed}")


def check_image_folder(folder: str | None) -> None:
    """Raise `DataError` if the folder of the images of a table is not a folder."""
    if folder is not None and not expand_home(Path(folder)).is_dir():
        raise DataError(f"{folder} must be a folder of images. Check data.folder.")


def inside(folder: Path, name: str, where: str) -> Path:
    """Return the path of a file below a folder; raise `DataError` if its name or a link leads out of the folder."""
    path = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
        raise DataError(f"{where} must name a file below {folder}, but has {format_value(name)}.")
    check_inside(path, folder)
    return path


def check_inside(path: Path, folder: Path) -> None:
    """Raise `DataError` if a link leads out of the folder."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{path} is a link that leads out of {folder}. Copy the file into the folder.")


def read_labelled_images(
    name: str, image: Column, label: Column, form: Format | None
) -> tuple[list[LabelledImage], list[str]]:
    """Read a folder with a subfolder for each label, or a table."""
    path = expand_home(Path(name))
    return read_folder(path) if path.is_dir() else (read_image_table(path, image, label, form), [])
