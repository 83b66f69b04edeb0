"""Masked language modelling: selection and replacement rates, and static and dynamic masks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqloom.core.tokens import Specials
from seqloom.data.masking import NO_TARGET, MaskedBatches, MasksConfig, mask_rows, pack

V = 50
SPECIALS = Specials.after(V)


def random_rows(count: int, length: int = 64, seed: int = 0) -> np.ndarray:
    """Return rows of [CLS], a random number of tokens, [SEP] and padding."""
    draws = np.random.default_rng(seed)
    tokens = np.zeros((count, length), np.int32)
    for row in tokens:
        size = draws.integers(1, length - 1)
        row[: size + 2] = [SPECIALS.classify, *draws.integers(1, V, size), SPECIALS.separate]
    return tokens


def mask(rows: np.ndarray, config: MasksConfig | None = None, seed: int = 1):
    return mask_rows(rows, config or MasksConfig(), SPECIALS, V, np.random.default_rng(seed))


def test_replacement_rates_match_paper() -> None:
    """15 % of the tokens are selected: 80 % masked, 10 % replaced, 10 % unchanged, within four standard deviations."""
    rows = random_rows(20_000)
    masked = mask(rows)
    chosen = masked.targets != NO_TARGET
    tokens, count = int((rows > 0).sum()) - 2 * len(rows), int(chosen.sum())
    assert count / tokens == pytest.approx(0.15, abs=0.0005)
    inputs = np.take_along_axis(masked.tokens, masked.positions, axis=1)[chosen]
    targets = masked.targets[chosen]
    same = 1 / (V - 1)  # a random replacement may equal the original token
    for rate, measured in (
        (0.8, (inputs == SPECIALS.mask).mean()),
        (0.1 * (1 - same), ((inputs != SPECIALS.mask) & (inputs != targets)).mean()),
        (0.1 * (1 + same), (inputs == targets).mean()),
    ):
        assert measured == pytest.approx(rate, abs=4 * (rate * (1 - rate) / count) ** 0.5)
    replaced = inputs[(inputs != SPECIALS.mask) & (inputs != targets)]
    counts = np.bincount(replaced, minlength=V + 3)
    assert (
        counts[0] == 0 and (counts[V:] == 0).all() and (counts[1:V] > 0).all()
    )  # any ordinary token, but no special token


@settings(max_examples=30)
@given(st.integers(1, 30), st.integers(4, 40), st.floats(0.01, 0.9), st.integers(0, 99))
def test_only_selected_tokens_change(count, length, probability, seed) -> None:
    rows = random_rows(count, length, seed)
    masked = mask(rows, MasksConfig(mlm_probability=probability), seed)
    assert (
        masked.positions.shape
        == masked.targets.shape
        == (count, MasksConfig(mlm_probability=probability).max_targets(length))
    )
    for row, inputs, positions, targets in zip(rows, *masked, strict=True):
        selected = positions[targets != NO_TARGET]
        assert len(set(selected)) == len(selected) and list(selected) == sorted(selected)
        assert (row[selected] == targets[targets != NO_TARGET]).all()
        assert not set(row[selected]) & {0, *SPECIALS.names}
        assert (np.delete(row, selected) == np.delete(inputs, selected)).all()
        n = np.isin(row, range(1, V)).sum()
        assert np.floor(probability * n) <= len(selected) <= np.floor(probability * n) + 1


def test_fractions_of_selected_and_masked_tokens_are_configurable() -> None:
    masked = mask(random_rows(2000), MasksConfig(mlm_probability=0.5, mask_replace_prob=0.0, random_replace_prob=0.0))
    assert (masked.tokens == random_rows(2000)).all()  # selected tokens are unchanged
    assert (masked.targets != NO_TARGET).sum() / (np.isin(random_rows(2000), range(1, V))).sum() == pytest.approx(
        0.5, abs=0.01
    )
    all_masked = mask(random_rows(2000), MasksConfig(mask_replace_prob=1.0, random_replace_prob=0.0))
    assert (all_masked.tokens == SPECIALS.mask).sum() == (all_masked.targets != NO_TARGET).sum()


def test_invalid_fractions_are_rejected_together() -> None:
    with pytest.raises(
        ValueError,
        match=r"(?s)mlm_probability must be greater than 0.*random_replace_prob must be at .*at most 1; got 0.9",
    ):
        MasksConfig(mlm_probability=0.0, mask_replace_prob=0.9, random_replace_prob=1.2)


def batches(masking, seed: int = 0, size: int = 4) -> MaskedBatches:
    draws = np.random.default_rng(seed)
    source = pack([draws.integers(1, V, 20).tolist() for _ in range(30)], SPECIALS, 24)
    return MaskedBatches(source, masks=MasksConfig(), masking=masking, specials=SPECIALS, vocabulary=V, size=size)


def masks_by_row(batches: MaskedBatches, epoch: int) -> set[tuple]:
    """Return the masked rows of an epoch, without their order."""
    steps = range(epoch * batches.steps_per_epoch, (epoch + 1) * batches.steps_per_epoch)
    epoch_batches = [batches.batch(7, step) for step in steps]
    return {tuple(row.tolist()) for batch in epoch_batches for row in batch["tokens"]}


def test_static_masks_repeat_and_dynamic_masks_change() -> None:
    static, dynamic = batches("static", size=5), batches("dynamic", size=5)  # 5 divides 30, so every row is read
    assert masks_by_row(static, 0) == masks_by_row(static, 1) == masks_by_row(static, 7)
    assert not masks_by_row(dynamic, 0) & masks_by_row(dynamic, 1)
    assert masks_by_row(dynamic, 0) == masks_by_row(static, 0)  # the first epoch has equal masks
    orders = [[row.tolist() for row in static.batch(7, step)["tokens"]] for step in (0, 6)]
    assert orders[0] != orders[1]  # the order differs


def test_batches_are_a_function_of_seed_and_step() -> None:
    first, second = batches("dynamic"), batches("dynamic")
    for step in (20, 3, 11, 0, 20):
        left, right = first.batch(7, step), second.batch(7, step)
        assert left.keys() == right.keys() == {"tokens", "mask", "documents", "positions", "targets", "read"}
        assert all((left[name] == right[name]).all() for name in left if name != "read")
        assert left["tokens"].shape == (4, 24) and left["read"] == int(left["mask"].sum())
    assert (first.batch(7, 0)["tokens"] != first.batch(8, 0)["tokens"]).any()


def test_ranks_partition_an_epoch() -> None:
    batches_of_five = batches("static", size=5)
    rows = [
        row.tolist()
        for step in range(3)
        for rank in range(2)
        for row in batches_of_five.batch(7, step, rank, 2)["tokens"]
    ]
    assert len({tuple(row) for row in rows}) == 30
