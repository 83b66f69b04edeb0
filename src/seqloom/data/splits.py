"""Held-out splits, and corpora from the user's files.

If a corpus has no dev or test split, groups of examples are held out in the order of a hash of their names. A group
contains examples that must be in the same split. The choice is therefore reproducible, independent of a seed and of the
order of lines, and spread over a sorted file.
"""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import combinations
from pathlib import Path
from typing import TypeVar

from seqloom.core.errors import DataError
from seqloom.core.words import format_count
from seqloom.data.corpus import SPLITS, Corpus, Example, FilesConfig, HoldoutConfig, version_of
from seqloom.data.files import expand_home
from seqloom.data.tables import ROW_FORMATS, format_of

_first: ContextVar[Mapping[str, Mapping[str, int]] | None] = ContextVar("first_examples", default=None)
T = TypeVar("T")
ExampleT = TypeVar("ExampleT", bound=Example)
Read = tuple[list[ExampleT], list[str]]  # the examples of a file, and notes on examples that were left out


def normal_form(text: str) -> str:
    """Remove case, digits, punctuation and symbols: "7:05 PM, Monday" becomes "pm monday".

    Texts with the same normal form are near duplicates. Near duplicates must not occur in both train and a
    held-out split.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join("".join(c if unicodedata.category(c)[0] in "LM" else " " for c in folded).split())


def split_of_group(group: bytes, fractions: Mapping[str, float]) -> str:
    """Assign a group to a split by a hash of its name or content; the remaining fraction of the groups is "train".

    Use this function if the groups of a corpus are not known in advance.
    """
    position = int.from_bytes(hashlib.sha256(group).digest()[:8], "big") / 2**64
    end = 0.0
    for split, fraction in fractions.items():
        end += fraction
        if position < end:
            return split
    return "train"


def divide(examples: Iterable[T], chosen: Iterable[str], splits: Iterable[str]) -> dict[str, list[T]]:
    """Return the examples of each split, given the split chosen for each example."""
    divided: dict[str, list[T]] = {split: [] for split in splits}
    for example, split in zip(examples, chosen, strict=True):
        divided[split].append(example)
    return divided


def hold_out(groups: Sequence[str], sizes: Mapping[str, int]) -> list[str]:
    """Return the split of each example, given its group. Each split is filled with complete groups up to its size.

    The remaining groups are "train".
    """
    counts = Counter(groups)
    remaining = sorted(counts, key=lambda name: hashlib.sha256(name.encode()).digest(), reverse=True)
    split_of: dict[str, str] = {}
    for split, size in sizes.items():
        while size > 0 and remaining:
            name = remaining.pop()
            split_of[name] = split
            size -= counts[name]
    return [split_of.get(name, "train") for name in groups]


def link_groups(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return a group for each pair, such that pairs sharing a side, directly or indirectly, have the same group.

    The name of a group is the alphabetically first of the first sides of its pairs.
    """
    parent: dict[tuple[int, str], tuple[int, str]] = {}

    def root(node: tuple[int, str]) -> tuple[int, str]:
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]  # path halving
            node = parent[node]
        return node

    for first, second in pairs:
        parent[root((0, first))] = root((1, second))
    names: dict[tuple[int, str], str] = {}
    for first, _ in pairs:
        names[root((0, first))] = min(first, names.get(root((0, first)), first))
    return [names[root((0, first))] for first, _ in pairs]


def hold_out_evenly(groups: Sequence[str], labels: Sequence[str], fractions: Mapping[str, float]) -> list[str]:
    """Return the split of each example, given its group, stratified by label.

    Labels are divided independently, so that examples of a rare label remain in "train". A group belongs to
    the label of its first example. A split that would be empty gets a group of the label with the most
    remaining examples.
    """
    label_of: dict[str, str] = {}
    for group, label in zip(groups, labels, strict=True):
        label_of.setdefault(group, label)
    members: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(label_of[group], []).append(index)
    sizes = {
        label: {split: round(fraction * len(indices)) for split, fraction in fractions.items()}
        for label, indices in members.items()
    }
    for split in fractions:
        if members and not any(sizes[label][split] for label in sizes):
            largest = max(sorted(members), key=lambda label: len(members[label]) - sum(sizes[label].values()))
            sizes[largest][split] = 1
    chosen = ["train"] * len(groups)
    for label, indices in members.items():
        for index, split in zip(indices, hold_out([groups[index] for index in indices], sizes[label]), strict=True):
            chosen[index] = split
    return chosen


