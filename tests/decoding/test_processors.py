"""Score processors compared with brute force over small vocabularies."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from seqloom.core.errors import UsageError
from seqloom.decoding.processors import (
    SamplingConfig,
    apply_temperature,
    ban,
    keep_top_k,
    keep_top_p,
    penalize_repetition,
    process,
)

weights = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any)


def distribution(row: list[int]) -> torch.Tensor:
    counts = torch.tensor([row], dtype=torch.float64)
    return (counts / counts.sum()).log()


def kept_tokens(log_probs: torch.Tensor) -> set[int]:
    return {v for v, value in enumerate(log_probs[0].tolist()) if value > -math.inf}


def is_nucleus(chosen: set[int], row: list[int], p: float) -> bool:
    """Return whether `chosen` is a smallest set of tokens with mass ≥ p, and has the largest mass of such sets."""
    mass = {
        s: sum(row[v] for v in s) / sum(row)
        for n in range(1, len(row) + 1)
        for s in map(frozenset, itertools.combinations(range(len(row)), n))
    }
    enough = [s for s in mass if mass[s] >= p]
    smallest = min(map(len, enough))
    heaviest = max(mass[s] for s in enough if len(s) == smallest)
    return len(chosen) == smallest and mass[frozenset(chosen)] == pytest.approx(heaviest)


@given(weights, st.floats(0.001, 0.999))
@example([4, 1, 3], 0.999)
@example([1, 1, 1, 1], 0.6)
def test_top_p_keeps_the_smallest_sufficient_set(row: list[int], p: float) -> None:
    log_probs = distribution(row)
    masses = [sum(c) / sum(row) for n in range(len(row) + 1) for c in itertools.combinations(row, n)]
    assume(all(abs(mass - p) > 1e-9 for mass in masses))  # at the threshold, rounding would decide
    result = keep_top_p(log_probs, p)
    assert is_nucleus(kept_tokens(result), row, p)
    assert result.exp().sum().item() == pytest.approx(1)


def test_top_p_stops_as_soon_as_the_mass_is_reached() -> None:
    assert kept_tokens(keep_top_p(distribution([1, 2, 1]), 0.5)) == {1}  # exact in binary: 2/4 ≥ 0.5
    assert kept_tokens(keep_top_p(distribution([1, 2, 1]), 0.75)) == {0, 1}  # for ties, the lower id is preferred


def test_top_p_check_rejects_other_sets() -> None:
    row = [1, 5, 2, 4]  # a mass of 0.5 requires ids 1 and 3
    assert is_nucleus({1, 3}, row, 0.5)
    assert not any(is_nucleus(wrong, row, 0.5) for wrong in ({1}, {1, 2}, {0, 1, 3}, {1, 2, 3}))


@given(weights, st.integers(1, 8))
def test_top_k_keeps_the_k_most_probable(row: list[int], k: int) -> None:
    result = keep_top_k(distribution(row), k)
    expected = sorted(range(len(row)), key=lambda v: (-row[v], v))[:k]
    assert kept_tokens(result) == {v for v in expected if row[v] > 0}
    assert result.exp().sum().item() == pytest.approx(1)


@given(weights, st.floats(0.05, 20))
def test_temperature_is_a_power_of_the_probabilities(row: list[int], tau: float) -> None:
    expected = [math.exp((math.log(w) - math.log(max(row))) / tau) if w else 0.0 for w in row]
    result = apply_temperature(distribution(row), tau).exp()[0].tolist()
    assert result == pytest.approx([e / sum(expected) for e in expected])


def test_small_temperature_does_not_overflow() -> None:
    log_probs = distribution([3, 4, 3]).float()
    assert apply_temperature(log_probs, 1.1e-5).exp().tolist() == [[0, 1, 0]]
    assert SamplingConfig(temperature=1e-300).greedy


@given(weights, st.floats(1, 50), st.lists(st.integers(0, 5), max_size=4))
def test_repetition_penalty_divides_the_odds_once(row: list[int], penalty: float, generated: list[int]) -> None:
    generated = [v for v in generated if v < len(row)]
    expected = [w / penalty if v in generated else w for v, w in enumerate(row)]
    history = torch.tensor([generated], dtype=torch.long)
    result = penalize_repetition(distribution(row), history, penalty=penalty).exp()[0].tolist()
    assert result == pytest.approx([e / sum(expected) for e in expected])


def test_min_tokens_bans_the_end_token_and_renormalizes() -> None:
    log_probs = distribution([2, 1, 1])
    early, late = torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 3, dtype=torch.long)
    assert ban(log_probs, early, tokens=(0,), until=3).exp()[0].tolist() == pytest.approx([0, 0.5, 0.5])
    assert torch.equal(ban(log_probs, late, tokens=(0,), until=3), log_probs)


def test_banned_tokens_are_removed_and_the_rest_renormalized() -> None:
    empty_history = torch.zeros(1, 0, dtype=torch.long)
    assert ban(distribution([2, 1, 1]), empty_history, tokens=(0,)).exp()[0].tolist() == pytest.approx([0, 0.5, 0.5])
    greedy = SamplingConfig(temperature=0, banned=(0, 2)).processors(end=0)
    assert process(distribution([5, 1, 3]), empty_history, greedy).argmax(-1).tolist() == [1]


def test_end_token_is_allowed_if_all_other_tokens_are_excluded() -> None:
    empty_history = torch.zeros(1, 0, dtype=torch.long)
    assert ban(distribution([1, 0]), empty_history, tokens=(0,), until=3).exp().tolist() == [[1, 0]]


def test_processors_are_applied_in_the_documented_order() -> None:
    # The penalty changes token 1 from 8 to 2; END is banned; temperature ½ squares to 4, 9, 1; top-2 keeps 4, 9; top-p
    # 0.6 keeps 9.
    options = SamplingConfig(temperature=0.5, top_k=2, top_p=0.6, min_tokens=5, repetition_penalty=4)
    row, history = distribution([50, 8, 3, 1]), torch.tensor([[1]])
    chain = options.processors(end=0)
    expected = [[0, 2, 3, 1], [0, 4, 9, 1], [0, 4, 9, 0], [0, 0, 9, 0]]
    for used, counts in zip(range(2, 6), expected, strict=True):
        assert torch.allclose(process(row, history, chain[:used]).exp(), distribution(counts).exp())
    assert len(chain) == 5


def test_defaults_have_no_effect_and_half_precision_is_widened() -> None:
    assert SamplingConfig().processors(end=0) == []
    empty_history = torch.zeros(1, 0, dtype=torch.long)
    assert process(torch.zeros(1, 1, dtype=torch.bfloat16), empty_history, []).dtype == torch.float32


def test_rows_are_processed_independently() -> None:
    options = SamplingConfig(temperature=0.7, top_k=4, top_p=0.8, min_tokens=2, repetition_penalty=1.5)
    log_probs = torch.randn(5, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log_softmax(-1)
    history = torch.tensor([[1], [2], [3], [4], [5]])
    chain = options.processors(end=0)
    batched = process(log_probs, history, chain)
    for b in range(5):
        assert torch.equal(batched[b : b + 1], process(log_probs[b : b + 1], history[b : b + 1], chain))


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"repetition_penalty": 0.5}, "repetition_penalty"),
    ],
)
def test_invalid_settings_are_rejected_by_name(wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=f"{word} must be .*; got"):
        SamplingConfig(**wrong)
