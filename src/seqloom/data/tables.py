"""Tables with named or numbered columns: TSV, CSV or JSON Lines, optionally with .gz.

tsv     columns separated by tabs; quotation marks are text
csv     columns separated by , or ; as in spreadsheets; "a text, with commas" is quoted and may span lines
jsonl   a JSON object on every line
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Literal

from seqloom.core.errors import DataError
from seqloom.core.words import find_nearest, format_count, format_value, is_unicode
from seqloom.data.files import read_lines, read_nonblank, split_lines

Format = Literal["tsv", "csv", "jsonl"]
Column = int | str  # the number, from 1, or the name
Row = tuple[int, dict[str, str]]  # the line number and the cells of the requested columns
MAX_CELL_LENGTH = 2**31 - 1  # characters of a cell of a CSV file
_EXTENSIONS: dict[str, Format] = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}


def format_of(path: Path) -> Format | None:
    """Return the format of a file by its extension."""
    return _EXTENSIONS.get(Path(path.name.removesuffix(".gz")).suffix.lower())


@contextmanager
def _allow_long_cells() -> Iterator[None]:
    """Raise the limit on the length of CSV cells, which is global, and restore it."""
    before = csv.field_size_limit(MAX_CELL_LENGTH)
    try:
        yield
    finally:
        csv.field_size_limit(before)


@_allow_long_cells()
def read_table(
    path: Path, columns: Mapping[str, Column], *, form: Format | None = None, header: bool | None = None
) -> list[Row]:
    """Read the requested columns of a table, by their names in the recipe, without blank lines.

    If `header` is None, the first line names the columns if some are requested by name.
    """
    form = form or format_of(path)
    if form is None:
        raise DataError(f"{path} must end in .tsv, .csv or .jsonl, optionally with .gz; or set data.format.")
    table: list[Row] = []
    if form == "jsonl":
        for number, item in json_objects(path):
            for key, column in columns.items():
                if column not in item:
                    raise _missing_column(f"Line {number:,} of {path}", key, str(column), list(item))
            cells = {key: json_text(path, number, str(column), item[str(column)]) for key, column in columns.items()}
            table.append((number, cells))
        return table
    text = read_nonblank(path)
    delimiter = "\t" if form == "tsv" else ","
    if form == "csv":  # a comma, unless only another delimiter gives the requested columns
        for candidate in ",;\t":
            names = _first_row(path, text, candidate)
            if all(column in names if isinstance(column, str) else column <= len(names) for column in columns.values()):
                delimiter = candidate
                break
    if header is None:
        header = any(isinstance(column, str) for column in columns.values())
    rows = _rows(path, text, form, delimiter)
    first_row = next(rows, None)
    if first_row is None:
        raise DataError(f"{path} must contain rows with text, but every cell is empty.")
    names = [name.strip() for name in first_row[1]] if header else []
    indices: dict[str, int] = {}
    for key, column in columns.items():
        if isinstance(column, str) and names.count(column) != 1:
            raise _missing_column(f"The first line of {path}", key, column, names)
        indices[key] = names.index(column) if isinstance(column, str) else column - 1
    width = max(len(first_row[1]), *(index + 1 for index in indices.values()))
    for number, row in rows if header else chain([first_row], rows):
        if len(row) != width:
            joined = (", " if form == "csv" else "   ").join(row)
            hint = "Quote texts with commas." if form == "csv" else "Separate columns by tabs."
            raise DataError(
                f"Line {number:,} of {path} must have {width} columns, like the first line or as the recipe requires; "
                f"it has {format_count(len(row), 'column')}: {format_value(joined)}. {hint}"
            )
        table.append((number, {key: row[index] for key, index in indices.items()}))
    return table


@_allow_long_cells()
def column_names(path: Path, form: Format | None = None) -> list[str]:
    """Return the names in the first line of a table, or the keys of the first JSON object."""
    form, text = form or format_of(path), read_nonblank(path)
    number, first = next(_numbered_lines(text))
    if form == "jsonl":
        return list(_json_object(path, number, first))
    return _first_row(path, text, "\t" if form == "tsv" else max(",;\t", key=first.count), form)


def read_columns(path: Path, columns: Sequence[int] | Sequence[str]) -> tuple[int, list[list[str]]]:
    """Read columns of a tab-separated table; return the line number of the first row, and the rows.

    Columns are numbers from 1, or names from the first line. Quotation marks are text. A blank line is
    a blank row, and rows may have additional columns.
    """
    rows, first = read_lines(path), 1
    indices = [column - 1 for column in columns if isinstance(column, int)]
    if not indices:
        names = [name.strip() for name in rows[0].split("\t")]
        for column in columns:
            if column not in names:
                raise DataError(
                    f"The first line of {path} must name the column {column!r}; it has {format_value(names)}. "
                    "Columns may also be given by number, from 1."
                )
        indices, rows, first = [names.index(str(column)) for column in columns], rows[1:], 2
    width, table = max(indices) + 1, []
    for number, row in enumerate(rows, start=first):
        cells = row.split("\t") if row.strip() else [""] * width
        if len(cells) < width:
            actual = "no tab" if len(cells) == 1 else f"{len(cells)} columns"
            raise DataError(
                f"Line {number:,} of {path} must have at least {width} columns separated by tabs; it has "
                f"{actual}: {format_value(row)}."
            )
        table.append([cells[index] for index in indices])
    return first, table


def column_problems(
    columns: Mapping[str, Column], header: bool | None, form: Format | None, files: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield the problems of requested columns that are independent of the content of the files."""
    chosen = list(columns.values())
    keys = " and ".join([", ".join(list(columns)[:-1]), list(columns)[-1]])
    if any(isinstance(column, int) and column < 1 for column in chosen):
        yield f"columns are counted from 1, got {chosen}"
    if len(set(chosen)) < len(chosen):
        yield f"{keys} must be different columns, got {chosen}"
    if header is False and any(isinstance(column, str) for column in chosen):
        yield f"without a header, {keys} must be column numbers from 1, got {chosen}"
    formats = {form or format_of(Path(file)) for paths in files.values() for file in paths}
    if "jsonl" in formats and not all(isinstance(column, str) for column in chosen):
        yield f"with JSON Lines, {keys} must be names, got {chosen}"


