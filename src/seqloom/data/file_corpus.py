"""Corpora of the user's own files: locate, read, hold out and report. A form of file only turns rows into examples."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TypeVar

from seqloom.core.errors import DataError
from seqloom.data.corpus import SPLITS, Corpus, Example, version_of
from seqloom.data.corpus_config import FilesConfig, HoldoutConfig
from seqloom.data.files import expand_home
from seqloom.data.holdout import divide, hold_out, hold_out_evenly

ExampleT = TypeVar("ExampleT", bound=Example)
Read = tuple[list[ExampleT], list[str]]  # the examples of a file, and notes on what was left out of it


def load_files(
    config: FilesConfig,
    read: Callable[..., Read[ExampleT]],
    *,
    description: str,
    groups: Callable[[Sequence[ExampleT], int], Sequence[str]],
    label: Callable[[ExampleT], str] | None = None,
    repeats: tuple[str, Callable[[ExampleT], str]] | None = None,
    languages: tuple[str, str] = ("", ""),
    version: Callable[[Mapping[str, Sequence[ExampleT]]], str] = version_of,
) -> Corpus[ExampleT]:
    """Return the splits as given; what is missing of dev and test is held out from train.

    `read` is called with a split and its files. `groups` returns the name of the group of each training example, given
    how many splits are held out: a group stays in one split. With `label`, each label is held out evenly. `repeats` is
    what should not occur in two of the given splits: its plural, and a function of an example.
    """
    check_files(config)
    splits: dict[str, list[ExampleT]] = {}
    notes: list[str] = []
    for split, files in config.files().items():
        splits[split], left_out = read(split, *files)
        notes += left_out
    if repeats is not None:
        notes += note_repeats({split: map(repeats[1], examples) for split, examples in splits.items()}, repeats[0])
    shares = missing_shares(config, splits)
    train = splits["train"]
    names = groups(train, len(shares))
    if label is None:
        sizes = {split: max(1, round(share * len(train))) for split, share in shares.items()}
        chosen = hold_out(names, sizes)
    else:
        chosen = hold_out_evenly(names, [label(example) for example in train], shares)
    splits |= divide(train, chosen, ("train", *shares))
    if not all(splits.values()):
        file = " and ".join(config.files()["train"])
        raise DataError(
            f"{file} is too short: {' and '.join(shares)} {'are' if len(shares) > 1 else 'is'} held out from it, "
            f"one example each at least, but it has only {len(set(names))} different.\n"
            f"Give more, or files of their own: {', '.join(f'data.{split}' for split in shares)}."
        )
    ordered = {split: splits[split] for split in SPLITS if split in splits}
    return Corpus(
        name=config.corpus,
        version=version(ordered),
        licence="the user's own",
        description=description,
        splits=ordered,
        absent=absent_splits(ordered),
        notes=tuple(notes),
        languages=languages,
    )


def check_files(config: FilesConfig) -> None:
    """Raise DataError unless every file exists and none serves two splits."""
    users: dict[Path, str] = {}
    for split, files in config.files().items():
        for file in files:
            path = expand_home(Path(file))
            if not path.exists():
                raise DataError(
                    f"{file} does not exist. Check the name, data.{split}=…, and from which folder the command is run."
                )
            if (user := users.setdefault(path.resolve(), split)) != split:
                raise DataError(f"data.{user} and data.{split} must not overlap, but both read {file}.")


def missing_shares(config: HoldoutConfig, splits: Mapping[str, object]) -> dict[str, float]:
    """Return the splits to hold out from train, and the share of each."""
    shares = {"dev": config.dev_fraction, "test": config.test_fraction}
    return {split: share for split, share in shares.items() if split not in splits and share > 0}


def absent_splits(splits: Mapping[str, object]) -> dict[str, str]:
    """Return the reason why a split is missing, for each that is."""
    missing = (split for split in SPLITS if split not in splits)
    return {split: f"data.{split}_fraction is 0 and data.{split} names no file." for split in missing}


def note_left_out(lines: Sequence[int], lacking: str, file: str) -> list[str]:
    """Return a note on examples that could not be used: how many, what they lack, and the line of the first."""
    if not lines:
        return []
    if len(lines) == 1:
        return [f"1 example has {lacking} and was left out, at line {lines[0]:,} of {file}"]
    return [f"{len(lines):,} examples have {lacking} and were left out, the first at line {lines[0]:,} of {file}"]


def note_repeats(texts: Mapping[str, Iterable[str]], unit: str) -> list[str]:
    """Return notes on what occurs in two of the given splits: metrics on it say little."""
    notes, found = [], {split: set(own) for split, own in texts.items()}
    for one, other in combinations(found, 2):
        if shared := len(found[one] & found[other]):
            notes.append(f"{shared:,} of the {len(found[other]):,} different {unit} of {other} stand in {one} too")
    return notes
