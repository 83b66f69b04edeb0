"""Masks: how many are chosen, what becomes of them, what is never touched; static ones and dynamic ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqloom.core.tokens import Specials
from seqloom.data.masking import NO_TARGET, MaskedBatches, MasksConfig, mask_rows, pack

V = 50
SPECIALS = Specials.after(V)


def rows(count: int, length: int = 64, seed: int = 0) -> np.ndarray:
    """[CLS] tokens [SEP] padding, of any length."""
    draws = np.random.default_rng(seed)
    found = np.zeros((count, length), np.int32)
    for row in found:
        size = draws.integers(1, length - 1)
        row[: size + 2] = [SPECIALS.classify, *draws.integers(1, V, size), SPECIALS.separate]
    return found


def masked(given: np.ndarray, config: MasksConfig | None = None, seed: int = 1):
    return mask_rows(given, config or MasksConfig(), SPECIALS, V, np.random.default_rng(seed))


def test_replacement_rates_match_paper() -> None:
    """15 % of the tokens; of these 80 % hidden, 10 % swapped, 10 % left: each within four standard deviations."""
    given = rows(20_000)
    found = masked(given)
    chosen = found.targets != NO_TARGET
    tokens, count = int((given > 0).sum()) - 2 * len(given), int(chosen.sum())
    assert count / tokens == pytest.approx(0.15, abs=0.0005)
    shown = np.take_along_axis(found.tokens, found.positions, axis=1)[chosen]
    targets = found.targets[chosen]
    same = 1 / (V - 1)  # what is drawn may be what was there
    for share, times in (
        (0.8, (shown == SPECIALS.mask).mean()),
        (0.1 * (1 - same), ((shown != SPECIALS.mask) & (shown != targets)).mean()),
        (0.1 * (1 + same), (shown == targets).mean()),
    ):
        assert times == pytest.approx(share, abs=4 * (share * (1 - share) / count) ** 0.5)
    swapped = shown[(shown != SPECIALS.mask) & (shown != targets)]
    counts = np.bincount(swapped, minlength=V + 3)
    assert counts[0] == 0 and (counts[V:] == 0).all() and (counts[1:V] > 0).all()  # any token, and no special one


@settings(max_examples=30)
@given(st.integers(1, 30), st.integers(4, 40), st.floats(0.01, 0.9), st.integers(0, 99))
def test_only_selected_tokens_change(count, length, share, seed) -> None:
    given = rows(count, length, seed)
    found = masked(given, MasksConfig(mlm_probability=share), seed)
    assert (
        found.positions.shape == found.targets.shape == (count, MasksConfig(mlm_probability=share).max_targets(length))
    )
    for row, shown, places, targets in zip(given, *found, strict=True):
        own = places[targets != NO_TARGET]
        assert len(set(own)) == len(own) and list(own) == sorted(own)
        assert (row[own] == targets[targets != NO_TARGET]).all()
        assert not set(row[own]) & {0, *SPECIALS.names}
        assert (np.delete(row, own) == np.delete(shown, own)).all()
        n = np.isin(row, range(1, V)).sum()
        assert np.floor(share * n) <= len(own) <= np.floor(share * n) + 1


def test_custom_fractions() -> None:
    found = masked(rows(2000), MasksConfig(mlm_probability=0.5, mask_replace_prob=0.0, random_replace_prob=0.0))
    assert (found.tokens == rows(2000)).all()  # all chosen ones stay
    assert (found.targets != NO_TARGET).sum() / (np.isin(rows(2000), range(1, V))).sum() == pytest.approx(0.5, abs=0.01)
    every = masked(rows(2000), MasksConfig(mask_replace_prob=1.0, random_replace_prob=0.0))
    assert (every.tokens == SPECIALS.mask).sum() == (every.targets != NO_TARGET).sum()


def test_invalid_fractions_are_refused_together() -> None:
    with pytest.raises(
        ValueError,
        match=r"(?s)mlm_probability must be greater than 0.*random_replace_prob must be at .*at most 1; got 0.9",
    ):
        MasksConfig(mlm_probability=0.0, mask_replace_prob=0.9, random_replace_prob=1.2)


def batches(masking, seed: int = 0, size: int = 4) -> MaskedBatches:
    draws = np.random.default_rng(seed)
    source = pack([draws.integers(1, V, 20).tolist() for _ in range(30)], SPECIALS, 24)
    return MaskedBatches(source, masks=MasksConfig(), masking=masking, specials=SPECIALS, vocabulary=V, size=size)


def masks_by_row(made: MaskedBatches, epoch: int) -> set[tuple]:
    """What an epoch shows of each row, whatever the order."""
    steps = range(epoch * made.steps_per_epoch, (epoch + 1) * made.steps_per_epoch)
    found = [made.batch(7, step) for step in steps]
    return {tuple(row.tolist()) for batch in found for row in batch["tokens"]}


def test_static_masks_repeat_and_dynamic_masks_change() -> None:
    static, dynamic = batches("static", size=5), batches("dynamic", size=5)  # 5 divides 30: every row is read
    assert masks_by_row(static, 0) == masks_by_row(static, 1) == masks_by_row(static, 7)
    assert not masks_by_row(dynamic, 0) & masks_by_row(dynamic, 1)
    assert masks_by_row(dynamic, 0) == masks_by_row(static, 0)  # the first epoch is the same
    orders = [[row.tolist() for row in static.batch(7, step)["tokens"]] for step in (0, 6)]
    assert orders[0] != orders[1]  # in another order, though


def test_batches_are_a_function_of_seed_and_step() -> None:
    one, two = batches("dynamic"), batches("dynamic")
    for step in (20, 3, 11, 0, 20):
        left, right = one.batch(7, step), two.batch(7, step)
        assert left.keys() == right.keys() == {"tokens", "mask", "documents", "positions", "targets", "read"}
        assert all((left[name] == right[name]).all() for name in left if name != "read")
        assert left["tokens"].shape == (4, 24) and left["read"] == int(left["mask"].sum())
    assert (one.batch(7, 0)["tokens"] != one.batch(8, 0)["tokens"]).any()


def test_ranks_partition_an_epoch() -> None:
    made = batches("static", size=5)
    seen = [row.tolist() for step in range(3) for rank in range(2) for row in made.batch(7, step, rank, 2)["tokens"]]
    assert len({tuple(row) for row in seen}) == 30
