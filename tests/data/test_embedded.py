"""The corpora that need no download."""

from itertools import chain
from typing import Any

import pytest

from seqloom.core.errors import DataError
from seqloom.data import corpora
from seqloom.data.corpora import pydocs, toys
from seqloom.data.corpus import TextCorpus


@pytest.fixture(scope="module")
def reference() -> TextCorpus:
    return corpora.load(pydocs.Config())


def test_pydocs_sizes(reference: TextCorpus) -> None:
    sizes = {split: reference.counts(split).characters for split in reference.splits}
    whole = sum(sizes.values())
    assert 300_000 < whole < 600_000
    for name in ("dev", "test"):
        assert 0.08 < sizes[name] / whole <= 0.1
        assert len(reference.split(name)) >= 5


def windows(documents: list[str], size: int) -> set[str]:
    texts = [" ".join(document.split()) for document in documents]
    return {text[start : start + size] for text in texts for start in range(len(text) - size + 1)}


def repeated(documents: list[str], others: list[str], size: int = 100) -> float:
    """The share of the passages of `documents` that stand in `others` word for word."""
    passages = windows(documents, size)
    return len(passages & windows(others, size)) / len(passages)


def test_pydocs_held_out_passages_are_not_in_training(reference: TextCorpus) -> None:
    train, dev, test = (list(reference.split(name)) for name in ("train", "dev", "test"))
    assert repeated(dev, train) < 0.001
    assert repeated(test, train) < 0.001
    assert repeated(dev, test) < 0.001


def test_ungrouped_topics_would_leak(reference: TextCorpus) -> None:
    """The control of the test above: the reference does repeat itself."""
    from pydoc_data.topics import topics

    assert repeated([topics["if"], topics["with"]], [topics["compound"]]) > 0.9
    assert "if" not in pydocs.drop_contained(topics)


def test_pydocs_groups_share_no_long_line(reference: TextCorpus) -> None:
    lines = [set().union(*map(pydocs._long_lines, documents)) for documents in reference.splits.values()]
    assert sum(map(len, lines)) == len(set().union(*lines))


def make(**settings: Any) -> TextCorpus:
    return corpora.load(toys.Config(**{"train": 300, "dev": 30, "test": 30, **settings}))


def parts(corpus: TextCorpus) -> list[tuple[str, str]]:
    documents = chain.from_iterable(corpus.splits.values())
    return [(before, after) for before, _, after in (document.partition("|") for document in documents)]


def test_copy_and_reverse() -> None:
    assert all(before == after for before, after in parts(make(task="copy")))
    assert all(before == after[::-1] for before, after in parts(make(task="reverse")))
    assert any(before != after for before, after in parts(make(task="reverse")))


def test_recall() -> None:
    for before, after in parts(make(task="recall", max_length=5)):
        pairs = [before[start : start + 2] for start in range(0, len(before), 2)]
        assert after in pairs
        assert len({pair[0] for pair in pairs}) == len(pairs)  # so the letter decides the digit


@pytest.mark.parametrize("task", ["copy", "reverse", "recall"])
def test_toys_differ_and_keep_their_sizes(task: str) -> None:
    corpus = make(task=task, min_length=3, max_length=6, symbols=7)
    asked = [before for before, _ in parts(corpus)]
    assert len(set(asked)) == len(asked) == 360
    assert [len(corpus.split(name)) for name in ("train", "dev", "test")] == [300, 30, 30]
    step = 2 if task == "recall" else 1
    assert {len(before) // step for before in asked} == {3, 4, 5, 6}
    assert set("".join(asked)) - set("0123456789") == set("abcdefg")


def test_toys_follow_the_seed() -> None:
    assert make(seed=1).fingerprint() == make(seed=1).fingerprint()
    assert make(seed=1).fingerprint() != make(seed=2).fingerprint()


def test_toys_are_unchanged() -> None:
    """Golden lists are made from these: if this changes, so must toys.VERSION."""
    assert list(make().split("train")[:3]) == ["hac|hac", "cfcd|cfcd", "fhfhdbeg|fhfhdbeg"]
    assert list(make(task="recall", max_length=4).split("dev")[:2]) == ["a4h2|h2", "f6c6h5a3|c6"]


def test_too_many_toys_are_refused() -> None:
    with pytest.raises(DataError, match=r"half of the 30 possible documents, got 360"):
        make(symbols=2, max_length=4)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"min_length": 0}, "min_length must be from 1"),
        ({"min_length": 5, "max_length": 4}, "min_length must be from 1"),
        ({"symbols": 27}, "symbols must be from 1 to 26"),
        ({"dev": 0}, "at least 1"),
        ({"task": "recall", "max_length": 9}, "each letter once"),
    ],
)
def test_impossible_toys_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make(**settings)
