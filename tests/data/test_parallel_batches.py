"""Batches of sentence pairs: each pair occurs once per epoch, padding is small, and batches depend on seed and step."""

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
    data_folder() is None, reason="the data sets are missing: set SEQLOOM_DATA to their folder"
)
sides = st.lists(st.integers(1, 50), max_size=12)
pairs = st.lists(st.tuples(sides, sides), min_size=1, max_size=60)
choices = st.none() | st.integers(1, 6)


def batches(pairs: Pairs, **options: Any) -> ParallelBatches:
    return ParallelBatches([source for source, _ in pairs], [target for _, target in pairs], **options)


def sentences(count: int, seed: int = 0) -> Pairs:
    """Return pairs with realistic lengths. Most are short, and source and target have similar lengths."""
    draw = np.random.default_rng(seed)
    source = np.clip(draw.lognormal(2.6, 0.5, count).astype(int), 1, 150)
    target = np.clip((source * np.exp(draw.normal(0, 0.25, count))).astype(int), 1, 150)
    return [([7] * s, [8] * t) for s, t in zip(source.tolist(), target.tolist(), strict=True)]


def pairs_of(batch: dict[str, torch.Tensor]) -> Pairs:
    """Return the pairs of a batch without END and without empty rows."""
    restored = []
    for row in range(len(batch["source"])):
        source = batch["source"][row][batch["source_mask"][row]].tolist()
        target = batch["targets"][row][batch["target_mask"][row]].tolist()
        assert bool(source) == bool(target)
        if source:
            assert (source[-1], target[-1]) == (END, END)
            restored.append((source[:-1], target[:-1]))
    return restored


# --- contents of a batch ----------------------------------------------------------------------------------------------


def test_batch_matches_worked_example() -> None:
    source = batches([([5, 6], [7, 8, 9]), ([4], [3])], tokens=100)
    assert source.steps_per_epoch == 1
    batch = source.batch(0, 0)
    order = [0, 1] if source.members(0, 0).tolist() == [0, 1] else [1, 0]
    assert batch["source"][order].tolist() == [[5, 6, END], [4, END, 0]]
    assert batch["source_mask"][order].tolist() == [[True, True, True], [True, True, False]]
    assert batch["inputs"][order].tolist() == [[END, 7, 8, 9], [END, 3, END, 0]]
    assert batch["targets"][order].tolist() == [[7, 8, 9, END], [3, END, 0, 0]]
    assert batch["target_mask"][order].tolist() == [[True] * 4, [True, True, False, False]]
    assert source.padding() == pytest.approx(1 - (3 + 4 + 2 + 2) / (2 * (3 + 4)))


@given(pairs, st.integers(1, 60), choices, st.integers(0, 3))
def test_epoch_contains_every_pair_once(examples: Pairs, tokens: int, shapes: int | None, epoch: int) -> None:
    source = batches(examples, tokens=tokens, shapes=shapes)
    steps = range(epoch * source.steps_per_epoch, (epoch + 1) * source.steps_per_epoch)
    assert sorted(pair for step in steps for pair in pairs_of(source.batch(3, step))) == sorted(examples)
    assert sorted(number for step in steps for number in source.members(3, step)) == list(range(len(examples)))


@given(pairs, st.integers(1, 60), choices)
def test_batches_have_declared_shapes_within_budget(examples: Pairs, tokens: int, shapes: int | None) -> None:
    parallel = batches(examples, tokens=tokens, shapes=shapes)
    observed = set()
    for step in range(2 * parallel.steps_per_epoch):
        batch = parallel.batch(1, step)
        (rows, source), target = batch["source"].shape, batch["targets"].shape[1]
        assert rows == 1 or rows * max(source, target) <= tokens
        assert batch["source_mask"].any() and batch["target_mask"].any()
        for side in ("source", "target"):
            mask = batch[f"{side}_mask"]
            assert (mask.cummin(dim=1).values == mask).all()  # real tokens precede padding
        observed.add((rows, source, target))
    assert observed == parallel.shapes()
    assert shapes is None or len(observed) <= shapes


@given(pairs, st.integers(1, 60), choices)
def test_padding_matches_masks(examples: Pairs, tokens: int, shapes: int | None) -> None:
    parallel = batches(examples, tokens=tokens, shapes=shapes)
    masks = [batch[name] for _, batch in parallel.all_batches() for name in ("source_mask", "target_mask")]
    real, cells = sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks)
    assert parallel.padding() == pytest.approx(1 - real / cells)


def test_batches_do_not_depend_on_the_order_of_calls() -> None:
    examples = sentences(300)
    first, second = batches(examples, tokens=200), batches(examples, tokens=200)
    forward = [first.batch(5, step) for step in range(60)]
    for step in reversed(range(60)):  # the steps are requested in another order
        repeated = second.batch(5, step)
        assert all(torch.equal(forward[step][name], repeated[name]) for name in repeated)


