"""Texts as batches: nothing lost, nothing twice, and the same whenever it is asked for."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqloom.core.errors import DataError, UsageError
from seqloom.data.batching import Ragged
from seqloom.data.collate import FIRST, IGNORE, TextBatches
from seqloom.text import END

Texts = list[list[int]]
texts = st.lists(st.lists(st.integers(1, 50), max_size=14), min_size=1, max_size=50)
choices = st.none() | st.integers(1, 6)


def read_back(batch: dict[str, torch.Tensor]) -> list[tuple[list[int], int]]:
    """The texts and labels a batch holds; rows without any must be marked so."""
    found = []
    for tokens, mask, label in zip(batch["tokens"], batch["mask"], batch["labels"], strict=True):
        row = tokens[mask].tolist()
        assert bool(row) == (label.item() != IGNORE)
        assert not tokens[~mask].any()
        if row:
            assert row[-1] == END
            found.append((row[:-1], label.item()))
    return found


@given(texts, st.integers(1, 60), choices, st.integers(0, 3))
def test_every_text_once_an_epoch(found: Texts, tokens: int, shapes: int | None, epoch: int) -> None:
    labels = list(range(len(found)))
    made = TextBatches(found, tokens=tokens, shapes=shapes, values={"labels": labels})
    steps = range(epoch * made.steps_per_epoch, (epoch + 1) * made.steps_per_epoch)
    read = [pair for step in steps for pair in read_back(made.batch(3, step))]
    assert sorted(read, key=lambda pair: pair[1]) == [(text, label) for label, text in enumerate(found)]
    assert sorted(number for step in steps for number in made.members(3, step)) == labels
    assert len(made) == len(found)


@given(texts, st.integers(1, 60), choices)
def test_shapes_budget_and_padding(found: Texts, tokens: int, shapes: int | None) -> None:
    made = TextBatches(found, tokens=tokens, shapes=shapes)
    seen, real, cells = set(), 0, 0
    for _, batch in made.every():
        rows, width = batch["tokens"].shape
        assert rows == 1 or rows * width <= tokens
        assert (batch["mask"].cummin(dim=1).values == batch["mask"]).all()
        seen.add((rows, width))
        real, cells = real + int(batch["mask"].sum()), cells + rows * width
    assert seen == made.shapes()
    assert shapes is None or len(seen) <= shapes
    assert made.padding() == pytest.approx(1 - real / cells)


def test_batch_equals_worked_example() -> None:
    made = TextBatches([[5, 6], [4]], tokens=100, values={"labels": [1, 0]})
    assert made.steps_per_epoch == 1
    order = np.argsort(made.members(0, 0))
    batch = made.batch(0, 0)
    assert batch["tokens"][order].tolist() == [[5, 6, END], [4, END, 0]]
    assert batch["mask"][order].tolist() == [[True] * 3, [True, True, False]]
    assert batch["labels"][order].tolist() == [1, 0]


def test_batch_is_pure_function() -> None:
    found = [[1] * (n % 17) for n in range(300)]
    one, other = (TextBatches(found, tokens=100) for _ in range(2))
    forward = [one.batch(5, step) for step in range(60)]
    for step in reversed(range(60)):
        again = other.batch(5, step)
        assert all(torch.equal(forward[step][name], again[name]) for name in again)
    alone = [one.members(1, step).tolist() for step in range(24)]
    assert [one.members(1, step, rank, 3).tolist() for step in range(8) for rank in range(3)] == alone
    assert [one.members(1, step).tolist() for step in range(9)] != [one.members(2, step).tolist() for step in range(9)]


# --- words ------------------------------------------------------------------------------------------------------------


def sentences(lengths: list[list[int]]) -> dict[str, Any]:
    """Each inner list is a sentence: how many tokens every word has. A word's tag is its place."""
    firsts = [[sum(words[:place]) for place in range(len(words))] for words in lengths]
    return {
        "texts": [[7] * sum(words) for words in lengths],
        "words": {FIRST: Ragged.plain(firsts), "tags": Ragged.plain([list(range(len(words))) for words in lengths])},
    }


