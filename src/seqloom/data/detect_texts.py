"""Detection of texts: tagged sentences and tables in .txt files, and folders of texts."""

from pathlib import Path

from seqloom.core.errors import UsageError
from seqloom.core.words import format_count
from seqloom.data.detect_images import has_images
from seqloom.data.files import read_nonblank, split_lines, text_files

SAMPLE_LINES = 10_000  # number of lines of a file that are examined


def looks_tagged(path: Path) -> bool:
    """Return whether most lines have a word and a tag in columns, and blank lines separate sentences."""
    lines = split_lines(read_nonblank(path))[:SAMPLE_LINES]
    rows = [line.split("\t") if "\t" in line else line.split() for line in lines if line.strip()]
    widths = {len(row) for row in rows if row[0] != "-DOCSTART-"}
    if len(widths) != 1 or not 2 <= widths.pop() <= 12 or len(rows) == len(lines):
        return False
    tags = {row[-1] for row in rows}
    return len(tags) <= max(3, len(rows) // 5) and all(len(row[0].split()) == 1 for row in rows)


def looks_tabular(path: Path) -> bool:
    """Return whether all lines have the same number of columns, separated by tabs."""
    lines = split_lines(read_nonblank(path))[:SAMPLE_LINES]
    widths = {line.count("\t") + 1 for line in lines if line.strip()}
    return len(lines) > 1 and len(widths) == 1 and widths.pop() > 1


def is_image_folder(path: Path) -> bool:
    """Return whether a folder contains images; a folder with texts needs images in at least two subfolders."""
    if not has_images(path):
        return False
    return next(text_files(path), None) is None or sum(map(has_images, path.glob("*/"))) > 1


def check_texts_of_folder(path: Path) -> None:
    """Raise an error if all texts of a folder are tagged sentences or tables, whose splits the user must name."""
    files = sorted(text_files(path))
    kinds = {"tagged sentences": looks_tagged, "tables": looks_tabular}
    for content in (name for name, looks in kinds.items() if files and all(map(looks, files))):
        options = " ".join(f"--{split} {file}" for split, file in zip(("dev", "test"), files[1:], strict=False))
        raise UsageError(
            f"{path} contains {content} in {format_count(len(files), 'text file')}. Name the files of train, dev and "
            f"test, for example: seqloom init {files[0]} {options}".rstrip()
            + ". To read them as plain text, use --task language-model."
        )