@pytest.mark.parametrize("shapes", [None, 4])
def test_epochs_and_seeds_have_different_random_numbers(shapes: int | None) -> None:
    parallel = batches(sentences(2000), tokens=400, shapes=shapes)
    steps = parallel.steps_per_epoch

    def epoch(seed: int, number: int) -> list[tuple[int, ...]]:
        return [tuple(parallel.members(seed, number * steps + step)) for step in range(steps)]

    assert epoch(1, 0) != epoch(1, 1)
    assert epoch(1, 0) != epoch(2, 0)
    assert {frozenset(members) for members in epoch(1, 0)} != {
        frozenset(members) for members in epoch(1, 1)
    }  # not only the order differs
    lengths = [len(members) for members in epoch(1, 0)]
    assert lengths != sorted(lengths)  # short and long batches are mixed
    assert parallel.steps_per_epoch == steps


@pytest.mark.parametrize("shapes", [None, 3])
def test_processes_partition_an_epoch(shapes: int | None) -> None:
    parallel = batches(sentences(500), tokens=300, shapes=shapes)
    single_process = [parallel.members(1, step).tolist() for step in range(24)]
    shared = [parallel.members(1, step, rank, 3).tolist() for step in range(8) for rank in range(3)]
    assert shared == single_process
    for actual, expected in ((parallel.batch(1, 2, rank, 3), parallel.batch(1, 6 + rank)) for rank in range(3)):
        assert all(torch.equal(actual[name], expected[name]) for name in actual)


def test_long_pairs_are_left_out_and_counted() -> None:
    examples = [([1] * n, [2] * 3) for n in range(10)] + [([1], [2] * 20)]
    parallel = batches(examples, tokens=50, max_length=6)
    assert parallel.left_out == 5  # sources of at least 6 tokens, because END counts, and the long target
    assert sorted(number for members, _ in parallel.all_batches() for number in members) == list(range(6))
    assert batches(examples, tokens=50).left_out == 0


def test_pair_beyond_budget_is_separate_batch() -> None:
    parallel = batches([([1] * 30, [2]), ([1], [2])], tokens=8)
    assert (1, 31, 2) in parallel.shapes()


def test_largest_step_has_most_cells() -> None:
    parallel = batches(sentences(400), tokens=500)
    cells = []
    for step in range(parallel.steps_per_epoch):
        batch = parallel.batch(9, step)
        (rows, source), target = batch["source"].shape, batch["targets"].shape[1]
        cells.append(rows * (source * target + source + target))
    assert cells[parallel.largest_step(9)] == max(cells)


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(DataError, match=r"All 1 pairs are longer than 3 tokens"):
        batches([([1] * 9, [1])], tokens=10, max_length=3)
    with pytest.raises(DataError, match="it is empty"):
        batches([], tokens=10)
    for options in ({"tokens": 0}, {"tokens": 9, "shapes": 0}):
        with pytest.raises(UsageError, match="at least 1"):
            batches([([1], [1])], **options)


def test_ragged_stores_sequences_in_one_array() -> None:
    ragged = Ragged.of([[1, 2], [], [3]])
    assert ragged.ids.tolist() == [1, 2, END, END, 3, END]
    assert ragged.lengths.tolist() == [3, 1, 2]
    taken = ragged.take(np.array([2, 0]))
    assert (taken.ids.tolist(), taken.lengths.tolist()) == ([3, END, 1, 2, END], [2, 3])
    assert len(ragged.take(np.array([], dtype=int))) == 0


# --- padding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shapes", "limit"), [(None, 0.12), (24, 0.20), (16, 0.20)])
def test_padding_of_realistic_lengths_is_low(shapes: int | None, limit: float) -> None:
    assert batches(sentences(20_000), tokens=2048, shapes=shapes).padding() <= limit


def test_single_shape_has_much_padding() -> None:
    """Control: padding is low because of the shapes and not because of the data."""
    assert batches(sentences(20_000), tokens=2048, shapes=1).padding() > 0.6


@pytest.mark.parametrize("shapes", [None, 16])
def test_few_pairs_give_few_empty_rows(shapes: int | None) -> None:
    assert batches([([1, 2, 3], [4, 5])] * 50, tokens=2048, shapes=shapes).padding() == 0


def padding_of(name: str, budgets: tuple[int, ...], **options: Any) -> list[float]:
    """Return the padding without a limit on the number of shapes, with 24 shapes, and with 16 shapes."""
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
def test_padding_of_multi30k_is_low() -> None:
    assert all(
        padding <= limit
        for padding, limit in zip(padding_of("multi30k", (1024, 4096)), [0.12, 0.20, 0.20] * 2, strict=True)
    )


def test_padding_of_cldr_is_low() -> None:
    pytest.importorskip("babel")
    measured = padding_of("cldr", (1024, 2048), target="hu", train=8000, dev=10, test=10)
    assert all(padding <= limit for padding, limit in zip(measured, [0.12, 0.20, 0.20] * 2, strict=True))


def test_batch_is_created_quickly() -> None:
    parallel = batches([([1] * 23, [2] * 23)] * 2000, tokens=64 * 24)
    parallel.batch(0, 0)
    best = min(_seconds(parallel, step) for step in range(30))
    assert best < 1e-3


def _seconds(parallel: ParallelBatches, step: int) -> float:
    began = time.perf_counter()
    parallel.batch(0, step)
    return time.perf_counter() - began
