"""Learning rates compared with their formulas."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.train.state import learning_rate

SCHEDULES = ("constant", "plateau", "inverse-sqrt", "cosine")
PEAK, TOTAL, WARMUP, FLOOR = 0.4, 20, 5, 0.04


def rates(schedule, warmup=WARMUP, floor=0.0):
    return [learning_rate(schedule, PEAK, step, TOTAL, warmup, floor) for step in range(TOTAL)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warmup_is_linear_and_ends_at_the_peak(schedule):
    assert rates(schedule)[:WARMUP] == pytest.approx([0.08, 0.16, 0.24, 0.32, 0.4], rel=1e-12)


@pytest.mark.parametrize("schedule", ["constant", "plateau"])
def test_constant_schedule_remains_at_the_peak(schedule):
    assert rates(schedule)[WARMUP:] == [PEAK] * (TOTAL - WARMUP)
    assert rates(schedule, warmup=0) == [PEAK] * TOTAL


def test_inverse_square_root_schedule_matches_its_formula():
    """After the warmup, step n (counted from 1) has the rate peak·√(warmup/n)."""
    expected = [PEAK * (WARMUP / number) ** 0.5 for number in range(WARMUP + 1, TOTAL + 1)]
    assert rates("inverse-sqrt")[WARMUP:] == pytest.approx(expected, rel=1e-12)
    assert rates("inverse-sqrt", warmup=0) == pytest.approx([PEAK / n**0.5 for n in range(1, TOTAL + 1)], rel=1e-12)


def test_cosine_schedule_matches_its_formula_and_ends_at_the_floor():
    actual = rates("cosine", floor=FLOOR)
    half = (TOTAL - WARMUP) / 2
    for step in range(WARMUP, TOTAL):
        angle = math.pi * (step - WARMUP) / (TOTAL - WARMUP)
        assert actual[step] == pytest.approx(FLOOR + (PEAK - FLOOR) * 0.5 * (1 + math.cos(angle)), rel=1e-12)
    assert actual[WARMUP] == PEAK
    assert learning_rate("cosine", 1.0, 10, 20) == pytest.approx(0.5)  # halfway, the rate is half of the peak
    assert learning_rate("cosine", PEAK, TOTAL, TOTAL, WARMUP, FLOOR) == pytest.approx(FLOOR)
    assert learning_rate("cosine", PEAK, TOTAL + 7, TOTAL, WARMUP, FLOOR) == pytest.approx(FLOOR)
    assert actual[int(WARMUP + half)] > (PEAK + FLOOR) / 2 > actual[int(WARMUP + half) + 1]


@given(
    schedule=st.sampled_from(SCHEDULES),
    warmup=st.integers(0, 30),
    total=st.integers(1, 60),
    floor=st.floats(0, PEAK),
)
def test_rate_rises_only_during_warmup_and_is_within_bounds(schedule, warmup, total, floor):
    rates_by_step = [learning_rate(schedule, PEAK, step, total, warmup, floor) for step in range(total)]
    rise, decay = rates_by_step[:warmup], rates_by_step[warmup:]
    assert all(a < b for a, b in itertools.pairwise(rise))
    assert all(a >= b for a, b in itertools.pairwise(decay))
    assert all(0 < rate <= PEAK * (1 + 1e-12) for rate in rise)
    assert all(0 <= rate <= PEAK * (1 + 1e-12) for rate in decay)
    if schedule == "cosine":
        assert all(rate >= floor * (1 - 1e-12) for rate in decay)
