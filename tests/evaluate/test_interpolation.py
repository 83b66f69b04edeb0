"""Mixture weights: expectation–maximization compared with a grid search and known solutions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seqloom.core.errors import DataError
from seqloom.decoding.mixture import mix
from seqloom.evaluate.perplexity import best_weights


def likelihood(log_probs: list[Tensor], weights: list[float]) -> float:
    return float(mix(log_probs, weights).mean())


def draw_log_probs(models: int, tokens: int, seed: int) -> list[Tensor]:
    """Draw log-probabilities of tokens under models with different strengths."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(models, tokens, 10, generator=generator, dtype=torch.float64)
    return list(logits.log_softmax(-1)[:, :, 0])


@settings(max_examples=30, deadline=None)
@given(tokens=st.integers(1, 60), seed=st.integers(0, 1000))
def test_weights_are_better_than_a_grid_search(tokens: int, seed: int) -> None:
    log_probs = draw_log_probs(2, tokens, seed)
    fitted = best_weights(log_probs)
    assert sum(fitted) == pytest.approx(1, abs=1e-12) and min(fitted) >= 0
    best = max(likelihood(log_probs, [n / 200, 1 - n / 200]) for n in range(201))
    assert likelihood(log_probs, fitted) >= best - 1e-6


def test_weights_of_three_models_are_better_than_a_grid_search() -> None:
    log_probs = draw_log_probs(3, 200, 1)
    fitted = best_weights(log_probs)
    grid = [[a / 40, b / 40, (40 - a - b) / 40] for a in range(41) for b in range(41 - a)]
    assert likelihood(log_probs, fitted) >= max(likelihood(log_probs, weights) for weights in grid) - 1e-7
    assert (
        likelihood(log_probs, fitted) > likelihood(log_probs, [1 / 3] * 3) + 1e-4
    )  # negative control: equal weights are worse


def test_dominating_model_receives_all_weight() -> None:
    better, worse = torch.full((50,), -1.0), torch.full((50,), -2.0)
    assert best_weights([better, worse])[0] > 0.99999
    assert best_weights([worse, better])[1] > 0.99999


def test_weights_of_disjoint_models_match_their_token_fractions() -> None:
    sure, never = torch.zeros(1), torch.full((1,), -torch.inf)
    first = torch.cat([sure] * 3 + [never])
    second = torch.cat([never] * 3 + [sure])
    assert best_weights([first, second]) == pytest.approx([0.75, 0.25], abs=1e-6)


def test_equal_models_have_equal_weights() -> None:
    same = draw_log_probs(1, 20, 3)[0]
    assert best_weights([same, same.float()]) == pytest.approx([0.5, 0.5], abs=1e-3)


def test_text_impossible_under_all_models_is_rejected() -> None:
    with pytest.raises(DataError, match="probability 0 under every mixture"):
        best_weights([torch.tensor([-1.0, -torch.inf]), torch.tensor([-2.0, -torch.inf])])
