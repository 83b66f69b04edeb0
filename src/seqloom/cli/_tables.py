"""Tables as input and output: predictions for the rows of a table are added as new columns."""

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._input import write_utf8
from seqloom.cli._output import check_new_output, json_line, note_problems, print_notes, to_plain
from seqloom.core import Json
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import did_you_mean, format_count, shorten

if TYPE_CHECKING:
    from seqloom.predict.base import AnyPredictor, P, Predictor

TableIn = Annotated[
    Path | None,
    typer.Option(
        "--in", help="A table: .csv, .tsv, .jsonl or .parquet. Each row gets a prediction; all columns are kept."
    ),
]
TableColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--column", help="With --in: the name or number of a column that the model reads. The option may be repeated."
    ),
]
TableOut = Annotated[
    Path | None,
    typer.Option(
        "--out", help="With --in: the table to write. [default: standard output, as CSV if the input is Parquet]"
    ),
]
OUTPUTS = ("csv", "tsv", "jsonl", "parquet")
LISTS = ("options", "values")  # inputs that can consist of several columns
USUAL_NAMES = {  # usual column names, for tables whose column names differ from the training data
    "text": ("text", "source", "prompt", "sentence"),
    "source": ("source", "text"),
    "first": ("first", "sentence1"),
    "second": ("second", "sentence2"),
    "question": ("question",),
    "image": ("image", "file", "path", "filename"),
    "clip": ("clip", "file", "path", "filename"),
    "context": ("context",),
}


