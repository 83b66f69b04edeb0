"""One's own sentence pairs: two files, line by line, or a table with a tab between the columns."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.data.corpus import Corpus, version_of
from seqloom.data.holdout import held_out
from seqloom.data.own_files import place_of
from seqloom.data.parallel import Pair
from seqloom.data.readers import located, placed, read_columns, read_parallel

SUMMARY = "one's own sentence pairs: two UTF-8 files line by line, or a tab-separated table"
FORM = "pairs"
Files = str | tuple[str, str]
_NO_LANGUAGE = {"txt", "tsv", "tab", "gz", "csv", "raw", "tok", "bpe", "src", "tgt", "trg"}


@config
class Config:
    corpus: Literal["pairs"] = "pairs"
    train: Files  # two files, [source, target], or one with a tab between source and target; any may be .gz
    dev: Files | None = None  # the same; without it, dev_fraction is held out from train
    test: Files | None = None  # likewise
    dev_fraction: float = 0.05  # of the pairs; 0 for no such split
    test_fraction: float = 0.05
    columns: tuple[int, int] | tuple[str, str] = (1, 2)  # of a table: numbers from 1, or names in its first line
    source: str = ""  # language tags, such as en and pt-BR; empty: those the names of the files end in, if they do
    target: str = ""

    def problems(self) -> Iterator[str]:
        if min(self.dev_fraction, self.test_fraction) < 0 or self.dev_fraction + self.test_fraction >= 1:
            yield "dev_fraction and test_fraction must be at least 0 and together less than 1"
        if any(isinstance(column, int) and column < 1 for column in self.columns):
            yield f"columns are counted from 1, got {list(self.columns)}"
        if self.columns[0] == self.columns[1]:
            yield f"columns must be two different ones, got {self.columns[0]} twice"
        for name, files in self.given().items():
            if not isinstance(files, str) and files[0] == files[1]:
                yield f"{name} must be two different files, got {files[0]} twice"

    def given(self) -> dict[str, Files]:
        """The splits that have files."""
        named = {"train": self.train, "dev": self.dev, "test": self.test}
        return {name: files for name, files in named.items() if files is not None}

    def located(self, recipe_folder: Path) -> "Config":
        """The same with whole paths. What is not in the current folder may lie beside the recipe that names it."""
        whole: dict[str, Files] = {
            name: located(files, recipe_folder)
            if isinstance(files, str)
            else (located(files[0], recipe_folder), located(files[1], recipe_folder))
            for name, files in self.given().items()
        }
        return replace(self, train=whole["train"], dev=whole.get("dev"), test=whole.get("test"))


def load(config: Config) -> Corpus[Pair]:
    """The splits as given; what is missing of dev and test is held out from train, whole source sentences at a time."""
    given = config.given()
    _check_files(given)
    source, target = languages(config)
    splits: dict[str, list[Pair]] = {}
    notes: list[str] = []
    for name, files in given.items():
        splits[name], blank = _filled(files, *_read(files, config.columns))
        notes += blank
    notes += _repeats(splits)
    splits = _complete(config, splits)
    return Corpus(
        name="pairs",
        version=version_of(splits),
        licence="the user's own",
        description=f"{_shown(config.train)}, {source or 'source'} to {target or 'target'}",
        languages=(source, target),
        splits={name: splits[name] for name in ("train", "dev", "test") if name in splits},
        absent={
            name: f"data.{name}_fraction is 0 and data.{name} names no file."
            for name in ("dev", "test")
            if name not in splits
        },
        notes=tuple(notes),
    )


def languages(config: Config) -> tuple[str, str]:
    """The tags as given, or as the files' names end (a.en, a.de.gz) or the table's columns are called."""
    guesses = {name: _guess(files, config.columns) for name, files in config.given().items()}
    train = guesses["train"]
    for name, guess in guesses.items():
        if all(guess) and guess == train[::-1]:
            raise DataError(
                f"data.train goes from {train[0]} to {train[1]} and data.{name} from {guess[0]} to {guess[1]}, by "
                f"their names. Name the files in the same order: {_shown(config.given()[name])}."
            )
    return config.source or train[0], config.target or train[1]


def _guess(files: Files, columns: Sequence[int] | Sequence[str]) -> tuple[str, str]:
    ends = [str(column) for column in columns] if isinstance(files, str) else [_ending(file) for file in files]
    one, other = (end if is_language(end) else "" for end in ends)
    return (one, other) if one and other and one != other else ("", "")


def is_language(text: str) -> bool:
    """Whether this looks like a language tag: en, pt-BR, zh_Hant."""
    return re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z0-9]{2,8})*", text) is not None


def _ending(file: str) -> str:
    """corpus.en, corpus.en.gz and corpus.en.txt end in en."""
    suffixes = [suffix.lstrip(".") for suffix in Path(file).suffixes]
    while suffixes and suffixes[-1] in _NO_LANGUAGE:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _read(files: Files, columns: Sequence[int] | Sequence[str]) -> tuple[int, list[tuple[str, str]]]:
    """The number of the first line that holds a pair, and the pairs, blank ones too."""
    if isinstance(files, str):
        first, table = read_columns(placed(Path(files)), columns)
        return first, [(source, target) for source, target in table]
    return 1, list(zip(*read_parallel(placed(Path(files[0])), placed(Path(files[1]))), strict=True))


def _filled(files: Files, first: int, lines: Sequence[tuple[str, str]]) -> tuple[list[Pair], list[str]]:
    """The pairs with something on both sides, and a word on those without."""
    pairs = [Pair(source.strip(), target.strip()) for source, target in lines]
    blank = [number for number, pair in enumerate(pairs, start=first) if not (pair.source and pair.target)]
    if len(blank) == len(pairs):
        nothing = "every line has a blank side" if pairs else "there is nothing below the names of its columns"
        raise DataError(f"{_shown(files)} must hold sentence pairs, but {nothing}.")
    if not blank:
        return pairs, []
    count = "1 pair has" if len(blank) == 1 else f"{len(blank):,} pairs have"
    left_out = "was left out, at" if len(blank) == 1 else "were left out, the first at"
    kept = [pair for pair in pairs if pair.source and pair.target]
    return kept, [f"{count} a blank side and {left_out} line {blank[0]:,} of {_shown(files)}"]


def _complete(config: Config, splits: dict[str, list[Pair]]) -> dict[str, list[Pair]]:
    """Hold out what is missing from the training pairs; all pairs of one source sentence stay together."""
    fractions = {"dev": config.dev_fraction, "test": config.test_fraction}
    missing = [name for name in fractions if name not in splits and fractions[name] > 0]
    pairs = splits["train"]
    sizes = {name: max(1, round(fractions[name] * len(pairs))) for name in missing}
    chosen = held_out([pair.source for pair in pairs], sizes)
    made = {**splits, **{name: [] for name in ("train", *missing)}}
    for pair, name in zip(pairs, chosen, strict=True):
        made[name].append(pair)
    if not all(made[name] for name in ("train", *missing)):
        parts = " and ".join(", ".join(("train", *missing)).rsplit(", ", 1))
        raise DataError(
            f"Too few pairs in {_shown(config.train)}: {parts} must each have a source sentence of their own, and "
            f"there {_different(pairs)}.\n"
            f"Give more pairs, or files of their own: {', '.join(f'data.{name}' for name in missing)}."
        )
    return made


def _different(pairs: Sequence[Pair]) -> str:
    count = len({pair.source for pair in pairs})
    return f"are only {count} different ones" if count > 1 else "is only 1"


def _repeats(splits: Mapping[str, Sequence[Pair]]) -> list[str]:
    """A word on sentences that stand in two of the given splits: figures on them say little."""
    notes = []
    sources = {name: {pair.source for pair in pairs} for name, pairs in splits.items()}
    for one, other in combinations(splits, 2):
        if shared := len(sources[one] & sources[other]):
            notes.append(
                f"{shared:,} of the {len(sources[other]):,} different source sentences of {other} stand in {one} too"
            )
    return notes


def _check_files(given: Mapping[str, Files]) -> None:
    """Every file must be there, and none may serve two splits."""
    used: dict[Path, str] = {}
    for name, files in given.items():
        for file in [files] if isinstance(files, str) else files:
            path = place_of(name, file)
            if used.setdefault(path, name) != name:
                raise DataError(f"data.{used[path]} and data.{name} must not overlap, but both read {file}.")


def _shown(files: Files) -> str:
    return files if isinstance(files, str) else " and ".join(files)
