"""Series with a label each, from files in which every row is one."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data import own_files
from seqloom.data.corpus import Corpus, digest_examples
from seqloom.data.holdout import held_out_evenly
from seqloom.data.labelled_series import LabelledSeries
from seqloom.data.readers import placed
from seqloom.data.series_files import is_number, number_of
from seqloom.data.tables import column_names, read_table

if TYPE_CHECKING:
    from seqloom.data.corpora.series_rows import Config


def read_rows(config: "Config") -> Corpus[LabelledSeries]:
    """The splits as given; what is missing of dev and test is held out from train, evenly from every label."""
    files = own_files.given(config)
    own_files.check_files(files)
    splits = {name: _read(config, file) for name, file in files.items()}
    names = [digest_examples([one]) for one in splits["train"]]
    labels = [one.label for one in splits["train"]]
    chosen = held_out_evenly(names, labels, own_files.missing_shares(config, splits))
    made = own_files.share_out(config, splits, chosen, len(set(names)))
    return Corpus(
        name="series-rows",
        version=f"sha256-{digest_examples([one for examples in made.values() for one in examples])[:12]}",
        licence="the user's own",
        description=f"{config.train}: a series in every row",
        splits=made,
        absent=own_files.absent(made),
    )


def _read(config: "Config", file: str) -> list[LabelledSeries]:
    path = placed(Path(file))
    names = column_names(path, config.format)
    header = isinstance(config.label, str) if config.header is None else config.header
    label = _label_place(config, file, names)
    columns = {str(number): number for number in range(1, len(names) + 1)}
    rows = read_table(path, columns, form=config.format, header=header)
    found = [_series(config, file, line, list(cells.values()), label) for line, cells in rows]
    if not found:
        raise DataError(f"{file} must hold a series in every row; it has none.")
    return found


def _label_place(config: "Config", file: str, names: Sequence[str]) -> int:
    """Where in a row its label stands, counted from 0."""
    label = config.label
    if isinstance(label, int) and label <= len(names):
        return label - 1
    if isinstance(label, str) and label in names:
        return names.index(label)
    raise DataError(
        f"{file} has no column {label!r} for the labels (data.label); it has {len(names)}: {shown(list(names), 100)}."
    )


def _series(config: "Config", file: str, line: int, cells: Sequence[str], label: int) -> LabelledSeries:
    """Blank columns at the end of a row are no steps: series may be of different lengths."""
    others = [cell for place, cell in enumerate(cells) if place != label]
    wrong = [cell for cell in others if not is_number(cell)]
    if wrong:
        hint = " If it names the columns: data.header=true." if line == 1 else ""
        raise DataError(
            f"Line {line:,} of {file} must hold finite numbers beside its label; got {shown(wrong[0])}.{hint}"
        )
    if not cells[label].strip():
        raise DataError(f"Line {line:,} of {file} has no label, which is to stand in column {label + 1} (data.label).")
    numbers = np.array([number_of(cell) for cell in others])
    if len(numbers) % config.variables:
        raise DataError(
            f"Line {line:,} of {file} has {len(numbers)} numbers, which are not as many for each of data.variables="
            f"{config.variables}."
        )
    values = numbers.reshape(config.variables, -1).T.copy()  # (T, C)
    known = np.flatnonzero(~np.isnan(values).all(axis=1))
    if not len(known):
        raise DataError(f"Line {line:,} of {file} has no number at all.")
    return LabelledSeries(values[: known[-1] + 1], cells[label].strip())