class TableFile:
    """A table to which predictions are added as columns."""

    def __init__(
        self,
        path: Path,
        columns: Sequence[str] | None,
        out: Path | None,
        model: "AnyPredictor",
        inputs: Sequence[str] | None = None,
    ):
        """Read a table; `inputs` names the inputs of a row, by default the inputs of the model."""
        from seqloom.data.files import expand_home, use_encoding
        from seqloom.data.tables import find_encoding, format_of

        self.path = path = expand_home(path)
        form = format_of(path)
        if form not in OUTPUTS:
            raise UsageError(f"--in must be a .csv, .tsv, .jsonl or .parquet file; got {path}.")
        printed = form if form != "parquet" else "csv"
        self.out, self.form = out, printed if out is None else format_of(out)
        if self.form not in OUTPUTS or (out is not None and out.suffix in (".gz", ".zst")):
            raise UsageError(f"--out must end in .csv, .tsv, .jsonl or .parquet; got {out}.")
        check_new_output(out, "table")
        self.delimiter = ","
        with use_encoding(find_encoding(path)):
            self.rows = self._read(form, columns or ())
        self.delimiter = "," if form == "tsv" else self.delimiter  # tabs are not expected in a .csv file
        self.names = list(dict.fromkeys(name for row in self.rows for name in row))
        self.inputs = model.inputs if inputs is None else inputs
        self.columns = self._choose(list(columns or ()), model)

    def _read(self, form: Any, columns: Sequence[str]) -> list[dict[str, Json]]:
        """Read all rows. Missing cells are blank, and a repeated column name gets a number."""
        from seqloom.data.table_profile import profile_table
        from seqloom.data.tables import delimiter_of, read_records, table_rows

        if form not in ("csv", "tsv"):
            return [dict(cells) for _, cells in read_records(self.path, form)]
        self.delimiter = delimiter_of(self.path, form)
        rows = table_rows(self.path, form)
        table = profile_table(self.path, form, columns)
        names: list[str] = []
        for name in table.names:
            copies = (f"{name}_{number}" for number in range(2, len(table.names) + 1))
            names.append(name if name not in names else next(copy for copy in copies if copy not in names))
        for number, row in enumerate(rows, start=1 - table.has_header):
            if len(row) > len(names):
                hint = "Quote cells that contain the separator." if form == "csv" else "Remove tabs within cells."
                raise DataError(
                    f"Row {number:,} of {self.path} must have {format_count(len(names), 'column')}, like the first "
                    f"row, but has {len(row)}: {shorten(self.delimiter.join(row))}. {hint}"
                )
        return [dict.fromkeys(names, "") | dict(zip(names, row, strict=False)) for row in rows[table.has_header :]]

    def _choose(self, given: list[str], model: "AnyPredictor") -> list[str]:
        """Return the columns to read: the given columns, the columns in training, or all columns if the number fits."""
        data: Any = model.run.recipe.get("data") or {}
        has_list, count = self.inputs[-1] in LISTS, len(self.inputs)
        chosen = given or self._usual_columns(data)
        if not chosen and "values" in self.inputs:
            chosen = [name for name in self.names if name != data.get("label")]
        elif not chosen and len(self.names) == count and not has_list:
            chosen = list(self.names)
        chosen = [self._find(name, "--column") for name in chosen]
        if len(chosen) < count or (len(chosen) > count and not has_list):
            listed = ", ".join(map(shorten, self.names))
            if count > 1:
                wanted = " and ".join(self.inputs)
                raise UsageError(f"Name the columns of {wanted} with --column; {self.path} has {listed}.")
            raise UsageError(f"Name 1 column of {self.path} with --column. The columns are {listed}.")
        return chosen

    def _usual_columns(self, data: Mapping[str, Json]) -> list[str]:
        """Return the columns of the training data, or columns with usual names.

        The list is empty if the table lacks a column.
        """
        chosen: list[str] = []
        for name in self.inputs:
            trained = data.get("instruction") if name == "text" and "text" not in data else data.get(name)
            if name == "source":
                trained = (data.get("columns") or [None])[0]
            names = [str(each) for each in (trained if isinstance(trained, list | tuple) else [trained])]
            if not all(each in self.names for each in names):
                names = [each for each in USUAL_NAMES.get(name, ()) if each in self.names][:1]
            if not names:
                return []
            chosen += names
        return chosen

    def _find(self, name: str, option: str) -> str:
        """Return the column with this name or number."""
        if name not in self.names and name.isdigit() and 1 <= int(name) <= len(self.names):
            return self.names[int(name) - 1]
        if name not in self.names:
            raise UsageError(f"{self.path} has no column {name!r} for {option}: {did_you_mean(name, self.names)}.")
        return name

    def lists(self, column: str, option: str) -> list[list[str]]:
        """Return the cells of a column as lists: their parts between semicolons, or the lists of JSON Lines."""
        cells = [row.get(self._find(column, option)) for row in self.rows]
        lists = [cell if isinstance(cell, list) else str(cell or "").split(";") for cell in cells]
        return [[text for part in parts if (text := str(part).strip())] for parts in lists]

    @property
    def texts(self) -> list[str]:
        """The texts of the first input."""
        return [cells[0] for cells in self.cells]

    @property
    def cells(self) -> list[list[str]]:
        """The cells that the model reads.

        A list in the last input gives several cells; blank cells at its end are dropped.
        """
        rows = []
        for row in self.rows:
            values = [row.get(name) for name in self.columns]
            if self.inputs[-1] in LISTS and isinstance(values[-1], list):
                values = [*values[:-1], *values[-1]]
            cells = [to_text(value) for value in values]
            while self.inputs[-1] == "options" and len(cells) > len(self.inputs) and not cells[-1]:
                cells.pop()
            rows.append(cells)
        return rows

    @property
    def lines(self) -> list[str]:
        """The rows as lines with cells separated by tabs, the input format of `Predictor.predict`."""
        rows = ([cell.replace("\t", " ") for cell in cells] for cells in self.cells)
        return ["\t".join(cells) if any(cells) else "" for cells in rows]

    # --- output -------------------------------------------------------------------------------------------------------

    def write(self, model: "Predictor[P]", predictions: "Iterable[P]") -> None:
        """Write all rows with the predictions as new columns, and print notes on problematic rows."""
        noted = note_problems(model, predictions, "row")
        self.write_columns(prediction.to_columns() for prediction in noted)

    def write_columns(self, columns: Iterable[Mapping[str, Json]]) -> None:
        """Write all rows with new columns."""
        self.write_rows(enumerate(columns))

    def write_rows(self, chosen: Iterable[tuple[int, Mapping[str, Json]]]) -> None:
        """Write rows, given by their indices, with new columns.

        If the table already has a column with the name of a new column, the name of the new column gets the prefix
        `predicted_`.
        """
        rows = [
            {**self.rows[index], **{f"predicted_{name}" if name in self.names else name: cells[name] for name in cells}}
            for index, cells in chosen
        ]
        content = self._encode([self._flatten(row) for row in rows])
        if self.out is None:
            write_utf8()
            sys.stdout.write(content.decode())
            return
        from seqloom.core.files import write_atomic

        write_atomic(self.out, content)
        added = ", ".join(dict.fromkeys(name for row in rows for name in row if name not in self.names))
        print_notes([f"{self.out} has {format_count(len(rows), 'row')}; new columns: {added}"])

    def _flatten(self, row: Mapping[str, Json]) -> dict[str, Json]:
        """Return a row as plain values, with nested objects for JSON Lines, or dotted columns for other formats."""
        objects = {name: value for name, value in row.items() if isinstance(value, dict) and value}
        if self.form == "jsonl":
            repeated = {f"{name}.{key}" for name, value in objects.items() for key in value}
        else:
            repeated = {name for name, value in objects.items() if all(f"{name}.{key}" in row for key in value)}
        return {name: to_plain(value) for name, value in row.items() if name not in repeated}

    def _encode(self, rows: Sequence[Mapping[str, Json]]) -> bytes:
        if self.form == "jsonl":
            return "".join(f"{json_line(row)}\n" for row in rows).encode()
        present = dict.fromkeys(name for row in rows for name in row)
        names = list(dict.fromkeys([*filter(present.__contains__, self.names), *present]))
        if self.form == "parquet":
            return to_parquet({name: [row.get(name) for row in rows] for name in names})
        table = [names, *([to_cell(row.get(name)) for name in names] for row in rows)]
        text = io.StringIO()
        if self.form == "tsv":
            breaks = str.maketrans("\t\r\n", "   ")
            text.writelines("\t".join(cell.translate(breaks) for cell in cells) + "\n" for cells in table)
        else:
            csv.writer(text, delimiter=self.delimiter, lineterminator="\n").writerows(table)
        return text.getvalue().encode()


