"""Pairs as batches: nothing lost, nothing twice, little padding, and the same whenever it is asked for."""

import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqloom.core.errors import DataError, UsageError
from seqloom.data import corpora
from seqloom.data.batching import Ragged
from seqloom.data.collate import ParallelBatches
from seqloom.data.corpora import CORPORA
from seqloom.data.files import data_folder
from seqloom.text import END, BytePairConfig, train_tokenizer

Pairs = list[tuple[list[int], list[int]]]

needs_data = pytest.mark.skipif(
    data_folder() is None, reason="the real data sets are not here: set SEQLOOM_DATA to the folder that holds them"
)
sides = st.lists(st.integers(1, 50), max_size=12)
pairs = st.lists(st.tuples(sides, sides), min_size=1, max_size=60)
choices = st.none() | st.integers(1, 6)


def batches(found: Pairs, **options: Any) -> ParallelBatches:
    return ParallelBatches([source for source, _ in found], [target for _, target in found], **options)


def sentences(count: int, seed: int = 0) -> Pairs:
    """Lengths as text has them: many short, a few long, the target about as long as the source."""
    draw = np.random.default_rng(seed)
    source = np.clip(draw.lognormal(2.6, 0.5, count).astype(int), 1, 150)
    target = np.clip((source * np.exp(draw.normal(0, 0.25, count))).astype(int), 1, 150)
    return [([7] * s, [8] * t) for s, t in zip(source.tolist(), target.tolist(), strict=True)]


def read_back(batch: dict[str, torch.Tensor]) -> Pairs:
    """The pairs a batch holds, END taken off; rows without any are left out."""
    found = []
    for row in range(len(batch["source"])):
        source = batch["source"][row][batch["source_mask"][row]].tolist()
        target = batch["targets"][row][batch["target_mask"][row]].tolist()
        assert bool(source) == bool(target)
        if source:
            assert (source[-1], target[-1]) == (END, END)
            found.append((source[:-1], target[:-1]))
    return found


# --- what a batch is --------------------------------------------------------------------------------------------------


def test_batch_equals_worked_example() -> None:
    found = batches([([5, 6], [7, 8, 9]), ([4], [3])], tokens=100)
    assert found.steps_per_epoch == 1
    batch = found.batch(0, 0)
    order = [0, 1] if found.members(0, 0).tolist() == [0, 1] else [1, 0]
    assert batch["source"][order].tolist() == [[5, 6, END], [4, END, 0]]
    assert batch["source_mask"][order].tolist() == [[True, True, True], [True, True, False]]
    assert batch["inputs"][order].tolist() == [[END, 7, 8, 9], [END, 3, END, 0]]
    assert batch["targets"][order].tolist() == [[7, 8, 9, END], [3, END, 0, 0]]
    assert batch["target_mask"][order].tolist() == [[True] * 4, [True, True, False, False]]
    assert found.padding() == pytest.approx(1 - (3 + 4 + 2 + 2) / (2 * (3 + 4)))


@given(pairs, st.integers(1, 60), choices, st.integers(0, 3))
def test_every_pair_once_an_epoch(found: Pairs, tokens: int, shapes: int | None, epoch: int) -> None:
    made = batches(found, tokens=tokens, shapes=shapes)
    steps = range(epoch * made.steps_per_epoch, (epoch + 1) * made.steps_per_epoch)
    assert sorted(pair for step in steps for pair in read_back(made.batch(3, step))) == sorted(found)
    assert sorted(number for step in steps for number in made.members(3, step)) == list(range(len(found)))


@given(pairs, st.integers(1, 60), choices)
def test_shapes_and_budget(found: Pairs, tokens: int, shapes: int | None) -> None:
    made = batches(found, tokens=tokens, shapes=shapes)
    seen = set()
    for step in range(2 * made.steps_per_epoch):
        batch = made.batch(1, step)
        (rows, source), target = batch["source"].shape, batch["targets"].shape[1]
        assert rows == 1 or rows * max(source, target) <= tokens
        assert batch["source_mask"].any() and batch["target_mask"].any()
        for side in ("source", "target"):
            mask = batch[f"{side}_mask"]
            assert (mask.cummin(dim=1).values == mask).all()  # real tokens first
        seen.add((rows, source, target))
    assert seen == made.shapes()
    assert shapes is None or len(seen) <= shapes


@given(pairs, st.integers(1, 60), choices)
def test_padding_matches_masks(found: Pairs, tokens: int, shapes: int | None) -> None:
    made = batches(found, tokens=tokens, shapes=shapes)
    masks = [batch[name] for _, batch in made.every() for name in ("source_mask", "target_mask")]
    real, cells = sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks)
    assert made.padding() == pytest.approx(1 - real / cells)


def test_batch_is_pure_function() -> None:
    found = sentences(300)
    one, other = batches(found, tokens=200), batches(found, tokens=200)
    forward = [one.batch(5, step) for step in range(60)]
    for step in reversed(range(60)):  # asked for in another order
        again = other.batch(5, step)
        assert all(torch.equal(forward[step][name], again[name]) for name in again)


