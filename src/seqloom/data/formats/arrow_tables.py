"""Tables in Arrow's formats: Parquet files, and folders written by the `datasets` library.

Columns of nested values, such as {"translation": {"en": …, "de": …}}, are named with a dot:
`translation.en`. Class numbers are replaced by the names that the file declares for them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seqloom.core.errors import DataError, ResourceError, UsageError
from seqloom.core.limits import MEMORY_PER_TEXT, available_memory, format_bytes

SEQUENCES = ("Sequence", "List", "LargeList")  # features of the `datasets` library whose values are lists
Rows = list[tuple[int, dict[str, object]]]  # the number of a row, counted from 1, and its cells by name


def read_arrow(path: Path) -> Rows:
    """Read a Parquet file, or a folder of Parquet or Arrow files as the `datasets` library saves them."""
    try:
        import pyarrow
    except ImportError:
        raise UsageError(f"{path} is a Parquet or Arrow table. To read it: pip install 'seqloom[formats]'.") from None
    rows: Rows = []
    for file in _files(path):
        try:
            table = _open(file)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowIOError, OSError) as error:
            problem = str(error).partition("\n")[0]
            raise DataError(f"{file} is damaged or not a Parquet or Arrow file ({problem}). Copy it again.") from None
        classes = _class_names(table.schema)
        table = _flatten(table)
        for record in table.to_pylist():
            cells = {name: _class_name(classes.get(name), value) for name, value in record.items()}
            rows.append((len(rows) + 1, cells))
    if not rows:
        raise DataError(f"{path} must contain rows, but has none.")
    return rows


def is_dataset_folder(path: Path) -> bool:
    """Return whether a folder contains Parquet or Arrow files."""
    return path.is_dir() and any(file.suffix in (".parquet", ".arrow") for file in path.iterdir())


def dataset_splits(path: Path) -> dict[str, Path]:
    """Return a mapping from split names to the folders that `DatasetDict.save_to_disk` wrote into a folder."""
    return {folder.name: folder for folder in sorted(path.iterdir()) if is_dataset_folder(folder)}


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.parquet")) or sorted(path.glob("*.arrow"))
    if not files:
        splits = " or ".join(str(path / name) for name in dataset_splits(path))
        hint = f" Name one of its splits: {splits}." if splits else ""
        raise DataError(f"The folder {path} must contain .parquet or .arrow files, but has none.{hint}")
    return files


def _open(file: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    free = available_memory()
    size = file.stat().st_size
    if file.suffix == ".parquet":
        metadata = pyarrow.parquet.read_metadata(file)
        size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if free is not None and MEMORY_PER_TEXT * size > free:
        raise ResourceError(
            f"{file} must fit into memory: it needs {MEMORY_PER_TEXT} times its size, {format_bytes(size)}, and only "
            f"{format_bytes(free)} is free. Use a part of it, or set SEQLOOM_MEMORY."
        )
    if file.suffix == ".parquet":
        return pyarrow.parquet.ParquetFile(file).read()
    with pyarrow.memory_map(str(file)) as source:
        return pyarrow.ipc.open_stream(source).read_all()


def _flatten(table: Any) -> Any:
    """Divide columns of structures into columns of plain values."""
    import pyarrow

    while any(pyarrow.types.is_struct(column.type) for column in table.schema):
        table = table.flatten()
    return table


def _class_names(schema: Any) -> dict[str, list[str]]:
    """Return the class names of each column, from the metadata of the `datasets` library."""
    content = (schema.metadata or {}).get(b"huggingface")
    try:
        features = json.loads(content)["info"]["features"] if content else {}
    except (ValueError, KeyError, TypeError):
        return {}
    return {name: feature["names"] for name, feature in _features(features) if feature.get("_type") == "ClassLabel"}


def _features(features: Any, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, feature in features.items() if isinstance(features, dict) else []:
        while isinstance(feature, list) or (isinstance(feature, dict) and feature.get("_type") in SEQUENCES):
            feature = feature[0] if isinstance(feature, list) else feature.get("feature")  # the feature of the items
        if isinstance(feature, dict):
            yield prefix + name, feature
            if "_type" not in feature:
                yield from _features(feature, f"{prefix}{name}.")


def _class_name(names: list[str] | None, value: object) -> object:
    if names is not None and isinstance(value, list):
        return [_class_name(names, item) for item in value]
    if names is None or not isinstance(value, int) or not 0 <= value < len(names):
        return value
    return names[value]
