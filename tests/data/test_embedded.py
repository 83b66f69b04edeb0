"""Corpora that need no download."""

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


def test_pydocs_splits_have_expected_sizes(reference: TextCorpus) -> None:
    sizes = {split: reference.counts(split).characters for split in reference.splits}
    total = sum(sizes.values())
    assert 300_000 < total < 600_000
    for name in ("dev", "test"):
        assert 0.08 < sizes[name] / total <= 0.1
        assert len(reference.split(name)) >= 5


def passages_of(documents: list[str], size: int) -> set[str]:
    texts = [" ".join(document.split()) for document in documents]
    return {text[start : start + size] for text in texts for start in range(len(text) - size + 1)}


def repeated_fraction(documents: list[str], others: list[str], size: int = 100) -> float:
    """Return the fraction of passages of `documents` that occur verbatim in `others`."""
    own_passages = passages_of(documents, size)
    return len(own_passages & passages_of(others, size)) / len(own_passages)


def test_pydocs_held_out_passages_are_not_in_training(reference: TextCorpus) -> None:
    train, dev, test = (list(reference.split(name)) for name in ("train", "dev", "test"))
    assert repeated_fraction(dev, train) < 0.001
    assert repeated_fraction(test, train) < 0.001
    assert repeated_fraction(dev, test) < 0.001


def test_splitting_without_groups_would_leak_topics(reference: TextCorpus) -> None:
    """Control: topics of the Python reference repeat each other."""
    from pydoc_data.topics import topics

    assert repeated_fraction([topics["if"], topics["with"]], [topics["compound"]]) > 0.9
    assert "if" not in pydocs.drop_contained(topics)


def test_pydocs_groups_share_no_long_line(reference: TextCorpus) -> None:
    lines = [set().union(*map(pydocs._long_lines, documents)) for documents in reference.splits.values()]
    assert sum(map(len, lines)) == len(set().union(*lines))


def load_toys(**settings: Any) -> TextCorpus:
    return corpora.load(toys.Config(**{"train": 300, "dev": 30, "test": 30, **settings}))


def sides_of(corpus: TextCorpus) -> list[tuple[str, str]]:
    documents = chain.from_iterable(corpus.splits.values())
    return [(before, after) for before, _, after in (document.partition("|") for document in documents)]


def test_copy_and_reverse_targets_are_correct() -> None:
    assert all(before == after for before, after in sides_of(load_toys(task="copy")))
    assert all(before == after[::-1] for before, after in sides_of(load_toys(task="reverse")))
    assert any(before != after for before, after in sides_of(load_toys(task="reverse")))


def test_target_of_the_recall_task_is_a_unique_pair() -> None:
    for before, after in sides_of(load_toys(task="recall", max_length=5)):
        pairs = [before[start : start + 2] for start in range(0, len(before), 2)]
        assert after in pairs
        assert len({pair[0] for pair in pairs}) == len(pairs)  # a letter determines its digit


@pytest.mark.parametrize("task", ["copy", "reverse", "recall"])
def test_toy_documents_are_unique_and_have_requested_sizes(task: str) -> None:
    corpus = load_toys(task=task, min_length=3, max_length=6, symbols=7)
    sources = [before for before, _ in sides_of(corpus)]
    assert len(set(sources)) == len(sources) == 360
    assert [len(corpus.split(name)) for name in ("train", "dev", "test")] == [300, 30, 30]
    step = 2 if task == "recall" else 1
    assert {len(before) // step for before in sources} == {3, 4, 5, 6}
    assert set("".join(sources)) - set("0123456789") == set("abcdefg")


def test_seed_determines_toy_corpora() -> None:
    assert load_toys(seed=1).fingerprint() == load_toys(seed=1).fingerprint()
    assert load_toys(seed=1).fingerprint() != load_toys(seed=2).fingerprint()


def test_toy_corpora_are_unchanged() -> None:
    """Golden metrics depend on these documents: after a change, increase toys.VERSION."""
    assert list(load_toys().split("train")[:3]) == ["hac|hac", "cfcd|cfcd", "fhfhdbeg|fhfhdbeg"]
    assert list(load_toys(task="recall", max_length=4).split("dev")[:2]) == ["a4h2|h2", "f6c6h5a3|c6"]


def test_too_many_toy_documents_are_rejected() -> None:
    with pytest.raises(DataError, match=r"half of the 30 possible documents; got 360"):
        load_toys(symbols=2, max_length=4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_length": 0}, "min_length must be from 1"),
        ({"min_length": 5, "max_length": 4}, "min_length must be from 1"),
        ({"symbols": 27}, "symbols must be from 1 to 26"),
        ({"dev": 0}, "at least 1"),
        ({"task": "recall", "max_length": 9}, "each letter once"),
    ],
)
def test_impossible_toy_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_toys(**settings)
