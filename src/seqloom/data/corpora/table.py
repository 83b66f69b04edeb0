"""The user's own texts and labels: a table with named columns, as TSV, CSV or JSON Lines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import Corpus, FileConfig
from seqloom.data.examples import TextClassificationExample
from seqloom.data.files import expand_home
from seqloom.data.splits import Read, complete_examples, load_files
from seqloom.data.tables import Column, Format, column_problems, read_table

SUMMARY = "one's own texts with a label each: a TSV, CSV or JSON Lines file with named columns"
FORM = "text-classification"


@config
class Config(FileConfig):
    corpus: Literal["table"] = "table"
    train: str  # a .tsv, .csv or .jsonl file, which may be .gz
    text: Column = "text"  # the column of the texts: its name, or its number, from 1
    label: Column = "label"  # the column of the labels
    header: bool | None = None  # whether the first line names the columns; if left out, when they are given by name
    format: Format | None = None  # if left out, as the names of the files end

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from column_problems(self.columns, self.header, self.format, self.files())

    @property
    def columns(self) -> dict[str, Column]:
        return {"text": self.text, "label": self.label}


def load(config: Config) -> Corpus[TextClassificationExample]:
    """Examples with the same text stay in one split, and each label is held out evenly."""
    return load_files(
        config,
        lambda split, file: read_examples(config, file, is_train=split == "train"),
        description=f"{config.train}: {config.text} → {config.label}",
        groups=lambda examples, _: [example.text for example in examples],
        label=lambda example: example.label,
        repeats=("texts", lambda example: example.text),
    )


def read_examples(config: Config, file: str, is_train: bool = False) -> Read[TextClassificationExample]:
    """Return the examples of a file that have a text and a label, and notes on the others."""
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
    several = sum(len(labels_of_text) > 1 for labels_of_text in labels.values())
    if is_train and several:  # no model can be right about all of them
        notes.append(f"{several:,} of the {len(labels):,} different texts of train have more than one label")
    return examples, notes
