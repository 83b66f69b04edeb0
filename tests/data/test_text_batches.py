"""Batches of texts: each text occurs once per epoch, and batches depend only on seed and step."""

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


def texts_of(batch: dict[str, torch.Tensor]) -> list[tuple[list[int], int]]:
    """Return the texts and labels of a batch. Empty rows must have the label IGNORE."""
    restored = []
    for tokens, mask, label in zip(batch["tokens"], batch["mask"], batch["labels"], strict=True):
        row = tokens[mask].tolist()
        assert bool(row) == (label.item() != IGNORE)
        assert not tokens[~mask].any()
        if row:
            assert row[-1] == END
            restored.append((row[:-1], label.item()))
    return restored


@given(texts, st.integers(1, 60), choices, st.integers(0, 3))
def test_epoch_contains_every_text_once(examples: Texts, tokens: int, shapes: int | None, epoch: int) -> None:
    labels = list(range(len(examples)))
    batches = TextBatches(examples, tokens=tokens, shapes=shapes, values={"labels": labels})
    steps = range(epoch * batches.steps_per_epoch, (epoch + 1) * batches.steps_per_epoch)
    read = [pair for step in steps for pair in texts_of(batches.batch(3, step))]
    assert sorted(read, key=lambda pair: pair[1]) == [(text, label) for label, text in enumerate(examples)]
    assert sorted(number for step in steps for number in batches.members(3, step)) == labels
    assert len(batches) == len(examples)


@given(texts, st.integers(1, 60), choices)
def test_batches_have_declared_shapes_within_budget(examples: Texts, tokens: int, shapes: int | None) -> None:
    batches = TextBatches(examples, tokens=tokens, shapes=shapes)
    observed, real, cells = set(), 0, 0
    for _, batch in batches.all_batches():
        rows, width = batch["tokens"].shape
        assert rows == 1 or rows * width <= tokens
        assert (batch["mask"].cummin(dim=1).values == batch["mask"]).all()
        observed.add((rows, width))
        real, cells = real + int(batch["mask"].sum()), cells + rows * width
    assert observed == batches.shapes()
    assert shapes is None or len(observed) <= shapes
    assert batches.padding() == pytest.approx(1 - real / cells)


def test_batch_matches_worked_example() -> None:
    batches = TextBatches([[5, 6], [4]], tokens=100, values={"labels": [1, 0]})
    assert batches.steps_per_epoch == 1
    order = np.argsort(batches.members(0, 0))
    batch = batches.batch(0, 0)
    assert batch["tokens"][order].tolist() == [[5, 6, END], [4, END, 0]]
    assert batch["mask"][order].tolist() == [[True] * 3, [True, True, False]]
    assert batch["labels"][order].tolist() == [1, 0]


def test_batches_depend_only_on_seed_and_step() -> None:
    examples = [[1] * (n % 17) for n in range(300)]
    first, second = (TextBatches(examples, tokens=100) for _ in range(2))
    forward = [first.batch(5, step) for step in range(60)]
    for step in reversed(range(60)):
        repeated = second.batch(5, step)
        assert all(torch.equal(forward[step][name], repeated[name]) for name in repeated)
    single_process = [first.members(1, step).tolist() for step in range(24)]
    assert [first.members(1, step, rank, 3).tolist() for step in range(8) for rank in range(3)] == single_process
    assert [first.members(1, step).tolist() for step in range(9)] != [
        first.members(2, step).tolist() for step in range(9)
    ]


# --- words ------------------------------------------------------------------------------------------------------------


def sentences(lengths: list[list[int]]) -> dict[str, Any]:
    """Return sentences with words of the given token counts. The tag of a word is its position."""
    firsts = [[sum(words[:position]) for position in range(len(words))] for words in lengths]
    return {
        "texts": [[7] * sum(words) for words in lengths],
        "words": {FIRST: Ragged.plain(firsts), "tags": Ragged.plain([list(range(len(words))) for words in lengths])},
    }


