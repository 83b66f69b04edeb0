"""Tables as input and output: predictions for columns of a table, added to its rows as new columns."""

import csv
import io
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._output import check_new_output, print_notes
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean, format_count, shorten

if TYPE_CHECKING:
    from seqloom.predict.base import Prediction
    from seqloom.runs.run import Run

TableIn = Annotated[
    Path | None,
    typer.Option(
        "--in", help="A table: .csv, .tsv, .jsonl or .parquet. Each row gets a prediction; all columns are kept."
    ),
]
TableColumns = Annotated[
    list[str] | None,
    typer.Option("--column", help="With --in: the name or number of the text column; repeat the option for pairs."),
]
TableOut = Annotated[
    Path | None, typer.Option("--out", help="With --in: the table to write. [default: CSV on standard output]")
]
INPUT_KEYS = ("text", "source", "first", "second")  # keys of predictions that are already columns of the table
DETAIL_KEYS = ("unknown", "cut", "candidates", "words", "pieces", "why", "source_words", "alignment")
OUTPUTS = ("csv", "tsv", "jsonl", "parquet")


class TableFile:
    """A table whose rows get predictions."""

    def __init__(self, path: Path, columns: Sequence[str] | None, out: Path | None, run: "Run", count: int = 1):
        """Read a table; `count` is the number of columns that the model reads."""
        from seqloom.data.detect import profile_table
        from seqloom.data.files import expand_home, guess_encoding, read_bytes, use_encoding
        from seqloom.data.tables import format_of, read_records, table_rows

        path = expand_home(path)
        form = format_of(path)
        if form not in OUTPUTS:
            raise UsageError(f"--in must be a .csv, .tsv, .jsonl or .parquet file; got {path}.")
        self.out, self.form = out, form if out is None else format_of(out)
        if self.form not in OUTPUTS or (out is not None and out.suffix in (".gz", ".zst")):
            raise UsageError(f"--out must end in .csv, .tsv, .jsonl or .parquet; got {out}.")
        check_new_output(out, "table")
        is_binary = form == "parquet" or path.is_dir()
        with use_encoding("utf-8" if is_binary else guess_encoding(read_bytes(path)) or "utf-8"):
            if form in ("csv", "tsv"):
                rows = table_rows(path, form)
                named = {str(number): name for number, name in enumerate(columns or ())}
                header = rows.pop(0) if profile_table(path, form, named).has_header else None
                names = header or [str(number + 1) for number in range(len(rows[0]))]
                self.rows: list[dict[str, Any]] = [dict(zip(names, row, strict=False)) for row in rows]
            else:
                self.rows = [dict(cells) for _, cells in read_records(path, form)]
                names = list(dict.fromkeys(name for row in self.rows for name in row))
        self.names, self.path = names, path
        self.columns = self._choose(list(columns or ()), run, count)

    def _choose(self, given: list[str], run: "Run", count: int) -> list[str]:
        """Return the columns that the model reads: those given, those of the training data, or the only columns."""
        data: Any = run.recipe.get("data") or {}
        usual = [data.get("text")] if count == 1 else [data.get("first"), data.get("second")]
        chosen = given or [str(name) for name in usual if name is not None]
        if not given and not set(chosen) & set(self.names):
            known = [name for name in self.names if name in ("text", "source")][:1]
            chosen = list(self.names) if len(self.names) == count else known
        for index, name in enumerate(chosen):
            if name not in self.names and name.isdigit() and 1 <= int(name) <= len(self.names):
                chosen[index] = self.names[int(name) - 1]
            elif name not in self.names:
                raise UsageError(f"{self.path} has no column {name!r} for --column: {did_you_mean(name, self.names)}.")
        if len(chosen) != count:
            listed = ", ".join(map(shorten, self.names))
            raise UsageError(f"Name {format_count(count, 'column')} of {self.path} with --column; it has {listed}.")
        return chosen

    @property
    def texts(self) -> list[str]:
        """The texts of the first column, each on one line."""
        return [" ".join(str(row.get(self.columns[0]) or "").split()) for row in self.rows]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of texts of two columns."""
        both = ([" ".join(str(row.get(name) or "").split()) for name in self.columns] for row in self.rows)
        return [(first, second) for first, second in both]

    def write(self, predictions: "Iterable[Prediction]") -> None:
        """Write all rows with the predictions as new columns."""
        for row, prediction in zip(self.rows, predictions, strict=True):
            for name, value in columns_of(prediction).items():
                row[f"predicted_{name}" if name in self.names else name] = value
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        content = self._encode(names)
        if self.out is None:
            sys.stdout.write(content.decode())
            return
        from seqloom.core.files import write_atomic

        write_atomic(self.out, content)
        added = ", ".join(name for name in names if name not in self.names)
        print_notes([f"{self.out} has {format_count(len(self.rows), 'row')}; new columns: {added}"])

    def _encode(self, names: list[str]) -> bytes:
        if self.form == "jsonl":
            lines = (json.dumps(row, ensure_ascii=False, default=str) for row in self.rows)
            return "".join(f"{line}\n" for line in lines).encode()
        cells = [{name: to_cell(row.get(name)) for name in names} for row in self.rows]
        if self.form == "parquet":
            import pyarrow
            import pyarrow.parquet

            sink = pyarrow.BufferOutputStream()
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(cells), sink)
            return bytes(sink.getvalue())
        text = io.StringIO()
        if self.form == "tsv":
            text.writelines(
                "\t".join(" ".join(str("" if cell is None else cell).split()) for cell in row) + "\n"
                for row in (names, *(list(row.values()) for row in cells))
            )
        else:
            writer = csv.DictWriter(text, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(cells)
        return text.getvalue().encode()


def check_table_options(table: Path | None, columns: list[str] | None, out: Path | None, texts: object) -> None:
    """Raise if options for tables are used without a table, or with texts."""
    if table is None and (columns or out is not None):
        raise UsageError("--column and --out require a table: add --in FILE.")
    if table is not None and texts:
        raise UsageError("Texts and --in exclude each other; give one of them.")


def columns_of(prediction: "Prediction") -> dict[str, Any]:
    """Return the new columns of a row: the prediction, its probability or score, and further candidates."""
    content = prediction.to_json()
    columns = {name: value for name, value in content.items() if name not in (*INPUT_KEYS, *DETAIL_KEYS)}
    if "words" in content and "translation" not in content:
        columns["tagged"] = prediction.to_line()
    candidates: Any = content.get("candidates") or []
    for rank, candidate in enumerate(candidates[1:], start=2):
        for name in columns.keys() & candidate.keys():
            columns[f"{name}_{rank}"] = candidate[name]
    return columns


def to_cell(value: Any) -> Any:
    """Convert a value for a cell: lists and objects become JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
