"""Tables with named or numbered columns, optionally compressed with .gz or .zst.

tsv       columns separated by tabs; quotation marks are text
csv       columns separated by , or ; as in spreadsheets; a quoted cell may contain commas and span several lines
jsonl     a JSON object on every line; values in nested objects are named with a dot: translation.en
parquet   a Parquet file, or a folder that the `datasets` library saved
tmx, xliff, po   translation memories and message catalogues, with a column for each language
"""

import csv
import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from seqloom.core.errors import DataError
from seqloom.core.words import find_nearest, format_count, format_value, is_unicode
from seqloom.data.files import (
    expand_home,
    files_below,
    guess_encoding,
    read_bytes,
    read_lines,
    read_nonblank,
    split_lines,
    text_files,
    without_compression,
)
from seqloom.data.formats.arrow_tables import is_dataset_folder, read_arrow
from seqloom.data.formats.translation_memories import read_po, read_tmx, read_xliff

Format = Literal["tsv", "csv", "jsonl", "parquet", "tmx", "xliff", "po"]
Record = tuple[int, dict[str, object]]  # the number of a line or row, and the cells by column name
Column = int | str  # the number, counted from 1, or the name
Row = tuple[int, dict[str, str]]  # the line number and the cells of the requested columns
SAMPLE_ROWS = 20  # number of rows from which the delimiter of a CSV file is guessed
MAX_CELL_LENGTH = 2**31 - 1  # maximum number of characters in a cell of a CSV file
_EXTENSIONS: dict[str, Format] = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "parquet",
    ".tmx": "tmx",
    ".xlf": "xliff",
    ".xliff": "xliff",
    ".po": "po",
}
ROW_FORMATS: tuple[Format, ...] = ("tmx", "xliff", "parquet")  # their rows are not numbered by lines
TRANSLATIONS: tuple[Format, ...] = ("tmx", "xliff", "po")  # their columns are languages; a row may lack a language


def format_of(path: Path) -> Format | None:
    """Return the format of a file by its extension, or of a folder by its files."""
    if is_dataset_folder(path):
        return "parquet"
    if path.is_dir():
        return next(map(format_of, _translation_files(path)), None)
    return _EXTENSIONS.get(Path(without_compression(path)).suffix.lower())


def translation_files(folder: Path) -> list[Path]:
    """Return the translation memories below a folder, sorted by name."""
    return sorted(_translation_files(folder))


def _translation_files(folder: Path) -> Iterator[Path]:
    return (path for path in files_below(folder) if format_of(path) in TRANSLATIONS)


@contextmanager
def _allow_long_cells() -> Iterator[None]:
    """Raise the global limit on the length of CSV cells within this block."""
    before = csv.field_size_limit(MAX_CELL_LENGTH)
    try:
        yield
    finally:
        csv.field_size_limit(before)


@_allow_long_cells()
def read_table(
    path: Path,
    columns: Mapping[str, Column],
    *,
    form: Format | None = None,
    header: bool | None = None,
    lists: Collection[str] = (),
) -> list[Row]:
    """Read the requested columns of a table, without blank lines; the keys of `columns` are their names in the recipe.

    If `header` is None, the first line is a header if a column is requested by name. Cells of the columns in `lists`
    may be lists, which are returned as JSON.
    """
    form = form or format_of(path)
    if form is None:
        raise DataError(
            f"{path} must end in .tsv, .csv, .jsonl or .parquet, optionally followed by .gz; or set data.format."
        )
    if form not in ("tsv", "csv"):
        return [
            (
                number,
                {key: _cell_text(path, number, str(column), item, key in lists) for key, column in columns.items()},
            )
            for number, item in _requested(path, form, columns)
        ]
    table: list[Row] = []
    text = read_nonblank(path)
    delimiter = "\t" if form == "tsv" else ","
    if form == "csv":  # the delimiter is a comma, unless only another delimiter gives the requested columns
        guess = _guess_delimiter(path, text)
        for candidate in (guess, *",;\t".replace(guess, "")):
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
                f"Line {number:,} of {path} must have {width} columns, like the first line or as the recipe requires, "
                f"but has {format_count(len(row), 'column')}: {format_value(joined)}. {hint}"
            )
        table.append((number, {key: row[index] for key, index in indices.items()}))
    return table


@_allow_long_cells()
def column_names(path: Path, form: Format | None = None) -> list[str]:
    """Return the names in the first line of a table, or the keys of its objects."""
    form = form or format_of(path)
    if form not in ("tsv", "csv", None):
        return list(dict.fromkeys(name for _, item in read_records(path, form) for name in item))
    text = read_nonblank(path)
    return _first_row(path, text, "\t" if form == "tsv" else _guess_delimiter(path, text), form)