sentence_lengths = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=8), min_size=1, max_size=30)


@given(sentence_lengths, st.integers(1, 60), choices)
def test_words_belong_to_their_texts(lengths: list[list[int]], tokens: int, shapes: int | None) -> None:
    batches = TextBatches(**sentences(lengths), tokens=tokens, shapes=shapes)
    observed = set()
    for members, batch in batches.all_batches():
        assert batch["first"].shape == batch["tags"].shape == batch["words"].shape
        observed.add((*batch["tokens"].shape, batch["words"].shape[1]))
        for row, number in enumerate(members):
            mask = batch["words"][row]
            assert batch["tags"][row][mask].tolist() == list(range(len(lengths[number])))
            firsts = [sum(lengths[number][:position]) for position in range(len(lengths[number]))]
            assert batch["first"][row][mask].tolist() == firsts
            assert batch["mask"][row][batch["first"][row][mask]].all()
            assert not batch["tags"][row][~mask].any()
        assert not batch["words"][len(members) :].any()
    assert observed == batches.shapes()


def test_long_texts_are_truncated_and_counted() -> None:
    batches = TextBatches(
        [[1] * n for n in (3, 4, 5, 100_000)], tokens=50, max_length=5, values={"labels": [0, 1, 2, 3]}
    )
    assert (batches.cut, batches.words_cut) == (2, 0)
    rows = sorted((row for _, batch in batches.all_batches() for row in texts_of(batch)), key=lambda row: row[1])
    assert rows == [([1] * 3, 0), ([1] * 4, 1), ([1] * 4, 2), ([1] * 4, 3)]
    assert TextBatches([[1] * 9], tokens=50).cut == 0


def test_words_of_truncated_text_are_dropped() -> None:
    batches = TextBatches(**sentences([[1, 2, 1], [1], [3, 3, 3]]), tokens=50, max_length=4)
    assert (batches.cut, batches.words_cut) == (2, 3)  # a text is truncated to 3 tokens and END
    read = {
        int(number): batch["tags"][row][batch["words"][row]].tolist()
        for members, batch in batches.all_batches()
        for row, number in enumerate(members)
    }
    assert read == {0: [0, 1], 1: [0], 2: [0]}
    complete = TextBatches(**sentences([[1, 2, 1], [1], [3, 3, 3]]), tokens=50, max_length=10)
    assert (complete.cut, complete.words_cut) == (0, 0)


def test_collate_batches_selected_texts() -> None:
    batches = TextBatches(**sentences([[1, 2], [1], [3, 3, 3]]), tokens=50)
    batch = batches.collate(np.array([1, 0]))
    assert batch["tokens"].shape == (2, 4) and batch["words"].tolist() == [[True, False], [True, True]]


def test_largest_step_has_most_cells() -> None:
    batches = TextBatches([[1] * (n % 37) for n in range(400)], tokens=300)
    shapes = [batches.batch(9, step)["tokens"].shape for step in range(batches.steps_per_epoch)]
    cells = [rows * width * (width + 1) for rows, width in shapes]
    assert cells[batches.largest_step(9)] == max(cells)


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(DataError, match="it is empty"):
        TextBatches([], tokens=10)
    wrong: list[dict[str, Any]] = [{"tokens": 0}, {"tokens": 9, "shapes": 0}, {"tokens": 9, "max_length": 1}]
    for options in wrong:
        with pytest.raises(UsageError, match="at least"):
            TextBatches([[1]], **options)


@pytest.mark.parametrize(("shapes", "limit"), [(None, 0.10), (16, 0.15)])
def test_padding_of_realistic_lengths_is_low(shapes: int | None, limit: float) -> None:
    lengths = np.clip(np.random.default_rng(0).lognormal(2.6, 0.6, 20_000).astype(int), 1, 200)
    assert TextBatches([[1] * n for n in lengths.tolist()], tokens=2048, shapes=shapes).padding() <= limit
