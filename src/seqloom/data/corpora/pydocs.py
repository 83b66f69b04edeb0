"""The Python language reference that ships with CPython: English prose and code."""

import hashlib
import platform
from collections.abc import Mapping
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.data.corpus import TextCorpus, version_of

SUMMARY = "the Python language reference that ships with Python: prose and code; no download"
FORM = "text"
SEED = 1  # random seed of the choice of topics for dev and test
HELD_OUT = 0.1  # fraction of the characters for dev, and for test
MIN_SHARED_LINE = 50  # minimum number of characters of a line that topics do not share by coincidence


@config
class Config:
    corpus: Literal["pydocs"] = "pydocs"


def load(config: Config) -> TextCorpus:
    """Load each topic as a document.

    The reference contains repetitions: `compound` includes `if`, `while`, `for` and other topics
    verbatim. Topics that other topics contain are dropped, and topics that share a long line are put in the
    same split, so that passages of dev or test cannot be memorized from train.
    """
    topics = drop_contained(read_sections())
    return TextCorpus(
        name="pydocs",
        version=f"Python {platform.python_version()} {version_of({'topics': [*topics, *topics.values()]})}",
        licence="PSF-2.0",
        description=f"{len(topics)} topics of the Python language reference (pydoc_data.topics)",
        splits={name: [topics[topic] for topic in sorted(chosen)] for name, chosen in _divide(topics).items()},
    )


def read_sections() -> dict[str, str]:
    """Return the sections of the reference by topic, without white space at the ends of lines."""
    try:
        from pydoc_data.topics import topics as raw
    except ImportError:
        raise DataError(
            "The Python reference needs the module pydoc_data, which this Python installation lacks. "
            "Install the complete standard library, or use another corpus."
        ) from None
    return {name: "\n".join(line.rstrip() for line in text.strip().split("\n")) for name, text in raw.items()}


def _long_lines(text: str) -> frozenset[str]:
    return frozenset(line for raw in text.split("\n") if len(line := raw.strip()) >= MIN_SHARED_LINE)


def drop_contained(topics: Mapping[str, str]) -> dict[str, str]:
    """Drop topics whose long lines all occur in a longer topic, or whose text equals that of another topic."""
    kept: dict[str, frozenset[str]] = {}
    texts: set[str] = set()
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        lines = _long_lines(topics[name])
        is_contained = any(lines <= other for other in kept.values()) if lines else topics[name] in texts
        if not is_contained:
            kept[name] = lines
            texts.add(topics[name])
    return {name: topics[name] for name in sorted(kept)}


def _divide(topics: Mapping[str, str]) -> dict[str, list[str]]:
    """Distribute groups of topics in a seeded order: to dev and test while these have room, otherwise to train.

    Topics that share a long line, directly or indirectly, form a group. A group larger than half of a
    held-out split goes to train, so that dev and test cover several subjects.
    """
    group_of = {name: [name] for name in topics}
    first: dict[str, str] = {}  # the first topic that contains each long line
    for name, text in topics.items():
        for line in _long_lines(text):
            group, other = group_of[name], group_of[first.setdefault(line, name)]
            if group is not other:
                group += other
                group_of.update((member, group) for member in other)
    groups = {id(group): sorted(group) for group in group_of.values()}.values()
    split_size = sum(map(len, topics.values())) * HELD_OUT
    splits: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    room = {"dev": split_size, "test": split_size}
    for group in sorted(groups, key=lambda group: hashlib.sha256(f"{SEED}/{group[0]}".encode()).digest()):
        size = sum(len(topics[name]) for name in group)
        split = max(room, key=room.__getitem__)
        if size <= min(room[split], split_size / 2):
            room[split] -= size
            splits[split] += group
        else:
            splits["train"] += group
    return splits
