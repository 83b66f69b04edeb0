"""Questions about images from the user's tables. A row has an image, a question and its answer.

A path is relative to a folder, by default the folder of the table; files outside this folder are never read.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seqloom.core.errors import DataError
from seqloom.core.words import format_value
from seqloom.data.files import expand_home
from seqloom.data.image_folders import inside, refuse_missing
from seqloom.data.image_texts import Turn, VisualQuestion
from seqloom.data.images import StoredImage
from seqloom.data.splits import Read, complete_examples
from seqloom.data.tables import Column, Format, read_table

LISTS = ("answer", "choices")  # columns that may contain lists
CHOICE_SEPARATOR = ";"  # between the choices in a cell of a CSV or TSV file


@dataclass(frozen=True)
class QuestionRow:
    """The cells of a row."""

    question: str
    answers: tuple[str, ...]
    question_type: str
    choices: tuple[str, ...]
    dialogue: str

    @classmethod
    def of(cls, cells: Mapping[str, str]) -> "QuestionRow":
        """Read the cells of a row; missing columns are blank."""
        return cls(
            question=cells["question"].strip(),
            answers=split_cell(cells["answer"], None),
            question_type=cells.get("question_type", "").strip(),
            choices=split_cell(cells.get("choices", ""), CHOICE_SEPARATOR),
            dialogue=cells.get("dialogue", "").strip(),
        )


def split_cell(cell: str, separator: str | None) -> tuple[str, ...]:
    """Return the nonblank texts of a cell: the entries of a JSON list, or texts between separators."""
    try:
        values = json.loads(cell) if cell.startswith("[") else None
    except ValueError:
        values = None
    if not isinstance(values, list):
        values = cell.split(separator) if separator is not None else [cell]
    return tuple(text for value in values if (text := str(value).strip()))


def read_questions(
    file: str, folder: str | None, columns: Mapping[str, Column], form: Format | None
) -> Read[VisualQuestion]:
    """Return the questions of a table, and notes on incomplete rows. One error lists all missing images.

    Rows of an image with the same cell in the column `dialogue` form a dialogue: every question follows the previous
    questions and answers.
    """
    path = expand_home(Path(file))
    place = path.parent if folder is None else expand_home(Path(folder))
    images: dict[str, StoredImage] = {}
    histories: dict[tuple[str, str], list[Turn]] = {}
    missing: list[str] = []
    rows: list[tuple[int, VisualQuestion]] = []
    for line, cells in read_table(path, columns, form=form, header=None, lists=LISTS):
        name, row = cells["image"].strip(), QuestionRow.of(cells)
        where = f"Line {line:,} of {path}"
        if not name:
            raise DataError(f"{where} must have an image, but the cell is blank.")
        if row.choices and not set(row.answers) <= set(row.choices):
            raise DataError(
                f"{where} must have its answer among its choices {format_value(list(row.choices))}; got "
                f"{format_value(row.answers[0] if row.answers else '')}."
            )
        if name not in images:
            images[name] = StoredImage(inside(place, name, where))
            if not images[name].path.is_file():
                missing.append(f"{name} (line {line:,})")
        history = histories.setdefault((name, row.dialogue), []) if row.dialogue else []
        example = VisualQuestion(
            images[name], row.question, row.answers, row.question_type, row.choices, tuple(history), bool(history)
        )
        rows.append((line, example))
        if row.question and row.answers:
            history.append((row.question, row.answers[0]))
    refuse_missing(missing, path, place)
    return complete_examples(
        file,
        rows,
        {"no question": lambda example: not example.question, "no answer": lambda example: not example.answers},
        required="images with questions and answers",
        blank="it has none",
    )


def question_groups(examples: Sequence[VisualQuestion]) -> list[str]:
    """Return a group for each example; all questions about equal images are in the same group."""
    return [example.image.sha256 for example in examples]
