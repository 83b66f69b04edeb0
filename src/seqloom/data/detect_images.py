"""Detection of images: folders of labelled images, and tables of image paths with labels, captions or questions."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from seqloom.data.detected import SPLIT_NAMES, ChosenColumns, Detected
from seqloom.data.files import IMAGE_EXTENSIONS
from seqloom.data.table_profile import (
    ANSWERS,
    CAPTION,
    LABELS,
    OPTION_LISTS,
    QUESTION_TYPES,
    ColumnProfile,
    TableSample,
    text_column,
)
from seqloom.data.tables import column_names, format_of

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


def is_image(path: Path) -> bool:
    """Return whether a file has the name of an image and is not hidden."""
    return path.name.lower().endswith(IMAGE_EXTENSIONS) and not path.name.startswith(".")


def has_images(path: Path) -> bool:
    """Return whether a folder, or a folder in it, contains image files."""
    return any(map(is_image, (file for folder in (path, *sorted(path.glob("*/"))) for file in folder.iterdir())))


def image_splits(path: Path) -> dict[str, Path] | None:
    """Return the folders of train, dev and test in a folder, or None; each must have a subfolder for each label."""
    folders = {SPLIT_NAMES.get(folder.name.lower()): folder for folder in sorted(path.glob("*/"))}
    splits = {name: folder for name, folder in folders.items() if name and any(map(has_images, folder.glob("*/")))}
    return splits if "train" in splits else None


def image_folder(paths: Sequence[Path]) -> Path | None:
    """Return the only folder among several paths if it contains the images of the other paths; otherwise None."""
    folders = [path for path in paths if path.is_dir() and format_of(path) is None]
    return folders[0] if len(folders) == 1 < len(paths) and has_images(folders[0]) else None


def image_table(path: Path, task: str | None) -> Path | None:
    """Return the only table in a folder if it describes the images of the folder, such as metadata.csv; otherwise None.

    Images in subfolders are labelled by the subfolders, unless the task is `caption` or `vqa`.
    """
    if not path.is_dir() or task not in (None, "caption", "classify-images", "vqa"):
        return None
    files = [file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")]
    tables = [file for file in files if file.name.lower().endswith(TABLES)]
    is_described = has_images(path) if task in ("caption", "vqa") else any(map(is_image, files))
    return tables[0] if len(tables) == 1 and is_described else None


def described_task(table: Path) -> str:
    """Return the task of a table that describes the images of a folder: `vqa` if it has questions and answers."""
    names = {name.casefold() for name in column_names(table)}
    return "vqa" if "question" in names and not names.isdisjoint(ANSWERS) else "caption"


def image_column(table: TableSample, chosen: ChosenColumns) -> ColumnProfile | None:
    """Return the column of image paths."""
    return chosen.first_input or next((column for column in table.columns if column.is_image), None)


def recognize_captions(table: TableSample, chosen: ChosenColumns) -> Detected | None:
    """Recognize images and their captions, in one column or in several columns such as caption_1 and caption_2."""
    image = image_column(table, chosen)
    others = [column for column in table.columns if column is not image]
    numbered = [column for column in others if CAPTION.fullmatch(column.name.casefold())]
    caption = chosen.label or text_column(replace(table, columns=others))
    if chosen.label is None and numbered:
        caption = numbered[0]
    if image is None or caption is None or len(chosen.inputs) > 1:
        return None
    several = chosen.label is None and len(numbered) > 1
    keys = tuple(map(table.key, numbered)) if several else table.key(caption)
    names = f"{len(numbered)} columns" if several else table.describe(caption)
    data = {"corpus": "caption-files", "image": table.key(image), "caption": keys}
    return Detected("caption", data, f"images in {table.describe(image)}, captions in {names}")


def recognize_labelled_images(table: TableSample, chosen: ChosenColumns) -> Detected | None:
    """Recognize images and their labels."""
    image = image_column(table, chosen)
    label = chosen.label or table.find(*LABELS)
    if label is None:
        label = next((column for column in table.columns if column is not image and column.is_label), None)
    if image is None or label is None:
        return None
    data = {"corpus": "image-files", "image": table.key(image), "label": table.key(label)}
    return Detected("classify-images", data, f"images in {table.describe(image)}, labels in {table.describe(label)}")


def recognize_visual_questions(table: TableSample, chosen: ChosenColumns) -> Detected | None:
    """Recognize questions about images, with optional columns of choices, question types and dialogues."""
    image, (_, *others) = image_column(table, chosen), chosen.inputs or (None,)
    question, answer = others[0] if others else table.find("question"), chosen.label or table.find(*ANSWERS)
    if image is None or question is None or answer is None or len(others) > 1:
        return None
    optional = {"choices": OPTION_LISTS, "question_type": QUESTION_TYPES, "dialogue": ("dialogue", "dialog")}
    columns = {key: column for key, names in optional.items() if (column := table.find(*names)) is not None}
    columns = {"image": image, "question": question, "answer": answer, **columns}
    data: dict[str, object] = {key: table.key(column) for key, column in columns.items()}
    described = f"questions in {table.describe(question)} about images in {table.describe(image)}"
    return Detected("vqa", {"corpus": "vqa-files", **data}, f"{described}, answers in {table.describe(answer)}")