@_allow_long_cells()
def table_rows(path: Path, form: Format, limit: int | None = None) -> list[list[str]]:
    """Read the cells of the first rows of a TSV or CSV file, or of all rows, including a header."""
    text = read_nonblank(path)
    delimiter = "\t" if form == "tsv" else _guess_delimiter(path, text)
    rows = [cells for _, cells in islice(_rows(path, text, form, delimiter), limit)]
    if not rows:
        raise DataError(f"{path} must contain rows with text, but every cell is empty.")
    return rows


def read_columns(path: Path, columns: Sequence[int] | Sequence[str]) -> tuple[int, list[list[str]]]:
    """Read columns of a tab-separated table; return the line number of the first row, and the rows.

    Columns are numbers counted from 1, or names in the first line. Quotation marks are ordinary text. A blank
    line is a blank row, and rows may have additional columns.
    """
    rows, first = read_lines(path), 1
    indices = [column - 1 for column in columns if isinstance(column, int)]
    if not indices:
        names = [name.strip() for name in rows[0].split("\t")]
        for column in columns:
            if column not in names:
                raise DataError(
                    f"The first line of {path} must name the column {column!r}, but has {format_value(names)}. "
                    "Columns may also be given by number, counted from 1."
                )
        indices, rows, first = [names.index(str(column)) for column in columns], rows[1:], 2
    width, table = max(indices) + 1, []
    for number, row in enumerate(rows, start=first):
        cells = row.split("\t") if row.strip() else [""] * width
        if len(cells) < width:
            actual = "no tab" if len(cells) == 1 else f"{len(cells)} columns"
            raise DataError(
                f"Line {number:,} of {path} must have at least {width} columns separated by tabs, but has "
                f"{actual}: {format_value(row)}."
            )
        table.append([cells[index] for index in indices])
    return first, table