def glue_corpus(
    name: str, title: str, read: Callable[[str], list[ExampleT]], group: Callable[[ExampleT], str], note: str
) -> Corpus[ExampleT]:
    """Return the corpus of a GLUE task. GLUE does not publish the test labels, so the dev part of the task serves as
    test.

    `read` returns a part of the data. A tenth of train is held out as dev, in complete groups and stratified by label.
    Training examples whose group occurs in test are left out. A note contains the number of these examples, followed by
    the text `note`.
    """
    train, test = read("train"), read("dev")
    test_groups = {group(example) for example in test}
    kept = [example for example in train if group(example) not in test_groups]
    labels = [example.labels()[0] for example in kept]
    chosen = hold_out_evenly([group(example) for example in kept], labels, {"dev": 0.1})
    left_out = len(train) - len(kept)
    return Corpus(
        name=name,
        licence="none stated by its source",
        description=f"{title}; test is the dev part of GLUE, dev is a tenth of its train part",
        splits={**divide(kept, chosen, ("train", "dev")), "test": test},
        notes=(f"{left_out:,} of {len(train):,} training {note} and were left out",) if left_out else (),
    )


# --- files that have grown --------------------------------------------------------------------------------------------


@contextmanager
def first_examples(counts: Mapping[str, Mapping[str, int]]) -> Iterator[None]:
    """Within this block, read only the first examples of the user's files, up to the counts of a run's splits."""
    token = _first.set(counts)
    try:
        yield
    finally:
        _first.reset(token)


def first_count(split: str, own: Iterable[str], unit: Callable[[Mapping[str, int]], int]) -> int | None:
    """Return the number of examples to read for a split, or None for all.

    `own` lists the splits with separate files; the file of train also contains all other splits. `unit` returns the
    number of examples, given the counts of a split.
    """
    counts = _first.get()
    if counts is None:
        return None
    others = set(own) - {"train"}
    chosen = [split] if split in others else [name for name in counts if name not in others]
    return sum(unit(counts[name]) for name in chosen if name in counts)


# --- corpora of files -------------------------------------------------------------------------------------------------


