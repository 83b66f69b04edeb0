"""Tables with named or numbered columns: tab-separated, comma-separated, or JSON Lines; any of them may be .gz.

tsv     a tab between columns; quotation marks are text
csv     as spreadsheets write them: "a text, with commas" in quotation marks, which may span lines; , or ; between
jsonl   a JSON object on every line
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from seqloom.core.errors import DataError
from seqloom.core.words import is_unicode, nearest, shown
from seqloom.data.files import lines, read_filled

Format = Literal["tsv", "csv", "jsonl"]
Column = int | str  # its number, from 1, or its name
Row = tuple[int, dict[str, str]]  # the number of its line, and the cells asked for; blank where there is none
LONGEST_CELL = 2**31 - 1  # characters of one cell of a CSV file
_ENDINGS: dict[str, Format] = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}


def format_of(path: Path) -> Format | None:
    """What a file is by the end of its name."""
    return _ENDINGS.get(Path(path.name.removesuffix(".gz")).suffix.lower())


@contextmanager
def _any_length() -> Iterator[None]:
    """A cell may be a whole book; the limit is one for all readers, so it is put back."""
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


@_any_length()
def read_table(
    path: Path, columns: Mapping[str, Column], *, form: Format | None = None, header: bool | None = None
) -> list[Row]:
    """The rows of a table, blank lines left out; of each the cells of `columns`, by the names these have in a recipe.

    Without `header`, the first line names the columns if they are asked for by name.
    """
    form = form or format_of(path)
    if form is None:
        raise DataError(f"{path} must end in .tsv, .csv or .jsonl (or .gz after it); or say which: data.format=csv.")
    text = read_filled(path)
    if form == "jsonl":
        return [_json_row(path, number, line, columns) for number, line in _numbered(text)]
    rows = _tab_rows(text) if form == "tsv" else _comma_rows(path, text, _delimiter(path, text, columns))
    if header is None:
        header = any(isinstance(column, str) for column in columns.values())
    return list(_chosen(path, form, rows, columns, header))


@_any_length()
def column_names(path: Path, form: Format | None = None) -> list[str]:
    """The names in the first line of a table, or the keys of the first JSON object."""
    form = form or format_of(path)
    text = read_filled(path)
    number, first = next(_numbered(text))
    if form == "jsonl":
        return list(_json_object(path, number, first))
    if form == "tsv":
        return _names(path, _tab_rows(text))
    return _names(path, _comma_rows(path, text, max(",;\t", key=first.count), strict=False))


def column_problems(
    columns: Mapping[str, Column], header: bool | None, form: Format | None, files: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """What cannot be right about columns asked for, whatever the files hold."""
    chosen = list(columns.values())
    named = " and ".join([", ".join(list(columns)[:-1]), list(columns)[-1]])
    if any(isinstance(column, int) and column < 1 for column in chosen):
        yield f"columns are counted from 1, got {chosen}"
    if len(set(chosen)) < len(chosen):
        count = "two" if len(chosen) == 2 else str(len(chosen))
        yield f"{named} must be {count} different columns, got {chosen}"
    if header is False and any(isinstance(column, str) for column in chosen):
        yield f"without a header, {named} must be numbers of columns, from 1"
    kinds = {form or format_of(Path(file)) for named in files.values() for file in named}
    if "jsonl" in kinds and not all(isinstance(column, str) for column in chosen):
        yield f"JSON Lines have names, no numbers of columns: {named} cannot be {chosen}"


def json_objects(path: Path) -> list[tuple[int, dict[Any, Any]]]:
    """The objects of a JSON Lines file with the numbers of their lines, whatever they hold."""
    return [(number, _json_object(path, number, line)) for number, line in _numbered(read_filled(path))]


def json_text(path: Path, number: int, key: str, value: Any) -> str:
    """A value of such an object that must be text or a number; null is blank."""
    return _cell(path, number, key, value)


# --- tabs and commas ------------------------------------------------------------------------------------------------


def _chosen(
    path: Path, form: Format, rows: Iterator[tuple[int, list[str]]], columns: Mapping[str, Column], header: bool
) -> Iterator[Row]:
    _, first = head = _first_row(path, rows)
    names = [name.strip() for name in first] if header else []
    places = {key: _place(path, key, column, names) for key, column in columns.items()}
    for number, cells in rows if header else _again(head, rows):
        if len(cells) != len(first) or len(cells) <= max(places.values()):
            raise _misaligned(path, form, number, cells, max(len(first), max(places.values()) + 1))
        yield number, {key: cells[place] for key, place in places.items()}


def _first_row(path: Path, rows: Iterator[tuple[int, list[str]]]) -> tuple[int, list[str]]:
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path} must hold rows with text, but every cell is empty.")
    return first


def _names(path: Path, rows: Iterator[tuple[int, list[str]]]) -> list[str]:
    return [name.strip() for name in _first_row(path, rows)[1]]


def _again(head: tuple[int, list[str]], rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    yield head
    yield from rows


def _place(path: Path, key: str, column: Column, names: Sequence[str]) -> int:
    if isinstance(column, int):
        return column - 1
    if names.count(column) != 1:
        raise _no_column(f"The first line of {path}", key, column, names)
    return names.index(column)


def _no_column(where: str, key: str, column: str, names: Sequence[str]) -> DataError:
    if column in names:
        return DataError(f"{where} must name the column {column!r} once; it does so {names.count(column)} times.")
    close = nearest(column, names)
    hint = f"did you mean data.{key}={close}?" if close else f"set data.{key} to one of them."
    return DataError(f"{where} must name the column {column!r}; it has {shown(list(names), 200)}: {hint}")


def _misaligned(path: Path, form: Format, number: int, cells: Sequence[str], wanted: int) -> DataError:
    hint = "A text with commas must stand in quotation marks." if form == "csv" else "A tab must stand between columns."
    found = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
    return DataError(
        f"Line {number:,} of {path} must have {wanted} columns, as the first line has or the recipe asks for; it has "
        f"{found}: {shown((', ' if form == 'csv' else '   ').join(cells))}. {hint}"
    )


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(lines(text), start=1) if line.strip())


def _tab_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split("\t")) for number, line in _numbered(text))


def _comma_rows(path: Path, text: str, delimiter: str, *, strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    """The rows with text in any cell. `strict` refuses quotation marks that are out of place."""
    begins, number = 1, 0
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=strict)
    try:
        for cells in reader:
            begins, number = number + 1, reader.line_num
            if any(cell.strip() for cell in cells):
                yield begins, cells
    except csv.Error as error:
        raise DataError(
            f"The row that begins at line {number + 1:,} of {path} is not valid CSV ({error}). A quotation mark "
            'within a quoted text must be doubled: "say ""yes"".".'
        ) from None


def _delimiter(path: Path, text: str, columns: Mapping[str, Column]) -> str:
    """A comma, unless the columns asked for are there only with another sign between them."""
    for sign in ",;\t":
        names = _names(path, _comma_rows(path, text, sign, strict=False))
        if all(column in names if isinstance(column, str) else column <= len(names) for column in columns.values()):
            return sign
    return ","


# --- JSON lines -----------------------------------------------------------------------------------------------------


def _json_row(path: Path, number: int, line: str, columns: Mapping[str, Column]) -> Row:
    found = _json_object(path, number, line)
    cells = {}
    for key, column in columns.items():
        if column not in found:
            raise _no_column(f"Line {number:,} of {path}", key, str(column), list(found))
        cells[key] = _cell(path, number, str(column), found[column])
    return number, cells


def _json_object(path: Path, number: int, line: str) -> dict[Any, Any]:
    try:
        found = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        hint = " (a JSON list is not JSON Lines: write each object on a line of its own)" if line[:1] == "[" else ""
        said = error.msg if isinstance(error, json.JSONDecodeError) else "too deep"
        raise DataError(f"Line {number:,} of {path} must be a JSON object: {said}{hint}, got {shown(line)}.") from None
    if not isinstance(found, dict):
        raise DataError(f"Line {number:,} of {path} must be a JSON object, such as {{…}}, got {shown(line)}.")
    return found


def _cell(path: Path, number: int, column: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str | int | float):
        raise DataError(f"{column!r} at line {number:,} of {path} must be text or a number, got {shown(value)}.")
    text = value if isinstance(value, str) else json.dumps(value)
    if not is_unicode(text):
        raise DataError(f"{column!r} at line {number:,} of {path} holds half a character (\\ud800 to \\udfff).")
    return text
