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
from itertools import chain
from pathlib import Path
from typing import Literal

from seqloom.core.errors import DataError
from seqloom.core.words import counted, is_unicode, nearest, shown
from seqloom.data.files import lines, read_filled, read_lines

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
    """Return what a file is by the end of its name."""
    return _ENDINGS.get(Path(path.name.removesuffix(".gz")).suffix.lower())


@contextmanager
def _any_length() -> Iterator[None]:
    """Allow a cell to be a whole book; the limit is one for all readers, so it is put back."""
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


@_any_length()
def read_table(
    path: Path, columns: Mapping[str, Column], *, form: Format | None = None, header: bool | None = None
) -> list[Row]:
    """Return the rows of a table without blank lines; of each the cells of `columns`, by their names in a recipe.

    Without `header`, the first line names the columns if they are asked for by name.
    """
    form = form or format_of(path)
    if form is None:
        raise DataError(f"{path} must end in .tsv, .csv or .jsonl (or .gz after it); or say which: data.format=csv.")
    table: list[Row] = []
    if form == "jsonl":
        for number, found in json_objects(path):
            for key, column in columns.items():
                if column not in found:
                    raise _no_column(f"Line {number:,} of {path}", key, str(column), list(found))
            cells = {key: json_text(path, number, str(column), found[str(column)]) for key, column in columns.items()}
            table.append((number, cells))
        return table
    text = read_filled(path)
    delimiter = "\t" if form == "tsv" else ","
    if form == "csv":  # a comma, unless the columns asked for are there only with another sign between them
        for sign in ",;\t":
            names = _first_row(path, text, sign)
            if all(column in names if isinstance(column, str) else column <= len(names) for column in columns.values()):
                delimiter = sign
                break
    if header is None:
        header = any(isinstance(column, str) for column in columns.values())
    rows = _rows(path, text, form, delimiter)
    head = next(rows, None)
    if head is None:
        raise DataError(f"{path} must hold rows with text, but every cell is empty.")
    names = [name.strip() for name in head[1]] if header else []
    places: dict[str, int] = {}
    for key, column in columns.items():
        if isinstance(column, str) and names.count(column) != 1:
            raise _no_column(f"The first line of {path}", key, column, names)
        places[key] = names.index(column) if isinstance(column, str) else column - 1
    width = max(len(head[1]), *(place + 1 for place in places.values()))
    for number, row in rows if header else chain([head], rows):
        if len(row) != width:
            sign = ", " if form == "csv" else "   "
            hint = (
                "A text with commas must stand in quotation marks."
                if sign == ", "
                else "A tab must stand between columns."
            )
            raise DataError(
                f"Line {number:,} of {path} must have {width} columns, as the first line has or the recipe asks for; "
                f"it has {counted(len(row), 'column')}: {shown(sign.join(row))}. {hint}"
            )
        table.append((number, {key: row[place] for key, place in places.items()}))
    return table


@_any_length()
def column_names(path: Path, form: Format | None = None) -> list[str]:
    """Return the names in the first line of a table, or the keys of the first JSON object."""
    form, text = form or format_of(path), read_filled(path)
    number, first = next(_numbered(text))
    if form == "jsonl":
        return list(_json_object(path, number, first))
    return _first_row(path, text, "\t" if form == "tsv" else max(",;\t", key=first.count), form)


def read_columns(path: Path, columns: Sequence[int] | Sequence[str]) -> tuple[int, list[list[str]]]:
    """Return the number of the first line of text of a tab-separated table, and the chosen columns, row by row.

    Columns are numbers, from 1, or the names in the first line. Quotation marks are text. A blank
    line is a blank row, and rows may have more columns than those.
    """
    rows, first = read_lines(path), 1
    places = [column - 1 for column in columns if isinstance(column, int)]
    if not places:
        names = [name.strip() for name in rows[0].split("\t")]
        for column in columns:
            if column not in names:
                raise DataError(
                    f"The first line of {path} must name its columns, {column!r} among them; it has "
                    f"{shown(names)}. Columns may also be given by number, from 1."
                )
        places, rows, first = [names.index(str(column)) for column in columns], rows[1:], 2
    width, table = max(places) + 1, []
    for number, row in enumerate(rows, start=first):
        cells = row.split("\t") if row.strip() else [""] * width
        if len(cells) < width:
            found = "no tab" if len(cells) == 1 else f"{len(cells)} columns"
            raise DataError(
                f"Line {number:,} of {path} must have at least {width} columns with a tab between; it has "
                f"{found}: {shown(row)}."
            )
        table.append([cells[place] for place in places])
    return first, table


