"""Labelled texts from your own TSV, CSV or JSON Lines files."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.core.words import format_value, shorten
from seqloom.data.corpus import Corpus, FileConfig
from seqloom.data.examples import MultiLabelExample, TextClassificationExample, rarest_labels
from seqloom.data.files import expand_home
from seqloom.data.splits import Read, complete_examples, load_files
from seqloom.data.tables import Column, Format, column_problems, read_table

SUMMARY = "your own labelled texts: a TSV, CSV or JSON Lines file with named columns"
FORM = "text-classification"
FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False, "": False}
QUOTED = r"'[^']*'|\"[^\"]*\""
LISTED = re.compile(rf"\[\s*(?:(?:{QUOTED})\s*(?:,\s*(?:{QUOTED})\s*)*)?\]")  # a list of texts, as Python prints it


@config
class Config(FileConfig):
    corpus: Literal["table"] = "table"
    train: str  # a .tsv, .csv, .jsonl or .parquet file, optionally compressed (.gz or .zst)
    text: Column = "text"  # column of the text: its name, or its number, counted from 1
    # column of the label, or with multi_label also several columns of 0 and 1
    label: Column | tuple[str, ...] = "label"
    multi_label: bool = False  # a text has any number of labels: a list, a cell with label_separator, or 0/1 columns
    label_separator: str | None = None  # with multi_label: separator of the labels in a cell, such as ";" or "|"
    # whether the first line contains the column names; null: true if columns are given by name
    header: bool | None = None
    format: Format | None = None  # format of the files; null: derived from the file extension

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from column_problems(self.columns, self.header, self.format, self.files())
        if not self.multi_label and isinstance(self.label, tuple):
            yield f"several columns of labels, {list(self.label)}, need multi_label: true"
        if self.label_separator is not None and not self.multi_label:
            yield "label_separator needs multi_label: true"
        elif self.label_separator is not None and isinstance(self.label, tuple):
            yield "label_separator needs a single column of labels; remove it"
        if self.label_separator == "":
            yield "label_separator must have at least one character"

    @property
    def columns(self) -> dict[str, Column]:
        """The columns to read, by their names in the recipe."""
        if not isinstance(self.label, tuple):
            return {"text": self.text, "label": self.label}
        return {"text": self.text, **{f"label[{number}]": name for number, name in enumerate(self.label)}}


def load(config: Config) -> Corpus[TextClassificationExample]:
    """Load the examples; equal texts are in the same split, and dev and test are stratified by label."""
    labels = ", ".join(config.label) if isinstance(config.label, tuple) else config.label
    return load_files(
        config,
        lambda split, file: read_examples(config, file, is_train=split == "train"),
        description=f"{config.train}: {config.text} → {labels}",
        groups=lambda examples, _: [example.text for example in examples],
        strata=rarest_labels,
        repeats=("texts", lambda example: example.text),
    )


def read_examples(config: Config, file: str, is_train: bool = False) -> Read[TextClassificationExample]:
    """Return the examples that have a text and a label, and notes on the other examples.

    With `multi_label`, a text without labels is also an example.
    """
    rows = read_table(
        expand_home(Path(file)),
        config.columns,
        form=config.format,
        header=config.header,
        lists={"label"} if config.multi_label else (),
    )
    lacks = {"no text": lambda example: not example.text, "no label": lambda example: not example.label}
    examples, notes = complete_examples(
        file,
        ((line, make_example(config, f"line {line:,} of {file}", cells)) for line, cells in rows),
        {"no text": lacks["no text"]} if config.multi_label else lacks,
        required="texts with labels",
        blank="every row has a blank text or label",
    )
    labels: dict[str, set[str]] = {}
    for example in examples:
        labels.setdefault(example.text, set()).add(example.label)
    ambiguous = sum(len(text_labels) > 1 for text_labels in labels.values())
    if is_train and (variants := same_labels(example.label for example in examples)):
        notes.append(f"labels that differ only in case are different labels: {variants}")
    if is_train and ambiguous:
        several = "different labels in several rows" if config.multi_label else "more than one label"
        notes.append(f"{ambiguous:,} of the {len(labels):,} different texts of train have {several}")
    return examples, notes


def same_labels(labels: Iterable[str]) -> str:
    """List the labels that differ only in case or white space, such as "Billing, billing; Fonts, fonts"."""
    by_form: dict[str, set[str]] = {}
    for label in labels:
        by_form.setdefault(" ".join(label.casefold().split()), set()).add(label)
    return shorten("; ".join(", ".join(sorted(names)) for names in by_form.values() if len(names) > 1))


def make_example(config: Config, where: str, cells: Mapping[str, str]) -> TextClassificationExample:
    """Return the example of a row."""
    text = cells["text"].strip()
    if not config.multi_label:
        return TextClassificationExample(text, cells["label"].strip())
    if not isinstance(config.label, tuple):
        return MultiLabelExample.of(text, split_labels(cells["label"], config.label_separator))
    labels = []
    for number, name in enumerate(config.label):
        cell = cells[f"label[{number}]"].strip().lower()
        if cell not in FLAGS:
            raise DataError(
                f"The column {name!r} must have 0 or 1 in every row, since data.label names several columns; got "
                f"{format_value(cell)} at {where}."
            )
        if FLAGS[cell]:
            labels.append(name)
    return MultiLabelExample.of(text, labels)


def split_labels(cell: str, separator: str | None = None) -> list[str]:
    """Return the labels in a cell: a list in the syntax of JSON or Python, or labels with a separator."""
    cell, listed = cell.strip(), None
    if cell.startswith("["):
        try:
            listed = json.loads(cell)
        except (ValueError, RecursionError):
            listed = [quoted[1:-1] for quoted in re.findall(QUOTED, cell)] if LISTED.fullmatch(cell) else None
    parts = cell.split(separator) if separator else [cell]
    if isinstance(listed, list) and all(isinstance(item, str | int | float) for item in listed):
        parts = [item if isinstance(item, str) else json.dumps(item) for item in listed]
    return [label for part in parts if (label := part.strip())]
