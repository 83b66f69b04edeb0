"""Profiles of the columns of a table: their names and the properties of their cells."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from seqloom.core.words import shorten
from seqloom.data.corpora.parallel import is_language
from seqloom.data.files import IMAGE_EXTENSIONS
from seqloom.data.label_columns import find_separator
from seqloom.data.tables import Format, read_records, table_rows

SAMPLE_ROWS = 2000  # number of rows of a table that are examined
# Lowercase column names that indicate the content of a column.
TEXTS = ("text", "sentence", "review", "content", "body", "message", "comment", "description", "tweet", "utterance")
LABELS = (
    *("label", "class", "category", "sentiment", "gold_label", "quality", "is_duplicate", "intent", "topic"),
    *("rating", "stars", "score", "similarity", "priority", "target", "tag", "labels", "y"),
)
LABEL_SETS = ("labels", "tags", "topics", "categories", "genres", "emotions", "intents", "keywords")
PAIRS = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("#1 string", "#2 string")),
    *(("first", "second"), ("text1", "text2"), ("sentence_a", "sentence_b"), ("text_a", "text_b")),
    *(("sentence 1", "sentence 2"), ("sent_1", "sent_2"), ("question", "sentence"), ("left", "right")),
)
TRANSLATION_SIDES = (("source", "target"), ("src", "tgt"), ("src", "trg"), ("src", "ref"))
CONTEXTS = ("context", "ctx", "startphrase", "sent1", "question", "premise", "prompt", "passage", *TEXTS)
OPTION = re.compile(r"(ending|option|choice|answer|solution|sol)[ _-]?([0-9]+|[a-e])")
CAPTION = re.compile(r"captions?([ _-]?[0-9]+)?")
OPTION_LISTS = ("options", "choices", "endings")
ANSWERS = ("answer", "label", "correct", "correct_answer", "gold", "answerkey")
QUESTION_TYPES = ("question_type", "answer_type", "type")
OUTPUTS = ("output", "response", "completion", "answer")


@dataclass(frozen=True)
class NamedColumns:
    """Columns that the user named: the columns that a model reads, in order, and the column of the labels."""

    inputs: tuple[str, ...] = ()
    label: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names, with the label last."""
        return (*self.inputs, *([] if self.label is None else [self.label]))

    def __bool__(self) -> bool:
        return bool(self.names)


