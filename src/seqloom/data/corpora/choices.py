"""Multiple-choice examples from your own files: JSON Lines, Parquet, TSV or CSV, including the columns of SWAG."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.core.words import format_value
from seqloom.data.corpus import Corpus, FileConfig
from seqloom.data.examples import MultipleChoiceExample
from seqloom.data.files import expand_home
from seqloom.data.splits import Read, complete_examples, load_files
from seqloom.data.tables import Column, Format, column_problems, format_of, json_text, read_records, read_table

SUMMARY = "your own texts with several options, one of them correct: JSON Lines, TSV or CSV"
FORM = "multiple-choice"
Cells = tuple[int, str, list[str], str]  # line number, text, options, answer


@config
class Config(FileConfig):
    corpus: Literal["choices"] = "choices"
    train: str  # a .jsonl, .parquet, .tsv or .csv file, optionally compressed (.gz or .zst)
    text: Column = "text"  # column of the text: its name, or its number, counted from 1
    # JSON Lines and Parquet: key of the list of options; TSV and CSV: one column for each option
    options: str | tuple[Column, ...] = "options"
    answer: Column = "answer"  # column of the correct option: the index of the option, or the option itself
    index_base: Literal[0, 1] = 0  # index of the first option
    format: Format | None = None  # format of the files; null: derived from the file extension

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        in_list = isinstance(self.options, str)
        files = [file for files in self.files().values() for file in files]
        if in_list and {self.format or format_of(Path(file)) for file in files} - {"jsonl", "parquet", None}:
            yield f"options must list a column for each option, such as [ending0, ending1]; got {self.options!r}"
        if not in_list and len(self.options) < 2:
            yield f"options must name at least two columns; got {list(self.options)}"
        yield from column_problems(self.columns, None, self.format, self.files())

    @property
    def columns(self) -> dict[str, Column]:
        """The columns to read, by their names in the recipe."""
        options: dict[str, Column] = {"options": self.options} if isinstance(self.options, str) else {}
        if not isinstance(self.options, str):
            options = {f"option {number}": column for number, column in enumerate(self.options, start=1)}
        return {"text": self.text, **options, "answer": self.answer}


def load(config: Config) -> Corpus[MultipleChoiceExample]:
    """Load the examples; all examples with the same text are in the same split."""
    return load_files(
        config,
        lambda split, file: read_choices(config, file),
        description=f"{config.train}: {config.text}, one of its options",
        groups=lambda examples, _: [example.text for example in examples],
        repeats=("examples", lambda example: "\n".join(example.texts())),
    )


def read_choices(config: Config, file: str) -> Read[MultipleChoiceExample]:
    """Return the examples that have a text and at least two options, and a note on the skipped examples."""
    path, examples = expand_home(Path(file)), []
    rows = _json_rows(config, path) if isinstance(config.options, str) else _table_rows(config, path)
    for line, text, options, answer in rows:
        index = -1  # the example is left out
        if text and len(options) >= 2:
            where = f"{config.answer!r} at line {line:,} of {file}"
            index = find_answer(answer, options, config.index_base, where)
        examples.append((line, MultipleChoiceExample(text, tuple(options), index)))
    return complete_examples(
        file,
        examples,
        {"no text, or fewer than two options,": lambda example: example.answer < 0},
        required="texts with at least two options",
        blank="it has none",
    )


def find_answer(cell: str, options: Sequence[str], index_base: int, where: str) -> int:
    """Return the index of the option that a cell names by number or by text; messages name `where`."""
    if options.count(cell) == 1:
        return options.index(cell)
    try:
        index = int(cell) - index_base
    except ValueError:
        index = -1
    if not 0 <= index < len(options):
        last = len(options) - 1 + index_base
        raise DataError(
            f"{where} must name one of its {len(options)} options by a number from {index_base} to {last} or by its "
            f"text; got {format_value(cell)}. If numbers start at 1, set data.index_base=1."
        )
    return index


def _json_rows(config: Config, path: Path) -> Iterator[Cells]:
    keys = [str(key) for key in (config.text, config.options, config.answer)]
    for number, row in read_records(path, config.format):
        for key in keys:
            if key not in row:
                raise DataError(
                    f"Line {number:,} of {path} must have the key {key!r}, but has {format_value(list(row), 200)}."
                )
        values, where = row[keys[1]], f"{config.options!r} at line {number:,} of {path}"
        if not isinstance(values, list):
            raise DataError(f"{where} must be a list; got {format_value(values)}.")
        options = [json_text(path, number, keys[1], option).strip() for option in values]
        if not all(options):
            raise DataError(f"{where} has a blank option.")
        text, answer = (json_text(path, number, key, row[key]).strip() for key in (keys[0], keys[2]))
        yield number, text, options, answer


def _table_rows(config: Config, path: Path) -> Iterator[Cells]:
    """Yield the rows of a table. Blank options at the end of a row are dropped; other blank options raise an error."""
    keys = [key for key in config.columns if key.startswith("option")]
    for number, cells in read_table(path, config.columns, form=config.format):
        options = [cells[key].strip() for key in keys]
        while options and not options[-1]:
            options.pop()
        if not all(options):
            raise DataError(
                f"Line {number:,} of {path} has a blank option before a filled one: {format_value(options)}."
            )
        yield number, cells["text"].strip(), options, cells["answer"].strip()