def _missing_column(where: str, key: str, column: str, names: Sequence[str]) -> DataError:
    if column in names:
        return DataError(f"{where} must name the column {column!r} once; it does so {names.count(column)} times.")
    close = find_nearest(column, names)
    hint = f"did you mean data.{key}={close}?" if close else f"set data.{key} to one of them."
    return DataError(f"{where} must name the column {column!r}; it has {format_value(list(names), 200)}: {hint}")


def _numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(split_lines(text), start=1) if line.strip())


def _rows(
    path: Path, text: str, form: Format | None, delimiter: str, *, strict: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows with text in any cell. `strict` refuses misplaced quotation marks."""
    if form == "tsv":
        yield from ((number, line.split(delimiter)) for number, line in _numbered_lines(text))
        return
    start, number = 1, 0
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=strict)
    try:
        for cells in reader:
            start, number = number + 1, reader.line_num
            if any(cell.strip() for cell in cells):
                yield start, cells
    except csv.Error as error:
        raise DataError(
            f"The row that starts at line {number + 1:,} of {path} is not valid CSV ({error}). Double a quotation mark "
            'within a quoted text: "say ""yes"".".'
        ) from None


def _first_row(path: Path, text: str, delimiter: str, form: Format | None = "csv") -> list[str]:
    for _, names in _rows(path, text, form, delimiter, strict=False):
        return [name.strip() for name in names]
    raise DataError(f"{path} must contain rows with text, but every cell is empty.")


# --- JSON Lines -------------------------------------------------------------------------------------------------------


def json_objects(path: Path) -> list[tuple[int, dict[str, object]]]:
    """Read the objects of a JSON Lines file with their line numbers."""
    return [(number, _json_object(path, number, line)) for number, line in _numbered_lines(read_nonblank(path))]


def _json_object(path: Path, number: int, line: str) -> dict[str, object]:
    try:
        item = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        hint = " (a JSON list is not JSON Lines: write each object on a separate line)" if line[:1] == "[" else ""
        problem = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        got = format_value(line)
        raise DataError(f"Line {number:,} of {path} must be a JSON object: {problem}{hint}, got {got}.") from None
    if not isinstance(item, dict):
        raise DataError(f"Line {number:,} of {path} must be a JSON object, such as {{…}}, got {format_value(line)}.")
    return item


def json_text(path: Path, number: int, key: str, value: object) -> str:
    """Return a text or a number of a JSON object as text; null is blank."""
    if value is None:
        return ""
    if not isinstance(value, str | int | float):
        raise DataError(f"{key!r} at line {number:,} of {path} must be text or a number, got {format_value(value)}.")
    text = value if isinstance(value, str) else json.dumps(value)
    if not is_unicode(text):
        raise DataError(f"{key!r} at line {number:,} of {path} contains an unpaired surrogate (\\ud800 to \\udfff).")
    return text
