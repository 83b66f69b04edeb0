"""Labelled files for evaluation: all examples of a file as the split "other"."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from seqloom.core.errors import DataError, SeqloomError, UsageError
from seqloom.data.corpora import find, is_multi_label, load
from seqloom.data.corpora.text import read_documents
from seqloom.data.corpus import SPLITS, Corpus, FilesConfig
from seqloom.data.detect import TASKS, detect
from seqloom.data.detected import Detected
from seqloom.data.files import expand_home, use_encoding
from seqloom.data.series import Series
from seqloom.data.table_profile import NamedColumns, profile_table
from seqloom.data.tables import column_names, find_encoding, format_of, read_table

INPUT_KEYS = ("text", "first", "second", "instruction", "image")  # keys of the section `data` that name a column
LABEL_KEYS = ("label", "answer", "output", "caption")


def load_examples(
    path: Path,
    form: str,
    config: object,
    data: Mapping[str, object] | None = None,
    columns: NamedColumns | None = None,
) -> Corpus[Any]:
    """Load all examples of this form from a file as the split "other".

    If the file has the columns of `config`, the `data` section of a recipe, these columns are read; otherwise `detect`
    recognizes the columns. `columns` names some or all columns. `data` replaces the section.
    """
    path = expand_home(path)
    encoding = find_encoding(path) if path.exists() else "utf-8"
    if encoding != "utf-8" and isinstance(config, FilesConfig) and config.encoding != "utf-8":
        encoding = config.encoding
    values: dict[str, Any] = {"dev_fraction": 0.0, "test_fraction": 0.0, "encoding": encoding}
    if data is not None:
        given = find(str(data["corpus"])).Config(**{**data, **values, "train": str(path)})
        return _as_other(path, load(given, check=False))
    named = _complete(columns, config, path) if columns else NamedColumns()
    problem: SeqloomError | None = None
    if isinstance(config, FilesConfig) and not named:
        try:
            return _as_other(path, load(replace(config, **_only_file(config, path), **values), check=False))
        except (DataError, ValueError) as error:
            problem = error if isinstance(error, SeqloomError) else UsageError(f"{error}.")
    with use_encoding(encoding):
        several = is_multi_label(config)
        detected = detect([path], TASKS[form], named, several if form == "text-classification" else None)
    try:
        folders = dict.fromkeys(config.folder_keys) if isinstance(config, FilesConfig) else {}
        corpus = load(_config_of(detected, config, {**_only_file(config, path), **folders, **values}), check=False)
    except (DataError, ValueError) as error:
        raise problem or (error if isinstance(error, SeqloomError) else UsageError(f"{error}.")) from None
    return _as_other(path, replace(corpus, notes=(f"{path}: {detected.reason}", *corpus.notes)))


def encoding_notes(path: Path) -> list[str]:
    """Return a note if a file is not UTF-8."""
    encoding = find_encoding(path)
    return [] if encoding == "utf-8" else [f"{path} is not UTF-8, and is read as {encoding}"]


def read_texts(path: Path, documents: str, columns: NamedColumns | None = None) -> list[str]:
    """Read the documents of a text file, of a folder, or of a column of a table."""
    path = expand_home(path)
    form = format_of(path) if path.suffix != ".txt" else None
    if columns and (columns.label is not None or len(columns.inputs) != 1):
        raise UsageError("A model of plain texts reads one column: give --column once, without --label.")
    with use_encoding(find_encoding(path) if path.exists() else "utf-8"):
        if not columns and form in ("csv", "tsv", "jsonl", "parquet"):
            names = ", ".join(column_names(path, form))
            raise UsageError(f"{path} is a table with the columns {names}. Name the text column with --column.")
        if not columns:
            return read_documents(path, documents)
        table = profile_table(path, form or "tsv", columns.names)
        column = table.get(columns.inputs[0])
        if column is None:
            raise DataError(f"{path} has no column {columns.inputs[0]!r}. Its columns are {', '.join(table.names)}.")
        rows = read_table(path, {"text": table.key(column)}, form=form or "tsv", header=table.has_header)
    texts = [row["text"].strip() for _, row in rows if row["text"].strip()]
    if not texts:
        raise DataError(f"{path} must have texts in the column {column.name!r}, but all cells are blank.")
    return texts


def halve_series(corpus: Corpus[Series]) -> Corpus[Series]:
    """Return series whose second half is the split "other"; the first half is their history."""
    whole = corpus.split("train")
    splits = {
        "train": [series.until(len(series) // 2) for series in whole],
        "other": [series.until(len(series), len(series) // 2) for series in whole],
    }
    notes = f"the first half of {corpus.name} is the history; its second half is evaluated"
    return replace(corpus, splits=splits, notes=(*corpus.notes, notes))


def _as_other(path: Path, corpus: Corpus[Any]) -> Corpus[Any]:
    """Return the examples as the split "other" of a corpus that has the name of the file."""
    notes = (*encoding_notes(path), *(note.replace(" of train ", " ") for note in corpus.notes))
    corpus, examples = replace(corpus, name=str(path), notes=notes), corpus.split("train")
    if isinstance(examples[0], Series):
        return halve_series(corpus)
    return replace(corpus, splits={"train": examples, "other": examples})


def _only_file(config: object, path: Path) -> dict[str, Any]:
    """Return the file options of a config that reads only this file."""
    first, *others = config.file_keys if isinstance(config, FilesConfig) else ("train",)
    return {first: str(path), **dict.fromkeys(others)}


def _config_of(detected: Detected, config: object, values: Mapping[str, object]) -> Any:
    """Return the config that reads a file as detected, with the other settings of `config` if they are applicable."""
    kind = find(str(detected.data["corpus"])).Config
    if isinstance(config, kind):
        with suppress(ValueError):
            return replace(config, **{**detected.data, **values})
    return kind(**{**detected.data, **{key: value for key, value in values.items() if key not in SPLITS}})


def _complete(columns: NamedColumns, config: object, path: Path) -> NamedColumns:
    """Complete the named columns: columns that the user did not name are taken from the training data."""
    names = set(profile_table(path, form, columns.names).names) if (form := format_of(path)) else set()
    inputs = tuple(str(getattr(config, key)) for key in INPUT_KEYS if hasattr(config, key))
    labels = [str(getattr(config, key)) for key in LABEL_KEYS if hasattr(config, key)]
    if not columns.inputs and inputs and names.issuperset(inputs):
        columns = replace(columns, inputs=inputs)
    if columns.label is None and labels and labels[0] in names:
        columns = replace(columns, label=labels[0])
    return columns