def column_problems(
    columns: Mapping[str, Column], header: bool | None, form: Format | None, files: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield the problems of requested columns that are apparent without reading the files."""
    chosen = list(columns.values())
    keys = " and ".join([", ".join(list(columns)[:-1]), list(columns)[-1]])
    if any(isinstance(column, int) and column < 1 for column in chosen):
        yield f"column numbers start at 1; got {chosen}"
    if len(set(chosen)) < len(chosen):
        yield f"{keys} must be different columns; got {chosen}"
    if header is False and any(isinstance(column, str) for column in chosen):
        yield f"without a header, {keys} must be column numbers from 1; got {chosen}"
    formats = {form or format_of(Path(file)) for paths in files.values() for file in paths}
    if "jsonl" in formats and not all(isinstance(column, str) for column in chosen):
        yield f"with JSON Lines, {keys} must be names; got {chosen}"


def _missing_column(where: str, key: str, column: str, names: Sequence[str]) -> DataError:
    if column in names:
        return DataError(f"{where} must name the column {column!r} once, but it occurs {names.count(column)} times.")
    close = find_nearest(column, names)
    hint = f"did you mean data.{key}={close}?" if close else f"set data.{key} to one of them."
    return DataError(f"{where} must name the column {column!r}, but has {format_value(list(names), 200)}: {hint}")


def _numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(split_lines(text), start=1) if line.strip())


def _rows(
    path: Path, text: str, form: Format | None, delimiter: str, *, strict: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that have text in any cell. With `strict`, misplaced quotation marks raise an error."""
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
        problem = f"is not valid CSV ({error})"
        if str(error) == "unexpected end of data":
            problem = "has a quotation mark that is never closed, or the end of the file is missing"
        raise DataError(
            f"The row that starts at line {number + 1:,} of {path} {problem}. Double a quotation mark within a quoted "
            'text: "say ""yes"".".'
        ) from None


@_allow_long_cells()
def delimiter_of(path: Path, form: Format) -> str:
    """Return the delimiter of a TSV or CSV file."""
    return "\t" if form == "tsv" else _guess_delimiter(path, read_nonblank(path))


def _guess_delimiter(path: Path, text: str) -> str:
    """Return the delimiter that divides most sampled rows of a CSV file into as many cells as the first row."""

    def fit(delimiter: str) -> tuple[int, int]:
        rows = [len(cells) for _, cells in islice(_rows(path, text, "csv", delimiter, strict=False), SAMPLE_ROWS)]
        width = rows[0] if rows else 1
        return (rows.count(width), width) if width > 1 else (0, 0)

    return max(",;\t", key=fit)


def _first_row(path: Path, text: str, delimiter: str, form: Format | None = "csv") -> list[str]:
    for _, names in _rows(path, text, form, delimiter, strict=False):
        return [name.strip() for name in names]
    raise DataError(f"{path} must contain rows with text, but every cell is empty.")


# --- records ----------------------------------------------------------------------------------------------------------


def read_records(path: Path, form: Format | None = None) -> list[Record]:
    """Read the rows of a format that names every cell: JSON Lines, Parquet or translation memories.

    The rows of all translation memories in a folder are joined.
    """
    if path.is_dir() and (files := translation_files(path)):
        return [record for file in files for record in read_records(file)]
    match form or format_of(path):
        case "parquet":
            return read_arrow(path)
        case "tmx":
            return read_tmx(path)
        case "xliff":
            return read_xliff(path)
        case "po":
            return read_po(path)
    return [(number, _flat(_json_object(path, number, line))) for number, line in _numbered_lines(read_nonblank(path))]


def _requested(path: Path, form: Format, columns: Mapping[str, Column]) -> Iterator[Record]:
    """Yield the requested columns of the records, keyed by the names or numbers of the request."""
    records = read_records(path, form)
    names = list(dict.fromkeys(name for _, item in records for name in item))
    for key, column in columns.items():
        if isinstance(column, int) and column > len(names):
            raise DataError(f"{path} must have a column {column} for data.{key}, but has {format_value(names, 200)}.")
    actual = {
        column: names[column - 1] if isinstance(column, int) else find_language(column, names, form)
        for column in columns.values()
    }
    blank = dict.fromkeys(names, "") if form in TRANSLATIONS else {}
    for number, item in records:
        if path.is_dir() and form in TRANSLATIONS and not item.keys() >= set(actual.values()):
            continue  # a file of the folder with other languages
        row = {**blank, **item}
        for key, column in columns.items():
            if actual[column] not in row:
                raise _missing_column(
                    f"{'Line' if form == 'jsonl' else 'Row'} {number:,} of {path}", key, str(column), list(row)
                )
        yield number, {str(column): row[name] for column, name in actual.items()}


def find_language(column: str, names: Sequence[str], form: Format) -> str:
    """Return the column of a language: `en` also finds `EN` and `en-US` if only one of them is present."""
    if column in names or form not in TRANSLATIONS:
        return column
    wanted = column.casefold().replace("_", "-")
    same = [name for name in names if (name.casefold().replace("_", "-") + "-").startswith(f"{wanted}-")]
    return same[0] if len(same) == 1 else column


def _flat(item: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return a JSON object to which the values of nested objects are added under dotted names."""
    flat: dict[str, object] = {}
    for name, value in item.items():
        flat[prefix + name] = value
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
    return flat


def _json_object(path: Path, number: int, line: str) -> dict[str, object]:
    try:
        item = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        hint = " (a JSON list is not JSON Lines: write each object on a separate line)" if line[:1] == "[" else ""
        if line.startswith("{") and not line.rstrip().endswith("}"):
            hint = " (the line is incomplete: the end of the file may be missing)"
        problem = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        got = format_value(line)
        raise DataError(f"Line {number:,} of {path} must be a JSON object: {problem}{hint}; got {got}.") from None
    if not isinstance(item, dict):
        raise DataError(f"Line {number:,} of {path} must be a JSON object, such as {{…}}; got {format_value(line)}.")
    return item


def json_text(path: Path, number: int, key: str, value: object) -> str:
    """Return a text or a number of a JSON object as text; null is blank."""
    if value is None:
        return ""
    if not isinstance(value, str | int | float):
        raise DataError(
            f"{key!r} at line {number:,} of {path} must be a string or a number; got {format_value(value)}."
        )
    text = value if isinstance(value, str) else json.dumps(value)
    if not is_unicode(text):
        raise DataError(f"{key!r} at line {number:,} of {path} contains an unpaired surrogate (\\ud800 to \\udfff).")
    return text


def _cell_text(path: Path, number: int, key: str, item: Mapping[str, object], may_be_list: bool) -> str:
    """Return a cell as text; a list is returned as JSON."""
    value = item[key]
    if may_be_list and isinstance(value, list):
        return json.dumps([json_text(path, number, key, part) for part in value], ensure_ascii=False)
    return json_text(path, number, key, value)


def find_encoding(path: Path) -> str:
    """Return the encoding of a file, or the encoding of the texts in a folder that are not UTF-8.

    The encoding is UTF-8 if all texts are, or if it is unknown.
    """
    path = expand_home(path)
    if path.is_dir() and not is_dataset_folder(path):
        files = sorted(text_files(path)) or translation_files(path)
        encodings = {encoding: file for file in files if (encoding := find_encoding(file)) != "utf-8"}
        if len(encodings) > 1:
            listed = " and ".join(f"{file} is {encoding}" for encoding, file in sorted(encodings.items()))
            raise DataError(
                f"The texts in {path} that are not UTF-8 must have the same encoding, but probably {listed}. Convert "
                "the files to UTF-8, for example: iconv -f ENCODING -t UTF-8 OLD > NEW."
            )
        return next(iter(encodings), "utf-8")
    if path.is_dir() or format_of(path) in ("parquet", "tmx", "xliff"):
        return "utf-8"
    return guess_encoding(read_bytes(path)) or "utf-8"
