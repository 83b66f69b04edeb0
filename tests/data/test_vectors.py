"""The adding and recall problems for any length, seed and index."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqloom.config import build
from seqloom.core.errors import DataError, UsageError
from seqloom.data.vectors import Adding, AddingConfig, Recall, RecallConfig, VectorData, index_range, uniform

SEEDS = st.integers(0, 2**62)
FIRST = st.integers(0, 2**40)

DATA = [AddingConfig(length=9, dev=40, test=50).data(), RecallConfig(lag=7, dev=40, test=50).data()]


@pytest.fixture(params=DATA, ids=lambda data: data.name)
def data(request: pytest.FixtureRequest) -> VectorData:
    parameter: VectorData = request.param
    return parameter


# --- random numbers by index ------------------------------------------------------------------------------------------


def splitmix64(state: int) -> int:
    """Return the output of SplitMix64, computed with Python integers."""
    mask = 2**64 - 1
    z = state & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@given(SEEDS, FIRST, st.integers(1, 5))
def test_numbers_match_splitmix64(seed: int, index: int, width: int) -> None:
    (row,) = uniform(seed, index_range(index, 1), width)
    expected = [(splitmix64(seed + (index * width + p) * 0x9E3779B97F4A7C15) >> 40) / 2**24 for p in range(width)]
    assert row.tolist() == expected


def test_numbers_are_uniform_and_uncorrelated() -> None:
    numbers = uniform(12345, index_range(0, 50_000), 8)
    assert numbers.min() >= 0 and numbers.max() < 1
    assert np.abs(numbers.mean(axis=0) - 0.5).max() < 0.01
    assert np.abs(numbers.var(axis=0) - 1 / 12).max() < 0.002
    assert np.abs(np.corrcoef(numbers.T) - np.eye(8)).max() < 0.025
    assert abs(np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]) < 0.025, "correlation of consecutive indices"


# --- both problems ----------------------------------------------------------------------------------------------------


@given(st.sampled_from(DATA), SEEDS, FIRST, st.integers(0, 7))
def test_single_sequence_gives_the_same_result_as_in_a_batch(
    data: VectorData, seed: int, first: int, index: int
) -> None:
    batch, single = data.draw(seed, index_range(first, 8)), data.draw(seed, index_range(first + index, 1))
    assert torch.equal(batch["inputs"][index], single["inputs"][0])
    assert torch.equal(batch["targets"][index], single["targets"][0])


def test_sequences_depend_only_on_seed_and_position(data: VectorData) -> None:
    torch.manual_seed(1)
    first = data.batch(3, 640, 32)
    torch.manual_seed(2)
    np.random.seed(5)
    data.batch(4, 0, 32)  # a draw between the two draws has no effect
    repeated = data.batch(3, 640, 32)
    assert all(torch.equal(first[name], repeated[name]) for name in ("inputs", "targets"))
    other = data.batch(4, 640, 32)
    assert first["inputs"].shape != other["inputs"].shape or not torch.equal(first["inputs"], other["inputs"])


def rows(sequences: torch.Tensor) -> set[bytes]:
    return {row.numpy().tobytes() for row in sequences}


def test_splits_do_not_overlap_and_are_fixed() -> None:
    config = AddingConfig(length=6, dev=3000, test=3000)
    dev, test = (rows(config.data().split(name)["inputs"]) for name in ("dev", "test"))
    train = rows(config.data().batch(0, 0, 20_000)["inputs"])  # even with the random seed of the data
    assert (len(dev), len(test), len(train)) == (3000, 3000, 20_000)
    assert not dev & test and not dev & train and not test & train
    assert rows(AddingConfig(length=6, dev=10).data().split("dev")["inputs"]) < dev, (
        "the first ten do not depend on the size"
    )


def test_recall_splits_are_nearly_disjoint() -> None:
    """Two draws of few symbols can be equal by chance, but not over thirty positions."""
    config = RecallConfig(lag=30, dev=2000, test=2000)
    dev, test = (rows(config.data().split(name)["inputs"]) for name in ("dev", "test"))
    assert len(dev | test) == 4000


def test_fingerprint_depends_on_seed_and_sizes() -> None:
    prints = [AddingConfig(dev=20, test=20, **more).data().fingerprint() for more in ({}, {}, {"seed": 1})]
    assert prints[0] == prints[1]
    assert prints[0]["dev"] != prints[0]["test"] != prints[2]["test"]
    longer = AddingConfig(dev=21, test=20).data().fingerprint()
    assert longer["dev"] != prints[0]["dev"] and longer["test"] == prints[0]["test"]


def test_generated_numbers_are_unchanged() -> None:
    """After a change of the random draws, increase `version` and record these numbers again."""
    assert Adding.version == Recall.version == "1"
    adding = AddingConfig(length=4).data().split("dev")
    assert adding["targets"][:3].tolist() == pytest.approx([1.474516, 1.490026, 0.993043], abs=1e-6)
    assert RecallConfig().data().split("dev")["targets"][:12].tolist() == [0, 7, 2, 1, 3, 7, 5, 7, 2, 4, 3, 7]


def test_training_split_cannot_be_evaluated(data: VectorData) -> None:
    with pytest.raises(DataError, match=f"{data.name} has no train split.*Use dev or test"):
        data.split("train")


# --- adding -----------------------------------------------------------------------------------------------------------


@given(st.integers(2, 41), SEEDS, FIRST)
def test_adding_task_marks_two_values_and_uses_their_sum_as_target(length: int, seed: int, first: int) -> None:
    batch = AddingConfig(length=length).data().draw(seed, index_range(first, 20))
    values, marks = batch["inputs"].unbind(dim=2)
    assert batch["inputs"].shape == (20, length, 2) and batch["inputs"].dtype == torch.float32
    assert set(marks.unique().tolist()) <= {0.0, 1.0}
    half = length // 2
    assert (marks[:, :half].sum(dim=1) == 1).all() and (marks[:, half:].sum(dim=1) == 1).all()
    assert values.min() >= 0 and values.max() < 1
    for row, mark, target in zip(values.tolist(), marks.tolist(), batch["targets"].tolist(), strict=True):
        assert target == pytest.approx(
            sum(value for value, is_marked in zip(row, mark, strict=True) if is_marked), abs=1e-6
        )


def test_marks_are_uniform_and_constant_answer_has_loss_one_sixth() -> None:
    split = AddingConfig(length=10, dev=50_000).data().split("dev")
    assert (split["inputs"][:, :, 1].mean(dim=0) - 0.2).abs().max() < 0.01
    assert ((split["targets"] - 1) ** 2).mean().item() == pytest.approx(1 / 6, abs=0.003)


# --- recall -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.integers(2, 12), SEEDS, FIRST)
def test_target_is_first_symbol(lag: int, symbols: int, seed: int, first: int) -> None:
    batch = RecallConfig(lag=lag, symbols=symbols).data().draw(seed, index_range(first, 10))
    x = batch["inputs"]
    assert x.shape == (10, lag + 2, symbols + 1)
    assert (x.sum(dim=2) == 1).all() and set(x.unique().tolist()) == {0.0, 1.0}
    assert (x[:, :, symbols].sum(dim=1) == 1).all() and (x[:, -1, symbols] == 1).all(), (
        "the only question is at the end"
    )
    assert torch.equal(x[:, 0, :symbols].argmax(dim=1), batch["targets"])


def test_training_lags_cover_configured_range() -> None:
    mixed, exact = RecallConfig(lag=6).data(), RecallConfig(lag=6, min_lag=6).data()
    lengths = {mixed.batch(1, 16 * step, 16)["inputs"].shape[1] - 2 for step in range(100)}
    assert lengths == {1, 2, 3, 4, 5, 6}
    assert {exact.batch(1, 16 * step, 16)["inputs"].shape[1] - 2 for step in range(30)} == {6}
    assert mixed.split("test")["inputs"].shape[1] - 2 == 6


def test_distractors_are_uninformative() -> None:
    split = RecallConfig(lag=3, symbols=4, dev=40_000).data().split("dev")
    second = split["inputs"][:, 1, :4].argmax(dim=1)
    table = torch.zeros(4, 4).index_put_((split["targets"], second), torch.ones(40_000), accumulate=True)
    assert (table / 40_000 - 1 / 16).abs().max() < 0.005


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (AddingConfig, {"length": 1}, "length: must be at least 2; got 1"),
        (AddingConfig, {"dev": 0}, "dev: must be at least 1; got 0"),
        (AddingConfig, {"epoch": 0}, "epoch: must be at least 1"),
        (RecallConfig, {"lag": 0}, "lag: must be at least 1"),
        (RecallConfig, {"lag": 3, "min_lag": 4}, r"min_lag must be from 1 to lag \(3\); got 4"),
        (RecallConfig, {"min_lag": 0}, "min_lag: must be at least 1"),
        (RecallConfig, {"symbols": 1}, "symbols: must be at least 2; got 1"),
        (RecallConfig, {"test": 0}, "test: must be at least 1"),
        (RecallConfig, {"lenght": 5}, "no such key"),
    ],
)
def test_inconsistent_settings_are_rejected(config: type, values: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(config, values)
