"""One's own texts and labels: a table with named columns, as TSV, CSV or JSON Lines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.data import own_files
from seqloom.data.corpus import Corpus, version_of
from seqloom.data.holdout import held_out_evenly
from seqloom.data.labelled import Labelled
from seqloom.data.readers import placed
from seqloom.data.tables import Column, Format, column_problems, read_table

SUMMARY = "one's own texts with a label each: a TSV, CSV or JSON Lines file with named columns"
FORM = "labelled"


@config
class Config:
    corpus: Literal["table"] = "table"
    train: str  # a .tsv, .csv or .jsonl file, which may be .gz
    dev: str | None = None  # the same; without it, dev_fraction is held out from train
    test: str | None = None  # likewise
    dev_fraction: float = 0.1  # of the examples, and of those of each label; 0 for no such split
    test_fraction: float = 0.1
    text: Column = "text"  # the column of the texts: its name, or its number, from 1
    label: Column = "label"  # the column of the labels
    header: bool | None = None  # whether the first line names the columns; if left out, when they are given by name
    format: Format | None = None  # if left out, as the names of the files end

    def problems(self) -> Iterator[str]:
        yield from own_files.fraction_problems(self)
        columns = {"text": self.text, "label": self.label}
        yield from column_problems(columns, self.header, self.format, own_files.given(self).values())

    def located(self, recipe_folder: Path) -> "Config":
        """The same with whole paths. What is not in the current folder may lie beside the recipe that names it."""
        whole = own_files.whole_paths(self, recipe_folder)
        return replace(self, train=whole["train"], dev=whole.get("dev"), test=whole.get("test"))


def load(config: Config) -> Corpus[Labelled]:
    """The splits as given; what is missing of dev and test is held out from train, evenly from every label."""
    files = own_files.given(config)
    own_files.check_files(files)
    splits: dict[str, list[Labelled]] = {}
    notes: list[str] = []
    for name, file in files.items():
        splits[name], more = read_examples(config, file)
        notes += more
    notes += _ambiguous(splits["train"])
    notes += own_files.repeats({name: [e.text for e in examples] for name, examples in splits.items()}, "texts")
    splits = _complete(config, splits)
    return Corpus(
        name="table",
        version=version_of(splits),
        licence="the user's own",
        description=f"{config.train}: {config.text} → {config.label}",
        splits=splits,
        absent=own_files.absent(splits),
        notes=tuple(notes),
    )


def read_examples(config: Config, file: str) -> tuple[list[Labelled], list[str]]:
    """The examples of a file that have a text and a label, and notes on the others."""
    columns = {"text": config.text, "label": config.label}
    rows = read_table(placed(Path(file)), columns, form=config.format, header=config.header)
    found = [(line, cells["text"].strip(), cells["label"].strip()) for line, cells in rows]
    examples = [Labelled(text, label) for _, text, label in found if text and label]
    if not examples:
        lacking = "every row has a blank text or label" if found else "there is nothing below the names of its columns"
        raise DataError(f"{file} must hold texts with labels, but {lacking}.")
    notes = own_files.left_out([line for line, text, _ in found if not text], "no text", file)
    notes += own_files.left_out([line for line, text, label in found if text and not label], "no label", file)
    return examples, notes


def _complete(config: Config, splits: Mapping[str, Sequence[Labelled]]) -> dict[str, list[Labelled]]:
    """Hold out what is missing; all examples with the same text stay together."""
    texts, labels = ([getattr(example, part) for example in splits["train"]] for part in ("text", "label"))
    chosen = held_out_evenly(texts, labels, own_files.missing_shares(config, splits))
    return own_files.share_out(config, splits, chosen, len(set(texts)))


def _ambiguous(examples: Sequence[Labelled]) -> list[str]:
    """A word on texts that are said to be two things: no model can be right about all of them."""
    labels: dict[str, set[str]] = {}
    for example in examples:
        labels.setdefault(example.text, set()).add(example.label)
    several = sum(len(found) > 1 for found in labels.values())
    return [f"{several:,} of the {len(labels):,} different texts of train have more than one label"] if several else []