@pytest.mark.parametrize("shapes", [None, 4])
def test_epochs_and_seeds_differ(shapes: int | None) -> None:
    made = batches(sentences(2000), tokens=400, shapes=shapes)
    steps = made.steps_per_epoch

    def epoch(seed: int, number: int) -> list[tuple[int, ...]]:
        return [tuple(made.members(seed, number * steps + step)) for step in range(steps)]

    assert epoch(1, 0) != epoch(1, 1)
    assert epoch(1, 0) != epoch(2, 0)
    assert {frozenset(one) for one in epoch(1, 0)} != {frozenset(one) for one in epoch(1, 1)}  # not the order alone
    lengths = [len(one) for one in epoch(1, 0)]
    assert lengths != sorted(lengths)  # neither short nor long batches come first
    assert made.steps_per_epoch == steps


@pytest.mark.parametrize("shapes", [None, 3])
def test_processes_partition_an_epoch(shapes: int | None) -> None:
    made = batches(sentences(500), tokens=300, shapes=shapes)
    alone = [made.members(1, step).tolist() for step in range(24)]
    shared = [made.members(1, step, rank, 3).tolist() for step in range(8) for rank in range(3)]
    assert shared == alone
    for one, other in ((made.batch(1, 2, rank, 3), made.batch(1, 6 + rank)) for rank in range(3)):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_long_pairs_are_left_out_and_counted() -> None:
    found = [([1] * n, [2] * 3) for n in range(10)] + [([1], [2] * 20)]
    made = batches(found, tokens=50, max_length=6)
    assert made.left_out == 5  # sources of 6 tokens and more, since END counts, and the long target
    assert sorted(number for members, _ in made.every() for number in members) == list(range(6))
    assert batches(found, tokens=50).left_out == 0


def test_pair_beyond_budget_is_its_own_batch() -> None:
    made = batches([([1] * 30, [2]), ([1], [2])], tokens=8)
    assert (1, 31, 2) in made.shapes()


def test_the_largest_step() -> None:
    made = batches(sentences(400), tokens=500)
    cells = []
    for step in range(made.steps_per_epoch):
        batch = made.batch(9, step)
        (rows, source), target = batch["source"].shape, batch["targets"].shape[1]
        cells.append(rows * (source * target + source + target))
    assert cells[made.largest_step(9)] == max(cells)


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(DataError, match=r"All 1 pairs are longer than batch.max_length, 3 tokens"):
        batches([([1] * 9, [1])], tokens=10, max_length=3)
    with pytest.raises(DataError, match="it is empty"):
        batches([], tokens=10)
    for options in ({"tokens": 0}, {"tokens": 9, "shapes": 0}):
        with pytest.raises(UsageError, match="at least 1"):
            batches([([1], [1])], **options)


def test_sequences_in_one_array() -> None:
    found = Ragged.of([[1, 2], [], [3]])
    assert found.ids.tolist() == [1, 2, END, END, 3, END]
    assert found.lengths.tolist() == [3, 1, 2]
    taken = found.take(np.array([2, 0]))
    assert (taken.ids.tolist(), taken.lengths.tolist()) == ([3, END, 1, 2, END], [2, 3])
    assert len(found.take(np.array([], dtype=int))) == 0


# --- how much is padding ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shapes", "most"), [(None, 0.12), (24, 0.20), (16, 0.20)])
def test_padding_of_realistic_lengths(shapes: int | None, most: float) -> None:
    assert batches(sentences(20_000), tokens=2048, shapes=shapes).padding() <= most


def test_single_shape_has_much_padding() -> None:
    """The control: the figures above do not hold by themselves."""
    assert batches(sentences(20_000), tokens=2048, shapes=1).padding() > 0.6


@pytest.mark.parametrize("shapes", [None, 16])
def test_few_pairs_give_few_empty_rows(shapes: int | None) -> None:
    assert batches([([1, 2, 3], [4, 5])] * 50, tokens=2048, shapes=shapes).padding() == 0


def padding_of(name: str, budgets: tuple[int, ...], **options: Any) -> list[float]:
    """With free shapes, with 24 and with 16."""
    train = corpora.load(CORPORA[name].Config(**options)).split("train")
    tokenizer = train_tokenizer(BytePairConfig(size=1000), (text for p in train for text in (p.source, p.target)))
    source, target = (
        Ragged.of(tokenizer.encode_batch([getattr(pair, side) for pair in train])) for side in ("source", "target")
    )
    return [
        ParallelBatches(source, target, tokens=tokens, shapes=shapes).padding()
        for tokens in budgets
        for shapes in (None, 24, 16)
    ]


@needs_data
def test_padding_of_multi30k() -> None:
    assert all(
        found <= most for found, most in zip(padding_of("multi30k", (1024, 4096)), [0.12, 0.20, 0.20] * 2, strict=True)
    )


def test_padding_of_cldr() -> None:
    pytest.importorskip("babel")
    found = padding_of("cldr", (1024, 2048), target="hu", train=8000, dev=10, test=10)
    assert all(share <= most for share, most in zip(found, [0.12, 0.20, 0.20] * 2, strict=True))


def test_batch_is_created_quickly() -> None:
    made = batches([([1] * 23, [2] * 23)] * 2000, tokens=64 * 24)
    made.batch(0, 0)
    best = min(_seconds(made, step) for step in range(30))
    assert best < 1e-3


def _seconds(made: ParallelBatches, step: int) -> float:
    began = time.perf_counter()
    made.batch(0, step)
    return time.perf_counter() - began
