"""One's own choices: a text and its options, of which one is right, as JSON Lines, TSV or CSV (SWAG's form too)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data import own_files
from seqloom.data.choices import Choice, answer_place
from seqloom.data.corpus import Corpus, version_of
from seqloom.data.holdout import held_out
from seqloom.data.readers import placed
from seqloom.data.tables import Column, Format, column_problems, format_of, json_objects, json_text, read_table

SUMMARY = "one's own texts with options, of which one is right: JSON Lines, TSV or CSV"
FORM = "choices"
Cells = tuple[int, str, list[str], str]  # the number of its line, the text, the options, which is right


@config
class Config:
    corpus: Literal["choices"] = "choices"
    train: str  # a .jsonl, .tsv or .csv file, which may be .gz
    dev: str | None = None  # the same; without it, dev_fraction is held out from train
    test: str | None = None  # likewise
    dev_fraction: float = 0.1  # of the examples; 0 for no such split
    test_fraction: float = 0.1
    text: Column = "text"  # the column of the texts: its name, or its number, from 1
    options: str | tuple[Column, ...] = (
        "options"  # JSON Lines: the key of a list; else the columns, one for each option
    )
    answer: Column = "answer"  # the column that says which is right: its number, or the option itself
    counted_from: Literal[0, 1] = 0  # what the first option is called
    format: Format | None = None  # if left out, as the names of the files end

    def problems(self) -> Iterator[str]:
        yield from own_files.fraction_problems(self)
        files = own_files.given(self).values()
        listed = isinstance(self.options, str)
        if listed and {self.format or format_of(Path(file)) for file in files} - {"jsonl", None}:
            yield f"in a table every option has a column: name them, options=[ending0, ending1], not {self.options!r}"
        if not listed and len(self.options) < 2:
            yield f"options must be two columns or more, got {list(self.options)}"
        yield from column_problems(self.columns, None, self.format, files)

    @property
    def columns(self) -> dict[str, Column]:
        """What is read, by the names of the recipe."""
        listed = {"options": self.options} if isinstance(self.options, str) else {}
        named = {} if listed else {f"option {place}": column for place, column in enumerate(self.options, start=1)}
        return {"text": self.text, **listed, **named, "answer": self.answer}

    def located(self, recipe_folder: Path) -> "Config":
        """The same with whole paths. What is not in the current folder may lie beside the recipe that names it."""
        whole = own_files.whole_paths(self, recipe_folder)
        return replace(self, train=whole["train"], dev=whole.get("dev"), test=whole.get("test"))


def load(config: Config) -> Corpus[Choice]:
    """The splits as given; what is missing of dev and test is held out from train."""
    files = own_files.given(config)
    own_files.check_files(files)
    splits: dict[str, list[Choice]] = {}
    notes: list[str] = []
    for name, file in files.items():
        splits[name], more = read_choices(config, file)
        notes += more
    texts = {name: ["\n".join(choice.texts()) for choice in choices] for name, choices in splits.items()}
    notes += own_files.repeats(texts, "examples")
    splits = _complete(config, splits)
    return Corpus(
        name="choices",
        version=version_of(splits),
        licence="the user's own",
        description=f"{config.train}: {config.text}, one of its options",
        splits=splits,
        absent=own_files.absent(splits),
        notes=tuple(notes),
    )


def read_choices(config: Config, file: str) -> tuple[list[Choice], list[str]]:
    """The examples of a file that have a text and two options or more, and notes on the others."""
    path = placed(Path(file))
    rows = list(_json_rows(config, path) if isinstance(config.options, str) else _table_rows(config, path))
    found, lacking = [], []
    for line, text, options, answer in rows:
        if not text or len(options) < 2:
            lacking.append(line)
            continue
        place = answer_place(answer, options, config.counted_from, f"{config.answer!r} at line {line:,} of {file}")
        found.append(Choice(text, tuple(options), place))
    if not found:
        raise DataError(f"{file} must hold texts with two options or more; it has none.")
    return found, own_files.left_out(lacking, "no text, or fewer than two options,", file)


def _json_rows(config: Config, path: Path) -> Iterator[Cells]:
    for number, row in json_objects(path):
        for key in (config.text, config.options, config.answer):
            if key not in row:
                raise DataError(f"Line {number:,} of {path} must have the key {key!r}; it has {shown(list(row), 200)}.")
        options = row[config.options]
        if not isinstance(options, list):
            raise DataError(f"{config.options!r} at line {number:,} of {path} must be a list, got {shown(options)}.")
        text, answer = (json_text(path, number, str(key), row[key]).strip() for key in (config.text, config.answer))
        yield number, text, [_option(path, number, config, option) for option in options], answer


def _option(path: Path, number: int, config: Config, option: Any) -> str:
    text = json_text(path, number, str(config.options), option).strip()
    if not text:
        raise DataError(f"{config.options!r} at line {number:,} of {path} holds an option without text.")
    return text


def _table_rows(config: Config, path: Path) -> Iterator[Cells]:
    """An option may be blank where a row has fewer than others, but only after all of its own."""
    keys = [key for key in config.columns if key.startswith("option")]
    for number, cells in read_table(path, config.columns, form=config.format):
        options = [cells[key].strip() for key in keys]
        while options and not options[-1]:
            options.pop()
        if not all(options):
            raise DataError(f"Line {number:,} of {path} has a blank option before another: {shown(options)}.")
        yield number, cells["text"].strip(), options, cells["answer"].strip()


def _complete(config: Config, splits: Mapping[str, Sequence[Choice]]) -> dict[str, list[Choice]]:
    """Hold out what is missing; all examples with the same text stay together."""
    texts = [choice.text for choice in splits["train"]]
    shares = own_files.missing_shares(config, splits)
    sizes = {name: max(1, round(share * len(texts))) for name, share in shares.items()}
    return own_files.share_out(config, splits, held_out(texts, sizes), len(set(texts)))