worded = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=8), min_size=1, max_size=30)


@given(worded, st.integers(1, 60), choices)
def test_words_belong_to_their_texts(lengths: list[list[int]], tokens: int, shapes: int | None) -> None:
    made = TextBatches(**sentences(lengths), tokens=tokens, shapes=shapes)
    seen = set()
    for members, batch in made.every():
        assert batch["first"].shape == batch["tags"].shape == batch["words"].shape
        seen.add((*batch["tokens"].shape, batch["words"].shape[1]))
        for row, number in enumerate(members):
            mask = batch["words"][row]
            assert batch["tags"][row][mask].tolist() == list(range(len(lengths[number])))
            firsts = [sum(lengths[number][:place]) for place in range(len(lengths[number]))]
            assert batch["first"][row][mask].tolist() == firsts
            assert batch["mask"][row][batch["first"][row][mask]].all()
            assert not batch["tags"][row][~mask].any()
        assert not batch["words"][len(members) :].any()
    assert seen == made.shapes()


def test_long_texts_are_truncated_and_counted() -> None:
    made = TextBatches([[1] * n for n in (3, 4, 5, 100_000)], tokens=50, max_length=5, values={"labels": [0, 1, 2, 3]})
    assert (made.cut, made.words_cut) == (2, 0)
    rows = sorted((row for _, batch in made.every() for row in read_back(batch)), key=lambda row: row[1])
    assert rows == [([1] * 3, 0), ([1] * 4, 1), ([1] * 4, 2), ([1] * 4, 3)]
    assert TextBatches([[1] * 9], tokens=50).cut == 0


def test_words_of_truncated_text_are_dropped() -> None:
    made = TextBatches(**sentences([[1, 2, 1], [1], [3, 3, 3]]), tokens=50, max_length=4)
    assert (made.cut, made.words_cut) == (2, 3)  # read are 3 tokens and END
    read = {
        int(number): batch["tags"][row][batch["words"][row]].tolist()
        for members, batch in made.every()
        for row, number in enumerate(members)
    }
    assert read == {0: [0, 1], 1: [0], 2: [0]}
    whole = TextBatches(**sentences([[1, 2, 1], [1], [3, 3, 3]]), tokens=50, max_length=10)
    assert (whole.cut, whole.words_cut) == (0, 0)


def test_some_texts() -> None:
    made = TextBatches(**sentences([[1, 2], [1], [3, 3, 3]]), tokens=50)
    batch = made.collate(np.array([1, 0]))
    assert batch["tokens"].shape == (2, 4) and batch["words"].tolist() == [[True, False], [True, True]]


def test_the_largest_step() -> None:
    made = TextBatches([[1] * (n % 37) for n in range(400)], tokens=300)
    shapes = [made.batch(9, step)["tokens"].shape for step in range(made.steps_per_epoch)]
    cells = [rows * width * (width + 1) for rows, width in shapes]
    assert cells[made.largest_step(9)] == max(cells)


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(DataError, match="it is empty"):
        TextBatches([], tokens=10)
    wrong: list[dict[str, Any]] = [{"tokens": 0}, {"tokens": 9, "shapes": 0}, {"tokens": 9, "max_length": 1}]
    for options in wrong:
        with pytest.raises(UsageError, match="at least"):
            TextBatches([[1]], **options)


@pytest.mark.parametrize(("shapes", "most"), [(None, 0.10), (16, 0.15)])
def test_padding_of_realistic_lengths(shapes: int | None, most: float) -> None:
    lengths = np.clip(np.random.default_rng(0).lognormal(2.6, 0.6, 20_000).astype(int), 1, 200)
    assert TextBatches([[1] * n for n in lengths.tolist()], tokens=2048, shapes=shapes).padding() <= most
