"""Labelled texts from your own TSV, CSV or JSON Lines files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import Corpus, FileConfig
from seqloom.data.examples import TextClassificationExample
from seqloom.data.files import expand_home
from seqloom.data.splits import Read, complete_examples, load_files
from seqloom.data.tables import Column, Format, column_problems, read_table

SUMMARY = "your own labelled texts: a TSV, CSV or JSON Lines file with named columns"
FORM = "text-classification"


@config
class Config(FileConfig):
    corpus: Literal["table"] = "table"
    train: str  # a .tsv, .csv or .jsonl file, optionally with .gz
    text: Column = "text"  # the column of the texts: its name, or its number counted from 1
    label: Column = "label"  # the column of the labels
    header: bool | None = None  # whether the first line names the columns; null: if columns are given by name
    format: Format | None = None  # null: chosen by the file extension

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from column_problems(self.columns, self.header, self.format, self.files())

    @property
    def columns(self) -> dict[str, Column]:
        return {"text": self.text, "label": self.label}


def load(config: Config) -> Corpus[TextClassificationExample]:
    """Load the examples; those with the same text stay in one split, and dev and test are stratified by label."""
    return load_files(
        config,
        lambda split, file: read_examples(config, file, is_train=split == "train"),
        description=f"{config.train}: {config.text} → {config.label}",
        groups=lambda examples, _: [example.text for example in examples],
        label=lambda example: example.label,
        repeats=("texts", lambda example: example.text),
    )


def read_examples(config: Config, file: str, is_train: bool = False) -> Read[TextClassificationExample]:
    """Read the examples that have a text and a label, and notes on the others."""
    rows = read_table(expand_home(Path(file)), config.columns, form=config.format, header=config.header)
    examples, notes = complete_examples(
        file,
        ((line, TextClassificationExample(cells["text"].strip(), cells["label"].strip())) for line, cells in rows),
        {"no text": lambda example: not example.text, "no label": lambda example: not example.label},
        required="texts with labels",
        blank="every row has a blank text or label",
    )
    labels: dict[str, set[str]] = {}
    for example in examples:
        labels.setdefault(example.text, set()).add(example.label)
    ambiguous = sum(len(text_labels) > 1 for text_labels in labels.values())
    if is_train and ambiguous:
        notes.append(f"{ambiguous:,} of the {len(labels):,} different texts of train have more than one label")
    return examples, notes