@dataclass(frozen=True)
class ColumnProfile:
    """A column of a table and the properties of its cells."""

    name: str
    number: int  # number of the column, counted from 1
    cells: Sequence[object] = field(repr=False)

    @cached_property
    def texts(self) -> list[str]:
        return [str(cell).strip() for cell in self.cells if cell is not None and str(cell).strip()]

    @cached_property
    def distinct(self) -> int:
        return len(set(self.texts))

    @cached_property
    def words(self) -> float:
        """The mean number of words in a cell."""
        return sum(len(text.split()) for text in self.texts) / max(1, len(self.texts))

    @cached_property
    def is_numeric(self) -> bool:
        numbers = sum(re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text) is not None for text in self.texts)
        return bool(self.texts) and numbers >= 0.9 * len(self.texts)

    @property
    def is_filled(self) -> bool:
        """Whether at most a tenth of the cells are empty."""
        return len(self.texts) >= 0.9 * len(self.cells)

    @property
    def is_label(self) -> bool:
        """Whether the cells repeat a few short values."""
        limit = min(200, max(2, len(self.texts) // 3), len(self.texts) // 2)
        return 2 <= self.distinct <= limit and self.words <= 4

    @property
    def is_score(self) -> bool:
        """Whether the cells are numbers on a scale instead of classes."""
        return self.is_numeric and any("." in text.rstrip("0").rstrip(".") for text in self.texts)

    @property
    def is_text(self) -> bool:
        return not self.is_numeric and self.words >= 1 and self.distinct > len(self.texts) / 3

    @property
    def is_image(self) -> bool:
        """Whether the cells are paths of images, which may end with the number of a caption (photo.jpg#0)."""
        paths = (re.sub(r"#\d+$", "", text.lower()) for text in self.texts)
        return bool(self.texts) and all(path.endswith(IMAGE_EXTENSIONS) for path in paths)

    @property
    def is_time(self) -> bool:
        """Whether the cells are dates, or numbers that increase."""
        if self.is_numeric:
            values = [float(text) for text in self.texts]
            return len(values) > 1 and all(a < b for a, b in pairwise(values))
        dates = sum(
            re.match(r"\d{4}-\d{2}(-\d{2})?([T ]\d{2}:|$)|\d{1,2}[./]\d{1,2}[./]\d{2,4}", t) is not None
            for t in self.texts
        )
        return bool(self.texts) and dates >= 0.9 * len(self.texts)


@dataclass(frozen=True)
class TableSample:
    """The first rows of a table."""

    path: Path
    form: Format
    has_header: bool
    columns: Sequence[ColumnProfile]
    multi_label: bool | None = None  # whether a text has several labels; None: detect it

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def find(self, *names: str) -> ColumnProfile | None:
        """Return the first column whose name, ignoring case, is one of these names."""
        by_name = {column.name.casefold(): column for column in self.columns}
        return next((by_name[name] for name in names if name in by_name), None)

    def get(self, name: str) -> ColumnProfile | None:
        """Return a column by its name or number."""
        named = next((column for column in self.columns if column.name == name), None)
        return named or next((column for column in self.columns if str(column.number) == name), None)

    def key(self, column: ColumnProfile) -> str | int:
        """Return the name of a column for a recipe, or its number if the table has no header."""
        return column.name if self.has_header else column.number

    def describe(self, column: ColumnProfile) -> str:
        return f'the column "{shorten(column.name)}"' if self.has_header else f"column {column.number}"


def names_labelled_pairs(names: Sequence[str]) -> bool:
    """Return whether column names include the usual names of two texts and of their label."""
    known = {name.strip().casefold() for name in names}
    return bool(known & set(LABELS)) and any(known.issuperset(pair) for pair in PAIRS)


def text_column(table: TableSample) -> ColumnProfile | None:
    """Return the column of the texts: the column with a usual name, or the column with the most words."""
    wordy = (column for column in table.columns if column.is_text)
    return table.find(*TEXTS) or max(wordy, key=lambda column: column.words, default=None)


def profile_table(path: Path, form: Format, named: Sequence[str] = ()) -> TableSample:
    """Read the first rows of a table and determine whether its first row names the columns.

    `named` are names that the user gave, which the first row may contain.
    """
    if form not in ("tsv", "csv"):
        records = [cells for _, cells in read_records(path, form)[:SAMPLE_ROWS]]
        values = [(name, value) for cells in records for name, value in cells.items()]
        objects = {name for name, value in values if isinstance(value, dict)}  # values in objects have dotted names
        names = [name for name in dict.fromkeys(name for name, _ in values) if name not in objects]
        profiles = [ColumnProfile(name, i, [cells.get(name) for cells in records]) for i, name in enumerate(names, 1)]
        return TableSample(path, form, True, profiles)
    rows = table_rows(path, form, SAMPLE_ROWS)
    width = len(rows[0])
    cells = [[row[index] if index < len(row) else "" for row in rows] for index in range(width)]
    has_header = _has_header(rows, cells, named)
    names = [cell.strip() for cell in rows[0]] if has_header else [str(index + 1) for index in range(width)]
    return TableSample(
        path,
        form,
        has_header,
        [
            ColumnProfile(name, i, column[has_header:])
            for i, (name, column) in enumerate(zip(names, cells, strict=True), 1)
        ],
    )


def _has_header(rows: Sequence[Sequence[str]], cells: Sequence[Sequence[str]], named: Sequence[str]) -> bool:
    first = [cell.strip() for cell in rows[0]]
    if any(name in first for name in named):
        return True
    below = [ColumnProfile("", 0, column[1:]) for column in cells]
    new = [cell for cell, column in zip(first, below, strict=True) if cell not in column.texts]  # not labels
    known = {
        *TEXTS,
        *LABELS,
        *CONTEXTS,
        *OUTPUTS,
        *ANSWERS,
        *(name for pair in (*PAIRS, *TRANSLATION_SIDES) for name in pair),
    }
    if {cell.casefold() for cell in new} & known or (len(first) >= 2 and all(map(is_language, first[:2]))):
        return True
    if len(set(first)) < len(first) or not all(first) or any(len(cell.split()) > 3 for cell in first):
        return False
    # The name of a column of numbers is not a number, and the name of a column of labels is not one of the labels.
    if any(column.is_image for column in below):
        return not any(ColumnProfile("", 0, [cell]).is_image for cell in first)
    if any(column.is_numeric for column in below):
        return not any(ColumnProfile("", 0, [cell]).is_numeric for cell in first)
    return any(
        (column.is_label or find_separator(column.texts)) and cell not in column.texts
        for column, cell in zip(below, first, strict=True)
    )