def load_files(
    config: FilesConfig,
    read: Callable[..., Read[ExampleT]],
    *,
    description: str,
    groups: Callable[[Sequence[ExampleT], int], Sequence[str]],
    strata: Callable[[Sequence[ExampleT]], Sequence[str]] | None = None,
    repeats: tuple[str, Callable[[ExampleT], str]] | None = None,
    languages: tuple[str, str] = ("", ""),
    version: Callable[[Mapping[str, Sequence[ExampleT]]], str] = version_of,
) -> Corpus[ExampleT]:
    """Load a corpus from files; a dev or test split without a file is held out from train.

    `read` is called with a split and its files. `groups` returns the group of each training example, given the number
    of splits to hold out; a group is never divided. `strata` returns a name for each training example, such as its
    label; the examples with each name are divided in the same proportions. `repeats` is a plural noun for parts of
    examples that should not occur in two of the given splits, and a function that returns this part of an example.
    """
    check_files(config)
    splits: dict[str, list[ExampleT]] = {}
    notes: list[str] = []
    for split, files in config.files().items():
        examples, left_out = read(split, *files)
        splits[split] = examples[: first_count(split, config.files(), lambda counts: next(iter(counts.values())))]
        notes += left_out
    if repeats is not None:
        unit, key = repeats
        keys = {split: set(map(key, examples)) for split, examples in splits.items()}
        for a, b in combinations(keys, 2):
            if shared := len(keys[a] & keys[b]):
                notes.append(f"{shared:,} of the {len(keys[b]):,} different {unit} of {b} also occur in {a}")
    fractions = missing_fractions(config, splits)
    train = splits["train"]
    names = groups(train, len(fractions))
    if strata is None:
        sizes = {split: max(1, round(fraction * len(train))) for split, fraction in fractions.items()}
        chosen = hold_out(names, sizes)
    else:
        chosen = hold_out_evenly(names, strata(train), fractions)
    splits |= divide(train, chosen, ("train", *fractions))
    if not all(splits.values()):
        file = " and ".join(config.files()["train"])
        raise DataError(
            f"{file} is too short: {' and '.join(fractions)} {'need' if len(fractions) > 1 else 'needs'} at least one "
            f"example from it, but it has only {format_count(len(set(names)), 'different example')}.\n"
            f"Provide more examples, or separate files: {', '.join(f'data.{split}' for split in fractions)}."
        )
    ordered = {split: splits[split] for split in SPLITS if split in splits}
    return Corpus(
        name=config.corpus,
        description=description,
        splits=ordered,
        licence="the user's own",
        version=version(ordered),
        absent=absent_splits(ordered),
        notes=tuple(notes),
        languages=languages,
    )


def check_files(config: FilesConfig) -> None:
    """Raise DataError unless every file exists and belongs to only one split."""
    users: dict[Path, str] = {}
    for split, files in config.files().items():
        for file in files:
            path = expand_home(Path(file))
            if not path.exists():
                raise DataError(f"{file} does not exist. Check data.{split} and the current folder.")
            if (user := users.setdefault(path.resolve(), split)) != split:
                raise DataError(f"data.{user} and data.{split} must not overlap, but both read {file}.")


def missing_fractions(config: HoldoutConfig, splits: Mapping[str, object]) -> dict[str, float]:
    """Return the fraction to hold out from train for each missing split."""
    fractions = {"dev": config.dev_fraction, "test": config.test_fraction}
    return {split: fraction for split, fraction in fractions.items() if split not in splits and fraction > 0}


def absent_splits(splits: Mapping[str, object]) -> dict[str, str]:
    """Return the reason for each missing split."""
    missing = (split for split in SPLITS if split not in splits)
    return {split: f"data.{split}_fraction is 0 and data.{split} names no file." for split in missing}


def complete_examples(
    file: str, rows: Iterable[tuple[int, T]], lacks: Mapping[str, Callable[[T], object]], required: str, blank: str
) -> tuple[list[T], list[str]]:
    """Return the complete examples of a file, and notes with the number and the first line of incomplete examples.

    `lacks` maps the name of a part to a predicate that is true for examples without this part. In the error
    message, `required` is the content that the file must have, and `blank` is the problem if all examples
    are incomplete.
    """
    examples: list[T] = []
    left_out: dict[str, list[int]] = {lacking: [] for lacking in lacks}
    for line, example in rows:
        lacking = next((lacking for lacking, is_lacking in lacks.items() if is_lacking(example)), None)
        if lacking is None:
            examples.append(example)
        else:
            left_out[lacking].append(line)
    if not examples:
        problem = blank if any(left_out.values()) else "it has no rows below the header"
        raise DataError(f"{file} must contain {required}, but {problem}.")
    notes = []
    path = expand_home(Path(file))
    unit = "row" if format_of(path) in ROW_FORMATS else "line"
    file = f"a file in {file}" if path.is_dir() else file
    for lacking, lines in left_out.items():
        if len(lines) == 1:
            notes.append(f"1 example has {lacking} and was left out, at {unit} {lines[0]:,} of {file}")
        elif lines:
            subject = f"{len(lines):,} examples have {lacking} and were left out"
            notes.append(f"{subject}, the first at {unit} {lines[0]:,} of {file}")
    return examples, notes