def column_problems(
    columns: Mapping[str, Column], header: bool | None, form: Format | None, files: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield what cannot be right about columns asked for, whatever the files hold."""
    chosen = list(columns.values())
    keys = " and ".join([", ".join(list(columns)[:-1]), list(columns)[-1]])
    if any(isinstance(column, int) and column < 1 for column in chosen):
        yield f"columns are counted from 1, got {chosen}"
    if len(set(chosen)) < len(chosen):
        count = "two" if len(chosen) == 2 else str(len(chosen))
        yield f"{keys} must be {count} different columns, got {chosen}"
    if header is False and any(isinstance(column, str) for column in chosen):
        yield f"without a header, {keys} must be numbers of columns, from 1"
    kinds = {form or format_of(Path(file)) for given in files.values() for file in given}
    if "jsonl" in kinds and not all(isinstance(column, str) for column in chosen):
        yield f"JSON Lines have names, no numbers of columns: {keys} cannot be {chosen}"


def _no_column(where: str, key: str, column: str, names: Sequence[str]) -> DataError:
    if column in names:
        return DataError(f"{where} must name the column {column!r} once; it does so {names.count(column)} times.")
    close = nearest(column, names)
    hint = f"did you mean data.{key}={close}?" if close else f"set data.{key} to one of them."
    return DataError(f"{where} must name the column {column!r}; it has {shown(list(names), 200)}: {hint}")


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(lines(text), start=1) if line.strip())


def _rows(
    path: Path, text: str, form: Format | None, delimiter: str, *, strict: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows with text in any cell. `strict` refuses quotation marks that are out of place."""
    if form == "tsv":
        yield from ((number, line.split(delimiter)) for number, line in _numbered(text))
        return
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


def _first_row(path: Path, text: str, delimiter: str, form: Format | None = "csv") -> list[str]:
    for _, names in _rows(path, text, form, delimiter, strict=False):
        return [name.strip() for name in names]
    raise DataError(f"{path} must hold rows with text, but every cell is empty.")


# --- JSON lines -------------------------------------------------------------------------------------------------------


def json_objects(path: Path) -> list[tuple[int, dict[str, object]]]:
    """Return the objects of a JSON Lines file with the numbers of their lines, whatever they hold."""
    return [(number, _json_object(path, number, line)) for number, line in _numbered(read_filled(path))]


def _json_object(path: Path, number: int, line: str) -> dict[str, object]:
    try:
        found = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        hint = " (a JSON list is not JSON Lines: write each object on a line of its own)" if line[:1] == "[" else ""
        problem = error.msg if isinstance(error, json.JSONDecodeError) else "too deep"
        got = shown(line)
        raise DataError(f"Line {number:,} of {path} must be a JSON object: {problem}{hint}, got {got}.") from None
    if not isinstance(found, dict):
        raise DataError(f"Line {number:,} of {path} must be a JSON object, such as {{…}}, got {shown(line)}.")
    return found


def json_text(path: Path, number: int, key: str, value: object) -> str:
    """Return a value of such an object that must be text or a number; null is blank."""
    if value is None:
        return ""
    if not isinstance(value, str | int | float):
        raise DataError(f"{key!r} at line {number:,} of {path} must be text or a number, got {shown(value)}.")
    text = value if isinstance(value, str) else json.dumps(value)
    if not is_unicode(text):
        raise DataError(f"{key!r} at line {number:,} of {path} holds half a character (\\ud800 to \\udfff).")
    return text
