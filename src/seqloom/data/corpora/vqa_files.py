"""Your own questions about images: a table with an image, a question and an answer in each row."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from seqloom.config import config
from seqloom.data.corpus import Corpus, FileConfig
from seqloom.data.splits import load_files
from seqloom.data.tables import Column, Format, column_problems

if TYPE_CHECKING:
    from seqloom.data.image_texts import VisualQuestion

SUMMARY = "your own questions about images: a table with an image, a question and an answer in each row"
FORM = "visual-question-answering"


@config
class Config(FileConfig):
    folder_keys: ClassVar = ("folder",)
    corpus: Literal["vqa-files"] = "vqa-files"
    train: str  # a .csv, .tsv, .jsonl or .parquet file, optionally compressed (.gz or .zst)
    folder: str | None = None  # folder that contains the images; null: the folder of the table
    image: Column = "image"  # column of the paths, relative to the folder: its name, or its number, counted from 1
    question: Column = "question"  # column of the questions
    answer: Column = "answer"  # column of the answers; JSON Lines: an answer, or a list of correct answers
    # column of the choices of multiple-choice questions: texts separated by semicolons, or JSON Lines: a list
    choices: Column | None = None
    question_type: Column | None = None  # column of the type of each question, for separate accuracies
    # column of a name for each dialogue about an image, whose questions follow each other; null: independent questions
    dialogue: Column | None = None
    format: Format | None = None  # format of the files; null: derived from the file extension

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from column_problems(self.columns, None, self.format, self.files())

    @property
    def columns(self) -> dict[str, Column]:
        """The columns to read, by their names in the recipe."""
        optional = {"choices": self.choices, "question_type": self.question_type, "dialogue": self.dialogue}
        named = {key: column for key, column in optional.items() if column is not None}
        return {"image": self.image, "question": self.question, "answer": self.answer, **named}


def load(config: Config) -> "Corpus[VisualQuestion]":
    """Load the questions; all questions about equal images are in the same split."""
    from seqloom.data.image_folders import check_image_folder
    from seqloom.data.question_tables import question_groups, read_questions

    check_image_folder(config.folder)
    return load_files(
        config,
        lambda split, file: read_questions(file, config.folder, config.columns, config.format),
        description=f"{config.train}: questions about images",
        groups=lambda examples, _: question_groups(examples),
        repeats=("images", lambda example: example.image.sha256),
    )
