"""The Python language reference that ships inside CPython: English prose and code, always at hand."""

import hashlib
import platform
from collections.abc import Mapping
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.data.corpus import TextCorpus, version_of

SUMMARY = "Python's language reference, from inside Python itself: prose and code; no download"
FORM = "text"
SEED = 1  # decides which topics are held out
HELD_OUT = 0.1  # of the characters, for each of dev and test
TELLING = 50  # characters from which on a line that two topics share is no coincidence


@config
class Config:
    corpus: Literal["pydocs"] = "pydocs"


def load(config: Config) -> TextCorpus:
    """Documents are topics, whole.

    The reference repeats itself: `compound` contains `if`, `while`, `for` and more, word for word.
    A topic contained in another is dropped, and topics that share a telling line go into the same
    split, so that no held-out passage can be had by heart from training.
    """
    try:
        from pydoc_data.topics import topics as raw
    except ImportError:
        raise DataError(
            "This Python was installed without pydoc_data, where the corpus pydocs comes from. "
            "Install Python's standard library whole, or use another corpus."
        ) from None
    whole = {name: "\n".join(line.rstrip() for line in text.strip().split("\n")) for name, text in raw.items()}
    topics = drop_contained(whole)
    return TextCorpus(
        name="pydocs",
        version=f"Python {platform.python_version()} {version_of({'topics': [*topics, *topics.values()]})}",
        licence="PSF-2.0",
        description=f"{len(topics)} topics of the Python language reference (pydoc_data.topics)",
        splits={name: [topics[topic] for topic in sorted(chosen)] for name, chosen in _divide(topics).items()},
    )


def _telling_lines(text: str) -> frozenset[str]:
    return frozenset(line for raw in text.split("\n") if len(line := raw.strip()) >= TELLING)


def drop_contained(topics: Mapping[str, str]) -> dict[str, str]:
    """Leave out every topic whose telling lines all stand in a longer one that is kept, or whose text another has."""
    kept: dict[str, frozenset[str]] = {}
    texts: set[str] = set()
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        lines = _telling_lines(topics[name])
        contained = any(lines <= other for other in kept.values()) if lines else topics[name] in texts
        if not contained:
            kept[name] = lines
            texts.add(topics[name])
    return {name: topics[name] for name in sorted(kept)}


def _divide(topics: Mapping[str, str]) -> dict[str, list[str]]:
    """Deal groups of topics out in an order drawn from the seed: to dev and test while there is room, else to train.

    Topics that share a telling line, directly or through others, are a group. None that would fill
    half of a held-out split goes there, so that each holds several subjects.
    """
    members = {name: [name] for name in topics}  # each name to the group it is in
    first: dict[str, str] = {}
    for name, text in topics.items():
        for line in _telling_lines(text):
            one, other = members[name], members[first.setdefault(line, name)]
            if one is not other:
                one += other
                members.update((joined, one) for joined in other)
    groups = {id(group): sorted(group) for group in members.values()}.values()
    share = sum(map(len, topics.values())) * HELD_OUT
    splits: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    room = {"dev": share, "test": share}
    for group in sorted(groups, key=lambda group: hashlib.sha256(f"{SEED}/{group[0]}".encode()).digest()):
        size = sum(len(topics[name]) for name in group)
        roomier = max(room, key=room.__getitem__)
        if size <= min(room[roomier], share / 2):
            room[roomier] -= size
            splits[roomier] += group
        else:
            splits["train"] += group
    return splits
