"""Splits: which examples are held out for dev and test, and corpora of the user's own files.

Where a corpus does not say what is held out, the examples decide. They are put in groups that must
stay together, and groups are taken in the order of a hash of their names. So the choice is the same
everywhere, is spread over a sorted file, and depends neither on a seed nor on the order of lines.
"""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TypeVar

from seqloom.core.errors import DataError
from seqloom.data.corpus import SPLITS, Corpus, Example, FilesConfig, HoldoutConfig, version_of
from seqloom.data.files import expand_home

T = TypeVar("T")
ExampleT = TypeVar("ExampleT", bound=Example)
Read = tuple[list[ExampleT], list[str]]  # the examples of a file, and notes on what was left out of it


def normal_form(text: str) -> str:
    """The words of a text, without case, digits, punctuation and symbols: "7:05 PM, Monday" becomes "pm monday".

    Texts with the same normal form are near duplicates, which must not be divided between train and
    a held-out split.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join("".join(c if unicodedata.category(c)[0] in "LM" else " " for c in folded).split())


def split_of_group(group: bytes, shares: Mapping[str, float]) -> str:
    """The split of a group, from a hash of its name or content: each split gets about its share of the groups.

    For corpora whose groups are not known in advance. What is left is "train".
    """
    place = int.from_bytes(hashlib.sha256(group).digest()[:8], "big") / 2**64
    end = 0.0
    for split, share in shares.items():
        end += share
        if place < end:
            return split
    return "train"


def divide(examples: Iterable[T], chosen: Iterable[str], splits: Iterable[str]) -> dict[str, list[T]]:
    """Return the examples of each split, given the split chosen for each example."""
    divided: dict[str, list[T]] = {split: [] for split in splits}
    for example, split in zip(examples, chosen, strict=True):
        divided[split].append(example)
    return divided


def hold_out(groups: Sequence[str], sizes: Mapping[str, int]) -> list[str]:
    """The split of each example, given the name of its group: for every split whole groups until it has its size.

    What is left is "train".
    """
    counts = Counter(groups)
    waiting = sorted(counts, key=lambda name: hashlib.sha256(name.encode()).digest(), reverse=True)
    split_of: dict[str, str] = {}
    for split, size in sizes.items():
        while size > 0 and waiting:
            name = waiting.pop()
            split_of[name] = split
            size -= counts[name]
    return [split_of.get(name, "train") for name in groups]


def link_groups(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Group names such that pairs that share either side, directly or through others, are in one group.

    A group is called after the first of its first sides in the order of the alphabet.
    """
    parent: dict[tuple[int, str], tuple[int, str]] = {}

    def root(node: tuple[int, str]) -> tuple[int, str]:
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]  # so that the next way up is shorter
            node = parent[node]
        return node

    for one, other in pairs:
        parent[root((0, one))] = root((1, other))
    names: dict[tuple[int, str], str] = {}
    for one, _ in pairs:
        names[root((0, one))] = min(one, names.get(root((0, one)), one))
    return [names[root((0, one))] for one, _ in pairs]


def hold_out_evenly(groups: Sequence[str], labels: Sequence[str], shares: Mapping[str, float]) -> list[str]:
    """The same by shares, with about the same mixture of labels in every split.

    Each label is shared out by itself, so one that is too rare to be held out stays in "train". A
    group goes with the label it has first. A split that would be empty gets a group of the label
    that has most left.
    """
    label_of: dict[str, str] = {}
    for group, label in zip(groups, labels, strict=True):
        label_of.setdefault(group, label)
    members: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(label_of[group], []).append(place)
    sizes = {label: {name: round(share * len(own)) for name, share in shares.items()} for label, own in members.items()}
    for name in shares:
        if members and not any(sizes[label][name] for label in sizes):
            most = max(sorted(members), key=lambda label: len(members[label]) - sum(sizes[label].values()))
            sizes[most][name] = 1
    chosen = ["train"] * len(groups)
    for label, own in members.items():
        for place, split in zip(own, hold_out([groups[place] for place in own], sizes[label]), strict=True):
            chosen[place] = split
    return chosen


def glue_corpus(
    name: str, title: str, read: Callable[[str], list[ExampleT]], group: Callable[[ExampleT], str], note: str
) -> Corpus[ExampleT]:
    """Return the corpus of a GLUE set, whose own test labels are not published: its dev part is test.

    `read` returns a part of the set. A tenth is held out evenly from train as dev, whole groups at
    a time. Training examples with a group of test are left out; `note` says of them that they are,
    after their number.
    """
    train, test = read("train"), read("dev")
    tested = {group(example) for example in test}
    rest = [example for example in train if group(example) not in tested]
    labels = [example.labels()[0] for example in rest]
    chosen = hold_out_evenly([group(example) for example in rest], labels, {"dev": 0.1})
    left_out = len(train) - len(rest)
    return Corpus(
        name=name,
        licence="none stated by its source",
        description=f"{title}; test is GLUE's dev part, dev a tenth of its train part",
        splits={**divide(rest, chosen, ("train", "dev")), "test": test},
        notes=(f"{left_out:,} of {len(train):,} training {note} and were left out",) if left_out else (),
    )


# --- corpora of files -------------------------------------------------------------------------------------------------


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

    `read` is called with a split and its files. `groups` returns the name of the group of each
    training example, given how many splits are held out: a group stays in one split. With `label`,
    each label is held out evenly. `repeats` is what should not occur in two of the given splits:
    its plural, and a function of an example.
    """
    check_files(config)
    splits: dict[str, list[ExampleT]] = {}
    notes: list[str] = []
    for split, files in config.files().items():
        splits[split], left_out = read(split, *files)
        notes += left_out
    if repeats is not None:  # metrics on what occurs in two splits say little
        unit, key = repeats
        keys = {split: set(map(key, examples)) for split, examples in splits.items()}
        for one, other in combinations(keys, 2):
            if shared := len(keys[one] & keys[other]):
                notes.append(f"{shared:,} of the {len(keys[other]):,} different {unit} of {other} stand in {one} too")
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
        description=description,
        splits=ordered,
        licence="the user's own",
        version=version(ordered),
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


def complete_examples(
    file: str, rows: Iterable[tuple[int, T]], lacks: Mapping[str, Callable[[T], object]], required: str, blank: str
) -> tuple[list[T], list[str]]:
    """Return the examples of a file that lack nothing, and notes on the others: how many, and the line of the first.

    `lacks` are conditions by what an example lacks. `required` is what the file must hold, `blank`
    what it has if all examples lack something; both are for the error.
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
        found = blank if any(left_out.values()) else "there is nothing below the names of its columns"
        raise DataError(f"{file} must hold {required}, but {found}.")
    notes = []
    for lacking, lines in left_out.items():
        if len(lines) == 1:
            notes.append(f"1 example has {lacking} and was left out, at line {lines[0]:,} of {file}")
        elif lines:
            many = f"{len(lines):,} examples have {lacking} and were left out"
            notes.append(f"{many}, the first at line {lines[0]:,} of {file}")
    return examples, notes