def check_table_options(
    table: Path | None, columns: list[str] | None, out: Path | None, texts: object, **others: object
) -> None:
    """Raise an error if options for tables are used without a table, or with texts or options that exclude a table."""
    if table is None and (columns or out is not None):
        raise UsageError("--column and --out require a table: add --in FILE.")
    if table is not None and texts:
        raise UsageError("Texts and --in cannot be used together; give one of them.")
    for name in (name for name, value in others.items() if table is not None and value):
        hint = "; for JSON Lines, use --out NAME.jsonl" if name == "as_json" else ""
        option = "json" if name == "as_json" else name.replace("_", "-")
        raise UsageError(f"--{option} cannot be combined with --in; leave out one of them{hint}.")


def to_text(value: Json) -> str:
    """Convert a cell to the text that a model reads; line breaks are kept."""
    return value.strip() if isinstance(value, str) else to_cell(value)


def to_cell(value: Json) -> str:
    """Convert a value to a cell of a CSV or TSV file; lists and objects become JSON."""
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict | bool) else str(value)


def to_parquet(columns: Mapping[str, Sequence[Json]]) -> bytes:
    """Encode columns as a Parquet file; a column of mixed types becomes text."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError("To write Parquet: pip install 'seqloom[formats]'.") from None
    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = pyarrow.array(values)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
            arrays[name] = pyarrow.array([None if value is None else to_cell(value) for value in values])
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(arrays), sink)
    return bytes(sink.getvalue())
